"""`mergerepl status`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, reporting
from mergerepl.report.output import Output


@click.command(cls=Command)
@replica_argument
@reporting
def status(replica: str, output: Output) -> None:
    """Show what a replica holds and how far each subscription is.

    Example:
      mergerepl status ./hq
    """
    from mergerepl import api, config

    if (target := config.transactional_target(replica)) is not None:
        from mergerepl import transactional
        from mergerepl.report.transactional import status_parts

        found = transactional.status(target[0])
        output.reported(found, status_parts(found))
        return
    output.status(api.status(replica_root(replica)))

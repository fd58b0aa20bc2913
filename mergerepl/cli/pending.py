"""`mergerepl pending`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, reporting
from mergerepl.cli.report.output import Output


@click.command(cls=Command)
@replica_argument
@reporting
def pending(replica: str, output: Output) -> None:
    """Count the changes that wait for the next sync.

    Example:
      mergerepl pending ./north
    """
    from mergerepl import api
    from mergerepl.config import project_file as config

    if config.transactional_target(replica) is not None:
        from mergerepl.cli.transactional import pending_of

        pending_of(replica, output)
        return
    root = replica_root(replica)
    output.pending(root, api.pending(root))

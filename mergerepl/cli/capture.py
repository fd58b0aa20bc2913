"""`mergerepl capture`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, working
from mergerepl.cli.report.output import Output
from mergerepl.model.progress import Progress


@click.command(cls=Command)
@replica_argument
@working
def capture(replica: str, output: Output, progress: Progress) -> None:
    """Record the changes made at a replica, as a sync does first.

    Worth running by itself before the change feed's files are vacuumed.

    Example:
      mergerepl capture ./north
    """
    from mergerepl import api

    root = replica_root(replica)
    with progress:
        result = api.capture(root, progress=progress)
    output.captured(result)

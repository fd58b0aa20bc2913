"""`mergerepl apply`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import working
from mergerepl.cli.report.output import Output
from mergerepl.model.progress import Progress


@click.command(cls=Command)
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Show the steps; change nothing.")
@working
def apply(file: str, dry_run: bool, output: Output, progress: Progress) -> None:
    """Make the replicas match FILE: publish tables, create and initialize subscribers.

    Run it again after every change of FILE; what matches already is left alone.

    Example:
      mergerepl apply sales.yml --dry-run
    """
    from mergerepl import api

    project = api.load(file)
    with progress:
        result = project.apply(dry_run=dry_run, progress=progress)
    output.applied(result)

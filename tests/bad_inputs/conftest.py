"""The one check of a refusal: exit code, one message, and nothing changed."""

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mergerepl.cli.main import main
from mergerepl.cli.report.table import printable
from mergerepl.errors import MergeReplError
from mergerepl.replica.replica import Replica
from mergerepl.spark import session as engine
from mergerepl.store import lease
from mergerepl.systables import catalog, sessions
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.table import FOLDER
from tests.networks import Network, subscriptions_but_endings

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
    """Return every path below a folder with what is there.

    A file is known by its inode, size and time: what is written in its place, even the same again, is a change. That a
    session failed is recorded in history and in how the last session ended: these are left out.
    """
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(folder):
        if Path(parent).name == FOLDER:
            folders[:] = [name for name in folders if name not in _OF_FAILED_SESSIONS]
            found[os.path.join(parent, catalog.SUBSCRIPTIONS.name)] = _subscriptions(Path(parent).parent)
        for name in folders:
            path = os.path.join(parent, name)
            found[path] = os.readlink(path) if os.path.islink(path) else "folder"
        for name in files:
            path = os.path.join(parent, name)
            # The text of a lock says who held it last; what counts is that nobody does.
            found[path] = lease.holder(Path(parent)) if name == lease.LOCK_FILE else _file(path)
    return found


_OF_FAILED_SESSIONS = {sessions.SESSIONS.name, sessions.HISTORY.name, catalog.SUBSCRIPTIONS.name}


_read: dict[object, list[SubscriptionRow] | None] = {}
"""By the files of the log of a replica's subscriptions: what `_subscriptions` returned."""


def _subscriptions(root: Path) -> list[SubscriptionRow] | None:
    """Return the subscriptions of a replica without how their last sessions ended; None if they cannot be read."""
    table = root / FOLDER / catalog.SUBSCRIPTIONS.name
    # A copy of the network has the times of the original.
    files = tuple((str(path), _file(str(path))[1:]) for path in sorted(table.rglob("*")))
    if files not in _read:
        try:
            _read[files] = subscriptions_but_endings(Replica(root))
        except MergeReplError:
            _read[files] = None
    return _read[files]


def _file(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    link = os.readlink(path) if os.path.islink(path) else None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, link


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever asks for the engine fail: most refusals come before it is needed."""

    def refuse(**_: Any) -> None:
        raise AssertionError("this refusal needs no engine")

    monkeypatch.setattr(engine, "session", refuse)


@pytest.fixture
def folder(
    request: pytest.FixtureRequest, worker_folder: Path, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The working directory of a test, empty; what is in it must be as before after a refusal.

    Tests that need no engine have the same path all the time, so that a network can be copied as it is.
    """
    monkeypatch.delenv("MERGEREPL_DEBUG", raising=False)
    folder = replica_dir
    if "spark" not in request.fixturenames:
        folder = worker_folder / "here"
        if folder.exists():
            # Moving it is quicker than deleting it, and what a failed test left can be looked at.
            folder.rename(worker_folder / f"was-here-{uuid.uuid4().hex[:12]}")
        folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def made_once(worker_folder: Path) -> Path:
    """A copy of the network that was made in the folder which all tests without an engine have."""
    here, aside = worker_folder / "here", worker_folder / "made-once"
    if here.exists():
        # A test without the network was here before.
        here.rename(worker_folder / "was-here-before")
    here.mkdir()
    Network(here)
    here.rename(aside)
    return aside


@pytest.fixture
def network(request: pytest.FixtureRequest, made_once: Path, folder: Path) -> Network:
    """Three replicas in step."""
    if "spark" in request.fixturenames:
        return Network(folder)
    shutil.copytree(made_once, folder, dirs_exist_ok=True)
    return Network(folder, is_there=True)


@pytest.fixture(scope="session")
def shown_in_json() -> set[tuple[object, ...]]:
    """Kinds of refusals that this process has compared with what `--json` says of them."""
    return set()


@pytest.fixture
def refused(request: pytest.FixtureRequest, folder: Path, shown_in_json: set[tuple[object, ...]]) -> Refused:
    """Check a refusal; return its message.

    A refusal as JSON is compared with the text once for each mistake (a test and its exit code), command and form of
    the message: from the error on, both go the same way.
    """

    def check(*arguments: object, code: int, says: tuple[str, ...]) -> str:
        before = state_of(folder)
        message = message_of(run(*arguments), code)
        kind = (request.function, *map(str, arguments[:1]), code, *_form(message))
        if kind not in shown_in_json:
            _check_json(*arguments, code=code, message=message)
            shown_in_json.add(kind)
        assert state_of(folder) == before, "a refusal changes nothing"
        assert [part for part in says if part not in message] == [], message
        return message

    return check


def _form(message: str) -> tuple[bool, bool]:
    """Return what text and JSON write each in a way of its own: several lines, and escapes."""
    return "\n" in message.strip(), "\\" in message or not message.isascii()


def _check_json(*arguments: object, code: int, message: str) -> None:
    in_json = run(*arguments, "--json")
    assert in_json.exit_code == code
    assert in_json.stderr == ""
    error = json.loads(in_json.stdout)["error"]
    assert _lines_of(error["message"]) == _lines_of(message)
    assert error["transient"] is (code == 3)


def _lines_of(message: str) -> list[str]:
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

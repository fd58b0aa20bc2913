"""The public functions before any session begins: roots, choices, and what a session that raised becomes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mergerepl
from mergerepl.errors import ConfigurationError, LeaseError, MergeReplError, StoreError
from mergerepl.model.publication import Article, Publication, Subscription
from mergerepl.model.results import PhaseCounts, SessionResult

SECRET = "s3://key:hunter2@bucket/x"


def lock(root: str | Path) -> None:
    with mergerepl.lock(root, wait_s=0.0):
        pass


ROOTS: dict[str, Any] = {
    "Replica": mergerepl.Replica,
    "Project.load": mergerepl.Project.load,
    "a name": lambda root: mergerepl.Project.load(".").at(str(root)),
    "sync of a project": lambda root: project(root, root).sync(),
    "apply of a project": lambda root: project(root, root).apply(),
    "lock": lock,
}


def project(publisher: str | Path, *subscribers: str | Path) -> mergerepl.Project:
    articles = (Article("orders", "orders", ("id",)),)
    subscriptions = tuple(Subscription(str(each)) for each in subscribers)
    return mergerepl.Project(Publication("sales", str(publisher), articles, subscriptions))


@pytest.mark.parametrize("root", [SECRET, Path(SECRET)], ids=["text", "path"])
@pytest.mark.parametrize("ask", ROOTS.values(), ids=ROOTS.keys())
def test_no_credentials_of_a_root_are_shown(ask: Any, root: str | Path) -> None:
    with pytest.raises(ConfigurationError, match=r"s3:/.*bucket/x") as raised:
        ask(root)
    assert "hunter2" not in str(raised.value.details())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"direction": "uplaod"}, "There is no direction 'uplaod'. Choose one of both, upload, download."),
        (
            {"validate": "rows"},
            "There is no level of validation 'rows'. Choose one of rowcount, touched, checksum.",
        ),
        ({"validate": "rowcount", "dry_run": True}, "leave out `validate`"),
    ],
    ids=["direction", "level", "validated dry run"],
)
def test_an_option_that_would_mean_something_else_is_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        project("/x", "/y").sync(**options)


def test_a_level_that_would_mean_another_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rowcount, checksum"):
        project("/x", "/y").validate(level="rows")  # type: ignore[arg-type]


def test_a_command_refuses_a_validated_dry_run(hq: Path) -> None:
    command = ["mergerepl", "sync", "-f", "hq", "--dry-run", "--validate", "rowcount"]
    script = "from mergerepl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *command[1:]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave out `validate`" in done.stderr


@pytest.mark.parametrize("raises", ["session", "validation"])
def test_one_of_several_sessions_that_raises_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: str
) -> None:
    done = SessionResult("sales", "north", "succeeded", PhaseCounts(inserts=3), duration_s=1.5)
    clock = iter([10.0, 12.5, 20.0, 22.5])
    error: MergeReplError = LeaseError("held") if raises == "session" else StoreError("damaged")

    def work(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("mergerepl.sessions.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("mergerepl.sessions._session", work if raises == "session" else lambda *_: done)
    monkeypatch.setattr("mergerepl.monitoring.validate.validate_subscription", work)
    result = project(tmp_path / "hq", tmp_path / "north", tmp_path / "south").sync(validate="rowcount")
    assert not result.ok
    for session in result.sessions:
        assert (session.is_failed, session.reason, session.is_transient) == (
            True,
            error.message,
            raises == "session",
        )
        expected = ("failed", 2.5, 0) if raises == "session" else ("succeeded", 1.5, 3)
        assert (session.status, session.duration_s, session.upload.inserts) == expected

"""Appends that delta-rs committed twice, and others that only look like it."""

import json
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.commits import read_commit
from mergerepl.delta.feed.repetitions import is_repetition
from mergerepl.delta.feed.window import FeedPosition, feed_window
from mergerepl.delta.log import log_path
from mergerepl.store.location import Location


def commit(*files: tuple[str, str], retries: int = 0, operation: str = "WRITE", app: str = "") -> list[Any]:
    info = {"operation": operation, "operationMetrics": {"num_retries": retries}}
    named = [{kind: {"path": path, "dataChange": True}} for kind, path in files]
    return [{"commitInfo": info}, *named, *([{"txn": {"appId": app, "version": 1}}] if app else [])]


A, B = ("add", "a.parquet"), ("add", "b.parquet")
GONE = ("remove", "a.parquet")
LOGS = {
    "the answer was lost": ([commit(A), commit(A, retries=1)], True),
    "others committed in between": (
        [commit(A), commit(B), commit(("remove", "b.parquet")), commit(A, retries=1)],
        True,
    ),
    "only a lost race": ([commit(B), commit(A, retries=1)], False),
    "the rows were deleted in between": ([commit(A), commit(GONE), commit(A, retries=1)], False),
    "a RESTORE": ([commit(A), commit(GONE), commit(A, operation="RESTORE")], False),
    "a MERGE": ([commit(A), commit(A, GONE, retries=1)], False),
    "some of the files": ([commit(A), commit(A, B, retries=1)], False),
    "a writer that names its transaction": ([commit(A), commit(A, retries=1, app="a")], False),
}


@pytest.mark.parametrize("case", LOGS)
def test_an_append_that_is_there_twice_is_told(tmp_path: Path, case: str) -> None:
    table = Location.of(tmp_path)
    written, wanted = LOGS[case]
    (tmp_path / "_delta_log").mkdir()
    for version, actions in enumerate(written):
        text = "\n".join(json.dumps(action) for action in actions)
        Path(log_path(table, version)).write_text(text)
    last = len(written) - 1
    assert is_repetition(table, read_commit(table, last)) == wanted
    window = feed_window(table, FeedPosition("", last - 1))
    assert [each.version for each in window.changes(lambda _: False)] == ([] if wanted else [last])


def test_a_first_attempt_that_is_gone_from_the_log_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    text = "\n".join(json.dumps(action) for action in commit(A, retries=1))
    Path(log_path(Location.of(tmp_path), 1)).write_text(text)
    assert not is_repetition(Location.of(tmp_path), read_commit(Location.of(tmp_path), 1))

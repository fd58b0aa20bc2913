"""A commit that happens once: what is done already, lost to other writers, or not there afterwards. No Spark."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentAppendException
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from mergerepl.delta import transactions
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, commit_once, lost_commits, transaction_version
from mergerepl.delta.writes import add_files
from mergerepl.errors import CommitConflictError

ROWS = pa.table({"id": pa.array([1], pa.int64())})
TRANSACTION = Transaction("app", 1, CommitMark("session", "step"))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(transactions, "RETRY_WAIT_S", 0)
    write_deltalake(str(tmp_path / "t"), ROWS)
    return tmp_path / "t"


def commit(table: Path, write: Callable[[], None]) -> int:
    lost = lost_commits("'t'", "the test", "Run again.", table="t")
    return commit_once(write, table, TRANSACTION, from_version_exclusive=0, lost=lost).version


@pytest.mark.parametrize("conflict", [CommitFailedError, ConcurrentAppendException])
def test_a_commit_that_another_writer_won_is_written_again(table: Path, conflict: type[Exception]) -> None:
    losses = iter([1, 2])

    def write() -> None:
        for _ in losses:
            write_deltalake(str(table), ROWS, mode="append")
            raise conflict("another writer was first")
        add_files(open_table(table), {}, TRANSACTION)

    assert commit(table, write) == 3
    assert transaction_version(table, "app") == 1


def test_a_writer_that_always_loses_gives_up(table: Path) -> None:
    tried = []

    def write() -> None:
        tried.append(1)
        raise CommitFailedError("another writer was first")

    with pytest.raises(
        CommitConflictError, match=r"'t' is being changed .* the test lost 8 commits in a row"
    ):
        commit(table, write)
    assert len(tried) == transactions.COMMIT_ATTEMPTS
    assert head_version(table) == 0


def test_a_commit_whose_answer_was_lost_is_not_written_twice(table: Path) -> None:
    def write() -> None:
        if transaction_version(table, "app") < 1:
            add_files(open_table(table), {}, TRANSACTION)
            raise CommitFailedError("the answer was lost")

    assert commit(table, write) == 1
    assert head_version(table) == 1


def test_a_commit_of_an_earlier_run_is_found_by_its_mark(table: Path) -> None:
    add_files(open_table(table), {}, TRANSACTION)
    assert commit(table, lambda: pytest.fail("written again")) == 1


def test_a_commit_that_was_reported_and_is_not_there_is_an_error(table: Path) -> None:
    with pytest.raises(CommitConflictError, match="was reported done and is not in the log"):
        commit(table, lambda: None)

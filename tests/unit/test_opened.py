"""Tables that a session keeps open: what is read once, what moves forward, and what is noticed. No Spark."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from mergerepl.delta.commits import read_commit
from mergerepl.delta.log import log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.opened import tables_kept_open
from mergerepl.delta.small_tables import count_rows, delete_rows, read_rows, write_rows
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, transaction_version
from mergerepl.delta.writes import add_files, compact
from tests.openings import Openings, counted_openings

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "t"
    for _ in range(3):
        write_deltalake(str(path), ROWS, mode="append")
    return path


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Openings:
    return counted_openings(monkeypatch)


@pytest.fixture
def kept(table: Path) -> Iterator[None]:
    with tables_kept_open(table.parent):
        yield


def files(table: Path, version: int | None = None) -> int:
    return len(open_table(table, version).files())


@pytest.mark.usefixtures("kept")
def test_a_log_is_read_once_and_then_what_is_new_of_it(table: Path, openings: Openings) -> None:
    assert [files(table), count_rows(table), files(table)] == [3, 6, 3]
    write_rows(table, ROWS, mode="append", properties={})
    add_files(open_table(table), {}, Transaction("app", 7, CommitMark("session", "step")))
    delete_rows(table, where="id = 1")
    assert transaction_version(table, "app") == 7
    assert [row["id"] for row in read_rows(table, ["id"])] == [2] * 4
    assert openings.of(table) == 1
    write_deltalake(str(table), ROWS, mode="append")
    of_writer = openings.of(table)
    assert files(table) == 2
    assert openings.of(table) == of_writer


@pytest.mark.usefixtures("kept")
def test_a_state_stays_what_it_was_when_the_table_moves_forward(table: Path) -> None:
    state, other = open_table(table), open_table(table)
    write_deltalake(str(table), ROWS, mode="overwrite")
    assert files(table) == 1
    assert [len(state.files()), state.transaction_version("app")] == [3, -1]
    add_files(open_table(table), {}, Transaction("app", 7, CommitMark("session", "step")))
    assert [other.transaction_version("app"), open_table(table).transaction_version("app")] == [-1, 7]
    assert [files(table, 1), files(table)] == [2, 1]


def replace_by_another(table: Path) -> None:
    shutil.rmtree(table)
    for _ in range(3):
        write_deltalake(str(table), pa.table({"id": ["a"]}), mode="append")


def replace_by_a_longer_one(table: Path) -> None:
    shutil.rmtree(table)
    for _ in range(5):
        write_deltalake(str(table), pa.table({"id": ["a"]}), mode="append")


def restore_a_copy(table: Path) -> None:
    copy = table.with_name("copy")
    shutil.copytree(table, copy)
    write_deltalake(str(table), ROWS, mode="append")
    assert files(table) == 4
    shutil.rmtree(table)
    copy.rename(table)


def overwrite_the_last_commit(table: Path) -> None:
    """As Spark may on a local path: its rename replaces a commit."""
    log = log_path(table, 2)
    other = log.with_name(".other")
    other.write_text(log.read_text().replace('"numRecords\\":2', '"numRecords\\":3'))
    other.rename(log)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "replace", [replace_by_another, replace_by_a_longer_one, restore_a_copy, overwrite_the_last_commit]
)
def test_another_table_at_the_path_is_noticed(table: Path, replace: Any) -> None:
    before = open_table(table)
    assert len(before.files()) == 3
    replace(table)
    fresh = deltalake.DeltaTable(str(table))
    found = open_table(table)
    assert (found.version, found.metadata.table_id) == (fresh.version(), str(fresh.metadata().id))
    assert (
        found.files()["num_records"].to_pylist()
        == pa.table(fresh.get_add_actions(flatten=True))["num_records"].to_pylist()
    )
    assert count_rows(table) == fresh.count()


def test_nothing_is_kept_outside_of_the_block(table: Path, openings: Openings) -> None:
    assert [files(table), files(table)] == [3, 3]
    assert openings.of(table) == 2
    with tables_kept_open(table.parent):
        with tables_kept_open(table.parent):
            files(table)
        files(table)
    assert openings.of(table) == 3
    files(table)
    assert openings.of(table) == 4


@pytest.mark.usefixtures("kept")
def test_a_write_that_failed_is_followed_by_a_new_reading(table: Path, openings: Openings) -> None:
    state = open_table(table)
    with pytest.raises(RuntimeError), state.writing():
        raise RuntimeError("the answer was lost")
    assert files(table) == 3
    assert openings.of(table) == 2


@pytest.mark.usefixtures("kept")
def test_small_files_become_one_in_a_commit_that_changes_no_data(table: Path) -> None:
    assert not compact(table, target_bytes=1 << 20, most_files=3)
    assert compact(table, target_bytes=1 << 20, most_files=2)
    assert [files(table), count_rows(table)] == [1, 6]
    write_deltalake(str(table), ROWS, mode="append")
    assert compact(table, target_bytes=1 << 20, rows_of_group=2)
    (file,) = (table / name for name in open_table(table).files()["path"].to_pylist())
    assert pq.ParquetFile(file).num_row_groups == 4
    assert not read_commit(table, open_table(table).version).data_change
    assert not compact(table, target_bytes=1 << 20)

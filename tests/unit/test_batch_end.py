"""A table since a batch left it: the classification as a case table, and the log that it is read from."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from mergerepl.delta.batch_end import (
    FOREIGN,
    NO_DATA,
    REPLACED,
    SAME,
    LeftAt,
    changes_since,
    classify,
    left_at,
)
from mergerepl.delta.commits import Commit
from mergerepl.delta.log import log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.writes import add_files
from mergerepl.errors import StoreError

OURS, THEIRS = CommitMark("me", "consume:a:7"), CommitMark("other", "consume:b:7")
LEFT = LeftAt("5:abc", "id")


def is_own(mark: CommitMark) -> bool:
    return mark.session == "me"


def commit(version: int, operation: str = "WRITE", mark: CommitMark | None = None, **facts: object) -> Commit:
    stated = {"data_change": True, **facts}
    return Commit(version=version, operation=operation, mark=mark, metadata=None, **stated)  # type: ignore[arg-type]


def restore(version: int, to: int | None) -> Commit:
    return commit(version, "RESTORE", restored_version=to)


@pytest.mark.parametrize(
    ("commits", "kind", "own", "foreign"),
    [
        ([], NO_DATA, [], []),
        ([commit(6, "OPTIMIZE", data_change=False), commit(7, "SET", data_change=False)], NO_DATA, [], []),
        ([commit(6)], FOREIGN, [], [6]),
        ([commit(6, mark=THEIRS)], FOREIGN, [], [6]),
        ([commit(6, "DELETE"), commit(7, "OPTIMIZE", data_change=False)], FOREIGN, [], [6]),
        # A run that died after its commit.
        ([commit(6, "MERGE", OURS)], NO_DATA, [6], []),
        ([commit(6), commit(7, "MERGE", OURS), commit(8)], FOREIGN, [7], [6, 8]),
        # Overwrites, of all rows or of some, and replaced tables; not our own.
        ([commit(6, replaces_rows=True)], REPLACED, [], [6]),
        ([commit(6, replaces_rows=True, mark=OURS)], NO_DATA, [6], []),
        ([commit(6, replaces_rows=True, mark=THEIRS)], REPLACED, [], [6]),
        ([commit(6, replaces_rows=True), commit(7, "MERGE", OURS)], REPLACED, [7], [6]),
        # A RESTORE to an older state; one that undoes others' commits only.
        ([restore(6, 4)], REPLACED, [], [6]),
        ([restore(6, None)], REPLACED, [], [6]),
        ([restore(6, 5)], NO_DATA, [], []),
        ([commit(6), commit(7), restore(8, 6)], FOREIGN, [], [6]),
        ([commit(6, replaces_rows=True), restore(7, 5)], NO_DATA, [], []),
        ([commit(6, "MERGE", OURS), restore(7, 5)], REPLACED, [6], [7]),
        ([restore(6, 4), restore(7, 5)], NO_DATA, [], []),
        ([restore(6, 4), restore(7, 6)], REPLACED, [], [6]),
    ],
)
def test_the_commits_since_a_batch_are_classified(
    commits: Sequence[Commit], kind: str, own: list[int], foreign: list[int]
) -> None:
    found = classify(LEFT, LeftAt("9:def", "id"), commits, is_own)
    assert found.kind == kind, found.reason
    assert [each.version for each in found.own] == own
    assert list(found.foreign) == foreign
    assert classify(LEFT, LeftAt("9:def", "another"), commits, is_own).kind == REPLACED


def _rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def _mark(number: int) -> Transaction:
    return Transaction("app", number, CommitMark("me", f"consume:a:{number}"))


def test_the_log_of_a_table_shows_what_happened_since_a_batch(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), _rows(1, 2), commit_properties=CommitProperties())
    add_files(open_table(table), {}, _mark(1))
    left = left_at(table, 1)
    assert LeftAt.of_text(left.text) == left

    def since() -> tuple[str, str | None]:
        found = changes_since(table, left, is_own)
        return found.kind, found.reason

    assert since() == (SAME, None)
    DeltaTable(str(table)).optimize.compact()
    add_files(open_table(table), {}, _mark(2))
    found = changes_since(table, left, is_own)
    assert (found.kind, [each.version for each in found.own], found.through.version) == (NO_DATA, [2], 2)
    left = found.through
    write_deltalake(str(table), _rows(3), mode="append")
    assert since() == (FOREIGN, None)
    DeltaTable(str(table)).restore(2)
    assert since() == (NO_DATA, None)
    DeltaTable(str(table)).restore(0)
    assert since() == (REPLACED, "its version 5 is a RESTORE to version 0, and the last batch left version 2")
    DeltaTable(str(table)).restore(4)
    assert since() == (NO_DATA, None)
    write_deltalake(str(table), _rows(9), mode="overwrite")
    assert since() == (REPLACED, "its version 7 replaced rows (WRITE)")


def test_another_table_in_the_place_of_one_is_noticed(tmp_path: Path) -> None:
    tables = [tmp_path / name for name in ("a", "b")]
    for table in tables:
        for number in range(3):
            write_deltalake(str(table), _rows(number), mode="append")
    left = left_at(tables[0], 1)
    assert changes_since(tables[0], left, is_own).foreign == (2,)
    assert "another commit" in str(changes_since(tables[1], left, is_own).reason)
    assert "no Delta table" in str(changes_since(tmp_path / "c", left, is_own).reason)
    log_path(tables[0], 2).unlink()
    assert changes_since(tables[0], left_at(tables[0], 1), is_own).kind == SAME
    log_path(tables[0], 1).unlink()
    assert "newest version is 0" in str(changes_since(tables[0], left, is_own).reason)
    with pytest.raises(StoreError, match="gone from its log"):
        left_at(tables[0], 1)


def test_a_log_that_was_cleaned_up_hides_nothing(tmp_path: Path) -> None:
    table, other = tmp_path / "a", tmp_path / "b"
    for each in (table, other):
        for number in range(4):
            write_deltalake(str(each), _rows(number), mode="append")
        DeltaTable(str(each)).create_checkpoint()
    left = left_at(table, 1)
    for each in (table, other):
        for version in (0, 1):
            log_path(each, version).unlink()
    assert changes_since(table, left, is_own).foreign == (2, 3)
    assert "another table" in str(changes_since(other, left, is_own).reason)
    log_path(table, 2).unlink()
    assert "does not show" in str(changes_since(table, left, is_own).reason)

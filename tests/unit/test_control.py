"""The control plane reads a table again when, and only when, another commit is its last one."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta.log import is_delta_table
from mergerepl.delta.own_checkpoints import COMMITS_BETWEEN
from mergerepl.delta.own_commits import last_overwrite
from mergerepl.delta.small_tables import column_names, count_rows, read_rows, write_rows
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.columns import Bigint
from mergerepl.replica import control
from mergerepl.replica.control import ControlPlane
from mergerepl.store.location import Location
from mergerepl.systables import genhistory, replinfo
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import Plane, TypedTable
from mergerepl.systables.transactional import TRANSACTIONS, TransactionRow
from mergerepl.transactional.catalog import DistributionStore
from tests.faults.deaths import small_disk
from tests.networks import generation


def numbers(plane: ControlPlane) -> list[int]:
    return [row.generation for row in plane.rows(genhistory.TABLE)]


def test_a_table_is_read_once_until_somebody_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = ControlPlane(tmp_path), ControlPlane(tmp_path)
    mine.replace(genhistory.TABLE, [generation(1)])
    assert numbers(mine) == [1]
    others.append(genhistory.TABLE, [generation(2)])
    assert sorted(numbers(mine)) == [1, 2]
    mine.replace(genhistory.TABLE, [generation(3)])
    assert numbers(others) == [3]
    monkeypatch.setattr(control, "version_and_rows", None)
    assert numbers(mine) == numbers(others) == [3]


def test_what_was_written_is_what_a_reader_reads(tmp_path: Path) -> None:
    writer = ControlPlane(tmp_path)
    replica = ReplicaInfo(repid="r", replnickname=7, root="/r", captured={1: 5})
    cases = {
        genhistory.TABLE: [[generation(1), generation(2, nicknames=(), coldate=None)], [], [generation(3)]],
        replinfo.TABLE: [[replica], [replace(replica, captured={})]],
    }
    for table, contents in cases.items():
        for rows in contents:
            writer.replace(table, rows)
            assert writer.rows(table) == ControlPlane(tmp_path).rows(table) == rows


def test_the_last_commit_states_the_rows_only_if_it_replaced_them_for_us(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    path = plane.path(genhistory.TABLE.name)
    plane.replace(genhistory.TABLE, [generation(1)])
    by_delta_rs = read_rows(path, genhistory.TABLE.names, where="true")
    assert by_delta_rs == read_rows(path, genhistory.TABLE.names)
    stated = last_overwrite(path)
    assert stated is not None
    assert [part.num_rows for part in stated[1]] == [1]
    plane.replace(genhistory.TABLE, [])
    assert last_overwrite(path) == (1, [])
    plane.append(genhistory.TABLE, [generation(2)])
    assert last_overwrite(path) is None
    rows = DeltaTable(str(path)).to_pyarrow_table()
    write_deltalake(str(path), rows, mode="overwrite")
    assert last_overwrite(path) is None
    assert numbers(ControlPlane(tmp_path)) == [2]


def test_null_is_read_as_the_value_that_the_type_has_for_it(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    replica = ReplicaInfo(repid="r", replnickname=7, root="/r", captured={1: 5})
    plane.replace(replinfo.TABLE, [replica])
    stored = DeltaTable(str(plane.path(replinfo.NAME)))
    row = {**replinfo.TABLE.values(replica), "captured": [(1, 5), (2, None)], "table_ids": None}
    schema = pa.schema(stored.schema().to_arrow())
    write_deltalake(
        stored, pa.Table.from_pylist([row | {"captured_commits": None}], schema), mode="overwrite"
    )
    assert plane.rows(replinfo.TABLE) == [replica]


def test_what_a_caller_does_with_its_rows_is_its_own(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    plane.replace(genhistory.TABLE, [generation(1)])
    for _ in range(2):
        rows = plane.rows(genhistory.TABLE)
        assert rows == [generation(1)]
        rows.append(generation(10))


def test_transactions_that_cleanup_left_in_a_file_are_read(tmp_path: Path) -> None:
    store = DistributionStore(Location.of(tmp_path))
    store.create()
    commit = {"source_object_id": 2, "from_version": 4, "version": 4, "operation": "UPDATE", "origin": "user"}
    times = dict.fromkeys(("entry_time", "commit_time"), datetime(2026, 5, 1, tzinfo=UTC))
    first, last = (
        TransactionRow(
            xact_id=seqno,
            xact_seqno=seqno,
            scan_cycle=1,
            kind="schema",
            commands={1: 2},
            commits=(commit,),
            schema_text="ADD COLUMN day DATE",
            **times,
        )
        for seqno in (bytes(Lsn.of(1, 1)), bytes(Lsn.of(1, 2)))
    )
    store.control.append(TRANSACTIONS, [first, last])
    # It writes the file again, with texts as views.
    store.control.delete(TRANSACTIONS, where=f"xact_seqno <= X'{first.xact_seqno.hex()}'")
    assert store.transactions_after(bytes(10)) == [last]


def test_a_table_put_back_from_a_copy_is_read_again(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    plane.replace(genhistory.TABLE, [generation(1)])
    shutil.copytree(plane.path(genhistory.TABLE.name), tmp_path / "copy")
    plane.replace(genhistory.TABLE, [generation(2)])
    assert numbers(plane) == [2]
    other = ControlPlane(tmp_path / "other")
    other.replace(genhistory.TABLE, [generation(3)])
    other.replace(genhistory.TABLE, [generation(4)])
    # The same version in another history of the table, then an older one.
    for copy, expected in ((other.path(genhistory.TABLE.name), [4]), (tmp_path / "copy", [1])):
        shutil.rmtree(plane.path(genhistory.TABLE.name))
        shutil.copytree(copy, plane.path(genhistory.TABLE.name))
        assert numbers(plane) == expected


def test_an_old_table_of_which_only_the_checkpoint_is_left_is_read(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    for number in range(COMMITS_BETWEEN):
        plane.replace(genhistory.TABLE, [generation(number)])
    log = plane.path(genhistory.TABLE.name) / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet")), "no checkpoint at its interval"
    for path in log.glob("*.json"):
        path.unlink()
    assert numbers(ControlPlane(tmp_path)) == [COMMITS_BETWEEN - 1]


def test_a_table_of_an_older_release_gets_the_newest_columns(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    newest = next(name for name in genhistory.TABLE.names if name not in genhistory.TABLE.required)
    known = tuple(column for column in genhistory.TABLE.columns if column.name != newest)
    before = TypedTable(genhistory.TABLE.name, genhistory.TABLE.plane, Generation)
    before.columns = known
    plane.replace(before, [generation(1)])
    assert [getattr(row, newest) for row in plane.rows(genhistory.TABLE)] == [None]
    plane.replace(genhistory.TABLE, [*plane.rows(genhistory.TABLE), generation(2)])
    assert numbers(ControlPlane(tmp_path)) == [1, 2]
    assert set(column_names(plane.path(before.name))) == set(genhistory.TABLE.names)


def test_columns_may_have_quotes_in_their_names(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({'size"in': [1]}))
    assert read_rows(tmp_path, ['size"in']) == [{'size"in': 1}]


@dataclass(frozen=True, kw_only=True)
class Position:
    reader: Annotated[str, "who reads"]
    version: Annotated[Bigint, "how far"]
    keys: Annotated[tuple[str, ...], "of what"] = ()


POSITIONS = TypedTable("positions", Plane.CONTROL, Position)


def test_a_folder_of_another_product_has_tables_of_its_own(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "_tracking")
    assert not plane.exists(POSITIONS)
    first, second = Position(reader="a", version=1), Position(reader="b", version=5, keys=("x", "y"))
    plane.replace(POSITIONS, [first])
    plane.append(POSITIONS, [second])
    assert plane.exists(POSITIONS)
    assert sorted(plane.rows(POSITIONS), key=lambda row: row.version) == [first, second]
    assert plane.rows(POSITIONS, where="version > 1") == [second]
    assert plane.rows(POSITIONS, order_limit="order by version desc limit 1") == [second]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_tracking"]


def test_rows_with_given_values_are_replaced_removed_and_changed_and_a_commit_is_made_only_for_a_change(
    tmp_path: Path,
) -> None:
    plane = ControlPlane(tmp_path)
    assert plane.rows_if_any(POSITIONS) == []
    plane.create([POSITIONS])
    a, b, b2 = (
        Position(reader=reader, version=version) for reader, version in (("a", 1), ("b", 1), ("b", 2))
    )
    edits: list[tuple[Callable[[], object], list[Position], bool]] = [
        (lambda: plane.create([POSITIONS]), [], False),
        (lambda: plane.replace_where(POSITIONS, [a], reader="a"), [a], True),
        (lambda: plane.replace_where(POSITIONS, [b], reader="b"), [a, b], True),
        (lambda: plane.replace_where(POSITIONS, [b2], reader="b", version=2), [a, b, b2], True),
        (lambda: plane.change_where(POSITIONS, {"keys": ()}, reader="a"), [a, b, b2], False),
        (lambda: plane.change_where(POSITIONS, {"version": 9}, reader={"b", "c"}, version=2),
         [a, b, replace(b, version=9)], True),
        (lambda: plane.remove_where(POSITIONS, reader="c"), [a, b, replace(b, version=9)], False),
        (lambda: plane.remove_where(POSITIONS, reader="b"), [a], True),
        (lambda: plane.edit(POSITIONS, lambda rows: [*rows, b]), [a, b], True),
    ]  # fmt: skip
    for number, (edit, expected, has_commit) in enumerate(edits):
        before = DeltaTable(str(plane.path(POSITIONS.name))).version()
        edit()
        assert plane.rows(POSITIONS) == ControlPlane(tmp_path).rows(POSITIONS) == expected, number
        assert DeltaTable(str(plane.path(POSITIONS.name))).version() - before == has_commit, number


_WRITER = """
import sys, time
from pathlib import Path
from mergerepl.replica.control import ControlPlane
from mergerepl.systables.genhistory import TABLE, Generation, GenStatus

folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
plane = ControlPlane(folder / "replica")
(folder / f"ready-{first}").touch()
while not (folder / "gate").exists():
    time.sleep(0.001)
for number in range(first, first + count):
    row = Generation(
        guidsrc=f"{number}", pubid="p", generation=number, art_nick=1, nicknames=(), changecount=0, genstatus=GenStatus.OPEN
    )
    plane.edit(TABLE, lambda known: [*known, row])
"""


def test_two_processes_without_the_lease_keep_each_others_rows(tmp_path: Path) -> None:
    plane, firsts, count = ControlPlane(tmp_path / "replica"), (1, 101), 10
    plane.create([genhistory.TABLE])
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(first), str(count)])
        for first in firsts
    ]
    while not all((tmp_path / f"ready-{first}").exists() for first in firsts):
        assert all(each.poll() is None for each in running)
        time.sleep(0.01)
    (tmp_path / "gate").touch()
    assert [each.wait(60) for each in running] == [0, 0]
    assert sorted(numbers(plane)) == [first + number for first in firsts for number in range(count)]


def test_an_edit_is_made_of_the_rows_that_another_commit_left(tmp_path: Path) -> None:
    mine, others = ControlPlane(tmp_path), ControlPlane(tmp_path)
    mine.create([POSITIONS])
    seen: list[int] = []

    def late(rows: list[Position]) -> list[Position]:
        seen.append(len(rows))
        if len(seen) < 12:
            # At a tenth version delta-rs makes the commit.
            others.append(POSITIONS, [Position(reader="other", version=len(seen))])
        return [*rows, Position(reader="mine", version=0)]

    def joined(rows: list[Position]) -> list[Position]:
        """The files that another process joins hold the same rows."""
        DeltaTable(str(mine.path(POSITIONS.name))).optimize.compact()
        return rows[:1]

    def always(rows: list[Position]) -> list[Position]:
        others.append(POSITIONS, [Position(reader="other", version=99)])
        return []

    assert len(mine.edit(POSITIONS, late)) == 12
    assert seen == [*range(12)]
    assert sorted(row.version for row in others.rows(POSITIONS)) == [*range(12)]
    others.append(POSITIONS, [Position(reader="other", version=12)])
    assert len(mine.edit(POSITIONS, joined)) == len(others.rows(POSITIONS)) == 1
    with pytest.raises(CommitConflictError, match="at the same time"):
        mine.edit(POSITIONS, always)
    assert len(others.rows(POSITIONS)) > 2


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_full_disk_is_named_with_the_table_and_the_way_on(
    tmp_path: Path, mode: Literal["append", "overwrite"]
) -> None:
    table = Location.of(tmp_path / "_mergerepl" / "system" / "MSx")
    rows = pa.table({"number": range(1000)})
    said = rf"'MSx' in '{table.parent}' cannot be written: File too large\. Make room there, then run"
    for count in (0, 1):
        with pytest.raises(StoreError, match=said), small_disk():
            write_rows(table, rows, mode=mode, properties={})
        assert is_delta_table(table) is bool(count)
        write_rows(table, rows, mode=mode, properties={})
    assert count_rows(table) == (2000 if mode == "append" else 1000)

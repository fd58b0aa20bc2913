"""Which commits a cycle takes, in which order and when; what a commit did to columns. No Spark."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl import cdc
from mergerepl.cdc.consumer import columns_after, is_wider, retyped
from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.column_changes import ColumnChange, is_additive, statement
from mergerepl.delta.feed.schema_walk import walk
from mergerepl.delta.log import log_path
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.table import open_table
from mergerepl.failpoints import FailpointError
from mergerepl.logreader.plan import (
    REPLACED,
    TICK,
    Entry,
    EntryCommit,
    Paused,
    Placed,
    Plan,
    cut,
    end_times,
    in_order,
    name_at,
)
from mergerepl.logreader.positions import LogState
from mergerepl.logreader.replaced import lost_by_replacement
from mergerepl.logreader.sources import SourceLook, begun, look_at, readings
from mergerepl.model.cdc import CapturedColumn
from mergerepl.store.lease import lease
from mergerepl.systables.logreader import LogReaderRow
from tests.faults.deaths import armed
from tests.replacements import create_or_replace

P = 1_000


def logged(*written: int) -> list[Placed]:
    return [Placed(at, 1, version) for version, at in enumerate(written, 1)]


@pytest.mark.parametrize(
    ("name", "written", "seen", "taken"),
    [
        ("all that was written before", (1, 2, 999), 0, [1, 2, 999]),
        ("a commit of the very moment waits: file times have a grain", (1, P), 0, [1]),
        ("what an earlier listing has seen is taken", (1, P), 2, [1, P]),
        ("a time in the future counts as now", (10**9,), 1, [P]),
        ("of a source a prefix, whatever its clocks say", (1, P + 5, 2), 0, [1]),
        ("a clock that goes back does not change the order of versions", (500, 3), 0, [500, 500]),
    ],
)
def test_the_cut(name, written, seen, taken):
    found = list(cut(logged(*written), began_ns=P, seen=seen))
    assert [each.at_ns for each in found] == taken, name
    assert [each.version for each in found] == list(range(1, len(taken) + 1))


def test_commits_of_one_moment_are_ordered_by_source_then_version():
    one = [Placed(5, 2, 7), Placed(5, 2, 8)]
    other = [Placed(5, 1, 30), Placed(4, 1, 29)]
    order = in_order([one, other])[:3]
    assert [(each.object_id, each.version) for each in order] == [(1, 29), (1, 30), (2, 7)]


def test_times_never_fall_and_a_cycle_is_later_than_the_one_before():
    last = datetime(2026, 1, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    assert end_times([last - second, last + second, last], last=last) == [
        last + TICK,
        last + second,
        last + second,
    ]
    assert end_times([last], last=None) == [last]


def struct(*names: str) -> dict:
    return {"type": "struct", "fields": [field(name) for name in names]}


def array(element: dict) -> dict:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapped(key: dict) -> dict:
    return {"type": "map", "keyType": key, "valueType": "long", "valueContainsNull": True}


def field(name: str, type_: str | dict = "long", *, number: int | None = None, nullable: bool = True) -> dict:
    identity = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
    metadata = {} if number is None else identity
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def column_changes(version: int, before: list[dict], after: list[dict]) -> list[ColumnChange]:
    one, other = (
        TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), {}, ())
        for fields in (before, after)
    )
    return list(walk(one, [Commit(version, "", None, False, other)]).changes)


@pytest.mark.parametrize(
    ("before", "after", "kinds", "sql"),
    [
        ([field("a")], [field("a"), field("b", "string")], ["add"], "ADD COLUMNS (`b` STRING)"),
        ([field("a"), field("b")], [field("a")], ["drop"], "DROP COLUMN `b`"),
        ([field("a", number=1)], [field("z", number=1)], ["rename"], "RENAME COLUMN `a` TO `z`"),
        ([field("a")], [field("z")], ["drop", "add"], "DROP COLUMN `a`"),
        ([field("a", "integer")], [field("a")], ["type"], "ALTER COLUMN `a` TYPE BIGINT"),
        ([field("a")], [field("a", nullable=False)], ["nullability"], "ALTER COLUMN `a` SET NOT NULL"),
        ([field("a"), field("b")], [field("b"), field("a")], [], None),
        (
            [field("s", struct("x"))],
            [field("s", struct("y", "x"))],
            ["fields"],
            "ADD COLUMNS (`s`.`y` BIGINT)",
        ),
        (
            [field("l", array(struct("x")))],
            [field("l", array(struct("x", "y")))],
            ["fields"],
            "ADD COLUMNS (`l`.element.`y` BIGINT)",
        ),
        (
            [field("s", struct("x", "y"))],
            [field("s", struct("y", "x"))],
            ["fields"],
            "ALTER COLUMN `s` TYPE STRUCT<Y:BIGINT,X:BIGINT>",
        ),
        (
            [field("s", struct("x"))],
            [field("s", struct("y"))],
            ["type"],
            "ALTER COLUMN `s` TYPE STRUCT<Y:BIGINT>",
        ),
        (
            [field("s", struct("x", "y"))],
            [field("s", struct("x"))],
            ["type"],
            "ALTER COLUMN `s` TYPE STRUCT<X:BIGINT>",
        ),
        ([field("s", struct("x"))], [field("s", array(struct("x")))], ["type"], None),
        ([field("m", mapped(struct("x")))], [field("m", mapped(struct("x", "y")))], ["type"], None),
    ],
)
def test_what_a_commit_did_to_columns(before, after, kinds, sql):
    found = column_changes(3, before, after)
    assert [each.kind for each in found] == kinds
    if sql is not None:
        assert statement(found[0], "/t") == f"ALTER TABLE delta.`/t` {sql}"
    assert is_additive(found) == (set(kinds) <= {"add", "fields", "nullability"})


def captured(*names: str) -> list[CapturedColumn]:
    return [
        CapturedColumn(
            object_id=1,
            column_name=name,
            column_id=place,
            column_type="bigint",
            column_ordinal=place,
            source_name=name,
        )
        for place, name in enumerate(names, 1)
    ]


def test_a_column_that_is_dropped_and_added_again_goes_on_where_columns_are_not_mapped():
    # Case 31.
    gone = columns_after(
        captured("a", "b"), column_changes(1, [field("a"), field("b")], [field("a")]), is_mapped=False
    )
    assert [each.source_name for each in gone] == ["a", None]
    added = column_changes(2, [field("a")], [field("a"), field("B", "string")])
    back = columns_after(gone, added, is_mapped=False)
    assert [(each.source_name, each.column_type) for each in back] == [("a", "bigint"), ("B", "string")]
    assert retyped(gone, back) == {"b": ("bigint", "string")}
    mapped = column_changes(2, [field("a", number=1)], [field("a", number=1), field("b", number=7)])
    assert columns_after(gone, mapped, is_mapped=True) == gone


def test_names_that_one_commit_exchanges_are_followed_at_once():
    # Of a truncated log only the head is known.
    before = [field("a", number=1), field("b", number=2), field("c", number=3)]
    after = [field("b", number=1), field("c", number=2), field("d", "string", number=4)]
    changes = column_changes(5, before, after)
    now = columns_after(captured("a", "b", "c"), changes, is_mapped=True)
    assert [each.source_name for each in now] == ["b", "c", None]
    assert [name_at(changes, name, 5) for name in "ab"] == ["b", "c"]


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        *(
            ("int", "bigint", True),
            ("bigint", "int", False),
            ("float", "double", True),
            ("int", "string", False),
        ),
        *(("decimal(10,2)", "decimal(12,2)", True), ("decimal(10,2)", "decimal(12,5)", False)),
    ],
)
def test_types_whose_values_all_fit(old, new, fits):
    assert is_wider(old, new) is fits


ITEMS = pa.schema([("id", pa.int64()), ("note", pa.string())])


def rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "note": note} for key, note in pairs], schema=ITEMS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    write_deltalake(str(path), rows((1, "a")), configuration={"delta.enableChangeDataFeed": "true"})
    return path


def row_of(table: Path) -> LogReaderRow:
    return begun(LogReaderRow(source_object_id=1, source_path=table.name), open_table(table))


def look(
    table: Path, row: LogReaderRow, *, most: int = 1000, on_gap: str = "compare", began_ns: int = 2**62
) -> SourceLook:
    return look_at(table.parent, row, began_ns=began_ns, most=most, on_gap=on_gap)


def test_commits_without_changes_move_the_position_and_get_no_lsn(table: Path):
    # Case 12.
    row = row_of(table)
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    write_deltalake(str(table), rows((2, "b")), mode="append")
    DeltaTable(str(table)).optimize.compact()
    found = look(table, row)
    assert [unit.version for unit in found.units] == [2]
    assert found.through_version_inclusive == found.head == 3
    after = found.after(commit="3:x")
    assert (after.position, after.seen) == (3, 3)
    assert look(table, replace(after, position_commit=None)).units == ()


def test_of_many_commits_some_are_read_and_the_rest_waits(table: Path):
    # Case 46.
    row = row_of(table)
    for key in range(5):
        write_deltalake(str(table), rows((10 + key, "b")), mode="append")
    found = look(table, row, most=2)
    assert [unit.version for unit in found.units] == [1, 2]
    assert (found.through_version_inclusive, found.has_waiting) == (2, True)
    assert [unit.version for unit in look(table, row).limited(4).units] == [1, 2, 3, 4]
    assert [each.versions for each in readings(look(table, row))] == [(1, 2, 3, 4, 5)]


def test_a_commit_dated_ahead_waits_for_one_cycle(table: Path):
    # Cases 15 and 16.
    row = row_of(table)
    write_deltalake(str(table), rows((2, "b")), mode="append")
    began = os.stat(log_path(table, 1)).st_mtime_ns
    first = look(table, row, began_ns=began)
    assert (first.units, first.has_waiting, first.head) == ((), True, 1)
    seen = replace(row, seen=first.head)
    assert [unit.placed.at_ns for unit in look(table, seen, began_ns=began).units] == [began]


def test_commits_whose_feed_was_off_are_one(table: Path):
    # Case 33.
    row = row_of(table)
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    for key in (2, 3):
        write_deltalake(str(table), rows((key, "b")), mode="append")
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    write_deltalake(str(table), rows((4, "b")), mode="append")
    found = look(table, row)
    assert [(unit.from_version, unit.version, unit.gap is None) for unit in found.units] == [
        (2, 3, False),
        (5, 5, True),
    ]
    assert [(each.from_version_inclusive, each.is_gap) for each in readings(found)] == [(2, True), (5, False)]
    stopped = look(table, row, on_gap="stop")
    assert stopped.paused is not None
    assert stopped.paused.number == 22859


def test_a_replacement_is_compared_and_its_lost_properties_are_kept_in_mind(table: Path):
    row = row_of(table)
    write_deltalake(str(table), rows((2, "b")), mode="append")
    create_or_replace(table, rows((2, "c")))
    found = look(table, row, on_gap="stop")
    assert [(each.versions, each.compared) for each in readings(found)] == [((1,), None), ((2,), REPLACED)]
    assert [change.kind for change in found.columns] == ["replace"]
    after = found.after(commit=None)
    assert lost_by_replacement(after) == {"delta.enableChangeDataFeed": "true"}
    # Rows that come before the feed is on again are a gap, and those afterwards are read from it.
    write_deltalake(str(table), rows((3, "d")), mode="append")
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    write_deltalake(str(table), rows((4, "e")), mode="append")
    found = look(table, after)
    assert [(each.versions, each.is_gap) for each in readings(found)] == [((3,), True), ((5,), False)]
    assert lost_by_replacement(found.after(commit=None)) == {}
    assert lost_by_replacement(found.limited(1).after(commit=None)) == {"delta.enableChangeDataFeed": "true"}


def test_properties_that_a_replacement_took_away_are_set_again_once_the_root_is_free(
    table: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mergerepl.spark.session.session", lambda: pytest.fail("a JVM was asked for"))
    root = table.parent
    DeltaTable(str(table)).delete()
    cdc.Database(root).enable(table.name)
    properties = open_table(table).properties
    create_or_replace(table, rows())
    assert open_table(table).properties == {}
    with lease(root, purpose="a job"):
        cdc.Database(root).capture()
    assert open_table(table).properties == {}
    with armed("logreader.after_properties"), pytest.raises(FailpointError):
        cdc.Database(root).capture()
    assert open_table(table).properties == properties
    head = open_table(table).version
    cdc.Database(root).capture()
    assert open_table(table).version == head


def test_readings_are_cut_where_columns_change(table: Path):
    row = row_of(table)
    write_deltalake(str(table), rows((2, "b")), mode="append")
    wide = rows((3, "c")).append_column("extra", pa.array([1.5]))
    write_deltalake(str(table), wide, mode="append", schema_mode="merge")
    write_deltalake(str(table), wide, mode="append")
    write_deltalake(str(table), rows((4, "d")), mode="overwrite", schema_mode="overwrite")
    found = look(table, row)
    assert [(each.versions, each.compared is None) for each in readings(found)] == [
        *(((1,), True), ((2, 3), True), ((4,), False))
    ]
    assert [change.kind for change in found.columns] == ["add", "drop", "replace"]
    assert not any(each.is_gap for each in readings(found))


@pytest.mark.parametrize("what", ["gone", "older", "another"])
def test_a_table_that_is_not_the_one_that_was_read_is_paused(table: Path, what: str):
    # Case 32.
    write_deltalake(str(table), rows((2, "b")), mode="append")
    row = row_of(table)
    if what == "gone":
        log_path(table, 0).unlink()
        log_path(table, 1).unlink()
    elif what == "older":
        log_path(table, 1).unlink()
    else:
        row = replace(row, position_commit="1:0")
    found = look(table, row)
    assert found.paused is not None
    assert (found.paused.number, found.paused.is_gone) == (22931, True)


def test_a_truncated_log_is_one_gap(table: Path):
    row = row_of(table)
    for key in (2, 3, 4):
        write_deltalake(str(table), rows((key, "b")), mode="append")
    DeltaTable(str(table)).create_checkpoint()
    for version in (1, 2):
        log_path(table, version).unlink()
    for name in (log_path(table, 0),):
        name.unlink()
    found = look(table, row)
    assert [(unit.from_version, unit.version) for unit in found.units] == [(1, 3)]
    assert look(table, row, on_gap="stop").paused is not None


def test_a_source_that_pauses_leaves_the_plan(table: Path):
    row, now = row_of(table), datetime.now(UTC)
    entry = Entry(1, "transaction", now, now, (EntryCommit(1, 2, 2, "WRITE", "user"),))
    after = LogState(LogReaderRow(source_object_id=0), {1: row})
    without = Plan(5, ("cdc",), (entry,), (), after).without(Paused(1, 22859, "gone"), row)
    assert (without.entries, without.after.sources[1].status) == ((), "paused")


def test_without_changes_no_engine_is_started_and_nothing_is_committed(
    table: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mergerepl.spark.session.session", lambda: pytest.fail("a JVM was asked for"))
    root = table.parent
    begun = cdc.Database(root).enable(table.name)
    assert not begun.describe().instance.supports_net_changes
    heads = {path: path.stat().st_mtime_ns for path in root.glob("_*/*/_delta_log/*.json")}
    assert cdc.Database(root).capture().cycles == 0
    assert {path: path.stat().st_mtime_ns for path in root.glob("_*/*/_delta_log/*.json")} == heads
    # A commit without changes moves the position, in one commit; so does one that was put off.
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    assert cdc.Database(root).capture().cycles == 0
    assert [(each.position, each.head) for each in cdc.Database(root).status().sources] == [(1, 1)]
    written = set(root.glob("_*/*/_delta_log/*.json")) - heads.keys()
    assert [path.parts[-3] for path in written] == ["log_reader"]


def test_an_idle_database_gets_an_entry_so_that_times_map(table: Path, monkeypatch: pytest.MonkeyPatch):
    # Case 25.
    root = table.parent
    cdc.Database(root).enable(table.name)
    before = cdc.Database(root).status()
    monkeypatch.setattr("mergerepl.logreader.scan.IDLE", timedelta())
    assert cdc.Database(root).capture().transactions == 0
    after = cdc.Database(root).status()
    assert after.max_lsn > before.max_lsn
    assert after.max_time > before.max_time


@pytest.mark.parametrize(
    ("name", "options", "number"),
    [
        ("nothing", {}, 22931),
        ("../orders", {}, 22931),
        ("_cdc/change_tables", {}, 22974),
        ("orders", {"key": "other"}, 22930),
        ("orders", {"columns": "note", "key": "id"}, 22938),
        ("orders", {"columns": "id, ID"}, 22928),
        ("orders", {"net": True}, 22939),
        ("orders", {"name": "1st"}, 22932),
        ("orders", {"name": "x" * 101}, 22927),
        ("orders", {"name": "TAKEN"}, 22926),
        ("orders", {"on_gap": "never"}, 22990),
    ],
)
def test_what_enabling_refuses_changes_nothing(table: Path, name: str, options: dict, number: int):
    root = table.parent
    with pytest.raises(cdc.CdcUsageError, match="not enabled") as caught:
        cdc.Database(root).status()
    assert (caught.value.number, caught.value.exit_code) == (22901, 2)
    if number != 22926:
        with pytest.raises(cdc.CdcUsageError):
            cdc.Database(root).enable(name, **options)
        assert not cdc.Database(root).is_enabled()
    write_deltalake(str(root / "other"), rows((1, "a")), configuration={"delta.enableChangeDataFeed": "true"})
    cdc.Database(root).enable("other", name="taken")
    before = cdc.Database(root).status()
    with pytest.raises(cdc.CdcUsageError) as caught:
        cdc.Database(root).enable(name, **options)
    assert caught.value.number == number
    assert "Nothing was changed" in caught.value.message
    assert cdc.Database(root).status() == before

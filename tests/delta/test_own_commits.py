"""Commits to system tables in folders that this process makes by itself: delta-rs and Spark read them as their own."""

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import SchemaMismatchError
from pyspark.sql import SparkSession

from mergerepl.delta import small_tables
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import head_version, log_actions
from mergerepl.delta.marks import BOOKKEEPING, CommitMark
from mergerepl.delta.own_commits import commit_files, put_rows
from mergerepl.delta.own_log import OwnLog, log_of
from mergerepl.delta.small_tables import delete_rows, read_rows, write_rows
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, is_done
from mergerepl.delta.writes import add_files
from mergerepl.errors import CommitConflictError
from mergerepl.store.location import Location

PROPERTIES = {"delta.checkpointInterval": "10"}
EXPIRING = {**PROPERTIES, "delta.logRetentionDuration": "interval 0 days"}
FIELDS = [
    {"name": name, "type": type_, "nullable": True, "metadata": {}}
    for name, type_ in (("seq", "long"), ("name", "string"), ("at", "timestamp"))
]


def rows(*numbers: int) -> pa.Table:
    times = pa.array([number * 1000 for number in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"seq": pa.array(numbers, pa.int64()), "name": [f"n{n}" for n in numbers], "at": times})


def made(table: Location, properties: Mapping[str, str] = PROPERTIES) -> Location:
    create_table(table, NewTable(FIELDS, (), properties), CommitMark("s", "setup:create"))
    return table


@pytest.fixture
def table(tmp_path: Path) -> Location:
    return made(Location.of(tmp_path) / "_mergerepl" / "MSmerge_history")


def numbers(table: Location) -> list[int]:
    return sorted(row["seq"] for row in read_rows(table, ["seq"], where="true"))


def is_ours(table: Location) -> bool:
    infos = [each["commitInfo"] for each in log_actions(table, head_version(table)) if "commitInfo" in each]
    return bool(infos[0].get("engineInfo") == "mergerepl")


def described(table: Location) -> tuple[object, ...]:
    """Return what delta-rs says of a table: its rows, its last transaction, its files and their bounds."""
    log = DeltaTable(str(table))
    names = ["num_records", "min.seq", "max.seq", "min.name", "max.name", "null_count.seq"]
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    bounds = sorted(str([file[name] for name in names]) for file in files)
    stored = log.to_pyarrow_table().sort_by([("seq", "ascending"), ("at", "ascending")])
    return stored, log.transaction_version("app"), bounds


def names_in_log(table: Location) -> set[str]:
    return {file.name for file in (Path(str(table)) / "_delta_log").iterdir()}


def test_they_are_read_as_those_of_delta_rs(tmp_path: Path) -> None:
    """A table outside of the system tables gets the same commits from delta-rs."""
    table, other = (made(Location.of(tmp_path) / each / "t", EXPIRING) for each in ("_mergerepl", "others"))
    engines = []
    for number in range(1, 23):
        for each in (table, other):
            if number % 6 == 0:
                write_rows(each, rows(number, -number), mode="overwrite", properties={})
            elif number % 5 == 0:
                delete_rows(each, where=f"seq = {number - 1}")
            else:
                once = ("app", number) if number % 4 == 0 else None
                write_rows(each, rows(number, 0), mode="append", properties={}, once=once)
            engines.append((each, is_ours(each)))
        assert described(table) == described(other)
    assert (other, True) not in engines
    # delta-rs commits what deletes rows, and each tenth version: it writes a checkpoint then, and removes expired commits.
    assert engines.count((table, False)) == 4 + 2
    assert names_in_log(table) == names_in_log(other)


def test_a_log_is_read_on_from_what_is_known(table: Location) -> None:
    write_rows(table, rows(1), mode="append", properties={})
    before = log_of(table, 1)
    assert before is not None
    # Another process appends, and deletes a row.
    write_deltalake(str(table), rows(2), mode="append")
    DeltaTable(str(table)).delete("seq = 1")
    known = log_of(table, 3)
    assert known is not None
    assert [*known.files] == [Path(uri).name for uri in DeltaTable(str(table)).file_uris()]
    write_rows(table, rows(3), mode="append", properties={})
    assert is_ours(table)
    assert numbers(table) == [2, 3]
    assert log_of(table, 1) == before


def test_bounds_that_no_column_can_hold_are_left_out() -> None:
    """Spark's OPTIMIZE states them of a conflict table's columns."""
    bounds = [{"seq": 1, "long": 10**30, "number": "NaN"}, {"seq": 2, "long": 2, "number": 1.5}]
    files = {str(i): {"size": 1, "stats": json.dumps({"minValues": each})} for i, each in enumerate(bounds)}
    found = OwnLog(files=files).file_table()
    assert found.column_names == ["path", "size_bytes", "num_records", "min.seq"]
    assert found["min.seq"].to_pylist() == [1, 2]


def test_a_folder_that_was_replaced_is_read_anew(table: Location, tmp_path: Path) -> None:
    write_rows(table, rows(1), mode="append", properties={})
    shutil.copytree(str(table), tmp_path / "copy")
    write_rows(table, rows(2), mode="append", properties={})
    shutil.rmtree(str(table))
    shutil.copytree(tmp_path / "copy", str(table))
    write_deltalake(str(table), rows(4), mode="append")
    write_rows(table, rows(5), mode="append", properties={})
    assert numbers(table) == [1, 4, 5]


def test_a_commit_follows_one_that_came_first(table: Location) -> None:
    state = open_table(table)
    write_deltalake(str(table), rows(1), mode="append")
    with pytest.raises(CommitConflictError, match="at the same time"):
        commit_files(state, put_rows(table, rows(2)), mark=BOOKKEEPING)
    done = Transaction("app", 7, CommitMark("session", "step"))
    add_files(state, {file: facts for file, (_, facts) in put_rows(table, rows(3)).items()}, done)
    assert numbers(table) == [1, 3]
    assert is_done(open_table(table), done)


def test_writers_at_once_lose_nothing(table: Location) -> None:
    def write(number: int) -> None:
        write_rows(table, rows(number), mode="append", properties={})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(12)))
    assert numbers(table) == [*range(12)]
    stored = DeltaTable(str(table)).file_uris()
    assert len(stored) == 12 == len([*Path(str(table)).glob("*.parquet")]), "a file that lost stays"


@pytest.mark.parametrize("is_joined", [False, True])
def test_an_overwrite_does_not_remove_rows_that_it_has_not_seen(
    table: Location, monkeypatch: pytest.MonkeyPatch, is_joined: bool
) -> None:
    for number in range(2):
        write_rows(table, rows(number), mode="append", properties={})

    def put_late(at: Location, written: pa.Table) -> object:
        done = put_rows(at, written)
        if is_joined:
            DeltaTable(str(at)).optimize.compact()
        else:
            write_deltalake(str(at), rows(7), mode="append")
        return done

    monkeypatch.setattr(small_tables, "put_rows", put_late)
    if is_joined:
        write_rows(table, rows(5), mode="overwrite", properties={})
        assert numbers(table) == [5]
        return
    with pytest.raises(CommitConflictError, match="at the same time"):
        write_rows(table, rows(5), mode="overwrite", properties={})
    assert numbers(table) == [0, 1, 7]
    assert len([*Path(str(table)).glob("*.parquet")]) == 3


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_rows_written_during_an_overwrite_by_delta_rs_are_a_conflict_by_name(
    table: Location, monkeypatch: pytest.MonkeyPatch, mode: Literal["append", "overwrite"]
) -> None:
    for number in range(8):
        write_rows(table, rows(number), mode="append", properties={})
    properties_of = small_tables.commit_properties

    def late(at: Location, *given: Any, **terms: Any) -> object:
        write_deltalake(str(at), rows(8), mode=mode)
        return properties_of(at, *given, **terms)

    monkeypatch.setattr(small_tables, "commit_properties", late)
    with pytest.raises(CommitConflictError, match="at the same time"):
        write_rows(table, rows(5), mode="overwrite", properties={})
    assert numbers(table) == ([*range(8), 8] if mode == "append" else [8])


def _of_append_only(log: DeltaTable) -> None:
    log.alter.set_table_properties({"delta.appendOnly": "true"})


def _of_change_feed(log: DeltaTable) -> None:
    log.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def _of_a_check(log: DeltaTable) -> None:
    log.alter.add_constraint({"positive": "seq > 0"})


@pytest.mark.parametrize("alter", [_of_append_only, _of_change_feed, _of_a_check])
def test_delta_rs_commits_to_a_table_that_asks_more(
    table: Location, alter: Callable[[DeltaTable], None]
) -> None:
    write_rows(table, rows(1), mode="append", properties={})
    assert is_ours(table)
    alter(DeltaTable(str(table)))
    write_rows(table, rows(2), mode="append", properties={})
    assert not is_ours(table)
    assert numbers(table) == [1, 2]


def test_columns_of_other_types_are_left_to_delta_rs(table: Location) -> None:
    narrow = rows(1).set_column(0, "seq", pa.array([1], pa.int32()))
    write_rows(table, narrow, mode="append", properties={})
    assert not is_ours(table)
    more = rows(2).append_column("more", pa.array(["new"]))
    write_rows(table, more, mode="append", properties={})
    assert not is_ours(table)
    write_rows(table, more, mode="append", properties={})
    assert is_ours(table)
    with pytest.raises(SchemaMismatchError):
        write_rows(table, rows(3), mode="append", properties={})


def test_a_damaged_log_is_named_by_delta_rs(table: Location) -> None:
    write_rows(table, rows(1), mode="append", properties={})
    copy = table.parent.parent / "_cdc" / table.name
    shutil.copytree(str(table), str(copy))
    (Path(str(copy)) / "_delta_log" / f"{1:020}.json").write_text('{"add": ')
    assert log_of(copy, 1) is None


@pytest.mark.spark
def test_spark_reads_and_continues_them(table: Location, spark: SparkSession) -> None:
    for number in range(3):
        write_rows(table, rows(number), mode="append", properties={}, once=("app", number))
    write_rows(table, rows(7, 8), mode="overwrite", properties={})
    # As a process leaves it that is killed within a commit.
    (Path(str(table)) / "_delta_log" / f"{5:020}.json.17.4.tmp").write_text("{")
    found = spark.read.format("delta").load(table.spark_uri)
    assert sorted(row.seq for row in found.where("name >= 'n8'").collect()) == [8]
    found.where("seq = 7").write.format("delta").mode("append").save(table.spark_uri)
    write_rows(table, rows(9), mode="append", properties={})
    assert is_ours(table)
    assert numbers(table) == [7, 7, 8, 9]
    assert open_table(table).transaction_version("app") == 2
    assert spark.read.format("delta").load(table.spark_uri).count() == 4

"""Row filters end to end through the command line: every subscriber gets exactly its partition."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import failpoints
from mergerepl.cli.main import main
from mergerepl.errors import EngineError
from mergerepl.merge.partitions.scratch import require_scratch_outside
from mergerepl.replica.replica import Replica
from mergerepl.spark.session import scratch_folders
from tests.faults.deaths import armed
from tests.networks import publish

CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("name", pa.string())])


def table(path: Path, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> None:
    rows_of = [dict(zip(schema.names, row, strict=True)) for row in rows]
    write_deltalake(str(path), pa.Table.from_pylist(rows_of, schema=schema))


def insert(path: Path, *values: Any) -> None:
    schema = pa.schema(DeltaTable(str(path)).schema().to_arrow())
    row = pa.Table.from_pylist([dict(zip(schema.names, values, strict=True))], schema=schema)
    write_deltalake(str(path), row, mode="append")


def update(path: Path, key: int, values: Mapping[str, Any]) -> None:
    DeltaTable(str(path)).update(predicate=f"id = {key}", new_values=dict(values))


def delete(path: Path, key: int) -> None:
    DeltaTable(str(path)).delete(f"id = {key}")


def rows(path: Path) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()}


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def net_mappings(hq: Path) -> tuple[set[tuple[str, int]], set[tuple[str, int, int]]]:
    """Return current (rowguid, partition) and past (rowguid, partition, reason) mappings as a reader nets them."""
    found: dict[tuple[str, int], tuple[int, int | None]] = {}
    for name in ("current", "past"):
        stored = DeltaTable(str(hq / "_mergerepl" / f"MSmerge_{name}_partition_mappings")).to_pyarrow_table()
        for row in stored.to_pylist():
            key = row["rowguid"], row["partition_id"]
            if row["seq"] > found.get(key, (0, None))[0]:
                found[key] = row["seq"], row.get("reason")
    current = {key for key, (_, reason) in found.items() if reason is None}
    return current, {(*key, reason) for key, (_, reason) in found.items() if reason is not None}


def published(tmp_path: Path, **settings: Any) -> Path:
    """Publish customers by their region for the subscribers North and South; return the file."""
    people = [(1, "North", "Ada"), (2, "South", "Bo Canary"), (3, "North", "Cy"), (4, "North", "Di")]
    table(tmp_path / "hq" / "customers", people, CUSTOMERS)
    article = {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()", **settings}
    subscriptions = [{"subscriber": f"./{name.lower()}", "host_name": name} for name in ("North", "South")]
    file = publish(tmp_path, "sales", [article], subscriptions, is_applied=False)
    run("apply", "-f", str(file))
    return file


def test_a_parameterized_filter_end_to_end(spark: SparkSession, tmp_path: Path) -> None:
    hq, north, south = (tmp_path / name / "customers" for name in ("hq", "north", "south"))
    file = published(tmp_path)
    assert rows(north) == {(1, "North", "Ada"), (3, "North", "Cy"), (4, "North", "Di")}
    assert rows(south) == {(2, "South", "Bo Canary")}

    # At the publisher: an insert for each, an update, a move from North to South, a delete. At North: a row that it
    # moves out of its own partition, and one that it writes outside.
    insert(hq, 5, "North", "Eve")
    insert(hq, 6, "South", "Flo Canary")
    update(hq, 3, {"name": "Cyd"})
    update(hq, 1, {"region": "South"})
    delete(hq, 2)
    update(north, 4, {"region": "South", "name": "Dia"})
    insert(north, 7, "South", "Gus")
    session = run("sync", "north", "-f", str(file))["sessions"][0]
    assert [session["upload"][each] for each in ("inserts", "updates", "conflicts")] == [1, 1, 0]
    assert rows(north) == {(3, "North", "Cyd"), (5, "North", "Eve")}
    assert rows(south) == {(2, "South", "Bo Canary")}
    souths = {(1, "South", "Ada"), (4, "South", "Dia"), (6, "South", "Flo Canary"), (7, "South", "Gus")}
    assert rows(hq) == {(3, "North", "Cyd"), (5, "North", "Eve"), *souths}

    # A row that left north is outside there, and waits for south. What north wrote is in a generation of its own, and in
    # one of the publisher's that moves it.
    moved = run("row", "customers", "-f", str(hq.parent), "--key", "id=1")
    assert [(each["current"], each["outside"]) for each in moved["replicas"]] == [
        (True, False),
        (True, True),
        (False, False),
    ]
    waiting = [s for s in run("pending", "-f", str(hq.parent))["pending"] if "south" in s["subscriber"]]
    assert [each["changes"] for each in waiting if each["direction"] == "download"] == [7]
    publisher = Replica(hq.parent)
    (pubid,) = [row.pubid for row in publisher.published]
    for folder in scratch_folders(spark):
        with pytest.raises(EngineError, match="inside of the subscriber"):
            require_scratch_outside(spark, publisher, pubid, folder.parent)

    session = run("sync", "south", "-f", str(file))["sessions"][0]
    assert (session["download"]["inserts"], session["download"]["deletes"]) == (4, 1)
    assert rows(south) == souths
    again = run("sync", "-f", str(file))["sessions"]
    assert [each["status"] for each in again] == ["nothing_to_do", "nothing_to_do"]

    current, past = net_mappings(hq.parent)
    assert sorted(partition for _, partition in current) == [1, 1, 2, 2, 2, 2]
    assert sorted((partition, reason) for _, partition, reason in past) == [(1, 2), (1, 2), (2, 1)]
    assert files_with(tmp_path / "north", ("Flo Canary", "Bo Canary")) == []
    assert files_with(tmp_path / "south", ("Flo Canary",)) != []


@pytest.mark.slow
def test_what_is_written_outside_of_a_partition_is_rejected_from_partition_options_1_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    hq, north, south = (tmp_path / name / "customers" for name in ("hq", "north", "south"))
    file = published(tmp_path, partition_options=1)
    listed = run("partitions", "list", "-f", str(file))["partitions"]
    assert [(each["partition_id"], each["host_name"], len(each["subscribers"])) for each in listed] == [
        (1, "North", 1),
        (2, "South", 1),
    ]
    assert run("partitions", "add", "-f", str(file), "--host-name", "West")["partition_id"] == 3
    assert run("partitions", "add", "-f", str(file), "--host-name", "West")["partition_id"] == 3
    in_use = CliRunner().invoke(main, ["partitions", "drop", "2", "-f", str(file), "--yes"])
    assert in_use.exit_code == 1
    assert "Partition 2 has the subscriber" in in_use.output
    assert run("partitions", "drop", "3", "-f", str(file), "--yes")["is_explicit"] is True
    assert len(run("partitions", "list", "-f", str(file))["partitions"]) == 2

    insert(north, 8, "South", "Hal")
    insert(north, 9, "North", "Ida")
    update(north, 3, {"region": "South"})
    update(north, 4, {"name": "Dia"})
    session = run("sync", "north", "-f", str(file))["sessions"][0]["upload"]
    assert (session["inserts"], session["updates"], session["conflicts"]) == (1, 1, 2)
    kept, souths = (
        {(1, "North", "Ada"), (4, "North", "Dia"), (9, "North", "Ida")},
        {(2, "South", "Bo Canary")},
    )
    assert rows(north) == {*kept, (3, "North", "Cy")}
    assert rows(hq) == {*kept, (3, "North", "Cy"), *souths}
    logged = run("conflicts", "list", "-f", str(hq.parent))["conflicts"]
    assert {(str(each["key"]["id"]), each["conflict_type"], each["reason_text"]) for each in logged} == {
        (key, 11, "The row is outside of the subscriber's partition (partition_options 1).")
        for key in ("3", "8")
    }
    # What was rejected may be written at the publisher after all.
    moved = next(each for each in logged if str(each["key"]["id"]) == "3")
    run("conflicts", "resolve", moved["conflict_id"], "-f", str(hq.parent), "--loser")
    run("sync", "-f", str(file))
    assert rows(north) == kept
    assert rows(south) == {*souths, (3, "South", "Cy")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["apply.before_partition", "partition.after_group", "apply.after_partition"]
)
def test_an_apply_that_dies_as_it_adds_a_partition_is_made_up_for(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    table(tmp_path / "hq" / "customers", [(1, "North", "Ada"), (2, "South", "Bo")], CUSTOMERS)
    article = {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"}
    subscriptions = [{"subscriber": "./north", "host_name": "North"}]
    file = publish(tmp_path, "sales", [article], subscriptions, is_applied=False)
    with armed(point):
        assert CliRunner().invoke(main, ["apply", "-f", str(file)]).exit_code != 0
        assert failpoints._passed == {point: 1}
    insert(tmp_path / "hq" / "customers", 3, "North", "Cy")
    run("apply", "-f", str(file))
    run("sync", "-f", str(file))
    assert rows(tmp_path / "north" / "customers") == {(1, "North", "Ada"), (3, "North", "Cy")}
    assert [each["partition_id"] for each in run("partitions", "list", "-f", str(file))["partitions"]] == [1]


def files_with(root: Path, values: Sequence[str]) -> list[str]:
    """Return the files below a root that hold one of the values, in whatever column of whatever table, old files too."""
    found = []
    for path in root.rglob("*"):
        if path.is_file():
            is_table = path.suffix == ".parquet"
            text = (
                str(pq.read_table(path).to_pylist())
                if is_table
                else path.read_bytes().decode("utf-8", "replace")
            )
            found += [str(path)] if any(value in text for value in values) else []
    return found

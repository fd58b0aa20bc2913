"""Rows and files that only the engine can look at: what cannot be published, captured, applied or compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mergerepl.delta.log import head_version
from tests.bad_inputs.changed_tables import Schema, altered
from tests.bad_inputs.conftest import Refused, run, state_of
from tests.networks import Network, commit, write_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SYNC = ("sync", "north", "-f", "hq")


def values(*ids: int | None) -> dict[str, Any]:
    count = len(ids)
    return {"id": pa.array(ids, pa.int64()), "region": ["E"] * count, "amount": [9.0] * count}


UNPUBLISHABLE = [
    pytest.param((1, None), ("NULL values", "id=NULL", "Correct these rows"), id="55 NULL key"),
    pytest.param((1, 1, 2), ("duplicate values", "id=1", "Correct these rows"), id="56 duplicate key"),
]


@pytest.mark.parametrize(("ids", "says"), UNPUBLISHABLE)
def test_rows_that_cannot_be_published(
    network: Network, refused: Refused, ids: tuple[int | None, ...], says: tuple[str, ...]
) -> None:
    write_table(network.root("hq") / "lines", values(*ids))
    network.write_file(articles=[*network.stated["articles"], {"name": "lines", "key": ["id"]}])
    refused("apply", "-f", "sales.yml", code=1, says=("'lines' cannot be published", *says))


def test_58_guids_that_are_none(network: Network, refused: Refused) -> None:
    """A number is refused without the engine: see `a rowguid that is a number` in `test_tables`."""
    guid = "3F2504E0-4F89-11D3-9A0C-0305E82C3301"
    write_table(
        network.root("hq") / "lines", {"guid": [None, guid, guid.lower(), "nonsense"], "n": [1, 2, 3, 4]}
    )
    network.write_file(articles=[*network.stated["articles"], {"name": "lines", "rowguid": "guid"}])
    bad = (
        "NULL values",
        "guid=NULL",
        "duplicate values",
        f"guid={guid.lower()}",
        "no GUIDs",
        "guid=nonsense",
    )
    says = ("'lines' cannot be published", "its rowguid column (guid)", *bad, "Correct these rows")
    refused("apply", "-f", "sales.yml", code=1, says=says)


NO_KEYS = [
    pytest.param(
        (None,),
        ("have NULL in their key (id)", "Give them keys or delete them"),
        id="55 NULL key",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        (9, 9),
        ("have one key (id)", "id=9", "Remove the duplicates"),
        id="102 a key twice",
        marks=pytest.mark.slow,
    ),
    pytest.param((1,), ("have one key (id)", "id=1", "Remove the duplicates"), id="56 a key that was there"),
]


@pytest.mark.parametrize(("ids", "says"), NO_KEYS)
def test_rows_that_cannot_be_captured(
    network: Network, refused: Refused, ids: tuple[int | None, ...], says: tuple[str, ...]
) -> None:
    write_table(network.root("north") / "orders", values(*ids), mode="append")
    refused(*SYNC, code=1, says=("'orders'", "/north/orders'", "Nothing was captured", *says))


def no_data_files(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()


def empty_data_files(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.write_bytes(b"")


def forged_path(table: Path) -> None:
    """Name a file of somebody else, as anyone can who may write the log."""
    file = {"path": "file:///etc/passwd", "size": 1, "modificationTime": 1, "partitionValues": {}}
    commit(table, {"commitInfo": {"operation": "WRITE"}}, {"add": {**file, "dataChange": True}})


def unknown_feature(table: Path) -> None:
    features = {"readerFeatures": ["timeTravelPlus"], "writerFeatures": ["timeTravelPlus"]}
    commit(table, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})


DAMAGED = [
    pytest.param(no_data_files, id="data files gone"),
    pytest.param(empty_data_files, id="data files empty", marks=pytest.mark.slow),
    pytest.param(forged_path, id="46 a file elsewhere", marks=pytest.mark.slow),
    pytest.param(unknown_feature, id="45 unknown feature", marks=pytest.mark.slow),
]
"""What sessions say of the later ones without an engine, `test_sessions` holds."""

VALIDATE = ("validate", "north", "-f", "hq")


@pytest.mark.slow
@pytest.mark.parametrize("words", [SYNC, VALIDATE], ids=["sync", "validate"])
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_table_that_cannot_be_read(
    network: Network, refused: Refused, words: tuple[str, ...], damage: Callable[[Path], None]
) -> None:
    network.add_rows("north", 9)
    damage(network.root("north") / "orders")
    refused(*words, code=1, says=("/north",))


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_row_is_shown_beside_a_table_that_cannot_be_read(
    network: Network, damage: Callable[[Path], None]
) -> None:
    damage(network.root("north") / "orders")
    before = state_of(network.folder)
    shown = run("row", "orders", "-f", "hq", "--key", "id=1", "--json")
    assert shown.exit_code == 0, shown.output
    entries = {Path(each["replica"]).name: each for each in json.loads(shown.stdout)["replicas"]}
    assert entries["hq"]["row"] == entries["south"]["row"] == {"id": "1", "region": "N", "amount": "1.0"}
    assert entries["north"]["row"] is None
    assert "/north/orders'" in entries["north"]["problem"]
    assert state_of(network.folder) == before


def positive(spark: SparkSession, table: Path) -> None:
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT small CHECK (amount < 5)")


def three_letters(spark: SparkSession, table: Path) -> None:
    """As ALTER TABLE does, and as a copy has it whose rows another engine than Spark writes: it measures nothing."""

    def declare(schema: Schema) -> None:
        schema["fields"][1]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}

    altered(declare)(table)


def by_region(spark: SparkSession, table: Path) -> None:
    """Its rows stay as they are; only where they are kept is another thing."""
    write_table(table, mode="overwrite", schema_mode="overwrite", partition_by=["region"])


NOT_TAKEN = [
    pytest.param(positive, "E", "CHECK constraint 'small'", id="70 CHECK"),
    pytest.param(three_letters, "North", "type varchar(3) of column 'region'", id="71 varchar"),
    pytest.param(by_region, "", "'region' that no value is empty", id="73 partition"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("restrict", "region", "rule"), NOT_TAKEN)
def test_rows_that_the_other_side_does_not_take(
    spark: SparkSession,
    network: Network,
    restrict: Callable[[SparkSession, Path], None],
    region: str,
    rule: str,
) -> None:
    """They wait where they were made, and are logged with the rule."""
    restrict(spark, network.root("hq") / "orders")
    write_table(network.root("north") / "orders", {**values(9), "region": [region]}, mode="append")
    synced = run(*SYNC)
    assert (synced.exit_code, "1 refused change waiting" in synced.stdout) == (0, True)
    assert [head_version(network.root(name) / "orders") for name in ("hq", "north")] == [1, 1]
    (logged,) = json.loads(run("conflicts", "list", "-f", "hq", "--json").stdout)["conflicts"]
    assert (logged["conflict_name"], logged["key"]) == ("insert refused at the publisher", {"id": "9"})
    assert rule in logged["reason_text"]

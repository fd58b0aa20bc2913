"""`tune` writes tables again in smaller files: no row changes, and no reader of the feed sees a change."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.commits import read_commit
from mergerepl.delta.layout import layout, write_in_key_order
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from tests.calls import merge_status
from tests.networks import Pair

pytestmark = pytest.mark.spark

KIB = 1024
ROWS = 20_000
ROW = f"pmod(id * 7919, {ROWS}) as id, sha2(cast(id as string), 256) as v, 0 as n"
"""Rows in no order; a table of them takes 1.4 MiB."""

KINDS = {
    "plain": "TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'n')",
    "parted": "PARTITIONED BY (region)",
    "clustered": "CLUSTER BY (region)",
    "vectors": "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
}
REGION = "if(id % 2 = 0, 'Île a/b', null) as region"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("plain", "clustered"), id="two"),
        pytest.param(tuple(KINDS), id="all", marks=pytest.mark.slow),
    ],
)
def pair(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Pair:
    folder = tmp_path_factory.mktemp("tune")
    for name in request.param:
        more = KINDS[name]
        spark.sql(
            f"CREATE TABLE delta.`{folder / 'hq' / name}` USING delta {more} AS "
            f"SELECT {ROW}, {REGION} FROM range(0, {ROWS}, 1, 1)"
        )
        if name == "vectors":
            spark.sql(f"DELETE FROM delta.`{folder / 'hq' / name}` WHERE id < 100")
    return Pair(spark, folder, {name: (None, {"key": ["id"]}) for name in request.param})


def rows(table: Path, version: int | None = None) -> pa.Table:
    from mergerepl.delta.reads import read_version
    from mergerepl.spark import session

    state = DeltaTable(str(table), version=version)
    read = read_version(session.session(), table, state.version())
    return read.toArrow().sort_by("id")


@pytest.mark.slow
def test_tables_of_every_kind_keep_their_rows_and_sync_on(pair: Pair) -> None:
    hq, north = pair.folder / "hq", pair.folder / "north"
    kinds = [name for name in KINDS if (hq / name).exists()]
    # Not captured yet when the table is written again.
    pair.sql("UPDATE hq.plain SET n = 1 WHERE id = 5")
    before = {name: rows(hq / name) for name in kinds}
    planned = {
        each.article: each for each in mergerepl.Replica(hq).tune(file_size=256 * KIB, dry_run=True).articles
    }
    assert {each.status for each in planned.values()} == {"planned"}
    result = {each.article: each for each in mergerepl.Replica(hq).tune(file_size=256 * KIB).articles}
    for name, tuned in result.items():
        assert (tuned.status, tuned.reasons) == ("tuned", planned[name].reasons)
        assert tuned.properties == (
            {"delta.dataSkippingStatsColumns": "n,`id`"} if name == "plain" else {}
        ), name
        assert tuned.files_after > tuned.files_before, name
        assert tuned.largest_bytes_after <= 512 * KIB, name
        assert tuned.version is not None
        commit = read_commit(hq / name, tuned.version)
        assert (commit.operation, commit.data_change, commit.kind) == ("OPTIMIZE", False, "tune")
        assert commit.mark is not None
        assert commit.mark.replid == merge_status(hq).replid
        assert rows(hq / name).equals(before[name]), name
        feed = pair.spark.sql(
            f"SELECT * FROM table_changes_by_path('{hq / name}', {tuned.version}, {tuned.version})"
        )
        assert feed.count() == 0, name
        if name != "clustered":
            assert ordered(hq / name), name
    # One user's commit, before.
    found = {each.article: each.uncaptured_commits for each in merge_status(hq).articles}
    assert found == {**dict.fromkeys(kinds, 0), "plain": 1}
    assert {each.status for each in mergerepl.Replica(hq).tune(file_size=256 * KIB).articles} == {"fine"}
    # Delta leaves alone what it clustered before.
    (again,) = mergerepl.Replica(hq).tune("clustered", file_size=64 * KIB).articles
    assert (again.status, again.version, again.files_after) == ("unchanged", None, again.files_before)
    for name in kinds:
        pair.sql(f"UPDATE hq.{name} SET n = 2 WHERE id = 1000")
        pair.sql(f"UPDATE north.{name} SET n = 3 WHERE id = 2000")
    pair.sync()
    assert pair.conflicts() == 0
    for name in kinds:
        found_rows = [rows(root / name) for root in (hq, north)]
        assert found_rows[0].equals(found_rows[1]), name
        changed = [row["id"] for row in found_rows[0].to_pylist() if row["n"]]
        assert changed == ([5] if name == "plain" else []) + [1000, 2000]
    (again,) = mergerepl.Replica(north).tune("plain", file_size=256 * KIB).articles
    assert again.status == "tuned"
    assert pair.sync().status == "nothing_to_do"


@pytest.mark.slow
def test_a_table_that_is_clustered_no_more_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'hq' / 'loose'}` USING delta CLUSTER BY (id) AS "
        f"SELECT {ROW} FROM range(0, {ROWS}, 1, 1)"
    )
    pair = Pair(spark, tmp_path, {"loose": (None, {"key": ["id"]})})
    hq = tmp_path / "hq"
    pair.sql("ALTER TABLE hq.loose CLUSTER BY NONE")
    version = DeltaTable(str(hq / "loose")).version()
    with pytest.raises(StoreError, match=r"no clustering columns.*CLUSTER BY \(`id`\)"):
        mergerepl.Replica(hq).tune(file_size=256 * KIB)
    assert DeltaTable(str(hq / "loose")).version() == version
    pair.sql("ALTER TABLE hq.loose CLUSTER BY (id)")
    assert [each.status for each in mergerepl.Replica(hq).tune(file_size=256 * KIB).articles] == ["tuned"]


KEYS = {
    "binary": ("unhex(sha2(cast(id as string), 256)) as k, id", "", 1),
    "flag": ("id % 2 = 0 as k, sha2(cast(id as string), 256) as v", "", 1),
    "partition": ("id % 2 as k, sha2(cast(id as string), 256) as v", "PARTITIONED BY (k)", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEYS)
def test_keys_without_bounds(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Delta states no bounds of booleans and binaries, and orders no partition by its own column."""
    columns, more, commits = KEYS[kind]
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}` USING delta {more} AS SELECT {columns} FROM range(0, {ROWS}, 1, 1)"
    )
    table = open_table(tmp_path)
    tuned = write_in_key_order(spark, table, ["k"], 256 * KIB, CommitMark("s", "tune", "r"))
    assert tuned.version == table.version + commits
    assert layout(tuned, []).rows == ROWS


def ordered(table: Path) -> bool:
    """Return whether the files of each partition state bounds of the key that overlap by little."""
    actions = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    bounds: dict[str, list[tuple[int, int]]] = {}
    for each in actions:
        bounds.setdefault(json.dumps(each.get("partition.region")), []).append(
            (each["min.id"], each["max.id"])
        )
    return all(
        one[1] - other[0] < 100
        for found in bounds.values()
        for one, other in zip(sorted(found), sorted(found)[1:], strict=False)
    )

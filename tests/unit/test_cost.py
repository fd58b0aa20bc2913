"""What makes few changes of a table dear, by its log alone: `doctor`, `status` and `tune --dry-run` say the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.delta.layout import INDEXED_COLUMNS, STATISTICS_COLUMNS, layout
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import ConflictError, LeaseError
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.cost import Cost, cost, update_cost
from mergerepl.store.lease import lease
from mergerepl.systables.catalog import ARTICLES
from tests.calls import merge_status
from tests.networks import Network, commit

MIB = 1024**2
COLUMNS = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("a", "b", "k")]
STRUCT = {"type": "struct", "fields": [{**each, "name": f"f{each['name']}"} for each in COLUMNS]}


def added(number: int, size: int, *, rows: int | None = None, bounds: bool = True) -> dict[str, Any]:
    stats: dict[str, Any] = {} if rows is None else {"numRecords": rows}
    if bounds:
        stats |= {"minValues": {"k": number}, "maxValues": {"k": number}, "nullCount": {"k": 0}}
    name = f"part-{number}.parquet"
    body = {"path": name, "size": size, "modificationTime": 1, "partitionValues": {}, "dataChange": True}
    return {"add": {**body, "stats": json.dumps(stats)}}


def table_of(
    path: Path,
    *files: dict[str, Any],
    properties: dict[str, str] | None = None,
    fields: list[Any] = COLUMNS,
    partitions: tuple[str, ...] = (),
    protocol: tuple[int, int] = (1, 2),
) -> TableState:
    """A table of these files, of which only the log is there."""
    (path / "_delta_log").mkdir(parents=True, exist_ok=True)
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": properties or {},
        "createdTime": 1,
    }
    versions = dict(zip(("minReaderVersion", "minWriterVersion"), protocol, strict=True))
    actions = [{"protocol": versions}, {"metaData": metadata}, *files]
    (path / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return open_table(path)


def merged(table: Path, *, changed: int, copied: int, step: str = "apply:hq", by: str = "spark") -> None:
    """Append the commit of a MERGE, as Spark or delta-rs counts its rows."""
    names = ("numTargetRowsUpdated", "numTargetRowsCopied")
    if by != "spark":
        names = ("num_target_rows_updated", "num_target_rows_copied")
    info = {
        "operation": "MERGE",
        "operationMetrics": dict(zip(names, (str(changed), str(copied)), strict=True)),
        "userMetadata": CommitMark("s", step, "r").to_user_metadata() if step else None,
    }
    commit(table, {"commitInfo": info})


def said(path: Path) -> Cost:
    found = cost(Path("/data/hq"), "orders", ["k"], open_table(path))
    assert found is not None
    return found


FINE = [
    pytest.param([added(1, 250 * MIB, rows=10)], id="a file of up to twice the size"),
    pytest.param([added(n, 10 * MIB, bounds=False) for n in range(9)], id="no bounds in one file's worth of bytes"),
    pytest.param([added(n, 100 * MIB, rows=10) for n in range(9)], id="many files with bounds"),
    pytest.param([added(1, 200 * MIB, rows=1), added(2, MIB, rows=0, bounds=False)], id="a file without rows"),
]  # fmt: skip


@pytest.mark.parametrize("files", FINE)
def test_a_table_of_such_files_is_fine(tmp_path: Path, files: list[dict[str, Any]]) -> None:
    table = table_of(tmp_path / "t", *files)
    assert cost(tmp_path, "orders", ["k"], table) is None


def test_large_files_are_dear(tmp_path: Path) -> None:
    table_of(tmp_path / "t", added(1, 300 * MIB, rows=10), added(2, MIB, rows=10))
    found = said(tmp_path / "t")
    assert found.reasons == (
        "files of up to 300 MiB: a changed row is written again with all rows of its file",
    )
    assert "`mergerepl tune orders -f /data/hq` writes it again in smaller files" in found.remedy


def test_files_without_bounds_of_the_key_are_dear(tmp_path: Path) -> None:
    table_of(tmp_path / "t", added(1, 200 * MIB, rows=5), added(2, 100 * MIB, rows=5, bounds=False))
    assert said(tmp_path / "t").reasons == (
        "1 of 2 files do not state bounds of its key, so that a sync reads them all",
    )


KEYS = [
    pytest.param({STATISTICS_COLUMNS: "a, `b`"}, {STATISTICS_COLUMNS: "a, `b`,`k`"}, id="others are listed"),
    pytest.param({STATISTICS_COLUMNS: ""}, {STATISTICS_COLUMNS: "`k`"}, id="none is listed"),
    pytest.param({STATISTICS_COLUMNS: "`a,k`,K"}, {}, id="it is listed, in another case"),
    pytest.param({STATISTICS_COLUMNS: "`a,k`"}, {STATISTICS_COLUMNS: "`a,k`,`k`"}, id="a name with a comma"),
    pytest.param({STATISTICS_COLUMNS: "k", INDEXED_COLUMNS: "0"}, {}, id="the list counts before the number"),
    pytest.param({INDEXED_COLUMNS: "2"}, {INDEXED_COLUMNS: "3"}, id="it comes after the first two"),
    pytest.param({INDEXED_COLUMNS: "3"}, {}, id="it is the third"),
    pytest.param({INDEXED_COLUMNS: "-1"}, {}, id="all"),
    pytest.param({INDEXED_COLUMNS: "x"}, {}, id="no number"),
    pytest.param({}, {}, id="the first 32"),
]


@pytest.mark.parametrize(("stated", "to_set"), KEYS)
def test_properties_that_leave_the_key_out(
    tmp_path: Path, stated: dict[str, str], to_set: dict[str, str]
) -> None:
    table = table_of(tmp_path / "t", added(1, 200 * MIB, rows=5), properties=stated)
    assert layout(table, ["k"]).properties == to_set
    found = cost(tmp_path, "orders", ["k"], table)
    assert (found is not None) == bool(to_set)


def test_fields_of_structs_count_and_partition_columns_do_not(tmp_path: Path) -> None:
    fields = [{**COLUMNS[0], "name": "s", "type": STRUCT}, *COLUMNS]
    for partitions, needed in (((), 6), (("a",), 5), (("k",), None)):
        table = table_of(
            tmp_path / f"t{len(partitions)}{needed}",
            properties={INDEXED_COLUMNS: "1"},
            fields=fields,
            partitions=partitions,
        )
        wanted = {} if needed is None else {INDEXED_COLUMNS: str(needed)}
        assert layout(table, ["k"]).properties == wanted


def test_bounds_of_a_mapped_column_are_not_missed(tmp_path: Path) -> None:
    """The log states them by another name."""
    mapped = [
        {
            **each,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"c{each['name']}",
            },
        }
        for number, each in enumerate(COLUMNS, start=1)
    ]
    table = table_of(
        tmp_path / "t",
        added(1, 200 * MIB, rows=5),
        properties={"delta.columnMapping.mode": "name"},
        fields=mapped,
        protocol=(2, 5),
    )
    assert layout(table, ["k"]).bounded == 1


@pytest.mark.parametrize("by", ["spark", "delta-rs"])
def test_sessions_that_copy_many_rows_are_dear(tmp_path: Path, by: str) -> None:
    path = tmp_path / "t"
    table_of(path, *(added(n, 64 * MIB, rows=4_000_000) for n in range(4)))
    merged(path, changed=10, copied=4_000_000, by=by)
    merged(path, changed=7, copied=8_000_000, by=by)
    found = said(path)
    assert found.reasons == ("the MERGE of version 2 copied 8,000,000 rows to change 7",)
    assert "`mergerepl tune orders -f /data/hq --file-size 8MB`" in found.remedy


CHEAP = [
    pytest.param({"changed": 10, "copied": 1_000_000}, id="few rows"),
    pytest.param({"changed": 100_000, "copied": 10_000_000}, id="few for each change"),
    pytest.param({"changed": 1, "copied": 9_000_000, "step": ""}, id="a user's MERGE"),
    pytest.param({"changed": 1, "copied": 9_000_000, "step": "setup:rows"}, id="not a session's"),
]


@pytest.mark.parametrize("words", CHEAP)
def test_other_merges_are_not_dear(tmp_path: Path, words: dict[str, Any]) -> None:
    path = tmp_path / "t"
    table_of(path, added(1, 64 * MIB, rows=10_000_000))
    merged(path, **words)
    assert cost(tmp_path, "orders", ["k"], open_table(path)) is None


def test_rows_that_the_log_does_not_count_whole_say_how_large_files_are_to_be(tmp_path: Path) -> None:
    """A file that does not state its rows is no reason to call large files small."""
    for name, rows, wanted in (("some", 12_500_000, "10MB"), ("none", None, "62MB")):
        path = tmp_path / name
        table_of(path, added(1, 250 * MIB, rows=rows), added(2, 8 * MIB))
        merged(path, changed=1, copied=12_000_000)
        assert layout(open_table(path), ["k"]).rows is None
        assert f"`mergerepl tune orders -f /data/hq --file-size {wanted}`" in said(path).remedy


def test_bounds_that_no_merge_reads_are_not_missed(tmp_path: Path) -> None:
    network = Network(tmp_path)
    table = network.root("hq") / "orders"
    commit(table, {"add": {**added(1, 200 * MIB, bounds=False)["add"], "dataChange": False}})
    (orders,) = merge_status(network.root("hq")).articles
    assert "1 of 2 files do not state bounds of its key" in orders.cost
    network.edit("hq", ARTICLES, rowguid_column="id")
    (orders,) = merge_status(network.root("hq")).articles
    assert orders.cost == ""
    assert mergerepl.Replica(network.root("hq")).tune(dry_run=True).articles[0].status == "fine"


@pytest.mark.parametrize(
    ("types", "rowguid", "bounded"),
    [
        (("bigint", "string"), None, ("a", "b")),
        (("decimal(9,0)", "date"), None, ("b",)),
        (("boolean", "binary"), None, ()),
        (("string", "int"), "a", ()),
    ],
)
def test_the_columns_by_whose_bounds_a_merge_leaves_files_out(
    types: tuple[str, ...], rowguid: str | None, bounded: tuple[str, ...]
) -> None:
    names = ("a", "b")
    article = PublishedArticle(
        *("p", "pubid", "orders", "artid", 1, "orders", names, names, types),
        *(False, "row", "priority", "", False, rowguid),
    )
    assert article.bounded_identity == bounded


def dear(network: Network) -> Path:
    """Give the publisher's table a file that is not there, and large."""
    table = network.root("hq") / "orders"
    stats = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 1}})
    file = added(1, 300 * MIB)["add"]
    commit(table, {"add": {**file, "stats": stats, "dataChange": False}})
    return table


def test_status_says_what_is_dear(tmp_path: Path) -> None:
    network = Network(tmp_path)
    assert [each.cost for each in merge_status(network.root("hq")).articles] == [""]
    dear(network)
    (orders,) = merge_status(network.root("hq")).articles
    assert orders.cost.startswith("files of up to 300 MiB: ")
    assert f"`mergerepl tune orders -f {network.root('hq')}`" in orders.cost
    assert [each.cost for each in merge_status(network.root("north")).articles] == [""]


def test_a_dry_run_says_what_would_be_written_and_a_fine_table_is_left_alone(tmp_path: Path) -> None:
    network = Network(tmp_path)
    hq = network.root("hq")
    (fine,) = mergerepl.Replica(hq).tune().articles
    assert (fine.status, fine.reasons, fine.version) == ("fine", (), None)
    table = dear(network)
    with lease(hq, purpose="another agent"):
        result = mergerepl.Replica(hq).tune(dry_run=True)
        with pytest.raises(LeaseError, match="another agent"):
            mergerepl.Replica(hq).tune()
    (planned,) = result.articles
    assert (planned.status, planned.largest_bytes_before, planned.version) == ("planned", 300 * MIB, None)
    assert "files of up to 300 MiB" in planned.reasons[0]
    (named,) = mergerepl.Replica(hq).tune("orders", file_size=200 * MIB).articles
    assert named.status == "fine"
    assert open_table(table).version == 1


def test_a_session_that_was_interrupted_is_finished_before(tmp_path: Path) -> None:
    network = Network(tmp_path)
    dear(network)
    (network.root("hq") / "_mergerepl" / "staging" / "s1").mkdir(parents=True)
    with pytest.raises(ConflictError, match="Run `mergerepl sync` first"):
        mergerepl.Replica(network.root("hq")).tune()


def test_the_last_update_by_delta_rs_is_named_if_it_is_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    rows = pa.table({"id": [1, 2], "value": [1.5, 0.0]})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(path).update(updates={"value": "7"}, predicate="id = 1")
    assert update_cost(open_table(path), ["id"]) == ""
    DeltaTable(path).update(updates={"value": "-value"})
    assert update_cost(open_table(path), ["id"]) == (
        "version 2 is an UPDATE by delta-rs that is read by comparing all rows of its files: it updated 2 rows, and not "
        "as many differ by the keys in its change files. Change few rows by MERGE of delta-rs "
        "(`DeltaTable.merge`) or through Spark: then only the changed rows are read."
    )
    DeltaTable(path).update(updates={"value": "7"}, predicate="id = 1")
    assert update_cost(open_table(path), ["id"]) == "", "no older one is read"

"""What a window of commits is, read from the log: changes that were undone, and layouts, make a gap of the feed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mergerepl.delta.feed import window as feed
from mergerepl.delta.log import head_version, log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.table import open_table
from mergerepl.errors import CaptureError, SchemaMismatchError, StoreError
from mergerepl.merge.capture.windows import article_window
from mergerepl.replica.replica import Replica
from mergerepl.spark.errors import gone_reason
from tests.networks import Network, commit, restated
from triggers.schema_checks import schema_problem
from triggers.window import CaptureWindow

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """The table of a subscriber that is in step."""
    return Network(tmp_path).root("north") / "orders"


def window(orders: Path) -> CaptureWindow:
    replica = Replica(orders.parent)
    return article_window(replica, replica.articles[0], replica.info())


def set_field(number: int, **stated: Any) -> Change:
    return lambda body: body["fields"][number].update(stated)


no_null = set_field(1, nullable=False)
computed = set_field(2, metadata={"delta.generationExpression": "id * 2"})
counted = set_field(2, metadata={"delta.identity.start": 1, "delta.identity.step": 1})


def declared(type_: str) -> Change:
    return set_field(1, metadata={"__CHAR_VARCHAR_TYPE_STRING": type_})


def metadata(table: Path, change: Change = lambda body: None) -> dict[str, Any]:
    """Return the metaData action that the table began with, with a change."""
    lines = map(json.loads, log_path(table, 0).read_text().splitlines())
    body = next(line["metaData"] for line in lines if "metaData" in line)
    return {"metaData": restated(body, change)}


def alter(table: Path, change: Change = lambda body: None) -> None:
    commit(table, {"commitInfo": {"operation": "ALTER TABLE"}}, metadata(table, change))


def by_region(body: dict[str, Any]) -> None:
    body["partitionColumns"] = ["region"]


def check(body: dict[str, Any]) -> None:
    body["configuration"]["delta.constraints.small"] = "amount < 5"


def test_properties_and_constraints_are_no_gap(orders: Path) -> None:
    alter(orders, check)
    assert (window(orders).gap, window(orders).through_version_inclusive) == (None, 1)


def test_not_null_is_refused_and_a_gap_once_undone(orders: Path) -> None:
    alter(orders, no_null)
    with pytest.raises(SchemaMismatchError, match="'region' became NOT NULL"):
        window(orders)
    alter(orders)
    assert window(orders).gap == "its columns were changed in between"


def added(nullable: bool) -> Change:
    field = {"name": "note", "type": "string", "nullable": nullable, "metadata": {}}
    return lambda body: body["fields"].append(field)


TRAVELS, STAYS = "Nothing was changed. It travels with the next", "This schema change does not travel. "


@pytest.mark.parametrize(
    ("at", "change", "says"),
    [
        ("hq", added(nullable=True), rf"'note' was added \(.*\)\. {TRAVELS}"),
        ("hq", added(nullable=False), rf"'note' was added as NOT NULL \(.*\)\. {STAYS}"),
        ("north", added(nullable=False), rf"'note' was added as NOT NULL \(.*\)\. {STAYS}"),
        ("hq", set_field(1, name="area"), rf"'region' was dropped or renamed \(.*\)\. {TRAVELS}"),
        ("north", set_field(1, name="area"), rf"'region' was dropped or renamed \(.*\)\. {STAYS}"),
        ("hq", set_field(0, name="key"), rf"'id' was dropped or renamed \(.*\)\. {STAYS}"),
    ],
)
def test_a_change_of_columns_while_a_session_runs_travels_if_the_next_one_follows_it(
    orders: Path, at: str, change: Change, says: str
) -> None:
    table = orders.parents[1] / at / "orders"
    alter(table, change)
    with pytest.raises(SchemaMismatchError, match=says):
        window(table)


def test_a_subscribers_own_column_takes_null(orders: Path) -> None:
    alter(orders, added(nullable=True))
    assert window(orders).gap is None


@pytest.mark.parametrize(
    ("change", "message"),
    [(computed, r"became generated as \(id \* 2\)"), (counted, "became an identity column")],
)
def test_a_column_that_delta_fills_by_now_is_refused(orders: Path, change: Change, message: str) -> None:
    """The MERGE would not write it: this replica would hold other values than those that sent them."""
    alter(orders, change)
    with pytest.raises(SchemaMismatchError, match=f"published column 'amount' {message}"):
        window(orders)


OWN = "this replica"
MARKS: dict[str, tuple[CommitMark | None, bool, bool]] = {
    # name: the commit's mark; whether an ordinary window and a late one take it for a user's change.
    "no mark": (None, True, True),
    "rows of a snapshot": (CommitMark("initialise s", "setup:rows", OWN), False, False),
    "rows of another replica's snapshot": (CommitMark("initialise s", "setup:rows", "hq"), True, True),
    "a schema change": (CommitMark("s", "schema:1", OWN), False, False),
    "a MERGE that no bookkeeping knows": (CommitMark("s", "apply:subscriber:1:0", OWN), True, False),
    "a MERGE of another replica": (CommitMark("s", "apply:subscriber:1:0", "hq"), True, True),
    "a MERGE of nobody": (CommitMark("s", "apply:subscriber:1:0"), True, True),
    "Compact": (CommitMark("t", "track:17", OWN), True, True),
    "a distribution agent": (CommitMark("d", "distribute:3", OWN), True, True),
    "a transactional repair": (CommitMark("d", "repair:3", OWN), True, True),
    "a resolved conflict": (CommitMark("r", "resolve:5", OWN), True, True),
    "changes of another database": (CommitMark("c", "consume:2", OWN), True, True),
    "a kind that is not known": (CommitMark("x", "rows", OWN), True, True),
    "a kind that begins like one of ours": (CommitMark("x", "applying:1", OWN), True, True),
}


@pytest.mark.parametrize(("mark", "is_change", "is_late_change"), MARKS.values(), ids=MARKS)
def test_inv_23_only_what_merge_wrote_here_is_no_change(
    orders: Path, mark: CommitMark | None, *, is_change: bool, is_late_change: bool
) -> None:
    replica = Replica(orders.parent)
    replid = replica.info().replid
    mark = replace(mark, replid=replid) if mark is not None and mark.replid == OWN else mark
    info = {"operation": "MERGE"} | ({"userMetadata": mark.to_user_metadata()} if mark else {})
    commit(orders, {"commitInfo": info}, {"remove": {"path": "gone.parquet", "dataChange": True}})
    user = {"commitInfo": {"operation": "DELETE"}}
    commit(orders, user, {"remove": {"path": "gone-too.parquet", "dataChange": True}})
    for is_late, is_counted in ((False, is_change), (True, is_late_change)):
        found = article_window(replica, replica.articles[0], replica.info(), is_late=is_late)
        assert [each.version for each in found.user_commits] == ([1, 2] if is_counted else [2])
        assert [segment.from_version_inclusive for segment in found.segments] == [1 if is_counted else 2]


def test_what_we_wrote_between_two_changes_is_left_out(orders: Path) -> None:
    replid = Replica(orders.parent).info().replid
    ours = CommitMark("initialise s", "setup:rows", replid).to_user_metadata()
    for info in ({}, {"userMetadata": ours}, {}):
        removed = {"remove": {"path": "gone.parquet", "dataChange": True}}
        commit(orders, {"commitInfo": {"operation": "DELETE", **info}}, removed)
    (segment,) = window(orders).segments
    assert (segment.from_version_inclusive, segment.through_version_inclusive) == (1, 3)
    assert segment.left_out == (2,)


def nested(*, may_be_null: bool) -> Change:
    about = {"type": "string", "nullable": may_be_null, "metadata": {"comment": str(may_be_null)}}
    return set_field(1, type={"type": "struct", "fields": [{"name": "x", **about}]})


def stated(table: Path, change: Change = lambda body: None) -> TableMetadata:
    body = metadata(table, change)["metaData"]
    return TableMetadata(
        body["id"], body["schemaString"], body["configuration"], tuple(body["partitionColumns"])
    )


def test_a_text_that_is_padded_from_now_on_is_refused_one_that_may_be_longer_is_not(orders: Path) -> None:
    alter(orders, declared("varchar(10)"))
    assert window(orders).gap is None
    alter(orders, declared("char(5)"))
    with pytest.raises(SchemaMismatchError, match="'region' is a char"):
        window(orders)
    article = Replica(orders.parent).articles[0]
    assert "'region' is a char" in str(
        schema_problem(article, stated(orders), stated(orders, declared("char(5)")))
    )


def test_a_part_that_takes_null_from_now_on_is_refused(orders: Path) -> None:
    article = Replica(orders.parent).articles[0]
    types = [*article.types]
    types[article.columns.index("region")] = "struct<x:string>"
    article = replace(article, types=tuple(types))
    before = stated(orders, nested(may_be_null=False))
    assert schema_problem(article, before, before) is None
    problem = schema_problem(article, stated(orders, nested(may_be_null=True)), before)
    assert problem == "a part of published column 'region' became NOT NULL, or is not NOT NULL any more"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_a_commit_may_have_what_python_takes_for_an_end_of_line(orders: Path, separator: str) -> None:
    """delta-rs and Spark write it as it is, in the statistics of a file and in a table's description."""
    alter(orders, lambda body: body.update(description=f"first{separator}second"))
    log = log_path(orders, 1)
    log.write_text(
        "".join(
            json.dumps(each, ensure_ascii=False) + "\n"
            for each in map(json.loads, filter(None, log.read_text().split("\n")))
        )
    )
    assert separator in log.read_text()
    assert window(orders).through_version_inclusive == 1
    assert open_table(orders).description == f"first{separator}second"


def test_what_a_commit_with_columns_took_away_is_not_asked_of_the_feed_if_the_partitioning_before_is_not_known(
    orders: Path,
) -> None:
    for _ in range(2):
        alter(orders, check)
    DeltaTable(str(orders)).create_checkpoint()
    replica = Replica(orders.parent)
    info = replica.info()
    replica.save_info(replace(info, captured=dict.fromkeys(info.captured, 1)))
    columns = metadata(orders)
    for version in (0, 1):
        log_path(orders, version).unlink()
    remove = {"path": "x", "dataChange": True}
    commit(orders, columns, {"remove": remove})
    assert window(orders).gap == "its partitioning may have been changed"


def test_another_partitioning_is_a_gap_also_once_undone(orders: Path) -> None:
    alter(orders, by_region)
    assert window(orders).gap == "its partitioning was changed"
    alter(orders)
    assert window(orders).gap == "its partitioning was changed"


def test_dropped_deletion_vectors_are_a_gap_for_what_is_written_after_them(orders: Path) -> None:
    """The feed is read as of the last commit that users wrote."""
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed"]}
    deleted = {"remove": {"path": "p", "dataChange": True, "deletionVector": vector}}
    removed = {"remove": {"path": "p", "dataChange": True}}
    commit(orders, {"commitInfo": {"operation": "DELETE"}}, deleted)
    commit(
        orders,
        {"commitInfo": {"operation": "DROP FEATURE"}},
        {"protocol": {**protocol, "readerFeatures": []}},
    )
    assert window(orders).gap is None
    commit(orders, {"commitInfo": {"operation": "DELETE"}}, removed)
    assert window(orders).gap == "deletion vectors were dropped from it at version 2"


def test_a_log_that_lost_a_version_is_a_gap_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """Whatever the folder is called: the path is part of the message."""
    orders = Network(tmp_path / "truncated").root("north") / "orders"
    for _ in range(2):
        alter(orders, check)
    DeltaTable(str(orders)).create_checkpoint()
    log_path(orders, 1).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        window(orders)
    log_path(orders, 1).unlink()
    assert window(orders).gap == "versions are gone from its log"
    alter(orders, computed)
    with pytest.raises(SchemaMismatchError, match="'amount' became generated"):
        window(orders)
    log_path(orders, 0).unlink()
    (checkpoint,) = (orders / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"checkpoint '.*' of a Delta log cannot be read"):
        open_table(orders)


def test_spark_without_its_own_files_is_no_gap() -> None:
    lost = "java.io.FileNotFoundException: {}: No such file or directory"
    feed = "/lake/orders/_change_data/cdc-00000-1.c000.snappy.parquet"
    assert gone_reason(RuntimeError(lost.format(feed))) == "files of its changes were removed by VACUUM"
    scratch = "/tmp/mergerepl-1/blockmgr-2/0c/temp_shuffle_3"
    assert gone_reason(RuntimeError(lost.format(scratch))) is None


def test_only_a_file_that_is_gone_is_a_gap() -> None:
    """Spark says of every file that it cannot open that it does not exist, and Java of most; the reason stands behind."""
    feed = "/lake/orders/r=a (b)/_change_data/cdc-00000-1.c000.snappy.parquet"
    trace = (
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:{feed}. File does not exist. It is\n"
        "\tat org.apache.spark.Reader.read(Reader.scala:1)\nCaused by: java.io.FileNotFoundException: {}\n\t... 3 more"
    )
    for gone in (f"File file:{feed} does not exist", f"{feed} (No such file or directory)"):
        assert gone_reason(RuntimeError(trace.format(gone))) == "files of its changes were removed by VACUUM"
    for why in ("Permission denied", "Too many open files", "Input/output error"):
        assert gone_reason(RuntimeError(trace.format(f"{feed} ({why})"))) is None


def test_files_elsewhere_that_left_the_table_again_are_a_gap(orders: Path) -> None:
    file = {
        "path": "/elsewhere/x",
        "size": 1,
        "modificationTime": 1,
        "partitionValues": {},
        "dataChange": True,
    }
    commit(orders, {"add": file})
    commit(orders, {"remove": {"path": "/elsewhere/x", "dataChange": True}})
    assert window(orders).gap == "files outside the table's folder were part of it for a while"


RAW, CODED = "region=Île/a.parquet", "region=%C3%8Ele/a.parquet"
SPARK, DELTA_RS = "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "delta-rs:py-1.6.6"


def files_commit(
    table: Path,
    *,
    add: str = "",
    remove: str = "",
    by: str = DELTA_RS,
    is_change: bool = True,
    restores: int | None = None,
) -> None:
    """Commit that files came and went."""
    info = {"operation": "UPDATE" if is_change else "OPTIMIZE", "engineInfo": by}
    if restores is not None:
        info |= {"operation": "RESTORE", "operationParameters": {"version": str(restores)}}
    file = {"size": 1, "modificationTime": 1, "partitionValues": {}, "dataChange": is_change}
    added = [{"add": {"path": add, **file}}] if add else []
    removed = [{"remove": {"path": remove, "dataChange": is_change}}] if remove else []
    commit(table, {"commitInfo": info}, *removed, *added)


def captured(orders: Path) -> CaptureWindow:
    """Take the table's head for captured."""
    replica = Replica(orders.parent)
    info = replica.info()
    head = head_version(orders)
    replica.save_info(replace(info, captured=dict.fromkeys(info.captured, head), captured_commits={}))
    return window(orders)


@pytest.mark.parametrize("is_change", [True, False], ids=["update", "optimize"])
@pytest.mark.parametrize(
    ("held", "removed"),
    [(RAW, CODED), ("a b/a.parquet", "a%20b/a.parquet"), ("a%3Db/a.parquet", "a=b/%61.parquet")],
)
def test_a_removal_of_no_file_of_the_table_is_refused(
    orders: Path, held: str, removed: str, *, is_change: bool
) -> None:
    files_commit(orders, add=held, by=SPARK)
    captured(orders)
    files_commit(orders, remove=removed, add="new.parquet", is_change=is_change)
    with pytest.raises(CaptureError) as refused:
        window(orders)
    for words in (f"version 2 of table '{orders}'", f"'{removed}', which its log names '{held}'", DELTA_RS):
        assert words in str(refused.value)
    assert f"RESTORE TABLE delta.`{orders}` TO VERSION AS OF 1" in str(refused.value)
    # Later commits may have done anything but undo it.
    files_commit(orders, add="newer.parquet")
    with pytest.raises(CaptureError, match="version 2 of table"):
        window(orders)


UNDONE = "files were removed that were not in it, and that was undone"


@pytest.mark.parametrize(
    ("later", "gap"),
    [
        ({"remove": "new.parquet", "restores": 1}, UNDONE),
        ({"restores": 0, "remove": RAW}, UNDONE),
        ({"remove": RAW, "add": "mended.parquet", "by": SPARK, "is_change": False}, UNDONE),
        ({"remove": "new.parquet", "restores": 2}, None),
    ],
    ids=["restored", "restored to before it", "written again", "restored to it"],
)
def test_a_removal_of_no_file_is_a_gap_once_undone(
    orders: Path, later: dict[str, Any], gap: str | None
) -> None:
    """What it wrote is in the feed; what the table holds is not."""
    files_commit(orders, add=RAW, by=SPARK)
    captured(orders)
    files_commit(orders, remove=CODED, add="new.parquet")
    files_commit(orders, **later)
    if gap is None:
        with pytest.raises(CaptureError, match="version 2 of table"):
            window(orders)
    else:
        assert window(orders).gap == gap


@pytest.mark.parametrize(("held", "by"), [(RAW, SPARK), (RAW, DELTA_RS), (CODED, DELTA_RS)])
def test_a_removal_by_the_name_of_the_log_is_no_gap(orders: Path, held: str, by: str) -> None:
    files_commit(orders, add=held)
    captured(orders)
    files_commit(orders, remove=held, add="new.parquet", by=by)
    files_commit(orders, remove="new.parquet", add=held, by=by)
    files_commit(orders, remove=held, by=by)
    assert window(orders).gap is None


def test_the_files_of_a_table_are_listed_only_for_names_that_have_two_spellings(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_commit(orders, add=RAW, by=SPARK)
    captured(orders)
    listed: list[int] = []
    monkeypatch.setattr(feed, "file_names", lambda _, version: listed.append(version) or [RAW])
    files_commit(orders, remove=RAW, add="region=N/a.parquet", by=SPARK)
    files_commit(orders, remove="region=N/a.parquet", add="region=%25C3%258Ele/b.parquet")
    assert (window(orders).gap, listed) == (None, [])
    files_commit(orders, remove="region=%25C3%258Ele/b.parquet")
    assert (window(orders).gap, listed) == (None, [1])


def test_a_late_window_with_a_removal_of_no_file_is_a_gap(orders: Path) -> None:
    files_commit(orders, add=RAW, by=SPARK)
    captured(orders)
    files_commit(orders, remove=CODED)
    replica = Replica(orders.parent)
    assert article_window(replica, replica.articles[0], replica.info(), is_late=True).gap == UNDONE


def test_removals_from_a_version_that_is_gone_are_a_gap(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(table: Path, version: int) -> list[str]:
        raise OSError

    monkeypatch.setattr(feed, "file_names", gone)
    files_commit(orders, remove=CODED)
    assert "is not known (version 0 is gone from its log)" in str(window(orders).gap)

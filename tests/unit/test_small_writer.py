"""The small writer alone: what it merges, what it refuses, and who it gives way to. No Spark."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake

from mergerepl.changes import PUBLISHER_ACTION, ROW
from mergerepl.delta import small_writer, transactions
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.log import head_version
from mergerepl.delta.small_writer import ACTION, SmallRows, reason_for_spark
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import CommitConflictError
from mergerepl.merge.stage.constraints import broken_rules
from mergerepl.model.article import PublishedArticle
from mergerepl.spark.in_memory import frame_of_tuples
from tests.drawn_tables import Drawn, merge_without_spark, transaction
from tests.executors import struct_of

FEED = {"delta.enableChangeDataFeed": "true"}


def small(drawn: Drawn, article: PublishedArticle) -> SmallRows:
    """Return the rows as `small_rows` reads them."""
    staged = drawn.staged()
    staged = staged.filter(pc.not_equal(staged[PUBLISHER_ACTION], "metadata"))
    values = staged.select([ROW]).flatten().rename_columns(list(article.fields))
    is_gone = pc.equal(staged[PUBLISHER_ACTION], "leave")
    actions = pc.if_else(is_gone, "delete", staged[PUBLISHER_ACTION])
    return SmallRows(
        values.append_column(ACTION, actions), dict(zip(article.fields, article.types, strict=True))
    )


def in_bits(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Return rows as texts, which distinguish -0.0 from 0.0 and take NaN for NaN."""
    return [repr([row[name] for name in names]) for row in rows]


def check(table: Path, seed: int) -> None:
    drawn = Drawn(seed)
    if not set(drawn.actions.values()) - {"metadata"}:
        return
    rows = drawn.table()
    write_deltalake(str(table), rows.slice(0, len(rows) // 2), configuration=FEED)
    write_deltalake(str(table), rows.slice(len(rows) // 2), mode="append")
    article = drawn.article(table)
    names = [field["name"] for field in open_table(table).fields]
    keys = list(article.identity)
    there = {in_bits([row], keys)[0]: row for row in rows.to_pylist()}
    after, feed = dict(there), Counter[tuple[str, str]]()
    merged = small(drawn, article)
    for row in merged.rows.to_pylist():
        values = dict(zip(article.columns, [row[field] for field in article.fields], strict=True))
        key = in_bits([values], keys)[0]
        old = there.get(key)
        new = None if row[ACTION] == "delete" else {**dict.fromkeys(names), **(old or {}), **values}
        if old is not None and new is not None and in_bits([old], names) == in_bits([new], names):
            continue
        kinds = {(True, True): ("update_preimage", "update_postimage"), (True, False): ("delete", "")}
        before, now = kinds.get((old is not None, new is not None), ("", "insert"))
        if old is not None:
            feed[before, in_bits([old], names)[0]] += 1
            del after[key]
        if new is not None:
            feed[now, in_bits([new], names)[0]] += 1
            after[key] = new
    terms: dict[str, Any] = {"actions": drawn.counts(), "bounds": drawn.bounds(), "from_version_exclusive": 1}
    assert reason_for_spark(open_table(table), article, drawn.counts(), drawn.bounds()) is None
    commit = merge_without_spark(lambda: merged, table, article, transaction=transaction(1), **terms)
    assert commit is not None, seed
    assert (commit.version, commit.mark, commit.txns) == (2, transaction(1).mark, {"mergerepl-test": 1})
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert Counter(in_bits(found, names)) == Counter(in_bits(list(after.values()), names)), seed
    kinds_of = Counter(kind for kind, _ in feed.elements())
    assert commit.merged_rows == tuple(kinds_of[each] for each in ("insert", "update_postimage", "delete")), (
        seed
    )
    assert commit.data_change is bool(feed)
    if feed:
        read = pa.table(DeltaTable(str(table)).load_cdf(2, 2).read_all()).to_pylist()
        found = Counter(zip((row["_change_type"] for row in read), in_bits(read, names), strict=True))
        assert found == feed, seed
    # A second run finds it done.
    assert merge_without_spark(lambda: merged, table, article, transaction=transaction(1), **terms) == commit
    assert head_version(table) == 2


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(40, 1040), marks=pytest.mark.slow, id="1000"), range(40)]
)
def test_the_table_and_its_feed_are_what_the_rows_say(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        check(tmp_path / str(seed), seed)


ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "note": ["a", "b", None]})
ARTICLE = PublishedArticle(
    *("p", "pubid", "orders", "artid", 1, "orders", ("id",), ("id", "note"), ("bigint", "string")),
    *(False, "row", "priority", "", False),
)
BOUNDS = {"c0": ("1", "9")}


def one_update(note: str = "new") -> SmallRows:
    rows = pa.table({"c0": pa.array([1], pa.int64()), "c1": [note], ACTION: ["update"]})
    return SmallRows(rows, {"c0": "bigint", "c1": "string"})


def merge(rows_of: Callable[[], SmallRows], table: Path, **more: Any) -> Any:
    terms: dict[str, Any] = {"actions": {"update": 1}, "bounds": BOUNDS, "from_version_exclusive": 0}
    return merge_without_spark(rows_of, table, ARTICLE, **{**terms, "transaction": transaction(1), **more})


def notes(table: Path) -> dict[int, str | None]:
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return {row["id"]: row["note"] for row in rows}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    return tmp_path / "t"


def with_field(state: TableState, **changed: Any) -> TableState:
    """Return the state of a table whose column `note` is another one."""
    schema = json.loads(state.metadata.schema_json)
    schema["fields"][1] |= changed
    return replace(state, metadata=replace(state.metadata, schema_json=json.dumps(schema)))


def with_properties(state: TableState, **stated: str) -> TableState:
    return replace(state, metadata=replace(state.metadata, configuration=stated))


MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
REFUSED: dict[str, tuple[Callable[[TableState], TableState], str]] = {
    "deletion vectors": (lambda t: replace(t, features=frozenset({"deletionVectors"})), "deletionVectors"),
    "row tracking": (lambda t: replace(t, features=frozenset({"rowTracking", "appendOnly"})), "rowTracking"),
    "an unknown feature": (lambda t: replace(t, features=frozenset({"later"})), "later"),
    "column mapping as of old": (lambda t: replace(t, features=frozenset(), writer_version=5), "5"),
    "a CHECK": (lambda t: with_properties(t, **{"delta.constraints.c": "id > 0"}), "CHECK"),
    "char(n)": (lambda t: with_field(t, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(2)"}), "'note'"),
    "generated": (lambda t: with_field(t, metadata={"delta.generationExpression": "id"}), "'note'"),
    "identity": (lambda t: with_field(t, metadata={"delta.identity.start": 1}), "'note'"),
    "a default": (lambda t: with_field(t, metadata={"CURRENT_DEFAULT": "1"}), "'note'"),
    "an invariant": (lambda t: with_field(t, metadata={"delta.invariants": "{}"}), "'note'"),
    "a collation": (lambda t: with_field(t, metadata={"__COLLATIONS": {}}), "'note'"),
    "a map": (lambda t: with_field(t, type=MAP), "'note'"),
    "a variant": (lambda t: with_field(t, type="variant"), "'note'"),
    "another type": (lambda t: with_field(t, type="long"), "not as published"),
    "another name": (lambda t: with_field(t, name="Note"), "'note' is not as published"),
    "an odd name": (lambda t: with_field(t, name="no`te"), "its name"),
    "NOT NULL, left out": (lambda t: with_field(t, name="other", nullable=False), "NOT NULL"),
    "NOT NULL inside": (
        lambda t: with_field(t, type={"type": "array", "elementType": "long", "containsNull": False}),
        "its type",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_with_what_spark_alone_writes_keeps_its_merge(table: Path, case: str) -> None:
    changed, word = REFUSED[case]
    state = open_table(table)
    assert reason_for_spark(state, ARTICLE, {"update": 1}, BOUNDS) is None
    assert word in str(reason_for_spark(changed(state), ARTICLE, {"update": 1}, BOUNDS))


def test_only_few_rows_and_bytes_are_merged_here(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_table(table)
    assert (
        reason_for_spark(state, ARTICLE, {"update": 60_000, "delete": 40_000, "metadata": 9}, BOUNDS) is None
    )
    assert "100000 rows" in str(reason_for_spark(state, ARTICLE, {"update": 60_000, "leave": 40_001}, BOUNDS))
    monkeypatch.setattr(small_writer, "MOST_BYTES_REWRITTEN", 10)
    assert "to rewrite" in str(reason_for_spark(state, ARTICLE, {"update": 1}, BOUNDS))
    # Its file has no such key.
    assert reason_for_spark(state, ARTICLE, {"update": 1}, {"c0": ("7", "9")}) is None


def test_partitions_keep_sparks_merge(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS, partition_by=["note"])
    assert "partitions" in str(reason_for_spark(open_table(tmp_path / "t"), ARTICLE, {"update": 1}, BOUNDS))


def test_files_that_spell_a_column_in_another_case_keep_sparks_merge(tmp_path: Path) -> None:
    """delta-rs would write NULL for it in every row that it copies."""
    (tmp_path / "t").mkdir()
    pq.write_table(
        ROWS.rename_columns([name.upper() for name in ROWS.column_names]), tmp_path / "t" / "odd.parquet"
    )
    convert_to_deltalake(str(tmp_path / "t"))
    state = open_table(tmp_path / "t")
    fields = [{**field, "name": field["name"].lower()} for field in state.fields]
    lower = replace(
        state, metadata=replace(state.metadata, schema_json=json.dumps({"type": "struct", "fields": fields}))
    )
    assert "in another case" in str(reason_for_spark(lower, ARTICLE, {"update": 1}, BOUNDS))


@pytest.mark.parametrize(
    ("terms", "noted", "word"),
    [
        ({"use_deprecated_int96_timestamps": True}, None, "INT96"),
        ({}, {b"org.apache.spark.legacyDateTime": b""}, "another calendar"),
    ],
)
def test_times_that_spark_alone_reads_keep_its_merge(
    tmp_path: Path, terms: dict[str, Any], noted: dict[bytes, bytes] | None, word: str
) -> None:
    rows = ROWS.append_column("at", pa.array([0, 1, 2], pa.timestamp("us", "UTC")))
    folder = tmp_path / "t"
    folder.mkdir()
    pq.write_table(rows.replace_schema_metadata(noted), folder / "part-0.parquet", **terms)
    convert_to_deltalake(str(folder))
    assert word in str(reason_for_spark(open_table(folder), ARTICLE, {"update": 1}, BOUNDS))


def test_texts_that_are_no_utf_8_are_left_to_spark(table: Path) -> None:
    bytes_ = pa.array([b"\xff"], pa.binary())
    text = pa.StringArray.from_buffers(1, *bytes_.buffers()[1:])
    rows = pa.table({"c0": pa.array([1], pa.int64()), "c1": text, ACTION: ["update"]})
    assert merge(lambda: SmallRows(rows, one_update().types), table) is None
    assert head_version(table) == 0


def test_rows_of_another_type_are_left_to_spark(table: Path) -> None:
    assert merge(lambda: replace(one_update(), types={"c0": "bigint", "c1": "int"}), table) is None
    assert head_version(table) == 0


def test_a_commit_that_comes_between_is_never_overwritten(table: Path) -> None:
    """Its rows are in the same file, so that a MERGE of what was read would undo it."""
    users = iter(["first", "second"])

    def rows() -> SmallRows:
        # The table was read; now another writer commits.
        if (note := next(users, None)) is not None:
            DeltaTable(str(table)).update(updates={"note": f"'{note}'"}, predicate="id = 2")
        return one_update()

    commit = merge(rows, table)
    assert commit.version == 3
    assert notes(table) == {1: "new", 2: "second", 3: None}


def test_an_append_that_comes_between_is_read_too(table: Path) -> None:
    """delta-rs alone would let both stand, and the row be there twice."""
    users = iter([1])

    def rows() -> SmallRows:
        for number in users:
            write_deltalake(str(table), pa.table({"id": [number + 3], "note": ["user"]}), mode="append")
        new = pa.table({"c0": pa.array([4], pa.int64()), "c1": ["ours"], ACTION: ["insert"]})
        return SmallRows(new, one_update().types)

    assert merge(rows, table, actions={"insert": 1}).merged_rows == (0, 1, 0)
    assert notes(table) == {1: "a", 2: "b", 3: None, 4: "ours"}


def test_one_who_always_loses_gives_up(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "RETRY_WAIT_S", 0)

    def rows() -> SmallRows:
        write_deltalake(str(table), ROWS.slice(0, 1), mode="append")
        return one_update()

    with pytest.raises(CommitConflictError, match=r"lost 8 commits in a row.*stays staged; run again"):
        merge(rows, table)
    assert head_version(table) == 8


def test_a_transaction_that_is_in_the_table_is_not_written_again(table: Path) -> None:
    first = merge(lambda: one_update("first"), table)
    assert merge(lambda: one_update("again"), table) == first
    # The transaction is there, and its commit before what is looked at: as with Spark's MERGE, it is not to be found.
    with pytest.raises(CommitConflictError, match="is not in the log"):
        merge(lambda: one_update("again"), table, from_version_exclusive=1)
    assert notes(table)[1] == "first"


def test_guids_are_found_in_either_case_and_get_the_text_of_the_row(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"id": ["ABC-1", "abc-2"], "note": ["a", "b"]}), configuration=FEED)
    article = replace(ARTICLE, types=("string", "string"), rowguid_column="id")
    rows = pa.table({"c0": ["abc-1", "ABC-2"], "c1": ["a", None], ACTION: ["update", "delete"]})
    commit = merge_without_spark(
        lambda: SmallRows(rows, {"c0": "string", "c1": "string"}),
        table,
        article,
        actions={"update": 1, "delete": 1},
        bounds={"c0": ("ABC-2", "abc-1")},
        transaction=transaction(1),
        from_version_exclusive=0,
    )
    assert commit is not None
    assert commit.merged_rows == (0, 1, 1)
    assert DeltaTable(str(table)).to_pyarrow_table().to_pylist() == [{"id": "abc-1", "note": "a"}]


def test_bounds_are_stated_where_they_are_true(tmp_path: Path) -> None:
    """Spark takes NaN for the largest value, reads decimals exactly, and texts that are cut as they are."""
    table = tmp_path / "t"
    rows = ROWS.append_column("x", pa.array([1.0, float("nan"), 2.0]))
    rows = rows.append_column("d", pa.array([Decimal("0.1")] * 3, pa.decimal128(38, 1)))
    write_deltalake(str(table), rows, configuration=FEED)
    assert merge(lambda: one_update("\U0001f600" * 50), table) is not None
    text = (table / "_delta_log" / f"{1:020}.json").read_text(encoding="utf-8")
    (stats,) = (json.loads(json.loads(line)["add"]["stats"]) for line in text.splitlines() if '"add"' in line)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"id": 1, "note": "b"}
    assert stats["maxValues"]["id"] == 3
    assert stats["maxValues"]["note"] > "\U0001f600" * 16
    assert stats["nullCount"] == {"id": 0, "note": 1}


def test_a_row_to_insert_is_found_in_the_table(tmp_path: Path) -> None:
    for ids in ([1, 2], [5, 6]):
        write_deltalake(tmp_path, pa.table({"id": ids, "note": ["a", "b"]}), mode="append")
    article = PublishedArticle.of_table("t", ("id",), {"id": "bigint", "note": "string"})

    def rows(**actions: int) -> SmallRows:
        table = {"c0": [*actions.values()], "c1": ["x"] * len(actions), ACTION: [*actions]}
        return SmallRows(pa.table(table), dict(zip(article.fields, article.types, strict=True)))

    found = [small_writer.holds_inserts(each, tmp_path, article) for each in (rows(insert=6), rows(insert=3))]
    assert found == [True, False]
    assert not small_writer.holds_inserts(rows(update=1, delete=2), tmp_path, article)
    write_deltalake(tmp_path, pa.table({"id": [1, 9, 9], "note": ["c", "d", "d"]}), mode="append")
    found = [
        small_writer.holds_twice(each, tmp_path, article)
        for each in (rows(update=1), rows(insert=9), rows(delete=1), rows(update=2, insert=7))
    ]
    assert found == [True, True, False, False]
    # A table whose rows are not those of its files is left to Spark.
    wrong = replace(article, types=("int", "string"))
    with pytest.raises(small_writer.NeedsSparkError, match="not as published"):
        small_writer.holds_inserts(rows(insert=6), tmp_path, wrong)


def test_a_table_with_not_null_columns_is_asked_in_process(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string(), nullable=False)]
    )
    write_deltalake(tmp_path / "t", schema.empty_table())
    rows, choice = [("a", (1, "new")), ("b", (2, None))], EngineChoice(uses_arrow=True, in_process=True)
    with choice.rules():
        changed = frame_of_tuples(None, rows, struct_of("rowguid string, row struct<c0: bigint, c1: string>"))
        broken = broken_rules(choice.for_rules, changed, open_table(tmp_path / "t"), ARTICLE)
        assert broken is not None
        assert [(row["rowguid"], row["rule"]) for row in broken.collect()] == [
            ("b", "NOT NULL of column 'note'")
        ]

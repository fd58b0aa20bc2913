"""Drawn commits of Spark and deltalake over several tables: change rows are the differences between versions, no more.

Each history draws commits, scans of few or many transactions, a second instance, and deaths. What the rows must be follows
from the tables' versions alone, as in `tests/properties/cdc_model.py`.
"""

import contextlib
import os
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mergerepl import cdc, failpoints
from mergerepl.cdc.change_rows import full_mask, mask_bytes
from mergerepl.failpoints import FailpointError
from mergerepl.logreader.positions import read_state
from tests.cdc.databases import add, arrow, check_replay, delete, enabled, entries, merge, rows_seen, update

pytestmark = pytest.mark.spark

TABLES = ("orders", "stock", "events")
KEYLESS = "events"
COLUMNS = ("id", "note", "qty")
POINTS = ("cdc.after_change_table", "cdc.before_gate", "logreader.before_plan", "logreader.after_positions")

keys = st.integers(1, 6)
notes = st.sampled_from(["a", "b", ""])
quantities = st.sampled_from([None, 0, 1])
rows_drawn = st.dictionaries(keys, st.tuples(notes, quantities), max_size=4)
engines = st.sampled_from(["spark", "rs", "rs", "rs"])


@dataclass(frozen=True)
class Step:
    """A commit, a scan or another event."""

    kind: str
    table: str = ""
    engine: str = "rs"
    rows: Any = None
    key: int = 0
    most: int = 1000
    point: str | None = None


commits = st.builds(
    Step,
    st.sampled_from(["put", "put", "update", "delete", "overwrite", "optimize", "restore", "swap"]),
    st.sampled_from(TABLES),
    engines,
    rows_drawn,
    keys,
)
scans = st.builds(
    Step, st.just("scan"), most=st.sampled_from([1, 3, 1000]), point=st.sampled_from([None, None, *POINTS])
)
few = st.builds(
    Step,
    st.sampled_from(["put", "put", "update", "delete", "overwrite", "optimize", "restore"]),
    st.sampled_from(TABLES[:2]),
    st.just("rs"),
    rows_drawn,
    keys,
)


def histories_of(commits: st.SearchStrategy[Step]) -> st.SearchStrategy[Any]:
    """Return parts of commits, and a scan after each."""
    return st.lists(st.lists(commits, min_size=2, max_size=6), min_size=2, max_size=3).flatmap(
        lambda parts: st.tuples(st.just(parts), st.lists(scans, min_size=len(parts), max_size=len(parts)))
    )


def commit(spark: SparkSession, root: Path, step: Step) -> None:
    """Make a commit; some come to none."""
    table, path = root / step.table, f"delta.`{root / step.table}`"
    is_spark = step.engine == "spark"
    values = ", ".join(
        f"({k}L, '{n}', cast({'null' if q is None else q} as int))" for k, (n, q) in step.rows.items()
    )
    match step.kind:
        case "put" if not step.rows:
            return
        case "put" if step.table == KEYLESS and is_spark:
            spark.sql(f"insert into {path} values {values}")
        case "put" if step.table == KEYLESS:
            add(table, step.rows)
        case "put" if is_spark:
            source = f"(select * from values {values} as v(id, note, qty)) s"
            spark.sql(
                f"merge into {path} t using {source} on s.id = t.id "
                "when matched and s.note = '' then delete when matched then update set * when not matched then insert *"
            )
        case "put":
            merge(table, {k: (n or None, q) for k, (n, q) in step.rows.items()})
        case "update" if is_spark:
            spark.sql(f"update {path} set qty = 7 where id <= {step.key}")
        case "update":
            update(table, f"id <= {step.key}", note="'u'")
        case "delete" if is_spark:
            spark.sql(f"delete from {path} where id = {step.key}")
        case "delete":
            delete(table, f"id = {step.key}")
        case "overwrite" if is_spark and step.rows:
            spark.sql(f"insert overwrite {path} values {values}")
        case "overwrite":
            write_deltalake(str(table), arrow(step.rows), mode="overwrite")
        case "optimize":
            DeltaTable(str(table)).optimize.compact()
        case "restore":
            head = DeltaTable(str(table)).version()
            if head > 0:
                DeltaTable(str(table)).restore(max(0, head - 2))
        case "swap":
            spark.sql(f"update {path} set id = case id when 1 then 2 else 1 end where id in (1, 2)")


def expected(
    before: list[tuple], after: list[tuple], *, captured: tuple[int, ...], is_keyed: bool
) -> Counter:
    """Return (operation, mask, captured values) of what one commit did, each as often as it is there."""
    lost, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    n = len(captured)
    found: Counter = Counter()

    def captured_values(row: tuple) -> tuple:
        return tuple(row[i] for i in captured)

    if is_keyed:
        old, now = {row[0]: row for row in lost}, {row[0]: row for row in new}
        for key in old.keys() & now.keys():
            changed = [at for at, i in enumerate(captured, 1) if old[key][i] != now[key][i]]
            if changed:
                mask = mask_bytes(changed, n)
                found.update([(3, mask, *captured_values(old[key])), (4, mask, *captured_values(now[key]))])
            lost[old[key]] = new[now[key]] = 0
    found.update({(1, full_mask(n), *captured_values(row)): count for row, count in (+lost).items()})
    found.update({(2, full_mask(n), *captured_values(row)): count for row, count in (+new).items()})
    return +found


def rows_of(table: Path, version: int) -> list[tuple]:
    return [
        tuple(row.values()) for row in DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist()
    ]


def check(database) -> None:
    """Check all change rows against the versions of their sources, by the gate's versions."""
    sources = read_state(database.log).sources
    at_lsn = {entry.start_lsn: entry for entry in entries(database)}
    for instance in database.instances():
        number = instance.source_object_id
        table = database.root / sources[number].source_path
        captured = tuple(COLUMNS.index(row.column_name) for row in database.captured(instance.object_id))
        by_lsn: dict[bytes, Counter] = {}
        for row in rows_seen(database, instance.capture_instance):
            by_lsn.setdefault(row[0], Counter())[(row[3], row[4], *row[5:-1])] += 1
        for lsn, entry in at_lsn.items():
            of_source = [each for each in entry.commits if each["source_object_id"] == number]
            if not of_source or entry.kind == "begin" or lsn <= instance.start_lsn:
                assert lsn not in by_lsn
                continue
            version = of_source[0]["version"]
            before, after = (rows_of(table, each) for each in (version - 1, version))
            is_keyed = bool(database.key(instance.object_id))
            wanted = expected(before, after, captured=captured, is_keyed=is_keyed)
            assert by_lsn.get(lsn, Counter()) == wanted, (instance.capture_instance, version, entry)
        assert by_lsn.keys() <= at_lsn.keys()


def run(
    spark: SparkSession, folder: Path, history, monkeypatch: pytest.MonkeyPatch, *, has_keyless: bool = True
) -> None:
    root = folder / uuid.uuid4().hex[:12]
    root.mkdir()
    start = {1: ("a", 1), 2: ("b", None)}
    database = enabled(root, dict.fromkeys(TABLES[:2], start))
    if has_keyless:
        # It needs Spark, and with it all tables of a cycle.
        enabled(root, {KEYLESS: start}, index=None)
    parts, scans_drawn = history
    for number, (part, scan) in enumerate(zip(parts, scans_drawn, strict=True)):
        for step in part:
            commit(spark, root, step)
        if number == 1:
            # A second instance begins while commits are unread: they are in it, too.
            cdc.Database(root).enable("orders", name="narrow", columns="qty, id")
        if scan.point is not None:
            monkeypatch.setattr(failpoints, "_passed", {})
            monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{scan.point}=raise")
            with contextlib.suppress(FailpointError):
                cdc.Database(root).capture(maxtrans=scan.most)
            monkeypatch.delenv("MERGEREPL_FAILPOINT")
        cdc.Database(root).capture(maxtrans=scan.most)
        check(database)
    cdc.Database(root).capture(maxscans=1000)
    check(database)
    for row in read_state(database.log).sources.values():
        assert row.position == DeltaTable(str(root / row.source_path)).version()
    if has_keyless:
        cdc.Database(root).disable(KEYLESS)
    cdc.Database(root).disable("orders", name="narrow")
    check_replay(database)


IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"


@settings(max_examples=60 if IS_LONG else 1, phases=[Phase.explicit, Phase.generate])
@given(history=histories_of(commits))
def test_change_rows_are_the_differences_between_versions(spark_and_folder, history) -> None:
    spark, folder, monkeypatch = spark_and_folder
    run(spark, folder, history, monkeypatch)


@settings(max_examples=100 if IS_LONG else 3, phases=[Phase.explicit, Phase.generate])
@given(history=histories_of(few))
def test_change_rows_that_are_made_in_process_are_these_differences(spark_and_folder, history) -> None:
    spark, folder, monkeypatch = spark_and_folder
    run(spark, folder, history, monkeypatch, has_keyless=False)


@pytest.fixture(scope="module")
def spark_and_folder(spark: SparkSession, worker_folder: Path):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield spark, worker_folder, monkeypatch

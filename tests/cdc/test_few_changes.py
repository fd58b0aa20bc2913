"""Few changes are shown, and loaded into a table, in process: as Spark shows and loads them."""

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.cdc import merge_few
from mergerepl.cdc.shown_changes import ShownChanges, first_rows, shown_changes
from mergerepl.delta import engine_choice
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.frames import in_process
from tests.cdc.databases import rows_at
from tests.drawn_tables import TYPES

pytestmark = pytest.mark.spark

HERE = ("tiny", "small", "int", "big", "d9", "d18", "d38", "bool", "text", "bytes", "day", "instant", "local")
FILTERS = {False: ("all", "all update old"), True: ("all", "all with mask", "all with merge")}


class Shop:
    """Captured tables with columns of some types, `orders` with a key and `lines` without, and the commits drawn."""

    def __init__(
        self, root: Path, seed: int, kinds: Sequence[str], tables: Sequence[str] = ("orders",)
    ) -> None:
        self.root, self.draw = root, random.Random(seed)
        self.schema = pa.schema([("id", pa.int64()), *((f"{kind} $", TYPES[kind][0]) for kind in kinds)])
        self.kinds = kinds
        self.tables = tables
        for name in tables:
            properties = {"delta.enableChangeDataFeed": "true"}
            write_deltalake(str(root / name), self.rows(range(6)), configuration=properties)
            cdc.Database(root).enable(name, key="id" if name == "orders" else None)

    def rows(self, keys: Sequence[int]) -> pa.Table:
        rows = [
            [key, *(self.draw.choice([None, *TYPES[kind][1]]) for kind in self.kinds)]
            for key in sorted({*keys})
        ]
        return pa.Table.from_pylist(
            [dict(zip(self.schema.names, row, strict=True)) for row in rows], self.schema
        )

    def change(self, times: int) -> None:
        for _ in range(times):
            keys = self.draw.sample(range(9), 4)
            is_delete = self.draw.random() < 0.3
            for name in self.tables:
                table = DeltaTable(str(self.root / name))
                if is_delete:
                    table.delete(f"id = {keys[0]}")
                elif name == "lines":
                    write_deltalake(table, self.rows(keys), mode="append")
                else:
                    merge = table.merge(self.rows(keys), "s.id = t.id", source_alias="s", target_alias="t")
                    merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def twice(self, key: int) -> None:
        """Give the table with a key two rows of one."""
        write_deltalake(str(self.root / "orders"), self.rows([key]), mode="append")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why Spark showed changes."""
    reasons: list[str] = []
    left = EngineChoice.left_for_spark

    def noted(choice: EngineChoice, error: Any) -> EngineChoice:
        reasons.append(str(error))
        return left(choice, error)

    monkeypatch.setattr(EngineChoice, "left_for_spark", noted)
    return reasons


def both(root: Path, table: str, engines: list[str], **asked: Any) -> ShownChanges:
    """Return what is shown in process, once Spark has shown the same."""
    asked = {"from_": None, "to": None, "row_filter": "all", "net": False, "limit": 1000} | asked
    source = cdc.Database(root).instance(table)
    engines.clear()
    here = shown_changes(source, **asked)
    assert engines == [], asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_choice, "MOST_IN_PROCESS", -1)
        there = shown_changes(source, **asked)
    assert len(engines) == 1, asked
    assert repr(here) == repr(there), asked
    return here


def test_changes_shown_in_process_are_those_of_spark(
    spark: SparkSession, replica_dir: Path, engines: list[str]
) -> None:
    shop = Shop(replica_dir, 5, HERE)
    shop.change(4)
    cdc.Database(replica_dir).capture()
    found = both(replica_dir, "orders", engines, row_filter="all update old")
    assert {row["__$operation"] for row in found.rows} == {1, 2, 3, 4}
    assert found.total == len(found.rows)
    net = both(replica_dir, "orders", engines, net=True, row_filter="all with mask", limit=2)
    assert (len(net.rows), net.total > 2) == (2, True)
    assert "0x" in str(net.rows)
    source = cdc.Database(replica_dir).instance("orders")
    for ends in ((datetime(2100, 1, 1, tzinfo=UTC), None), (None, datetime(2000, 1, 1, tzinfo=UTC))):
        with pytest.raises(cdc.LsnRangeError, match="no transaction lies on that side of a time"):
            shown_changes(source, *ends, "all", net=False, limit=9)


@pytest.mark.parametrize(("kind", "why"), [("real", "a text of type double"), ("struct", "column 'struct")])
def test_values_whose_texts_only_spark_makes_are_left_to_it(replica_dir: Path, kind: str, why: str) -> None:
    Shop(replica_dir, 1, [kind])
    changes = cdc.Database(replica_dir).instance("orders")
    with in_process(), pytest.raises(NeedsSparkError, match=why):
        first_rows(changes.changes(), 9)


def test_keys_whose_changes_do_not_determine_their_rows_are_left_to_spark(replica_dir: Path) -> None:
    shop = Shop(replica_dir, 1, ["int"])
    shop.twice(0)
    shop.twice(0)
    cdc.Database(replica_dir).capture()
    changes = cdc.Database(replica_dir).instance("orders")
    with in_process(), pytest.raises(NeedsSparkError, match="do not determine"):
        changes.net_changes()


@pytest.mark.slow
def test_drawn_changes_shown_in_process_are_those_of_spark(
    spark: SparkSession, replica_dir: Path, engines: list[str]
) -> None:
    for seed in range(5):
        root = replica_dir / str(seed)
        root.mkdir()
        draw = random.Random(seed)
        shop = Shop(root, seed, draw.sample(HERE, draw.randint(1, 10)), ("orders", "lines"))
        for _ in range(3):
            shop.change(draw.randint(1, 3))
            cdc.Database(root).capture()
        for table, net in (("orders", False), ("orders", True), ("lines", False)):
            for row_filter in FILTERS[net]:
                shown = both(root, table, engines, row_filter=row_filter, net=net)
                lsns = sorted({row["__$start_lsn"] for row in shown.rows})
                window = {"from_": draw.choice([None, *lsns[:1]]), "to": draw.choice([None, *lsns])}
                both(root, table, engines, row_filter=row_filter, net=net, limit=draw.randint(1, 9), **window)


FLOATS = ("single", "real")


@pytest.mark.slow
def test_drawn_changes_loaded_in_process_leave_the_table_that_spark_leaves(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for seed in range(3):
        draw, root = random.Random(seed), replica_dir / str(seed)
        root.mkdir()
        kinds = [*draw.sample(HERE, draw.randint(1, 6)), *draw.sample(FLOATS, draw.randint(0, 2))]
        shop = Shop(root, seed, kinds)
        targets = [root / "lake" / name for name in ("here", "there")]
        loads = [partial(cdc.Database(root).instance("orders").load, each, consumer="c") for each in targets]
        for load in loads:
            load()
        for turn in range(3):
            shop.change(draw.randint(1, 3))
            cdc.Database(root).capture()
            if turn:
                # From here on another writer shares the targets.
                gone = draw.randrange(9)
                for each in targets:
                    DeltaTable(str(each)).delete(f"id = {gone}")
            caplog.clear()
            here = loads[0]()
            assert "Spark" not in caplog.text
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine_choice, "MOST_IN_PROCESS", -1)
                patch.setattr(merge_few, "holds_inserts", lambda *_: True)
                there = loads[1]()
            assert "Spark" in caplog.text
            assert here.upserted + here.deleted > 0
            assert replace(here, target="") == replace(there, target="")
            assert repr(sorted(rows_at(targets[0]).items())) == repr(sorted(rows_at(targets[1]).items()))
            assert turn or rows_at(targets[0]).keys() == rows_at(root / "orders").keys()


@pytest.mark.slow
def test_a_key_that_is_there_twice_just_before_the_merge_is_refused(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(replica_dir, 1, ["int"])
    target = replica_dir / "lake" / "orders"
    source = cdc.Database(replica_dir).instance("orders")
    source.load(target, consumer="c")
    shop.change(2)
    cdc.Database(replica_dir).capture()
    # Another writer's commit, so that keys are counted; then one after they were.
    DeltaTable(str(target)).delete("id = 5")
    copy = DeltaTable(str(target)).to_pyarrow_table()
    merge, left = merge_few.merge_by_delta_rs, [copy]

    def beside(*given: Any, **terms: Any) -> None:
        while left:
            write_deltalake(str(target), left.pop(), mode="append")
        merge(*given, **terms)

    monkeypatch.setattr(merge_few, "merge_by_delta_rs", beside)
    with pytest.raises(cdc.CdcError, match="more than one row of a key"):
        source.load(target, consumer="c")
    assert DeltaTable(str(target)).to_pyarrow_table().num_rows == 2 * copy.num_rows

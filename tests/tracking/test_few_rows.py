"""Few rows of a transaction are computed in process: as Spark computes them, whatever their types."""

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField

import mergerepl
from mergerepl.delta import engine_choice
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.frames import in_process
from mergerepl.frames.values import type_of
from mergerepl.spark import session as engine
from mergerepl.systables.tracking import DELETED_TIME
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.few_rows import few_values
from mergerepl.tracking.transactions import Transaction
from tests.drawn_tables import KEYS, TYPES
from tests.tracking.databases import commit_sequence, rows, tracked

CONTEXTS = (None, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
PLAIN = sorted({*TYPES} - {"reals", "texts", "lists", "struct", "structs"})
GUIDS = [str(uuid.UUID(int=number * 10**37)) for number in range(1, 13)]
Row = dict[str, Any]


class Shop:
    """Two folders with one tracked table: what is done in both comes to the same, though Spark computes it in one."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.kinds = self.draw.sample(PLAIN, self.draw.randint(2, 6))
        self.is_guid = self.draw.random() < 0.25
        self.keys = ["guid"] if self.is_guid else self.draw.sample(sorted(KEYS), self.draw.choice([1, 1, 2]))
        values = {f"{kind}$": TYPES[kind][0] for kind in self.kinds}
        keys = {f"k_{kind}": pa.string() if self.is_guid else KEYS[kind][0] for kind in self.keys}
        self.schema = pa.schema(keys | values)
        self.folders = {"here": root / "here", "spark": root / "spark"}
        first = pa.Table.from_pylist([self.row(number) for number in range(6)], self.schema)
        options = self.draw.choice(["all", "all", "insert,delete", "update,delete", "insert,update"])
        key: dict[str, Any] = {"rowguid": "k_guid"} if self.is_guid else {"key": [*keys]}
        for folder in self.folders.values():
            write_deltalake(str(folder / "orders"), first)
            mergerepl.ChangeTracking(folder).enable("orders", track=options, **key)

    def row(self, number: int, columns: Sequence[str] | None = None) -> Row:
        names = self.kinds if columns is None else columns
        values = {f"{kind}$": self.value(kind) for kind in names}
        return {**self.key(number), **values}

    def key(self, number: int) -> Row:
        if self.is_guid:
            return {"k_guid": self.draw.choice([str.upper, str.lower])(GUIDS[number])}
        return {f"k_{kind}": python(KEYS[kind][1](number), KEYS[kind][0]) for kind in self.keys}

    def value(self, kind: str) -> Any:
        return python(self.draw.choice([None, *TYPES[kind][1]]), TYPES[kind][0])

    def operations(self) -> list[Callable[[Transaction], None]]:
        return [self.operation() for _ in range(self.draw.choice([1, 1, 2, 3]))]

    def operation(self) -> Callable[[Transaction], None]:
        numbers = self.draw.sample(range(12), self.draw.randint(0, 4))
        some = self.draw.sample(self.kinds, self.draw.randint(1, len(self.kinds)))
        match self.draw.choice(["insert", "upsert", "upsert", "delete", "delete", "twice"]):
            case "insert":
                given = [self.row(number) for number in numbers[:1]]
                return lambda tx: tx.insert("orders", given)
            case "delete":
                gone = [self.key(number) for number in numbers]
                return lambda tx: tx.delete("orders", rows=gone)
            case "twice" if self.draw.random() < 0.3:
                given = [self.row(number, some) for number in [*numbers, *numbers[:1]]]
                return lambda tx: tx.upsert("orders", given)
        given = [self.row(number, some) for number in numbers]
        return lambda tx: tx.upsert("orders", given)

    def both(self, engines: list[str]) -> None:
        """Run one transaction in both folders; its outcome, or its error, is the same."""
        operations, context = self.operations(), self.draw.choice(CONTEXTS)
        found = []
        for name, folder in self.folders.items():
            engines.clear()
            with pytest.MonkeyPatch.context() if name == "spark" else nullcontext() as patch:
                if patch is not None:
                    patch.setattr(engine_choice, "MOST_IN_PROCESS", -1)
                tx = mergerepl.ChangeTracking(folder).begin(context)
                try:
                    for operation in operations:
                        operation(tx)
                    found.append(repr(tx.commit()))
                except TrackingError as error:
                    found.append(str(error))
            assert bool(engines) is (name == "spark"), (name, engines)
        assert found[0] == found[1]

    def stored(self, folder: Path) -> Mapping[str, str]:
        """Return what a folder holds; times of deletes apart."""
        tracking = mergerepl.ChangeTracking(folder)
        database = tracking.session.database
        tables = {"orders": folder / "orders", "gone": Path(str(database.deleted_rows))}
        held = {
            name: sorted(repr({k: v for k, v in row.items() if k != DELETED_TIME}) for row in values(table))
            for name, table in tables.items()
        }
        return {name: repr(found) for name, found in held.items()} | {
            "sequence": repr(commit_sequence(tracking))
        }

    def check(self) -> None:
        here, spark = (self.stored(folder) for folder in self.folders.values())
        assert here == spark


def python(value: Any, type_: pa.DataType) -> Any:
    """Return a value as Python gives it."""
    return pa.array([value], type_).to_pylist()[0]


def values(table: Path) -> list[Row]:
    found: list[Row] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why Spark computed a step."""
    reasons: list[str] = []
    left = EngineChoice.left_for_spark

    def noted(choice: EngineChoice, error: Any) -> EngineChoice:
        reasons.append(str(error))
        return left(choice, error)

    monkeypatch.setattr(EngineChoice, "left_for_spark", noted)
    return reasons


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_drawn_transactions_in_process_are_those_of_spark(
    spark: SparkSession, replica_dir: Path, engines: list[str]
) -> None:
    for seed in range(12):
        shop = Shop(replica_dir / str(seed), 100 + seed)
        for _ in range(8):
            shop.both(engines)
        shop.check()


@pytest.mark.spark
def test_few_given_rows_start_no_java(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = tracked(replica_dir, {1: "old", 2: "old"})
    with monkeypatch.context() as patch:
        patch.setattr(engine, "session", lambda **_: pytest.fail("Spark is used"))
        with tracking.transaction() as tx:
            tx.upsert("orders", rows((1, "new"), (3, "new")))
            tx.delete("orders", rows=[{"id": 2}])
            tx.upsert("orders", rows((3, "newer")))
            tx.insert("orders", rows((2, "again"), (4, "passing")))
            tx.delete("orders", rows=[{"id": 4}])
        patch.setattr(engine_choice, "MOST_BYTES", 10)
        large = tracking.begin()
        large.upsert("orders", rows((5, "large")))
        with pytest.raises(pytest.fail.Exception):
            large.delete("orders", rows=[{"id": 5}])
    assert tx.result is not None
    assert dict(tx.result.changes) == {"orders": 3}
    assert {row["id"]: row["note"] for row in values(replica_dir / "orders")} == {
        1: "new",
        2: "again",
        3: "newer",
    }


REFUSED: dict[str, tuple[str, Any]] = {
    "a number as text": ("string", 5),
    "an integer as double": ("double", 1),
    "text that is no UTF-8": ("string", "\ud800"),
    "too large": ("int", 2**31),
    "a decimal that is rounded": ("decimal(5,2)", Decimal("1.234")),
    "no number": ("decimal(5,2)", Decimal("NaN")),
    "a time of this machine": ("timestamp", datetime(2024, 1, 1)),
    "a time with a zone": ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
    "a list": ("array<int>", [1]),
}


@pytest.mark.parametrize(("type_", "value"), REFUSED.values(), ids=[*REFUSED])
def test_values_that_spark_may_take_otherwise_are_left_to_it(type_: str, value: Any) -> None:
    field = StructField("v", type_of(type_))
    with in_process(), pytest.raises(NeedsSparkError, match="given"):
        few_values([(value,)], [field])

"""Tables of odd types and rows that are merged into them, drawn by chance."""

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mergerepl.changes import PUBLISHER_ACTION, ROW, ROWGUID
from mergerepl.delta.commits import Commit
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.merge import merge_rows
from mergerepl.delta.small_writer import SmallRows, reason_for_spark
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.types import ddl_of
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.staged_rows import read_staged, small_rows

Values = list[Any]
_EPOCH = dt.datetime(1970, 1, 1)


def _micros(*parts: int) -> int:
    return (dt.datetime(*parts) - _EPOCH) // dt.timedelta(microseconds=1)  # type: ignore[arg-type]


TIMES: Values = [
    *(_micros(9999, 12, 31, 23, 59, 59, 999999), _micros(1, 1, 1), _micros(1582, 10, 4), -1, 999, 0),
    *(
        _micros(1677, 9, 21, 0, 12, 43),
        _micros(2262, 4, 11, 23, 47, 16, 854776),
        _micros(2024, 2, 29, 1, 2, 3, 4567),
    ),
]
DAYS: Values = [time // 86_400_000_000 for time in TIMES]
TEXTS: Values = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "é" * 80,
    "z" * 100,
    "\x00",
    "\U0001f600",
    "'; drop",
    "NULL",
    "tab\t\n",
    "`b`",
]
REALS: Values = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, 5e-324, 1.7976931348623157e308]
SINGLES: Values = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, 1.401298464324817e-45]
BYTES: Values = [b"", b"\x00", b"\xff\xfe", b"a", b"x" * 90]
INNER = pa.struct([("p", pa.float64()), ("q_q", pa.list_(pa.string())), ("R", pa.timestamp("us", "UTC"))])

TYPES: dict[str, tuple[pa.DataType, Values]] = {
    "tiny": (pa.int8(), [127, -128, 0]),
    "small": (pa.int16(), [32767, -32768, 0]),
    "int": (pa.int32(), [2**31 - 1, -(2**31), 0]),
    "big": (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1, 0]),
    "single": (pa.float32(), SINGLES),
    "real": (pa.float64(), REALS),
    "d9": (pa.decimal128(9, 2), [Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.00")]),
    "d18": (pa.decimal128(18, 4), [Decimal("99999999999999.9999"), Decimal("-0.0001")]),
    "d38": (pa.decimal128(38, 10), [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")]),
    "bool": (pa.bool_(), [True, False]),
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), BYTES),
    "day": (pa.date32(), DAYS),
    "instant": (pa.timestamp("us", "UTC"), TIMES),
    "local": (pa.timestamp("us"), TIMES),
    "reals": (pa.list_(pa.float64()), [[], [None], REALS, [0.0], [-0.0]]),
    "texts": (pa.list_(pa.string()), [[], [None, ""], TEXTS]),
    "lists": (pa.list_(pa.list_(pa.int32())), [[], [None, [], [1, None]]]),
    "struct": (
        INNER,
        [
            {"p": math.nan, "q_q": [None], "R": 5},
            {"p": -0.0, "q_q": [], "R": None},
            {"p": 0.0, "q_q": [], "R": None},
            {"p": None, "q_q": None, "R": None},
        ],
    ),
    "structs": (pa.list_(pa.struct([("a", pa.int64())])), [[], [None, {"a": None}, {"a": 2}]]),
}
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "tiny": (pa.int8(), lambda i: i - 20),
    "int": (pa.int32(), lambda i: (i - 20) * 10_000_000),
    "big": (pa.int64(), lambda i: (i - 20) * 10**16),
    "text": (pa.string(), lambda i: ["é", "A", "", "zz"][i % 4] + str(i)),
    "day": (pa.date32(), lambda i: (i - 20) * 20_000),
}
NAMES = ("v$w", "a&b", "Ünit", "select", "x-y", "UPPER", "1st", "from", "c0", "action")


class Drawn:
    """One table and the rows that are merged into it, drawn by chance."""

    def __init__(self, seed: int) -> None:
        """Draw."""
        self.random = random.Random(seed)
        chance = self.random
        self.keys = chance.sample(sorted(KEYS), chance.choice([1, 1, 2]))
        names = chance.sample(NAMES, chance.randint(1, 5))
        self.values = {name: chance.choice(sorted(TYPES)) for name in names}
        # One column of the table may be none of the article's.
        self.left_out = chance.choice([None, chance.choice(sorted(TYPES))])
        self.there = chance.sample(range(40), chance.randint(0, 30))
        self.files = chance.randint(1, 3)
        changed = chance.sample(range(45), chance.randint(1, 20))
        self.actions = {
            i: chance.choice(["insert", "update", "delete", "leave", "metadata"]) for i in changed
        }
        self.rows = {i: self.row() for i in {*self.there, *changed}}

    def row(self) -> list[Any]:
        return [self.value(kind) for kind in self.values.values()]

    def value(self, kind: str) -> Any:
        return self.random.choice([None, *TYPES[kind][1]])

    @property
    def columns(self) -> list[tuple[str, pa.DataType]]:
        keys = [(f"key_{kind}", KEYS[kind][0]) for kind in self.keys]
        return [*keys, *((name, TYPES[kind][0]) for name, kind in self.values.items())]

    def key(self, i: int) -> list[Any]:
        return [KEYS[kind][1](i) for kind in self.keys]

    def table(self) -> pa.Table:
        rows = [[*self.key(i), *self.rows[i]] for i in self.there]
        columns = dict(zip((name for name, _ in self.columns), zip(*rows, strict=True), strict=False))
        types = self.columns
        if self.left_out is not None:
            types = [*types, ("left_out", TYPES[self.left_out][0])]
            columns["left_out"] = tuple(self.value(self.left_out) for _ in rows)
        return pa.table(
            {name: pa.array(columns.get(name, ()), type_) for name, type_ in types}, pa.schema(types)
        )

    def staged(self) -> pa.Table:
        """RESOLVED rows, as far as a MERGE reads them: half of them as they are in the table already."""
        fields = [(f"c{i}", type_) for i, (_, type_) in enumerate(self.columns)]
        rows = []
        for i in self.actions:
            old = self.rows[i]
            new = [
                each if self.random.random() < 0.5 else drawn
                for each, drawn in zip(old, self.row(), strict=True)
            ]
            values = [*self.key(i), *(old if self.random.random() < 0.3 else new)]
            rows.append(dict(zip((name for name, _ in fields), values, strict=True)))
        return pa.table(
            {
                ROWGUID: pa.array([str(i) for i in self.actions]),
                PUBLISHER_ACTION: pa.array(list(self.actions.values())),
                ROW: pa.array(rows, pa.struct(fields)),
            }
        )

    def article(self, table: Path) -> PublishedArticle:
        names = tuple(name for name, _ in self.columns)
        state = open_table(table)
        types = tuple(ddl_of(field["type"]) for field in state.fields if field["name"] in names)
        return PublishedArticle(
            *(
                "p",
                "pubid",
                "orders",
                "artid",
                1,
                "orders",
                tuple(f"key_{kind}" for kind in self.keys),
                names,
                types,
            ),
            *(False, "row", "priority", "", False),
        )

    def bounds(self) -> dict[str, tuple[str, str]]:
        changed = [KEYS[self.keys[0]][1](i) for i in self.actions]
        is_number = pa.types.is_integer(KEYS[self.keys[0]][0])
        return {"c0": (str(min(changed)), str(max(changed)))} if is_number else {}

    def counts(self) -> Mapping[str, int]:
        return Counter(self.actions.values())


def transaction(version: int) -> Transaction:
    return Transaction("mergerepl-test", version, CommitMark("session", f"apply:publisher:1:{version}", "me"))


def write(spark: SparkSession, rows: pa.Table, files: int, table: Path, *, by_spark: bool) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    if not by_spark:
        write_deltalake(str(table), rows, configuration=properties)
        return
    frame = spark.createDataFrame(rows).repartition(files)
    writer = frame.write.format("delta")
    writer.option("delta.enableChangeDataFeed", "true").save(str(table))


class SparkNeededError(Exception):
    """A merge went on to Spark."""


def no_spark() -> SparkSession:
    raise SparkNeededError


def merge_without_spark(
    rows_of: Callable[[], SmallRows], table: Path, article: PublishedArticle, **terms: Any
) -> Commit | None:
    """Merge rows by delta-rs; None if Spark is to do it."""
    try:
        return merge_rows(
            no_spark, lambda session: session.frame(), table, article, action="", small_rows=rows_of, **terms
        )
    except SparkNeededError:
        return None


def merged(
    spark: SparkSession, drawn: Drawn, staged: Path, table: Path, *, small: bool, version: int = 1
) -> Commit | None:
    article = drawn.article(table)
    actions = drawn.counts()
    terms: dict[str, Any] = {
        "actions": actions,
        "bounds": drawn.bounds(),
        "transaction": transaction(version),
        "from_version_exclusive": 0,
    }
    if small:
        assert reason_for_spark(open_table(table), article, actions, drawn.bounds()) is None
        return merge_without_spark(lambda: small_rows(staged, PUBLISHER_ACTION), table, article, **terms)
    return merge_rows(
        lambda: spark,
        lambda session: read_staged(session, staged),
        table,
        article,
        action=PUBLISHER_ACTION,
        **terms,
    )

"""Each function comes to the same on both executors, over drawn values; all functions in one Spark job."""

import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame as SparkFrame
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from mergerepl import frames
from mergerepl.delta.types import json_of
from mergerepl.frames import Column, DataFrame, F, NeedsSparkError, NotInProcessError, dataframe, trees
from mergerepl.frames.functions import FUNCTIONS, function
from mergerepl.frames.values import exact, from_arrow, type_of
from mergerepl.spark.in_memory import collected, frame_of
from tests.executors import struct_of
from tests.interpreted import interpreted

pytestmark = pytest.mark.spark

ROWS = 400
_CONTEXT = Context(prec=60)


class Draw:
    """Draws values of a type: NULL, the smallest, the largest, and odd ones are frequent."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def whole(self, bits: int) -> int:
        top = (1 << bits - 1) - 1
        return self.chance.choice([0, 1, 2, 3, -1, -2, top, -top - 1, self.chance.randint(-top - 1, top)])

    def small(self) -> int:
        return self.chance.randint(-2, 4)

    def double(self) -> float:
        odd = (
            0.0,
            -0.0,
            float("nan"),
            float("inf"),
            float("-inf"),
            1.5,
            -1.5,
            4.9e-324,
            1.7976931348623157e308,
            1.0,
        )
        return self.chance.choice(odd)

    def text(self) -> bytes:
        odd = (b"", b"a", b"b", b"A", b"ab", b" ", b"\xff", b"\xc3", b"\xa9", "é".encode(), "ß".encode())
        odd += ("\U0001f600x".encode(), "e\u0301".encode(), "\uffff".encode(), b"a\x00")
        return self.chance.choice(odd)

    def binary(self) -> bytes:
        return self.chance.choice((b"", b"\x00", b"\xff", b"\xff\x00", b"ab"))

    def decimal(self, precision: int, scale: int) -> Decimal:
        top = 10**precision - 1
        number = self.chance.choice((0, 1, -1, top, -top, self.chance.randint(-top, top)))
        return Decimal(number).scaleb(-scale, context=_CONTEXT)

    def day(self) -> int:
        return self.chance.choice((-719162, 2932896, 0, -1, self.chance.randint(-719162, 2932896)))

    def moment(self) -> int:
        first, last = -719162 * 86_400_000_000, 2932897 * 86_400_000_000 - 1
        return self.chance.choice((first, last, 0, -1, 500_000, self.chance.randint(first, last)))

    def truth(self) -> bool:
        return self.chance.choice((True, False))

    def array(self, item: Callable[[], Any]) -> list[Any]:
        return [self.maybe(item) for _ in range(self.chance.choice((0, 1, 1, 2, 3)))]

    def full(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.chance.choice((0, 1, 2, 3)))]

    def map(self, keys: Sequence[Any], item: Callable[[], Any]) -> list[tuple[Any, Any]]:
        chosen = self.chance.sample(keys, self.chance.randint(0, min(3, len(keys))))
        return [(key, self.maybe(item)) for key in chosen]

    def maybe(self, item: Callable[[], Any]) -> Any:
        return None if self.chance.random() < 0.2 else item()


def drawn_rows(seed: int, rows: int) -> pa.Table:
    """Return drawn rows; a column with two letters has the same kind of values as that with the first one."""
    draw = Draw(seed)
    entry = pa.struct({"nickname": pa.int32(), "version": pa.int64()})
    item = pa.struct({"a": pa.int32(), "b": pa.string()})

    def colv() -> dict[str, int]:
        return {"nickname": draw.small(), "version": draw.small()}

    def struct() -> dict[str, Any]:
        return {"a": draw.maybe(draw.small), "b": draw.maybe(draw.small_text)}

    draw.small_text = lambda: draw.chance.choice(("", "a", "b"))  # type: ignore[attr-defined]
    kinds: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
        "g": (pa.int32(), draw.small),
        "i": (pa.int32(), lambda: draw.whole(32)),
        "s": (pa.int32(), draw.small),
        "l": (pa.int64(), lambda: draw.whole(64)),
        "y": (pa.int8(), lambda: draw.whole(8)),
        "d": (pa.float64(), draw.double),
        "f": (
            pa.float32(),
            lambda: draw.chance.choice((0.0, -0.0, float("nan"), 0.1, 1.5, 3.4028234663852886e38)),
        ),
        "t": (pa.string(), draw.text),
        "b": (pa.binary(), draw.binary),
        "z": (pa.bool_(), draw.truth),
        "c": (pa.decimal128(38, 18), lambda: draw.decimal(38, 18)),
        "h": (pa.decimal128(38, 0), lambda: draw.decimal(38, 0)),
        "p": (pa.decimal128(5, 2), lambda: draw.decimal(5, 2)),
        "day": (pa.date32(), draw.day),
        "ts": (pa.timestamp("us", "UTC"), draw.moment),
        "ntz": (pa.timestamp("us"), draw.moment),
        "ai": (pa.list_(pa.int32()), lambda: draw.array(draw.small)),
        "as": (pa.list_(pa.string()), lambda: draw.array(draw.small_text)),  # type: ignore[attr-defined]
        "ad": (pa.list_(pa.float64()), lambda: draw.array(draw.double)),
        "st": (item, struct),
        "ast": (pa.list_(item), lambda: draw.array(struct)),
        "m": (pa.map_(pa.int32(), pa.int64()), lambda: draw.map(range(-1, 4), draw.small)),
        "cv": (pa.map_(pa.string(), entry), lambda: draw.map(("a", "b", "c"), colv)),
    }
    columns_: dict[str, Any] = {}
    for name, (kind, item_) in kinds.items():
        for copy in (name, f"{name}2"):
            values = [draw.maybe(item_) for _ in range(rows)]
            stored = pa.binary() if pa.types.is_string(kind) else pa.int32() if kind == pa.date32() else kind
            if pa.types.is_timestamp(kind):
                stored = pa.int64()
            array = pa.array(values, stored)
            columns_[copy] = array if stored == kind else array.view(kind)
    return pa.table(columns_)


def col(name: str) -> Column:
    return F.col(name)


KINDS = ("i", "l", "y", "d", "f", "t", "b", "z", "c", "p", "day", "ts", "ntz", "ai", "as", "ad", "st", "ast")
ORDERED = ("i", "l", "d", "t", "b", "z", "c", "day", "ts", "ai", "ad", "st")

Expressions = Callable[[], Mapping[str, Column]]


def comparisons() -> dict[str, Column]:
    pairs = [(name, f"{name}2") for name in KINDS]
    pairs += [("i", "l"), ("y", "l"), ("i", "d"), ("p", "i"), ("d", "f")]
    found = {}
    for one, other in pairs:
        a, b = col(one), col(other)
        found |= {
            f"{one} == {other}": a == b,
            f"{one} != {other}": a != b,
            f"{one} <=> {other}": a.eqNullSafe(b),
        }
        found |= {f"{one} < {other}": a < b, f"{one} >= {other}": a >= b, f"{one} > {other}": a > b}
        found |= {f"{one} <= {other}": a <= b}
    return found


def logic() -> dict[str, Column]:
    one, other = col("z"), col("z2")
    return {
        "and": one & other,
        "or": one | other,
        "not": ~one,
        "and true": one & F.lit(True),
        "or false": one | F.lit(False),
        "isNull": col("d").isNull(),
        "isNotNull": col("t").isNotNull(),
        "isin": col("s").isin(1, 2),
        "isin with NULL": col("s").isin(1, None, 2),
        "isin list": col("t").isin(["a", "b"]),
        "rlike": col("t").rlike("^[a-z]+( [a-z]+)?$"),
        "startswith": col("t").startswith("a"),
        "startswith column": col("t").startswith(col("t2")),
        "when": F.when(one, 1).when(other, F.lit(2).cast("bigint")),
        "when otherwise": F.when(one, col("s")).otherwise(col("l")),
        "when NULL": F.when(one, None).otherwise(col("t")),
        "when doubles": F.when(one, 1).otherwise(col("d")),
        "when decimals": F.when(one, col("p")).otherwise(0),
    }


def arithmetic() -> dict[str, Column]:
    wide, other = col("i").cast("bigint"), col("i2")
    return {
        "sum": wide + other,
        "difference": wide - other,
        "product": wide * other,
        "small": col("s") + 1,
        "doubles": col("d") + col("d2"),
        "doubles minus": col("d") - col("f"),
        "floats": col("f") * col("f2"),
        "half": col("s") / 2,
        "half double": col("d") / 2 + col("d2") / 2,
        "decimals": col("p") + col("p2"),
        "decimals times": col("p") * col("p2"),
        "decimals and int": col("p") - F.coalesce(col("p2"), F.lit(0)),
        "wide": col("i").cast("decimal(20,0)") + (col("i2").cast("decimal(20,0)") - F.lit(0)),
        "wide half": col("l").cast("decimal(20,0)") / 2 + col("l2").cast("decimal(20,0)") / 2,
        "half of decimals": (col("p") + col("p2")) * F.lit("0.5").cast("decimal(1,1)"),
        "xor": col("l").bitwiseXOR(col("l2")),
        "xor int": F.when(col("z"), col("l")).otherwise(0).bitwiseXOR(col("l2")),
    }


def casts() -> dict[str, Column]:
    asked = {
        "i": ("bigint", "double", "float", "string", "decimal(20,0)", "boolean"),
        "l": ("decimal(20,0)", "double", "string"),
        "y": ("int", "string", "decimal(5,2)"),
        "s": ("tinyint", "boolean"),
        "z": ("int", "string", "bigint"),
        "t": ("binary",),
        "b": ("string",),
        "f": ("double",),
        "c": ("decimal(38,18)", "double"),
        "p": ("double", "decimal(10,1)", "decimal(9,4)", "int", "decimal(4,0)"),
        "ai": ("array<bigint>", "array<string>"),
        "as": ("array<binary>",),
        "st": ("struct<x:bigint,y:string>", "struct<a:string,b:binary>"),
        "m": ("map<bigint,string>",),
        "day": ("string", "timestamp_ntz"),
    }
    found = {f"{name} as {type_}": col(name).cast(type_) for name, types in asked.items() for type_ in types}
    tried = {
        "l": ("int", "tinyint", "decimal(5,0)"),
        "i": ("tinyint", "decimal(5,2)"),
        "d": ("float", "int", "bigint"),
        "c": ("int", "bigint", "tinyint", "decimal(20,2)"),
        "h": ("decimal(38,18)", "bigint"),
        "p": ("tinyint", "decimal(2,2)", "string"),
        "ntz": ("string",),
        "h2": ("string",),
    }
    return found | {
        f"{name} tried as {type_}": col(name).try_cast(type_)
        for name, types in tried.items()
        for type_ in types
    }


def structures() -> dict[str, Column]:
    return {
        "coalesce": F.coalesce("i", "l", F.lit(0)),
        "coalesce d": F.coalesce("d", F.lit(0)),
        "greatest": F.greatest("i", "l", "s"),
        "greatest d": F.greatest("d", "d2"),
        "greatest null": F.greatest("s", F.lit(None).cast("int")),
        "struct": F.struct("i", F.col("t").alias("u"), "st.a", F.lit(1)),
        "field": col("st.a"),
        "getField": col("st").getField("b"),
        "fields of array": col("ast").getField("b"),
        "array": F.array("i", "l"),
        "create_map": F.create_map(F.lit(1), col("t"), F.lit(2), col("t2")),
        "empty map": F.create_map().cast("map<int,bigint>"),
        "empty array": F.array().cast("array<string>"),
        "array_contains": F.array_contains("ai", 1),
        "array_contains d": F.array_contains("ad", col("d")),
        "array_union": F.array_union("ai", "ai2"),
        "array_union d": F.array_union("ad", "ad2"),
        "array_except": F.array_except("ai", "ai2"),
        "array_intersect": F.array_intersect("as", "as2"),
        "array_except d": F.array_except("ad", "ad2"),
        "array_intersect d": F.array_intersect("ad", "ad2"),
        "array_union st": F.array_union("ast", "ast2"),
        "arrays_overlap": F.arrays_overlap("ai", "ai2"),
        "arrays_overlap d": F.arrays_overlap("ad", "ad2"),
        "arrays_zip": F.arrays_zip(F.col("ai").alias("x"), F.col("as").alias("y")),
        "array_append": F.array_append("ai", col("s")),
        "array_append l": F.array_append("ai", col("l")),
        "array_remove": F.array_remove("ai", col("s")),
        "array_position": F.array_position("ai", col("s")),
        "array_compact": F.array_compact("as"),
        "array_max": F.array_max("ai"),
        "array_max d": F.array_max("ad"),
        "sort_array": F.sort_array("ad"),
        "sort_array down": F.sort_array("ai", asc=False),
        "slice": F.slice("ai", 1, F.size("ai")),
        "slice later": F.slice("ai", F.lit(2), F.lit(1)),
        "slice back": F.slice("ai", -2, 1),
        "size": F.size("ai"),
        "size of map": F.size("m"),
        "get": F.get("ai", 0),
        "get column": F.get("as", col("s")),
        "try_element_at": F.try_element_at("m", col("s")),
        "element_at": F.element_at("m", 1),
        "try_element_at array": F.try_element_at("ai", F.when(col("s") == 0, 1).otherwise(col("s"))),
        "try_element_at text": F.try_element_at("cv", F.lit("a")),
        "map_keys": F.map_keys("m"),
        "map_values": F.map_values("m"),
        "map_entries": F.map_entries("m"),
        "map_contains_key": F.map_contains_key("m", 1),
        "map_from_arrays": F.map_from_arrays(F.map_keys("m"), F.map_values("m")),
        "map_from_entries": F.map_from_entries(F.map_entries("cv")),
        "map_concat": F.map_concat(
            F.map_filter("m", lambda k, _: k > 1), F.map_filter("m2", lambda k, _: k <= 1)
        ),
        "map_filter": F.map_filter("m", lambda k, v: (k > 0) & (v > 0)),
        "map_zip_with": F.map_zip_with("m", "m2", lambda k, a, b: F.coalesce(a, F.lit(0)) + F.coalesce(b, k)),
        "transform": F.transform("ai", lambda x: x + 1),
        "transform with index": F.transform("as", lambda x, i: F.concat(x, i.cast("string"))),
        "transform outer": F.transform("ai", lambda x: F.coalesce(x, col("s"))),
        "transform nested": F.transform(
            "ai", lambda x: F.transform("as", lambda y: F.struct(x.alias("x"), y.alias("y")))
        ),
        "sequence": F.sequence(F.lit(2), F.abs(F.size("as"))),
        "filter": F.filter("ai", lambda x: x > 0),
        "exists": F.exists("ai", lambda x: x > 1),
        "forall": F.forall("ai", lambda x: x > -1),
        "zip_with": F.zip_with("ai", "as", lambda x, y: F.struct(x.alias("a"), y.alias("b"))),
    }


def texts() -> dict[str, Column]:
    found = {
        "concat": F.concat("t", F.lit("-"), "t2"),
        "concat bytes": F.concat("b", "b2"),
        "concat arrays": F.concat("ai", "ai2"),
        "concat_ws": F.concat_ws("; ", "t", "t2"),
        "octet_length": F.octet_length("t"),
        "octet_length b": F.octet_length("b"),
        "hex": F.hex("b"),
        "hex of numbers": F.hex("l"),
        "unhex": F.unhex(F.hex("b")),
        "unhex of text": F.unhex("t"),
        "conv": F.conv(F.hex("l"), 16, 10),
        "conv of bytes": F.conv(F.hex(F.substring("b", 1, 7)), 16, 10),
        "unhex of odd": F.unhex(F.hex("l")),
        "lpad": F.lpad(F.lower(F.hex("l")), 16, "0"),
        "lpad of text": F.lpad(F.make_valid_utf8("t"), 2, "xy"),
        "timestamp_micros": F.timestamp_micros(F.unix_micros("ts")),
        "sha2": F.sha2("t", 256),
        "lower": F.lower(F.make_valid_utf8("t")),
        "is_valid_utf8": F.is_valid_utf8("t"),
        "unix_date": F.unix_date("day"),
        "unix_micros": F.unix_micros("ts"),
    }
    valid = F.make_valid_utf8("t")
    return found | {
        "make_valid_utf8": valid,
        "split": F.split(valid, ""),
        "substring": F.substring(valid, 1, 1),
        "substring 0": F.substring(valid, 0, 2),
        "substring back": F.substring(valid, -1, 1),
        "substring far": F.substring(valid, 3, 2),
        "substr": F.substr(valid, F.lit(2)),
        "substr column": F.substr(valid, col("s"), F.lit(2)),
    }


GROUPS: tuple[Expressions, ...] = (comparisons, logic, arithmetic, casts, structures, texts)


def every() -> dict[str, Column]:
    return {name: column for make in GROUPS for name, column in make().items()}


def aggregates() -> dict[str, Column]:
    return {
        **{f"max {name}": F.max(name) for name in ORDERED},
        **{f"min {name}": F.min(name) for name in ORDERED},
        "count": F.count("i"),
        "count *": F.count("*"),
        "count_if": F.count_if(col("z")),
        "sum": F.sum("s"),
        "bit_or": F.bit_or("l"),
        "bit_xor": F.bit_xor("l"),
        "first": F.first("st", ignorenulls=True),
        "first of all": F.first("i"),
        "max_by": F.max_by("st", "n"),
        "max_by struct": F.max_by("n", F.struct("s", "n")),
        "min_by": F.min_by("t", "n"),
        "max_by null": F.max_by("i", F.when(F.col("n") < 0, F.col("n"))),
        "collect_list": F.sort_array(F.collect_list("s")),
        "collect_set": F.sort_array(F.collect_set("s")),
        "composed": F.coalesce(F.max("s"), F.lit(0)) + F.lit(1),
        "cast": F.min("day").cast("string"),
    }


Both = tuple[Any, Any]


@pytest.fixture(scope="module")
def both(worker_spark: SparkSession) -> Iterator[Both]:
    """The same drawn rows on both executors, numbered."""
    rows = drawn_rows(11, ROWS).append_column("n", pa.array(range(ROWS), pa.int32()))
    with interpreted(worker_spark):
        yield frame_of(worker_spark, rows).coalesce(1), dataframe.frame_of(rows)


def on_both(both: Sequence[Any], step: Callable[..., Any]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that a step returns on Spark and in this process."""
    on_spark = step(*[each for each, _ in both])
    there = on_spark.toArrow()
    with frames.in_process():
        here = collected(step(*[each for _, each in both]))
    return there, here


def bits(column: Any, data_type: T.DataType) -> list[bytes | None]:
    turn = exact(data_type)
    return [None if value is None else turn(value) for value in from_arrow(column, data_type)]


def assert_same(there: pa.Table, here: pa.Table) -> None:
    """Check names, types and bits of two tables."""
    from pyspark.sql.pandas.types import from_arrow_schema

    types = [from_arrow_schema(each.schema, prefer_timestamp_ntz=True) for each in (there, here)]
    wrong = {}
    for i, (one, other) in enumerate(zip(*types, strict=True)):
        if (one.name, one.dataType.simpleString()) != (other.name, other.dataType.simpleString()):
            wrong[one.name] = (one.dataType.simpleString(), other.name, other.dataType.simpleString())
            continue
        a, b = (bits(each.column(i), one.dataType) for each in (there, here))
        odd = [n for n, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y]
        if odd:
            wrong[one.name] = (len(odd), odd[0], there.column(i)[odd[0]], here.column(i)[odd[0]])
    assert not wrong, "\n".join(f"{name}: {each}" for name, each in wrong.items())


def test_each_function_comes_to_the_same(both: Both) -> None:
    there, here = on_both(
        [both], lambda rows: rows.select(*(each.alias(name) for name, each in every().items()))
    )
    assert_same(there, here)


def test_each_aggregate_comes_to_the_same(both: Both) -> None:
    there, here = on_both(
        [both], lambda rows: rows.groupBy("g").agg(*(each.alias(name) for name, each in aggregates().items()))
    )
    assert_same(there.sort_by("g"), here.sort_by("g"))


def test_every_function_is_asked() -> None:
    """What nothing asks is not there."""
    asked = set()

    class Asked:
        def __getattr__(self, name: str) -> Any:
            asked.add(name)
            return function(name)

    module = globals()
    module["F"], kept = Asked(), F
    try:
        with frames.in_process():
            every()
            aggregates()
    finally:
        module["F"] = kept
    assert asked | {"xxhash64", "explode", "broadcast"} == set(FUNCTIONS)


def parameters(method: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.default) for each in inspect.signature(method).parameters.values()]


def methods(kind: type) -> dict[str, Any]:
    return {
        name: each
        for name, each in vars(kind).items()
        if inspect.isfunction(each) and not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(trees.Column, SparkColumn), (dataframe.DataFrame, SparkFrame)],
    ids=["Column", "DataFrame"],
)
def test_methods_and_parameters_are_pysparks(mine: type, theirs: type) -> None:
    own = {"typed", "compiled"}
    for name, each in methods(mine).items():
        if name not in own:
            pysparks = [each for each in parameters(getattr(theirs, name)) if each[0] != "kwargs"]
            assert parameters(each)[1:] == pysparks[1:], name


JOINS = ("inner", "left", "full_outer", "left_semi", "left_anti")


def joined(rows: Any) -> Any:
    """Return rows joined in every way, on names and on conditions, with the way as a column."""
    left = rows.where(F.col("n") < 60).select("n", "s", "d", "z", F.struct("t", "b").alias("v"))
    right = rows.where(F.col("n") >= 300).select(F.col("n").alias("m"), "s", "d", F.col("z").alias("y"))
    found = []
    for way in JOINS:
        by_name = left.join(right, on=["s", "d"], how=way)
        same = (
            F.col("a.s").eqNullSafe(F.col("b.s"))
            & (F.col("a.d") == F.col("b.d"))
            & (F.col("n") < F.col("m") - 290)
        )
        by_term = left.alias("a").join(right.alias("b"), on=same, how=way)
        for kind, frame in (("name", by_name), ("term", by_term)):
            numbers = [
                name if name in frame.columns else F.lit(None).cast("int").alias(name) for name in ("n", "m")
            ]
            keys = (
                ["s", "d"]
                if kind == "name"
                else [F.lit(None).cast("int").alias("s"), F.lit(None).cast("double").alias("d")]
            )
            found.append(frame.select(F.lit(f"{way} by {kind}").alias("way"), *numbers, *keys))
    found.append(
        rows.select(
            F.lit("distinct").alias("way"), F.lit(1).alias("n"), F.lit(1).alias("m"), "s", "d"
        ).distinct()
    )
    more = rows.select(F.lit("missing").alias("way"), "n", "d")
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), [*found, more])


def test_frames_are_joined_alike(both: Both) -> None:
    there, here = on_both([both], joined)
    order = [(name, "ascending") for name in ("way", "n", "m", "s", "d")]
    # Spark shows -0.0 that it groups by as 0.0; no rule shows a number that it groups by.
    assert_same(*(table.sort_by(order).drop_columns(["d"]) for table in (there, here)))


def exploded(rows: Any) -> Any:
    return rows.select("n", F.explode("ai").alias("x"), "st.*").orderBy("n").limit(200)


def test_arrays_become_rows_alike(both: Both) -> None:
    assert_same(*on_both([both], exploded))


OVERFLOWS: dict[str, Callable[[], Column]] = {
    "int": lambda: F.lit(2147483647) + F.col("one"),
    "bigint": lambda: F.lit(9223372036854775807) + F.col("one"),
    "cast": lambda: (F.col("one") * 300).cast("tinyint"),
    "decimal": lambda: F.lit(Decimal("9" * 38)) + F.col("one"),
    "key twice": lambda: F.map_from_arrays(F.array("one", "one"), F.array("one", "one")),
    "key NULL": lambda: F.map_from_arrays(F.array(F.when(F.col("one") > 1, 1)), F.array("one")),
    "sum": lambda: F.sum(F.lit(9223372036854775807) - F.col("one") + F.lit(1)),
}


@pytest.mark.parametrize("what", OVERFLOWS)
def test_what_does_not_fit_is_refused_here(what: str) -> None:
    with frames.in_process():
        rows = dataframe.frame_of_tuples([(1,), (1,)], struct_of("one int"))
        step = rows.agg if what == "sum" else rows.select
        with pytest.raises((ArithmeticError, ValueError)):
            step(OVERFLOWS[what]())


def test_what_does_not_fit_is_refused_by_spark(worker_spark: SparkSession) -> None:
    """All in one job: each alternative alone fails."""
    with interpreted(worker_spark):
        one = worker_spark.createDataFrame([(1,)], "one int")
        for what in ("int", "decimal", "key twice"):
            with pytest.raises(Exception, match=r"OVERFLOW|OUT_OF_RANGE|DUPLICATED_MAP_KEY"):
                one.select(OVERFLOWS[what]()).collect()


def test_what_no_rule_uses_is_refused_by_its_name() -> None:
    with frames.in_process(), pytest.raises(NotInProcessError, match="levenshtein"):
        F.levenshtein("a", "b")


def test_the_executors_do_not_mix(both: Both) -> None:
    on_spark, here = both
    spark_column = F.col("i")
    with frames.in_process():
        tree = F.col("i")
        with pytest.raises(TypeError, match="neither"):
            F.coalesce(spark_column, "i")
    with pytest.raises(Exception, match=r"."):
        on_spark.select(tree)
    with pytest.raises(TypeError, match="Spark"):
        here.join(on_spark, on="i")
    assert isinstance(tree, Column)
    assert isinstance(spark_column, Column)
    assert isinstance(here, DataFrame)
    assert isinstance(on_spark, DataFrame)
    assert not isinstance("i", Column)


@pytest.mark.parametrize("type_", ["map<double,int>", "array<map<struct<a:float>,int>>"])
def test_maps_by_numbers_that_may_be_none_are_of_spark(type_: str) -> None:
    with pytest.raises(NeedsSparkError, match="map"):
        type_of(json_type(type_))


def json_type(ddl: str) -> T.DataType:
    return T._parse_datatype_json_value(json_of(ddl))


def test_a_stored_map_that_has_a_key_twice_is_of_spark() -> None:
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    with pytest.raises(NeedsSparkError, match="twice"):
        dataframe.frame_of(pa.table({"m": twice}))


def test_texts_of_times_that_python_lacks_are_of_spark() -> None:
    after_9999 = pa.array([2932897 * 86_400_000_000], pa.int64()).view(pa.timestamp("us"))
    with frames.in_process(), pytest.raises(NeedsSparkError, match="9999"):
        dataframe.frame_of(pa.table({"n": after_9999})).select(F.col("n").cast("string"))

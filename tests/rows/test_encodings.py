"""Two canonical encodings are equal if and only if the values are the same bits: all pairs of odd values, by type."""

import itertools
import os
import random
from datetime import timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from mergerepl.frames import DataFrame, F, NeedsSparkError, is_in_process
from mergerepl.rows.encodings import encoded, encoded_fields
from mergerepl.rows.images import same_value

pytestmark = pytest.mark.spark

TEXTS = [f"'{text}'" for text in ("", " ", "a", "A", "a ", ":", "1:a", "-", "ß", "ss")]
TEXTS += [f"cast(X'{odd}' as string)" for odd in ("ff00", "ff")]
DOUBLES = [
    "0.0D",
    "-0.0D",
    "double('NaN')",
    "-double('NaN')",
    "double('Infinity')",
    "4.9E-324D",
    "0.1D",
    "1.0D",
]
INSTANTS = [
    # Clocks in Berlin were set back between these two.
    "timestamp_micros(1698537600000000)",
    "timestamp_micros(1698541200000000)",
    "timestamp_micros(1698541200000001)",
    "timestamp_micros(-62135596800000000)",
    "timestamp_micros(253402300800000000)",
]

VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "0Y", "127Y"],
    "bigint": ["0L", "-1L", "9223372036854775807L"],
    "decimal(38,18)": ["0", "0.000000000000000001", "-0.000000000000000001", "12345678901234567890.5"],
    "decimal(5,0)": ["0", "-1", "99999"],
    "float": ["float(0.0)", "float(-0.0)", "float('NaN')", "float(0.1)", "float(16777216)", "float(1.4E-45)"],
    "double": DOUBLES,
    "string": TEXTS,
    "string collate UTF8_LCASE": [f"{text} collate UTF8_LCASE" for text in TEXTS],
    "string collate UNICODE_CI_RTRIM": [f"{text} collate UNICODE_CI_RTRIM" for text in TEXTS],
    "binary": ["X''", "X'00'", "X'ff00'", "X'ff'"],
    "date": ["date'0001-01-01'", "date'1970-01-01'", "date'9999-12-31'", "date_from_unix_date(2932897)"],
    "timestamp": INSTANTS,
    "timestamp_ntz": [
        f"to_timestamp_ntz('{year}-10-29 02:30:00.00000{n}')" for year in (1500, 2023) for n in (0, 1)
    ],
    "array<string>": [
        *("array()", "array('')", "array(null)", "array('', '')", "array('a', 'b')", "array('a1:b')"),
        *("array('a', null)", "array(null, 'a')"),
        *(f"array({text})" for text in TEXTS),
    ],
    "array<double>": [f"array({one}, {other})" for one, other in itertools.product(DOUBLES, repeat=2)],
    "array<array<int>>": [
        *("array()", "array(array())", "array(array(), array())", "array(array(1), array(2))"),
        *("array(array(1, 2))", "array(array(12))", "array(null)", "array(array(null))"),
    ],
    "struct<a:string,b:string>": [
        f"named_struct('a', {one}, 'b', {other})"
        for one, other in itertools.product([*TEXTS, "null"], repeat=2)
    ],
    "struct<a:struct<b:double>>": [f"named_struct('a', named_struct('b', {each}))" for each in DOUBLES]
    + ["named_struct('a', null)", "named_struct('a', named_struct('b', null))"],
    "map<string,double>": [
        "map()",
        "map('a', 1.0D, 'b', 2.0D)",
        "map('b', 2.0D, 'a', 1.0D)",
        "map('a', null)",
    ]
    + [f"map('a', {each})" for each in DOUBLES],
    "map<string,array<string>>": [
        "map('a', array('b', 'c'))",
        "map('a', array('b'), 'c', array())",
        "map('a', null)",
    ],
    "variant": [
        f"parse_json('{text}')"
        for text in ("1", '"1"', "1.0", "null", "{}", "[]", '{"a":1,"b":2}', '{"b":2,"a":1}')
    ],
}


def is_of_spark(type_: str) -> bool:
    """Whether sessions with such a column run on Spark."""
    return "collate" in type_ or type_ == "variant"


def pairs(spark: SparkSession, type_: str, literals: list[str]) -> DataFrame:
    """Return for all pairs of values of a type, NULL among them, whether they and their encodings are the same."""
    values = ", ".join(f"cast({each} as {type_})" for each in [*literals, "null"])
    rows = spark.sql(f"select posexplode(array({values})) as (number, value)")
    data_type = rows.schema["value"].dataType
    both = rows.join(
        rows.select(F.col("number").alias("other_number"), F.col("value").alias("other")), F.lit(True)
    )
    one, other = F.col("value"), F.col("other")
    return both.select(
        F.lit(type_).alias("type"),
        "number",
        "other_number",
        same_value(one, other, data_type).alias("same"),
        encoded(one, data_type).eqNullSafe(encoded(other, data_type)).alias("same_bytes"),
    )


@pytest.fixture(scope="module")
def compared(
    request: pytest.FixtureRequest, spark: SparkSession
) -> dict[str, list[tuple[int, int, bool, bool]]]:
    """The pairs of the types that this run asks of an executor, from one job."""
    calls = [
        item.callspec.params  # type: ignore[attr-defined]
        for item in request.session.items
        if item.path == request.path and "compared" in item.fixturenames  # type: ignore[attr-defined]
    ]
    place = "in_process" if is_in_process() else "on_spark"
    types = {each["type_"] for each in calls if each["spark"] == place}
    types -= {each for each in types if is_in_process() and is_of_spark(each)}
    rows = reduce(
        DataFrame.unionByName, [pairs(spark, each, VALUES[each]) for each in sorted(types)]
    ).collect()
    return {type_: [tuple(row)[1:] for row in rows if row["type"] == type_] for type_ in types}  # type: ignore[misc]


@pytest.mark.on_spark(
    "-string collate", "-variant", "-double", "-timestamp", "-map<string,double>", "-struct<a:struct"
)
@pytest.mark.parametrize("type_", VALUES)
def test_values_are_the_same_if_their_encodings_are(
    compared: dict[str, list[tuple[int, int, bool, bool]]], type_: str
) -> None:
    if is_in_process() and is_of_spark(type_):
        pytest.skip("only Spark reads this type")
    found = compared[type_]
    assert len(found) == (len(VALUES[type_]) + 1) ** 2
    assert [each for each in found if each[2] != each[3]] == []
    assert {each[2] for each in found} == {True, False}


PAIRS = 50 if os.environ.get("MERGEREPL_TEST_PROFILE") == "long" else 16


def test_drawn_values_of_nested_types(spark: SparkSession) -> None:
    """Each value is there twice, its maps in the other order."""
    chance = random.Random(7)
    texts, numbers = ("", "a", "1:a", "-", None), (0.0, -0.0, float("nan"), 1.5, None)

    def drawn(depth: int) -> tuple[Any, ...]:
        keys = chance.sample(["", "a", "b"], chance.randint(0, 3))
        names = [chance.choice(texts) for _ in range(chance.randint(0, 2))]
        inner = drawn(depth - 1) if depth else None
        return chance.choice(texts), {key: chance.choice(numbers) for key in keys}, names, inner

    def turned(value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        text, entries, names, inner = value
        return text, dict(reversed(entries.items())), names, turned(inner)

    values = [drawn(1) for _ in range(PAIRS)]
    columns = "t:string,m:map<string,double>,a:array<string>"
    type_ = f"struct<{columns},s:struct<{columns},s:int>>"
    frame = spark.createDataFrame([(v,) for each in values for v in (each, turned(each))], f"value {type_}")
    data_type = frame.schema["value"].dataType
    both = frame.join(frame.select(F.col("value").alias("other")), F.lit(True))
    one, other = F.col("value"), F.col("other")
    same = same_value(one, other, data_type)
    counts = both.agg(
        F.count_if(same).alias("same"),
        F.count_if(same != encoded(one, data_type).eqNullSafe(encoded(other, data_type))).alias("unlike"),
    ).collect()[0]
    assert counts["unlike"] == 0
    assert 4 * PAIRS <= counts["same"] < (2 * PAIRS) ** 2


def test_fields_are_chosen_and_stay_in_their_order(spark: SparkSession) -> None:
    image = spark.sql("select named_struct('c0', 7, 'c1', cast(null as date), 'c2', 'x', 'c3', X'ff') as row")
    data_type = image.schema["row"].dataType
    assert isinstance(data_type, T.StructType)
    (found,) = image.select(encoded_fields("row", data_type, ("c3", "c1", "c0")).alias("fields")).collect()
    assert found["fields"] == [b"7", None, b"\xff"]


def test_a_type_without_an_encoding_is_refused(spark: SparkSession) -> None:
    with pytest.raises((TypeError, NeedsSparkError), match="interval"):
        encode_an_interval(spark)


def encode_an_interval(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(timedelta(1),)], T.StructType().add("x", T.DayTimeIntervalType()))
    rows.select(encoded(F.col("x"), T.DayTimeIntervalType()))

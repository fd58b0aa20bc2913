"""The rowguid in plain Python is the rowguid in Spark."""

import string
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mergerepl.frames import F
from mergerepl.rows.images import derived_rowguid
from mergerepl.rows.rowguid import KeyValue, key_text, key_value, rowguid_of

pytestmark = pytest.mark.spark

COLUMNS = {
    "i": ("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": ("bigint", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "s": ("string", pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)),
    "d": ("date", pa.date32(), st.dates()),
    "t": ("timestamp", pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "n": ("timestamp_ntz", pa.timestamp("us"), st.datetimes()),
    "m": ("decimal(20,7)", pa.decimal128(20, 7), st.decimals(-(10**12), 10**12, places=7)),
    "z": ("decimal(5,0)", pa.decimal128(5, 0), st.decimals(-(10**4), 10**4, places=0)),
    "b": ("boolean", pa.bool_(), st.booleans()),
    "x": ("binary", pa.binary(), st.binary(max_size=6)),
}
TYPES = [ddl for ddl, _, _ in COLUMNS.values()]
ROWS = st.lists(st.tuples(*(values for _, _, values in COLUMNS.values())), min_size=20, max_size=20)


@settings(max_examples=8)
@given(rows=ROWS)
def test_python_and_spark_agree(spark: SparkSession, rows: list[tuple[KeyValue, ...]]) -> None:
    schema = pa.schema([(name, kind) for name, (_, kind, _) in COLUMNS.items()])
    table = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], schema=schema)
    # Without a time zone it would become a timestamp with one.
    ddl = ", ".join(f"{name} {type_}" for name, type_ in zip(COLUMNS, TYPES, strict=True))
    frame = spark.createDataFrame(table, schema=ddl)
    assert frame.schema["n"].dataType.simpleString() == "timestamp_ntz"
    whole = derived_rowguid([(F.col(name), frame.schema[name].dataType) for name in COLUMNS])
    single = [
        derived_rowguid([(F.col(name), frame.schema[name].dataType)]).alias(f"guid_{name}")
        for name in COLUMNS
    ]
    for row, computed in zip(rows, frame.select(whole.alias("guid"), *single).collect(), strict=True):
        assert rowguid_of(row, TYPES) == computed["guid"]
        for name, value, type_ in zip(COLUMNS, row, TYPES, strict=True):
            assert rowguid_of([value], [type_]) == computed[f"guid_{name}"], (type_, value)


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        (" 7 ", "int", 7),
        ("2020-02-29", "date", date(2020, 2, 29)),
        ("2020-01-01T02:00:00+02:00", "timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
        ("2020-01-01 02:00:00.5", "timestamp_ntz", datetime(2020, 1, 1, 2, 0, 0, 500000)),
        ("1.5", "decimal(10,2)", Decimal("1.50")),
        ("TRUE", "boolean", True),
        ("0x0aFF", "binary", b"\x0a\xff"),
        ("", "string", ""),
    ],
)
def test_keys_are_read_as_people_write_them(text: str, type_: str, value: KeyValue) -> None:
    assert key_value(text, type_) == value


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("x", "int"),
        ("1.5", "bigint"),
        ("yesterday", "date"),
        ("2020-01-01T00:00:00Z", "timestamp_ntz"),
        ("1.555", "decimal(10,2)"),
        ("abc", "decimal(10,2)"),
        ("yes", "boolean"),
        ("0g", "binary"),
    ],
)
def test_what_is_no_value_of_the_type_is_refused(text: str, type_: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        key_value(text, type_)


def test_the_text_of_a_decimal_has_its_scale_and_no_exponent() -> None:
    assert key_text(Decimal("1E-7"), "decimal(10,7)") == "0.0000001"
    assert key_text(Decimal(1), "decimal(10,2)") == "1.00"
    assert set(key_text(Decimal("1E+20"), "decimal(30,3)")) <= set(string.digits + ".")

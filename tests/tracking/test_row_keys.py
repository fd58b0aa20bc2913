"""Packed row keys: the layout byte for byte, what is refused, and one form in Python and in Spark."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from mergerepl.frames import F, in_process
from mergerepl.frames.values import type_of
from mergerepl.spark.in_memory import frame_of_tuples
from mergerepl.spark.session import copy_of
from mergerepl.tracking.row_keys import pack, packed_key, unpack, unpacked_keys, unsupported

GUID = "A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11"
TYPES = (
    *("tinyint", "smallint", "int", "bigint", "boolean", "string", "guid"),
    *("decimal(10,2)", "date", "timestamp", "timestamp_ntz", "binary", "decimal(18,18)"),
)


def test_the_layout_is_counts_lengths_and_little_endian_values():
    packed = pack([1, "é"], ["int", "string"])
    assert packed.hex(" ", -4) == "02000000 04000000 01000000 02000000 c3a9"


def test_a_guid_key_has_24_bytes_as_dotnet_orders_them():
    packed = pack([GUID], ["guid"])
    assert len(packed) == 24
    assert packed[8:] == uuid.UUID(GUID).bytes_le
    assert unpack(packed, ["guid"]) == (GUID.lower(),)


def test_keys_that_join_to_one_text_pack_differently():
    types = ["string", "string"]
    assert pack(["a", "bc"], types) != pack(["ab", "c"], types)


@pytest.mark.parametrize(("length", "fits"), [(8000 - 8, True), (8000 - 7, False)])
def test_a_key_takes_8000_bytes_at_most(length, fits):
    if fits:
        assert len(pack(["x" * length], ["string"])) == 8000
    else:
        with pytest.raises(ValueError, match="8001 bytes"):
            pack(["x" * length], ["string"])


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ([1], ["int", "int"]),
        ([None], ["int"]),
        ([2**31], ["int"]),
        ([True], ["int"]),
        (["x"], ["guid"]),
        ([Decimal("1.234")], ["decimal(10,2)"]),
        ([Decimal("123456789.00")], ["decimal(10,2)"]),
        ([datetime(2020, 1, 1, tzinfo=UTC)], ["timestamp_ntz"]),
    ],
)
def test_what_is_no_value_of_the_key_is_refused(values, types):
    with pytest.raises(ValueError, match=r"column|value"):
        pack(values, types)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x01\x00\x00", pack([1, 2], ["int", "int"]), pack([1], ["int"]) + b"\x00", pack([1], ["bigint"])],
    ids=["empty", "short", "two columns", "left over", "another width"],
)
def test_bytes_that_are_no_key_of_the_table_are_refused(damaged):
    with pytest.raises(ValueError, match="packed key"):
        unpack(damaged, ["int"])


@pytest.mark.parametrize(
    "type_", ["float", "double", "array<int>", "map<int,int>", "struct<a:int>", "decimal(38,0)"]
)
def test_types_without_a_packed_form(type_):
    assert unsupported(type_)


def test_all_other_types_have_one():
    assert not any(map(unsupported, (each for each in TYPES if each != "guid")))


DAYS = st.dates()
MOMENTS = st.datetimes()
VALUES = st.tuples(
    *(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20),
    st.uuids().map(str),
    st.integers(-(10**10) + 1, 10**10 - 1).map(lambda number: Decimal(number).scaleb(-2)),
    DAYS,
    MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    MOMENTS,
    st.binary(max_size=20),
    st.integers(-(10**18) + 1, 10**18 - 1).map(lambda number: Decimal(number).scaleb(-18)),
)


MICRO = timedelta(microseconds=1)
ENDS = (
    *(datetime.min, datetime.max, datetime(1970, 1, 1) - MICRO, datetime(1970, 1, 1), datetime(1969, 12, 31)),
    # A double has no microseconds from 2255 on, and Spark's calendar began in 1582.
    *(datetime(2400, 1, 1) - MICRO, datetime(9999, 12, 31), datetime(1582, 10, 4, 23, 59, 59, 999999)),
    *(datetime(1582, 10, 15), datetime(1883, 11, 18, 17, 0, 0, 1), datetime(1900, 2, 28, 23, 59, 59, 999999)),
)


def extremes() -> list[tuple[object, ...]]:
    """Return keys of all types with the lowest, the highest and other values at an edge."""
    found: list[tuple[object, ...]] = []
    for end in ENDS:
        lowest = end < datetime(1970, 1, 1)
        integers = (-(2 ** (bits - 1)) if lowest else 2 ** (bits - 1) - 1 for bits in (8, 16, 32, 64))
        text, some = ("", b"") if lowest else ("\U0010ffff\x01é", bytes([0, 255, 128]))
        guid = str(uuid.UUID(int=0 if lowest else 2**128 - 1))
        sign = -1 if lowest else 1
        short, long = (
            Decimal(sign * (10**digits - 1)).scaleb(-scale) for digits, scale in ((10, 2), (18, 18))
        )
        moments = (end.date(), end.replace(tzinfo=UTC), end)
        found.append((*integers, lowest, text, guid, short, *moments, some, long))
    return found


@pytest.mark.parametrize("values", extremes())
def test_the_extremes_of_each_type_come_back(values):
    assert unpack(pack(values, TYPES), TYPES) == values


@pytest.mark.parametrize(("type_", "width"), [("date", 4), ("timestamp", 8), ("timestamp_ntz", 8)])
def test_a_time_that_python_has_not_is_refused(type_, width):
    for number in (2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1))):
        part = width.to_bytes(4, "little") + number.to_bytes(width, "little", signed=True)
        with pytest.raises(ValueError, match="packed key"):
            unpack((1).to_bytes(4, "little") + part, [type_])


@given(VALUES)
def test_what_is_packed_comes_back(values):
    assert unpack(pack(values, TYPES), TYPES) == values


@given(VALUES)
def test_keys_are_packed_alike_in_process(values):
    kinds = ("tinyint", "smallint", "int", "bigint", "string", "guid", "date")
    key = [values[TYPES.index(kind)] for kind in kinds]
    names = [f"c{i}" for i, _ in enumerate(kinds)]
    types = (type_of("string" if kind == "guid" else kind) for kind in kinds)
    fields = [StructField(name, type_) for name, type_ in zip(names, types, strict=True)]
    with in_process():
        rows = frame_of_tuples(None, [tuple(key)], StructType(fields))
        packed = rows.select(packed_key([F.col(name) for name in names], kinds).alias("packed")).collect()
    assert bytes(packed[0]["packed"]) == pack(key, kinds)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ansi", "zone"), [pytest.param("true", "UTC", marks=pytest.mark.slow), ("false", "America/New_York")]
)
def test_spark_writes_and_reads_the_same_bytes(worker_spark: SparkSession, ansi: str, zone: str) -> None:
    spark = copy_of(worker_spark, {"spark.sql.ansi.enabled": ansi, "spark.sql.session.timeZone": zone})
    drawn = extremes()

    @given(VALUES)
    def draw(values: tuple[object, ...]) -> None:
        drawn.append(values)

    draw()
    ddl = ", ".join(f"c{i} {'string' if type_ == 'guid' else type_}" for i, type_ in enumerate(TYPES))
    # As microseconds: Python's own times would be taken in its zone.
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    at = TYPES.index("timestamp")
    stored = [(*v[:at], (v[at] - epoch) // timedelta(microseconds=1), *v[at + 1 :]) for v in drawn]
    rows = spark.createDataFrame(stored, ddl.replace(f"c{at} timestamp", f"c{at} bigint"))
    rows = rows.withColumn(f"c{at}", F.timestamp_micros(f"c{at}"))
    names = [f"c{i}" for i in range(len(TYPES))]
    packed = rows.select(*names, packed_key([F.col(name) for name in names], TYPES).alias("packed"))
    again = unpacked_keys(F.col("packed"), TYPES)
    same = [F.col(name).eqNullSafe(value) for name, value in zip(names, again, strict=True)]
    found = packed.select("packed", F.array(*same).alias("same")).collect()
    assert sorted(bytes(row["packed"]) for row in found) == sorted(pack(values, TYPES) for values in drawn)
    assert all(all(row["same"]) for row in found)

"""Values that Delta tables may hold and Python may not are returned as text, the others as they are."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from mergerepl.delta.small_tables import read_rows
from mergerepl.rows.arrow_values import python_values

DATES = pa.array([3789000, -735000, 18000, None], pa.int32()).cast(pa.date32())
DATE_TEXTS = ["+12343-12-07", "-0043-08-22", date(2019, 4, 14), None]
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xffA")]
)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (DATES, DATE_TEXTS),
        (
            pa.array([6248933000000000000, 0], pa.timestamp("us")),
            ["+199990-10-21 10:13:20", datetime(1970, 1, 1)],
        ),
        (pa.array([0], pa.timestamp("us", "UTC")), [datetime(1970, 1, 1, tzinfo=UTC)]),
        (NOT_UTF8, ["\\xffA"]),
        (pa.StructArray.from_arrays([DATES.slice(0, 1)], ["d"]), [{"d": "+12343-12-07"}]),
        (pa.ListArray.from_arrays([0, 2], DATES), [["+12343-12-07", "-0043-08-22"]]),
        (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), DATES.slice(0, 1)), [[("k", "+12343-12-07")]]),
        (pa.array([1, None]), [1, None]),
    ],
    ids=["dates", "times", "ordinary times", "no text", "in a struct", "in a list", "in a map", "numbers"],
)
def test_what_python_cannot_hold_is_text(column: pa.Array, values: list[object]) -> None:
    assert python_values(pa.chunked_array([column])) == values
    assert python_values(pa.chunked_array([column, column])) == [*values, *values]


def test_a_stored_date_that_python_cannot_hold_is_read_as_text(tmp_path: Path) -> None:
    table = pa.table({"d": DATES, "row": pa.StructArray.from_arrays([DATES], ["c0"])})
    write_deltalake(str(tmp_path / "t"), table)
    rows = read_rows(tmp_path / "t", ["d", "row"], order_limit="order by d")
    assert [row["d"] for row in rows] == ["-0043-08-22", date(2019, 4, 14), "+12343-12-07", None]
    assert [row["row"]["c0"] for row in rows] == ["-0043-08-22", date(2019, 4, 14), "+12343-12-07", None]


def test_times_that_spark_wrote_are_read_as_it_reads_them(tmp_path: Path) -> None:
    """As INT96, which has room for more nanoseconds than 64 bits: 9999-12-31 was read as 1816-03-29."""
    late, early = (datetime(year, 12, 31, tzinfo=UTC) for year in (9999, 1500))
    times = pa.array([late, early], pa.timestamp("us", "UTC"))
    rows = pa.table({"t": times, "s": pa.StructArray.from_arrays([times], ["t"])})
    write_deltalake(str(tmp_path), rows, configuration={"delta.dataSkippingNumIndexedCols": "0"})
    (file,) = tmp_path.glob("*.parquet")
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    before = file.stat().st_size
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_schema=False)
    log.write_text(log.read_text().replace(f'"size":{before}', f'"size":{file.stat().st_size}'))
    assert read_rows(tmp_path, ["t", "s"]) == [{"t": each, "s": {"t": each}} for each in (late, early)]
    where = "t = arrow_cast('9999-12-31', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    assert [row["t"] for row in read_rows(tmp_path, ["t"], where=where)] == [late]

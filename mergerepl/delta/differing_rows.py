"""The rows in which two tables differ, found by Arrow: all bits are compared, and no engine starts.

The tables are aligned by their keys, then compared column by column, so that memory holds two columns of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mergerepl.delta.commit_files import differing, read_rows, readable_rows
from mergerepl.delta.engine_choice import (
    NeedsSparkError,
    TooLargeForArrowError,
    arrow_refusals,
    require_texts,
)
from mergerepl.delta.reads import plain_files
from mergerepl.delta.small_writer import MOST_ROWS
from mergerepl.delta.table import TableState
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS_READ = 4_000_000
"""The most rows of a table that this process aligns with another one's."""

_PLACES = ("here", "there")


@arrow_refusals()
def differing_rows(
    tables: Sequence[TableState], columns: Sequence[str], key: Sequence[str], *, is_guid: bool
) -> "list[pa.Table]":
    """Return of each of two tables its rows that the other one lacks, or has with other values under their key.

    Arrow holds their types as Spark does (`small_writer.article_problem`). `is_guid`: a key in another case is the same.

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does, a key is NULL or of several rows, or too many
    rows are there or differ.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    both = [_Rows.of(table) for table in tables]
    keys = [each.keys(key, place, is_guid=is_guid) for each, place in zip(both, _PLACES, strict=True)]
    pairs = keys[0].join(keys[1], keys=list(key), join_type="full outer").select(list(_PLACES))
    in_both = pairs.filter(pc.and_(*(pc.is_valid(pairs[place]) for place in _PLACES)))
    differ = pa.repeat(pa.scalar(False), in_both.num_rows)
    for name in columns:
        if is_guid or name not in key:
            here, there = (
                each.column(name).take(in_both[place]) for each, place in zip(both, _PLACES, strict=True)
            )
            differ = pc.or_(differ, differing(here, there))
    found = []
    for each, place, other in zip(both, _PLACES, _PLACES[::-1], strict=True):
        alone = pairs.filter(pc.is_null(pairs[other]))[place]
        places = pa.chunked_array([*alone.chunks, *in_both.filter(differ)[place].chunks], pa.int64())
        if len(places) > MOST_ROWS:
            raise TooLargeForArrowError("too many rows differ")
        found.append(each.rows(columns, places))
        require_texts(found[-1])
    return found


@arrow_refusals()
def columns_here(table: TableState, names: Sequence[str]) -> "pa.Table":
    """Return columns of all rows of a table.

    Raises: NeedsSparkError as `differing_rows`.
    """
    import pyarrow as pa

    rows = _Rows.of(table)
    found = pa.table({name: rows.column(name) for name in names})
    require_texts(found)
    return found


@dataclass(frozen=True)
class _Rows:
    """The rows of a table, by its files; the place of a row counts from the first file's first row."""

    table: TableState
    files: Sequence[Location]

    @classmethod
    def of(cls, table: TableState) -> "_Rows":
        plain = plain_files(table)
        if plain is None:
            raise NeedsSparkError(f"the rows of '{table.path}' are not those of its files")
        files = [table.path / each["path"] for each in plain]
        if sum(readable_rows(table, files)) > MOST_ROWS_READ:
            raise TooLargeForArrowError("too many rows")
        return cls(table, files)

    def column(self, name: str) -> "pa.ChunkedArray":
        """Return a column of all rows."""
        import pyarrow as pa

        parts = [read_rows(file, self.table, [name], "insert")[name] for file in self.files]
        kind = self.table.arrow_schema.field(name).type
        if pa.types.is_nested(kind):
            raise NeedsSparkError(f"column '{name}' has parts")
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], kind)

    def rows(self, columns: Sequence[str], places: "pa.ChunkedArray") -> "pa.Table":
        """Return the rows at some places."""
        import pyarrow as pa

        if not len(places):
            return pa.schema([self.table.arrow_schema.field(name) for name in columns]).empty_table()
        return pa.table({name: self.column(name).take(places) for name in columns})

    def keys(self, key: Sequence[str], place: str, *, is_guid: bool) -> "pa.Table":
        """Return the keys of all rows, each once, with their places."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        values = {name: self.column(name) for name in key}
        if any(each.null_count for each in values.values()):
            raise NeedsSparkError("a key is NULL")
        found = pa.table({n: pc.utf8_lower(each) if is_guid else each for n, each in values.items()})
        if found.group_by(list(key)).aggregate([]).num_rows < found.num_rows:
            raise NeedsSparkError("several rows have one key")
        return found.append_column(place, pa.array(np.arange(found.num_rows)))

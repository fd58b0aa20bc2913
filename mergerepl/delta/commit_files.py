"""The change feed of a few commits, read from their own files with Arrow: as `CDCReader` does, without an engine.

Changes come from a commit's change files. If it has none, or they are not to be trusted, the rows of added files count
as inserted and the rows of removed files as deleted (PROTOCOL.md, Change Data Files).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StringType, StructField, StructType

from mergerepl.delta.engine_choice import (
    MOST_BYTES,
    NeedsSparkError,
    TooLargeForArrowError,
    arrow_refusals,
    require_texts,
)
from mergerepl.delta.footers import footer_problem, may_have, read_footer
from mergerepl.delta.log import log_actions
from mergerepl.delta.parquet_files import parquet_source
from mergerepl.delta.reads import Bounds, may_hold, plain_files
from mergerepl.delta.small_writer import KEY_TYPES, MOST_FILES, feature_problem, rows_problem
from mergerepl.delta.table import TableState
from mergerepl.frames import DataFrame
from mergerepl.spark.in_memory import collected, frame_of
from mergerepl.store.location import Location
from mergerepl.store.storage import are_at_most

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Wanted = Mapping[str, pa.Array[Any]]
    """Column -> the values that rows are looked up by; NULL may be one of them."""

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"

_FEED_TYPES = {
    CHANGE_TYPE: StructField(CHANGE_TYPE, StringType()),
    COMMIT_VERSION: StructField(COMMIT_VERSION, LongType()),
}

MOST_ROWS = 20_000
"""The most rows of one feed, two for an update: their processing is interpreted (decision 0022)."""

MOST_KEYS_BYTES = 1 << 30
"""The largest table whose keys are looked up here, by streaming them."""

MOST_MATCHES = 5 * MOST_ROWS
"""The most rows of a lookup by values, or of a file by the keys of an UPDATE: all rows may share a tenant's key, say."""


@dataclass(frozen=True)
class UpdateKeys:
    """The keys, before and after, of the rows that an UPDATE of delta-rs changed, if they are proven (`update_keys`).

    `values`: the values of key columns. `rows`: the rows with these values in the removed and added files, without
    nested columns, by file and with their kind; empty if they are large. `doubt`: why nothing is proven. `is_gone`: a
    file is gone (VACUUM).
    """

    values: "Wanted" = field(default_factory=dict, compare=False)
    rows: "tuple[tuple[pa.Table, str | None], ...]" = field(default=(), compare=False, repr=False)
    doubt: str | None = None
    is_gone: bool = False

    @property
    def cost(self) -> str:
        """The doubt as a clause about the commit."""
        return f"an UPDATE by delta-rs that is read by comparing all rows of its files: {self.doubt}"


@arrow_refusals()
def feed_of_files(
    table: TableState, columns: Sequence[str], versions: Mapping[int, bool], keys: "Mapping[int, UpdateKeys]"
) -> "pa.Table":
    """Return the feed of some commits: these columns, kind and version.

    The table is at the last of these versions. `versions`: each version, and whether to ignore its change files. `keys`:
    versions of which only the rows with some keys count (`update_keys`).

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does.
    """
    import pyarrow as pa

    # A file has a renamed column under its former name, and no partition column: both would be read as NULL.
    if (problem := rows_problem(table)) is not None:
        raise NeedsSparkError(problem, table.path)
    parts: list[pa.Table] = []
    count = 0
    for version, by_files in versions.items():
        proven = keys.get(version)
        if proven is not None and proven.rows and set(columns).issubset(proven.rows[0][0].column_names):
            rows = [(each.select([*columns, CHANGE_TYPE]), kind) for each, kind in proven.rows]
        else:
            wanted = None if proven is None else proven.values
            rows = _rows_of_version(table, columns, version, by_files, wanted, count)
        found = without_copied(rows, columns)
        count += found.num_rows
        _require_few(count)
        parts.append(found.append_column(COMMIT_VERSION, pa.array([version] * found.num_rows, pa.int64())))
    feed = pa.concat_tables(parts)
    require_texts(feed)
    return feed


def _rows_of_version(
    table: TableState,
    columns: Sequence[str],
    version: int,
    by_files: bool,
    wanted: "Wanted | None",
    count: int,
) -> "list[tuple[pa.Table, str | None]]":
    files = list(files_of(table.path, version, by_files=by_files))
    most_bytes = MOST_BYTES if wanted is None else MOST_KEYS_BYTES
    counts = readable_rows(table, [file for file, _ in files], most_bytes=most_bytes)
    if len({kind for _, kind in files}) == 1:
        # All their rows are changes, without copies.
        _require_few(count + sum(counts))
    return [(read_rows(file, table, columns, kind, wanted), kind) for file, kind in files]


def without_copied(rows: Sequence[tuple["pa.Table", str | None]], columns: Sequence[str]) -> "pa.Table":
    """Return the rows of a commit, without those that it both removed and added.

    A writer that rewrites files copies most of their rows, some writers in another order. Rows count as equal if all their
    bits are.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.concat_tables([each for each, _ in rows]).combine_chunks()
    bits = [_bits(whole[name]) for name in columns]
    if {kind for _, kind in rows} != {"insert", "delete"} or any(pa.types.is_nested(b.type) for b in bits):
        return whole
    signs = pc.if_else(pc.equal(whole[CHANGE_TYPE], "insert"), 1, -1)
    keys = [f"c{i}" for i, _ in enumerate(columns)]
    events = pa.table([*bits, signs, np.arange(whole.num_rows)], names=[*keys, "sign", "place"])
    sums = events.group_by(keys).aggregate([("sign", "sum"), ("place", "min")])
    counts = sums["sign_sum"].to_numpy()
    left = whole.take(np.repeat(sums["place_min"].to_numpy(), np.abs(counts)))
    kinds = np.repeat(np.where(counts > 0, "insert", "delete"), np.abs(counts))
    return left.set_column(
        left.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, pa.array(kinds, pa.string())
    )


def differing(one: "pa.ChunkedArray[Any]", other: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    """Return a mask of the rows in which two columns of one non-nested type differ in their bits."""
    import pyarrow.compute as pc

    one_bits, other_bits = _bits(one), _bits(other)
    same = pc.fill_null(pc.equal(one_bits, other_bits), False)
    is_empty = pc.and_(pc.is_null(one_bits), pc.is_null(other_bits))
    return pc.invert(pc.or_(same, is_empty))


def _bits(values: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    """Return a form of values that is equal if their bits are."""
    import pyarrow as pa

    whole = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    as_integer = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(whole.type)
    return whole if as_integer is None else whole.view(as_integer)


def files_of(table: Location, version: int, *, by_files: bool) -> Iterator[tuple[Location, str | None]]:
    """Yield the files that hold a commit's changes, with the kind of their rows; None: the files state it.

    Raises: NeedsSparkError for deletion vectors and encoded names.
    """
    actions = log_actions(table, version)
    if any(
        "deletionVector" in part for action in actions for part in action.values() if isinstance(part, dict)
    ):
        raise NeedsSparkError(f"version {version} has deletion vectors")
    stated = [] if by_files else [action["cdc"] for action in actions if "cdc" in action]
    for each in stated:
        yield _inside(table, each), None
    for name, kind in (("remove", "delete"), ("add", "insert")) if not stated else ():
        for action in actions:
            if name in action and action[name].get("dataChange", True):
                yield _inside(table, action[name]), kind


def _inside(table: Location, action: Mapping[str, Any]) -> Location:
    name: str = action["path"]
    if "%" in name or ":" in name or name.startswith("/") or ".." in name:
        raise NeedsSparkError(f"file '{name}' of '{table}'")
    return table / name


def _require_few(rows: int) -> None:
    if rows > MOST_ROWS:
        raise TooLargeForArrowError("too many rows")


def readable_rows(table: TableState, files: Sequence[Location], *, most_bytes: int = MOST_BYTES) -> list[int]:
    """Return the row count of each file; raise NeedsSparkError if Arrow cannot read one of them safely."""
    if len(files) > MOST_FILES or not are_at_most(files, most_bytes):
        raise TooLargeForArrowError("too many files, or too large ones")
    try:
        footers = [read_footer(file) for file in files]
    except (OSError, ValueError) as error:
        # Gone or damaged: Spark names the file, and may read it otherwise.
        raise NeedsSparkError(f"a file cannot be read: {error}") from error
    for footer in footers:
        if (problem := footer_problem(footer, table.names)) is not None:
            raise NeedsSparkError(problem)
    return [footer.num_rows for footer in footers]


def read_rows(
    file: Location,
    table: TableState,
    columns: Sequence[str],
    kind: str | None,
    wanted: "Wanted | None" = None,
) -> "pa.Table":
    """Return columns of a file as the table has them, and the kind of each row; a column that it lacks is NULL."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = table.arrow_schema
    source = pq.ParquetFile(parquet_source(file))
    names = source.schema_arrow.names
    there = [name for name in columns if name in names]
    if not set(wanted or ()).issubset(there):
        raise NeedsSparkError("a file lacks a column of its key")
    if wanted is None:
        found = source.read([*there, *([CHANGE_TYPE] if kind is None else [])])
    else:
        found = matching_rows(
            source, pa.schema([stored.field(name) for name in there]), wanted, most_rows=MOST_MATCHES
        )
    kinds = (
        found[CHANGE_TYPE].cast(pa.string())
        if kind is None
        else pa.array([kind] * found.num_rows, pa.string())
    )
    values = [
        found[name].cast(stored.field(name).type)
        if name in there
        else pa.nulls(found.num_rows, stored.field(name).type)
        for name in columns
    ]
    return pa.table([*values, kinds], names=[*columns, CHANGE_TYPE])


@arrow_refusals()
def rows_having(
    table: TableState,
    columns: Sequence[str],
    wanted: "Wanted",
    *,
    is_guid: bool = False,
    most_bytes: int = MOST_BYTES,
) -> "pa.Table":
    """Return columns of a table's rows that have wanted values (in lower case, if GUIDs) in each of the wanted columns.

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does, or more than MOST_MATCHES rows match.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    numbers = {name: values for name, values in wanted.items() if pa.types.is_integer(values.type)}
    ends = {name: pc.min_max(values).as_py() for name, values in numbers.items()}
    bounds = {name: (each["min"] - 1, each["max"]) for name, each in ends.items() if each["min"] is not None}
    plain = plain_files(table, bounded=tuple(bounds))
    if plain is None:
        raise NeedsSparkError(f"the rows of '{table.path}' are not those of its files")
    files = [table.path / each["path"] for each in plain if may_hold(each, bounds)]
    readable_rows(table, files, most_bytes=most_bytes)
    schema = pa.schema([table.arrow_schema.field(each) for each in dict.fromkeys([*wanted, *columns])])
    rows = []
    for file in files:
        source = pq.ParquetFile(parquet_source(file))
        # A column that was added after the file was written is NULL.
        there = [field for field in schema if field.name in source.schema_arrow.names]
        if wanted.keys() <= {field.name for field in there}:
            rows.append(matching_rows(source, pa.schema(there), wanted, is_guid=is_guid))
        elif any(values.null_count for values in wanted.values()):
            raise NeedsSparkError(f"'{file}' lacks a column in which NULL is looked up")
    found = pa.concat_tables([schema.empty_table(), *rows], promote_options="default").select(list(columns))
    if found.num_rows > MOST_MATCHES:
        raise TooLargeForArrowError("too many rows have the values that are looked up")
    require_texts(found)
    return found


@arrow_refusals()
def few_rows(
    table: TableState, columns: Sequence[str], *, is_key: bool = True, bounds: Bounds | None = None
) -> "pa.Table":
    """Return columns of a small table's rows; `is_key`: they are compared as keys.

    Files that hold no row within the bounds are not opened.

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does, or there are too many.
    """
    import pyarrow as pa

    if (problem := feature_problem(table)) is not None:
        raise NeedsSparkError(problem)
    for name in columns:
        stored = table.field(name)
        is_fit = stored is not None and isinstance(stored["type"], str)
        if stored is None or not is_fit or (is_key and stored["type"] not in KEY_TYPES):
            raise NeedsSparkError(f"the type of column '{name}'")
    plain = plain_files(table, bounded=bounds or ())
    if plain is None:
        raise NeedsSparkError(f"the rows of '{table.path}' are not those of its files")
    files = [table.path / each["path"] for each in plain if may_hold(each, bounds or {})]
    _require_few(sum(readable_rows(table, files)))
    empty = pa.schema([table.arrow_schema.field(name) for name in columns]).empty_table()
    rows = (read_rows(file, table, columns, "insert").select(list(columns)) for file in files)
    # A column that became NOT NULL is nullable in older files.
    found = pa.concat_tables([empty, *rows], promote_options="default")
    require_texts(found)
    return found


def frame_here(rows: "pa.Table", table: TableState) -> DataFrame:
    """Return rows of a table, or of its feed, as a frame in process."""
    types = {field.name: field for field in table.schema} | _FEED_TYPES
    return frame_of(None, rows, StructType([types[name] for name in rows.column_names]))


def frame_having(
    table: TableState,
    columns: Sequence[str],
    keys: DataFrame,
    names: Mapping[str, str],
    *,
    is_guid: bool = False,
) -> DataFrame:
    """Return, in process, columns of a table's rows that have in each key column a value of that column among some keys.

    `names`: column of the table to its name in `keys`.

    Raises: NeedsSparkError as `rows_having`.
    """
    wanted = collected(keys.select(*names.values()))
    values = {
        column: wanted[name].combine_chunks().drop_null().cast(table.arrow_schema.field(column).type)
        for column, name in names.items()
    }
    return frame_here(rows_having(table, columns, values, is_guid=is_guid), table)


def matching_rows(
    source: "pq.ParquetFile",
    schema: "pa.Schema",
    wanted: "Wanted",
    *,
    is_guid: bool = False,
    most_rows: float = math.inf,
) -> "pa.Table":
    """Return columns of a file's rows that have wanted values in each of the wanted columns, a subset of the columns.

    Statistics exclude row groups without such a value; in the others the wanted columns are read first.

    Raises: NeedsSparkError if more than `most_rows` match.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in schema.names if name in wanted]
    others = [name for name in schema.names if name not in wanted]
    found, count = [schema.empty_table()], 0
    for group in range(source.num_row_groups):
        if not all(is_guid or may_have(source.metadata, group, name, wanted[name]) for name in names):
            continue
        # Arrow cannot select from some kinds of texts in files.
        wanted_columns = pa.schema([schema.field(name) for name in names])
        rows = source.read_row_group(group, columns=names).cast(wanted_columns)
        values = {name: pc.utf8_lower(rows[name]) if is_guid else rows[name] for name in names}
        places = pc.indices_nonzero(reduce(pc.and_, (pc.is_in(values[name], wanted[name]) for name in names)))
        count += len(places)
        if count > most_rows:
            raise TooLargeForArrowError("too many rows have the values of its key that are looked up")
        if len(places):
            more = _taken(source, group, schema, others, places) if others else rows.select([])
            parts = [rows.take(places), more]
            both = {name: part[name] for part in parts for name in part.column_names}
            found.append(pa.table([both[name] for name in schema.names], schema=schema))
    return pa.concat_tables(found)


def _taken(
    source: "pq.ParquetFile", group: int, schema: "pa.Schema", names: Sequence[str], places: "pa.Array[Any]"
) -> "pa.Table":
    """Return columns of some rows of a row group, in order; nothing after the last of these rows is read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.schema([schema.field(name) for name in names])
    found, first = [wanted.empty_table()], 0
    for batch in source.iter_batches(row_groups=[group], columns=list(names)):
        end = first + batch.num_rows
        here = places.filter(pc.and_(pc.greater_equal(places, first), pc.less(places, end)))
        if len(here):
            found.append(pa.table(batch).cast(wanted).take(pc.subtract(here, first)))
        if end > places[-1].as_py():
            break
        first = end
    return pa.concat_tables(found)

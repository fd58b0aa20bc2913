"""The rows that a session reads of a growing system table: few files are read by Arrow, others by delta-rs' SQL.

A query by delta-rs of a table of sixty files takes 30 ms of CPU, during which no other thread runs. Arrow reads a file in
0.5 ms (measured). Each session appends a file and reads all: so a process keeps the rows of files that it has read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mergerepl.delta.footers import has_int96
from mergerepl.delta.own_state import OwnState
from mergerepl.delta.sql_text import quoted, text_literal
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.objects import FileFacts
from mergerepl.store.storage import facts_of, is_local

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_FILES = 96
_MOST_BYTES = 1 << 20

_MOST_KEPT_BYTES = 32 << 20
_BYTES_BESIDE_ROWS = 16 << 10
"""The memory that a file of one row takes: Arrow's columns, buffers and schema (measured with twelve columns)."""
_kept: "dict[tuple[Location, FileFacts], tuple[pa.Table, int]]" = {}
"""The rows of a file and their bytes, by what its folder says of it; those that were used last come last."""
_kept_lock = Lock()


@dataclass(frozen=True)
class Chosen:
    """Rows within bounds (column -> what its values exceed, and their maximum), and among some values of columns.

    `or_null`: a row that has no value in one of these columns is chosen, too.
    """

    bounds: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    among: Mapping[str, Collection[int | str]] = field(default_factory=dict)
    or_null: Collection[str] = ()

    @property
    def columns(self) -> set[str]:
        """The columns that decide."""
        return {*self.bounds, *self.among, *self.or_null}

    @property
    def sql(self) -> str:
        """The condition in delta-rs' SQL."""
        terms = []
        for name, values in self.among.items():
            texts = [text_literal(each) if isinstance(each, str) else str(each) for each in values]
            terms.append(f"{quoted(name)} in ({', '.join(texts)})" if texts else "false")
        for name, (above, most) in self.bounds.items():
            terms += [f"{quoted(name)} > {above}"] if above is not None else []
            terms += [f"{quoted(name)} <= {most}"] if most is not None else []
        nulls = [f"{quoted(name)} is null" for name in self.or_null]
        return " or ".join([f"({' and '.join(terms) or 'true'})", *nulls])

    def of(self, rows: "pa.Table") -> "pa.Table":
        """Return the chosen rows of some."""
        import pyarrow as pa
        import pyarrow.compute as pc

        chosen = pa.scalar(True)
        for name, values in self.among.items():
            known = pa.array([*values], rows[name].type)
            chosen = pc.and_kleene(chosen, pc.is_in(rows[name], value_set=known))
        for name, (above, most) in self.bounds.items():
            if above is not None:
                chosen = pc.and_kleene(chosen, pc.greater(rows[name], above))
            if most is not None:
                chosen = pc.and_kleene(chosen, pc.less_equal(rows[name], most))
        for name in self.or_null:
            chosen = pc.or_kleene(chosen, pc.is_null(rows[name]))
        return rows if isinstance(chosen, pa.Scalar) else rows.filter(chosen)


def _without_views(rows: "pa.Table") -> "pa.Table":
    """Return rows with texts as Arrow filters them: a DELETE of delta-rs writes them as views, inside of lists, too."""
    import pyarrow as pa

    plain = pa.schema([each.with_type(_plain_type(each.type)) for each in rows.schema])
    return rows if plain == rows.schema else rows.cast(plain)


def _plain_type(given: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    def plain(each: pa.Field) -> pa.Field:
        return each.with_type(_plain_type(each.type))

    if pa.types.is_string_view(given):
        return pa.string()
    if pa.types.is_binary_view(given):
        return pa.binary()
    if pa.types.is_list(given):
        return pa.list_(plain(given.value_field))
    if pa.types.is_struct(given):
        return pa.struct([plain(given.field(i)) for i in range(given.num_fields)])
    if pa.types.is_map(given):
        return pa.map_(plain(given.key_field), plain(given.item_field))
    return given


def rows_of_few_files(table: Location) -> "tuple[int, pa.Table] | None":
    """Return the head of a system table in a folder, and its rows; None if delta-rs has to read it.

    It reads tables of many files or features, and what is damaged: so its errors stay the same.
    """
    if not is_local(table):
        return None
    try:
        state = open_table(table)
    except StoreError:
        return None
    if not isinstance(state, OwnState):
        return None
    files = state.own.files
    if not 0 < len(files) <= _MOST_FILES or sum(each["size"] for each in files.values()) > _MOST_BYTES:
        return None
    import pyarrow as pa

    try:
        parts = [_rows_of_file(table / unquote(path)) for path in files]
        read = [each for each in parts if each is not None]
        if len(read) < len(parts):
            return None
        found = pa.concat_tables(read, promote_options="default")
    except (OSError, pa.ArrowException):
        return None
    # delta-rs reads other types, as of a column that was widened, and columns that no file has.
    names = {each["name"] for each in state.fields}
    return (state.version, found) if names == {*found.column_names} else None


def _rows_of_file(at: Location) -> "pa.Table | None":
    """Return the rows of a data file; None if Arrow may read other times than Spark wrote.

    Raises: OSError; ArrowException also for text that is no UTF-8.
    """
    import pyarrow.parquet as pq

    key = at, facts_of(at)
    with _kept_lock:
        if (kept := _kept.pop(key, None)) is not None:
            _kept[key] = kept
            return kept[0]
    with pq.ParquetFile(at) as opened:
        if has_int96(opened.metadata):
            return None
        found = _without_views(opened.read(use_threads=False))
    found.validate(full=True)
    with _kept_lock:
        _kept[key] = found, found.nbytes + _BYTES_BESIDE_ROWS
        while sum(size for _, size in _kept.values()) > _MOST_KEPT_BYTES:
            del _kept[next(iter(_kept))]
    return found

"""The keys of the rows that an UPDATE of delta-rs changed, if its commit proves them (decision 0039).

delta-rs computes an UPDATE a second time for its change files. Their values may differ from the written ones
(`random()`). They leave out a row that compares as equal before and after, and may hold a copied NaN. So only keys are
taken from change files. The rows with these keys in the removed and added files are compared. If as many of them differ
as the UPDATE counted, no other row changed.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

from mergerepl.delta.commit_files import (
    CHANGE_TYPE,
    MOST_KEYS_BYTES,
    UpdateKeys,
    files_of,
    read_rows,
    readable_rows,
    without_copied,
)
from mergerepl.delta.engine_choice import NeedsSparkError, require_texts
from mergerepl.delta.log import commit_text, log_actions
from mergerepl.delta.parquet_files import parquet_source
from mergerepl.delta.small_writer import COLUMN_PROPERTIES, KEY_TYPES, type_problem
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import StoreError
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

    from mergerepl.delta.commit_files import Wanted

MOST_KEYS = 10_000
"""The most updated rows of a commit: their keys are constants of a query."""

_MOST_CONSTANTS = 5 * MOST_KEYS
"""The most values of a column in one query, of all its commits."""

_MOST_HELD_BYTES = 16 << 20
"""The largest rows of a commit that are cached for the next reader, for the last 64 commits."""

REMEDY = "Change few rows by MERGE of delta-rs (`DeltaTable.merge`) or through Spark: then only the changed rows are read."


def update_keys(table: Location, version: int, key: Sequence[str]) -> UpdateKeys:
    """Return the keys of the rows that a commit changed, an UPDATE by delta-rs, if it proves them.

    `key` are the key's columns. A subset is enough, but reads more rows.
    """
    return _update_keys(table, version, tuple(key), commit_text(table, version))


@lru_cache(maxsize=64)
def _update_keys(table: Location, version: int, key: tuple[str, ...], _commit: str | None) -> UpdateKeys:
    import pyarrow as pa

    try:
        return _proven(open_table(table, version), key)
    except FileNotFoundError as error:
        return UpdateKeys(doubt=f"'{error.filename}' is gone", is_gone=True)
    except (NeedsSparkError, StoreError, OSError, KeyError, ValueError, pa.ArrowException) as error:
        return UpdateKeys(doubt=str(error))


def _proven(table: TableState, key: Sequence[str]) -> UpdateKeys:
    """Return the values of key columns of the rows that a version changed.

    Raises: NeedsSparkError with the reason if the values are not proven; OSError, ValueError, pyarrow's errors if a
    file cannot be read.
    """
    import pyarrow.compute as pc

    updated, copied = _counts(table)
    values = _stated_values(table, key)
    files = list(files_of(table.path, table.version, by_files=True))
    counts = readable_rows(table, [file for file, _ in files], most_bytes=MOST_KEYS_BYTES)
    for kind in ("delete", "insert"):
        if sum(n for n, (_, each) in zip(counts, files, strict=True) if each == kind) != updated + copied:
            raise NeedsSparkError("its files have other numbers of rows than it states")
    # A difference in some of the columns is enough.
    columns = [
        field["name"]
        for field in table.fields
        if isinstance(field["type"], str) and type_problem(field["type"]) is None
    ]
    rows = [(read_rows(file, table, columns, kind, values), kind) for file, kind in files]
    changed = without_copied(rows, columns)[CHANGE_TYPE]
    if any(pc.sum(pc.equal(changed, kind)).as_py() != updated for kind in ("delete", "insert")):
        raise NeedsSparkError(
            f"it updated {updated:,} rows, and not as many differ by the keys in its change files"
        )
    is_small = sum(each.nbytes for each, _ in rows) <= _MOST_HELD_BYTES
    return UpdateKeys(values, tuple(rows) if is_small else ())


def _counts(table: TableState) -> tuple[int, int]:
    actions = log_actions(table.path, table.version)
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    if info.get("operation") != "UPDATE":
        raise NeedsSparkError(f"it is a {info.get('operation')} by an old version")
    metrics = info.get("operationMetrics") or {}
    stated = [str(metrics.get(f"num_{name}_rows", "")) for name in ("updated", "copied")]
    if not all(text.isdecimal() for text in stated):
        raise NeedsSparkError("it does not count its rows")
    updated, copied = map(int, stated)
    if not 0 < updated <= MOST_KEYS:
        raise NeedsSparkError(f"it updated {updated:,} rows; the most is {MOST_KEYS:,}")
    return updated, copied


def _stated_values(table: TableState, key: Sequence[str]) -> "Wanted":
    """Return the values of key columns in the change files of a version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [name for name in key if _is_usable(table, name)]
    if not names:
        raise NeedsSparkError("its key is of no type that rows are looked up by")
    files = list(files_of(table.path, table.version, by_files=False))
    if any(kind is not None for _, kind in files):
        raise NeedsSparkError("it has no change files")
    # One row before and one after each update; some copied ones may be included.
    if sum(readable_rows(table, [file for file, _ in files])) > 3 * MOST_KEYS:
        raise NeedsSparkError("its change files have too many rows")
    schema = pa.schema([table.arrow_schema.field(name) for name in names])
    rows = pa.concat_tables(
        [pq.ParquetFile(parquet_source(file)).read(names).select(names).cast(schema) for file, _ in files]
    )
    require_texts(rows)
    return {name: rows[name].unique() for name in names}


def _is_usable(table: TableState, name: str) -> bool:
    """Whether Spark and Arrow look up the same rows by a column that data files hold."""
    stated = table.field(name)
    return (
        stated is not None
        and isinstance(stated["type"], str)
        and stated["type"] in KEY_TYPES
        # CHAR(n), collations and mapped names are properties.
        and COLUMN_PROPERTIES.issuperset(stated["metadata"])
        and name not in table.metadata.partition_columns
        and "." not in name
    )


def has_key(keys: Sequence[UpdateKeys]) -> str:
    """Return Spark SQL for whether a row has a key that one of some commits changed, with few false positives.

    A column with too many values is left out: more rows are read then.
    """
    import pyarrow as pa

    names = reduce(set[str].intersection, (set(each.values) for each in keys))
    found = (
        (name, pa.concat_arrays([each.values[name] for each in keys]).unique()) for name in sorted(names)
    )
    few = (_is_among(quote(name), values) for name, values in found if len(values) <= _MOST_CONSTANTS)
    return " AND ".join(few) or "true"


def _is_among(column: str, values: "pa.Array[Any]") -> str:
    import pyarrow as pa

    stated = values.drop_null()
    if pa.types.is_date(values.type):
        texts = [f"date_from_unix_date({each})" for each in stated.cast(pa.int32()).to_pylist()]
    elif pa.types.is_integer(values.type):
        texts = [str(each) for each in stated.to_pylist()]
    else:
        # A session may read a backslash in a text in two ways.
        texts = [f"CAST(X'{each.encode().hex()}' AS STRING)" for each in stated.to_pylist()]
    terms = [f"{column} IN ({', '.join(texts)})"] if texts else []
    terms += [f"{column} IS NULL"] if values.null_count else []
    return f"({' OR '.join(terms)})"

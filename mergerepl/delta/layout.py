"""The layout of a table's rows in its files: it determines how many rows are rewritten for one changed row."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mergerepl.delta.commits import Commit, TruncatedLogError, find_own_commit, read_commit
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import APPLY, CommitMark
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.types import Json
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024**2
"""The size of rewritten files."""

CLUSTERING = "clustering"
"""The feature of a table that has or had clustering columns."""

STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
_INDEXED_BY_DEFAULT = 32

_LISTED = re.compile(r"(?:`(?:[^`]|``)*`|[^,`])+")
"""A column in a list of columns: quoted where its name has a comma."""

_LOOKED_AT, _MERGES = 20, 5
"""The last commits of a table that are read, and the last MERGEs among them that count."""


_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
"""A part of a column's path: quoted where its name has a dot."""


@dataclass(frozen=True)
class Layout:
    """The files of a table at one version.

    `rows` is None if the log does not state row counts. `row_bytes` is the size of a row in the files that state
    theirs, None without such files. `bounded` counts the files that state bounds of every key column, so that a search
    by key may skip them. `properties` are to be set so that new files state these bounds.
    """

    files: int
    rows: int | None
    row_bytes: float | None
    bytes: int
    largest_bytes: int
    bounded: int
    properties: dict[str, str]


def layout(table: TableState, key: Sequence[str]) -> Layout:
    """Return the layout of a table's rows, by its log alone. `key` are the columns whose bounds count."""
    # Without pyarrow, which takes `status` half a second to load.
    names, files = table.file_values(["size_bytes", "num_records", *(f"min.{name}" for name in key)])
    sizes = files["size_bytes"]
    # Delta states no number of rows of a file without statistics.
    counts = files.get("num_records") or [None] * len(sizes)
    is_counted = None not in counts and "deletionVectors" not in table.features
    stated_rows = sum(each or 0 for each in counts)
    stated = sum(size for size, count in zip(sizes, counts, strict=True) if count is not None)
    # Partition columns have their values in the log.
    others = table.metadata.partition_columns
    bounded = [name for name in key if name not in others and table.field(name) is not None]
    # Unknown here: bounds of columns that the table's properties leave out, and of `a.b` next to a field b of a struct
    # a.
    bounds = [files[f"min.{name}"] for name in bounded if names.count(f"min.{name}") == 1]
    has_bounds = [
        count == 0 or all(each[number] is not None for each in bounds) for number, count in enumerate(counts)
    ]
    return Layout(
        len(sizes),
        stated_rows if is_counted else None,
        stated / stated_rows if stated_rows else None,
        sum(sizes),
        max(sizes, default=0),
        sum(has_bounds),
        _statistics_properties(table, bounded),
    )


def _statistics_properties(table: TableState, wanted: Sequence[str]) -> dict[str, str]:
    """Return the property that makes Delta state bounds of these columns, too; empty if it already does."""
    stated = table.properties.get(STATISTICS_COLUMNS)
    if stated is not None:
        named = [[part.lower() for part in path_of(each.strip())] for each in _LISTED.findall(stated)]
        missing = [quote(name) for name in wanted if [name.lower()] not in named]
        return {STATISTICS_COLUMNS: ",".join([*filter(None, [stated.strip()]), *missing])} if missing else {}
    text = table.properties.get(INDEXED_COLUMNS, "")
    indexed = int(text) if re.fullmatch(r"-?\d+", text) else _INDEXED_BY_DEFAULT
    position = needed = 0
    for field in table.fields:
        if field["name"] not in table.metadata.partition_columns:
            position += _leaves(field["type"])
            needed = position if field["name"] in wanted else needed
    return {INDEXED_COLUMNS: str(needed)} if 0 <= indexed < needed else {}


def _leaves(type_: Json) -> int:
    """Return the number of columns for which Delta counts one; the fields of a struct are counted one by one."""
    if isinstance(type_, str) or type_["type"] != "struct":
        return 1
    return sum(_leaves(field["type"]) for field in type_["fields"])


def last_commits(table: TableState) -> Iterator[Commit]:
    """Yield the last commits of a table since its last OPTIMIZE, the newest first."""
    for version in range(table.version, max(table.version - _LOOKED_AT, -1), -1):
        try:
            commit = read_commit(table.path, version)
        except TruncatedLogError:
            return
        if commit.operation == "OPTIMIZE":
            return
        yield commit


def last_merges(table: TableState) -> list[Commit]:
    """Return the last MERGEs of sessions into a table since its last OPTIMIZE, the newest first."""
    merges = (each for each in last_commits(table) if each.operation == "MERGE" and each.kind == APPLY)
    return list(islice(merges, _MERGES))


def refuse_unclustered(spark: "SparkSession", table: TableState, key: Sequence[str]) -> None:
    """Check that a table with the feature `clustering` is clustered: Delta refuses to rewrite any other.

    Raises: StoreError.
    """
    if CLUSTERING in table.features and not clustering_columns(lambda: spark, table):
        raise StoreError(
            f"Table '{table.path}' has the feature `clustering` and no clustering columns, so that Delta does not write it "
            "again in another order. Nothing was changed. Cluster it by its key, then run again: ALTER TABLE "
            f"delta.{quote(str(table.path))} CLUSTER BY ({', '.join(map(quote, key))}).",
            table=str(table.path),
        )


def write_in_key_order(
    spark: "SparkSession", table: TableState, key: Sequence[str], file_bytes: int, mark: CommitMark
) -> TableState:
    """Rewrite a table in key order and files of about `file_bytes`, in one marked commit that changes no data.

    A table with clustering columns keeps their order. The caller holds the replica.

    Returns: The table at that commit; unchanged if Delta found nothing to rewrite.

    Raises: CommitConflictError if another process overwrote the commit; StoreError if it changed data or rows; Delta's
    error if another writer's commit came first.
    """
    from mergerepl.delta.transactions import session_with_mark

    session = session_with_mark(spark, mark)
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(file_bytes))
    # Delta reads and writes values of partition columns as text.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # A boolean or binary key has no bounds, but its order is as good.
    session.conf.set("spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled", "false")
    columns = [quote(name) for name in key if name not in table.metadata.partition_columns]
    order = f"ZORDER BY ({', '.join(columns)})" if columns else ""
    order = "FULL" if CLUSTERING in table.features else order
    session.sql(f"OPTIMIZE delta.{quote(str(table.path))} {order}")
    commit = find_own_commit(table.path, mark, from_version_exclusive=table.version)
    if commit is None and head_version(table.path) == table.version:
        return table
    if commit is None:
        raise CommitConflictError(
            f"Table '{table.path}': the commit that wrote its files again is not in its log; another process overwrote it. "
            "Stop other writers, or let them hold `mergerepl.lock(path)`, and run again.",
            table=str(table.path),
        )
    before, after = open_table(table.path, commit.version - 1), open_table(table.path, commit.version)
    rows = [layout(each, key).rows for each in (before, after)]
    if commit.data_change or (None not in rows and rows[0] != rows[1]):
        raise StoreError(
            f"Table '{table.path}': its version {commit.version} should hold the {rows[0]} rows of the version before it "
            f"in other files, and holds {rows[1]}. Put the table back: RESTORE TABLE delta.{quote(str(table.path))} "
            f"TO VERSION AS OF {commit.version - 1}.",
            table=str(table.path),
            version=commit.version,
        )
    return after


def clustering_columns(spark_of: "Callable[[], SparkSession]", table: TableState) -> list[list[str]]:
    """Return the columns a table is clustered by, each as its path of names; empty if it is not clustered."""
    if "clustering" not in table.features:
        return []
    (detail,) = spark_of().sql(f"DESCRIBE DETAIL delta.{quote(str(table.path))}").collect()
    return [path_of(name) for name in detail["clusteringColumns"] or ()]


def path_of(name: str) -> list[str]:
    """Return the parts of a column's dotted name."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(name)]

"""A small table's rows, given to an empty table as copies of its files: no Spark job, and the same bits.

An append by Delta on Spark takes 0.7 s for the smallest table, most of it to rebuild the table's state twice. Spark copies
values that it would write differently (times of another calendar, INT96), columns that it checks, and larger tables.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mergerepl.delta.log import find_own_commit
from mergerepl.delta.plain_files import plain_files
from mergerepl.delta.small_writer import feature_problem, footer_problem
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.transactions import Transaction, read_back
from mergerepl.delta.types import has_not_null_parts, leaf_types

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

logger = logging.getLogger(__name__)

MOST_FILES = 100
MOST_BYTES = 64 * 1024 * 1024
"""The largest source; Spark copies larger ones with all cores, and states bounds of every column."""

_LONGEST_BOUND = 64
"""Characters of a text that a commit states as a bound."""

_PLAIN_COLUMN = frozenset({"comment"})
_FLOATS = frozenset({"float", "double"})
_SPARKS_WRITER = "parquet-mr"
_BOUNDED = frozenset({"byte", "short", "integer", "long", "string"})


def copy_files(source: TableState, target: Path, transaction: Transaction) -> bool:
    """Give the rows of a version to an empty table of the same columns, once. Returns False where Spark is to do it.

    Raises: CommitConflictError if the commit is not in the log afterwards; OSError if a file cannot be copied.
    """
    if find_own_commit(target, transaction.mark, from_version_exclusive=0) is not None:
        return True
    state = open_table(target)
    footers = _footers(source, state)
    if footers is None:
        return False
    from deltalake import Transaction as LogTransaction
    from deltalake.transaction import AddAction, CommitProperties

    def copied(file: Path, footer: "FileMetaData") -> AddAction:
        copy = target / f"part-{uuid4()}.parquet"
        shutil.copyfile(file, copy)
        stat, stats = copy.stat(), json.dumps(_stats(footer, source))
        return AddAction(copy.name, stat.st_size, {}, int(stat.st_mtime * 1000), True, stats)

    state.log.create_write_transaction(
        [copied(file, footer) for file, footer in footers.items()],
        mode="append",
        schema=state.log.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": transaction.mark.to_user_metadata()},
            app_transactions=[LogTransaction(transaction.app_id, transaction.version)],
        ),
    )
    read_back(target, transaction, from_version_exclusive=state.version)
    return True


def _footers(source: TableState, target: TableState) -> "dict[Path, FileMetaData] | None":
    """Return the files of a source with their footers; None where their rows may not be taken as they are."""
    import pyarrow.parquet as pq

    files = plain_files(source)
    if files is None or len(files) > MOST_FILES or target.metadata.partition_columns:
        return None
    if feature_problem(source) is not None or any(_is_checked(field) for field in source.fields):
        return None
    if [field["name"] for field in source.fields] != [field["name"] for field in target.fields]:
        return None
    paths = [source.path / each["path"] for each in files]
    try:
        if sum(path.stat().st_size for path in paths) > MOST_BYTES:
            return None
        footers = {path: pq.read_metadata(path) for path in paths}
    except (OSError, ValueError) as error:
        logger.info("%s is copied by Spark: %s", source.path, error)
        return None
    required = [field["name"] for field in source.fields if not field["nullable"]]
    has_floats = any(leaf_types(field["type"]) & _FLOATS for field in source.fields)
    for footer in footers.values():
        # Bounds of floats that other libraries write leave NaN out, and readers skip such rows.
        is_sparks = str(footer.created_by).startswith(_SPARKS_WRITER)
        if footer_problem(footer) is not None or (has_floats and not is_sparks):
            return None
        if not all(_has_no_null(footer, name) for name in required):
            return None
    return footers


def _is_checked(field: dict[str, Any]) -> bool:
    """Return whether Delta on Spark checks, pads or computes a column's values as it writes them."""
    return bool(set(field["metadata"]) - _PLAIN_COLUMN) or has_not_null_parts(field["type"])


def _has_no_null(footer: "FileMetaData", name: str) -> bool:
    return footer.num_rows == 0 or _null_count(footer, name) == 0


def _null_count(footer: "FileMetaData", name: str) -> int | None:
    """Return how many NULLs a top-level column of a plain type has in a file; None where the footer does not say."""
    groups = _statistics(footer, name)
    if any(each is None or not each.has_null_count for each in groups) or not groups:
        return None
    return sum(int(each.null_count) for each in groups)


def _statistics(footer: "FileMetaData", name: str) -> list[Any]:
    index = {footer.schema.column(i).path: i for i in range(len(footer.schema))}.get(name)
    if index is None or "." in name:
        return []
    return [footer.row_group(i).column(index).statistics for i in range(footer.num_row_groups)]


def _stats(footer: "FileMetaData", table: TableState) -> dict[str, Any]:
    """Return what a commit records of a file (PROTOCOL.md, Per-file Statistics), from the file's own footer."""
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for field in table.fields:
        name = field["name"]
        if not isinstance(field["type"], str) or field["type"] not in _BOUNDED:
            continue
        if (nulls := _null_count(footer, name)) is None:
            continue
        bounds = _bounds(_statistics(footer, name))
        if bounds is not None:
            stats["minValues"][name], stats["maxValues"][name] = bounds
            stats["nullCount"][name] = nulls
    return stats


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of a column of whole numbers or short texts, None where there are none."""
    if not all(each.has_min_max for each in groups):
        return None
    try:
        ends = [end for each in groups for end in (each.min, each.max)]
    except ValueError:
        # A text that is no UTF-8.
        return None
    is_short = all(isinstance(end, int) or len(end) <= _LONGEST_BOUND for end in ends)
    return (min(ends), max(ends)) if is_short else None

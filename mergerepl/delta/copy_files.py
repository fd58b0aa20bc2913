"""A small table's rows, given to an empty table as copies of its files: without a Spark job, bit for bit.

An append by Delta on Spark takes 0.7 s for the smallest table, most of it to rebuild the table's state twice. Spark copies
values that it would write differently (times of another calendar, INT96, NaN), columns that it checks, and larger tables.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from mergerepl.delta.commits import find_own_commit
from mergerepl.delta.footers import commit_statistics, footer_problem, null_count, read_footer
from mergerepl.delta.parquet_files import has_nan
from mergerepl.delta.reads import plain_files
from mergerepl.delta.small_writer import constraint_problem, feature_problem
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.types import Field, has_not_null_parts, leaf_types
from mergerepl.delta.writes import add_files
from mergerepl.store.location import Location
from mergerepl.store.storage import copy_file, facts_of

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

logger = logging.getLogger(__name__)

MOST_FILES = 100
MOST_BYTES = 64 * 1024 * 1024
"""The largest source; Spark copies larger ones with all cores, and states bounds of every column."""

_PLAIN_COLUMN = frozenset({"comment"})
_FLOATS = frozenset({"float", "double"})
_SPARKS_WRITER = "parquet-mr"
_BOUNDED = frozenset({"byte", "short", "integer", "long", "string"})


def copy_files(source: TableState, target: Location, transaction: Transaction) -> bool:
    """Give the rows of a version to an empty table of the same columns, once. Returns False if Spark has to do it.

    Raises: CommitConflictError if the commit is not in the log afterwards; OSError if a file cannot be copied.
    """
    if find_own_commit(target, transaction.mark, from_version_exclusive=0) is not None:
        return True
    state = open_table(target)
    footers = _footers(
        source, [each["name"] for each in state.fields], is_partitioned=bool(state.metadata.partition_columns)
    )
    if footers is None:
        return False
    bounded = [
        field["name"]
        for field in source.fields
        if isinstance(field["type"], str) and field["type"] in _BOUNDED
    ]
    copies = {}
    for file, footer in footers.items():
        copy = target / f"part-{uuid4()}.parquet"
        copy_file(file, copy)
        copies[copy] = commit_statistics(footer, bounded)
    add_files(state, copies, transaction)
    return True


def can_copy_files(source: TableState, columns: Sequence[str]) -> bool:
    """True if `copy_files` gives these columns to a new table without Spark."""
    is_partitioned = bool(source.metadata.partition_columns)
    return _footers(source, columns, is_partitioned=is_partitioned) is not None


def _footers(
    source: TableState, columns: Sequence[str], *, is_partitioned: bool
) -> "dict[Location, FileMetaData] | None":
    """Return the files of a source with their footers; None if their rows cannot be copied unchanged."""
    files = plain_files(source)
    if files is None or len(files) > MOST_FILES or is_partitioned:
        return None
    # Delta on Spark checks, pads or computes some columns' values on writing.
    is_checked = (
        set(each["metadata"]) - _PLAIN_COLUMN or has_not_null_parts(each["type"]) for each in source.fields
    )
    if feature_problem(source) or constraint_problem(source) or any(is_checked):
        return None
    if [each["name"] for each in source.fields] != [*columns]:
        return None
    paths = [source.path / each["path"] for each in files]
    try:
        if sum(facts_of(path).size for path in paths) > MOST_BYTES:
            return None
        footers = {path: read_footer(path) for path in paths}
    except (OSError, ValueError) as error:
        logger.info("%s is copied by Spark: %s", source.path, error)
        return None
    required = [field["name"] for field in source.fields if not field["nullable"]]
    floats = [field for field in source.fields if leaf_types(field["type"]) & _FLOATS]
    for path, footer in footers.items():
        if footer_problem(footer, source.names) is not None:
            return None
        # Bounds of floats by other libraries leave NaN out, and readers skip such rows.
        if not str(footer.created_by).startswith(_SPARKS_WRITER) and _may_have_nan(path, floats):
            return None
        if footer.num_rows and any(null_count(footer, name) != 0 for name in required):
            return None
    return footers


def _may_have_nan(file: Location, columns: Sequence[Field]) -> bool:
    """Whether a file may have NaN in one of these columns, which hold floats. It is not looked for in nested types."""
    if any(not isinstance(column["type"], str) for column in columns):
        return True
    return has_nan(file, [column["name"] for column in columns])

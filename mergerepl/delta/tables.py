"""Delta tables for all other rooms: open, read, append, merge, overwrite, create.

What a commit does is in `writes` and `merge`, that it happens once in `transactions`, and what Spark reads in `reads`. This
module loads neither Spark nor deltalake.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mergerepl.delta.create import NewTable, create_table, is_vacant
from mergerepl.delta.log import (
    Commit,
    TruncatedLogError,
    as_seen,
    commit_text,
    commits,
    find_own_commit,
    head_version,
    is_another_commit,
    is_as_seen,
    is_delta_table,
    is_folder,
    read_commit,
    table_place_problem,
    written_ns,
)
from mergerepl.delta.opened import tables_kept_open
from mergerepl.delta.small_tables import (
    Row,
    arrow_schema,
    arrow_value,
    column_names,
    count_rows,
    counts_by,
    delete_rows,
    edited_table,
    is_of_odd_text,
    python_rows,
    read_rows,
    remove_unused_files,
    typed_rows,
    update_rows,
    version_and_rows,
    write_rows,
)
from mergerepl.delta.table import TableState, file_names, open_table, reason_of, row_constraints
from mergerepl.delta.transactions import (
    Transaction,
    commit_once,
    lost_commits,
    marked_session,
    read_back,
    retry_conflicts,
    session_with_mark,
    transaction_version,
)
from mergerepl.delta.writes import (
    add_columns,
    append,
    commit_transaction,
    compact,
    overwrite,
    retype_columns,
    state_features,
)

if TYPE_CHECKING:
    from mergerepl.delta.merge import analyse_merge, merge_into, merge_rows, merges_prepared
    from mergerepl.delta.reads import (
        Bounds,
        foreign_file,
        may_hold,
        plain_files,
        read_columns,
        read_files,
        read_version,
        write_files,
    )

_ON_SPARK = {
    **dict.fromkeys(("analyse_merge", "merge_into", "merge_rows", "merges_prepared"), "merge"),
    **dict.fromkeys(("Bounds", "foreign_file", "may_hold", "plain_files", "read_columns"), "reads"),
    **dict.fromkeys(("read_files", "read_version", "write_files"), "reads"),
}
"""Names whose modules load pyspark, when they are asked for."""


def __getattr__(name: str) -> Any:
    if name in _ON_SPARK:
        return getattr(import_module(f"mergerepl.delta.{_ON_SPARK[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


__all__ = [
    "Bounds",
    "Commit",
    "NewTable",
    "Row",
    "TableState",
    "Transaction",
    "TruncatedLogError",
    "add_columns",
    "analyse_merge",
    "append",
    "arrow_schema",
    "arrow_value",
    "as_seen",
    "column_names",
    "commit_once",
    "commit_text",
    "commit_transaction",
    "commits",
    "compact",
    "count_rows",
    "counts_by",
    "create_table",
    "delete_rows",
    "edited_table",
    "file_names",
    "find_own_commit",
    "foreign_file",
    "head_version",
    "is_another_commit",
    "is_as_seen",
    "is_delta_table",
    "is_folder",
    "is_of_odd_text",
    "is_vacant",
    "lost_commits",
    "marked_session",
    "may_hold",
    "merge_into",
    "merge_rows",
    "merges_prepared",
    "open_table",
    "overwrite",
    "plain_files",
    "python_rows",
    "read_back",
    "read_columns",
    "read_commit",
    "read_files",
    "read_rows",
    "read_version",
    "reason_of",
    "remove_unused_files",
    "retry_conflicts",
    "retype_columns",
    "row_constraints",
    "session_with_mark",
    "state_features",
    "table_place_problem",
    "tables_kept_open",
    "transaction_version",
    "typed_rows",
    "update_rows",
    "version_and_rows",
    "write_files",
    "write_rows",
    "written_ns",
]

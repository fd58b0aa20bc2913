"""Delta tables for all other rooms: open, read, append, merge, overwrite, create.

The effect of commits is in `writes` and `merge`, their once-only execution in `transactions`, Spark's reads in `reads`.
This module loads neither Spark nor deltalake.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mergerepl.delta.chosen_rows import Chosen
from mergerepl.delta.commits import Commit, TruncatedLogError, commits, find_own_commit, read_commit
from mergerepl.delta.create import NewTable, create_table, is_vacant
from mergerepl.delta.kept_knowledge import adopt_knowledge, keep_knowledge
from mergerepl.delta.known_heads import trust_heads
from mergerepl.delta.log import (
    as_seen,
    commit_text,
    forget_recent_head,
    head_version,
    is_another_commit,
    is_as_seen,
    is_delta_table,
    list_logs,
    recent_head,
    table_place_problem,
    written_ns,
)
from mergerepl.delta.opened import tables_kept_open
from mergerepl.delta.own_checkpoints import COMMITS_BETWEEN, INTERVAL_PROPERTY, OWN_INTERVAL
from mergerepl.delta.small_tables import (
    Row,
    arrow_schema,
    column_names,
    count_rows,
    counts_by,
    delete_rows,
    edited_table,
    has_values,
    is_of_odd_text,
    python_rows,
    read_rows,
    typed_rows,
    update_rows,
    version_and_rows,
    way_back,
    write_rows,
)
from mergerepl.delta.table import TableState, file_names, open_table, reason_of, row_constraints
from mergerepl.delta.transactions import (
    Transaction,
    commit_fence,
    commit_once,
    lost_commits,
    marked_session,
    next_transaction,
    read_back,
    retry_conflicts,
    session_with_mark,
    transaction_version,
)
from mergerepl.delta.unused_files import FEW, KEPT, KEPT_ROWS, remove_unused
from mergerepl.delta.writes import (
    add_columns,
    alter_table,
    append,
    compact,
    missing_features,
    overwrite,
    retype_columns,
    set_comment,
    state_features,
)

if TYPE_CHECKING:
    from mergerepl.delta.merge import analyse_merge, merge_into, merge_rows, merges_prepared
    from mergerepl.delta.reads import (
        SPARK_SCHEMA,
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
    **dict.fromkeys(("Bounds", "SPARK_SCHEMA", "foreign_file", "may_hold"), "reads"),
    **dict.fromkeys(("plain_files", "read_columns", "read_files", "read_version", "write_files"), "reads"),
}
"""Names whose modules load pyspark on first use."""


def __getattr__(name: str) -> Any:
    if name in _ON_SPARK:
        return getattr(import_module(f"mergerepl.delta.{_ON_SPARK[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

"""`apply_changes`: net changes into a Delta table, exactly once. The target's own log holds the cursor (cdc.md 10)."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import roots
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.intervals import checked_lsn
from mergerepl.cdc.net_rows import ALL_WITH_MERGE
from mergerepl.cdc.new_instance import SYSTEM_FOLDERS
from mergerepl.cdc.queries import net_of, open_window, reading_session
from mergerepl.cdc.refusals import CdcUsageError, LsnRangeError
from mergerepl.cdc.source_rows import snapshot
from mergerepl.delta.append import append, commit_transaction
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import head_version, is_delta_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.merge import merge_into
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, marked_session, read_back, transaction_version
from mergerepl.delta.types import field, nullable
from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import plain_errors
from mergerepl.engine.in_memory import keep_in_memory, let_go
from mergerepl.failpoints import failpoint
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import AppliedChanges
from mergerepl.model.later import answers_later
from mergerepl.rows.sql import quote
from mergerepl.store.folders import make_folder
from mergerepl.store.lease import lease, replica_root
from mergerepl.systables.cdc import DELETE, LSN_TIME_MAPPING, OPERATION, ChangeTable

log = logging.getLogger(__name__)

_END_OF_CYCLE = (1 << 16) - 1
"""A slot above all that a cycle gives out."""

_LATE = timedelta(hours=1)
"""A cursor that is so far behind is moved even if no row changed: cleanup must not pass it."""


@dataclass(frozen=True)
class _Target:
    """A table that changes are applied to, and the consumer of its cursor."""

    path: Path
    app_id: str
    database_id: str
    consumer: str

    @property
    def cursor(self) -> int:
        """The scan cycle through which changes were applied; -1 before the first ones."""
        return transaction_version(self.path, self.app_id) if is_delta_table(self.path) else -1

    def transaction(self, scan_cycle: int) -> Transaction:
        return Transaction(
            self.app_id, scan_cycle, CommitMark(self.database_id, f"consume:{self.consumer}:{scan_cycle}")
        )


@answers_later("cdc", CdcUsageError.later)
def apply_changes(
    database: str | os.PathLike[str],
    instance: str,
    target: str | os.PathLike[str],
    consumer: str,
    *,
    keys: Sequence[str] | None = None,
    initial: bool = True,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> AppliedChanges:
    """Bring a Delta table to the newest state of an instance: one MERGE of its net changes, exactly once.

    The commit that changes rows also moves the cursor (a Delta transaction of the target), so a run that died and is
    repeated changes nothing twice. The first run fills the target, new or empty, from a snapshot.

    Args:
        database: The folder.
        instance: Name of the capture instance.
        target: The table to keep; made if it is not there. It has the captured columns, and may have more.
        consumer: Name of this consumer: each has a cursor of its own.
        keys: The columns that identify a row, for an instance without a key; by default the instance's.
        initial: Fill a target without a cursor from a snapshot. Else its rows are taken as they are, and changes are
            applied from start_lsn on.
        spark: The Spark session; by default the running one, or an embedded one.
        lock_wait_s: Seconds to wait for others that hold the target's folder.

    Raises: CdcUsageError for a wrong parameter or an unusable target; LsnRangeError 313 if cleanup passed the cursor;
        CdcError 22838 if a key had two rows at once; CommitConflictError if another writer won the commit: run again.
    """
    if not consumer or not consumer.replace("-", "").replace("_", "").isalnum():
        raise CdcUsageError.bad_parameter(
            22990, "consumer", consumer, "a name has letters, digits, - and _ only"
        )
    found = database_at(database)
    chosen = found.instance(instance)
    path = Path(roots.parse(os.fspath(target)))
    _check_place(found, path)
    key = _key(found, chosen, keys)
    database_id = read_state(found.log).database.database_id
    aim = _Target(path, f"mergerepl-consume-{database_id}-{consumer}", database_id, consumer)
    make_folder(path.parent)
    root = replica_root(path)
    with (
        plain_errors("changes were applied"),
        lease(
            path.parent if root == path else root, purpose=f"cdc apply of '{consumer}'", wait_s=lock_wait_s
        ),
    ):
        cursor = aim.cursor
        if cursor < 0 and initial:
            return _filled(found, chosen, aim, reading_session(spark))
        to_lsn = checked_lsn(found, chosen, None)
        from_lsn = Lsn(chosen.start_lsn) if cursor < 0 else Lsn.of(cursor, _END_OF_CYCLE)
        if cursor == to_lsn.scan_cycle:
            return AppliedChanges(str(path), None, None)
        if cursor > to_lsn.scan_cycle:
            asked = f"what follows scan cycle {cursor}, which '{path}' has"
            raise LsnRangeError.outside(
                chosen.capture_instance, "above_high", asked, low=Lsn(chosen.start_lsn), high=to_lsn
            )
        return _merged(found, chosen, aim, key, from_lsn, to_lsn, reading_session(spark))


def _check_place(database: Database, path: Path) -> None:
    """Check that a target is a table of its own.

    Raises: CdcUsageError.
    """
    sources = {database.root / row.source_path for row in read_state(database.log).sources.values()}
    if any(part in SYSTEM_FOLDERS for part in path.parts):
        raise CdcUsageError.bad_parameter(22990, "target", str(path), "it is no folder of system tables")
    if path in sources:
        raise CdcUsageError.bad_parameter(22990, "target", str(path), "it is another table than a source")


def _key(database: Database, instance: ChangeTable, keys: Sequence[str] | None) -> tuple[str, ...]:
    own = tuple(row.column_name for row in database.key(instance.object_id))
    if own and (keys is None or sorted(keys) == sorted(own)):
        return own
    if own or not keys:
        allowed = f"the key of this instance: {', '.join(own)}" if own else "it names the columns of the key"
        raise CdcUsageError.bad_parameter(22990, "keys", keys, allowed)
    captured = [row.column_name for row in database.captured(instance.object_id)]
    for name in keys:
        if name not in captured:
            raise CdcUsageError.unknown_column(instance.capture_instance, name, captured)
    return tuple(keys)


def _filled(database: Database, instance: ChangeTable, aim: _Target, spark: SparkSession) -> AppliedChanges:
    """Fill a new or empty target from a snapshot, in the commit that sets the cursor."""
    first = snapshot(database.root, instance.capture_instance, spark=spark)
    if not is_delta_table(aim.path):
        table = open_table(database.change_table(instance))
        types = {each["name"]: nullable(each["type"]) for each in table.fields}
        fields = [field(name, types[name]) for name in first.rows.columns]
        create_table(aim.path, NewTable(fields), CommitMark(aim.database_id, "consume:create"))
        failpoint("cdc.after_target_created")
    else:
        _check_columns(aim, first.rows.columns)
        if not read_version(spark, aim.path, head_version(aim.path)).isEmpty():
            raise CdcUsageError.bad_parameter(
                22990,
                "target",
                str(aim.path),
                f"it has rows and no cursor of consumer '{aim.consumer}'. Name a new or empty table; or take its rows as "
                "they are at start_lsn (initial=False, --no-initial)",
            )
    before = head_version(aim.path)
    append(first.rows, aim.path, aim.transaction(first.lsn.scan_cycle))
    rows = int(_metrics(aim, before).get("numOutputRows", "0"))
    return AppliedChanges(str(aim.path), None, first.lsn, rows, is_snapshot=True)


def _metrics(aim: _Target, before: int) -> dict[str, str]:
    commits = open_table(aim.path).commits_after(before)
    return next((dict(each.metrics) for each in commits if aim.app_id in each.txns), {})


def _check_columns(aim: _Target, columns: Sequence[str]) -> None:
    known = [each["name"] for each in open_table(aim.path).fields]
    for name in columns:
        if name.lower() not in map(str.lower, known):
            raise CdcUsageError.unknown_column(str(aim.path), name, known)


def _merged(
    database: Database,
    instance: ChangeTable,
    aim: _Target,
    key: tuple[str, ...],
    from_lsn: Lsn,
    to_lsn: Lsn,
    spark: SparkSession,
) -> AppliedChanges:
    if not is_delta_table(aim.path):
        raise CdcUsageError.bad_parameter(22990, "target", str(aim.path), "it is a Delta table")
    transaction = aim.transaction(to_lsn.scan_cycle)
    session = marked_session(spark, transaction)
    window = open_window(database, instance.capture_instance, from_lsn, to_lsn, session)
    _check_columns(aim, window.captured)
    rows = keep_in_memory(net_of(window, key, ALL_WITH_MERGE, ordered=False))
    try:
        counted = rows.groupBy(quote(OPERATION)).count().collect()
        counts: dict[int, int] = {row[0]: row[1] for row in counted}
        if not counts:
            _move_cursor(database, aim, from_lsn, to_lsn)
            return AppliedChanges(str(aim.path), from_lsn, to_lsn)
        before = head_version(aim.path)
        _merge(session, rows, aim.path, key, window.captured)
        failpoint("cdc.after_applied")
        read_back(aim.path, transaction, from_version_exclusive=before)
    finally:
        let_go(rows)
    deleted = counts.pop(DELETE, 0)
    return AppliedChanges(str(aim.path), from_lsn, to_lsn, sum(counts.values()), deleted)


def _merge(
    session: SparkSession, rows: DataFrame, target: Path, key: Sequence[str], captured: Sequence[str]
) -> None:
    on = F.lit(True)
    for name in key:
        on = on & F.col(f"t.{quote(name)}").eqNullSafe(F.col(f"s.{quote(name)}"))
    merge, _ = merge_into(session, rows, target, on)
    values = {quote(name): F.col(f"s.{quote(name)}") for name in captured}
    is_delete = F.col(f"s.{quote(OPERATION)}") == DELETE
    merge = merge.whenMatchedDelete(condition=is_delete).whenMatchedUpdate(
        condition=~is_delete, set=dict(values)
    )
    merge.whenNotMatchedInsert(condition=~is_delete, values=dict(values)).execute()


def _move_cursor(database: Database, aim: _Target, from_lsn: Lsn, to_lsn: Lsn) -> None:
    """Move the cursor over a window without rows, if cleanup might pass it: a commit with the transaction alone."""
    newest = "order by start_lsn desc limit 1"
    now, then = (
        database.control.rows(LSN_TIME_MAPPING, where=f"start_lsn <= X'{lsn.hex()}'", order_limit=newest)
        for lsn in (to_lsn, from_lsn)
    )
    if then and now[0].tran_end_time - then[0].tran_end_time <= _LATE and aim.cursor >= 0:
        return
    commit_transaction(aim.path, aim.transaction(to_lsn.scan_cycle))
    log.info("%s: cursor of %s moved to %s", aim.path, aim.consumer, to_lsn)

"""`Instance.load`: net changes into a Delta table, exactly once (cdc.md 10)."""

import logging
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from mergerepl import roots
from mergerepl.cdc.change_rows import ALL, IS_DOUBTFUL, net_rows
from mergerepl.cdc.merge_few import counts_of, merge_few, merge_in_process
from mergerepl.cdc.monitoring import source_status
from mergerepl.cdc.queries import (
    keys_twice,
    open_window,
    refuse_twice,
    snapshot,
    with_rows_at_end,
    without_doubtful,
)
from mergerepl.cdc.refusals import NOTHING, CdcError, CdcUsageError, LsnRangeError, refuse_in_store
from mergerepl.cdc.tables import CdcTables, checked_lsn, entry_of
from mergerepl.cdc.target import Position, Target, after_cycle, fit_columns, misfits_of
from mergerepl.delta.batch_end import LeftAt, left_at
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import (
    NewTable,
    Transaction,
    append,
    create_table,
    forget_recent_head,
    head_version,
    is_delta_table,
    lost_commits,
    marked_session,
    merge_into,
    open_table,
    overwrite,
    read_back,
    read_version,
    retry_conflicts,
    tables_kept_open,
)
from mergerepl.delta.types import field, nullable
from mergerepl.failpoints import failpoint
from mergerepl.frames import Column, DataFrame, F
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.plan import BEGIN
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import AppliedChanges
from mergerepl.rows.images import all_true
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept, is_for_one_task, is_small
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease, replica_root
from mergerepl.store.location import Location
from mergerepl.store.storage import make_folder
from mergerepl.systables.cdc import DELETE, INSERT, OPERATION, SEQVAL, START_LSN, ChangeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TWICE = "mergerepl: a row that is new is there"
"""The error that a MERGE raises before it commits, if the target has a row that the window inserts."""


def load(
    tables: CdcTables,
    instance: str,
    target: str | os.PathLike[str],
    *,
    consumer: str,
    key: Sequence[str] | None,
    initial: bool,
    restart: bool,
) -> AppliedChanges:
    """Bring a Delta table to the newest state of an instance, as `Instance.load` says."""
    if not consumer or not consumer.replace("-", "").replace("_", "").isalnum():
        raise CdcUsageError.bad_parameter(
            22990, "consumer", consumer, "a name has letters, digits, - and _ only"
        )
    if restart and not initial:
        raise CdcUsageError.bad_parameter(22990, "restart and initial=False", True, "choose one of them")
    chosen = tables.instance(instance)
    path = Location.of(roots.parse(os.fspath(target), may_be_stored=True))
    refuse_in_store(path, "`cdc load` into a table", "load into a local or mounted folder")
    _check_place(tables, path)
    columns = _key(tables, chosen, key)
    own = f" --key {shlex.quote(','.join(key))}" if key and not tables.key(chosen.object_id) else ""
    place, into = shlex.quote(str(tables.root)), shlex.quote(str(path))
    command = f"mergerepl cdc load {chosen.capture_instance} -f {place} --into {into}"
    database_id = read_state(tables.log).database.database_id
    again = f"{command} --consumer {consumer}{own}"
    aim = Target(path, database_id, consumer, again, chosen.source_object_id)
    make_folder(path.parent)
    root = replica_root(path)
    with (
        plain_errors("changes were applied"),
        lease(
            path.parent if root == path else root,
            purpose=f"cdc load of '{consumer}'",
            wait_s=tables.lock_wait_s,
        ),
        tables_kept_open(tables.root, path),
    ):
        done = _applied(tables, chosen, aim, columns, initial=initial, restart=restart)
        state = source_status(tables, chosen)
    paused = None if state.status == "active" else str(state.reason)
    return replace(done, paused=paused, unread_commits=state.unread_commits)


def _applied(
    database: CdcTables,
    instance: ChangeTable,
    aim: Target,
    key: tuple[str, ...],
    *,
    initial: bool,
    restart: bool,
) -> AppliedChanges:
    known = None if restart else aim.position()
    begins = known is None
    if known is None and not initial:
        if not is_delta_table(aim.path):
            raise CdcUsageError.bad_parameter(22990, "target", str(aim.path), "it is a Delta table")
        left = left_at(aim.path, head_version(aim.path))
        known = Position(Lsn(instance.start_lsn), left, is_shared=True)
    if known is None:
        return _filled(database, instance, aim, key, restart=restart)
    position, since = aim.caught_up(known)
    if position.from_lsn is None:
        return _filled(database, instance, aim, key, restart=False)
    try:
        to_lsn = checked_lsn(database, instance, None)
        from_lsn = _from_lsn(database, instance, position.from_lsn)
        if from_lsn.scan_cycle > to_lsn.scan_cycle:
            raise CdcError(
                22859,
                f"Target '{aim.path}' has the changes through scan cycle {from_lsn.scan_cycle}, and the last one of "
                f"'{database.root}' is {to_lsn.scan_cycle}: the database was restored from an older copy. Nothing "
                f"was changed. Replace the target's rows by a snapshot: `{aim.command} --restart`.",
                table=str(aim.path),
            )
        if from_lsn > to_lsn:
            if position != known:
                aim.save(position)
            return AppliedChanges(str(aim.path), None, None, foreign_commits=len(since.foreign))
        done = _merged(database, instance, aim, key, from_lsn, to_lsn, position, begins=begins)
        return replace(done, foreign_commits=len(since.foreign))
    except LsnRangeError as error:
        if error.reason == "below_low":
            raise LsnRangeError(
                f"Capture instance '{instance.capture_instance}': changes that '{aim.path}' lacks were cleaned up, or were "
                f"made before the instance began again: the low end is {Lsn(instance.start_lsn)} now. {NOTHING} Replace "
                f"its rows by a snapshot: `{aim.command} --restart`; or name a new or empty table.",
                reason=error.reason,
                capture_instance=instance.capture_instance,
                low=error.low,
                high=error.high,
            ) from error
        raise


def _from_lsn(database: CdcTables, instance: ChangeTable, stored: Lsn) -> Lsn:
    """Return the beginning of a window.

    A low end that cleanup moved to the very next LSN removed nothing in between. A low end where the source began again
    did: earlier changes were never captured.
    """
    low = Lsn(instance.start_lsn)
    is_next = low.slot == 1 and low.scan_cycle == stored.scan_cycle + 1
    if stored >= low or not is_next or stored != after_cycle(stored.scan_cycle):
        return stored
    entry = entry_of(database, low)
    begun = {each["source_object_id"] for each in entry.commits} if entry and entry.kind == BEGIN else set()
    return stored if instance.source_object_id in begun else low


def _check_place(database: CdcTables, path: Location) -> None:
    """Check that a target is a separate table. Raises: CdcUsageError."""
    sources = {database.root / row.source_path for row in read_state(database.log).sources.values()}
    if any(part in roots.RESERVED_FOLDERS for part in path.parts):
        raise CdcUsageError.bad_parameter(22990, "target", str(path), "it is no folder of system tables")
    if path in sources:
        raise CdcUsageError.bad_parameter(22990, "target", str(path), "it is another table than a source")


def _key(database: CdcTables, instance: ChangeTable, keys: Sequence[str] | None) -> tuple[str, ...]:
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


def _filled(
    database: CdcTables, instance: ChangeTable, aim: Target, key: tuple[str, ...], *, restart: bool
) -> AppliedChanges:
    """Fill a target from a snapshot in one commit, then note the position: a new or empty one, or any (`restart`)."""
    spark = database.spark
    first = snapshot(database, instance)
    refuse_twice(instance, first.rows, key)
    transaction = aim.transaction(first.lsn.scan_cycle, begins=True)
    keeps_columns = True
    if not is_delta_table(aim.path):
        table = open_table(database.change_table(instance))
        types = {each["name"]: nullable(each["type"]) for each in table.fields}
        fields = [field(name, types[name]) for name in first.rows.columns]
        create_table(aim.path, NewTable(fields), CommitMark(aim.database_id, "consume:create"))
        failpoint("cdc.after_target_created")
    elif restart:
        names = {each["name"].lower() for each in open_table(aim.path).fields}
        keeps_columns = bool(names - set(map(str.lower, first.rows.columns))) or not misfits_of(
            database, instance, aim.path
        )
    if keeps_columns:
        fit_columns(database, instance, aim.path, lambda: spark, aim.command)
    state = open_table(aim.path)
    filling = first.rows
    if keeps_columns:
        # Delta refuses to append a decimal to a wider one.
        known = {each.name.lower(): each for each in state.schema}
        columns = ((name, known[name.lower()]) for name in first.rows.columns)
        filling = filling.select(
            *(F.col(quote(name)).cast(each.dataType).alias(each.name) for name, each in columns)
        )
    if not restart:
        if not read_version(spark, aim.path, state.version).isEmpty():
            raise CdcUsageError(
                22990,
                f"Target '{aim.path}' has rows and no cursor of consumer '{aim.consumer}': nothing says which "
                f"changes they have. Nothing was changed. Replace its rows by a snapshot: `{aim.command} --restart`; "
                "name a new or empty table; or, only if its rows are those of the source at start_lsn or later, "
                "take them as they are: `--no-initial` (initial=False).",
                table=str(aim.path),
                consumer=aim.consumer,
            )
        aim.save(Position(None, left_at(aim.path, state.version)))
        append(filling, aim.path, transaction)
    else:
        overwrite(
            *(filling, aim.path, transaction),
            partition_columns=state.metadata.partition_columns,
            keeps_columns=keeps_columns,
        )
    failpoint("cdc.after_filled")
    commit = read_back(aim.path, transaction, from_version_exclusive=state.version)
    aim.save(Position(after_cycle(first.lsn.scan_cycle), left_at(aim.path, commit.version)))
    rows = int(commit.metrics.get("numOutputRows", "0"))
    return AppliedChanges(str(aim.path), None, first.lsn, rows, is_snapshot=True)


def _merged(
    database: CdcTables,
    instance: ChangeTable,
    aim: Target,
    key: tuple[str, ...],
    from_lsn: Lsn,
    to_lsn: Lsn,
    position: Position,
    *,
    begins: bool,
) -> AppliedChanges:
    """Apply a window, in one commit if it has rows, then note the position."""
    transaction = aim.transaction(to_lsn.scan_cycle, begins=begins)
    fit_columns(database, instance, aim.path, lambda: database.spark, aim.command)
    of, is_shared, ends = None, position.is_shared, (from_lsn, to_lsn)
    try:
        of = merge_in_process(database, instance, aim.path, key, ends, transaction, is_shared=is_shared)
    except NeedsSparkError as error:
        log.info("Spark: %s", error)
    except CommitFailedError:
        forget_recent_head(aim.path)
        is_shared = True
    if of is None:
        batch = _Batch(database, instance, aim, key, ends, transaction, position.left)
        of = _merged_by_spark(batch, is_shared=is_shared)
    if of:
        failpoint("cdc.after_applied")
        read_back(aim.path, transaction, from_version_exclusive=position.left.version)
    aim.arrived(to_lsn.scan_cycle, position)
    deleted = of.pop(DELETE, 0)
    return AppliedChanges(str(aim.path), from_lsn, to_lsn, sum(of.values()), deleted)


@dataclass(frozen=True)
class _Batch:
    """The net changes between two LSNs that one run applies, in one transaction, after the commit `left`."""

    database: CdcTables
    instance: ChangeTable
    aim: Target
    key: tuple[str, ...]
    ends: tuple[Lsn, Lsn]
    transaction: Transaction
    left: LeftAt


def _merged_by_spark(batch: _Batch, *, is_shared: bool) -> dict[int, int]:
    """Merge the net changes that Spark reads, in one commit if there are any. Returns their number by operation.

    `is_shared`: other writers have changed the target's rows.
    """
    database, aim, key = batch.database, batch.aim, batch.key
    kept = Kept()
    with marked_session(database.spark, batch.transaction, aim.path) as session, ExitStack() as stack:
        stack.callback(kept.release)
        of_session = database.in_session(session)
        window = open_window(of_session, batch.instance.capture_instance, *batch.ends)
        net = net_rows(window.rows, key, window.captured, ALL, compared=window.present)
        rows, doubtful = without_doubtful(kept.keep(net), key)
        counts = counts_of(kept.frames[0], IS_DOUBTFUL)
        if any(is_doubtful for _, is_doubtful in counts):
            rows = kept.keep(with_rows_at_end(of_session, window, rows, doubtful, key, ALL))
            counts = counts_of(rows)
        of = {operation: count for (operation, *_), count in counts.items()}
        is_few = is_for_one_task(sum(of.values())) and is_small(kept.frames[-1])
        has_lost = is_shared

        def merge() -> None:
            nonlocal has_lost
            is_alone, has_lost = not has_lost, True
            if is_few and is_alone:
                try:
                    return merge_few(rows, aim.path, key, window.captured, batch.transaction)
                except NeedsSparkError as error:
                    log.info("Spark: table '%s': %s", aim.path, error)
            if not is_alone:
                # Another writer's commit may have come first; it may have replaced the rows.
                aim.since(batch.left)
                _refuse_twice_there(session, rows, aim, key)
            try:
                _merge(session, rows, aim.path, key, window.captured, is_strict=True)
            except (PySparkException, Py4JJavaError) as error:
                if _TWICE not in str(error):
                    raise
                # The target had another row of the key, or another writer inserted it. The source decides.
                known = read_version(session, aim.path, head_version(aim.path))
                new = rows.alias("n").where(f"{quote(OPERATION)} = {INSERT}")
                new = new.join(known.alias("d"), _same_key(key, "n", "d"), "left_semi")
                new = new.select(*map(quote, (*key, START_LSN, SEQVAL)))
                settled = with_rows_at_end(of_session, window, rows, new, key, ALL)
                _merge(session, settled, aim.path, key, window.captured, is_strict=False)

        if of:
            lost = lost_commits(f"'{aim.path}'", "the consumer", "Run again.", table=str(aim.path))
            retry_conflicts(merge, aim.path, lost)
        return of


def _refuse_twice_there(session: "SparkSession", rows: DataFrame, aim: Target, key: Sequence[str]) -> None:
    """Check that a target that other writers changed has each key once: all its rows would get the same values.

    Raises: CdcError 22838 naming keys.
    """
    there = read_version(session, aim.path, head_version(aim.path)).alias("t")
    kept = rows.where(f"{quote(OPERATION)} <> {DELETE}").alias("n")
    if twice := keys_twice(there.join(kept, _same_key(key, "t", "n"), "left_semi"), key):
        raise CdcError(
            22838,
            f"Target '{aim.path}' has more than one row of a key ({', '.join(key)}) that changed: "
            f"{'; '.join(twice)}. Others wrote to it. Nothing was changed. Delete all but one of these rows in the "
            f"target and run again; or replace its rows by a snapshot: `{aim.command} --restart`.",
            table=str(aim.path),
        )


def _same_key(key: Sequence[str], one: str, other: str) -> Column:
    return all_true(
        [F.col(f"{one}.{quote(name)}").eqNullSafe(F.col(f"{other}.{quote(name)}")) for name in key]
    )


def _merge(
    session: "SparkSession",
    rows: DataFrame,
    target: Location,
    key: Sequence[str],
    captured: Sequence[str],
    *,
    is_strict: bool,
) -> None:
    """Merge net changes into the target. `is_strict`: fail, before anything is written, if a new row exists already."""
    merge, _ = merge_into(session, rows, target, _same_key(key, "t", "s"))
    values = {quote(name): F.col(f"s.{quote(name)}") for name in captured}
    operation = F.col(f"s.{quote(OPERATION)}")
    if is_strict:
        refused: dict[str, str | Column] = {
            quote(key[0]): F.raise_error(F.concat(F.lit(_TWICE), operation.cast("string")))
        }
        merge = merge.whenMatchedUpdate(condition=operation == INSERT, set=refused)
    merge = merge.whenMatchedDelete(condition=operation == DELETE)
    merge = merge.whenMatchedUpdate(condition=operation != DELETE, set=dict(values))
    merge.whenNotMatchedInsert(condition=operation != DELETE, values=dict(values)).execute()

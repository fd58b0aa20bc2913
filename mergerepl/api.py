"""The public functions, called by the CLI and imported by notebooks and jobs through `mergerepl`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from mergerepl import roots
from mergerepl.errors import ConfigurationError, EngineError, MergeReplError
from mergerepl.model.conflicts import (
    Choice,
    ConflictCount,
    ConflictFilter,
    PurgeResult,
    ResolveResult,
    RetryResult,
    Wish,
)
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.store.location import Location
from mergerepl.targets import Project as Project
from mergerepl.targets import Target, items_of, publishers_of, root_of, targets_of, transactional_target
from mergerepl.targets import load as load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mergerepl.model.results import (
        ArticleValidation,
        CaptureResult,
        ConflictRecord,
        PartitionInfo,
        PendingSubscription,
        ReplicaStatus,
        RowInfo,
        SessionRecord,
        SessionResult,
        SyncResult,
        TuneResult,
    )

Direction = Literal["both", "upload", "download"]
Level = Literal["rowcount", "checksum"]
Engine = Literal["spark", "auto"]
T = TypeVar("T")

SILENT_WAIT_S, LOCK_WAIT_S = 2.0, 60.0
"""Seconds that a transactional `sync` waits for another one: before it reports the wait, and after that."""

LONGEST_LIST = 10**9
"""The highest `limit`. The query engine takes 64 bits, and `None` is all there are."""


def _saying_who_works(work: Callable[[float], T], progress: Progress) -> T:
    """Run work that waits for a lock, by default for a minute. After two seconds, report the holder."""
    from mergerepl.errors import LeaseError

    try:
        return work(SILENT_WAIT_S)
    except LeaseError as error:
        progress.step(f"wait for a minute: {error.message}")
        return work(LOCK_WAIT_S)


def _distributed(
    root: Location, publication: str | None, subscriber: str | Path | None, progress: Progress
) -> Iterator[SessionResult]:
    """Read the log of a publisher, then run its distribution agents; each is reported as a session that downloads."""
    from mergerepl.model.results import PhaseCounts, SessionResult
    from mergerepl.transactional import agents, log_reader
    from mergerepl.transactional.catalog import distributor_at, subscriptions_of

    _saying_who_works(lambda wait_s: log_reader.logreader(root, lock_wait_s=wait_s), progress)
    distributor = distributor_at(root)
    found = subscriptions_of(distributor, subscriber=subscriber, publication=publication)
    for name, row in found:
        started = time.monotonic()
        try:
            agent = partial(agents.run_agent, distributor, name, row, log_reader.spark_of(None))
            done = _saying_who_works(lambda wait_s, run=agent: run(lock_wait_s=wait_s), progress)  # type: ignore[misc]
        except MergeReplError as error:
            if len(found) == 1:
                raise
            took = round(time.monotonic() - started, 3)
            yield SessionResult(name, row.subscriber, "failed", duration_s=took, error=error.details())
            continue
        yield SessionResult(
            name,
            row.subscriber,
            "succeeded" if done.transactions else "nothing_to_do",
            download=PhaseCounts(done.inserts, done.updates, done.deletes),
            duration_s=round(time.monotonic() - started, 3),
        )
        if done.transactions:
            from mergerepl.transactional import cleaning

            cleaning.clean_up_once_a_day(root)
    log_reader.require_read(distributor, publication)


def sync(
    target: Project | str | Path | Sequence[Project | str | Path],
    *,
    subscriber: str | Path | None = None,
    direction: Direction = "both",
    dry_run: bool = False,
    validate: Level | None = None,
    long_running: bool = False,
    engine: Engine | None = None,
    lease_wait_s: float = 0.0,
    give_up: str | None = None,
    progress: Progress | None = None,
) -> SyncResult:
    """Synchronise subscriptions, one session each: of a project, a file, publishers (all their subscriptions), subscribers.

    `dry_run` reports the changes and the winners of conflicts without writing; `validate` compares the replicas
    after the session. With `long_running` the embedded engine is tuned for many sessions rather than for one.
    `engine` `spark` lets Spark write all tables; with `auto` delta-rs writes where up to 100,000 rows changed and
    the table uses no feature that only Spark writes. The resulting tables are the same; the default is the file's
    `engine`, else `auto`. `lease_wait_s` are seconds to wait for another agent to release a replica. `give_up`, the
    id (or its beginning) of a staged session that cannot be finished, ends that session and runs none; one that can
    be finished is finished.

    Returns: One result per session. If there are several, a session that fails has the status `failed`; the only one
        raises. An article that fails while others go on is listed in `refused` of its session, which then has an
        `error`: check `ok`.

    Raises: ConfigurationError if an argument is wrong, a root is not a replica or the subscription does not exist
        (no session has begun). If there is one session only: PublicationError, CaptureError, SchemaMismatchError,
        EnumerationError, ConflictError, ApplyError, RefusedArticlesError (no article could go on);
        UnfinishedSessionError, StoreError, EngineError (the next run finishes the staged session); LeaseError,
        CommitConflictError, OutOfReachError, EngineLostError (run again).
    """
    from mergerepl.model.results import SyncResult

    _require_choice("direction", direction, get_args(Direction))
    if engine is not None:
        _require_choice("engine", engine, get_args(Engine))
    if validate is not None:
        _require_choice("level of validation", validate, get_args(Level))
        if dry_run:
            raise ConfigurationError(
                "A dry run changes nothing that could be validated afterwards: leave out `validate`, or run "
                "`mergerepl validate` by itself."
            )
    if give_up is not None:
        if dry_run or validate is not None or subscriber is not None or direction != "both":
            raise ConfigurationError("A session is given up alone: leave out the other options.")
        return _given_up(target, give_up, lease_wait_s)
    items = [
        load(item) if not isinstance(item, Project) and roots.names_file(os.fspath(item)) else item
        for item in items_of(target)
    ]
    transactional = [found for item in items if (found := transactional_target(item)) is not None]
    sessions: list[SessionResult] = []
    if transactional:
        unfit = {
            "merge publications": len(transactional) != len(items),
            "`--direction`": direction != "both",
            "`--dry-run`": dry_run,
            "`--validate`": validate is not None,
            "`--engine`": engine is not None,
        }
        if any(unfit.values()):
            raise ConfigurationError(
                "A transactional publication is synchronized alone, and goes one way: leave out "
                f"{', '.join(name for name, is_given in unfit.items() if is_given)}. `mergerepl transactional browse` "
                "shows the commands that wait; `mergerepl validate` compares."
            )
        for each in transactional:
            sessions += _distributed(*each, subscriber, progress or NoProgress())
        if not sessions:
            raise ConfigurationError(
                "There is no subscription. Add `subscriptions:` to the file and run `mergerepl apply FILE`."
            )
        return SyncResult(sessions[0].publication, tuple(sessions))
    targets = targets_of(items, subscriber)
    shown = progress or NoProgress()
    for item in targets:
        started = time.monotonic()
        done: SessionResult | None = None
        try:
            chosen = item if engine is None else replace(item, engine=engine)
            done = _session(chosen, direction, dry_run, long_running, lease_wait_s, shown)
            if validate is not None:
                from mergerepl.monitoring.validate import validate_subscription

                validation = validate_subscription(
                    item.publisher, item.subscriber, item.publication, validate
                )
                done = replace(done, validation=validation)
        except MergeReplError as error:
            if len(targets) == 1:
                raise
            done = _failed(item, done, error, time.monotonic() - started)
        sessions.append(done)
    return SyncResult(sessions[0].publication, tuple(sessions))


def _given_up(
    target: Project | str | Path | Sequence[Project | str | Path], session: str, lease_wait_s: float
) -> SyncResult:
    from mergerepl.merge.session.recovery import give_up_session
    from mergerepl.model.results import SyncResult
    from mergerepl.replica.replica import Replica
    from mergerepl.spark import session as engine

    publishers = sorted({publisher for item in items_of(target) for publisher in publishers_of(item)})
    if len(publishers) != 1:
        named = ", ".join(map(str, publishers)) or "none"
        raise ConfigurationError(
            f"A session is given up at one publisher; here are {named}. Name the publisher's folder."
        )
    result = give_up_session(
        Replica(publishers[0]).require(), session, spark_of=engine.session, lease_wait_s=lease_wait_s
    )
    return SyncResult(result.publication, (result,))


def _session(
    item: Target,
    direction: Direction,
    dry_run: bool,
    long_running: bool,
    lease_wait_s: float,
    progress: Progress,
) -> SessionResult:
    from mergerepl.monitoring.quiet import (
        nothing_to_do,
        remember_quiet,
        remember_subscriptions,
        waiting_if_quiet,
    )

    place = (item.publisher, item.subscriber, item.publication, direction)
    waiting = None if dry_run else waiting_if_quiet(*place)
    if waiting is not None:
        return nothing_to_do(item.subscriber, item.publication, waiting)
    from mergerepl.merge.session.merge_session import SessionRequest, merge_session
    from mergerepl.merge.session.session_history import record_unreached
    from mergerepl.replica.subscription import find_subscription

    name = item.publication
    try:
        publisher, subscriber, row = find_subscription(item.publisher, item.subscriber, name)
    except MergeReplError as error:
        if not dry_run:
            record_unreached(item.publisher, item.subscriber, name, error)
        raise

    def spark_of() -> SparkSession:
        from mergerepl.spark import session as engine

        return engine.session(long_running=long_running)

    request = SessionRequest(
        publisher,
        subscriber,
        row,
        name,
        spark_of,
        progress,
        engine=item.engine,
        upload=direction != "download",
        download=direction != "upload",
    )
    if dry_run:
        from mergerepl.merge.session.preview import preview_session

        return preview_session(request)
    result = merge_session(request, lease_wait_s=lease_wait_s)
    if result.status == "nothing_to_do":
        # Another `apply` may have run while the session waited for its leases.
        remember_quiet(publisher.reread(), subscriber.reread(), name, direction, waiting=result.waiting)
        remember_subscriptions(publisher.root)
    return result


def _require_choice(what: str, given: str, choices: Sequence[str]) -> None:
    """Refuse a value that a type checker would refuse; unchecked, it would silently mean another one."""
    if given not in choices:
        raise ConfigurationError(f"There is no {what} {given!r}. Choose one of {', '.join(choices)}.")


def _require_limit(limit: int) -> None:
    """Refuse a limit that the query engine cannot take: its error would look like a damaged table."""
    if not 0 <= limit <= LONGEST_LIST:
        raise ConfigurationError(f"The limit is out of range: give one from 0 to {LONGEST_LIST:,}.")


def _failed(
    item: Target, done: SessionResult | None, error: MergeReplError, duration_s: float
) -> SessionResult:
    """Return the result of a session that raised, or of one that is `done` and could not be validated."""
    from mergerepl.model.results import SessionResult

    if done is not None:
        return replace(done, error=error.details())
    return SessionResult(
        item.publication,
        str(item.subscriber),
        "failed",
        duration_s=round(duration_s, 3),
        error=error.details(),
    )


def capture(replica: str | Path, *, progress: Progress | None = None) -> CaptureResult:
    """Capture the users' changes of one replica now, without a session.

    Raises: ConfigurationError, CaptureError, SchemaMismatchError (nothing was changed), StoreError, EngineError;
        LeaseError (run again).
    """
    from mergerepl.merge.session.capture_replica import capture_replica

    return capture_replica(root_of(replica), progress=progress or NoProgress())


def tune(
    replica: str | Path,
    *,
    articles: Sequence[str] = (),
    file_bytes: int = 128 * 1024**2,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Rewrite tables of a replica whose file layout slows small changes. No row changes.

    Without `articles`, all tables. `file_bytes` is the approximate size of the new files; files up to twice as large
    are kept. With `dry_run` nothing is written, and no JVM starts.

    Raises: ConfigurationError; StoreError if a session is staged or a table cannot be written; PublicationError if Delta
        refuses a property; EngineError; LeaseError, CommitConflictError (run again: each table is written whole or not
        at all).
    """
    from mergerepl.monitoring.tune import tune_replica

    if file_bytes < 1:
        raise ConfigurationError("The size of files is out of range: give one above 0.")
    return tune_replica(
        root_of(replica),
        articles=articles,
        file_bytes=file_bytes,
        dry_run=dry_run,
        progress=progress or NoProgress(),
    )


def partitions(replica: str | Path, *, publication: str | None = None) -> tuple[PartitionInfo, ...]:
    """Return the partitions of a publisher's publications with row filters, or of one of them. Starts no JVM.

    Raises: ConfigurationError if the folder is not a replica, or publishes nothing of that name with row filters.
    """
    from mergerepl.publish.partitions import list_partitions

    return list_partitions(root_of(replica), publication=publication)


def add_partition(
    replica: str | Path,
    *,
    host_name: str | None = None,
    suser_sname: str | None = None,
    publication: str | None = None,
) -> PartitionInfo:
    """Add a partition at a publisher before its first subscription, and return it. An existing one is returned unchanged.

    Raises: ConfigurationError; PublicationError if the filters need another value, or cannot use this one; LeaseError (run
        again).
    """
    from mergerepl.filters.clause import SessionFunction
    from mergerepl.publish.partitions import add

    values = {SessionFunction.HOST_NAME: host_name, SessionFunction.SUSER_SNAME: suser_sname}
    return add(root_of(replica), values, publication=publication)


def drop_partition(replica: str | Path, partition_id: int) -> PartitionInfo:
    """Drop a partition without an active subscription, and return it.

    Raises: ConfigurationError if it does not exist; PublicationError if it is in use; LeaseError (run again).
    """
    from mergerepl.publish.partitions import drop

    return drop(root_of(replica), partition_id)


def status(replica: str | Path) -> ReplicaStatus:
    """Return a replica's identity, its publications and subscriptions, and their progress. Starts no JVM.

    Faults of a table and warnings of Change Data Capture are listed in `problems`, not raised.

    Raises: ConfigurationError if the folder is not a replica; PublicationError, StoreError if its system tables cannot
        be read.
    """
    from mergerepl.merge.session.table_problems import table_problems
    from mergerepl.monitoring.status import replica_status

    found = replica_status(root_of(replica), table_problems=table_problems)
    if not os.path.isdir(os.path.join(found.replica, "_cdc")):
        # The code below loads Spark's library.
        return found
    from mergerepl.cdc.monitoring import problems_at

    return replace(found, problems=(*found.problems, *problems_at(found.replica)))


def pending(replica: str | Path) -> tuple[PendingSubscription, ...]:
    """Return the pending changes per subscription. Starts no JVM.

    The count is unknown for an article with a `problem`, and for a subscription whose other end is out of reach.

    Raises: As `status`.
    """
    from mergerepl.merge.session.table_problems import table_problems
    from mergerepl.monitoring.pending import pending_changes

    return pending_changes(root_of(replica), table_problems=table_problems)


def history(
    replica: str | Path, *, limit: int = 20, subscriber: str | Path | None = None
) -> tuple[SessionRecord, ...]:
    """Return the last `limit` sessions, newest first, of one subscriber or of all. Starts no JVM.

    Raises: As `status`; ConfigurationError if the replica knows no such subscriber, or the limit is out of range.
    """
    from mergerepl.monitoring.history import session_history

    _require_limit(limit)
    only = None if subscriber is None else roots.parse(os.fspath(subscriber))
    return session_history(root_of(replica), limit=limit, subscriber=only)


def conflict_records(
    replica: str | Path,
    *,
    publication: str | None = None,
    article: str | None = None,
    conflict_id: str | None = None,
    limit: int | None = None,
    with_rows: bool = False,
    chosen: ConflictFilter | None = None,
) -> tuple[ConflictRecord, ...]:
    """Return logged conflicts, newest first. Starts no JVM.

    The publisher logs them, unless the file says otherwise. `conflict_id`, an id or its beginning, means one, with
    rows; `with_rows` adds `losing_row` and `winning_row`: column to value, None for a delete. `chosen` replaces
    publication, article and id. Without a `limit` all are returned, in memory.

    Raises: As `status`; ConfigurationError if a name or a chosen id is unknown, an id's beginning is ambiguous, or the
        limit is out of range.
    """
    from mergerepl.conflict_tools.listing import read_conflicts, require_ids

    if limit is not None:
        _require_limit(limit)
    if chosen is not None:
        require_ids(root_of(replica), chosen)
    return read_conflicts(
        root_of(replica),
        publication=publication,
        article=article,
        conflict_id=conflict_id,
        limit=limit,
        with_rows=with_rows or conflict_id is not None,
        chosen=chosen,
    )


def conflict_count(
    replica: str | Path,
    *,
    publication: str | None = None,
    article: str | None = None,
    chosen: ConflictFilter | None = None,
) -> int:
    """Return the number of logged conflicts; `chosen` replaces publication and article. Starts no JVM.

    Raises: As `conflict_records`.
    """
    from mergerepl.conflict_tools.listing import count_conflicts

    return count_conflicts(root_of(replica), chosen or ConflictFilter(publication, article))


def conflict_summary(replica: str | Path, chosen: ConflictFilter | None = None) -> tuple[ConflictCount, ...]:
    """Count conflicts by article, type, resolver and day, the newest day first. Starts no JVM.

    Raises: As `conflict_records`, and ConfigurationError if an id is unknown.
    """
    from mergerepl.conflict_tools import listing

    return listing.conflict_summary(root_of(replica), _chosen(replica, chosen))


def _chosen(replica: str | Path, chosen: ConflictFilter | None) -> ConflictFilter:
    from mergerepl.conflict_tools.listing import require_ids

    chosen = chosen or ConflictFilter()
    require_ids(root_of(replica), chosen)
    return chosen


def resolve_conflicts(
    replica: str | Path,
    chosen: ConflictFilter,
    *,
    accept: str | None = None,
    values: Mapping[str, str | None] | None = None,
    whole_rows: bool = False,
    force: bool = False,
    dry_run: bool = False,
    message: str = "",
    progress: Progress | None = None,
) -> ResolveResult:
    """Decide conflicts again, by an ordinary change of this replica that replicates everywhere.

    `accept` is `winner` (nothing is written, the conflict is settled) or `loser`; instead of it, `values` are set in
    each row: column to value as text (None: NULL). `whole_rows` writes the whole losing row, not just the columns in
    conflict; `force` writes rows, too, that were changed since the conflict. `message` is the reason, for the record.

    Raises: ConfigurationError if no conflict matches, or a column or value cannot be set; ConflictError if there are
        too many, a session is interrupted, or the article is no longer published; LeaseError, StoreError,
        CommitConflictError, EngineError.
    """
    from mergerepl.conflict_tools import resolve
    from mergerepl.spark import session as engine

    if (accept is None) == (not values):
        raise ConfigurationError("Say either what to accept (winner, loser) or which values to set.")
    _require_choice("accept", accept or "loser", ("winner", "loser"))
    choice = Choice.EDITED if accept is None else Choice(accept)
    wish = Wish(choice, dict(values or {}), whole_rows=whole_rows, force=force, message=message)
    return resolve.resolve_conflicts(
        engine.session, root_of(replica), chosen, wish, dry_run=dry_run, progress=progress or NoProgress()
    )


def retry_failed(
    replica: str | Path, *, publication: str | None = None, article: str | None = None
) -> RetryResult:
    """Let the next sessions resend changes that a table refused, though neither row nor table has changed. Starts no JVM.

    This covers the refused changes waiting at the replica, and those waiting for it at the replicas in reach.

    Raises: ConfigurationError if the folder is not a replica or a name is unknown; ConflictError if a session is
        interrupted; LeaseError, StoreError.
    """
    from mergerepl.conflict_tools import decide_again

    return decide_again.retry_failed(root_of(replica), publication=publication, article=article)


def resolver_functions() -> dict[str, str]:
    """Return this agent's functions for the resolver `custom`: name to description.

    Raises: ConfigurationError if the agent's file cannot be used.
    """
    from mergerepl.merge.resolvers.functions import known_functions

    return known_functions()


def purge_conflicts(
    replica: str | Path,
    chosen: ConflictFilter | None = None,
    *,
    older_than: timedelta | None = None,
    dry_run: bool = False,
) -> PurgeResult:
    """Remove conflicts with their losing rows; without `older_than`, those past the file's retention. Starts no JVM.

    Raises: ConfigurationError if the folder is not a replica, or a name or an id is unknown; LeaseError, StoreError.
    """
    from mergerepl.conflict_tools import purge

    return purge.purge_conflicts(
        root_of(replica), _chosen(replica, chosen), older_than=older_than, dry_run=dry_run
    )


def export_conflicts(
    replica: str | Path, folder: str | Path, chosen: ConflictFilter | None = None, *, form: str = "csv"
) -> dict[str, int]:
    """Write conflicts to a file for each article, as `csv` or `json`; return file to number of conflicts. Starts no JVM.

    Raises: As `conflict_records`, and ConfigurationError if an id is unknown or the folder cannot be written.
    """
    from mergerepl.conflict_tools import export

    _require_choice("form", form, ("csv", "json"))
    return export.export_conflicts(root_of(replica), Path(folder), _chosen(replica, chosen), form=form)


def conflict_report(
    replica: str | Path, file: str | Path, chosen: ConflictFilter | None = None, *, rows: int = 2000
) -> int:
    """Write the newest conflicts as one self-contained HTML page; return how many it shows. Starts no JVM.

    Raises: As `conflict_records`, and ConfigurationError if an id is unknown or the file cannot be written.
    """
    from mergerepl.conflict_tools.html_page import conflict_page
    from mergerepl.conflict_tools.listing import count_conflicts, read_conflicts

    _require_limit(rows)
    root, chosen = root_of(replica), _chosen(replica, chosen)
    records = read_conflicts(root, chosen=chosen, limit=rows, with_rows=True)
    page = conflict_page(str(root), records, total=count_conflicts(root, chosen))
    try:
        Path(file).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"The report cannot be written to '{file}': {error.strerror}. Name another file.", path=str(file)
        ) from error
    return len(records)


def conflicts(replica: str | Path, *, publication: str | None = None, article: str) -> DataFrame:
    """Return the losing rows of one article joined with MSmerge_conflicts_info, as a Spark DataFrame.

    Columns: the article's own, with the losing row's values (NULL for a losing delete), then those of
    MSmerge_conflicts_info (docs/system-tables.md); one whose name the article also uses is called `info_<name>`.

    Raises: ConfigurationError if the folder is not a replica or does not have the article; StoreError, EngineError.
    """
    from mergerepl.conflict_tools.listing import conflict_frame
    from mergerepl.spark import session as engine

    root = root_of(replica)
    return conflict_frame(engine.session(), root, publication=publication, article=article)


def row(
    replica: str | Path, *, article: str, key: Mapping[str, str], publication: str | None = None
) -> RowInfo:
    """Return lineage and colv1 of one row at every replica of the publication, as sp_showrowreplicainfo does.

    Starts a JVM only for tables that delta-rs cannot read, such as those with deletion vectors.

    `key` is column to value as text, one for each column that identifies a row. Replicas out of reach are named in the
    result.

    Raises: As `status`; ConfigurationError if a name is unknown or the key does not fit.
    """
    from mergerepl.monitoring.row import row_info

    return row_info(root_of(replica), article=article, key=key, publication=publication)


def validate(
    target: Project | str | Path | Sequence[Project | str | Path],
    *,
    subscriber: str | Path | None = None,
    level: Level = "checksum",
) -> dict[str, tuple[ArticleValidation, ...]]:
    """Compare subscribers with their publisher. Return subscriber root to one result per article, with the differing keys.

    Level `rowcount` starts a JVM only for tables whose log does not give it, such as those with deletion vectors. A
    subscriber that cannot be compared has the `error` at its articles when there are several; the only one raises.

    Raises: ConfigurationError if an argument is wrong, a root is not a replica or the subscription does not exist. If
        there is one subscription only: SchemaMismatchError if published columns are gone; StoreError if a table cannot
        be read; OutOfReachError (run again); EngineError.
    """
    from mergerepl.monitoring.validate import not_compared, validate_subscription

    _require_choice("level of validation", level, get_args(Level))
    compared: dict[str, tuple[ArticleValidation, ...]] = {}
    targets = targets_of(target, subscriber)
    for item in targets:
        try:
            found = validate_subscription(item.publisher, item.subscriber, item.publication, level)
        except MergeReplError as error:
            if len(targets) == 1 or isinstance(error, ConfigurationError | EngineError):
                raise
            found = not_compared(item.publisher, item.publication, level, error.details())
            if not found:
                raise
        # A subscriber of several publications is returned once, with the articles of all of them.
        compared[str(item.subscriber)] = (*compared.get(str(item.subscriber), ()), *found)
    return compared


@contextmanager
def lock(*paths: str | Path, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the replicas of these paths (roots or tables) while writing, so that no agent writes at the same time.

    On a local path Delta's commits are not mutually exclusive between processes; the agent takes this lock too.
    `wait_s`: seconds to wait for another holder.

    Raises: LeaseError naming the holder if a replica is still held after the wait (run again); ConfigurationError if a
        path cannot be a replica; StoreError if a folder cannot be written.
    """
    from mergerepl.store.lease import lease, replica_root

    held = sorted({replica_root(Location.of(roots.parse(os.fspath(path)))) for path in paths})
    with ExitStack() as stack:
        for root in held:
            stack.enter_context(lease(root, purpose="a user job", wait_s=wait_s))
        yield

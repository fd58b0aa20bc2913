"""The public functions, called by the CLI and imported by notebooks and jobs through `mergerepl`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from mergerepl import products, roots, sessions
from mergerepl.conflicts.selection import Conflicts
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflicts import ConflictCount, ConflictFilter, PurgeResult, ResolveResult, RetryResult
from mergerepl.model.listing import Listing
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.tasks import CDC, MERGE, Pending, Run, Status
from mergerepl.places import types_at
from mergerepl.project import Project as Project
from mergerepl.project import project_of
from mergerepl.replicas import Replica
from mergerepl.sessions import Direction, Engine, Level, root_of
from mergerepl.store.lease import WAIT_S
from mergerepl.targets import items_of, targets_of
from mergerepl.targets import load as load

if TYPE_CHECKING:
    from mergerepl.model.results import (
        ArticleValidation,
        CaptureResult,
        ConflictRecord,
        PartitionInfo,
        RowInfo,
        SyncResult,
        TuneResult,
    )


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

    if give_up is not None:
        if dry_run or validate is not None or subscriber is not None or direction != "both":
            raise ConfigurationError("A session is given up alone: leave out the other options.")
        result = project_of(items_of(target), lock_wait_s=lease_wait_s).abort(give_up)
        return SyncResult(result.publication, (result,))
    sessions.require_options(direction, engine, validate, dry_run=dry_run)
    items = items_of(target)
    chosen = None
    if subscriber is not None:
        is_merge = not sessions.distributions(items)
        wanted = (
            targets_of(target, subscriber)[0].subscriber if is_merge else roots.parse(os.fspath(subscriber))
        )
        chosen = {roots.resolved(wanted)}
    waiting = WAIT_S.set(lease_wait_s)
    try:
        return sessions.synchronize(
            items,
            chosen=chosen,
            direction=direction,
            dry_run=dry_run,
            validate=validate,
            engine=engine,
            long_running=long_running,
            progress=progress,
        )
    finally:
        WAIT_S.reset(waiting)


def capture(replica: str | Path, *, progress: Progress | None = None) -> CaptureResult:
    """`Replica.capture` of merge publications, for the command line."""
    found = products.capture([root_of(replica)], progress or NoProgress(), {MERGE})
    return cast("CaptureResult", found[0].details)


def status(replica: str | Path) -> Status:
    """`Replica.status` of merge publications, with the warnings of Change Data Capture, for the command line."""
    root = root_of(replica)
    found = products.status([root], {MERGE})[0]
    captured = products.status([root], {CDC}) if CDC in types_at(root) else ()
    texts = (
        replace(each, text=f"Change Data Capture of '{each.source}': {each.text}")
        for database in captured
        for each in database.warnings
    )
    return replace(found, warnings=(*found.warnings, *texts))


def pending(replica: str | Path) -> Listing[Pending]:
    """`Replica.pending`, for the command line."""
    return products.pending([root_of(replica)], {MERGE})


def history(replica: str | Path, *, limit: int = 20, subscriber: str | Path | None = None) -> Listing[Run]:
    """`Project.history` of merge sessions, for the command line."""
    only = None if subscriber is None else {roots.parse(os.fspath(subscriber))}
    return products.history([root_of(replica)], subscribers=only, types={MERGE}, limit=limit)


def _conflicts(
    replica: str | Path,
    chosen: ConflictFilter | None,
    publication: str | None = None,
    article: str | None = None,
) -> Conflicts:
    return Conflicts(root_of(replica), chosen=chosen or ConflictFilter(publication, article))


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
    """`Conflicts.list`, for the command line."""
    found = _conflicts(replica, chosen, publication, article)
    if conflict_id is None:
        return found.list(limit=limit, with_rows=with_rows)
    from mergerepl.conflicts.listing import read_conflicts

    one = replace(found.chosen, ids=(conflict_id,))
    return read_conflicts(root_of(replica), one, with_rows=True, is_one=True)


def conflict_count(
    replica: str | Path,
    *,
    publication: str | None = None,
    article: str | None = None,
    chosen: ConflictFilter | None = None,
) -> int:
    """`Conflicts.count`, for the command line."""
    return _conflicts(replica, chosen, publication, article).count()


def conflict_summary(replica: str | Path, chosen: ConflictFilter | None = None) -> tuple[ConflictCount, ...]:
    """`Conflicts.count_by`, for the command line."""
    return _conflicts(replica, chosen).count_by()


def resolve_conflicts(
    replica: str | Path,
    chosen: ConflictFilter,
    *,
    accept: Literal["winner", "loser"] | None = None,
    values: Mapping[str, str | None] | None = None,
    **options: Any,
) -> ResolveResult:
    """`Conflicts.resolve`, for the command line."""
    if (accept is None) == (not values):
        raise ConfigurationError("Say either what to accept (winner, loser) or which values to set.")
    return _conflicts(replica, chosen).resolve(accept or values or {}, **options)


def retry_failed(
    replica: str | Path, *, publication: str | None = None, article: str | None = None
) -> RetryResult:
    """`Conflicts.retry`, for the command line."""
    return _conflicts(replica, None, publication, article).retry()


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
    """`Conflicts.drop`, for the command line."""
    return _conflicts(replica, chosen).drop(older_than=older_than, dry_run=dry_run)


def export_conflicts(
    replica: str | Path,
    folder: str | Path,
    chosen: ConflictFilter | None = None,
    *,
    form: Literal["csv", "json"] = "csv",
) -> dict[str, int]:
    """`Conflicts.export`, for the command line."""
    return {each.file: each.conflicts for each in _conflicts(replica, chosen).export(folder, format=form)}


def conflict_report(
    replica: str | Path, file: str | Path, chosen: ConflictFilter | None = None, *, rows: int = 2000
) -> int:
    """`Conflicts.report`, for the command line."""
    return _conflicts(replica, chosen).report(file, limit=rows)


def validate(
    target: Project | str | Path | Sequence[Project | str | Path],
    *,
    subscriber: str | Path | None = None,
    level: Level = "checksum",
) -> dict[str, tuple[ArticleValidation, ...]]:
    """`Project.validate` by subscriber, for the command line."""
    chosen = None if subscriber is None else {roots.parse(os.fspath(subscriber))}
    found: dict[str, tuple[ArticleValidation, ...]] = {}
    for each in products.validate(items_of(target), chosen, level, ()).articles:
        # A subscriber of several publications is returned once, with the articles of all of them.
        found[each.subscriber] = (*found.get(each.subscriber, ()), each)
    return found


def row(
    replica: str | Path, *, article: str, key: Mapping[str, str], publication: str | None = None
) -> RowInfo:
    """`Replica.row`, for the command line."""
    return Replica(replica).row(article, key=key, publication=publication)


def tune(
    replica: str | Path,
    *,
    articles: Sequence[str] = (),
    file_bytes: int = 128 * 1024**2,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """`Replica.tune`, for the command line."""
    return Replica(replica).tune(*articles, file_bytes=file_bytes, dry_run=dry_run, progress=progress)


def partitions(replica: str | Path, *, publication: str | None = None) -> tuple[PartitionInfo, ...]:
    """`Partitions.list`, for the command line."""
    return Replica(replica).partitions.list(publication=publication)


def add_partition(
    replica: str | Path,
    *,
    host_name: str | None = None,
    suser_sname: str | None = None,
    publication: str | None = None,
) -> PartitionInfo:
    """`Partitions.add`, for the command line."""
    found = Replica(replica).partitions
    return found.add(host_name=host_name, suser_sname=suser_sname, publication=publication)


def drop_partition(replica: str | Path, partition_id: int) -> PartitionInfo:
    """`Partitions.drop`, for the command line."""
    return Replica(replica).partitions.drop(partition_id)

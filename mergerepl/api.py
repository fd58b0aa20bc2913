"""The public functions: what the CLI calls and what notebooks and jobs import through `mergerepl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mergerepl.errors import ConfigurationError, MergeReplError, Transient
from mergerepl.model.progress import NoProgress, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mergerepl.model.publication import Publication
    from mergerepl.model.results import (
        ApplyResult,
        ArticleValidation,
        CaptureResult,
        ConflictRecord,
        PendingSubscription,
        ReplicaStatus,
        RowInfo,
        SessionRecord,
        SessionResult,
        SyncResult,
    )

Direction = Literal["both", "upload", "download"]
Level = Literal["rowcount", "checksum"]


@dataclass(frozen=True)
class Project:
    """A publication as a file (or code) states it."""

    publication: Publication

    def apply(self, *, dry_run: bool = False, progress: Progress | None = None) -> ApplyResult:
        """Make the replicas match the publication; `dry_run` only says what would be done.

        Raises: ConfigurationError, PublicationError, CaptureError (nothing was changed), LeaseError (run again).
        """
        from mergerepl.publish.apply import apply_publication

        shown = progress or NoProgress()

        def capture_publisher(root: Path) -> None:
            from mergerepl.agent.capture_replica import capture_held
            from mergerepl.store.replica import Replica

            capture_held(Replica(root), progress=shown)

        def finish(publisher: Path, subscriber: Path | None, session: str) -> None:
            from mergerepl.agent.finish_session import finish_session
            from mergerepl.store.replica import Replica

            finish_session(Replica(publisher), Replica(subscriber) if subscriber else None, session)

        return apply_publication(
            self.publication, dry_run=dry_run, progress=shown, capture=capture_publisher, finish=finish
        )


def load(path: str | Path) -> Project:
    """Read a publication file.

    Raises: ConfigurationError naming the file, the place in it and what to do.
    """
    from mergerepl.config import load as load_publication

    return Project(load_publication(path))


@dataclass(frozen=True)
class _Target:
    """One subscription to synchronise: both replica roots and the publication."""

    publisher: Path
    subscriber: Path
    publication: str


def sync(
    target: Project | str | Path | Sequence[Project | str | Path],
    *,
    subscriber: str | Path | None = None,
    direction: Direction = "both",
    dry_run: bool = False,
    validate: Level | None = None,
    long_running: bool = False,
    lease_wait_s: float = 0.0,
    progress: Progress | None = None,
) -> SyncResult:
    """Synchronise subscriptions, one session each.

    Args:
        target: A project, a publication file, or replica roots: a publisher (all its subscriptions) or
            a subscriber.
        subscriber: Only this subscriber.
        direction: Both, or one of them; the other one is taken up by a later session.
        dry_run: Say what would change and who would win; change nothing.
        validate: Compare the replicas after the session.
        long_running: An agent's session: the embedded engine is tuned for many sessions rather than for one.
        lease_wait_s: Seconds to wait for another agent to let go of a replica.
        progress: Told of each step.

    Returns: One result per session. A session that fails for a reason of its own is `failed` in the result
    when there are several; the only one raises.

    Raises: MergeReplError.
    """
    from mergerepl.model.results import SyncResult

    targets = _targets(target, subscriber)
    shown = progress or NoProgress()
    sessions: list[SessionResult] = []
    for item in targets:
        try:
            done = _session(item, direction, dry_run, long_running, lease_wait_s, shown)
            if validate is not None and not dry_run:
                from mergerepl.validation.validate import validate_subscription

                done = replace(
                    done, validation=validate_subscription(item.publisher, item.subscriber, validate)
                )
            sessions.append(done)
        except MergeReplError as error:
            if len(targets) == 1:
                raise
            sessions.append(_failed(item, error))
    publication = sessions[0].publication if sessions else ""
    return SyncResult(publication, tuple(sessions))


def _session(
    item: _Target,
    direction: Direction,
    dry_run: bool,
    long_running: bool,
    lease_wait_s: float,
    progress: Progress,
) -> SessionResult:
    from mergerepl.agent.quiet import is_quiet, nothing_to_do, remember_quiet, remember_subscriptions

    if not dry_run and is_quiet(item.publisher, item.subscriber, item.publication, direction):
        return nothing_to_do(item.subscriber, item.publication)
    from mergerepl.agent.merge_session import merge_session, preview_session
    from mergerepl.agent.subscription import find_subscription

    publisher, subscriber, row, name = find_subscription(item.publisher, item.subscriber, item.publication)

    def spark_of() -> SparkSession:
        from mergerepl import spark

        return spark.session(long_running=long_running)

    terms: dict[str, Any] = {
        "spark_of": spark_of,
        "upload": direction != "download",
        "download": direction != "upload",
        "progress": progress,
    }
    if dry_run:
        return preview_session(publisher, subscriber, row, name, **terms)
    result = merge_session(publisher, subscriber, row, name, lease_wait_s=lease_wait_s, **terms)
    if result.status == "nothing_to_do":
        remember_quiet(publisher, subscriber, name, direction)
        remember_subscriptions(publisher.root)
    return result


def _failed(item: _Target, error: MergeReplError) -> SessionResult:
    from mergerepl.model.results import SessionResult

    details = {name: str(value) for name, value in error.details().items()}
    details["transient"] = str(isinstance(error, Transient)).lower()
    return SessionResult(item.publication, str(item.subscriber), "failed", error=details)


def _targets(
    target: Project | str | Path | Sequence[Project | str | Path], subscriber: str | Path | None
) -> list[_Target]:
    items = [target] if isinstance(target, Project | str | Path) else list(target)
    found = [resolved for item in items for resolved in _targets_of(item)]
    unique = list({(t.publisher, t.subscriber, t.publication): t for t in found}.values())
    if subscriber is not None:
        wanted = Path(subscriber).expanduser().resolve()
        chosen = [item for item in unique if item.subscriber == wanted]
        if not chosen:
            known = ", ".join(sorted(str(item.subscriber) for item in unique)) or "none"
            raise ConfigurationError(
                f"There is no subscription for '{wanted}'. Subscribers known: {known}. Name one of them, or "
                "add the "
                "subscription to the file and run `mergerepl apply FILE`.",
                subscriber=str(wanted),
            )
        unique = chosen
    if not unique:
        raise ConfigurationError(
            "There is no subscription to synchronise. Add `subscriptions:` to the file and run `mergerepl "
            "apply FILE`."
        )
    return unique


def _targets_of(item: Project | str | Path) -> list[_Target]:
    if not isinstance(item, Project) and not Path(item).expanduser().is_dir():
        item = load(item)
    if isinstance(item, Project):
        publication = item.publication
        return [
            _Target(Path(publication.publisher), Path(sub.subscriber), publication.name)
            for sub in publication.subscriptions
        ]
    from mergerepl.agent.quiet import noted_subscriptions

    noted = noted_subscriptions(Path(item))
    if noted is None:
        from mergerepl.agent.subscription import subscriptions_of_root

        noted = subscriptions_of_root(Path(item))
    return [_Target(*found) for found in noted]


def capture(replica: str | Path, *, progress: Progress | None = None) -> CaptureResult:
    """Capture the users' changes of one replica now, without a session.

    Raises: CaptureError, SchemaMismatchError (nothing was changed), LeaseError (run again).
    """
    from mergerepl.agent.capture_replica import capture_replica

    return capture_replica(Path(replica), progress=progress or NoProgress())


def status(replica: str | Path) -> ReplicaStatus:
    """Return who a replica is, what it publishes or receives, and how far its subscriptions are. Starts no JVM."""
    from mergerepl.agent.table_problems import table_problems
    from mergerepl.monitoring.status import replica_status

    return replica_status(Path(replica), table_problems=table_problems)


def pending(replica: str | Path) -> tuple[PendingSubscription, ...]:
    """Return the changes that wait to travel, per subscription. Starts no JVM."""
    from mergerepl.monitoring.pending import pending_changes

    return pending_changes(Path(replica))


def history(
    replica: str | Path, *, limit: int = 20, subscriber: str | Path | None = None
) -> tuple[SessionRecord, ...]:
    """Return the last sessions, newest first. Starts no JVM."""
    from mergerepl.monitoring.history import session_history

    return session_history(Path(replica), limit=limit, subscriber=subscriber)


def conflict_records(
    replica: str | Path,
    *,
    publication: str | None = None,
    article: str | None = None,
    conflict_id: str | None = None,
    limit: int | None = None,
) -> tuple[ConflictRecord, ...]:
    """Return logged conflicts, newest first; with `conflict_id` also its rows. Starts no JVM."""
    from mergerepl.monitoring.conflicts import read_conflicts

    return read_conflicts(
        Path(replica), publication=publication, article=article, conflict_id=conflict_id, limit=limit
    )


def conflicts(replica: str | Path, *, publication: str | None = None, article: str) -> DataFrame:
    """Return the losing rows of one article joined with MSmerge_conflicts_info, as a Spark DataFrame."""
    from mergerepl import spark
    from mergerepl.monitoring.conflicts import conflict_frame

    return conflict_frame(spark.session(), Path(replica), publication=publication, article=article)


def row(
    replica: str | Path, *, article: str, key: Mapping[str, str], publication: str | None = None
) -> RowInfo:
    """Return lineage and colv1 of one row at every replica of the publication, as sp_showrowreplicainfo does."""
    from mergerepl.monitoring.row import row_info

    return row_info(Path(replica), article=article, key=key, publication=publication)


def validate(
    target: Project | str | Path, *, subscriber: str | Path | None = None, level: Level = "checksum"
) -> dict[str, tuple[ArticleValidation, ...]]:
    """Compare subscribers with their publisher. Returns subscriber root -> one result per article, keys named."""
    from mergerepl.validation.validate import validate_subscription

    return {
        str(item.subscriber): validate_subscription(item.publisher, item.subscriber, level)
        for item in _targets(target, subscriber)
    }


@contextmanager
def lock(*paths: str | Path, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the replicas of these paths (roots or tables) while writing, so that no agent writes meanwhile.

    On a local path Delta's commits are not mutually exclusive between processes; the agent takes this lock
    too.
    """
    from mergerepl.store.lease import lease, replica_root

    roots = sorted({replica_root(Path(path).expanduser().resolve()) for path in paths})
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(lease(root, purpose="a user job", wait_s=wait_s))
        yield

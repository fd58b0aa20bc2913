"""Record how a session ended: for `history` its rows in MSmerge_sessions and their messages, for `status` a failure.

A failure that repeats is recorded once: sessions at an interval that always fail for one reason commit nothing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.sql_text import text_literal
from mergerepl.errors import MergeReplError, SchemaStoppedError
from mergerepl.failpoints import failpoint
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import refuse_copies, update_subscription
from mergerepl.roots import masked
from mergerepl.store.changeset import Manifest
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from mergerepl.systables.catalog import SyncStatus
from mergerepl.systables.sessions import ArticleHistoryRow, HistoryRow, Phase, RunStatus, SessionRow

log = logging.getLogger(__name__)

A_DAY = timedelta(days=1)

FAILED_OFTEN = 3
"""Failed rounds one after the other that `status` reports as critical; more are not counted: they commit nothing."""

_COUNTED: ContextVar[set[tuple[Location, str]] | None] = ContextVar("counted", default=None)
"""The ends and subscriptions whose failure in this round is counted; None: each session is a round."""


@contextmanager
def one_round() -> Iterator[None]:
    """Count the failed sessions of a subscription within this block, which are tries of one round, once at each end."""
    token = _COUNTED.set(set())
    try:
        yield
    finally:
        _COUNTED.reset(token)


@dataclass(frozen=True)
class Failure:
    """Why a session failed: the message, the class of the error, and the step in which it occurred."""

    message: str
    error_class: str
    phase: str | None = None

    @classmethod
    def of(cls, error: Mapping[str, Any], phase: str | None = None) -> "Failure":
        """Return the failure of an error's facts (`MergeReplError.details`).

        If articles failed for different reasons, an article that a schema change stops gives the class.
        """
        classes = [str(each["error"]) for each in error.get("articles", ())]
        stops = SchemaStoppedError.__name__
        return cls(str(error["message"]), stops if stops in classes else str(error["error"]), phase)


def record(
    publisher: Replica,
    subscriber: Replica,
    manifest: Manifest,
    result: SessionResult,
    start_time: datetime,
    seconds: Mapping[str, float] | None = None,
) -> None:
    """Append one session's rows. If a rolled-forward session is recorded twice, readers return it once, by its id.

    `seconds`: side -> how long its writes took.
    """
    end_time = max(datetime.now(UTC), start_time)
    took = seconds or {}
    session = replace(
        _session_row(manifest, result, start_time, end_time),
        upload_time=took.get(PUBLISHER),
        download_time=took.get(SUBSCRIBER),
    )
    articles = [
        row for counts in result.articles for row in _article_rows(manifest, counts, start_time, end_time)
    ]
    comment = HistoryRow(
        session_id=manifest.session, agent_id=manifest.subid, comments=summary(result), timestamp=end_time
    )
    for name, replica in ((PUBLISHER, publisher), (SUBSCRIBER, subscriber)):
        failpoint(f"history.before_{name}")
        replica.control.append(sessions.SESSIONS, [session])
        failpoint(f"history.before_articles_of_{name}")
        replica.control.append(sessions.ARTICLEHISTORY, articles)
        failpoint(f"history.before_message_of_{name}")
        replica.control.append(sessions.HISTORY, [comment])


def note_cleaned(replicas: Sequence[Replica], session: str, removed: Mapping[Location, int]) -> None:
    """Note in a session's row at each replica how many rows of metadata it removed there; a failure is only logged."""
    for replica in replicas:
        if rows := removed.get(replica.root):
            try:
                where = f"session_id = {text_literal(session)}"
                replica.control.update(sessions.SESSIONS, {"metadata_rows_cleanedup": str(rows)}, where=where)
            except (MergeReplError, OSError) as error:
                log.warning("%s: %s removed rows are not recorded: %s", replica.root, rows, error)


def summary(result: SessionResult) -> str:
    """Return a session in one line."""

    def side(counts: PhaseCounts, place: str) -> str:
        return f"{place} {counts.inserts} inserted, {counts.updates} updated, {counts.deletes} deleted"

    conflicts = result.upload.conflicts + result.download.conflicts
    parts = [
        side(result.upload, "publisher:"),
        side(result.download, "subscriber:"),
        f"{conflicts} conflict{'' if conflicts == 1 else 's'}",
    ]
    if result.late_changes:
        parts.append(f"{result.late_changes} changes captured late")
    if result.schema:
        parts.append(_schema_text(result.schema))
    if result.refused:
        parts.append(f"left out: {', '.join(result.refused)} ({' '.join(result.reason.split())})")
    if result.recovered:
        parts.append("rolled forward")
    return "; ".join(parts)


def _session_row(
    manifest: Manifest, result: SessionResult, start_time: datetime, end_time: datetime
) -> SessionRow:
    seconds = max((end_time - start_time) / timedelta(seconds=1), 0.0)
    changes = result.upload.total + result.download.total
    up, down = result.upload, result.download
    return SessionRow(
        session_id=manifest.session,
        agent_id=manifest.subid,
        publication=manifest.publication,
        subscriber=manifest.subscriber.root if manifest.subscriber else result.subscriber,
        start_time=start_time,
        end_time=end_time,
        duration=seconds,
        delivery_rate=changes / seconds if seconds else None,
        percent_complete=100.0,
        upload_inserts=up.inserts,
        upload_updates=up.updates,
        upload_deletes=up.deletes,
        upload_conflicts=up.conflicts,
        upload_conflicts_resolved=up.conflicts,
        download_inserts=down.inserts,
        download_updates=down.updates,
        download_deletes=down.deletes,
        download_conflicts=down.conflicts,
        download_conflicts_resolved=down.conflicts,
        schema_changes=len(result.schema),
        runstatus=RunStatus.FAIL if result.refused else RunStatus.SUCCEED,
        late_changes=result.late_changes,
    )


def _article_rows(
    manifest: Manifest, counts: ArticleCounts, start_time: datetime, end_time: datetime
) -> list[ArticleHistoryRow]:
    return [
        ArticleHistoryRow(
            session_id=manifest.session,
            phase_id=phase,
            article_name=counts.article,
            start_time=start_time,
            duration=(end_time - start_time) / timedelta(seconds=1),
            inserts=done.inserts,
            updates=done.updates,
            deletes=done.deletes,
            conflicts=done.conflicts,
            conflicts_resolved=done.conflicts,
            percent_complete=100.0,
        )
        for phase, done in ((Phase.UPLOAD, counts.upload), (Phase.DOWNLOAD, counts.download))
        if done != PhaseCounts()
    ]


def record_failure(
    ends: Sequence[Replica],
    subid: str,
    publication: str,
    subscriber: Location,
    why: Failure,
    started: datetime,
    *,
    is_in_history: bool = False,
) -> None:
    """Record at the ends of a subscription (the replicas in reach, which the caller holds) that their session failed.

    Skips a copy of a replica, and a replica whose system tables were edited. If the record fails, the process log has
    it: the error of the session is the one to report. `is_in_history`: the session is in `history` already.
    """
    why = replace(why, message=masked(" ".join(why.message.split())))
    summary = why.message
    failed = {
        "last_sync_status": int(SyncStatus.FAILED),
        "last_sync_summary": summary,
        "last_error_class": why.error_class,
    }
    try:
        refuse_copies(*ends)
        for replica in ends:
            replica.require_unedited()
            if not all(replica.control.exists(table) for table in (sessions.SESSIONS, sessions.HISTORY)):
                # The table was dropped. The restored folder has it; a new table would hide that.
                continue
            for row in replica.relations():
                if row.subid != subid or not row.is_active:
                    continue
                is_known = all(getattr(row, name) == value for name, value in failed.items())
                failures = min(row.failures + _is_first_of_round(replica.root, subid), FAILED_OFTEN)
                if is_known and row.failures == failures:
                    continue
                if not (is_in_history or is_known):
                    _append_failure(replica, subid, publication, str(subscriber), why, started)
                now = {"last_sync_date": datetime.now(UTC), "failures": failures}
                update_subscription(replica, subid, row.replid, failed | now)
    except (MergeReplError, OSError) as error:
        log.warning("that the session failed is not recorded everywhere: %s", error)


def _is_first_of_round(root: Location, subid: str) -> bool:
    """Whether no failure of this subscription is counted at this end in this round; from now on it is."""
    counted = _COUNTED.get()
    if counted is None:
        return True
    is_first = (root, subid) not in counted
    counted.add((root, subid))
    return is_first


def _append_failure(
    replica: Replica, subid: str, publication: str, subscriber: str, why: Failure, start_time: datetime
) -> None:
    """Append the rows of a session that failed before staging, or that could not be carried out completely."""
    end_time = max(datetime.now(UTC), start_time)
    _append_session(
        replica,
        SessionRow(
            session_id=str(uuid4()),
            agent_id=subid,
            publication=publication,
            subscriber=subscriber,
            start_time=start_time,
            end_time=end_time,
            duration=(end_time - start_time) / timedelta(seconds=1),
            percent_complete=0.0,
            runstatus=RunStatus.FAIL,
        ),
        why.message,
        why,
    )


def _append_session(replica: Replica, row: SessionRow, text: str, why: Failure | None = None) -> None:
    """Append a session that no changeset records, with one comment."""
    comment = HistoryRow(
        session_id=row.session_id,
        agent_id=row.agent_id,
        comments=text,
        error_id=why.error_class if why else None,
        timestamp=row.end_time,
        phase=why.phase if why else None,
    )
    replica.control.append(sessions.SESSIONS, [row])
    replica.control.append(sessions.HISTORY, [comment])


def record_unreached(
    publisher: Location, subscriber: Location, publication: str, error: MergeReplError
) -> None:
    """Record, at each end that can be read and held, that no session with the other end could begin."""
    started = datetime.now(UTC)
    for own, other in ((publisher, subscriber), (subscriber, publisher)):
        try:
            replica = Replica(own).require()
            with lease(own, purpose="mergerepl sync"):
                replica = replica.reread()
                names = {row.pubid: row.name for row in replica.publications}
                for row in replica.relations():
                    if names.get(row.pubid) == publication and row.subscriber_server == str(other):
                        why = Failure(error.message, type(error).__name__)
                        record_failure([replica], row.subid, publication, subscriber, why, started)
        except (MergeReplError, OSError) as unreadable:
            log.info("'%s' cannot record that the session failed: %s", own, unreadable)


def record_idle(publisher: Location, publication: str, subscriber: str, since: datetime, rounds: int) -> None:
    """Record the rounds of an agent that had nothing to do since a time as one session, at the publisher.

    If another process holds the publisher, nothing is recorded: the next hour says so.
    """
    try:
        with lease(publisher, purpose="mergerepl agent"):
            replica = Replica(publisher).require()
            pubid = replica.publication(publication).pubid
            subid = next(
                (row.subid for row in replica.relations(pubid) if row.subscriber_server == subscriber), None
            )
            row = SessionRow(
                session_id=str(uuid4()),
                agent_id=subid,
                publication=publication,
                subscriber=subscriber,
                start_time=since,
                end_time=datetime.now(UTC),
                percent_complete=100.0,
                runstatus=RunStatus.IDLE,
            )
            _append_session(replica, row, f"rounds with nothing to do: {rounds:,}")
    except (MergeReplError, OSError) as error:
        log.info("that '%s' had nothing to do is not recorded: %s", publisher, error)


def note_presence(publisher: Replica, subid: str) -> None:
    """Note at most once a day that a session ran which brought nothing over, so that its subscription does not expire.

    The caller holds the publisher.
    """
    now = datetime.now(UTC)
    for row in publisher.relations():
        if row.subid == subid and (row.last_sync_date is None or now - row.last_sync_date > A_DAY):
            update_subscription(publisher, subid, row.replid, {"last_sync_date": now})


def record_success(
    ends: Sequence[Replica],
    subid: str,
    publication: str,
    subscriber: Location,
    schema: Sequence[str],
    start_time: datetime,
) -> None:
    """Record that a session sent no row: if it brought schema changes, or the one before failed.

    The caller holds both replicas.
    """
    end_time = max(datetime.now(UTC), start_time)
    text = _schema_text(schema) if schema else "nothing to do"
    row = SessionRow(
        session_id=str(uuid4()),
        agent_id=subid,
        publication=publication,
        subscriber=str(subscriber),
        start_time=start_time,
        end_time=end_time,
        duration=(end_time - start_time) / timedelta(seconds=1),
        percent_complete=100.0,
        schema_changes=len(schema),
        runstatus=RunStatus.SUCCEED,
    )
    well = {
        "last_sync_status": int(SyncStatus.SUCCEEDED),
        "last_sync_summary": text,
        "last_error_class": None,
        "failures": 0,
        "last_sync_date": end_time,
    }
    for replica in ends:
        if schema:
            _append_session(replica, row, text)
        for each in replica.relations():
            if each.subid == subid and (schema or each.last_sync_status == SyncStatus.FAILED):
                update_subscription(replica, subid, each.replid, well)


def _schema_text(schema: Sequence[str]) -> str:
    return f"schema changes: {', '.join(schema)}"

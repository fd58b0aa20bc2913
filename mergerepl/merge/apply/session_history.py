"""Record a session in MSmerge_sessions, MSmerge_articlehistory and MSmerge_history, at both replicas."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.failpoints import failpoint
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import Manifest
from mergerepl.systables import sessions
from mergerepl.systables.sessions import ArticleHistoryRow, HistoryRow, Phase, RunStatus, SessionRow


def record(
    publisher: Replica, subscriber: Replica, manifest: Manifest, result: SessionResult, start_time: datetime
) -> None:
    """Append one session's rows. If a rolled-forward session is recorded twice, readers return it once, by its id."""
    end_time = max(datetime.now(UTC), start_time)
    session = _session_row(manifest, result, start_time, end_time)
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


def is_there(replica: Replica) -> bool:
    """True if a replica has the tables of its history."""
    return all(replica.control.exists(table) for table in (sessions.SESSIONS, sessions.HISTORY))


def record_failure(
    replica: Replica, subid: str, publication: str, subscriber: str, reason: str, start_time: datetime
) -> None:
    """Append the rows of a session that failed before staging, or that could not be carried out completely."""
    session, end_time = str(uuid4()), max(datetime.now(UTC), start_time)
    row = SessionRow(
        session_id=session,
        agent_id=subid,
        publication=publication,
        subscriber=subscriber,
        start_time=start_time,
        end_time=end_time,
        duration=(end_time - start_time) / timedelta(seconds=1),
        percent_complete=0.0,
        runstatus=RunStatus.FAIL,
    )
    comment = HistoryRow(session_id=session, agent_id=subid, comments=reason, timestamp=end_time)
    replica.control.append(sessions.SESSIONS, [row])
    replica.control.append(sessions.HISTORY, [comment])


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

"""Old sessions leave the history, but for the last ones of each subscription. No Spark."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mergerepl import Project
from mergerepl.merge.session.history_cleanup import KEPT_SESSIONS
from mergerepl.replica.replica import Replica
from mergerepl.systables import sessions
from mergerepl.systables.sessions import ArticleHistoryRow, HistoryRow, SessionRow
from tests.networks import Network

NOW = datetime.now(UTC)


def counts(replica: Replica) -> list[int]:
    tables = (sessions.SESSIONS, sessions.ARTICLEHISTORY, sessions.HISTORY)
    return [len(replica.control.rows(table)) for table in tables]


def test_the_last_sessions_of_each_subscription_stay_however_old_they_are(tmp_path: Path) -> None:
    network = Network(tmp_path)
    hq = Replica(network.root("hq"))
    north, south = (row.subid for row in hq.relations())
    long_ago = NOW - timedelta(days=40)

    def history(subid: str, count: int, since: datetime) -> list[SessionRow]:
        row = SessionRow(
            session_id="", agent_id=subid, publication="sales", subscriber="s", start_time=NOW, end_time=NOW
        )
        times = (since + timedelta(minutes=i) for i in range(count))
        return [replace(row, session_id=f"{subid}-{time}", start_time=time, end_time=time) for time in times]

    rows = [
        *history(north, KEPT_SESSIONS + 5, long_ago),
        *history(south, 3, long_ago),
        *history(south, 2, NOW),
    ]
    hq.control.append(sessions.SESSIONS, rows)
    of = [
        ArticleHistoryRow(
            session_id=row.session_id, phase_id=1, article_name="orders", start_time=row.start_time
        )
        for row in rows
    ]
    validated = ArticleHistoryRow(phase_id=3, article_name="orders", start_time=long_ago)
    hq.control.append(sessions.ARTICLEHISTORY, [*of, validated])
    said = [HistoryRow(session_id=row.session_id, timestamp=row.start_time) for row in rows]
    hq.control.append(sessions.HISTORY, said)
    project = Project.load(network.root("hq"))
    found = [
        project.cleanup(only=["history"], dry_run=dry_run).removed[0] for dry_run in (True, False, False)
    ]
    assert [(each.kind, each.rows) for each in found] == [("history", 5), ("history", 5), ("history", 0)]
    assert counts(hq) == [KEPT_SESSIONS + 5, KEPT_SESSIONS + 5, KEPT_SESSIONS + 5]
    left = {row.session_id for row in hq.control.rows(sessions.SESSIONS) if row.agent_id == north}
    assert left == {row.session_id for row in rows[5 : KEPT_SESSIONS + 5]}

"""Give up a staged session: end it as it is, and keep its rows.

Changes that a side recorded stay changes of the session. If a side wrote changes without recording them, the next
session captures them as if users had written them (docs/protocol.md, Capture). So no write is lost, and a later session
makes both sides equal.
"""

import logging
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.tables import find_own_commit, open_table
from mergerepl.errors import ApplyError, MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflict_log import log_everywhere
from mergerepl.merge.apply.side import Side, data_transaction
from mergerepl.merge.stage.constraints import Destination, refuse_violations
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import drop_pointer
from mergerepl.store.changeset import UNSENT, Changeset, read_changeset, set_aside
from mergerepl.store.location import Location

log = logging.getLogger(__name__)


def give_up(
    changeset: Changeset, publisher: Replica, subscriber: Replica | None, spark_of: Callable[[], SparkSession]
) -> Location:
    """End a staged session that cannot be finished; the caller holds these replicas. Returns the folder that keeps it.

    If it wrote anything, its resolved conflicts are logged where its publication keeps them. Its rows, its plan and the
    outcomes of its sides stay in the folder. `subscriber` is None if it is out of reach.
    """
    # Few sessions are given up.
    from mergerepl.replica.fence import stop_own_writes

    replicas = {PUBLISHER: publisher, **({SUBSCRIBER: subscriber} if subscriber is not None else {})}
    for replica in replicas.values():
        stop_own_writes(replica.root)
    if len(replicas) < 2 or any(_has_written(changeset, name, replica) for name, replica in replicas.items()):
        try:
            log_everywhere(spark_of, changeset, replicas)
        except (MergeReplError, PySparkException, Py4JError) as error:
            # The table that blocks the session may be a conflict table. The folder has the losing rows, too.
            session = changeset.manifest.session
            log.warning("session %s: its conflicts could not be logged: %s", session, error)
    failpoint("give_up.before_move")
    kept = set_aside(changeset.folder)
    failpoint("give_up.after_move")
    if subscriber is not None:
        settle(publisher, subscriber, changeset.folder.name)
    return kept


def settle(publisher: Replica, subscriber: Replica, session: str) -> None:
    """End at a subscriber a session that its publisher gave up; a subscriber out of reach is settled later."""
    changeset = read_changeset(publisher.folder / UNSENT / session)
    if changeset is not None:
        _own_resolutions(changeset, publisher, subscriber)
    failpoint("give_up.before_pointer")
    drop_pointer(subscriber, session)


def is_refused_by(spark: SparkSession, changeset: Changeset, replica: Replica, name: str) -> bool:
    """True if a table of one side would refuse the session's rows, by the checks of staging."""
    side = Side.of(changeset, name, replica)
    for work in side.work.articles:
        if not work.touches_rows or work.nickname not in side.articles:
            continue
        article, rows = side.articles[work.nickname], changeset.rows(work.nickname)
        try:
            at = Destination(side.action, open_table(replica.table(article)), article, work, rows)
            refuse_violations(EngineChoice(uses_arrow=False, spark_of=lambda: spark), at)
        except ApplyError as error:
            log.warning("%s", error.message)
            return True
    return False


def _has_written(changeset: Changeset, name: str, replica: Replica) -> bool:
    """True if a side has done its part, or a MERGE of it."""
    if changeset.is_done(name):
        return True
    side = Side.of(changeset, name, replica)
    return any(
        find_own_commit(
            replica.table(side.articles[item.nickname]),
            data_transaction(side, item.nickname).mark,
            from_version_exclusive=item.from_version,
        )
        is not None
        for item in side.work.articles
        if item.nickname in side.articles and item.touches_rows
    )


def _own_resolutions(changeset: Changeset, publisher: Replica, subscriber: Replica) -> None:
    """Let the subscriber send the rows that the session resolved, if only the subscriber has recorded them.

    Their generations were planned as the publisher's, which lacks them: it would refuse a subscriber that has them.
    """
    planned = {row.guidsrc for row in changeset.work_of(SUBSCRIBER).generations}
    own = subscriber.held(planned) - publisher.held(planned)
    if own:
        subscriber.close_generations(own)

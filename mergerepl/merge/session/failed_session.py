"""Record for `status` and `history` that a session failed, left articles out, or succeeded again.

A failure that repeats is recorded once: sessions at an interval that always fail for one reason commit nothing.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from mergerepl.errors import MergeReplError
from mergerepl.merge.apply import session_history
from mergerepl.merge.session.carry_out import update_subscription
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import refuse_copies
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SyncStatus

log = logging.getLogger(__name__)


def record_failure(
    ends: Sequence[Replica],
    subid: str,
    publication: str,
    subscriber: Location,
    reason: str,
    started: datetime,
    *,
    is_in_history: bool = False,
) -> None:
    """Record at the ends of a subscription (the replicas in reach, which the caller holds) that their session failed.

    Skips a copy of a replica, and a replica whose system tables were edited. If the record fails, the process log has
    it: the error of the session is the one to report. `is_in_history`: the session is in `history` already.
    """
    summary = " ".join(reason.split())
    failed = {"last_sync_status": int(SyncStatus.FAILED), "last_sync_summary": summary}
    try:
        refuse_copies(*ends)
        for replica in ends:
            replica.require_unedited()
            if not session_history.is_there(replica):
                # The table was dropped. The restored folder has it; a new table would hide that.
                continue
            for row in replica.relations():
                is_known = all(getattr(row, name) == value for name, value in failed.items())
                if row.subid != subid or not row.is_active or is_known:
                    continue
                if not is_in_history:
                    session_history.record_failure(
                        replica, subid, publication, str(subscriber), summary, started
                    )
                now = {"last_sync_date": datetime.now(UTC)}
                update_subscription(replica, subid, row.replid, failed | now)
    except (MergeReplError, OSError) as error:
        log.warning("that the session failed is not recorded everywhere: %s", error)


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
                        record_failure([replica], row.subid, publication, subscriber, error.message, started)
        except (MergeReplError, OSError) as unreadable:
            log.info("'%s' cannot record that the session failed: %s", own, unreadable)


def record_success(ends: Sequence[Replica], subid: str) -> None:
    """Record that a session found nothing to do after a failed one; the caller holds both replicas."""
    for replica in ends:
        for row in replica.relations():
            if row.subid == subid and row.last_sync_status == SyncStatus.FAILED:
                well = {"last_sync_status": int(SyncStatus.SUCCEEDED), "last_sync_summary": "nothing to do"}
                now = {"last_sync_date": datetime.now(UTC)}
                update_subscription(replica, subid, row.replid, well | now)

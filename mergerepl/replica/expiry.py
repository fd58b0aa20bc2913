"""Expiry: a subscription for which something waits for longer than the retention no longer counts.

It is refused from then on, and metadata is not kept for it any more. No subscription of a quiet publication expires, and
none that had a session within the retention, also if its sessions only upload or leave an article out. Clocks decide as
little as possible: a clock that jumped lets no subscription expire, and one that goes back only delays.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from mergerepl.model.horizon import Horizon
from mergerepl.replica.partition_generations import unacknowledged_for
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import Manifest, staged_changesets
from mergerepl.systables.catalog import SUBSCRIPTIONS, PublicationRow, SubscriptionRow
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo

log = logging.getLogger(__name__)

GRACE = timedelta(hours=24)
"""Added to the retention, as in SQL Server: a subscriber in another time zone is not early."""


@dataclass(frozen=True)
class Waiting:
    """Since when changes wait at a publisher for a subscriber, and how long they may."""

    since: datetime
    keeps: timedelta

    def share(self, now: datetime) -> float:
        """Return the part of that time which has passed."""
        return (now - self.since) / (self.keeps + GRACE)

    def is_over(self, now: datetime, info: ReplicaInfo) -> bool:
        """True if the time is over; never just after the publisher's own clock jumped, or if the publisher stood still."""
        jumped = info.last_time is None or now - info.last_time > self.keeps
        return self.share(now) > 1 and not jumped


def waiting_since(
    replica: Replica,
    publication: PublicationRow,
    about: SubscriptionRow,
    *,
    after: Callable[[int], Iterable[Generation]] | None = None,
) -> Waiting | None:
    """Return since when the oldest change waits for a subscriber; None if none does or the retention is for ever.

    A row that a table refused waits for the table, and no sync would bring it there: it does not count. With row filters
    only changes for the subscriber's partition count.
    """
    if publication.keeps is None or not about.is_live:
        return None
    is_for_it = unacknowledged_for(replica, publication, about)
    times = [
        row.coldate
        for row in (
            after(about.sentgen)
            if after is not None
            else replica.genhistory(from_generation_exclusive=about.sentgen)
        )
        if row.pubid == about.pubid
        and row.changecount
        and row.waits_for is None
        and about.replnickname not in row.nicknames
        and row.coldate is not None
        and is_for_it(row)
    ]
    return Waiting(min(times), publication.keeps) if times else None


def expire_overdue(replica: Replica, now: datetime, *, only: str | None = None) -> None:
    """Mark the subscriptions of a publisher that are overdue as expired. The caller holds the replica.

    `only` is the one that a session is for. If the last session of one was within the retention, nothing is read.
    """
    info, published = replica.info(), {row.pubid: row for row in replica.published}
    overdue = {
        row.subid: found
        for row in replica.relations()
        if row.pubid in published
        and only in (None, row.subid)
        and was_away(row, published[row.pubid], now)
        and (found := waiting_since(replica, published[row.pubid], row)) is not None
        and found.is_over(now, info)
    }
    for subid, found in overdue.items():
        log.warning("%s: subscription %s expired: changes wait since %s", replica.root, subid, found.since)
    if overdue:
        replica.control.edit(SUBSCRIPTIONS, lambda rows: [_expired(row, overdue, now) for row in rows])


def was_away(row: SubscriptionRow, publication: PublicationRow, now: datetime) -> bool:
    """True if a subscriber had no session within the retention."""
    keeps, last = publication.keeps, row.last_sync_date
    return keeps is not None and (last is None or now - last > keeps)


def staged_again(replica: Replica) -> dict[str, Horizon]:
    """Return, by subid, what the staged reinitialisations of a publisher's expired subscriptions will leave.

    These count from their staging on, until the session is finished or aborted, but not longer than a subscription that
    has no session.

    Raises: StoreError if a manifest is damaged.
    """
    expired = {row.subid for row in replica.relations() if row.is_active and not row.is_live}
    if not expired:
        return {}
    now, keeps = present(replica.info()), {row.pubid: row.keeps for row in replica.published}

    def counts(staged: Manifest) -> bool:
        waits = keeps.get(staged.pubid)
        return waits is None or now - datetime.fromisoformat(staged.started) <= waits + GRACE

    found = [each.manifest for each in staged_changesets(replica.staging)]
    return {
        each.subid: each.horizon for each in found if each.void and each.subid in expired and counts(each)
    }


def _expired(row: SubscriptionRow, overdue: Mapping[str, Waiting], now: datetime) -> SubscriptionRow:
    return replace(row, expired_at=now) if row.subid in overdue else row


def present(info: ReplicaInfo) -> datetime:
    """Return the time at a replica: its clock may go back, and time does not."""
    now = datetime.now(UTC)
    return now if info.last_time is None else max(now, info.last_time)

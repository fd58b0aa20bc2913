"""Which versions both sides of a session know for certain, and the subscriptions that no longer count.

Pure Python on rows of sysmergesubscriptions. Every replica has one clock: no version that it knows is higher.
The publisher keeps for each subscription `through` (all changes that were made at the subscriber up to it have arrived) and
`knows` (the subscriber knows all changes up to it). A replica keeps `settled` (it knows all changes up to it, wherever they
were made) and `known` (so do all replicas) in its row about itself. Rules: docs/decisions/0066.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.errors import SubscriptionExpiredError, reinit_advice
from mergerepl.model.horizon import Horizon
from mergerepl.systables.catalog import SubscriptionRow, relations
from mergerepl.systables.replinfo import ReplicaInfo

Rows = Collection[SubscriptionRow]
"""A replica's rows of one publication."""

Staged = Mapping[str, Horizon]
"""Subid -> what the staged reinitialisation of an expired subscription leaves."""

NOTHING_STAGED: Final[Staged] = MappingProxyType({})


def clock_of(info: ReplicaInfo, rows: Iterable[SubscriptionRow]) -> int:
    """Return a replica's clock: what it was told, or has told, counts although MSmerge_replinfo was not written."""
    return max([info.clock, *(row.through for row in rows)])


def own_row(rows: Rows) -> SubscriptionRow:
    """Return a replica's row about itself."""
    return next(row for row in rows if row.is_own)


def row_about(rows: Rows, subid: str) -> SubscriptionRow:
    """Return a replica's row about the other side of a subscription."""
    return next(row for row in rows if row.subid == subid)


def publishers_horizon(rows: Rows, clock: int, staged: Staged = NOTHING_STAGED) -> tuple[int, int]:
    """Return what is settled at a publisher, and known to all replicas. Neither ever decreases.

    An expired subscription whose reinitialisation is staged counts as that will leave it.
    """
    own, others = own_row(rows), [row for row in relations(rows) if row.is_active]
    live: list[SubscriptionRow | Horizon] = [row for row in others if row.is_live]
    live += [staged[row.subid] for row in others if not row.is_live and row.subid in staged]
    settled = max(own.settled, min([clock, *(row.through for row in live)]))
    return settled, max(own.known, min([settled, *(row.knows for row in live)]))


def with_publishers_horizon(
    rows: Iterable[SubscriptionRow], info: ReplicaInfo, pubid: str, staged: Staged = NOTHING_STAGED
) -> list[SubscriptionRow]:
    """Return a publisher's rows, of any publications, with what is settled and known in one of them."""
    rows = list(rows)
    found = publishers_horizon([row for row in rows if row.pubid == pubid], clock_of(info, rows), staged)
    settled, known = found
    return [replace(row, settled=settled, known=known) if _is_about(row, pubid) else row for row in rows]


def _is_about(row: SubscriptionRow, pubid: str) -> bool:
    return row.is_own and row.pubid == pubid


def horizon(
    rows: Mapping[str, Rows], subid: str, clock: int, *, is_all_uploaded: bool, is_all_downloaded: bool
) -> Horizon:
    """Return what a session leaves, from both sides' rows before it and the subscriber's clock after its capture.

    A direction that did not run, or left out a change, which waits at its source, leaves what it was. The subscriber gets
    what its publisher had stored: what is settled anywhere stays so at the publisher, whoever comes back.
    """
    publishers, own, about = (
        own_row(rows[PUBLISHER]),
        own_row(rows[SUBSCRIBER]),
        row_about(rows[PUBLISHER], subid),
    )
    settled = max(own.settled, publishers.settled) if is_all_downloaded else own.settled
    return Horizon(
        through=max(about.through, clock) if is_all_uploaded else about.through,
        knows=max(about.knows, settled),
        settled=settled,
        known=max(own.known, publishers.known) if is_all_downloaded else own.known,
    )


def with_horizon(
    rows: Rows,
    *,
    subid: str,
    side: str,
    to: Horizon,
    info: ReplicaInfo,
    is_anew: bool = False,
    staged: Staged = NOTHING_STAGED,
) -> list[SubscriptionRow]:
    """Return one side's rows, of any publications, as a session leaves them; `info` is the replica's.

    The subscriber notes what it has told its publisher. `is_anew`: the subscriber was reinitialised, so what it had
    settled or told before is void.
    """
    pubid = row_about(rows, subid).pubid
    if is_anew:
        rows = [_forgotten(row, subid, pubid, side) for row in rows]

    def moved(row: SubscriptionRow) -> SubscriptionRow:
        if side == SUBSCRIBER and _is_about(row, pubid):
            return replace(row, settled=max(row.settled, to.settled), known=max(row.known, to.known))
        if row.subid == subid:
            return replace(row, through=max(row.through, to.through), knows=max(row.knows, to.knows))
        return row

    after = [moved(row) for row in rows]
    return with_publishers_horizon(after, info, pubid, staged) if side == PUBLISHER else after


def _forgotten(row: SubscriptionRow, subid: str, pubid: str, side: str) -> SubscriptionRow:
    if row.subid == subid:
        return replace(row, through=0, knows=0, expired_at=None)
    return replace(row, settled=0, known=0) if side == SUBSCRIBER and _is_about(row, pubid) else row


def refuse_expired(rows: Rows, about: SubscriptionRow, publisher: str, subscriber: str) -> None:
    """Check that a subscription still counts in what its publisher takes for settled.

    One that did not count for a while may hold changes at or below what counts as known to all replicas, or lack some.

    Raises: SubscriptionExpiredError.
    """
    own = own_row(rows)
    if about.expired_at is not None:
        reason = f"its subscription expired on {about.expired_at:%Y-%m-%d %H:%M} UTC"
    elif about.through < own.settled:
        reason = (
            f"changes up to version {own.settled} count as known to all replicas, and those of this subscriber have "
            f"arrived only up to version {about.through}: its subscription did not count for a while"
        )
    elif about.knows < own.known:
        reason = (
            f"metadata up to version {own.known} may be gone, and this subscriber knows only the changes up to "
            f"version {about.knows}: its subscription did not count for a while"
        )
    else:
        return
    raise expired(publisher, subscriber, reason)


def expired(publisher: str, subscriber: str, reason: str) -> SubscriptionExpiredError:
    """Return the error about a subscriber that can no longer be merged by lineage."""
    return SubscriptionExpiredError(
        f"'{subscriber}' and '{publisher}' cannot be synchronized any more: {reason}. Nothing was changed. "
        f"{reinit_advice(publisher, subscriber)}",
        publisher=publisher,
        subscriber=subscriber,
    )

"""The quick "nothing to do": no table that could make work has changed since a full check found nothing.

After a session found nothing to do, `<publisher>/_mergerepl/quiet/<key>.json` lists every Delta table that could make
work with its version and its log file's size, time and inode. While each of them is still the head, the next sync ends
after two look-ups a table. In doubt the answer is no, and the full check decides. The files are caches: deleting them
is harmless. `waiting_if_quiet` loads no library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mergerepl.delta.known_heads import noting_log_files
from mergerepl.delta.log import as_seen, head_version, is_as_seen
from mergerepl.errors import MergeReplError
from mergerepl.roots import MERGE_FOLDER, resolved
from mergerepl.store.location import Location
from mergerepl.store.notes import has_staged_session, read_note, write_note

if TYPE_CHECKING:
    from mergerepl.model.results import SessionResult
    from mergerepl.replica.replica import Replica
    from mergerepl.systables.catalog import SubscriptionRow

_FORMAT = 1
_SYSTEM_TABLES = (
    "sysmergepublications",
    "sysmergearticles",
    "sysmergesubscriptions",
    "MSmerge_genhistory",
    "MSmerge_replinfo",
    # An edit of these tables is reported even if there are no changes.
    "MSmerge_contents",
    "MSmerge_tombstone",
)
_SUBSCRIPTION_TABLES = ("sysmergepublications", "sysmergesubscriptions", "MSmerge_replinfo")
_SUBSCRIPTIONS = "subscriptions"
_BOTH = "both"

_UNREADABLE = (MergeReplError, OSError, LookupError, TypeError, ValueError)
"""What a note raises that is damaged, or a table that is gone."""


def waiting_if_quiet(
    publisher: Location, subscriber: Location, publication: str, direction: str = _BOTH
) -> int | None:
    """Count the waiting changes; None if anything has changed at a replica since a full check found nothing to do.

    Each publication has its own note: two on one pair of replicas list different tables.
    """
    try:
        if any(map(has_staged_session, (publisher, subscriber))):
            return None
        notes = _remembered(publisher, subscriber, publication, direction)
        quiet = (
            note
            for note in notes
            if all(_fence(Location.of(root)) == fence for root, fence in note["fences"])
            and all(is_as_seen(seen) for seen in note["tables"])
        )
        return next((int(note["waiting"]) for note in quiet), None)
    except _UNREADABLE:
        # The full check will report a problem of the file or a table.
        return None


def nothing_to_do(subscriber: Location, publication: str, waiting: int = 0) -> SessionResult:
    """Return the result of a session that `waiting_if_quiet` made unnecessary."""
    from mergerepl.model.results import SessionResult

    return SessionResult(publication, str(subscriber), "nothing_to_do", waiting=waiting)


def remember_quiet(
    publisher: Replica, subscriber: Replica, publication: str, direction: str = _BOTH, *, waiting: int = 0
) -> None:
    """Note the versions of all tables after a session found nothing to do; skips the note if work has come since.

    The note also has the number of changes that wait because a table refuses them. The versions are read first, then
    the check runs. A later commit (a user's, or another subscriber's session) is either seen by the check or makes a
    version newer than the noted one. So no lease is needed.
    """
    pubid = publisher.publication(publication).pubid
    replicas = (publisher, subscriber)
    # Whoever writes system tables in a store takes the register before, which raises its fence.
    fences = [(replica.root, _fence(replica.root)) for replica in replicas if not replica.root.is_local]
    tables = [
        *(r.folder / name for r in replicas if r.root.is_local for name in _SYSTEM_TABLES),
        *(replica.table(article) for replica in replicas for article in replica.articles_of(pubid)),
    ]
    with noting_log_files():
        heads = {table: head_version(table) for table in tables}
        seen = [as_seen(table, head) for table, head in heads.items()]
        is_staged = any(has_staged_session(replica.root) for replica in replicas)
        is_held = any(fence is None for _, fence in fences)
        if is_staged or is_held or not _has_nothing(publisher, subscriber, pubid, direction, heads):
            return
    note = {
        "format": _FORMAT,
        "publication": publication,
        "tables": seen,
        "fences": [[str(root), fence] for root, fence in fences],
        "waiting": waiting,
        "day": _today(),
    }
    write_note(publisher.root, _name(publisher.root, subscriber.root, publication, direction), note)


def _fence(root: Location) -> int | None:
    """Return the fence of a root in a store; None while another agent may write there."""
    from mergerepl.store.register import ROOT_LOCK, found_state, held_register

    if (held := held_register(root / ROOT_LOCK)) is not None:
        return held.fence
    found = found_state(root)
    return None if found is None or found.holder is not None or found.in_flight else found.fence


Target = tuple[Location, Location, str]
"""Publisher root, subscriber root and name of the publication of a subscription."""


def noted_subscriptions(root: Location) -> list[Target] | None:
    """Return the active subscriptions of a publisher from its note; None if they must be read.

    A note is valid only in its original folder: a copy of a replica may have other subscriptions.
    """
    root = Location.of(resolved(os.path.expanduser(str(root))))
    try:
        note = read_note(root, _SUBSCRIPTIONS)
        is_valid = note is not None and note["format"] == _FORMAT and note["root"] == str(root)
        if (
            note is None
            or not is_valid
            or not note["tables"]
            or not all(is_as_seen(seen) for seen in note["tables"])
        ):
            return None
        return [
            (Location.of(publisher), Location.of(subscriber), str(name))
            for publisher, subscriber, name in note["subscriptions"]
        ]
    except _UNREADABLE:
        # Reading them will report a problem of the file or a table.
        return None


def remember_subscriptions(root: Location) -> None:
    """Note the active subscriptions of a publisher with the tables they are read from."""
    from mergerepl.replica.subscription import subscriptions_of_root

    tables = [root / MERGE_FOLDER / name for name in _SUBSCRIPTION_TABLES]
    seen = [as_seen(table, head_version(table)) for table in tables]
    subscriptions = [[str(part) for part in target] for target in subscriptions_of_root(root)]
    note = {"format": _FORMAT, "root": str(root), "tables": seen, "subscriptions": subscriptions}
    write_note(root, _SUBSCRIPTIONS, note)


def _name(publisher: Location, subscriber: Location, publication: str, direction: str) -> str:
    what = f"{resolved(publisher)}\n{resolved(subscriber)}\n{publication}"
    key = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{key}-{direction}"


def _remembered(
    publisher: Location, subscriber: Location, publication: str, direction: str
) -> list[dict[str, Any]]:
    """Return the notes for a direction; a note for both directions counts for each."""
    notes: list[dict[str, Any]] = []
    for noted in dict.fromkeys((_BOTH, direction)):
        note = read_note(publisher, _name(publisher, subscriber, publication, noted))
        # A damaged note is ignored, and hides no other.
        with contextlib.suppress(LookupError, TypeError):
            if (
                note is not None
                and note["format"] == _FORMAT
                and note["publication"] == publication
                and note["tables"]
                and isinstance(note["fences"], list)
                # What waits in the other direction expires, unless a session notes each day that it ran.
                and (noted == _BOTH or note["day"] == _today())
            ):
                notes.append(note)
    return notes


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _has_nothing(
    publisher: Replica, subscriber: Replica, pubid: str, direction: str, heads: Mapping[Location, int]
) -> bool:
    """True if every table is captured up to its head, no generation waits to be sent and no version to settle."""
    from enumeration.plan import Destination, Enumeration, enumeration
    from mergerepl.errors import EnumerationError
    from mergerepl.monitoring.waiting import is_all_captured, source_of

    infos = {replica.root: replica.info() for replica in (publisher, subscriber)}
    for replica in (publisher, subscriber):
        info = infos[replica.root]
        for article in replica.articles_of(pubid):
            if not is_all_captured(replica, article, info, head=heads.get(replica.table(article))):
                return False
    rows = {}
    for one, other in ((publisher, subscriber), (subscriber, publisher)):
        about = (row for row in one.relations(pubid) if row.replid == infos[other.root].replid)
        rows[one.root] = next((row for row in about if not row.is_ended), None)
    ways = {"upload": (subscriber, publisher), "download": (publisher, subscriber)}
    found: dict[str, Enumeration] = {}
    for way in ways if direction == _BOTH else (direction,):
        source, destination = ways[way]
        row = rows[source.root]
        if row is None:
            return False
        rules, settled = destination.row_constraints, destination.settled(pubid)
        to = Destination(str(destination.root), destination.held, rows[destination.root], rules, settled)
        try:
            found[way] = enumeration(source_of(source, row, source.articles_of(pubid)), to)
        except EnumerationError:
            # The next session reports the problem.
            return False
        if found[way].has_changes:
            return False
    about_subscriber = rows[publisher.root]
    assert about_subscriber is not None
    is_all = {way: way in found and not found[way].waiting for way in ways}
    return _is_settled(publisher, subscriber, about_subscriber, is_all)


def _is_settled(
    publisher: Replica, subscriber: Replica, about: SubscriptionRow, is_all: dict[str, bool]
) -> bool:
    """True if a session that sends nothing would store nothing; `is_all` has the directions that leave nothing waiting."""
    from enumeration.horizon import clock_of, horizon, with_horizon
    from mergerepl.changes import PUBLISHER, SUBSCRIBER

    ends = {PUBLISHER: publisher, SUBSCRIBER: subscriber}
    rows = {name: replica.rows_of(about.pubid) for name, replica in ends.items()}
    infos = {name: replica.info() for name, replica in ends.items()}
    to = horizon(
        rows,
        about.subid,
        max(clock_of(infos[name], replica.subscriptions()) for name, replica in ends.items()),
        is_all_uploaded=is_all["upload"],
        is_all_downloaded=is_all["download"],
    )
    return all(
        with_horizon(rows[name], subid=about.subid, side=name, to=to, info=infos[name]) == rows[name]
        for name in ends
    )

"""Metadata cleanup (sp_mergemetadataretentioncleanup): forget the changes that every replica knows.

For each publication it finds the highest generation up to which every live subscription has acknowledged all generations,
all came here longer ago than the retention, and all replicas know them. It stores that bound in MSmerge_replinfo: this one
commit is the cleanup. The rows are removed later (`replica.cleaned`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from enumeration.horizon import NOTHING_STAGED, own_row, with_publishers_horizon
from mergerepl.errors import MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.replica.cleaned import count_dead, remove_dead, remove_files
from mergerepl.replica.expiry import expire_overdue, present, staged_again
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import pointers, refuse_copies
from mergerepl.store.changeset import staged_changesets
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.notes import read_note, write_note
from mergerepl.systables.catalog import SUBSCRIPTIONS, PublicationRow, SubscriptionRow, relations
from mergerepl.systables.genhistory import Generation

log = logging.getLogger(__name__)

_NOTE = "metadata-cleaned"

A_DAY = timedelta(days=1)
STAGED = "a session is interrupted: run `mergerepl sync`, which finishes it, or `mergerepl abort`"
READS_ANCESTORS = "its resolver reads the versions before a conflict, so its metadata is not cleaned up"


@dataclass(frozen=True)
class CleanedMetadata:
    """The rows that a cleanup removed, by system table. `kept` has the reasons by publication or article that stays."""

    rows: dict[str, int]
    kept: dict[str, str]


def clean_up_metadata(
    root: Location, *, older_than: timedelta | None = None, dry_run: bool = False, accepts_clock: bool = False
) -> CleanedMetadata:
    """Forget the metadata of a replica that all replicas know; by default what is older than the retention.

    Starts no engine. `accepts_clock`: the clock is right, although the replica was not written for longer than that.

    Raises: ConfigurationError if the folder is not a replica; PublicationError for a copy; LeaseError, StoreError.
    """
    with lease(root, purpose="mergerepl cleanup"):
        replica = Replica(root).require()
        replica.require_tables()
        refuse_copies(replica)
        replica.require_unedited()
        if not _is_own_side_done(replica):
            return CleanedMetadata({}, {row.name: STAGED for row in replica.publications})
        if accepts_clock and not dry_run:
            replica.accept_clock()
        if not dry_run:
            expire_overdue(replica, present(replica.info()))
            _settle(replica)
        now = datetime.now(UTC) if accepts_clock else None
        bounds, kept = cleanable(replica, older_than=older_than, now=now)
        if dry_run:
            return CleanedMetadata(count_dead(replica, also=bounds), kept)
        _store(replica, bounds)
        return CleanedMetadata(remove_dead(replica), kept)


def clean_up_files(root: Location, *, dry_run: bool = False) -> tuple[int, str | None]:
    """Remove files of a replica's system tables that no version has needed for a while.

    Returns: Their number, and the reason if all of them stay: the recovery of a staged session reads the log.

    Raises: ConfigurationError if the folder is not a replica; StoreError, also if a table was edited: its files of the
        version before the edit stay; LeaseError.
    """
    with lease(root, purpose="mergerepl cleanup"):
        replica = Replica(root).require()
        replica.require_unedited()
        if not _is_own_side_done(replica):
            return 0, STAGED
        return remove_files(replica, dry_run=dry_run), None


def clean_up_when_due(replicas: Sequence[Replica], *, now: datetime | None = None) -> None:
    """At most once an hour, forget the metadata that all replicas know. The caller holds these replicas.

    Rows are removed when their files are joined. A failure is only logged: the session itself is complete.
    """
    stated = {"hour": (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H")}
    for replica in replicas:
        if read_note(replica.root, _NOTE) == stated:
            continue
        try:
            if _is_own_side_done(replica):
                expire_overdue(replica, now or present(replica.info()))
                _settle(replica)
                _store(replica, cleanable(replica, now=now, at_most=A_DAY)[0])
                replica.require_unedited()
                remove_files(replica, now=now)
                write_note(replica.root, _NOTE, stated)
        except (MergeReplError, OSError) as error:
            log.warning("%s: its metadata could not be cleaned up: %s", replica.root, error)


def _is_own_side_done(replica: Replica) -> bool:
    """True if the replica has carried out its side of every staged session, as far as publishers are in reach."""
    here = all(each.is_done("publisher") for each in staged_changesets(replica.staging))
    return here and not any(not each.is_publisher_there or each.is_staged for each in pointers(replica))


def cleanable(
    replica: Replica,
    *,
    older_than: timedelta | None = None,
    now: datetime | None = None,
    at_most: timedelta | None = None,
) -> tuple[dict[int, int], dict[str, str]]:
    """Return by tablenick the generation up to which metadata may be forgotten, and why nothing of others may.

    `older_than` replaces the retention; `at_most` is the time whose generations one run covers, so that a shorter retention
    does not let one session forget years. Only articles are named for which the bound rises.
    """
    bounds: dict[int, int] = {}
    kept: dict[str, str] = {}
    cleaned = replica.info().cleaned
    for publication in replica.publications:
        age = publication.keeps if older_than is None else older_than
        if age is None:
            continue
        articles = replica.articles_of(publication.pubid)
        kept |= {article.name: READS_ANCESTORS for article in articles if article.needs_base}
        bound = _bound(replica, publication, now or replica.present(), age, at_most)
        for article in articles:
            if not article.needs_base and bound > cleaned.get(article.nickname, 0):
                bounds[article.nickname] = bound
    return bounds, kept


def _bound(
    replica: Replica, publication: PublicationRow, now: datetime, age: timedelta, at_most: timedelta | None
) -> int:
    """Return the last generation of a publication up to which metadata may be forgotten, or 0.

    At a subscriber its publisher counts as long as the subscription exists.
    """
    rows = replica.rows_of(publication.pubid)
    is_publisher = replica.publishes(publication.pubid)
    staged = staged_again(replica) if is_publisher else NOTHING_STAGED
    others = [
        row
        for row in relations(rows)
        if (row.is_live or row.subid in staged if is_publisher else not row.is_ended)
    ]
    known = own_row(rows).known
    acknowledged = min((row.sentgen for row in others), default=replica.info().last_generation)
    history = replica.genhistory(from_generation_exclusive=_cleaned(replica, publication))
    last, before = 0, now - age
    for row in _in_the_past([row for row in history if row.pubid == publication.pubid], now):
        if row.generation > acknowledged or not _may_go(row, known, before):
            break
        if at_most is not None and not last and row.coldate is not None:
            before = min(before, row.coldate + at_most)
        last = row.generation
    return last


def _in_the_past(history: Sequence[Generation], now: datetime) -> list[Generation]:
    """Return generations, by number, with the time of the next one where they are of a time to come.

    A clock that was years ahead made them; nothing would be forgotten for as many years.
    """
    found: list[Generation] = []
    for row in reversed(history):
        is_to_come = bool(found) and row.coldate is not None and row.coldate > now
        found.append(replace(row, coldate=found[-1].coldate) if is_to_come else row)
    return found[::-1]


def _cleaned(replica: Replica, publication: PublicationRow) -> int:
    """Return the generation up to which all articles of a publication were cleaned up."""
    cleaned = replica.info().cleaned
    articles = [each for each in replica.articles_of(publication.pubid) if not each.needs_base]
    return min((cleaned.get(each.nickname, 0) for each in articles), default=0)


def _may_go(row: Generation, known: int, before: datetime) -> bool:
    if row.is_open or row.maxversion is None or row.maxversion > known:
        return False
    return row.coldate is not None and row.coldate <= before


def _settle(replica: Replica) -> None:
    """Store what has settled at a publisher by now: it must be there before anything is forgotten by it."""
    pubids, staged = [row.pubid for row in replica.published], staged_again(replica)

    def change(rows: list[SubscriptionRow]) -> list[SubscriptionRow]:
        for pubid in pubids:
            rows = with_publishers_horizon(rows, replica.info(), pubid, staged)
        return rows

    replica.control.edit(SUBSCRIPTIONS, change)


def _store(replica: Replica, bounds: dict[int, int]) -> None:
    """Store the bounds: from this commit on, what they cover does not count."""
    if not bounds:
        return
    failpoint("cleanup.before_cleaned")
    info = replica.info()
    replica.save_info(replace(info, cleaned={**info.cleaned, **bounds}))
    failpoint("cleanup.after_cleaned")

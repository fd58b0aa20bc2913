"""The numbers of a database, the folders of its open transactions, and their decisions (intents).

`counters.json` is written whole, under a lock that is held for milliseconds. A transaction is a folder
`tx/<bsn>` whose file `owner` its process keeps locked for life: if another process can lock it, the owner is dead.

In a bucket the root's register has the numbers, the open transaction and the intent (`register_numbers`, decision 0170). A
transaction holds it from its begin to its end, so one of a root is open at a time.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from mergerepl.errors import LeaseError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import OpenTransaction
from mergerepl.store.lease import brief_lock, holder, holder_note, is_locked, lock_for_life
from mergerepl.store.location import Location
from mergerepl.store.redo import NamedRedoLog, RedoLog
from mergerepl.store.register import ROOT_LOCK
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import (
    files_once_written,
    folders_in,
    is_folder,
    is_local,
    make_folder,
    put_text,
    remove_leftover,
    storage,
)
from mergerepl.systables.tracking import FOLDER, SCHEMA_VERSION
from mergerepl.tracking import register_numbers
from mergerepl.tracking.errors import TrackingError, TransactionConflictError

_COUNTERS = "counters.json"
_LOCK = "lock"
_TRANSACTIONS = "tx"
_OWNER = "owner"
_ABORTED = "aborted"
_STAGED = "staged"


@dataclass(frozen=True)
class Counters:
    """The contents of `counters.json`."""

    database_id: str
    last_bsn: int = 0
    last_csn: int = 0
    purged_through: Mapping[str, int] = field(default_factory=dict)
    """Table, or `__sysTxCommitSequence`, to the lowest LCSN that is still served exactly."""
    schema_version: int = SCHEMA_VERSION


def is_database(root: Location) -> bool:
    """True if tables of a folder are, or were, tracked."""
    if not is_local(root):
        return register_numbers.are_there(root)
    return storage(at := _file(root)).exists(at)


def create_database(root: Location) -> None:
    """Make the folder and its counters, if they do not exist. In a bucket the caller holds the root."""
    make_folder(root / FOLDER / _TRANSACTIONS)
    with _locked(root):
        if not is_database(root):
            _write(root, Counters(str(uuid.uuid4())))


def read_counters(root: Location) -> Counters:
    """Return the counters of a database.

    Raises: TrackingError if the database is missing, its counters are damaged, or another version wrote them.
    """
    if not is_local(root):
        return _counters_of(root, register_numbers.counters_of(root))
    path = root / FOLDER / _COUNTERS
    if (stored := storage(at := _file(root)).read(at)) is None:
        if not is_folder(root / FOLDER):
            raise TrackingError.no_database(root)
        raise TrackingError.counters(path, "the file is missing")
    try:
        return _counters_of(root, json.loads(stored[0]))
    except (ValueError, TypeError, KeyError) as error:
        raise TrackingError.counters(path, "the file is damaged") from error


def _counters_of(root: Location, stored: Mapping[str, Any]) -> Counters:
    counters = Counters(**stored)
    if counters.schema_version != SCHEMA_VERSION:
        raise TrackingError(
            f"The tracking data of '{root}' have the schema version {counters.schema_version}; this mergerepl reads "
            f"{SCHEMA_VERSION}. Use the mergerepl that wrote them.",
            path=str(root),
        )
    return counters


def change_counters(root: Location, change: Callable[[Counters], Counters]) -> Counters:
    """Change the counters under their lock and return them; equal counters are not written.

    In a bucket the caller holds the root.
    """
    with _locked(root):
        before = read_counters(root)
        after = change(before)
        if after != before:
            _write(root, after)
    return after


@contextmanager
def _locked(root: Location) -> Iterator[None]:
    if not is_local(root):
        # The register is changed by its holder alone.
        yield
        return
    if not is_folder(root / FOLDER):
        raise TrackingError.no_database(root)
    with brief_lock(root / FOLDER / _LOCK):
        yield


def _write(root: Location, counters: Counters) -> None:
    if not is_local(root):
        register_numbers.write(root, asdict(counters))
        return
    put_text(_file(root), json.dumps(asdict(counters), sort_keys=True))


def _file(root: Location) -> Location:
    return Location.of(root / FOLDER / _COUNTERS)


@dataclass(frozen=True)
class Begun:
    """A transaction of this process: its number, its folder, and what shows that it is alive.

    That is the descriptor of a locked file; in a bucket the root's register, unless the caller holds that himself.
    """

    bsn: int
    folder: Location
    owner: int | None = None
    held: ExitStack = field(default_factory=ExitStack)

    def is_held(self, *, asks: bool = False) -> bool:
        """True unless another agent is known to have taken the bucket's root over (`register_numbers.is_held`)."""
        return is_local(self.folder) or register_numbers.is_held(self.folder.parents[2], self.bsn, asks=asks)

    def let_go(self) -> None:
        """Release what shows that the owner lives."""
        if self.owner is not None:
            os.close(self.owner)
        self.held.close()


def begin(root: Location, *, count: int = 1) -> Begun:
    """Take the next BSN, or several that are published together, and make the folder of the first."""
    with _locked(root):
        counters = read_counters(root)
        bsn = counters.last_bsn + 1
        begun = replace(counters, last_bsn=counters.last_bsn + count)
        if not is_local(root):
            register_numbers.begin(root, asdict(begun), bsn)
            failpoint("tracking.after_begin")
            return Begun(bsn, transaction_folder(root, bsn))
        # Before the folder: no number is given twice, even if this one stays unused.
        _write(root, begun)
        failpoint("tracking.after_begin")
        folder = transaction_folder(root, bsn)
        make_folder(folder)
        owner = lock_for_life(folder / _OWNER, "tracking transaction")
    return Begun(bsn, folder, owner)


def take_bsns(root: Location, count: int) -> list[int]:
    """Take BSNs that a decided transaction publishes together with its own."""
    last = change_counters(root, lambda each: replace(each, last_bsn=each.last_bsn + count)).last_bsn
    return list(range(last - count + 1, last + 1))


def raise_last_csn(root: Location, csn: int) -> None:
    """Note that a CSN is taken."""
    change_counters(root, lambda each: replace(each, last_csn=max(csn, each.last_csn)))


def transaction_folder(root: Location, bsn: int) -> Location:
    """Return the folder of a transaction."""
    return root / FOLDER / _TRANSACTIONS / f"{bsn:020d}"


def transaction_folders(root: Location) -> list[Location]:
    """Return the folders of transactions, in BSN order: in a bucket of the open one, and of the decided one."""
    if not is_local(root):
        numbers = {register_numbers.live_bsn(root), _decided_bsn(root)} - {None}
        return [transaction_folder(root, bsn) for bsn in sorted(filter(None, numbers))]
    folder = root / FOLDER / _TRANSACTIONS
    return [folder / name for name in folders_in(folder) if name.isdecimal()]


def bsn_of(folder: Location) -> int:
    """Return the BSN of a transaction's folder."""
    return int(folder.name)


def is_begun(folder: Location) -> bool:
    """True if a transaction's folder still exists; in a bucket, if it is open."""
    return is_folder(folder) if is_local(folder) else _is_live(folder)


def _is_live(folder: Location) -> bool:
    """True if a transaction in a bucket is open, or one that a command makes under an open one."""
    bsn = register_numbers.live_bsn(folder.parents[2])
    return bsn is not None and bsn <= bsn_of(folder)


def staging_folder(folder: Location, table: str) -> Location:
    """Return where a transaction stages rows of a table: apart from its own files, whose names a table may have."""
    return folder / _STAGED / table


def has_staged(folder: Location, table: str) -> bool:
    """True if a transaction has staged rows of a table."""
    return is_folder(staging_folder(folder, table))


def parquet_files(folder: Location) -> list[Location]:
    """Return the files of a staged folder."""
    return files_once_written(Location.of(folder))


def decide(folder: Location, intent: Intent) -> None:
    """Make an intent durable, in place of an earlier one of the same folder.

    Raises: TransactionConflictError if the transaction was aborted.
    """
    log = redo_log(folder)
    if is_local(folder):
        log.stage(intent, under=_not_aborted(folder))
        return
    with _not_aborted(folder):
        # The register counts while this agent holds it: no other one ends the transaction in between.
        log.stage(intent)


@contextmanager
def _not_aborted(folder: Location) -> Iterator[None]:
    # The lock of `mark_aborted`: a transaction ends in one way only.
    with _locked(folder.parents[2]):
        if is_aborted(folder) or not is_begun(folder):
            raise TransactionConflictError.was_aborted(bsn_of(folder))
        yield


def drop(folder: Location) -> None:
    """Remove a transaction's folder, if it exists. In a bucket the register forgets the intent first."""
    redo_log(folder).finish()
    if not is_local(folder):
        remove_leftover(folder)


def mark_aborted(folder: Location) -> bool:
    """Note that a transaction is over without effect; it takes its CSN at the next sweep.

    Returns: False if it was decided before, and is carried out.
    """
    if not is_local(folder):
        return _dropped(folder)
    # A sweep removes the folders of aborted transactions without the lock.
    at = Location.of(folder) / _ABORTED
    with _locked(folder.parents[2]), suppress(FileNotFoundError, FileExistsError):
        if has_intent(folder):
            return False
        storage(at).put_if_absent(at, b"")
    return True


def _dropped(folder: Location) -> bool:
    """Remove the rows of a transaction in a bucket; False if it was decided: they are needed, by whoever carries it out."""
    if is_rehearsal():
        return True
    with suppress(LeaseError, StoreError, OSError):
        # An intent whose PUT had no answer may be in the register.
        register_numbers.end(folder.parents[2], bsn_of(folder))
        if has_intent(folder):
            return False
        remove_leftover(folder)
    return True


def is_aborted(folder: Location) -> bool:
    """True if a transaction's folder holds the mark; in a bucket, if it ended undecided."""
    if not is_local(folder):
        return not (_is_live(folder) or has_intent(folder))
    return storage(at := Location.of(folder) / _ABORTED).exists(at)


def has_intent(folder: Location) -> bool:
    """True if a transaction is decided: it will always be carried out."""
    if not is_local(folder):
        return _decided_bsn(folder.parents[2]) == bsn_of(folder)
    return redo_log(folder).is_pending


def _decided_bsn(root: Location) -> int | None:
    """Return the BSN of the transaction in a bucket that is decided and not finished."""
    intent = redo_log(transaction_folder(root, 0)).pending()
    return None if intent is None else intent.transactions[0].bsn


def is_dead(folder: Location) -> bool:
    """True if a transaction has no living owner. In a bucket, one whose owner is dead is not open."""
    if not is_local(folder):
        return False
    return not is_locked(folder / _OWNER)


def remove_left(root: Location) -> None:
    """Remove the rows and intents in a bucket that nobody needs any more. The caller holds the root."""
    kept = {folder.name for folder in transaction_folders(root)}
    above = root / FOLDER / _TRANSACTIONS
    for name in folders_in(above):
        if name not in kept:
            remove_leftover(above / name)
    redo_log(transaction_folder(root, 0)).remove_left()


def open_transactions(root: Location) -> list[OpenTransaction]:
    """Return the transactions that have a folder, with their state."""
    found = []
    for folder in transaction_folders(root):
        note = holder_note(folder / _OWNER) if is_local(root) else holder(root) or {}
        since = datetime.fromisoformat(str(note["since"])) if "since" in note else datetime.now(UTC)
        owner = f"process {note.get('pid', '?')} on {note.get('host', '?')}"
        found.append(OpenTransaction(bsn_of(folder), since, owner, _state(folder)))
    return found


def _state(folder: Location) -> str:
    if has_intent(folder):
        return "committing"
    if is_aborted(folder):
        return "aborted"
    return "dead" if is_dead(folder) else "open"


def lowest_open_bsn(root: Location) -> int:
    """Return the lowest BSN that may still commit, or else the next one: later commits have higher ones."""
    # The counters first: in a bucket a transaction may begin in between.
    with _locked(root):
        counters = read_counters(root)
        live = (bsn_of(folder) for folder in transaction_folders(root) if not is_aborted(folder))
        return min(live, default=counters.last_bsn + 1)


Bounds = Mapping[str, tuple[str, str]]
"""Staged key column to its lowest and highest value, as text."""


@dataclass(frozen=True)
class Counts:
    """Rows of a staged folder by operation."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    reborn: int = 0

    @property
    def changes(self) -> int:
        """Return the number of changed keys."""
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True)
class Planned:
    """A transaction that will be published."""

    bsn: int
    csn: int
    nonce: str
    context: str | None
    changes: Mapping[str, int]
    foreign_version: int | None = None
    tables: tuple[str, ...] = ()
    """The table of an adopted commit."""


@dataclass(frozen=True)
class Write:
    """One commit to a user's table: the net changes of a transaction, or the stamps of adopted rows."""

    table: str
    csn: int
    folder: str
    """Below the transaction's folder: staged rows."""
    schema: Any
    """Their schema, as Spark's JSON."""
    options: int
    from_version: int
    """The version of the table that was read; later commits are unknown."""
    counts: Counts
    """In an adoption: only rows to stamp, as updates."""
    bounds: Bounds = field(default_factory=dict)
    adopts: bool = False
    """Whether it only stamps rows that foreign commits wrote."""


@dataclass(frozen=True)
class Intent:
    """The transactions that are published together, in CSN order, and their writes."""

    time: datetime
    transactions: tuple[Planned, ...]
    writes: tuple[Write, ...]
    versions: Mapping[str, int]
    """Tracked table to the version up to which its log was read: the snapshot, but for the tables written."""
    overwritten: Mapping[str, int] = field(default_factory=dict)

    @property
    def last_csn(self) -> int:
        """The highest CSN."""
        return self.transactions[-1].csn

    def tables_of(self, csn: int) -> tuple[str, ...]:
        """Return the tables that a transaction writes."""
        return tuple(write.table for write in self.writes if write.csn == csn)

    def extended(self, other: Intent) -> Intent:
        """Return the intent joined with another one, published together."""
        return replace(
            self,
            transactions=(*self.transactions, *other.transactions),
            writes=(*self.writes, *other.writes),
            overwritten={**self.overwritten, **other.overwritten},
        )


def redo_log(folder: Location) -> RedoLog[Intent]:
    """Return the redo log of a transaction, in its folder; in a bucket that of its root."""
    if not is_local(folder):
        root, what = folder.parents[2], "The transaction"
        return NamedRedoLog(
            root / FOLDER, Intent, "tracking", "intent", what, field="intent", lock=root / ROOT_LOCK
        )
    return RedoLog(folder, Intent, "tracking", "intent", "The transaction", owns_folder=True)


def read_intent(folder: Location) -> Intent:
    """Return the intent of a folder that has one."""
    intent = redo_log(folder).pending()
    assert intent is not None
    return intent

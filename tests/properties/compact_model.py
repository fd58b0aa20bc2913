"""The reference of Compact change tracking: one tracked row in plain Python, its transactions and its consumers.

The queries look at each row by itself, so one row is enough. A history is the order in which transactions end and consumers
synchronise, with what each transaction does to the row:

| letter | does |
|---|---|
| U | inserts the row, or updates it |
| D | deletes it |
| R | deletes it and inserts it again |
| X | inserts it and deletes it again; deletes one that was there |
| N | changes another row only |
| A | aborts |

What a transaction did is in the tables when it commits. It may overwrite what another one committed after it began, which
is more than the engine allows (the first committer wins there).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

OPERATIONS = "UDRXNA"


class Row(NamedTuple):
    """The tracked row: BSN of the inserting and of the last changing transaction (None: before tracking), its content."""

    insert: int | None
    change: int | None
    content: str


class Tombstone(NamedTuple):
    """A deleted row."""

    delete: int
    insert: int | None


@dataclass(frozen=True)
class Rules:
    """The rules that a variant may break."""

    abort_takes_csn: bool = True
    stored_if: str = "differs"
    """A row of the commit sequence is stored if CSN and BSN differ, or if the commit is `out of order`."""


@dataclass
class Database:
    """The row, the tombstones, the commit sequence and the two counters."""

    row: Row | None
    rules: Rules = Rules()
    tombstones: list[Tombstone] = field(default_factory=list)
    sequence: dict[int, int] = field(default_factory=dict)
    csns: dict[int, int] = field(default_factory=dict)
    """What is true of all committed transactions, also of those that the sequence leaves out."""
    last_csn: int = 0
    committed: tuple[int, int] = (0, 0)
    """BSN and CSN of the last committed transaction."""
    ended: set[int] = field(default_factory=set)

    def end(self, bsn: int, operation: str) -> None:
        """Commit a transaction, or abort it."""
        self.ended.add(bsn)
        if operation == "A":
            self.last_csn += self.rules.abort_takes_csn
            return
        self.last_csn += 1
        csn = self.last_csn
        if self._is_stored(bsn, csn):
            self.sequence[bsn] = csn
        self.committed, self.csns[bsn] = (bsn, csn), csn
        self._change(bsn, operation)

    def _is_stored(self, bsn: int, csn: int) -> bool:
        if self.rules.stored_if == "differs":
            return bsn != csn
        return any(each not in self.ended for each in range(1, bsn)) or any(each > bsn for each in self.csns)

    def _change(self, bsn: int, operation: str) -> None:
        row = self.row
        content = f"by {bsn}"
        if operation == "U":
            self.row = Row(row.insert if row else bsn, bsn, content)
        elif operation in "DR" and row:
            self.tombstones.append(Tombstone(bsn, row.insert))
            self.row = None
        elif operation == "X":
            self.tombstones.append(Tombstone(bsn, row.insert if row else bsn))
            self.row = None
        if operation == "R":
            self.row = Row(bsn, bsn, content)

    def csn(self, bsn: int) -> int:
        """The CSN of a transaction, as the tables have it."""
        return self.sequence.get(bsn, bsn)

    def purge_sequence(self, is_needed: Callable[[int, int], bool]) -> None:
        """Remove the rows of the commit sequence that are not needed."""
        self.sequence = {bsn: csn for bsn, csn in self.sequence.items() if is_needed(bsn, csn)}


class Found(NamedTuple):
    """What a window holds: contents of inserted and updated rows, deletes."""

    inserts: list[str]
    updates: list[str]
    deletes: list[int]


class Bounds(NamedTuple):
    """A window: LBSN of the last one, LCSN <= csn < ECSN."""

    lbsn: int
    lcsn: int
    ecsn: int

    def holds(self, csn: int) -> bool:
        """Whether a CSN is in the window."""
        return self.lcsn <= csn < self.ecsn


def exact(database: Database, bounds: Bounds) -> Found:
    """The predicates that lose nothing."""
    found = Found([], [], [])
    row = database.row
    if row is not None:
        is_new = row.insert is not None and bounds.holds(database.csn(row.insert))
        if is_new:
            found.inserts.append(row.content)
        elif row.change is not None and bounds.holds(database.csn(row.change)):
            found.updates.append(row.content)
    for each in database.tombstones:
        is_known = each.insert is None or database.csn(each.insert) < bounds.lcsn
        if is_known and bounds.holds(database.csn(each.delete)):
            found.deletes.append(each.delete)
    return found


def documented(
    database: Database, bounds: Bounds, *, holds_csn: bool = True, prefilter: bool = True
) -> Found:
    """The printed queries. A tombstone holds its insert's CSN, by the name in the SQL, or BSN, by that in the table."""
    found = Found([], [], [])
    row = database.row
    if row is not None and row.change is not None and (not prefilter or row.change >= bounds.lbsn):
        if row.insert is not None and bounds.holds(database.csn(row.insert)):
            found.inserts.append(row.content)
        if bounds.holds(database.csn(row.change)):
            found.updates.append(row.content)
    for each in database.tombstones:
        stored = database.csns[each.insert] if holds_csn and each.insert is not None else each.insert
        if (stored is None or stored < bounds.lcsn) and bounds.holds(database.csn(each.delete)):
            found.deletes.append(each.delete)
    return found


def without_context(database: Database, theirs: set[int], bounds: Bounds, *, naive: bool = False) -> Found:
    """The exact predicates without what the consumer's own transactions changed last.

    Naive: their rows and tombstones are left out. Otherwise, a row that one of them inserted is known to the consumer; a
    delete is left out if the row is there and they changed it last, or inserted it after that delete; and where one of them
    changed the table within the window, what came and went in it is enumerated as deleted, too.
    """
    found = Found([], [], [])
    row = database.row

    def is_known(insert: int | None) -> bool:
        return insert is None or database.csn(insert) < bounds.lcsn or (not naive and insert in theirs)

    if (
        row is not None
        and row.change is not None
        and row.change not in theirs
        and bounds.holds(database.csn(row.change))
    ):
        (found.updates if is_known(row.insert) else found.inserts).append(row.content)
    changed_here = any(bounds.holds(database.csns[bsn]) for bsn in theirs if bsn in database.csns)
    for each in database.tombstones:
        if each.delete in theirs or not bounds.holds(database.csn(each.delete)):
            continue
        is_enumerated = is_known(each.insert) or (changed_here and not naive)
        if not naive and row is not None:
            is_theirs_again = row.insert in theirs and database.csn(row.insert or 0) > database.csn(
                each.delete
            )
            is_enumerated &= row.change not in theirs and not is_theirs_again
        if is_enumerated:
            found.deletes.append(each.delete)
    return found


@dataclass
class Consumer:
    """Applies deletes, inserts, updates, in this order, and counts what does not fit."""

    copy: str | None
    query: Callable[[Database, Bounds], Found]
    ecsn_above: int = 1
    """ECSN is this much above the last committed CSN."""
    lbsn: int = 0
    lcsn: int = 0
    faults: set[str] = field(default_factory=set)

    def synchronise(self, database: Database) -> Found:
        """Enumerate up to now, apply, acknowledge."""
        ebsn, csn = database.committed
        ecsn = csn + self.ecsn_above
        found = self.query(database, Bounds(self.lbsn, self.lcsn, ecsn))
        before = self.copy
        for _ in found.deletes:
            self._note("misfit", self.copy is None)
            self.copy = None
        for content in found.inserts:
            self._note("misfit", self.copy is not None)
            self._note("again", before == content)
            self.copy = content
        for content in found.updates:
            self._note("misfit", self.copy is None)
            self._note("again", before == content)
            self._note("doubled", content in found.inserts)
            self.copy = content
        self.lbsn, self.lcsn = ebsn, ecsn
        return found

    def _note(self, fault: str, happened: bool) -> None:
        if happened:
            self.faults.add(fault)


Events = tuple[int, ...]
"""Ends of transactions, by BSN, and synchronisations, as 0."""


def interleavings(transactions: int, syncs: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """All orders of begins (in BSN order), ends (each after its begin) and synchronisations."""

    def go(
        begun: int, open_: frozenset[int], synced: int, events: tuple[tuple[str, int], ...]
    ) -> Iterator[tuple[tuple[str, int], ...]]:
        if begun == transactions and not open_ and synced == syncs:
            yield events
            return
        if begun < transactions:
            yield from go(begun + 1, open_ | {begun + 1}, synced, (*events, ("begin", begun + 1)))
        for bsn in sorted(open_):
            yield from go(begun, open_ - {bsn}, synced, (*events, ("end", bsn)))
        if synced < syncs:
            yield from go(begun, open_, synced + 1, (*events, ("sync", 0)))

    yield from go(0, frozenset(), 0, ())


def as_seen(events: tuple[tuple[str, int], ...]) -> Events:
    """What the queries can see of an interleaving: begins leave no trace but the BSN, which is their order."""
    return tuple(bsn for kind, bsn in events if kind != "begin")


def classes(transactions: int, syncs: int) -> set[tuple[int, Events]]:
    """All interleavings of up to so many transactions and synchronisations that differ to the queries."""
    return {
        (count, as_seen(events))
        for count in range(1, transactions + 1)
        for rounds in range(1, syncs + 1)
        for events in interleavings(count, rounds)
    }


def faults_of(
    events: Events,
    operations: tuple[str, ...],
    *,
    is_there: bool,
    query: Callable[[Database, Bounds], Found],
    ecsn_above: int = 1,
    rules: Rules = Rules(),
    is_needed: Callable[[int, int, int], bool] | None = None,
) -> set[str]:
    """Run a history, then synchronise at rest, and once more after another transaction; return what went wrong.

    `is_needed` purges the commit sequence after each synchronisation, by BSN, CSN and LCSN.
    """
    database = Database(Row(None, None, "old") if is_there else None, rules)
    consumer = Consumer("old" if is_there else None, query, ecsn_above)
    for bsn in events:
        if bsn:
            database.end(bsn, operations[bsn - 1])
            continue
        consumer.synchronise(database)
        if is_needed is not None:
            lcsn = consumer.lcsn
            database.purge_sequence(lambda b, c, lcsn=lcsn: is_needed(b, c, lcsn))
    consumer.synchronise(database)
    content = database.row.content if database.row else None
    faults = set(consumer.faults)
    if consumer.copy != content:
        faults.add("late")
    database.end(len(operations) + 1, "N")
    consumer.synchronise(database)
    faults |= consumer.faults
    if consumer.copy != content:
        faults.add("lost row" if content else "lost delete")
    return faults


def echo_faults(
    events: Events, operations: tuple[str, ...], theirs: set[int], *, is_there: bool, naive: bool
) -> bool:
    """Whether a consumer that is the source of some transactions ends with another row than the database."""
    database = Database(Row(None, None, "old") if is_there else None)
    copy, lcsn = "old" if is_there else None, 0
    for bsn in (*events, 0):
        if bsn:
            database.end(bsn, operations[bsn - 1])
            if bsn in theirs:  # the change was made there, too
                copy = database.row.content if database.row else None
            continue
        ecsn = database.committed[1] + 1
        found = without_context(database, theirs, Bounds(0, lcsn, ecsn), naive=naive)
        copy = None if found.deletes else copy
        for content in (*found.inserts, *found.updates):
            copy = content
        lcsn = ecsn
    return copy != (database.row.content if database.row else None)

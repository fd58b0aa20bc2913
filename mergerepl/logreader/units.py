"""Units: commits of several tables that get one LSN, all or none of them (decision 0081).

The marks of the commits name the unit and its tables (`delta.marks.CommitUnit`): a Compact transaction, a session's side,
a batch, or `mergerepl.unit` of a user's job.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module

from mergerepl.delta.tables import TruncatedLogError, read_commit
from mergerepl.errors import StoreError
from mergerepl.logreader.plan import Placed
from mergerepl.logreader.sources import SourceLook
from mergerepl.store.location import Location

WAIT = timedelta(seconds=60)
"""So long a unit waits for its other commits, unless its writer is known to finish it."""

MOST = 64
"""Commits of a unit at most: their places share a byte of `__$seqval` with the phase."""

_PASSED = 20
"""So many commits before the position of a source are searched for a unit, if the source has no other commit of it."""

_WRITERS = (
    ("mergerepl.store.notes", "has_staged_session"),
    ("mergerepl.tracking.sweep", "is_unfinished"),
    ("mergerepl.transactional.position", "is_unfinished"),
    ("mergerepl.logreader.user_unit", "is_unfinished"),
)
"""Modules of writers, with the function that tells of a folder whether they have a unit to finish there. They are loaded by
name, and only while a unit waits."""


def is_unfinished(root: Location) -> bool:
    """True if the writer of a unit in a folder is at work, or will finish it."""
    return any(getattr(import_module(module), has_one)(root) for module, has_one in _WRITERS)


def readable(order: Sequence[Placed], needs: Mapping[str, AbstractSet[int]]) -> list[Placed]:
    """Return the commits, in order, without units of which a table's commit is missing, and without what may depend on one.

    `needs`: unit -> sources of which it has a commit. A table is read as far as the first commit of a unit that waits. All
    commits behind the next one of that table wait, too: their writers may have seen it.
    """
    left = list(order)
    while waiting := incomplete(left, needs):
        kept: list[Placed] = []
        held: set[int] = set()
        for each in left:
            if each.object_id in held:
                break
            if each.unit in waiting:
                held.add(each.object_id)
            else:
                kept.append(each)
        left = kept
    return left


def incomplete(order: Sequence[Placed], needs: Mapping[str, AbstractSet[int]]) -> dict[str, set[int]]:
    """Return the units whose commits are not all among these: unit -> the sources that lack one."""
    found: dict[str, set[int]] = {}
    for each in order:
        if each.unit:
            found.setdefault(each.unit, set()).add(each.object_id)
    return {unit: missing for unit, here in found.items() if (missing := set(needs.get(unit, ())) - here)}


def grouped(order: Sequence[Placed]) -> tuple[list[list[Placed]], set[str]]:
    """Return the commits that get one LSN each time, in order, and the units that cannot be kept together.

    A unit gets the place of its last commit; or of an earlier one, if another commit of its tables lies between. Of several
    commits of one table the last one takes part. The order of the commits of a table never changes.
    """
    groups: list[list[Placed]] = [[each] for each in order]
    places: dict[str, dict[int, int]] = {}
    for at, each in enumerate(order):
        if each.unit:
            places.setdefault(each.unit, {})[each.object_id] = at
    split = set()
    for unit, of_source in places.items():
        members = sorted(of_source.values())
        if len(members) < 2:
            continue
        place = None
        if len(members) <= MOST:
            free = (q for q in reversed(members) if all(_may_move(groups, at, q) for at in members))
            place = next(free, None)
        if place is None:
            split.add(unit)
            continue
        together = [each for at in members for each in groups[at]]
        for at in members:
            groups[at] = []
        groups[place] = together
    return [group for group in groups if group], split


def _may_move(groups: Sequence[Sequence[Placed]], at: int, to: int) -> bool:
    """True if no commit of the same source lies between two places."""
    source = groups[at][0].object_id
    between = groups[min(at, to) + 1 : max(at, to)]
    return all(each.object_id != source for group in between for each in group)


@dataclass(frozen=True)
class Units:
    """The units in the cut of a cycle.

    `waiting`: unit -> since when it waits. `expired` are taken without the commits that they lack.
    """

    needs: Mapping[str, AbstractSet[int]]
    waiting: Mapping[str, datetime]
    expired: Mapping[str, AbstractSet[int]]

    def notices(self, order: Sequence[Placed], paths: Mapping[int, str]) -> list[str]:
        """Return the notices about units among some commits whose changes do not come together."""
        here = {each.unit for each in order}
        whys = {
            unit: f"{', '.join(sorted(paths[each] for each in missing))} had no commit of it after {WAIT.seconds} seconds"
            for unit, missing in self.expired.items()
        }
        whys |= dict.fromkeys(
            grouped(order)[1], "other commits of its tables lie between, or it has too many"
        )
        return [
            f"Unit '{unit}' is not one transaction: {why}. Its commits have an LSN each."
            for unit, why in whys.items()
            if unit in here
        ]


def units_of(
    root: Location,
    looks: Mapping[int, SourceLook],
    order: Sequence[Placed],
    since: Mapping[str, datetime],
    *,
    now: datetime,
    will_be_finished: bool,
) -> Units:
    """Return the units among the commits in the cut. `since` are the times that earlier cycles noted.

    `will_be_finished`: before the cut was made, a product had a unit to finish.
    """
    ids = {each.unit for each in order if each.unit}
    stated = {
        c.unit.id: c.unit for look in looks.values() for c in look.commits if c.unit and c.unit.id in ids
    }
    of_path = {look.row.source_path: number for number, look in looks.items()}
    needs = {
        unit: frozenset(of_path[table] for table in each.tables if table in of_path)
        for unit, each in stated.items()
    }
    lacking = incomplete(order, needs)
    for unit, missing in lacking.items():
        needs[unit] -= {number for number in missing if _has_passed(root, looks[number], unit)}
    lacking = incomplete(order, needs)
    waiting = {unit: since.get(unit, now) for unit in lacking}
    expired = {
        unit: lacking[unit]
        for unit, began in waiting.items()
        if unit in since and now - began >= WAIT and not will_be_finished
    }
    for unit in expired:
        needs[unit] = frozenset()
    return Units(needs, {unit: began for unit, began in waiting.items() if unit not in expired}, expired)


def _has_passed(root: Location, look: SourceLook, unit: str) -> bool:
    """True if a commit of a unit shares its LSN with no other: it was read before, is without changes, or is compared."""
    if any(each.unit is not None and each.unit.id == unit for each in look.commits):
        return True
    path, position = root / look.row.source_path, look.row.position
    for version in range(position, max(-1, position - _PASSED), -1):
        try:
            found = read_commit(path, version).unit
        except (TruncatedLogError, StoreError):
            return False
        if found is not None and found.id == unit:
            return True
    return False

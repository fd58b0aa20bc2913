"""A scan cycle: all or nothing over several tables (cdc.md 4)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.tables import open_table
from mergerepl.delta.vacuum import moment_of_ns
from mergerepl.failpoints import failpoint
from mergerepl.logreader.consumer import PauseSource, Wanted, pausing
from mergerepl.logreader.log_reader import (
    LogReader,
    carry_out,
    choice_of,
    recover,
    refuse_copy,
    refuse_other_consumers,
    refuse_restored,
    release_all,
    wanted_of,
)
from mergerepl.logreader.lsn import MAX_SLOT, Lsn
from mergerepl.logreader.plan import (
    BEGIN,
    DUMMY,
    EntryCommit,
    Paused,
    Placed,
    Plan,
    SourcePlan,
    in_order,
    redo_log,
)
from mergerepl.logreader.planning import Chosen, cycle_plan, entries_of, new_plan, row_after
from mergerepl.logreader.positions import LogState, read_state, save_state
from mergerepl.logreader.replaced import set_properties_again
from mergerepl.logreader.sources import SourceLook, begun, look_at, readings
from mergerepl.logreader.units import Units, grouped, is_unfinished, readable, units_of
from mergerepl.store.storage import file_system_now_ns, is_local
from mergerepl.systables.logreader import LogReaderRow

if TYPE_CHECKING:
    from mergerepl.logreader.read import ReadSource

_A_SECOND_S = 1.0
_ATTEMPTS = 3
"""So often a cycle waits for the next second, by the clock of a store."""

IDLE = timedelta(minutes=5)
"""Without transactions for this long a dummy entry is written, so that times can be mapped to LSNs."""


@dataclass(frozen=True)
class CycleResult:
    """The result of a cycle.

    `scan_cycle` is None if nothing was new. `paused` are the sources that left this cycle, by their paths. `has_more`:
    more commits wait that could be read at once.
    """

    scan_cycle: int | None = None
    transactions: int = 0
    rows: int = 0
    last_lsn: Lsn | None = None
    paused: Mapping[str, str] = field(default_factory=dict)
    has_more: bool = False


def checked_state(reader: LogReader) -> LogState:
    """Finish a cycle that died, and return the state, if log, positions and gates are from the same moment.

    The caller holds the log. Raises: LogReaderError.
    """
    state = read_state(reader.control)
    refuse_copy(reader.root, state)
    refuse_other_consumers(reader.root, state, reader.consumers)
    if recover(reader) is not None:
        state = read_state(reader.control)
    refuse_restored(reader.root, state, reader.consumers)
    for consumer in reader.consumers:
        consumer.served(state)
    return state


def leave(reader: LogReader, consumer: str, object_ids: frozenset[int] | None = None) -> LogState:
    """Let a consumer leave some sources (None: all) and forget sources without a consumer. The caller holds the log."""
    before = read_state(reader.control)
    state = before.without_consumer(consumer, object_ids)
    if state != before:
        save_state(reader.control, state)
        failpoint("logreader.after_leave")
        for each in reader.consumers:
            each.served(state)
    return state


def scan(reader: LogReader, *, maxtrans: int = 1000) -> CycleResult:
    """Run one cycle: at most `maxtrans` transactions. The caller holds the log.

    Raises: LogReaderError; Spark's error if a source cannot be read although its changes still exist.
    """
    with ExitStack() as stack:
        for each in reader.consumers:
            stack.enter_context(each.at_work())
        done, state = _cycle(reader, maxtrans)
        set_properties_again(reader, state)
        return done


def _cycle(reader: LogReader, maxtrans: int) -> tuple[CycleResult, LogState]:
    """Run one cycle; return its result and the state after it."""
    began = datetime.now(UTC)
    state = checked_state(reader)
    wanted = wanted_of(state, reader.consumers)
    # Before the cut: a unit that is finished later has its commits in no list of this cycle.
    will_be_finished = bool(state.database.waiting) and is_unfinished(reader.root)
    most = min(maxtrans, MAX_SLOT)
    for attempt in range(_ATTEMPTS):
        if attempt:
            # A store dates its objects in whole seconds: what was committed before this cycle began is in its cut.
            time.sleep(_A_SECOND_S)
        began_ns = file_system_now_ns(reader.control.folder)
        looks, units = _in_cut(reader, state, wanted, began_ns, most, will_be_finished=will_be_finished)
        if not any(map(_is_of_this_second, looks.values())):
            break
    paused = [look.paused for look in looks.values() if look.paused is not None]
    looks = {object_id: look for object_id, look in looks.items() if look.paused is None}
    groups, _ = grouped(readable(_order(looks), units.needs))
    chosen = Counter(each.object_id for group in groups[:most] for each in group)
    looks = {object_id: look.limited(chosen[object_id]) for object_id, look in looks.items()}
    noted = replace(state, database=replace(state.database, waiting=units.waiting))
    if not chosen and not paused:
        return _idle(reader, state, noted, looks, began_ns)
    read: dict[int, ReadSource] = {}
    stated = {object_id: _source(look, wanted) for object_id, look in looks.items()}
    choice = choice_of(reader, stated.values())
    try:
        try:
            with choice.rules():
                sources, stopped = _read(reader, looks, wanted, stated, read)
        except NeedsSparkError as error:
            choice = choice.left_for_spark(error)
            release_all(read)
            sources, stopped = _read(reader, looks, wanted, stated, read)
        paused += stopped
        plan = cycle_plan(reader, noted, sources, paused, began_ns, units)
        redo_log(reader.root).stage(plan)
    except BaseException:
        release_all(read)
        raise
    plan, rows = carry_out(reader, plan, read, began=began, choice=choice)
    result = CycleResult(
        plan.scan_cycle if plan.entries else None,
        len(plan.entries),
        rows,
        plan.last_lsn,
        {state.sources[each.object_id].source_path: each.reason for each in plan.paused},
        any(look.has_waiting for look in looks.values()),
    )
    return result, plan.after


def _in_cut(
    reader: LogReader,
    state: LogState,
    wanted: Mapping[int, Wanted],
    began_ns: int,
    most: int,
    *,
    will_be_finished: bool,
) -> tuple[dict[int, SourceLook], Units]:
    """Return the new commits of the active sources, and their units. A unit may need more than `most` of a source."""
    looks = {
        row.source_object_id: look_at(
            *(reader.root, row),
            began_ns=began_ns,
            most=most,
            on_gap=wanted.get(row.source_object_id, Wanted()).on_gap,
        )
        for row in state.sources.values()
        if row.status == "active"
    }
    read = {number: look for number, look in looks.items() if look.paused is None}
    now, since = moment_of_ns(began_ns), state.database.waiting
    units = units_of(reader.root, read, _order(read), since, now=now, will_be_finished=will_be_finished)
    if units.waiting and most < MAX_SLOT and any(look.has_waiting for look in read.values()):
        return _in_cut(reader, state, wanted, began_ns, MAX_SLOT, will_be_finished=will_be_finished)
    return looks, units


def _is_of_this_second(look: SourceLook) -> bool:
    """True if all new commits of a source in a store are of the second in which the cycle began."""
    is_waiting = look.has_waiting and not look.commits and look.paused is None
    return is_waiting and not is_local(look.path)


def _order(looks: Mapping[int, SourceLook]) -> list[Placed]:
    return in_order([unit.placed for unit in look.units] for look in looks.values())


def look_ahead(
    reader: LogReader, state: LogState, row: LogReaderRow, *, on_gap: str | None = None
) -> SourceLook:
    """Read the next commits of a source as a cycle would, and decide nothing; `paused` has a cycle's reason to pause it.

    `on_gap` replaces the consumers' choice. The caller holds the log.
    """
    wanted = wanted_of(state, reader.consumers)
    wish = wanted.get(row.source_object_id, Wanted())
    wish = replace(wish, on_gap=on_gap or wish.on_gap)
    began_ns = file_system_now_ns(reader.control.folder)
    look = look_at(reader.root, row, began_ns=began_ns, most=1000, on_gap=wish.on_gap)
    read: dict[int, ReadSource] = {}
    paused: Sequence[Paused] = ()
    if look.paused is None and look.units:
        number = row.source_object_id
        wishes = {number: wish}
        _, paused = _read(reader, {number: look}, wishes, {number: _source(look, wishes)}, read)
        release_all(read)
    return replace(look, paused=paused[0]) if paused else look


def _idle(
    reader: LogReader, state: LogState, noted: LogState, looks: Mapping[int, SourceLook], began_ns: int
) -> tuple[CycleResult, LogState]:
    """Move positions over commits without changes; after a while without transactions, write a dummy entry.

    `noted` is the state with the units that wait.
    """
    moved = noted
    for look in looks.values():
        row = look.row
        if look.through_version_inclusive > row.position or look.head > max(row.seen, row.position):
            moved = moved.with_source(row_after(look))
    last = state.database.last_time
    if last is not None and moment_of_ns(began_ns) - last >= IDLE and state.sources:
        # With an LSN comes the state, positions and all.
        entry = entries_of(moved, [Chosen(DUMMY)], began_ns)
        plan = new_plan(reader, noted, entry, (), moved, [])
        redo_log(reader.root).stage(plan)
        carry_out(reader, plan, {})
        return CycleResult(plan.scan_cycle, 0, 0, plan.last_lsn), plan.after
    if moved != state:
        save_state(reader.control, moved)
    return CycleResult(has_more=False), moved


def _source(look: SourceLook, wanted: Mapping[int, Wanted]) -> SourcePlan:
    """Return how a source with these new commits is read."""
    key = wanted.get(look.row.source_object_id, Wanted()).key
    return SourcePlan(
        look.row.source_object_id,
        look.row.source_path,
        look.row.position,
        look.through_version_inclusive,
        key,
        readings(look, key),
        look.columns,
    )


def _read(
    reader: LogReader,
    looks: Mapping[int, SourceLook],
    wanted: Mapping[int, Wanted],
    stated: Mapping[int, SourcePlan],
    read: dict[int, ReadSource],
) -> tuple[list[tuple[SourceLook, SourcePlan]], list[Paused]]:
    """Read each source with changes once. Returns the sources, and those that cannot be read, or taken."""
    sources, paused = [], []
    for object_id, look in looks.items():
        wish = wanted.get(object_id, Wanted())
        source = stated[object_id]
        try:
            if source.readings:
                # A cycle without changes loads no Spark.
                from mergerepl.logreader.read import read_source, require_few_read

                with pausing(source):
                    read[object_id] = read_source(reader.spark(), reader.root, source, on_gap=wish.on_gap)
                require_few_read(read.values())
                source = replace(source, readings=read[object_id].readings)
            if look.units:
                rows = read[object_id].rows if object_id in read else []
                with pausing(source):
                    for consumer in reader.consumers:
                        consumer.check(source, rows, reader.spark)
        except PauseSource as pause:
            if object_id in read:
                read.pop(object_id).release()
            paused.append(Paused(object_id, pause.number, pause.reason))
            continue
        sources.append((look, source))
    return sources, paused


@dataclass(frozen=True)
class Begin:
    """A source that a consumer begins to read, or reads again from its head: the known part of its row.

    `object_id` is None for a source without a consumer so far.
    """

    path: str
    schema: str
    name: str
    object_id: int | None = None
    from_head: bool = False


def begin(
    reader: LogReader, consumer: str, begins: Sequence[Begin], steps: Any, *, object_ids: int = 0
) -> Plan:
    """Run a separate cycle in which sources begin: each gets an LSN, of kind begin. The caller holds the log.

    A source that is read already begins at its position: unread commits get higher LSNs. Another one begins at its head.
    `steps(numbers, lsns)` returns the consumer's decision, from the object_ids of the sources and the LSNs and versions at
    which they begin. `object_ids`: additional numbers it needs, after those of the sources.
    """
    state = checked_state(reader)
    began_ns = file_system_now_ns(reader.control.folder)
    after = state
    rows = []
    for each in begins:
        row, after = _begun_row(reader, after, consumer, each)
        rows.append(row)
    first = after.database.next_object_id
    after = replace(after, database=replace(after.database, next_object_id=first + object_ids))
    begun = entries_of(state, [Chosen(BEGIN)] * len(rows), began_ns)
    entries = tuple(
        replace(entry, members=(EntryCommit(row.source_object_id, row.position, row.position),))
        for entry, row in zip(begun, rows, strict=True)
    )
    plan = new_plan(reader, state, entries, (), after, (), steps={})
    decisions = steps(plan, rows, range(first, first + object_ids))
    plan = replace(plan, steps={consumer: decisions})
    redo_log(reader.root).stage(plan)
    carry_out(reader, plan, {})
    return plan


def _begun_row(
    reader: LogReader, state: LogState, consumer: str, begin: Begin
) -> tuple[LogReaderRow, LogState]:
    known = state.source_at(begin.path)
    if known is None:
        number = state.database.next_object_id
        state = replace(state, database=replace(state.database, next_object_id=number + 1))
        known = LogReaderRow(
            source_object_id=number,
            source_schema=begin.schema,
            source_name=begin.name,
            source_path=begin.path,
        )
    row = known
    if known.position < 0 or begin.from_head:
        row = begun(known, open_table(reader.root / begin.path))
    row = replace(row, consumers=tuple(sorted({*row.consumers, consumer})))
    return row, state.with_source(row)

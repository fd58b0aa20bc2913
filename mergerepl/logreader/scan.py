"""A scan cycle: all or nothing over several tables (cdc.md 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mergerepl.delta.tables import commit_text, open_table
from mergerepl.delta.vacuum import moment_of_ns
from mergerepl.failpoints import failpoint
from mergerepl.logreader.consumer import UNUSABLE, PauseSource, Wanted, highest_cycle, pausing, remove_rows
from mergerepl.logreader.log_reader import (
    LogReader,
    carry_out,
    recover,
    refuse_copy,
    refuse_other_consumers,
    refuse_restored,
    wanted_of,
)
from mergerepl.logreader.lsn import MAX_SLOT, Lsn, scan_cycle_of
from mergerepl.logreader.plan import (
    BEGIN,
    DDL,
    DUMMY,
    NET,
    TRANSACTION,
    Entry,
    Paused,
    Plan,
    SourcePlan,
    end_times,
    in_order,
    moment_of_ms,
    paused_row,
    redo_log,
)
from mergerepl.logreader.positions import LogState, read_state, save_state
from mergerepl.logreader.sources import SourceLook, Unit, begun, look_at, readings
from mergerepl.model.cdc import ScanError
from mergerepl.store.storage import file_system_now_ns
from mergerepl.systables.logreader import LogReaderRow

if TYPE_CHECKING:
    from mergerepl.logreader.read import ReadSource

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
        return _cycle(reader, maxtrans)


def _cycle(reader: LogReader, maxtrans: int) -> CycleResult:
    began = datetime.now(UTC)
    state = checked_state(reader)
    wanted = wanted_of(state, reader.consumers)
    began_ns = file_system_now_ns(reader.control.folder)
    active = [row for row in state.sources.values() if row.status == "active"]
    looks = {
        row.source_object_id: look_at(
            *(reader.root, row),
            began_ns=began_ns,
            most=min(maxtrans, MAX_SLOT),
            on_gap=wanted.get(row.source_object_id, Wanted()).on_gap,
        )
        for row in active
    }
    paused = [look.paused for look in looks.values() if look.paused is not None]
    looks = {object_id: look for object_id, look in looks.items() if look.paused is None}
    chosen = in_order(
        ([unit.placed for unit in look.units] for look in looks.values()), most=min(maxtrans, MAX_SLOT)
    )
    counts = {object_id: sum(each.object_id == object_id for each in chosen) for object_id in looks}
    looks = {object_id: look.limited(counts[object_id]) for object_id, look in looks.items()}
    if not chosen and not paused:
        return _idle(reader, state, looks, began_ns)
    read: dict[int, ReadSource] = {}
    try:
        sources = _read(reader, looks, wanted, read, paused)
        plan = _plan(reader, state, sources, paused, began_ns)
        redo_log(reader.root).stage(plan)
    except BaseException:
        for each in read.values():
            each.release()
        raise
    plan, rows = carry_out(reader, plan, read, began=began)
    return CycleResult(
        plan.scan_cycle if plan.entries else None,
        len(plan.entries),
        rows,
        plan.last_lsn,
        {state.sources[each.object_id].source_path: each.reason for each in plan.paused},
        any(look.has_waiting for look in looks.values()),
    )


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
    paused: list[Paused] = []
    if look.paused is None and look.units:
        _read(reader, {row.source_object_id: look}, {row.source_object_id: wish}, read, paused)
        for each in read.values():
            each.release()
    return replace(look, paused=paused[0]) if paused else look


def _idle(reader: LogReader, state: LogState, looks: Mapping[int, SourceLook], began_ns: int) -> CycleResult:
    """Move positions over commits without changes; after a while without transactions, write a dummy entry."""
    moved = state
    for look in looks.values():
        row = look.row
        if look.through_version_inclusive > row.position or look.head > max(row.seen, row.position):
            moved = moved.with_source(_row_after(look))
    last = state.database.last_time
    if last is not None and moment_of_ns(began_ns) - last >= IDLE and state.sources:
        # With an LSN comes the state, positions and all.
        entry = _entries(moved, [(None, DUMMY)], began_ns)
        plan = _new_plan(reader, state, entry, (), moved, [])
        redo_log(reader.root).stage(plan)
        carry_out(reader, plan, {})
        return CycleResult(plan.scan_cycle, 0, 0, plan.last_lsn)
    if moved != state:
        save_state(reader.control, moved)
    return CycleResult(has_more=False)


def _row_after(look: SourceLook) -> LogReaderRow:
    return look.after(commit=commit_text(look.path, look.through_version_inclusive))


def _read(
    reader: LogReader,
    looks: Mapping[int, SourceLook],
    wanted: Mapping[int, Wanted],
    read: dict[int, ReadSource],
    paused: list[Paused],
) -> list[tuple[SourceLook, SourcePlan]]:
    """Read each source with changes once. A source that cannot be read, or taken, joins the paused ones."""
    sources = []
    for object_id, look in looks.items():
        wish = wanted.get(object_id, Wanted())
        source = SourcePlan(
            object_id,
            look.row.source_path,
            look.row.position,
            look.through_version_inclusive,
            wish.key,
            readings(look, wish.key),
            look.columns,
        )
        try:
            if source.readings:
                # A cycle without changes loads no Spark.
                from mergerepl.logreader.read import read_source

                with pausing(source):
                    read[object_id] = read_source(reader.spark(), reader.root, source, on_gap=wish.on_gap)
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
    return sources


def _plan(
    reader: LogReader,
    state: LogState,
    sources: Sequence[tuple[SourceLook, SourcePlan]],
    paused: Sequence[Paused],
    began_ns: int,
) -> Plan:
    units: dict[tuple[int, int], tuple[Unit, str]] = {}
    notices = []
    after = state
    for look, source in sources:
        for unit, kind in _units_read(look, source):
            units[source.object_id, unit.version] = unit, kind
        notices += _notices(source)
        if look.head > look.row.position:
            after = after.with_source(_row_after(look))
    for each in paused:
        after = after.with_source(paused_row(state.sources[each.object_id], each))
    order = in_order([[unit.placed for unit, _ in units.values()]], most=MAX_SLOT)
    chosen = [units[each.object_id, each.version] for each in order]
    entries = _entries(state, chosen, began_ns)
    plans = tuple(source for look, source in sources if look.units)
    return _new_plan(reader, state, entries, plans, after, notices, paused)


def _units_read(look: SourceLook, source: SourcePlan) -> list[tuple[Unit, str]]:
    """Return the units that get LSNs once the rows were read: versions that were compared are one transaction together."""
    units = {unit.version: unit for unit in look.units}
    found = [(unit, DDL) for unit in look.units if unit.is_ddl]
    for reading in source.readings:
        if reading.is_gap:
            last = units[reading.through_version_inclusive]
            found.append((replace(last, from_version=reading.from_version_inclusive), NET))
        else:
            found += [(units[version], TRANSACTION) for version in reading.versions]
    return found


def _notices(source: SourcePlan) -> list[ScanError]:
    return [
        ScanError(
            session_id=0,
            entry_time=datetime.now(UTC),
            error_number=UNUSABLE,
            error_severity=10,
            error_message=(
                f"Table '{source.path}', versions {reading.from_version_inclusive} to "
                f"{reading.through_version_inclusive}: {reading.compared}. Their difference is one transaction; states in "
                "between are lost."
            ),
        )
        for reading in source.readings
        if reading.is_gap
    ]


def _entries(state: LogState, units: Sequence[tuple[Unit | None, str]], began_ns: int) -> tuple[Entry, ...]:
    latest = moment_of_ns(began_ns)
    committed = [latest if unit is None else min(latest, _commit_time(unit)) for unit, _ in units]
    ends = end_times(committed, last=state.database.last_time)
    found = []
    for slot, ((unit, kind), end) in enumerate(zip(units, ends, strict=True), 1):
        if unit is None:
            found.append(Entry(slot, kind, end, end))
            continue
        begin = min(end, moment_of_ms(unit.commit.made_at_ms)) if unit.commit.made_at_ms > 0 else end
        found.append(
            Entry(
                *(slot, kind, begin, end, unit.placed.object_id, unit.from_version, unit.version),
                operation=unit.commit.operation,
                origin=unit.origin,
            )
        )
    return tuple(found)


def _commit_time(unit: Unit) -> datetime:
    """Return Delta's commit time: the in-commit timestamp, else that of the log file, in milliseconds."""
    if unit.commit.in_commit_ms is not None:
        return moment_of_ms(unit.commit.in_commit_ms)
    return moment_of_ms(unit.placed.at_ns // 1_000_000)


def _new_plan(
    reader: LogReader,
    state: LogState,
    entries: tuple[Entry, ...],
    sources: tuple[SourcePlan, ...],
    after: LogState,
    notices: Sequence[ScanError],
    paused: Sequence[Paused] = (),
    steps: Mapping[str, Any] | None = None,
) -> Plan:
    """Give a cycle its number: above every cycle that any table of any consumer has."""
    database = state.database
    above = max(database.cycle, scan_cycle_of(database.epoch, 0), *map(highest_cycle, reader.consumers))
    if above > database.cycle and above > scan_cycle_of(database.epoch, 0):
        # A plan was removed manually: rows that its cycle left must never count.
        for consumer in reader.consumers:
            remove_rows(consumer, f"> {database.cycle}", database.cycle + 1)
    scan_cycle = above + 1
    if entries:
        last = Lsn.of(scan_cycle, entries[-1].slot)
        database = replace(database, cycle=scan_cycle, last_lsn=last, last_time=entries[-1].end_time)
    plan = Plan(
        scan_cycle,
        tuple(each.name for each in reader.consumers),
        entries,
        sources,
        replace(after, database=replace(database, next_object_id=after.database.next_object_id)),
        tuple(paused),
        tuple(notices),
        state.database.last_lsn,
        state.database.cycle,
        steps or {},
    )
    if steps is None:
        decided = {each.name: each.decide(plan) for each in reader.consumers}
        plan = replace(plan, steps={name: step for name, step in decided.items() if step is not None})
    return plan


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
    entries = tuple(
        replace(entry, object_id=row.source_object_id, from_version=row.position, version=row.position)
        for entry, row in zip(_entries(state, [(None, BEGIN)] * len(rows), began_ns), rows, strict=True)
    )
    plan = _new_plan(reader, state, entries, (), after, (), steps={})
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

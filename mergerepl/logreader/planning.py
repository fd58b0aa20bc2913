"""From the commits in a cycle's cut, and their readings, to its plan: which commits get which LSNs and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mergerepl.delta.tables import commit_text
from mergerepl.delta.vacuum import moment_of_ns
from mergerepl.logreader.consumer import highest_cycle, remove_rows
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn, scan_cycle_of
from mergerepl.logreader.plan import (
    DDL,
    NET,
    TRANSACTION,
    Entry,
    EntryCommit,
    Paused,
    Plan,
    SourcePlan,
    end_times,
    in_order,
    moment_of_ms,
    paused_row,
)
from mergerepl.logreader.positions import LogState
from mergerepl.logreader.sources import SourceLook, Unit
from mergerepl.logreader.units import Units, grouped
from mergerepl.systables.logreader import LogReaderRow


def row_after(look: SourceLook) -> LogReaderRow:
    """Return the row of a source when its commits were read."""
    return look.after(commit=commit_text(look.path, look.through_version_inclusive))


def cycle_plan(
    reader: LogReader,
    state: LogState,
    sources: Sequence[tuple[SourceLook, SourcePlan]],
    paused: Sequence[Paused],
    began_ns: int,
    units: Units,
) -> Plan:
    """Return the plan of a cycle that has read its sources. `state` has the units that wait."""
    found: dict[tuple[int, int], tuple[Unit, str]] = {}
    notices: list[str] = []
    after = state
    for look, source in sources:
        for unit, kind in _units_read(look, source):
            found[source.object_id, unit.version] = unit, kind
        notices += _notices(source)
        if look.head > look.row.position:
            after = after.with_source(row_after(look))
    for each in paused:
        after = after.with_source(paused_row(state.sources[each.object_id], each))
    order = in_order([[unit.placed for unit, _ in found.values()]])
    chosen = []
    for group in grouped(order)[0]:
        (_, kind), *_ = members = [found[each.object_id, each.version] for each in group]
        chosen.append(Chosen(kind, tuple(unit for unit, _ in members)))
    gone = [each.object_id for each in paused if each.is_gone]
    entries = entries_of(state, [*chosen, *(Chosen(DDL, gone=number) for number in gone)], began_ns)
    notices += units.notices(order, {number: row.source_path for number, row in state.sources.items()})
    plans = tuple(source for look, source in sources if look.units)
    return new_plan(reader, state, entries, plans, after, notices, paused)


def _units_read(look: SourceLook, source: SourcePlan) -> list[tuple[Unit, str]]:
    """Return the units that get LSNs once the rows were read: versions that were compared are one transaction together."""
    units = {unit.version: unit for unit in look.units}
    ddl = (unit for unit in look.units if unit.is_ddl)
    found = [(replace(unit, placed=replace(unit.placed, unit="")), DDL) for unit in ddl]
    for reading in source.readings:
        if reading.is_gap:
            last = units[reading.through_version_inclusive]
            placed = replace(last.placed, unit="")
            found.append((replace(last, placed=placed, from_version=reading.from_version_inclusive), NET))
        else:
            found += [(units[version], TRANSACTION) for version in reading.versions]
    return found


def _notices(source: SourcePlan) -> list[str]:
    return [
        f"Table '{source.path}', versions {reading.from_version_inclusive} to "
        f"{reading.through_version_inclusive}: {reading.compared}. Their difference is one transaction; states in "
        "between are lost."
        for reading in source.readings
        if reading.is_gap
    ]


@dataclass(frozen=True)
class Chosen:
    """What gets an LSN. `gone` is the number of a source whose table is gone."""

    kind: str
    members: tuple[Unit, ...] = ()
    gone: int = 0


def entries_of(state: LogState, chosen: Sequence[Chosen], began_ns: int) -> tuple[Entry, ...]:
    """Return the entries of what gets LSNs, in order, with their times; without commits the time is the cycle's."""
    latest = moment_of_ns(began_ns)
    committed = [min(latest, max(map(_commit_time, each.members), default=latest)) for each in chosen]
    ends = end_times(committed, last=state.database.last_time)
    found = []
    for slot, (each, end) in enumerate(zip(chosen, ends, strict=True), 1):
        made = [moment_of_ms(unit.commit.made_at_ms) for unit in each.members if unit.commit.made_at_ms > 0]
        commits = (
            EntryCommit(
                *(unit.placed.object_id, unit.from_version, unit.version, unit.commit.operation, unit.origin)
            )
            for unit in each.members
        )
        found.append(Entry(slot, each.kind, min([end, *made]), end, tuple(commits), each.gone))
    return tuple(found)


def _commit_time(unit: Unit) -> datetime:
    """Return Delta's commit time: the in-commit timestamp, else that of the log file, in milliseconds."""
    if unit.commit.in_commit_ms is not None:
        return moment_of_ms(unit.commit.in_commit_ms)
    return moment_of_ms(unit.placed.at_ns // 1_000_000)


def new_plan(
    reader: LogReader,
    state: LogState,
    entries: tuple[Entry, ...],
    sources: tuple[SourcePlan, ...],
    after: LogState,
    notices: Sequence[str],
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

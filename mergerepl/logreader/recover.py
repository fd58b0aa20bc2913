"""Steps 6 to 9 of a scan cycle: the plan is carried out once, also after a process died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mergerepl.errors import StoreError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.consumer import COMPARE, Cycle, PauseSource, ReadRows, pausing
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.plan import Paused, Plan, redo_log
from mergerepl.logreader.positions import read_state, save_state
from mergerepl.model.cdc import ScanError, ScanSession
from mergerepl.systables.logreader import ERRORS, SCAN_SESSIONS

if TYPE_CHECKING:
    from mergerepl.logreader.read import ReadSource

log = logging.getLogger(__name__)

KEPT_SESSIONS = 32


def recover(reader: LogReader) -> Plan | None:
    """Carry out the plan of a cycle that died, and return it, or None."""
    plan = redo_log(reader.root).pending()
    if plan is not None:
        log.warning("%s: scan cycle %d is finished", reader.root, plan.scan_cycle)
        carry_out(reader, plan, {})
    return plan


def carry_out(
    reader: LogReader, plan: Plan, read: dict[int, ReadSource], *, began: datetime | None = None
) -> tuple[Plan, int]:
    """Carry out a plan. `read` has the readings made already; they are released.

    Returns: The plan without the sources that had to leave it, and the number of written rows.
    """
    began = began or datetime.now(UTC)
    try:
        while True:
            try:
                rows = _written(reader, plan, read)
                break
            except PauseSource as pause:
                if pause.object_id is None:
                    raise
                plan = _without(reader, plan, Paused(pause.object_id, pause.number, pause.reason))
    finally:
        for each in read.values():
            each.release()
    save_state(reader.control, plan.after)
    failpoint("logreader.after_positions")
    for consumer in reader.consumers:
        consumer.served(plan.after)
    redo_log(reader.root).finish()
    failpoint("logreader.after_plan_removed")
    if plan.entries or plan.paused:
        _note_session(reader, plan, rows, began)
    return plan, rows


def _written(reader: LogReader, plan: Plan, read: dict[int, ReadSource]) -> int:
    cycle = Cycle(reader.root, plan, reader.spark, _changes(reader, plan, read))
    served = [consumer for consumer in reader.consumers if consumer.name in plan.serve]
    rows = 0
    for consumer in served:
        rows += consumer.write(cycle)
    failpoint("logreader.before_gates")
    for consumer in served:
        consumer.show(cycle)
        failpoint("logreader.after_gate")
    return rows


def _changes(
    reader: LogReader, plan: Plan, read: dict[int, ReadSource]
) -> Callable[[int], Sequence[ReadRows]]:
    sources = {source.object_id: source for source in plan.sources}

    def changes(object_id: int) -> Sequence[ReadRows]:
        if object_id not in read:
            from mergerepl.logreader.read import read_source

            source = sources[object_id]
            try:
                with pausing(source):
                    read[object_id] = read_source(
                        reader.spark(), reader.root, source, on_gap=COMPARE, is_decided=True
                    )
            except PauseSource as pause:
                raise PauseSource(pause.number, pause.reason, object_id) from pause
        return read[object_id].rows

    return changes


def _without(reader: LogReader, plan: Plan, paused: Paused) -> Plan:
    """Remove a source from a cycle in progress: first its rows, then its part of the plan."""
    log.warning("%s", paused.reason)
    for consumer in reader.consumers:
        consumer.remove_of(plan.scan_cycle, frozenset({paused.object_id}))
    plan = plan.without(paused, read_state(reader.control).sources[paused.object_id])
    redo_log(reader.root).stage(plan)
    return plan


def _note_session(reader: LogReader, plan: Plan, rows: int, began: datetime) -> None:
    """Record the cycle in `scan_sessions`, and its problems in `errors`; the last 32 sessions are kept."""
    ended = datetime.now(UTC)
    last = reader.control.rows(SCAN_SESSIONS, where="true", order_limit="order by session_id desc limit 1")
    session_id = last[0].session_id + 1 if last else 1
    transactions = [each for each in plan.entries if each.object_id]
    lsns = [plan.lsn(each) for each in plan.entries]
    at = plan.entries[-1].end_time if plan.entries else None
    changed_at = transactions[-1].end_time if transactions else None
    session = ScanSession(
        session_id=session_id,
        start_time=began,
        end_time=ended,
        duration=int((ended - began).total_seconds()),
        error_count=len(plan.paused) + len(plan.notices),
        start_lsn=lsns[0] if lsns else None,
        current_lsn=lsns[-1] if lsns else None,
        end_lsn=lsns[-1] if lsns else None,
        tran_count=len(transactions),
        last_commit_lsn=lsns[-1] if lsns else None,
        last_commit_time=at,
        log_record_count=sum(
            source.through_version_inclusive - source.from_version_exclusive for source in plan.sources
        ),
        schema_change_count=len({(s.object_id, c.version) for s in plan.sources for c in s.columns}),
        command_count=rows,
        first_begin_cdc_lsn=plan.lsn(transactions[0]) if transactions else None,
        last_commit_cdc_lsn=plan.lsn(transactions[-1]) if transactions else None,
        last_commit_cdc_time=changed_at,
        latency=0 if changed_at is None else max(0, int((ended - changed_at).total_seconds())),
    )
    paused = [
        ScanError(
            session_id=session_id, entry_time=ended, error_number=each.number, error_message=each.reason
        )
        for each in plan.paused
    ]
    notices = [replace(each, session_id=session_id) for each in plan.notices]
    # The cycle is done and visible: a failure to record it must not make it fail.
    with suppress(StoreError):
        reader.control.append(ERRORS, [*paused, *notices])
        reader.control.append(SCAN_SESSIONS, [session])
        if session_id % KEPT_SESSIONS == 0:
            for table in (ERRORS, SCAN_SESSIONS):
                reader.control.delete(table, where=f"session_id <= {session_id - KEPT_SESSIONS}")

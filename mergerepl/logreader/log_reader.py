"""The log reader of one database: its tables, its lock, its consumers and its engine."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from mergerepl.delta.engine_choice import NO_SESSION, EngineChoice, NeedsSparkError
from mergerepl.delta.store_proof import prove_callers
from mergerepl.delta.tables import is_delta_table, open_table, tables_kept_open
from mergerepl.errors import StoreError
from mergerepl.failpoints import failpoint
from mergerepl.frames import is_in_process
from mergerepl.logreader.consumer import (
    COMPARE,
    STOP,
    UNUSABLE,
    Consumer,
    Cycle,
    PauseSource,
    ReadRows,
    Wanted,
    pausing,
    remove_rows,
)
from mergerepl.logreader.lsn import epoch_of, seconds_of
from mergerepl.logreader.plan import Paused, Plan, SourcePlan, redo_log
from mergerepl.logreader.positions import (
    LogReaderError,
    LogState,
    control_of,
    has_log_reader,
    read_state,
    save_state,
)
from mergerepl.model.cdc import ScanError, ScanSession
from mergerepl.replica.control import ControlPlane
from mergerepl.store.lease import LOG_READER_LOCK, lease, record_jvm
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables import cdc, logreader, transactional
from mergerepl.systables.logreader import ERRORS, SCAN_SESSIONS, LogReaderRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.logreader.read import ReadSource


@dataclass
class LogReader:
    """A database and the consumers of its log. Kept between cycles, it reads only changed tables again.

    `given` is the Spark session to work in; without one, the running one or an embedded one is used, from when rows are
    read.
    """

    root: Location
    given: SparkSession | None = None
    lock_wait_s: float = 0.0
    is_long_running: bool = False
    """Whether an embedded session is configured for an agent: it starts slower and works faster."""

    _known: dict[str, Consumer] = field(default_factory=dict)
    _is_proved: bool = False

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order in which their gates are committed. A product may be set up between cycles."""
        set_up = [(name, module) for name, module, table in PRODUCTS if is_delta_table(self.root / table)]
        for name, module in set_up:
            if name not in self._known:
                self._known[name] = import_module(module).consumer_at(self.root)
        return tuple(self._known[name] for name, _ in set_up)

    @cached_property
    def control(self) -> ControlPlane:
        """The log reader's tables."""
        return control_of(self.root)

    def spark(self) -> SparkSession:
        """Return the Spark session; None in process, where nothing uses one.

        Raises: EngineError if it cannot be started or used; StoreError if it works in another store than this process.
        """
        if is_in_process():
            return NO_SESSION
        from mergerepl.spark import session as engine

        if self.given is not None:
            session = engine.usable(self.given)
        else:
            session = engine.session(long_running=self.is_long_running)
            record_jvm(self.root, engine.jvm_pid(), file=LOG_READER_LOCK)
        if not self._is_proved:
            prove_callers(session, self.root)
            self._is_proved = True
        return session

    @contextmanager
    def held(self, purpose: str) -> Iterator[None]:
        """Hold the log, and keep the tables of the database open: one cycle, or one command.

        Raises: LeaseError if it is still held after the time to wait.
        """
        with (
            lease(self.root, purpose=purpose, wait_s=self.lock_wait_s, file=LOG_READER_LOCK),
            tables_kept_open(self.root),
        ):
            yield


def make_log_reader(reader: LogReader, retention: timedelta) -> None:
    """Make the log reader's tables, or begin a new epoch in those that a database of an earlier life left.

    `retention` is how long removed files of sources are kept at least. The caller holds the log.
    """
    now = datetime.now(UTC)
    # In a store the number of a cycle has 32 bits, beside the fence: it begins with the second, in epoch 0.
    epoch, cycle = (epoch_of(now), 0) if is_local(reader.root) else (0, seconds_of(now))
    if has_log_reader(reader.control):
        state = read_state(reader.control)
        if not state.sources:
            known = state.database
            if is_local(reader.root):
                epoch = max(epoch, known.epoch + 1)
            seconds = int(retention.total_seconds())
            row = replace(
                known,
                epoch=epoch,
                cycle=max(cycle, known.cycle),
                root=str(reader.root),
                file_retention=seconds,
            )
            save_state(reader.control, replace(state, database=row))
        return
    row = LogReaderRow(
        source_object_id=logreader.DATABASE,
        database_id=str(uuid.uuid4()),
        root=str(reader.root),
        epoch=epoch,
        cycle=cycle,
        file_retention=int(retention.total_seconds()),
    )
    reader.control.replace(logreader.SCAN_SESSIONS, ())
    reader.control.replace(logreader.ERRORS, ())
    save_state(reader.control, LogState(row))


PRODUCTS = (
    (
        "transactional",
        "mergerepl.transactional.consumer",
        f"{transactional.FOLDER}/{transactional.PUBLICATIONS.name}",
    ),
    ("cdc", "mergerepl.cdc.consumer", f"{cdc.FOLDER}/{cdc.CHANGE_TABLES.name}"),
)
"""The products in the order in which their gates are committed: name, module with `consumer_at(root)`, and the table that
exists if the product is set up. They do not import each other: each is loaded by name."""


def refuse_copy(root: Location, state: LogState) -> None:
    """Check that the database lies where it was enabled.

    Raises: LogReaderError.
    """
    if state.database.root != str(root):
        raise LogReaderError(
            f"'{root}' is a copy of the database '{state.database.root}', or was moved from there: its LSNs would be "
            f"given out twice. Nothing was changed. Run `mergerepl cdc relocate -f {root}`: a moved database goes on, a "
            "copy begins a new epoch.",
            root=str(root),
            stored=state.database.root,
        )


def refuse_other_consumers(root: Location, state: LogState, consumers: Sequence[Consumer]) -> None:
    """Check that this scan serves all consumers of each source.

    Raises: LogReaderError.
    """
    served = {consumer.name for consumer in consumers}
    missing = {name for row in state.sources.values() for name in row.consumers} - served
    if missing:
        named = ", ".join(sorted(missing))
        raise LogReaderError(
            f"The log of '{root}' is read for {named}, too, whose tables are gone. Nothing was changed. Put "
            f"the folder '_{named}' back. Or end it: `mergerepl cdc disable --all -f {root}` for cdc; for transactional,"
            " put the folder back, then take the articles out of the file and run `mergerepl apply`.",
            root=str(root),
        )


def refuse_restored(root: Location, state: LogState, consumers: Sequence[Consumer]) -> None:
    """Check, unless a plan is pending, that gates and positions are from the same moment.

    Raises: LogReaderError.
    """
    for consumer in consumers:
        is_served = any(consumer.name in row.consumers for row in state.sources.values())
        if not is_served:
            continue
        gate, cycle = consumer.gate_cycle(), state.database.cycle
        if gate != cycle:
            older = "the table log_reader" if gate > cycle else f"what readers of {consumer.name} see"
            raise LogReaderError.restored(
                root, f"{older} is older: scan cycles {cycle} and {gate if gate >= 0 else 'none'}"
            )


def key_of(state: LogState, consumers: Sequence[Consumer], path: str) -> tuple[str, ...]:
    """Return the key by which a table's rows are already identified; empty if it is not read, or read without a key."""
    known = state.source_at(path)
    if known is None:
        return ()
    keys = (each.wanted().get(known.source_object_id, Wanted()).key for each in consumers)
    return next((key for key in keys if key), ())


def refuse_other_key(state: LogState, consumers: Sequence[Consumer], path: str, key: tuple[str, ...]) -> None:
    """Check that a table that is about to be read by a key is not read by another one that its consumer insists on.

    Raises: LogReaderError.
    """
    known = state.source_at(path)
    if known is None or not key:
        return
    for each in consumers:
        wish = each.wanted().get(known.source_object_id, Wanted())
        if not wish.pairs and wish.key and wish.key != key:
            raise LogReaderError.other_key(path, ", ".join(wish.key), ", ".join(key))


def wanted_of(state: LogState, consumers: Sequence[Consumer]) -> dict[int, Wanted]:
    """Return the needs of all consumers together for each source.

    Raises: LogReaderError if two of them insist on different keys.
    """
    found: dict[int, Wanted] = {}
    for consumer in consumers:
        for object_id, each in consumer.wanted().items():
            other = found.get(object_id)
            if other is None:
                found[object_id] = each
                continue
            if other.key and each.key and other.key != each.key and not (other.pairs or each.pairs):
                path = state.sources[object_id].source_path
                raise LogReaderError.other_key(path, ", ".join(other.key), ", ".join(each.key))
            first, second = (other, each) if each.pairs else (each, other)
            on_gap = STOP if STOP in (each.on_gap, other.on_gap) else COMPARE
            found[object_id] = Wanted(first.key or second.key, on_gap, pairs=first.pairs and second.pairs)
    return found


log = logging.getLogger(__name__)

KEPT_SESSIONS = 32


def recover(reader: LogReader) -> Plan | None:
    """Carry out the plan of a cycle that died, and return it, or None."""
    plan = redo_log(reader.root).pending()
    if plan is not None:
        log.warning("%s: scan cycle %d is finished", reader.root, plan.scan_cycle)
        carry_out(reader, plan, {})
    return plan


def choice_of(reader: LogReader, sources: Collection[SourcePlan]) -> EngineChoice:
    """Choose where the rows of a cycle are read and made: in process where they are few and all consumers can."""
    choice = EngineChoice(uses_arrow=True)
    if not any(source.readings for source in sources):
        return choice
    from mergerepl.logreader.read import require_in_process

    try:
        for consumer in reader.consumers:
            if not consumer.is_in_process:
                raise NeedsSparkError(f"{consumer.name} has rows of its own form")
        require_in_process(reader.root, sources)
    except NeedsSparkError as error:
        return choice.left_for_spark(error)
    except StoreError:
        # A source without its table pauses alone when it is read.
        return choice
    return replace(choice, in_process=True)


def carry_out(
    reader: LogReader,
    plan: Plan,
    read: dict[int, ReadSource],
    *,
    began: datetime | None = None,
    choice: EngineChoice | None = None,
) -> tuple[Plan, int]:
    """Carry out a plan. `read` has the readings made already, where `choice` says; they are released.

    Returns: The plan without the sources that had to leave it, and the number of written rows.
    """
    began = began or datetime.now(UTC)
    written: list[int] = []
    choice = choice or choice_of(reader, plan.sources)
    try:
        while True:
            cycle = Cycle(plan, reader.spark, _changes(reader, plan, read), written)
            try:
                _write(reader, cycle, choice)
                break
            except NeedsSparkError as error:
                if not choice.in_process:
                    raise
                # The written tables have the cycle's transactions; Spark writes the others.
                choice = choice.left_for_spark(error)
                release_all(read)
            except PauseSource as pause:
                if pause.object_id is None:
                    raise
                plan = _without(reader, plan, Paused(pause.object_id, pause.number, pause.reason))
    finally:
        release_all(read)
    save_state(reader.control, plan.after)
    failpoint("logreader.after_positions")
    for consumer in reader.consumers:
        consumer.served(plan.after)
    redo_log(reader.root).finish()
    failpoint("logreader.after_plan_removed")
    if plan.entries or plan.paused:
        _note_session(reader, plan, sum(written), began)
    return plan, sum(written)


def release_all(read: dict[int, ReadSource]) -> None:
    """Free the memory of what was read, and forget it."""
    while read:
        read.popitem()[1].release()


def _write(reader: LogReader, cycle: Cycle, choice: EngineChoice) -> None:
    served = [consumer for consumer in reader.consumers if consumer.name in cycle.plan.serve]
    with choice.rules():
        for consumer in served:
            consumer.write(cycle)
    failpoint("logreader.before_gates")
    for consumer in served:
        consumer.show(cycle)
        failpoint("logreader.after_gate")


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
                    # Spark has no error of its own for a table that is gone.
                    open_table(reader.root / source.path)
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
        remove_rows(consumer, f"= {plan.scan_cycle}", plan.scan_cycle, frozenset({paused.object_id}))
    plan = plan.without(paused, read_state(reader.control).sources[paused.object_id])
    redo_log(reader.root).stage(plan)
    return plan


def _note_session(reader: LogReader, plan: Plan, rows: int, began: datetime) -> None:
    """Record the cycle in `scan_sessions`, and its problems in `errors`; the last 32 sessions are kept."""
    ended = datetime.now(UTC)
    last = reader.control.rows(SCAN_SESSIONS, where="true", order_limit="order by session_id desc limit 1")
    session_id = last[0].session_id + 1 if last else 1
    transactions = [each for each in plan.entries if each.members]
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
    notices = [
        ScanError(
            session_id=session_id,
            entry_time=ended,
            error_number=UNUSABLE,
            error_severity=10,
            error_message=text,
        )
        for text in plan.notices
    ]
    # The cycle is done and visible: a failure to record it must not make it fail.
    with suppress(StoreError):
        reader.control.append(ERRORS, [*paused, *notices])
        reader.control.append(SCAN_SESSIONS, [session])
        if session_id % KEPT_SESSIONS == 0:
            for table in (ERRORS, SCAN_SESSIONS):
                reader.control.delete(table, where=f"session_id <= {session_id - KEPT_SESSIONS}")

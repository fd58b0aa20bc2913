"""The tables of Change Data Capture of one folder as values; LSNs, times and versions, from `lsn_time_mapping`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from mergerepl import roots
from mergerepl.cdc.refusals import CdcUsageError, LsnRangeError, ScanInProgressError
from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.delta.sql_text import in_utc, timestamp_literal
from mergerepl.delta.store_proof import require_proof
from mergerepl.delta.tables import transaction_version
from mergerepl.errors import LeaseError
from mergerepl.frames import is_in_process
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import ZERO, Lsn
from mergerepl.logreader.plan import TRANSACTION, transaction_id
from mergerepl.logreader.positions import LogState, control_of, read_state
from mergerepl.model.cdc import CapturedColumn
from mergerepl.replica.control import ControlDatabase, ControlPlane
from mergerepl.roots import uses
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, is_there
from mergerepl.systables.cdc import (
    ALL,
    APP_ID,
    CAPTURED_COLUMNS,
    CHANGE_TABLES,
    FOLDER,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    ChangeTable,
    IndexColumn,
    LsnTime,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "cdc"
"""The name of this consumer of the log."""


def is_shared(state: LogState) -> bool:
    """True if another product reads the log too: then its log reader reads it, and no capture job."""
    return any(set(row.consumers) - {NAME} for row in state.sources.values())


@dataclass(frozen=True)
class CdcTables(ControlDatabase):
    """The tables of a folder that is, or shall be, enabled for Change Data Capture."""

    given: SparkSession | None = None
    """The caller's Spark session; without one, the running one or an embedded one is used."""
    lock_wait_s: float = 0.0
    """Seconds to wait for another holder of the log or of a folder."""

    folder = FOLDER
    tables = ALL

    @cached_property
    def log(self) -> ControlPlane:
        """The tables of the log reader."""
        return control_of(self.root)

    @property
    def spark(self) -> SparkSession:
        """The session to read in; None in process, where nothing uses one. Raises: EngineError if it cannot be used."""
        if self.given is None or is_in_process():
            return embedded_spark()
        from mergerepl.spark import session as engine

        return engine.usable(self.given)

    def in_session(self, session: SparkSession) -> CdcTables:
        """Return the same tables, read in another session."""
        other = replace(self, given=session)
        vars(other).update(control=self.control, log=self.log)
        return other

    @contextmanager
    def held(self, purpose: str) -> Iterator[LogReader]:
        """Hold the log for a command. Raises: ScanInProgressError (22903) if another process holds it."""
        reader = LogReader(self.root, self.given, self.lock_wait_s)
        with held(reader, purpose):
            yield reader

    @property
    def is_enabled(self) -> bool:
        """Whether the database is enabled."""
        return self.is_there

    @property
    def is_interrupted(self) -> bool:
        """True if a `disable` died before it had removed all: the next one does the rest."""
        return not self.is_enabled and is_there(self.root / FOLDER)

    def require_enabled(self) -> None:
        """Check that the database is enabled. Raises: CdcUsageError 22901."""
        if not self.is_enabled:
            raise CdcUsageError(
                22901,
                f"'{self.root}' is not enabled for Change Data Capture: no table is captured. Capture the first one: "
                f"`mergerepl cdc enable TABLE -f {self.root}`.{uses(self.root, but='_cdc')}",
                database=str(self.root),
            )

    def change_table(self, instance: ChangeTable) -> Location:
        """Return the folder of an instance's change table.

        In a store it has the instance's number, which no other one gets: what an agent that was displaced still removes
        or makes is never the table of a later instance (decision 0161).
        """
        name = instance.folder if is_local(self.root) else instance.numbered_folder
        return self.root / FOLDER / name

    def instances(self) -> list[ChangeTable]:
        """Return the capture instances, by object_id. Raises: CdcUsageError 22901 if the database is not enabled."""
        self.require_enabled()
        return sorted(self.control.rows(CHANGE_TABLES), key=lambda row: row.object_id)

    def instance(self, name: str) -> ChangeTable:
        """Return a capture instance by its name, or the only one of a table by its folder; case of names is ignored.

        Raises: CdcUsageError 22985 if it does not exist, or a table has two.
        """
        found = self.instances_named(name)
        if len(found) > 1:
            raise CdcUsageError.two_instances(name, [row.capture_instance for row in found])
        if not found:
            raise CdcUsageError.no_such_instance(name, [row.capture_instance for row in self.instances()])
        return found[0]

    def instances_named(self, name: str) -> list[ChangeTable]:
        """Return the instance of this name, else those of the table of this folder; empty without one.

        Raises: CdcUsageError 22901 if the database is not enabled.
        """
        known = self.instances()
        found = [row for row in known if row.capture_instance.lower() == name.strip().lower()]
        source = None if found else read_state(self.log).source_at(name.rstrip("/"))
        return found or [row for row in known if source and row.source_object_id == source.source_object_id]

    def captured(self, object_id: int) -> list[CapturedColumn]:
        """Return the captured columns of an instance, by ordinal."""
        rows = (row for row in self.control.rows(CAPTURED_COLUMNS) if row.object_id == object_id)
        return sorted(rows, key=lambda row: row.column_ordinal)

    def key(self, object_id: int) -> list[IndexColumn]:
        """Return the key columns of an instance, in order; empty without a key."""
        rows = (row for row in self.control.rows(INDEX_COLUMNS) if row.object_id == object_id)
        return sorted(rows, key=lambda row: row.index_ordinal)

    @property
    def gate_cycle(self) -> int:
        """The scan cycle that readers may see; -1 before the first one."""
        return transaction_version(self.control.path(LSN_TIME_MAPPING.name), APP_ID)

    def newest_entry(self) -> LsnTime | None:
        """Return the entry of the highest LSN that readers may see; None before the first one."""
        cycle = self.gate_cycle
        if cycle < 0:
            return None
        newest = "order by start_lsn desc limit 1"
        # Only the files of the last cycle are opened.
        found = self.control.rows(LSN_TIME_MAPPING, where=f"scan_cycle >= {cycle}", order_limit=newest)
        return found[0] if found else None

    def max_lsn(self) -> Lsn | None:
        """Return the highest LSN that readers may see; None before the first one."""
        entry = self.newest_entry()
        return None if entry is None else Lsn(entry.start_lsn)


def tables_at(
    path: str | os.PathLike[str], spark: SparkSession | None = None, lock_wait_s: float = 0.0
) -> CdcTables:
    """Return the tables of a folder. Raises: ConfigurationError if the folder does not exist."""
    text = str(path) if isinstance(path, Location) else os.fspath(path)
    return CdcTables(Location.of(roots.existing(text, may_be_stored=True)), spark, lock_wait_s)


def require_place(root: Location, *, with_proof: bool = True) -> None:
    """Check that tables can be captured at a root; the proof of a store leaves objects there.

    Raises: StoreError: Spark, which reads the change tables, does not work there, or the store loses commits.
    """
    root.require_spark()
    if with_proof:
        require_proof(root)


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for a command. Raises: ScanInProgressError (22903) if another process holds it."""
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise ScanInProgressError(22903, error.message, database=str(reader.root)) from error


_OPERATORS: Final = {
    "largest less than": ("<", "desc"),
    "largest less than or equal": ("<=", "desc"),
    "smallest greater than": (">", "asc"),
    "smallest greater than or equal": (">=", "asc"),
}


def lsn_of_text(lsn: bytes | str) -> Lsn:
    """Return an LSN that is given as bytes or as text. Raises: CdcUsageError 22964 if it is neither."""
    try:
        return Lsn.parse(lsn) if isinstance(lsn, str) else Lsn(lsn)
    except ValueError as error:
        raise CdcUsageError.bad_parameter(22964, "the LSN", lsn, str(error)) from error


def lsn_at(tables: CdcTables, time: datetime, operator: str) -> Lsn | None:
    """Return the LSN that an operator finds for a time, as `Database.lsn_at` says."""
    tables.require_enabled()
    stated = " ".join(operator.lower().split())
    if stated not in _OPERATORS:
        raise CdcUsageError.bad_parameter(
            22990, "operator", operator, f"it is one of: {', '.join(_OPERATORS)}"
        )
    compared, order = _OPERATORS[stated]
    entry = _entry(tables, f"tran_end_time {compared} {timestamp_literal(in_utc(time))}", order)
    return None if entry is None else Lsn(entry.start_lsn)


def entry_of(database: CdcTables, lsn: Lsn) -> LsnTime | None:
    """Return the entry of exactly this LSN."""
    return _entry(database, f"scan_cycle = {lsn.scan_cycle} and start_lsn = X'{lsn.hex()}'", "asc")


def _entry(database: CdcTables, where: str, order: str) -> LsnTime | None:
    rows = database.control.rows(
        LSN_TIME_MAPPING, where=where, order_limit=f"order by start_lsn {order} limit 1"
    )
    return rows[0] if rows else None


def version_through(database: CdcTables, instance: ChangeTable, lsn: Lsn) -> int:
    """Return the version of an instance's source that the history up to an LSN, at or above start_lsn, has reached."""
    where = f"scan_cycle <= {lsn.scan_cycle} and start_lsn <= X'{lsn.hex()}' and {_of_source(instance)}"
    last = _transaction(database, instance, where, "desc")
    return instance.start_version if last is None else max(instance.start_version, last[1])


def _of_source(instance: ChangeTable, *, above: int = -1, most: int = (1 << 48) - 1) -> str:
    """Return the condition of the transactions of an instance's source whose versions are in a range.

    A unit over several tables has no number of its own: its commits are looked through.
    """
    number = instance.source_object_id
    low, high = (transaction_id(number, version).hex() for version in (above + 1, most))
    unit = f"kind = '{TRANSACTION}' and tran_id = X'{bytes(10).hex()}'"
    of_units = (
        f"select start_lsn from (select start_lsn, unnest(commits) as c from t where {unit}) u "
        f"where u.c['source_object_id'] = {number} and u.c['version'] between {above + 1} and {most}"
    )
    return f"(tran_id between X'{low}' and X'{high}' or ({unit} and start_lsn in ({of_units})))"


def _transaction(
    database: CdcTables, instance: ChangeTable, where: str, order: str
) -> tuple[int, int, Lsn] | None:
    """Return the first transaction of a source by LSN: its versions from and through, and its LSN."""
    rows = database.control.rows(
        LSN_TIME_MAPPING, where=where, order_limit=f"order by start_lsn {order} limit 1"
    )
    if not rows:
        return None
    commit = next(c for c in rows[0].commits if c["source_object_id"] == instance.source_object_id)
    return int(commit["from_version"]), int(commit["version"]), Lsn(rows[0].start_lsn)


def lsn_of(tables: CdcTables, chosen: ChangeTable, version: int) -> Lsn | None:
    """Return the highest LSN whose changes are in a version of an instance's source, as `Instance.lsn_of` says."""
    state = read_state(tables.log).sources.get(chosen.source_object_id)
    if state is None or not chosen.start_version <= version <= state.position:
        return None
    covering = _transaction(tables, chosen, _of_source(chosen, above=version), "asc")
    if covering is not None and covering[0] <= version:
        return None
    last = _transaction(tables, chosen, _of_source(chosen, most=version), "desc")
    return max(Lsn(chosen.start_lsn), ZERO if last is None else last[2])


class Switch(NamedTuple):
    """The LSN at which a consumer changes from one instance to another, and the columns that only the other one has."""

    lsn: Lsn
    new_columns: tuple[str, ...]


def high_of(instance: ChangeTable, gate: Lsn | None) -> Lsn | None:
    """Return the high end of an instance's interval, below the gate while its source is paused."""
    if gate is None or instance.end_lsn is None:
        return gate
    return min(gate, Lsn(instance.end_lsn))


def check_range(
    instance: ChangeTable, from_lsn: Lsn | None, to_lsn: Lsn | None, *, gate: Lsn | None
) -> tuple[Lsn, Lsn]:
    """Return the two ends of a closed range.

    Raises: LsnRangeError if it is not in the instance's interval, whose high end is bound by `gate`.
    """
    low, high = Lsn(instance.start_lsn), high_of(instance, gate)
    if from_lsn is None or to_lsn is None:
        reason = "null"
    elif from_lsn > to_lsn:
        reason = "reversed"
    elif from_lsn < low:
        reason = "below_low"
    elif high is not None and to_lsn <= high:
        return from_lsn, to_lsn
    else:
        is_paused = instance.end_lsn is not None and gate is not None and to_lsn <= gate
        reason = "paused" if is_paused else "above_high"
    shown = {
        "from_lsn": from_lsn or "nothing",
        "to_lsn": to_lsn or "nothing",
        "low": low,
        "high": high or "none",
    }
    raise LsnRangeError(
        range_error(instance, reason).format(**shown),
        reason=reason,
        capture_instance=instance.capture_instance,
        low=low,
        high=high,
    )


RANGE_ERRORS = {
    "null": "from_lsn or to_lsn is missing, or no transaction lies on that side of a time. Take the first from "
    "`Instance.min_lsn`, `Database.lsn_at`, or `Lsn.next` of the last window's end, the other from `Database.max_lsn`",
    "reversed": "its end lies before its beginning. A window after the last one that begins above the highest LSN is "
    "empty: nothing is new yet",
    "below_low": "change rows below the low end were cleaned up, or the instance began later. Take "
    "`Instance.snapshot()` and go on from its LSN",
    "above_high": "nothing was captured up to its end yet. Ask up to `Database.max_lsn`, or wait for the next scan",
    "paused": "its table is paused, and later changes have no LSN yet. Ask up to the high end; see `mergerepl "
    "status`, then `mergerepl resume {instance}`",
}
"""Why a range is refused (error 313), and what to do, by the reason."""


def range_error(instance: ChangeTable, reason: str) -> str:
    """Return the text of error 313, with fields for the range (`from_lsn`, `to_lsn`) and the interval (`low`, `high`)."""
    name = instance.capture_instance
    why = RANGE_ERRORS[reason].replace("{instance}", name)
    interval = "{from_lsn} to {to_lsn} is not in the validity interval {low} to {high}"
    return f"Capture instance '{name}': {interval}: {why}."


def checked_lsn(database: CdcTables, instance: ChangeTable, lsn: Lsn | None) -> Lsn:
    """Return an LSN of an instance's interval; by default its high end.

    Raises: LsnRangeError if it is not in the interval.
    """
    gate = database.max_lsn()
    at = high_of(instance, gate) if lsn is None else lsn
    return check_range(instance, at, at, gate=gate)[1]

"""LSNs, times and versions, from `lsn_time_mapping`, and the validity interval of an instance. Nothing starts Spark."""

from datetime import datetime
from typing import Final, NamedTuple

from mergerepl.cdc.refusals import CdcUsageError, LsnRangeError
from mergerepl.cdc.tables import CdcTables
from mergerepl.delta.sql_text import in_utc, timestamp_literal
from mergerepl.logreader.lsn import ZERO, Lsn
from mergerepl.logreader.plan import transaction_id
from mergerepl.logreader.positions import read_state
from mergerepl.systables.cdc import LSN_TIME_MAPPING, ChangeTable, LsnTime

_OPERATORS: Final = {
    "largest less than": ("<", "desc"),
    "largest less than or equal": ("<=", "desc"),
    "smallest greater than": (">", "asc"),
    "smallest greater than or equal": (">=", "asc"),
}


def lsn_of_text(lsn: bytes | str) -> Lsn:
    """Return an LSN that is given as bytes or as text.

    Raises: CdcUsageError 22964 if it is neither.
    """
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
    last = _transaction(database, where, "desc")
    return instance.start_version if last is None else max(instance.start_version, last[1])


def _of_source(instance: ChangeTable, *, above: int = -1, most: int = (1 << 48) - 1) -> str:
    """Return the condition of the transactions of an instance's source whose versions are in a range."""
    low, high = (transaction_id(instance.source_object_id, version).hex() for version in (above + 1, most))
    return f"tran_id between X'{low}' and X'{high}'"


def _transaction(database: CdcTables, where: str, order: str) -> tuple[int, int, Lsn] | None:
    """Return the first transaction in the order of versions: its versions from and through, and its LSN."""
    rows = database.control.rows(
        LSN_TIME_MAPPING, where=where, order_limit=f"order by tran_id {order} limit 1"
    )
    if not rows:
        return None
    commit = rows[0].commits[0]
    return int(commit["from_version"]), int(commit["version"]), Lsn(rows[0].start_lsn)


def lsn_of(tables: CdcTables, chosen: ChangeTable, version: int) -> Lsn | None:
    """Return the highest LSN whose changes are in a version of an instance's source, as `Instance.lsn_of` says."""
    state = read_state(tables.log).sources.get(chosen.source_object_id)
    if state is None or not chosen.start_version <= version <= state.position:
        return None
    covering = _transaction(tables, _of_source(chosen, above=version), "asc")
    if covering is not None and covering[0] <= version:
        return None
    last = _transaction(tables, _of_source(chosen, most=version), "desc")
    return max(Lsn(chosen.start_lsn), ZERO if last is None else last[2])


class Switch(NamedTuple):
    """The LSN at which a consumer changes from one instance to another, and the columns that only the other one has."""

    lsn: Lsn
    new_columns: tuple[str, ...]


def switch_lsn(tables: CdcTables, old: str, new: str) -> Switch:
    """Return how a consumer moves between two instances of one table, as `Instance.switch_lsn` says."""
    before, after = tables.instance(old), tables.instance(new)
    if before.source_object_id != after.source_object_id or before.object_id >= after.object_id:
        raise CdcUsageError.bad_parameter(
            22990, "new", new, f"it is a later instance of the table of {before.capture_instance}"
        )
    known = {column.column_name for column in tables.captured(before.object_id)}
    names = (column.column_name for column in tables.captured(after.object_id))
    return Switch(Lsn(after.start_lsn), tuple(name for name in names if name not in known))


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
    high = high_of(instance, gate)
    reason = _reason(instance, from_lsn, to_lsn, high=high, gate=gate)
    if reason is None and from_lsn is not None and to_lsn is not None:
        return from_lsn, to_lsn
    reason = reason or "null"
    why = {
        "null": "from_lsn or to_lsn is missing. Take the first from `Instance.min_lsn`, `Database.lsn_at`, or `Lsn.next` "
        "of the last window's end, the other from `Database.max_lsn`",
        "reversed": "its end lies before its beginning. A window after the last one that begins above the highest LSN is "
        "empty: nothing is new yet",
        "below_low": "change rows below the low end were cleaned up, or the instance began later. Take "
        "`Instance.snapshot()` and go on from its LSN",
        "above_high": "nothing was captured up to its end yet. Ask up to `Database.max_lsn`, or wait for the next scan",
        "paused": "its table is paused, and later changes have no LSN yet. Ask up to the high end; see `mergerepl "
        f"status`, then `mergerepl resume {instance.capture_instance}`",
    }[reason]
    low = Lsn(instance.start_lsn)
    raise LsnRangeError(
        f"Capture instance '{instance.capture_instance}': {from_lsn or 'nothing'} to {to_lsn or 'nothing'} is not in the "
        f"validity interval {low} to {high or 'none'}: {why}.",
        reason=reason,
        capture_instance=instance.capture_instance,
        low=low,
        high=high,
    )


def _reason(
    instance: ChangeTable, from_lsn: Lsn | None, to_lsn: Lsn | None, *, high: Lsn | None, gate: Lsn | None
) -> str | None:
    if from_lsn is None or to_lsn is None:
        return "null"
    if from_lsn > to_lsn:
        return "reversed"
    if from_lsn < instance.start_lsn:
        return "below_low"
    if high is None or to_lsn > high:
        is_paused = instance.end_lsn is not None and gate is not None and to_lsn <= gate
        return "paused" if is_paused else "above_high"
    return None


def checked_lsn(database: CdcTables, instance: ChangeTable, lsn: Lsn | None) -> Lsn:
    """Return an LSN of an instance's interval; by default its high end.

    Raises: LsnRangeError if it is not in the interval.
    """
    gate = database.max_lsn()
    at = high_of(instance, gate) if lsn is None else lsn
    return check_range(instance, at, at, gate=gate)[1]

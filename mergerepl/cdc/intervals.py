"""The validity interval of an instance, and the check of what is asked of it: error 313 (cdc.md 6)."""

from mergerepl.cdc.database import Database
from mergerepl.cdc.refusals import LsnRangeError
from mergerepl.logreader.lsn import Lsn
from mergerepl.systables.cdc import ChangeTable


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
    asked = f"{from_lsn or 'nothing'} to {to_lsn or 'nothing'}"
    raise LsnRangeError.outside(
        instance.capture_instance, reason or "null", asked, low=Lsn(instance.start_lsn), high=high
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


def checked_lsn(database: Database, instance: ChangeTable, lsn: Lsn | None) -> Lsn:
    """Return an LSN of an instance's interval; by default its high end.

    Raises: LsnRangeError if it is not in the interval.
    """
    gate = database.max_lsn()
    at = high_of(instance, gate) if lsn is None else lsn
    return check_range(instance, at, at, gate=gate)[1]

"""The first changes of a range as texts, for a command: in process where they are few, without Java."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mergerepl.cdc.instance import Instance
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.frames import DataFrame
from mergerepl.rows.images import with_readable
from mergerepl.spark.plain import plain_errors
from mergerepl.systables.cdc import OPERATION, RESERVED_PREFIX


@dataclass(frozen=True)
class ShownChanges:
    """Changes of a range: its first rows (LSNs and masks in hexadecimal, values as text), and the number of all."""

    from_lsn: bytes | str | None
    to_lsn: bytes | str | None
    columns: Sequence[str]
    rows: list[dict[str, Any]]
    total: int


def shown_changes(
    source: Instance, from_: Any, to: Any, row_filter: str, *, net: bool, limit: int
) -> ShownChanges:
    """Return at most `limit` changes of a range, as `Instance.changes` or `net_changes` has them.

    Few changes are read in process. If it finds a reason for Spark, Spark reads all of them again.

    Raises: As `Instance.changes` and `net_changes`.
    """
    first, last = source.ends(from_, to)
    # A time without a transaction stays a time, which is refused: nothing in its place would be all changes.
    ends = (from_ if first is None else first, to if last is None else last)
    read = partial(source.net_changes if net else source.changes, *ends, row_filter)
    choice = EngineChoice(uses_arrow=True, in_process=True)
    try:
        with choice.rules():
            frame = read()
            found = first_rows(frame, limit)
    except NeedsSparkError as error:
        choice.left_for_spark(error)
        frame = read()
        found = first_rows(frame, limit)
    return ShownChanges(first, last, frame.columns, *found)


def first_rows(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return at most `limit` rows of changes, and the number of all. Raises: NeedsSparkError in process."""
    names = [name for name in frame.columns if not name.startswith(RESERVED_PREFIX)]
    with plain_errors("changes were read"):
        found = with_readable(frame.limit(limit + 1), names).collect()
        total = len(found) if len(found) <= limit else frame.count()
    rows = [
        {name: _shown(name, value) for name, value in zip(frame.columns, row, strict=True)}
        for row in found[:limit]
    ]
    return rows, total


def _shown(name: str, value: Any) -> Any:
    is_own = name.startswith(RESERVED_PREFIX) and name != OPERATION
    return f"0x{bytes(value).hex().upper()}" if is_own and value is not None else value

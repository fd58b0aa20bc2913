"""Values, numbers, times, keys, folders and conflicts as text, the same in all reports."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from mergerepl.model.conflict_filter import Choice, ConflictStatus

if TYPE_CHECKING:
    from mergerepl.model.conflicts import ConflictRecord
    from mergerepl.model.results import ConflictPreview, PhaseCounts

NULL = "NULL"
LONGEST_SHOWN = 1000
"""The most characters of a value that are shown."""


def changes(counts: PhaseCounts) -> str:
    """Return a direction's counts in short: `+12 ~3 -1`, or `0`."""
    signs = (("+", counts.inserts), ("~", counts.updates), ("-", counts.deletes))
    return " ".join(f"{sign}{number}" for sign, number in signs if number) or "0"


def key_text(key: Mapping[str, object]) -> str:
    """Return a row's key: `order_id=7, line=1`."""
    return ", ".join(f"{column}={value_text(value)}" for column, value in key.items())


def text_of(value: object) -> str | None:
    """Return a value as docs/cli-json.md writes it, the same for every library that read it; NULL stays None.

    A struct or map is a mapping; a map whose keys a mapping cannot hold is a list of pairs, as in Arrow.
    """
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case bytes() | bytearray():
            return f"0x{value.hex().upper()}"
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo is not None else value).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case dict():
            return _pairs(value.items())
        case list() if value and isinstance(value[0], tuple):
            return _pairs(value)
        case list():
            return f"[{', '.join(map(_part, value))}]"
    return str(value)


def _pairs(pairs: Iterable[tuple[object, object]]) -> str:
    return f"{{{', '.join(f'{_part(name)}: {_part(part)}' for name, part in pairs)}}}"


def _part(value: object) -> str:
    text = text_of(value)
    return NULL if text is None else text


def value_text(value: object) -> str:
    """Return a value of a row as text: NULL differs from an empty text; a long value is cut, with its length."""
    text = text_of(value)
    if text is None:
        return NULL
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}… ({len(text):,} characters in all; see it whole with --json)"


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that a slip of the pen most likely means; case is ignored."""
    # Loaded for messages, not by every command.
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    return next((names[each] for each in get_close_matches(given.lower(), names, n=1)), None)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest name, after a blank; empty if no name is near."""
    nearest = nearest_name(given, known)
    return f" Did you mean '{nearest}'?" if nearest else ""


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(duration_s: float) -> str:
    """Return a duration: `2.5 s`."""
    return f"{duration_s:.1f} s"


def short(root: str) -> str:
    """Return a root relative to the working directory if that is shorter."""
    if not os.path.isabs(root):
        return root
    relative = os.path.relpath(root)
    return relative if len(relative) < len(root) and not relative.startswith("../..") else root


def typed(root: str) -> str:
    """Return a root quoted for a shell."""
    return shlex.quote(short(root))


def moment_text(moment: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    if moment is None:
        return ""
    in_utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return in_utc.strftime("%Y-%m-%d %H:%M:%SZ")


CONFLICT_NAMES = {
    1: "update against update, row",
    2: "update against update, column",
    3: "update against delete, delete won",
    4: "update against delete, update won",
    5: "insert refused at the publisher",
    6: "insert refused at the subscriber",
    7: "delete refused at the publisher",
    8: "delete refused at the subscriber",
    9: "update refused at the publisher",
    10: "update refused at the subscriber",
    11: "change that was rejected",
}
"""Short names of MSmerge_conflicts_info's conflict_type."""
REJECTED = 11
DROPPED_COLUMN = "dropped column"
"""The `resolver` of a row with a value that was not sent before its column left the article."""
REFUSED = range(5, 11)
"""The types of changes that a table refuses: no other row has won over them, unless a rule decided (`resolver`)."""


def stays_at_source(conflict: ConflictRecord | ConflictPreview) -> bool:
    """Whether the logged row is still in place at the replica that wrote it, not overwritten by a winner."""
    if conflict.conflict_type in REFUSED:
        return conflict.resolver is None
    return conflict.conflict_type == REJECTED and conflict.resolver == "upload_only"


def ends_without_winner(conflict: ConflictRecord | ConflictPreview) -> tuple[str, str] | None:
    """Return what happened at the other end, and to the logged row, if no row won over it; else None."""
    if stays_at_source(conflict):
        is_refused = conflict.conflict_type in REFUSED
        return ("refused at", "waits at") if is_refused else ("not taken by", "stays at")
    # The publisher has the row, without the column.
    return ("not sent to", "logged at") if conflict.resolver == DROPPED_COLUMN else None


_SETTLED = {
    Choice.WINNER: "the outcome stands",
    Choice.LOSER: "what lost was written",
    Choice.EDITED: "other values were written",
}


def how_settled(conflict: ConflictRecord) -> str:
    """Return how, by whom, when and why a conflict was settled; empty if it is open."""
    if conflict.status != ConflictStatus.SETTLED.value:
        return ""
    if (done := conflict.resolution) is None:
        return "settled: the refused change waits no more"
    why = f": {done.message}" if done.message else ""
    return f"settled: {_SETTLED[Choice(done.choice)]}, by {done.by}, {moment_text(done.resolved_at)}{why}"


def conflict_name(conflict_type: int) -> str:
    """Return the name of a type; an unknown number stays a number."""
    return CONFLICT_NAMES.get(conflict_type, f"type {conflict_type}")


_DURATION = re.compile(r"(-?\d{1,100})\s*(s|m|h|d|w|seconds?|minutes?|hours?|days?|weeks?)", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

DURATION_PATTERN = r"^\s*\d+\s*([smhdwSMHDW]|[Ss]econds?|[Mm]inutes?|[Hh]ours?|[Dd]ays?|[Ww]eeks?)\s*$"
"""The grammar for JSON Schema."""


def parse_duration(text: str) -> timedelta | None:
    """Return the duration that a text states, None if it states none; one above `timedelta.max` counts as that."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    seconds = int(found[1]) * _SECONDS[found[2][0].lower()]
    longest = timedelta.max.days * 86_400
    return timedelta.max if seconds >= longest else timedelta(seconds=max(seconds, -longest))

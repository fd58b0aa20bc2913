"""Numbers, times, keys and folders in words, for people."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime

from mergerepl.model.results import PhaseCounts
from mergerepl.model.value_text import NULL, text_of

LONGEST_SHOWN = 1000
"""Characters of a value that people are shown."""


def changes(counts: PhaseCounts) -> str:
    """Return a direction in a few letters: `+12 ~3 -1`, or `0`."""
    signs = (("+", counts.inserts), ("~", counts.updates), ("-", counts.deletes))
    return " ".join(f"{sign}{number}" for sign, number in signs if number) or "0"


def key_text(key: Mapping[str, object]) -> str:
    """Return a row's key: `order_id=7, line=1`."""
    return ", ".join(f"{column}={value_text(value)}" for column, value in key.items())


def value_text(value: object) -> str:
    """Return a value of a row: NULL is not an empty text, and of a long value the beginning is shown, and its length."""
    text = text_of(value)
    if text is None:
        return NULL
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}… ({len(text):,} characters in all; see it whole with --json)"


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(duration_s: float) -> str:
    """Return a duration: `2.5 s`."""
    return f"{duration_s:.1f} s"


def short(root: str) -> str:
    """Return a root relative to the working directory where that is shorter."""
    if not os.path.isabs(root):
        return root
    relative = os.path.relpath(root)
    return relative if len(relative) < len(root) and not relative.startswith("../..") else root


def typed(root: str) -> str:
    """Return a root as one types it in a shell."""
    return shlex.quote(short(root))


def moment_text(moment: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    if moment is None:
        return ""
    in_utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return in_utc.strftime("%Y-%m-%d %H:%M:%SZ")

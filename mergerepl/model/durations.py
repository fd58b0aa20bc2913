"""Durations as people write them in files and options: `30s`, `5m`, `2h`, `7d`, `2w`, `14 days`."""

import re
from datetime import timedelta

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

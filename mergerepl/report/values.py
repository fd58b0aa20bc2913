"""One value of a row in words, the same in every report for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

LONGEST_SHOWN = 1000
"""Letters of a value that are shown; the rest is counted. `--json` keeps it."""

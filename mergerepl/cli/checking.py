"""The exit codes of `status --check`: 0 all is well, 1 a warning, 2 critical, 3 unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.output import Output
from mergerepl.errors import MergeReplError

if TYPE_CHECKING:
    from mergerepl.model.cdc import StatusWarning

UNKNOWN = 3
LEVELS = {"warning": 1, "critical": 2}


def warning_lines(warnings: Sequence[StatusWarning]) -> list[str]:
    """Return warnings as lines for people."""
    return [f"{each.level.capitalize()}: {each.source}: {each.text}" for each in warnings]


def report_check(find: Callable[[], tuple[Any, Sequence[StatusWarning]]], output: Output) -> int:
    """Report a state and what is wrong with it; return the exit code."""
    try:
        found, warnings = find()
    except MergeReplError as error:
        output.reported({"check": "unknown", "error": error.details()}, [f"Unknown: {error.message}"])
        return UNKNOWN
    output.reported({"status": found, "warnings": warnings}, warning_lines(warnings) or ["All is well."])
    return max((LEVELS[each.level] for each in warnings), default=0)

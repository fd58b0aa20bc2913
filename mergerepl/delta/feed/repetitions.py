"""Appends that are in a log twice.

If the answer to a commit is lost, delta-rs tries again. It finds the version taken, by its own commit, and appends behind
it: two versions name the same files. The table has the rows once, its feed has them twice.
"""

from typing import Any

from mergerepl.delta.commits import Commit
from mergerepl.delta.log import log_actions
from mergerepl.store.location import Location

_RETRIES = "num_retries"
_FURTHEST = 32
"""How many versions before a commit its first attempt is looked for."""


def is_repetition(table: Location, commit: Commit) -> bool:
    """Whether a commit appends files that an earlier commit appended, and that no commit removed since."""
    if commit.operation != "WRITE" or commit.txns or commit.metrics.get(_RETRIES, "0") == "0":
        return False
    added, removed = _files(log_actions(table, commit.version))
    if not added or removed:
        return False
    for version in range(commit.version - 1, max(-1, commit.version - 1 - _FURTHEST), -1):
        try:
            earlier, gone = _files(log_actions(table, version))
        except FileNotFoundError:
            # Delta has removed it from the log.
            return False
        if added & earlier or added & gone:
            return added <= earlier
    return False


def _files(actions: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Return the paths that a commit adds and those that it removes. delta-rs appends no deletion vectors."""
    added, removed = (
        {action[kind]["path"] for action in actions if kind in action} for kind in ("add", "remove")
    )
    return added, removed

"""The Delta applications under which merge replication writes, and the numbers of their transactions.

Delta skips a transaction whose number is not above the last one of its application. The ids of a table are a finite list:
the fence of a root names all of them (`application_ids`).
"""

from collections.abc import Iterable

from mergerepl.changes import PUBLISHER, SUBSCRIBER

RUN_APP_ID = "mergerepl-runs"
"""Application of the appended runs of contents, tombstone and partition mappings; its number is the run's seq."""

REPAIR_APP_ID = "mergerepl-repairs"
"""Application of the rows that `repair` or a DROP takes away, and of wider types, in the conflict tables; it counts up."""

RESOLVE_APP_ID = "mergerepl-resolve"
"""Application of the rows that `conflicts resolve` writes to users' tables; it counts up by one."""

DELETE_APP_ID = "mergerepl-deletes"
"""Application of rows that Spark deletes from contents and tombstone; it counts up by one."""

_ROUNDS = 1000
"""Numbers that a session has for its rounds."""


def data_app_id(subid: str) -> str:
    """Return the application of a subscription's writes to users' tables."""
    return f"mergerepl-{subid}"


def copy_app_id(subid: str) -> str:
    """Return the application of the rows that `apply` copies to a new table of a subscriber."""
    return f"initialise {subid}"


def log_app_id(subid: str, side: str = PUBLISHER, *, is_late: bool = False) -> str:
    """Return the application of conflict logs, by default those of a session itself.

    Sessions of several subscriptions share these tables. The late rounds of a side are logged in order; the rounds of
    the other side, and the session itself, are logged at any time before or after them.
    """
    return f"mergerepl-conflicts-{subid}-{side}-{'late' if is_late else 'session'}"


def application_ids(subids: Iterable[str]) -> list[str]:
    """Return all applications under which we write to tables of a root with these subscriptions."""
    found = [RUN_APP_ID, REPAIR_APP_ID, RESOLVE_APP_ID, DELETE_APP_ID]
    for subid in subids:
        found += [data_app_id(subid), copy_app_id(subid), log_app_id(subid)]
        found += [log_app_id(subid, side, is_late=True) for side in (PUBLISHER, SUBSCRIBER)]
    return found


def round_number(session_number: int, round_: int) -> int:
    """Return the transaction's number of one round of a session."""
    return session_number * _ROUNDS + round_


def session_number_of(number: int) -> int:
    """Return the session of a transaction's number."""
    return number // _ROUNDS

"""Protect the planned writes of a dead session from the conflict tools."""

from mergerepl.errors import ConflictError
from mergerepl.replica.replica import Replica


def refuse_interrupted(replica: Replica) -> None:
    """Check that no session is staged here, and no pointer names one.

    Raises: ConflictError.
    """
    if replica.has_staged():
        raise ConflictError(
            f"A session of '{replica.root}' was interrupted and has rows to write. Nothing was changed. Run "
            "`mergerepl sync` first, which finishes it.",
            replica=str(replica.root),
        )

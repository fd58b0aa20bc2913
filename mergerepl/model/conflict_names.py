"""conflict_type (MSmerge_conflicts_info) in a few words, for lists."""

from mergerepl.model.conflicts import Choice, ConflictStatus
from mergerepl.model.results import ConflictPreview, ConflictRecord
from mergerepl.model.words import moment_text

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
    11: "rejected by a one-way article",
}


REJECTED = 11
REFUSED = range(5, 11)
"""The types of changes that a table refuses: no other row has won over them, unless a rule decided (`resolver`)."""


def stays_at_source(conflict: ConflictRecord | ConflictPreview) -> bool:
    """Return whether the logged row stands where it was written, and no other has won over it there."""
    if conflict.conflict_type in REFUSED:
        return conflict.resolver is None
    return conflict.conflict_type == REJECTED and conflict.resolver == "upload_only"


_SETTLED = {
    Choice.WINNER: "the outcome stands",
    Choice.LOSER: "what lost was written",
    Choice.EDITED: "other values were written",
}


def how_settled(conflict: ConflictRecord) -> str:
    """Return how a conflict was settled, by whom, when and why; nothing if it is open."""
    if conflict.status != ConflictStatus.SETTLED.value:
        return ""
    if (done := conflict.resolution) is None:
        return "settled: the refused change waits no more"
    why = f": {done.message}" if done.message else ""
    return f"settled: {_SETTLED[Choice(done.choice)]}, by {done.by}, {moment_text(done.resolved_at)}{why}"


def conflict_name(conflict_type: int) -> str:
    """Return the words for a type; a number that is not known stays a number."""
    return CONFLICT_NAMES.get(conflict_type, f"type {conflict_type}")

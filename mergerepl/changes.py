"""The frames that travel between the phases of a session: the contract of triggers, enumeration, conflict and
apply.

CAPTURED (triggers -> contents and tombstone; it is also CHANGES): one row per rowguid.
CHANGES (enumeration): what one replica has to tell another, one row per rowguid.
PAIRS (enumeration -> conflict): full outer join of both sides' CHANGES, one row per rowguid, each side a
struct. RESOLVED (conflict -> apply): the changeset of an article, one row per rowguid.

`row` is always a row image: struct c0..cN in the order of the article's published columns; of a deleted row,
the row as it was last seen.
"""

from enum import StrEnum
from typing import Final

ROWGUID: Final = "rowguid"
ROW: Final = "row"
DELETED: Final = "deleted"
GENERATION: Final = "generation"
PARTCHANGEGEN: Final = "partchangegen"
BORN_GENERATION: Final = "born_generation"
LINEAGE: Final = "lineage"
COLV1: Final = "colv1"
PRIORITY: Final = "priority"
TOMBSTONE_TYPE: Final = "tombstone_type"

CHANGE_COLUMNS: Final = (
    ROWGUID,
    DELETED,
    TOMBSTONE_TYPE,
    GENERATION,
    PARTCHANGEGEN,
    BORN_GENERATION,
    LINEAGE,
    COLV1,
    PRIORITY,
    ROW,
)
"""Columns of CAPTURED and CHANGES, in order."""

PUBLISHER: Final = "publisher"
SUBSCRIBER: Final = "subscriber"
"""The two struct columns of PAIRS: what each side has to tell (NULL: nothing)."""

VERDICT: Final = "verdict"


class Verdict(StrEnum):
    """What get_metadata and conflict detection say of one row of PAIRS."""

    UPLOAD = "upload"
    """The subscriber's change goes to the publisher."""
    DOWNLOAD = "download"
    """The publisher's change goes to the subscriber."""
    KNOWN = "known"
    """Both sides hold the same version."""
    CANDIDATE = "candidate"
    """Changed at both sides without knowing of each other: `conflict` decides."""
    MERGE = "merge"
    """Changed at both sides and no conflict: the same outcome, or different columns."""
    CONFLICT = "conflict"
    """A conflict: one side won, the other is logged."""


class Action(StrEnum):
    """What apply does with one row at one side. The decision is made before, as data one can look at."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    METADATA = "metadata"
    """The row stays as it is; only its lineage moves."""


DATA_ACTIONS: Final = (Action.INSERT, Action.UPDATE, Action.DELETE)

PUBLISHER_ACTION: Final = "publisher_action"
SUBSCRIBER_ACTION: Final = "subscriber_action"
PUBLISHER_GENERATION: Final = "publisher_generation"
SUBSCRIBER_GENERATION: Final = "subscriber_generation"

ACTION_OF: Final = {PUBLISHER: PUBLISHER_ACTION, SUBSCRIBER: SUBSCRIBER_ACTION}
GENERATION_OF: Final = {PUBLISHER: PUBLISHER_GENERATION, SUBSCRIBER: SUBSCRIBER_GENERATION}
OTHER_SIDE: Final = {PUBLISHER: SUBSCRIBER, SUBSCRIBER: PUBLISHER}

CONFLICT_TYPE: Final = "conflict_type"
CONFLICT_COLUMNS: Final = "conflict_columns"
PUBLISHER_WINS: Final = "publisher_wins"
LOSER: Final = "loser"
WINNER: Final = "winner"

RESOLVED_COLUMNS: Final = (
    ROWGUID,
    VERDICT,
    DELETED,
    TOMBSTONE_TYPE,
    PARTCHANGEGEN,
    BORN_GENERATION,
    LINEAGE,
    COLV1,
    PRIORITY,
    ROW,
    PUBLISHER_ACTION,
    PUBLISHER_GENERATION,
    SUBSCRIBER_ACTION,
    SUBSCRIBER_GENERATION,
    CONFLICT_TYPE,
    CONFLICT_COLUMNS,
    PUBLISHER_WINS,
    LOSER,
    WINNER,
)
"""Columns of RESOLVED: the final state of the row, what each side does and under which of its generations it
is recorded, and for a conflict the losing and the winning change as structs (deleted, lineage, priority,
row)."""

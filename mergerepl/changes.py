"""The frames that travel between the phases of a session: the contract of triggers, enumeration, conflict and
apply.

CAPTURED (triggers -> contents and tombstone; it is also CHANGES): one row per rowguid of one article.
CHANGES (enumeration): the changes of one article from one replica to another, one row per rowguid.
ENCODED (agent -> enumeration): CHANGES of all articles in one frame, one row per (tablenick, rowguid).
PAIRS (enumeration -> conflict): the changes of one row at both sides, with the verdict.
DECIDED (conflict -> agent): the outcome of all articles, one row per (tablenick, rowguid), with a mask for the values.
RESOLVED (agent -> apply): the changeset of an article, one row per rowguid: DECIDED with the typed rows.

`row` is always a row image: a struct with a field `c<number>` for each published column, in their order; for a deleted
row, its last known values. `fields` are the canonical encodings (`rows.encodings`) of its fields, without generated
columns: in this form rows of all articles enter one plan.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

TABLENICK: Final = "tablenick"
ROWGUID: Final = "rowguid"
ROW: Final = "row"
FIELDS: Final = "fields"
BASE: Final = "base"
"""Column of CAPTURED, for an article whose resolver needs it: the published row before its first change, else NULL."""

DELETED: Final = "deleted"
GENERATION: Final = "generation"
PARTCHANGEGEN: Final = "partchangegen"
BORN_GENERATION: Final = "born_generation"
LINEAGE: Final = "lineage"
COLV1: Final = "colv1"
PRIORITY: Final = "priority"
UNKNOWN: Final = "unknown"
"""The fields of which a row says nothing, since its writer's table lacked them; NULL: none. Their values do not count."""

TOMBSTONE_TYPE: Final = "tombstone_type"


def values_column(tablenick: int) -> str:
    """Return the column of ENCODED with the typed fields of an article that its resolver reads, as a struct."""
    return f"values_{tablenick}"


def ancestor_column(tablenick: int) -> str:
    """Return the column of ENCODED with a row's common ancestor: NULL if unknown, else a struct (deleted, fields read)."""
    return f"ancestor_{tablenick}"


def made_column(tablenick: int) -> str:
    """Return the column of DECIDED with the values that an article's resolver made: by field a struct (made, value)."""
    return f"{_MAKING}{tablenick}"


def all_made_columns(columns: Iterable[str]) -> list[str]:
    """Return the made columns among the columns of a frame."""
    return [name for name in columns if name.startswith(_MAKING)]


_MAKING: Final = "making_"


KEYS: Final = (TABLENICK, ROWGUID)
"""Columns that identify a row in a frame of all articles."""

METADATA_COLUMNS: Final = (
    DELETED,
    TOMBSTONE_TYPE,
    GENERATION,
    PARTCHANGEGEN,
    BORN_GENERATION,
    LINEAGE,
    COLV1,
    PRIORITY,
    UNKNOWN,
)

CHANGE_COLUMNS: Final = (ROWGUID, *METADATA_COLUMNS, ROW)
"""Columns of CAPTURED and CHANGES, in order."""

ENCODED_COLUMNS: Final = (*KEYS, *METADATA_COLUMNS, FIELDS)
"""Columns of ENCODED, in order."""

COLUMN_TRACKING: Final = "column_tracking"
BY_COLUMNS: Final = "by_columns"
WHOLE_ROWS: Final = "whole_rows"
RESOLVER: Final = "resolver"
UPDATE_DELETE: Final = "update_delete"
MADE_COLUMNS: Final = "made_columns"
CLASHING_COLUMNS: Final = "clashing_columns"
FLOOR: Final = "floor"
PUBLISHER_FRESH_AFTER: Final = "publisher_fresh_after"
SUBSCRIBER_FRESH_AFTER: Final = "subscriber_fresh_after"
CLOCK: Final = "clock"
NAMES: Final = "names"
NAMED_FIELDS: Final = "named_fields"
RESOLVED_AT_PUBLISHER: Final = "resolved_at_publisher"
RESOLVED_AT_SUBSCRIBER: Final = "resolved_at_subscriber"
"""Fields of `article`: those of ArticleTerms."""

PUBLISHER: Final = "publisher"
SUBSCRIBER: Final = "subscriber"
"""The two struct columns of PAIRS: each side's change (NULL: none)."""

FRESH_AFTER_OF: Final = {PUBLISHER: PUBLISHER_FRESH_AFTER, SUBSCRIBER: SUBSCRIBER_FRESH_AFTER}

ARTICLE: Final = "article"
"""Struct column of PAIRS: the terms of the row's article (`enumeration.get_metadata`)."""

VERDICT: Final = "verdict"

SENT: Final = "sent"
"""Struct column of PAIRS: the final state of a row that goes over unchanged, NULL for others."""

UPLOADED_PRIORITY: Final = "uploaded_priority"
"""Column of PAIRS: the priority that the subscriber's change has at the publisher."""


class Verdict(StrEnum):
    """The verdict of get_metadata and conflict detection on one row of PAIRS."""

    UPLOAD = "upload"
    """The subscriber's change goes to the publisher."""
    DOWNLOAD = "download"
    """The publisher's change goes to the subscriber."""
    KNOWN = "known"
    """Both sides hold the same version."""
    CANDIDATE = "candidate"
    """Changed at both sides independently: `conflict` decides."""
    MERGE = "merge"
    """Changed at both sides without a conflict: the same outcome, or different columns."""
    CONFLICT = "conflict"
    """A conflict: one side won, the other is logged."""
    REFUSED = "refused"
    """A table refused the row: it waits at its source (`conflict.failed_changes`)."""
    UNDONE = "undone"
    """The publisher's table refused the subscriber's change: the subscriber gets the publisher's row back."""


OF_TWO: Final = (Verdict.MERGE.value, Verdict.CONFLICT.value)
"""Verdicts on rows that both sides changed."""

WRITTEN_VERDICTS: Final = (Verdict.UPLOAD.value, *OF_TWO)
"""Verdicts on rows that the publisher records."""


class Action(StrEnum):
    """The action of apply on one row at one side, decided before and held as data."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    METADATA = "metadata"
    """The row keeps its values; only its lineage changes."""
    LEAVE = "leave"
    """The row left the subscriber's partition: it is deleted there and stays at the publisher."""


DATA_ACTIONS: Final = (Action.INSERT, Action.UPDATE, Action.DELETE, Action.LEAVE)

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

STATE_COLUMNS: Final = tuple(name for name in METADATA_COLUMNS if name != GENERATION)
"""Columns of a final state besides the row."""

ACTION_COLUMNS: Final = (PUBLISHER_ACTION, PUBLISHER_GENERATION, SUBSCRIBER_ACTION, SUBSCRIBER_GENERATION)

NOTE: Final = "note"
"""A resolver's remark on its decision, such as that a sum was out of range; NULL for most."""

CONFLICT_OUTCOME_COLUMNS: Final = (
    CONFLICT_TYPE,
    CONFLICT_COLUMNS,
    PUBLISHER_WINS,
    RESOLVER,
    MADE_COLUMNS,
    NOTE,
)
"""The outcome of a conflict. `resolver` and `made_columns` are as in `article`, but for this row: the resolver that
decided it, and the columns whose values it made."""

MADE: Final = "made"
"""Column of a resolver's answer: by column that it made, whether the value differs from the publisher's and from the
subscriber's. Only where an article's resolver makes values."""

OF_SUBSCRIBER: Final = "of_subscriber"
"""Column of DECIDED: for each field of `fields`, whether its value is the subscriber's. NULL if one side lacks the row."""

WINNER_COLUMNS: Final = (LINEAGE, PRIORITY)
LOSER_COLUMNS: Final = (DELETED, *WINNER_COLUMNS, UNKNOWN)
"""Columns of `winner` and `loser`; `loser` also has its row. The final state has the winner's row, or a part."""

RULE: Final = "rule"
KEY: Final = "key"
"""The constraint that a row breaks at its destination, and its key as text."""

DECIDED_COLUMNS: Final = (
    *KEYS,
    VERDICT,
    *STATE_COLUMNS,
    *ACTION_COLUMNS,
    *CONFLICT_OUTCOME_COLUMNS,
    LOSER,
    WINNER,
    OF_SUBSCRIBER,
)
"""Columns of DECIDED: RESOLVED without values, of all articles."""

RESOLVED_COLUMNS: Final = (
    ROWGUID,
    VERDICT,
    *STATE_COLUMNS,
    ROW,
    *ACTION_COLUMNS,
    *CONFLICT_OUTCOME_COLUMNS,
    LOSER,
    WINNER,
)
"""Columns of RESOLVED: the final state of the row, the action of each side and the generation there that records the
row, and for a conflict the losing change (deleted, lineage, priority, unknown, row) and the winning one (lineage, priority)
as structs."""

CONFLICT_HASH: Final = "conflict_hash"
"""Column of staged rows added to RESOLVED: 64 bits (bigint) that distinguish the conflicts of one article in a
changeset; conflict ids are made from it. NULL without a conflict."""

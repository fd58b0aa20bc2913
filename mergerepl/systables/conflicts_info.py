"""MSmerge_conflicts_info and the conflict table of an article (merge_replication.md 1.4, 3.4, 3.5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Final

from mergerepl.model.columns import Bigint
from mergerepl.systables.table import Plane, TypedTable, columns

NAME: Final = "MSmerge_conflicts_info"

CONFLICT_ID: Final = "conflict_id"
CONFLICT_TYPE: Final = "conflict_type"
ORIGIN_DATASOURCE_ID: Final = "origin_datasource_id"
MODIFIED_DATE: Final = "ModifiedDate"


class ConflictType(IntEnum):
    """MSmerge_conflicts_info.conflict_type, as `REASONS` explains it.

    A refused change waits at its source, or is undone there. An update that wins over a delete is logged without a row.
    RESOLUTION is a change that lost to a rule, not to another change.
    """

    UPDATE = 1
    COLUMN_UPDATE = 2
    UPDATE_DELETE_WINS = 3
    UPDATE_WINS_DELETE = 4
    UPLOAD_INSERT_FAILED = 5
    DOWNLOAD_INSERT_FAILED = 6
    UPLOAD_DELETE_FAILED = 7
    DOWNLOAD_DELETE_FAILED = 8
    UPLOAD_UPDATE_FAILED = 9
    DOWNLOAD_UPDATE_FAILED = 10
    RESOLUTION = 11

    @property
    def is_failed_change(self) -> bool:
        """Whether a table refused the change, which waits at its source or was undone there."""
        return ConflictType.UPLOAD_INSERT_FAILED <= self <= ConflictType.DOWNLOAD_UPDATE_FAILED


FAILED_CHANGES: Final = tuple(int(each) for each in ConflictType if each.is_failed_change)
"""The types of changes that a table refused."""

COMPENSATION: Final = "compensate_for_errors"
"""MSmerge_conflicts_info.resolver of a change that the publisher's table refused and that was undone at its subscriber."""

REASONS: Final = {
    ConflictType.UPDATE: "The same row was changed at both sides.",
    ConflictType.COLUMN_UPDATE: "The same column of the row was changed at both sides.",
    ConflictType.UPDATE_DELETE_WINS: "The row was updated at one side and deleted at the other; the delete won.",
    ConflictType.UPDATE_WINS_DELETE: "The row was updated at one side and deleted at the other; the update won.",
    ConflictType.UPLOAD_INSERT_FAILED: "The publisher's table refuses the inserted row.",
    ConflictType.DOWNLOAD_INSERT_FAILED: "The subscriber's table refuses the inserted row.",
    ConflictType.UPLOAD_DELETE_FAILED: "The publisher's table refuses the delete.",
    ConflictType.DOWNLOAD_DELETE_FAILED: "The subscriber's table refuses the delete.",
    ConflictType.UPLOAD_UPDATE_FAILED: "The publisher's table refuses the updated row.",
    ConflictType.DOWNLOAD_UPDATE_FAILED: "The subscriber's table refuses the updated row.",
    ConflictType.RESOLUTION: "The article takes changes of the other side only.",
}


@dataclass(frozen=True, kw_only=True)
class ConflictRow:
    """A row of MSmerge_conflicts_info."""

    tablenick: Annotated[int, "article nickname"]
    rowguid: Annotated[str, "row"]
    origin_datasource: Annotated[
        str, "root of the session's end that held the losing change; another replica may have made it"
    ] = ""
    conflict_type: Annotated[
        int,
        "1 update, 2 column update, 3 update lost to a delete, 4 delete lost to an update; "
        "refused by a table: 5 and 6 an insert, 7 and 8 a delete, 9 and 10 an update (publisher's and subscriber's table); "
        "11 rejected: the article takes changes of the other side only, the row is outside of its writer's partition, a "
        "repair replaced it, or the publisher dropped a column before its value was sent",
    ]
    reason_code: Annotated[
        int | None,
        "the conflict type again, as in the original; for types 5 to 10 the reason: 1 a CHECK or "
        "invariant, 2 NOT NULL, 3 the length or form of a text, 6 an append-only table",
    ] = None
    reason_text: Annotated[str, "the conflict in words"] = ""
    pubid: Annotated[str, "publication"]
    MSrepl_create_time: Annotated[datetime, "when the conflict was resolved"]
    origin_datasource_id: Annotated[str | None, "its replica id"] = None
    conflict_id: Annotated[str, "identity of the conflict, shared with the conflict table"]
    winner_datasource_id: Annotated[
        str | None, "replica id of the end that held the winning change; another may have made it"
    ] = None
    winner_datasource: Annotated[str, "its root"] = ""
    losing_lineage: Annotated[Mapping[int, Bigint], "lineage of the losing change"] = field(
        default_factory=dict
    )
    winning_lineage: Annotated[Mapping[int, Bigint], "lineage of the winning change"] = field(
        default_factory=dict
    )
    losing_priority: Annotated[float | None, "priority of the losing change"] = None
    winning_priority: Annotated[float | None, "priority of the winning change"] = None
    columns: Annotated[
        tuple[str, ...],
        "columns in conflict: those that differed and, tracked by column, both sides had "
        "changed; none if one side had deleted the row",
    ] = ()
    session_id: Annotated[str | None, "merge session that resolved it"] = None
    rowkey: Annotated[Mapping[str, str | None], "key columns as text, for people"] = field(
        default_factory=dict
    )
    resolver: Annotated[
        str | None,
        "name of the rule that decided; NULL: a refused change that waits; compensate_for_errors: one "
        "that was undone",
    ] = None
    made_columns: Annotated[
        tuple[str, ...], "columns that the resolver computed from both sides; NULL: none"
    ] = ()
    note: Annotated[str | None, "the resolver's remark on its decision, such as a sum out of range"] = None
    article_version: Annotated[int, "version of the article's columns in the losing row"] = 1
    unknown: Annotated[tuple[str, ...], "fields (c<number>) of which the losing row says nothing"] = ()

    @property
    def is_undecided(self) -> bool:
        """Whether a table refused the change, so that it stayed at its source: no other row won over it."""
        return ConflictType(self.conflict_type).is_failed_change and self.resolver is None


TABLE: Final = TypedTable(NAME, Plane.DATA, ConflictRow)

CONFLICT_COLUMNS: Final = columns(
    """
    rowguid | string | row
    ModifiedDate | timestamp | when the conflict was resolved
    origin_datasource_id | string | replica id of the session's end that held the losing change
    conflict_id | string | identity of the conflict, shared with MSmerge_conflicts_info
    """
)
"""Columns a conflict table has after the article's own; a clash with an article column is refused at publishing."""


CONFLICT_TABLE_PREFIX = "MSmerge_conflict_"


LONGEST_FOLDER_NAME: Final = 200
"""Bytes of a folder name made here: file systems allow 255, and temporary names next to it have a suffix."""


def conflict_table_name(publication: str, article: str) -> str:
    """Return the name of an article's conflict table."""
    return f"{CONFLICT_TABLE_PREFIX}{publication}_{article}"

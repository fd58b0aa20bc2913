"""MSmerge_conflict_resolutions: what people have said of conflicts. The original removes a conflict that is resolved."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergerepl.systables.table import Plane, TypedTable, columns

NAME: Final = "MSmerge_conflict_resolutions"


@dataclass(frozen=True, kw_only=True)
class ResolutionRow:
    """A row of MSmerge_conflict_resolutions."""

    resolution_id: str
    conflict_id: str
    choice: str
    root: str | None = None
    by: str | None = None
    message: str | None = None
    table_version: int | None = None
    resolved_at: datetime


TABLE: Final = TypedTable(
    NAME,
    Plane.HISTORY,
    columns(
        """
        resolution_id | string not null | one run of `conflicts resolve`
        conflict_id | string not null | conflict that it settled
        choice | string not null | winner, loser or edited
        root | string | replica whose table was written
        by | string | user and machine
        message | string | why, in the words of who resolved it
        table_version | bigint | version of the article's table that the run committed; NULL if it wrote nothing
        resolved_at | timestamp not null | when
        """
    ),
    ResolutionRow,
)

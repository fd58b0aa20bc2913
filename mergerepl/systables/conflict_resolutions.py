"""MSmerge_conflict_resolutions: users' resolutions of conflicts. The original removes a resolved conflict."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from mergerepl.model.columns import Bigint
from mergerepl.systables.table import Plane, TypedTable

NAME: Final = "MSmerge_conflict_resolutions"


@dataclass(frozen=True, kw_only=True)
class ResolutionRow:
    """A row of MSmerge_conflict_resolutions."""

    resolution_id: Annotated[str, "one run of `conflicts resolve`"]
    conflict_id: Annotated[str, "conflict that it settled"]
    choice: Annotated[str, "winner, loser or edited"]
    root: Annotated[str | None, "replica whose table was written"] = None
    by: Annotated[str | None, "user and machine"] = None
    message: Annotated[str | None, "why, in the words of who resolved it"] = None
    table_version: Annotated[Bigint | None, "version that the run committed; NULL if it wrote nothing"] = None
    resolved_at: Annotated[datetime, "when"]


TABLE: Final = TypedTable(NAME, Plane.HISTORY, ResolutionRow)

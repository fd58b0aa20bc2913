"""All system tables of a replica."""

from typing import Any, Final

from mergerepl.systables import (
    catalog,
    conflict_resolutions,
    conflicts_info,
    contents,
    genhistory,
    partitions,
    replinfo,
    sessions,
    tombstone,
)
from mergerepl.systables.table import Plane, SystemTable, TypedTable

ALL: Final[tuple[SystemTable, ...]] = (
    catalog.PUBLICATIONS,
    catalog.ARTICLES,
    catalog.SUBSETFILTERS,
    catalog.SUBSCRIPTIONS,
    catalog.SCHEMACHANGE,
    contents.TABLE,
    tombstone.TABLE,
    genhistory.TABLE,
    partitions.PARTITION_GROUPS,
    *partitions.MAPPINGS,
    conflicts_info.TABLE,
    conflict_resolutions.TABLE,
    replinfo.TABLE,
    sessions.SESSIONS,
    sessions.ARTICLEHISTORY,
    sessions.HISTORY,
)

DATA_PLANE: Final = tuple(table for table in ALL if table.plane is Plane.DATA)
CONTROL_PLANE: Final[tuple[TypedTable[Any], ...]] = tuple(
    table for table in ALL if table.plane is not Plane.DATA and isinstance(table, TypedTable)
)

"""MSmerge_contents: one row per inserted or updated row since the publication (merge_replication.md 1.1).

On disk the table is append-only: each capture or apply appends a *run* of rows with one rising `seq`. Among all rows of
one (tablenick, rowguid) in this table and in MSmerge_tombstone the one with the highest `seq` counts, so a delete
supersedes the contents row and a re-insert the tombstone, each with a single append. `row_<tablenick>` columns, one per
article and set of its fields, hold the row's image as captured or applied, so that enumeration need not read the users'
table.
`base_<tablenick>` holds the published row in the first version of a row that existed before: at subscribers, and at the
publisher for articles whose resolver needs the common ancestor of two changes.
"""

from collections.abc import Collection
from typing import Final

from mergerepl.systables.table import Plane, SystemTable, columns

NAME: Final = "MSmerge_contents"

TABLENICK: Final = "tablenick"
ROWGUID: Final = "rowguid"
GENERATION: Final = "generation"
PARTCHANGEGEN: Final = "partchangegen"
BORN_GENERATION: Final = "born_generation"
LINEAGE: Final = "lineage"
COLV1: Final = "colv1"
MARKER: Final = "marker"
LOGICAL_RECORD_PARENT_ROWGUID: Final = "logical_record_parent_rowguid"
LOGICAL_RECORD_LINEAGE: Final = "logical_record_lineage"
LOGICAL_RELATION_CHANGE_GEN: Final = "logical_relation_change_gen"
PRIORITY: Final = "priority"
SEQ: Final = "seq"

LINEAGE_TYPE: Final = "map<int,bigint>"
COLV1_TYPE: Final = "map<string,struct<nickname:int,version:bigint>>"

TABLE: Final = SystemTable(
    NAME,
    Plane.DATA,
    columns(
        f"""
        tablenick | int | article nickname
        rowguid | string | row identity, the same at every replica
        generation | bigint | generation of the row's latest change, local number
        partchangegen | bigint | generation in which only the row's partitions changed last, at a publisher with row filters
        lineage | {LINEAGE_TYPE} | replica nickname -> version: which changes this version of the row includes
        colv1 | {COLV1_TYPE} | field (c<number>) -> who changed it last at which version; NULL: by row tracking
        marker | string | merge session or capture that wrote the row
        logical_record_parent_rowguid | string | reserved: top-level row of the logical record
        logical_record_lineage | {LINEAGE_TYPE} | reserved: lineage of the logical record
        logical_relation_change_gen | bigint | reserved: generation that moved the row between logical records
        priority | double | priority of the replica that made this version (100 publisher, 0 unmerged client)
        seq | bigint | number of the appended run; the highest one of a row counts
        born_generation | bigint | generation of the row's insert while nothing older is known of it, else NULL
        unknown | array<string> | fields (c<number>) of which the row says nothing, as its writer's table lacked them
        """
    ),
)


def base_column(tablenick: int, version: int = 1) -> str:
    """Return the name of the column with the row before its first change known here (in contents and tombstone).

    At a publisher only articles whose resolver reads it have values there.
    """
    return _image_column("base", tablenick, version)


def row_column(tablenick: int, version: int = 1) -> str:
    """Return the name of the image column of one article that this version of its columns introduced.

    Contents and tombstone have it.
    """
    return _image_column("row", tablenick, version)


def is_row_column(name: str, tablenicks: Collection[int]) -> bool:
    """Whether a column is an image column, of any version, of one of these articles."""
    return any(name == (first := row_column(each)) or name.startswith(f"{first}_") for each in tablenicks)


def _image_column(of: str, tablenick: int, version: int) -> str:
    return f"{of}_{tablenick}" if version == 1 else f"{of}_{tablenick}_{version}"

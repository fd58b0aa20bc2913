"""Write docs/system-tables.md from the code's own schemas; with `--check`, only say whether it is up to date."""

import sys
from collections.abc import Iterable
from pathlib import Path

from mergerepl.systables import (
    catalog,
    cdc,
    conflict_resolutions,
    conflicts_info,
    contents,
    genhistory,
    logreader,
    partitions,
    replinfo,
    sessions,
    tombstone,
    tracking,
    transactional,
)
from mergerepl.systables.registry import ALL
from mergerepl.systables.table import FOLDER, Column, Plane, SystemTable

PAGE = Path(__file__).parent.parent / "docs" / "system-tables.md"

HEAD = f"""# System tables

<!-- Written by scripts/system_tables_reference.py from mergerepl/systables. Do not edit. -->

Every replica, the publisher's and each subscriber's, has the same set of system tables in the folder `{FOLDER}` below
its root. They are Delta tables: any engine can read them. Never write them. Names, columns and codes are those of SQL
Server merge replication where it has them; types are Spark's. Version of the set: {replinfo.SCHEMA_VERSION}. Columns
are only ever added at the end.

Two columns of images, `row_<article nickname>` and `base_<article nickname>` (the row before its first change, at
subscribers and for resolvers that ask), are added to `{contents.NAME}` and `{tombstone.NAME}` for every article:
a struct with one field `c<number>` for each published column. Columns that changed later have images of their own,
`row_<tablenick>_<version>`.

How a session uses these tables: [protocol.md](protocol.md).
"""

PURPOSE = {
    catalog.PUBLICATIONS.name: "The publications that this replica publishes or receives.",
    catalog.ARTICLES.name: "The articles of those publications: the published tables.",
    catalog.SUBSETFILTERS.name: "Join filters. Empty: sysmergepublications.filters has them.",
    catalog.SUBSCRIPTIONS.name: "One row for each subscription, about the other side: who it is and how far the two are.",
    catalog.SCHEMACHANGE.name: "Changes of published columns that travel, by article.",
    contents.NAME: "Rows inserted or updated since the publication. Append-only: the row with the highest `seq`, "
    f"here or in `{tombstone.NAME}`, counts.",
    tombstone.NAME: "Rows deleted since the publication. Append-only like the contents.",
    genhistory.NAME: "The generations this replica knows: the batches that changes travel in.",
    partitions.PARTITION_GROUPS.name: "The partitions of publications with row filters.",
    partitions.CURRENT.name: "Rows that changed and are in a partition. Append-only: of a row and a partition the row with "
    f"the highest `seq`, here or in `{partitions.PAST.name}`, counts. Empty at subscribers.",
    partitions.PAST.name: "Rows that left a partition. Append-only like the current mappings.",
    partitions.GENERATION_PARTITIONS.name: "The generations with changes for each partition: only these are sent there.",
    conflicts_info.NAME: "Every conflict, with who won and why; its losing row is in the article's conflict table.",
    conflict_resolutions.NAME: "What people have said of conflicts: `mergerepl conflicts resolve`.",
    replinfo.NAME: "One row: who this replica is, and how far its own bookkeeping is.",
    sessions.SESSIONS.name: "Past merge sessions.",
    sessions.ARTICLEHISTORY.name: "What each session did, by article and direction.",
    sessions.HISTORY.name: "Messages of sessions.",
}

TRACKING = {
    tracking.TRACKED_OBJECTS.name: "The tracked tables: one row for each key column.",
    tracking.DELETED_ROWS.name: "The tombstones of all tracked tables.",
    tracking.COMMIT_SEQUENCE.name: "The transactions whose CSN is not their BSN.",
    tracking.COMMITS.name: "The published transactions. A row publishes one and holds the snapshot of all tables after it.",
    tracking.CONSUMERS.name: "The consumers, and up to where each has acknowledged.",
}

LOG_READER = {
    logreader.LOG_READER.name: "The sources of the log reader and its position in each; row 0 describes the database.",
    logreader.SCAN_SESSIONS.name: "The scan cycles that found something.",
    logreader.ERRORS.name: "What scan cycles could not do, and notices.",
}

CDC = {
    cdc.CHANGE_TABLES.name: "The capture instances.",
    cdc.CAPTURED_COLUMNS.name: "The columns of the change tables.",
    cdc.INDEX_COLUMNS.name: "The key columns of the capture instances.",
    cdc.LSN_TIME_MAPPING.name: "The LSNs and their times. Its highest start_lsn is what readers may see.",
    cdc.DDL_HISTORY.name: "What was changed of the columns of captured tables.",
    cdc.CDC_JOBS.name: "The jobs and their parameters.",
}

TRANSACTIONAL = {
    transactional.PUBLICATIONS.name: "The publications.",
    transactional.ARTICLES.name: "The articles: a row for each shape that one has had.",
    transactional.SUBSCRIPTIONS.name: "The subscriptions.",
    transactional.TRANSACTIONS.name: "The transactions: the gate. An agent may apply the transactions in it.",
    transactional.COMMANDS.name: "The commands of an article in one shape.",
    transactional.HISTORY.name: "The batches that were applied, and why agents stopped.",
    transactional.ERRORS.name: "Why agents stopped, and what was skipped.",
    transactional.STOPS.name: "The agents that stopped and have not worked since.",
    transactional.CONFLICTS.name: "The edits of subscribers that lost to the publisher, of an article in one shape.",
    transactional.POSITIONS.name: "At the subscriber: how far it is.",
    transactional.QUEUE.name: "At a subscriber that writes: how far the edits of its tables were sent.",
}

WRITER = {
    Plane.CONTROL: "Small; written whole by each commit, without Java.",
    Plane.HISTORY: "Small; appended to, without Java.",
    Plane.DATA: "Grows with the changes; rows by Arrow or Spark are appended, commits without Java.",
}


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            HEAD,
            *(_section(table) for table in ALL),
            _conflict_table(),
            *_tracking(),
            *_change_data_capture(),
            *_transactional(),
        ]
    )


def _section(table: SystemTable) -> str:
    """Return one table's heading, purpose and columns."""
    return f"## {table.name}\n\n{PURPOSE[table.name]} {WRITER[table.plane]}\n\n{_columns(table.columns)}"


def _conflict_table() -> str:
    name = conflicts_info.conflict_table_name("<publication>", "<article>")
    purpose = "One for each article: the losing rows, as they were. The article's own columns, then these."
    return f"## {name}\n\n{purpose} {WRITER[Plane.DATA]}\n\n{_columns(conflicts_info.CONFLICT_COLUMNS)}"


def _tracking() -> list[str]:
    head = (
        f"## Compact change tracking\n\nThe tables of [change tracking](compact.md), in the folder `{tracking.FOLDER}` "
        "below the root. Numbers in binary columns have 8 bytes, the highest first.\n"
    )
    parts = [
        f"### {table.name}\n\n{TRACKING[table.name]} {WRITER[table.plane]}\n\n{_columns(table.columns)}"
        for table in tracking.ALL
    ]
    return [head, *parts]


def _change_data_capture() -> list[str]:
    head = (
        f"## Change Data Capture\n\nThe log reader's tables lie in the folder `{logreader.FOLDER}` below the root, "
        f"those of Change Data Capture in `{cdc.FOLDER}`. LSNs are binary and have 10 bytes.\n"
    )
    parts = [
        f"### {table.name}\n\n{(LOG_READER | CDC)[table.name]} {WRITER[table.plane]}\n\n{_columns(table.columns)}"
        for table in (*logreader.ALL, *cdc.ALL)
    ]
    purpose = "One for each capture instance: its rows. The captured columns stand before the last one."
    change_table = f"### <instance>_CT\n\n{purpose} {WRITER[Plane.DATA]}\n\n"
    return [head, *parts, change_table + _columns((*cdc.LEADING, *cdc.TRAILING))]


def _transactional() -> list[str]:
    head = (
        f"## Transactional replication\n\nThe tables of [transactional publications](transactional.md), in the folder "
        f"`{transactional.FOLDER}` below the publisher's root; the last one lies below each subscriber's.\n"
    )
    parts = [
        f"### {table.name}\n\n{TRANSACTIONAL[table.name]} {WRITER[table.plane]}\n\n{_columns(table.columns)}"
        for table in transactional.ALL
    ]
    return [head, *parts]


def _columns(columns: Iterable[Column]) -> str:
    rows = "".join(f"| `{column.name}` | `{column.type}` | {column.doc} |\n" for column in columns)
    return f"| column | type | meaning |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not what the code says: run python scripts/system_tables_reference.py")

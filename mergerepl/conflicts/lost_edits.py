"""The edits of subscribers that lost to the publisher of a transactional publication, in the form of logged conflicts.

They are in the conflict tables of `_transactional`, one for each shape of an article: a row has both rows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from mergerepl.conflicts.listing import conditions_of_rows
from mergerepl.delta.sql_text import text_literal, text_literals, time_before, timestamp_literal
from mergerepl.delta.tables import Row, count_rows, delete_rows, is_delta_table, read_rows
from mergerepl.model.conflict_filter import ConflictFilter, ConflictStatus
from mergerepl.model.conflicts import ConflictCount, ConflictRecord, PurgeResult
from mergerepl.model.publication import DEFAULT_CONFLICT_RETENTION
from mergerepl.replica.control import ControlPlane
from mergerepl.store.lease import DISTRIBUTION_LOCK, lease
from mergerepl.store.location import Location
from mergerepl.store.storage import folders_in, has_system_tables, is_folder
from mergerepl.systables.transactional import (
    CONFLICTS,
    CONFLICTS_PREFIX,
    FOLDER,
    NEWEST_TRANSACTION,
    PUBLICATIONS,
    TRANSACTIONS,
    WRITE_WAIT_S,
)

PUBLISHER_WINS = "publisher wins"
"""The resolver of these conflicts: the conflict policy of the publication."""

_ROWS = ("names", "old", "losing", "winning")
_ABOUT = tuple(each.name for each in CONFLICTS.columns if each.name not in _ROWS)


def has_merge(root: Location) -> bool:
    """Whether merge replication may have logged conflicts in a folder: it is no mere transactional publisher."""
    return has_system_tables(root) or not is_folder(root / FOLDER)


def tables_of(root: Location) -> list[Location]:
    """Return the conflict tables of a publisher."""
    folder = root / FOLDER
    found = (folder / name for name in folders_in(folder) if name.startswith(CONFLICTS_PREFIX))
    return sorted((each for each in found if is_delta_table(each)), key=str)


def read_lost_edits(
    root: Location, chosen: ConflictFilter, *, limit: int | None = None, with_rows: bool = False
) -> list[ConflictRecord]:
    """Return the chosen conflicts, newest first. Without Spark."""
    where = _conditions(chosen)
    if where is None:
        return []
    order = "order by created desc, conflict_id" + ("" if limit is None else f" limit {limit}")
    names = (*_ABOUT, *_ROWS) if with_rows else _ABOUT
    rows = [
        row for table in tables_of(root) for row in read_rows(table, names, where=where, order_limit=order)
    ]
    rows.sort(key=lambda row: row["conflict_id"])
    rows.sort(key=lambda row: row["created"], reverse=True)
    return [_record(root, row) for row in rows[:limit]]


def count_lost_edits(root: Location, chosen: ConflictFilter) -> int:
    """Count the chosen conflicts. Without Spark."""
    where = _conditions(chosen)
    return 0 if where is None else sum(count_rows(table, where=where) for table in tables_of(root))


def summary_of_lost_edits(root: Location, chosen: ConflictFilter) -> Iterator[ConflictCount]:
    """Count the chosen conflicts by article, type and day."""
    counts: Counter[tuple[str, int, str]] = Counter()
    columns: defaultdict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    for each in read_lost_edits(root, chosen):
        group = (each.article, each.conflict_type, each.created.astimezone(UTC).date().isoformat())
        counts[group] += 1
        columns[group].update(each.conflict_columns)
    for article, kind, day in sorted(counts, key=lambda group: group[2], reverse=True):
        group = (article, kind, day)
        yield ConflictCount(article, kind, PUBLISHER_WINS, day, counts[group], dict(columns[group]))


def purge_lost_edits(
    root: Location, chosen: ConflictFilter, *, older_than: timedelta | None = None, dry_run: bool = False
) -> PurgeResult:
    """Remove the chosen conflicts older than a time; by default than the retention of their publication. Without Spark.

    A retention counts from the newest transaction, not from the time of this machine. Conflicts of a publication that
    ended are kept for the default.

    Raises: LeaseError if another process holds the distribution store for a minute.
    """
    where, tables = _conditions(chosen), tables_of(root)
    if where is None or not tables:
        return PurgeResult(0, 0, 0, dry_run=dry_run)
    control = ControlPlane(root / FOLDER)
    newest = control.rows(TRANSACTIONS, order_limit=NEWEST_TRANSACTION)
    conditions = []
    if older_than is not None:
        conditions.append(f"created < {timestamp_literal(time_before(datetime.now(UTC), older_than))}")
    elif newest:
        now, days = newest[0].commit_time, dict[str, int]()
        for row in control.rows(PUBLICATIONS):
            days[row.publication] = row.conflict_retention
        known = [(f"publication = {text_literal(name)}", n) for name, n in days.items()]
        rest = f"publication not in ({text_literals(days)})" if days else "true"
        conditions += [
            f"{of} and created < {timestamp_literal(time_before(now, timedelta(days=n)))}"
            for of, n in [*known, (rest, DEFAULT_CONFLICT_RETENTION)]
            if n
        ]
    if not conditions:
        return PurgeResult(0, 0, 0, dry_run=dry_run)
    where += f" and ({' or '.join(f'({each})' for each in conditions)})"
    removed = 0
    for table in tables:
        count = count_rows(table, where=where)
        if count and not dry_run:
            with lease(root, purpose="write to _transactional", wait_s=WRITE_WAIT_S, file=DISTRIBUTION_LOCK):
                delete_rows(table, where=where)
        removed += count
    return PurgeResult(removed, removed, 0, dry_run=dry_run)


def _conditions(chosen: ConflictFilter) -> str | None:
    if chosen.status is ConflictStatus.SETTLED or chosen.resolver not in (None, PUBLISHER_WINS):
        return None
    found = ["true"]
    for name, value in (("publication", chosen.publication), ("article", chosen.article)):
        if value is not None:
            found.append(f"{name} = {text_literal(value)}")
    if chosen.ids:
        ids = (each.strip().lower() for each in chosen.ids)
        found.append(
            "(" + " or ".join(f"starts_with(conflict_id, {text_literal(each)})" for each in ids) + ")"
        )
    return " and ".join([*found, *conditions_of_rows(chosen, created="created")])


def _record(root: Location, row: Row) -> ConflictRecord:
    names: Sequence[str] = row.get("names") or ()

    def values(side: str) -> dict[str, object] | None:
        image = row.get(side)
        return None if image is None else {name: image[f"c{k}"] for k, name in enumerate(names, 1)}

    return ConflictRecord(
        row["conflict_id"],
        row["publication"],
        row["article"],
        "",
        dict(row["rowkey"]),
        row["conflict_type"],
        row["conflict_type"],
        row["reason_text"],
        row["subscriber"],
        str(root),
        row["created"],
        losing_row=values("losing"),
        winning_row=values("winning"),
        conflict_columns=tuple(row["columns"] or ()),
        resolver=PUBLISHER_WINS,
    )

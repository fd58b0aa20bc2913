"""What is reported to people with columns: each kind of result as a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from mergerepl.cli.report.table import Table
from mergerepl.model.results import (
    PendingSubscription,
    PhaseCounts,
    ReplicaStatus,
    RowInfo,
    SessionRecord,
    SessionResult,
)
from mergerepl.model.value_text import text_of
from mergerepl.model.words import changes, moment_text, short, value_text

CLASHES, DIFFERS, MADE = "*", "~", "+"
_STYLES = {CLASHES: "red", DIFFERS: "yellow", MADE: "green"}
COUNTS = (">inserts", ">updates", ">deletes", ">conflicts")


def articles(status: ReplicaStatus) -> Table:
    """Return what is known of each article's table."""
    table = Table(("article", "publication", "tracking", ">version", ">captured", ">not captured"))
    for each in status.articles:
        versions = each.version, each.captured_version, each.uncaptured_commits
        table.add(each.article, each.publication, each.tracking, *versions)
    return table


def subscriptions(status: ReplicaStatus) -> Table:
    """Return how far each subscription is."""
    head = ("subscription", "publication", "type", ">priority", "status", ">unsent", "last sync", "result")
    # Only where rows are filtered has a subscriber one.
    is_filtered = any(each.partition_id is not None for each in status.subscriptions)
    table = Table((*head[:3], *([">partition"] if is_filtered else []), *head[3:]))
    for each in status.subscriptions:
        table.add(
            short(each.subscriber),
            each.publication,
            each.subscriber_type,
            *([each.partition_id] if is_filtered else []),
            f"{each.priority:.2f}",
            each.status,
            each.unsent_generations,
            moment_text(each.last_sync_date) or "never",
            # Why it failed is among the problems.
            each.last_sync_status
            if each.last_sync_status == "failed"
            else each.last_sync_summary or each.last_sync_status,
        )
    return table


def waiting(subscriptions: Sequence[PendingSubscription]) -> Table:
    """Return what waits to travel; articles without such changes are left out."""
    names = ("subscription", "publication", "article", "direction")
    table = Table((*names, ">generations", ">changes", ">not captured"))
    for each in subscriptions:
        for article in each.articles:
            numbers = article.generations, article.changes, article.uncaptured_commits
            if any(numbers):
                table.add(
                    short(each.subscriber), each.publication, article.article, article.direction, *numbers
                )
    return table


def sessions(sessions: Sequence[SessionRecord]) -> Table:
    """Return past sessions, one on a line."""
    names = ("started", "subscription", "publication", "result")
    table = Table((*names, ">seconds", "uploaded", "downloaded", ">conflicts", "session"))
    for each in sessions:
        table.add(
            moment_text(each.start_time),
            short(each.subscriber),
            each.publication,
            each.runstatus,
            f"{each.duration_s:.1f}",
            changes(each.upload),
            changes(each.download),
            (each.upload + each.download).conflicts,
            each.session_id,
        )
    return table


def travelled(sessions: Iterable[SessionResult]) -> Table:
    """Return what travelled: by direction, and by article where there are several."""
    table = Table(("subscriber", "direction", "article", *COUNTS))
    for session in sessions:
        for direction in ("upload", "download"):
            total: PhaseCounts = getattr(session, direction)
            articles = [(each.article, getattr(each, direction)) for each in session.articles]
            moved = [(name, counts) for name, counts in articles if counts.total or counts.conflicts]
            for name, counts in moved or [("(all)", total)]:
                table.add(short(session.subscriber), direction, name, *_numbers(counts))
            if len(moved) > 1:
                table.add(short(session.subscriber), direction, "(all)", *_numbers(total))
    return table


def side_by_side(
    losing: Mapping[str, object] | None,
    winning: Mapping[str, object] | None,
    clashing: Collection[str] = (),
    made: Collection[str] = (),
) -> Table:
    """Return two rows column by column; a missing row was a delete. Where none is known to clash, all that differ do."""
    table = Table(("", "column", "losing row", "winning row"), styles=_STYLES)
    for column in [*(winning or {}), *(name for name in losing or {} if name not in (winning or {}))]:
        differs = losing is not None and winning is not None and _differs((losing, winning), column)
        is_clash = column in clashing if clashing else differs
        mark = MADE if column in made else CLASHES if is_clash else DIFFERS if differs else ""
        table.add(mark, column, _cell(losing, column), _cell(winning, column))
    if losing is None or winning is None:
        table.add("", "", "(deleted)" if losing is None else "", "(deleted)" if winning is None else "")
    return table


def alone(losing: Mapping[str, object] | None, title: str = "losing row") -> Table:
    """Return the losing row alone; a missing row was a delete."""
    table = Table(("column", title))
    for column in losing or {}:
        table.add(column, _cell(losing, column))
    if losing is None:
        table.add("", "(deleted)")
    return table


def row_partitions(row: RowInfo) -> Table:
    """Return the partitions that a row is in, and those that it left."""
    table = Table((">partition", "HOST_NAME()", "SUSER_SNAME()", "the row", ">generation"))
    for each in row.partitions:
        what = "is in it" if each.reason is None else f"left it: {_LEFT.get(each.reason, each.reason)}"
        name = "everybody" if each.partition_id == -1 else each.partition_id
        table.add(name, each.host_name, each.suser_sname, what, each.generation)
    return table


_LEFT = {
    "deleted": "it was deleted",
    "own_columns": "its own columns changed",
    "parent": "a row that it follows changed",
}


def row_metadata(row: RowInfo) -> Table:
    """Return what each replica knows of the row."""
    table = Table(("replica", ">nickname", "source", ">generation", "lineage", "up to date"))
    for each in row.replicas:
        lineage = ", ".join(f"{nickname}:{version}" for nickname, version in sorted(each.lineage.items()))
        is_current = "outside" if each.outside else "yes" if each.current else "no"
        table.add(
            short(each.replica), each.nickname, each.source, each.generation, lineage or "{}", is_current
        )
    return table


def values_by_replica(row: RowInfo) -> Table:
    """Return the row's columns, one replica in each column; differing ones marked."""
    table = Table(("", "column", *(short(each.replica) for each in row.replicas)))
    columns = dict.fromkeys(column for each in row.replicas for column in each.row or {})
    for column in columns:
        rows = [each.row for each in row.replicas]
        mark = CLASHES if _differs(rows, column) else ""
        table.add(mark, column, *(_cell(each, column) for each in rows))
    return table


def _differs(rows: Iterable[Mapping[str, object] | None], column: str) -> bool:
    """Say whether rows have several values in a column, also where what is shown of them is the same."""
    return len({(row is None, text_of(row.get(column)) if row is not None else None) for row in rows}) > 1


def _cell(row: Mapping[str, object] | None, column: str) -> str:
    """Return one value. NULL, empty text and a missing row look different."""
    return "" if row is None else value_text(row.get(column))


def _numbers(counts: PhaseCounts) -> tuple[int, int, int, int]:
    return counts.inserts, counts.updates, counts.deletes, counts.conflicts

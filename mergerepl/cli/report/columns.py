"""The listings of all commands: the columns of a row by its class, and the fields that are shown alike everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mergerepl.cli.report.table import Part, Table, cell
from mergerepl.model.words import conflict_name, key_text, moment_text, short

Columns = Mapping[str, Callable[[Any], object]]
"""Heading to the function that computes the cell of a row. `>` sets a column flush right."""
_MIB = 1024**2
PARAMETERS = ("maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold", "schedule")
"""The parameters of jobs."""


def columns(stated: str, **computed: Callable[[Any], object]) -> Columns:
    """Declare the columns of a listing: `article, >captured=captured_version, last sync|never`.

    Args:
        stated: The headings, each with the field that it shows (`=`) if that has another name, and with what is shown in
            place of an empty cell (`|`).
        **computed: Fields that a function computes of the row.
    """
    found: dict[str, Callable[[Any], object]] = {}
    for each in stated.split(", "):
        shown, _, empty = each.partition("|")
        heading, _, field = shown.partition("=")
        field = field or heading.lstrip(">").replace(" ", "_")
        found[heading] = partial(_shown, computed.get(field) or partial(_field, field), empty)
    return found


def _field(name: str, row: Any) -> object:
    value = row[name] if isinstance(row, Mapping) else getattr(row, name)
    return _ALIKE[name](value) if name in _ALIKE and value is not None else value


def _shown(of_row: Callable[[Any], object], empty: str, row: Any) -> object:
    value = cell(of_row(row))
    return empty if value is None or value == "" else value


_ALIKE: Final[Mapping[str, Callable[[Any], object]]] = {
    "key": lambda key: key_text(key) if isinstance(key, Mapping) else key,
    "replica": short,
    "subscriber": short,
    "winner": short,
    "priority": "{:.2f}".format,
    "retention_used": "{:.0%}".format,
    "duration_s": "{:.1f}".format,
}
"""Fields that every listing shows in one form."""


def _left(reason: str | None) -> str:
    why = {
        "deleted": "it was deleted",
        "own_columns": "its own columns changed",
        "parent": "a row that it follows changed",
        "host_name": "the subscriber's host_name changed",
        "filter": "the filter of its article changed",
    }
    return "is in it" if reason is None else f"left it: {why.get(reason, reason)}"


def _parameters_of(job: Any) -> str:
    given = {name: getattr(job, name) for name in PARAMETERS}
    given["last run"] = moment_text(job.last_run) or None
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


COLUMNS: Final[Mapping[str, Columns]] = {
    # -- states of the products
    "ArticleStatus": columns(
        "article, publication, tracking, >version, >captured=captured_version, >not captured=uncaptured_commits"
    ),
    "SubscriptionStatus": columns(
        "subscription=subscriber, publication, >partition=partition_id, >priority, status, >to upload=upload|unknown, "
        ">to download=download|unknown, >retention used, last sync=last_sync_date|never, result, schema",
        status=lambda each: each.status if each.is_reachable else "out of reach",
        # The reason of a failure is a warning.
        result=lambda each: (
            each.last_sync_status
            if each.last_sync_status == "failed"
            else each.last_sync_summary or each.last_sync_status
        ),
        schema=lambda each: (
            "stopped"
            if each.schema_stop
            else [*each.schema_pending, *(f"skips {number}" for number in each.schema_skipped)]
        ),
    ),
    "ArticleState": columns(
        "article, publication, table, filter, insert=ins_cmd, update=upd_cmd, delete=del_cmd, >schema=schema_version"
    ),
    "DeliveryState": columns(
        "subscription=subscriber, publication, status, last transaction=xact_seqno, >transactions waiting, "
        ">commands waiting=download, >retention used, >unread commits=uncaptured_commits, "
        "known to be equal=is_known_to_be_equal, stopped since"
    ),
    "SourceStatus": columns(
        "table=source, status, >read=position, >head, >unread=unread_commits, "
        "VACUUM is safe until=vacuum_safe_until|any time, log_reuse_wait, instances=capture_instances"
    ),
    "TrackedTable": columns(
        "table=name, tracked, key, foreign commits=foreign, >enabled at CSN=enabled_csn",
        tracked=lambda each: [option.name.lower() for option in each.options if option.name],
        foreign=lambda each: each.foreign.value,
    ),
    "OpenTransaction": columns(">open BSN=bsn, state, since, owner"),
    "ConsumerState": columns("consumer=name, >LBSN=lbsn, >LCSN=lcsn, last window=last_time|never"),
    "ForeignCommit": columns("foreign commit to=table, >version, operation, by=writer"),
    # -- tasks of all products
    "ArticleCapture": columns(
        "article, >inserts, >updates, >deletes, versions",
        versions=lambda each: (
            f"{each.from_version_exclusive + 1} to {each.through_version_inclusive}"
            if each.from_version_exclusive < each.through_version_inclusive
            else "none new"
        ),
    ),
    "Pending": columns(
        "subscription=subscriber, type, publication, article, direction, >units, >changes, "
        ">not captured=uncaptured_commits, >seconds, schema"
    ),
    "PendingRow": columns(
        "subscription=subscriber, publication, article, direction, key, change, >generation, rowguid",
        change=lambda each: "delete" if each.is_delete else "row",
    ),
    "Captured": columns(
        "at=replica, type, >changes, >transactions, last LSN=last_lsn",
        transactions=lambda each: getattr(each.details, "transactions", None),
        last_lsn=lambda each: getattr(each.details, "last_lsn", None),
    ),
    "Run": columns(
        "time, at, type, kind, publication, result=status, >seconds=duration_s, >changes, id",
        at=lambda each: short(each.subscriber or each.replica),
    ),
    "Check": columns("status, check=name, found=detail"),
    "ArticleTuning": columns(
        "article, result=status, >files=files_before, >largest (MiB)=before, >files after, >largest after (MiB)=after",
        before=lambda each: f"{each.largest_bytes_before / _MIB:.1f}",
        files_after=lambda each: each.files_after if each.status == "tuned" else None,
        after=lambda each: f"{each.largest_bytes_after / _MIB:.1f}" if each.status == "tuned" else None,
    ),
    "Repair": columns(
        "article, subscriber, publication, >inserts, >updates, >deletes, >still differing=differing"
    ),
    "Reinit": columns(
        "article, subscriber, >inserts, >updates, >deletes, >not sent=unsent, >uploaded, >conflicts, >kept"
    ),
    "Removed": columns("type, at=replica, removed=kind, of=what, >count=rows"),
    # -- merge
    "PlanStep": columns("action, object, detail"),
    # Beside steps, which name whole folders.
    "PlannedSubscription": columns(
        "subscriber, outcome, why, unsent", subscriber=lambda each: each.subscriber
    ),
    "PartitionInfo": columns(
        ">id=partition_id, publication, HOST_NAME()=host_name, SUSER_SNAME()=suser_sname, subscribers, "
        ">added at generation"
    ),
    "SchemaChange": columns(">version, publication, table, changes, done, pending, skipped"),
    "SchemaAnswer": columns(
        "publication, subscriber, answer, by", by=lambda each: "; ".join(each.statements) or each.reason
    ),
    "RowReplicaInfo": columns(
        "replica, >nickname, source, >generation, lineage|{}, up to date=current",
        lineage=lambda each: ", ".join(f"{nick}:{n}" for nick, n in sorted(each.lineage.items())),
        current=lambda each: "outside" if each.outside else each.current,
    ),
    "RowPartition": columns(
        ">partition, HOST_NAME()=host_name, SUSER_SNAME()=suser_sname, the row=reason, >generation",
        partition=lambda each: (
            short(each.subscriber)
            if each.subscriber
            else "everybody"
            if each.partition_id == -1
            else each.partition_id
        ),
        reason=lambda each: _left(each.reason),
    ),
    # -- conflicts
    "ConflictRecord": columns(
        "id=conflict_id, article, key, >type=conflict_type, meaning=conflict_name, winner, time=created, status"
    ),
    "ConflictCount": columns(
        "day, table=article, type, resolver, >conflicts, columns",
        day=lambda each: str(each.day),
        type=lambda each: conflict_name(each.conflict_type),
    ),
    "PlannedWrite": columns("id=conflict_id, article, key, would be done=action, columns"),
    "NotResolved": columns("id=conflict_id, article, key, changed since=columns|the row"),
    "Resolver": columns(
        "name, column, tracking, decides, in SQL Server=original",
        column=lambda each: each.reads.value if each.reads else "",
        tracking=lambda each: "row, column" if each.by_row else "column",
        decides=lambda each: "updates and deletes" if each.decides_deletes else "updates",
    ),
    # -- cdc
    "CaptureInstance": columns(
        "instance=capture_instance, table, key=index_column_list, net changes=supports_net_changes, start_lsn, end_lsn, "
        "columns=captured_column_list",
        table=lambda each: f"{each.source_schema}.{each.source_table}",
    ),
    "CapturedColumn": columns(
        ">ordinal=column_ordinal, column=column_name, type=column_type, in the table=source_name|dropped"
    ),
    "DdlEntry": columns(
        "lsn=ddl_lsn, time=ddl_time, change table rewritten=required_column_update, statement=ddl_command"
    ),
    "Job": columns("job=job_type, asked to be=requested, parameters", parameters=_parameters_of),
}
"""The columns of rows by their class: none of another product is imported."""


def listing(rows: Iterable[Any], shown: Columns | None = None) -> Table:
    """Return rows (dataclasses or mappings) as a table: under the columns of their class, or under the given ones."""
    found = list(rows)
    shown = shown or (COLUMNS[type(found[0]).__name__] if found else {})
    table = Table(tuple(shown))
    for row in found:
        table.add(*(of_row(row) for of_row in shown.values()))
    return table


def listing_or(none: str, rows: Sequence[Any]) -> list[Part]:
    """Return rows as a table, mappings with one column for each key, or a sentence if there are no rows."""
    if not rows:
        return [none]
    if not isinstance(rows[0], Mapping):
        return [listing(rows)]
    table = Table(tuple(rows[0]))
    for row in rows:
        table.add(*map(cell, row.values()))
    return [table]


def sparse(rows: Sequence[Any]) -> Table:
    """Return rows as a table without empty columns; without the type if all rows have one."""
    table = listing(rows)
    kept = [
        number
        for number, heading in enumerate(table.headings)
        if len(found := {row[number] for row in table.rows}) > 1 or (found != {""} and heading != "type")
    ]
    lines = [tuple(row[number] for number in kept) for row in table.rows]
    return Table([table.headings[number] for number in kept], lines)

"""The reports of the tasks that all products have (rows of model/tasks.py), and of jobs: one form for all types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.table import Columns, Part, Table, cell, listing, printable
from mergerepl.model.listing import shown_fields
from mergerepl.model.tasks import CDC, MERGE, TRACKING, Captured, Pending, PendingRow, Run, Status
from mergerepl.model.words import counted, key_text, moment_text, short, typed

if TYPE_CHECKING:
    from mergerepl.model.cdc import AgentStatus, Job


def _share(part: float | None) -> str | None:
    return None if part is None else f"{part:.0%}"


_DETAILS: dict[str, Columns] = {
    "ArticleStatus": {
        "article": "article",
        "publication": "publication",
        "tracking": "tracking",
        ">version": "version",
        ">captured": "captured_version",
        ">not captured": "uncaptured_commits",
    },
    "SubscriptionStatus": {
        "subscription": lambda each: short(each.subscriber),
        "publication": "publication",
        ">partition": "partition_id",
        ">priority": lambda each: f"{each.priority:.2f}",
        "status": lambda each: each.status if each.is_reachable else "out of reach",
        ">to upload": lambda each: "unknown" if each.upload is None else each.upload,
        ">to download": lambda each: "unknown" if each.download is None else each.download,
        ">retention used": lambda each: _share(each.retention_used),
        "last sync": lambda each: each.last_sync_date or "never",
        # The reason of a failure is a warning.
        "result": lambda each: (
            each.last_sync_status
            if each.last_sync_status == "failed"
            else each.last_sync_summary or each.last_sync_status
        ),
        "schema": lambda each: (
            "stopped"
            if each.schema_stop
            else [*each.schema_pending, *(f"skips {number}" for number in each.schema_skipped)]
        ),
    },
    "ArticleState": {
        "article": "article",
        "publication": "publication",
        "table": "table",
        "filter": "filter",
        "insert": "ins_cmd",
        "update": "upd_cmd",
        "delete": "del_cmd",
        ">schema": "schema_version",
    },
    "DeliveryState": {
        "subscription": lambda each: short(each.subscriber),
        "publication": "publication",
        "status": "status",
        "last transaction": "xact_seqno",
        ">transactions waiting": "transactions_waiting",
        ">commands waiting": "download",
        ">retention used": lambda each: _share(each.retention_used),
        ">unread commits": "uncaptured_commits",
        "known to be equal": "is_known_to_be_equal",
        "stopped since": "stopped_since",
    },
    "SourceStatus": {
        "table": "source",
        "status": "status",
        ">read": "position",
        ">head": "head",
        ">unread": "unread_commits",
        "VACUUM is safe until": lambda each: each.vacuum_safe_until or "any time",
        "log_reuse_wait": "log_reuse_wait",
        "instances": "capture_instances",
    },
    "TrackedTable": {
        "table": "name",
        "tracked": lambda each: [option.name.lower() for option in each.options if option.name],
        "key": "key",
        "foreign commits": lambda each: each.foreign.value,
        ">enabled at CSN": "enabled_csn",
    },
    "OpenTransaction": {">open BSN": "bsn", "state": "state", "since": "since", "owner": "owner"},
    "ConsumerState": {
        "consumer": "name",
        ">LBSN": "lbsn",
        ">LCSN": "lcsn",
        "last window": lambda each: each.last_time or "never",
    },
    "ForeignCommit": {
        "foreign commit to": "table",
        ">version": "version",
        "operation": "operation",
        "by": "writer",
    },
    "ArticleCapture": {
        "article": "article",
        ">inserts": "inserts",
        ">updates": "updates",
        ">deletes": "deletes",
        "versions": lambda each: (
            f"{each.from_version_exclusive + 1} to {each.through_version_inclusive}"
            if each.from_version_exclusive < each.through_version_inclusive
            else "none new"
        ),
    },
}
"""The columns of the rows in a product's own state, by their class: none of another product is imported."""
_PENDING: Columns = {
    "subscription": lambda each: short(each.subscriber),
    "type": "type",
    "publication": "publication",
    "article": "article",
    "direction": "direction",
    ">units": "units",
    ">changes": "changes",
    ">not captured": "uncaptured_commits",
    ">seconds": "seconds",
    "schema": "schema",
}
_PENDING_ROWS: Columns = {
    "subscription": lambda each: short(each.subscriber),
    "publication": "publication",
    "article": "article",
    "direction": "direction",
    "key": lambda each: key_text(each.key),
    "change": lambda each: "delete" if each.is_delete else "row",
    ">generation": "generation",
    "rowguid": "rowguid",
}
_CAPTURED: Columns = {
    "at": lambda each: short(each.replica),
    "type": "type",
    ">changes": "changes",
    ">transactions": lambda each: getattr(each.details, "transactions", None),
    "last LSN": lambda each: getattr(each.details, "last_lsn", None),
}
_RUNS: Columns = {
    "time": "time",
    "at": lambda each: short(each.subscriber or each.replica),
    "type": "type",
    "kind": "kind",
    "publication": "publication",
    "result": "status",
    ">seconds": lambda each: f"{each.duration_s:.1f}",
    ">changes": "changes",
    "id": "id",
}
PARAMETERS = ("maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold", "schedule")


def _listed(rows: Sequence[Any], columns: Columns) -> Table:
    """Return rows as a table without empty columns; without the type if all rows have one."""
    table = listing(rows, columns)
    kept = [
        number
        for number, heading in enumerate(table.headings)
        if len(found := {row[number] for row in table.rows}) > 1 or (found != {""} and heading != "type")
    ]
    lines = [tuple(row[number] for number in kept) for row in table.rows]
    return Table([table.headings[number] for number in kept], lines)


def _tables(details: Any) -> Iterator[Part]:
    """Yield a table for each field of a product's state that has rows."""
    for rows in shown_fields(details).values():
        columns = _DETAILS.get(type(rows[0]).__name__) if isinstance(rows, tuple) and rows else None
        if columns is not None:
            yield _listed(rows, columns)


def status(found: Sequence[Status], *, check: bool = False) -> list[Part]:
    """Report each product: what it is, the rows of its state, what to do next; then, or for a check alone, the warnings."""
    parts = [] if check else [part for each in found for part in _state(each)]
    # A paused table is met by both products that read it.
    warnings = dict.fromkeys(warning for each in found for warning in each.warnings)
    parts += [each.line if check else each.text_of_level for each in warnings]
    return parts or ["All is well."]


def _state(found: Status) -> Iterator[Part]:
    if found.details is None:
        yield f"{found.replica} ({found.type}): its state cannot be read"
        return
    facts = ", ".join(
        f"{name.replace('_', ' ')} {printable(cell(value))}"
        for name, value in shown_fields(found.details).items()
        if isinstance(value, str | int | bytes | datetime)
        and not isinstance(value, bool)
        and name != "epoch"
        and value != found.replica
    )
    yield f"{found.role} {found.replica} ({found.type}){f': {facts}' if facts else ''}"
    yield from _tables(found.details)
    at = f"-f {typed(found.replica)}"
    state = found.details
    if found.type == MERGE:
        yield from (f"Cost of {each.article}: {each.cost}" for each in state.articles if each.cost)
        if state.conflicts:
            logged = counted(state.conflicts, "conflict")
            yield f"{logged} logged. List them with `mergerepl conflicts list {at}`."
        for session in state.open_sessions:
            yield (
                f"Session {session} was interrupted: the next sync finishes it before anything else. If it fails "
                f"for good, `mergerepl abort {session} {at}` ends it."
            )
    elif found.type == CDC and state.has_plan:
        yield "A scan cycle was begun and not finished: the next scan goes on with it."
    elif found.type == TRACKING:
        for name, mark in sorted(state.purged_through.items()):
            yield f"{name}: purged; consumers below CSN {mark} must be initialised again."


def pending(found: Sequence[Pending]) -> list[Part]:
    """Report the pending changes by subscription, article and direction."""
    waiting = [each for each in found if each.changes or each.units or each.uncaptured_commits or each.schema]
    parts: list[Part] = [_listed(waiting, _PENDING)]
    if any(each.uncaptured_commits for each in waiting):
        parts.append(
            "`not captured` counts commits to the table that the next sync or `mergerepl capture` reads."
        )
    # Several subscriptions report the same table.
    parts += [f"Problem: {text}" for text in dict.fromkeys(each.problem for each in found if each.problem)]
    return parts if any(not each.is_empty for each in found) else ["Nothing is pending."]


def pending_rows(found: Sequence[PendingRow]) -> list[Part]:
    """Report the rows that wait."""
    return [_listed(found, _PENDING_ROWS)] if found else ["No captured row waits."]


def history(found: Sequence[Run], *, failed: bool, total: int) -> list[Part]:
    """Report runs, newest first, what each says, and how many there are in all."""
    if not found:
        return ["Nothing has failed." if failed else "Nothing has run yet."]
    said = (
        f"{moment_text(each.time)} {short(each.subscriber or each.replica)}: {each.text}"
        for each in found
        if each.text
    )
    return [_listed(found, _RUNS), *said, of_total(len(found), total, "run")]


def of_total(shown: int, total: int, noun: str) -> str:
    """Return the last line of a list with a limit."""
    if shown >= total:
        return f"{counted(total, noun)}."
    return f"{shown:,} of {counted(total, noun)}. See more with --limit."


def captured(found: Sequence[Captured]) -> list[Part]:
    """Report the changes that were recorded, and tables that are paused."""
    parts: list[Part] = [_listed(found, _CAPTURED)]
    parts += [part for each in found for part in _tables(each.details)]
    paused = [f"Paused: {table}: {why}" for each in found for table, why in each.paused.items()]
    failed = [f"{each.replica} ({each.type}) is not captured: {each.error}" for each in found if each.error]
    return [*parts, *dict.fromkeys(paused), *failed]


def _parameters_of(job: Job) -> str:
    given = {name: getattr(job, name) for name in PARAMETERS} | {
        "last run": moment_text(job.last_run) or None
    }
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


def jobs(found: Iterable[Job]) -> Table:
    """Return jobs as a table."""
    return listing(found, {"job": "job_type", "asked to be": "requested", "parameters": _parameters_of})


def jobs_of_root(who: AgentStatus, found: Sequence[Job]) -> list[Part]:
    """Return who runs the jobs of a root, and the jobs."""
    runs = (
        f"{who.root}: no agent runs. Start one with `mergerepl agent run -f {typed(who.root)}`."
        if who.pid is None
        else f"{who.root}: process {who.pid} on {who.host} runs the jobs, since {who.since}."
    )
    return [runs, jobs(found) if found else "There are no jobs."]

"""The reports of captured, tracked and transactional tables, and of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mergerepl.cli.report.table import Columns, Part, cell, listing, listing_or
from mergerepl.model.cdc import AgentStatus, CleanupResult, DatabaseStatus, Job, StatusWarning
from mergerepl.model.tracking import TrackingStatus
from mergerepl.model.words import moment_text, typed

_SOURCES: Columns = {
    "table": "source",
    "status": "status",
    ">read": "position",
    ">head": "head",
    ">unread": "unread_commits",
    "VACUUM is safe until": lambda each: each.vacuum_safe_until or "any time",
    "log_reuse_wait": "log_reuse_wait",
    "instances": "capture_instances",
}
SCANS: Columns = {
    ">session": "session_id",
    "began": "start_time",
    ">seconds": "duration",
    "last LSN": "end_lsn",
    ">transactions": "tran_count",
    ">rows": "command_count",
    ">latency": "latency",
    ">errors": "error_count",
}
SCAN_ERRORS: Columns = {
    "time": "entry_time",
    ">number": "error_number",
    ">severity": "error_severity",
    "message": "error_message",
}
_TRACKED: Columns = {
    "table": "name",
    "tracked": lambda each: [option.name.lower() for option in each.options if option.name],
    "key": "key",
    "foreign commits": lambda each: each.foreign.value,
    ">enabled at CSN": "enabled_csn",
}
_OPEN: Columns = {">open BSN": "bsn", "state": "state", "since": "since", "owner": "owner"}
_CONSUMERS: Columns = {
    "consumer": "name",
    ">LBSN": "lbsn",
    ">LCSN": "lcsn",
    "last window": lambda each: each.last_time or "never",
}
_FOREIGN: Columns = {
    "foreign commit to": "table",
    ">version": "version",
    "operation": "operation",
    "by": "writer",
}
COMMITTED: Columns = {
    ">CSN": "csn",
    ">BSN": "bsn",
    "committed": "commit_time",
    "changed rows": lambda each: dict(sorted(each.changes.items())) or "none",
    "context": "tracking_context",
    ">foreign version": "foreign_version",
}
_PARAMETERS = ["maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold", "schedule"]


def _parameters_of(job: Job) -> str:
    given = {name: getattr(job, name) for name in _PARAMETERS} | {
        "last run": moment_text(job.last_run) or None
    }
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


JOBS: Columns = {"job": "job_type", "asked to be": "requested", "parameters": _parameters_of}


def warning_lines(warnings: Sequence[StatusWarning]) -> list[str]:
    """Return warnings as lines for people."""
    return [f"{each.level.capitalize()}: {each.source}: {each.text}" for each in warnings]


def captured_tables(found: DatabaseStatus) -> list[Part]:
    """Return the sources with their positions, and the validity interval."""
    low, high = cell(found.min_lsn) or "none", cell(found.max_lsn) or "none"
    parts: list[Part] = [
        listing(found.sources, _SOURCES),
        f"LSNs: {low} to {high} ({moment_text(found.max_time) or 'no time'}).",
    ]
    if found.has_plan:
        parts.append("A scan cycle was begun and not finished: the next scan goes on with it.")
    return parts + [f"{each.source}: {each.reason}" for each in found.sources if each.reason]


def tracked_tables(found: TrackingStatus) -> list[Part]:
    """Return tables, open transactions, consumers, foreign commits, and the numbers."""
    return [
        listing(found.tables, _TRACKED),
        listing(found.open_transactions, _OPEN),
        listing(found.consumers, _CONSUMERS),
        listing(found.foreign_commits, _FOREIGN),
        *found.problems.values(),
        *(
            f"{name}: purged; consumers below CSN {mark} must be initialised again."
            for name, mark in sorted(found.purged_through.items())
        ),
        f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, last committed CSN {found.last_committed_csn}.",
    ]


def publisher(found: Mapping[str, Any]) -> list[Part]:
    """Return the state of a transactional publisher."""
    parts: list[Part] = []
    for each in found["publications"]:
        parts.append(f"Publication {each['publication']} at {found['root']} (transactional)")
        parts += [*listing_or("", each["articles"]), *listing_or("", each["subscriptions"])]
    return parts or [f"{found['root']} publishes nothing."]


def compared(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return the results of a validation or a repair: a table, and what is not compared as sentences."""
    shown = [
        {name: value for name, value in row.items() if name not in ("kinds", "not_compared", "error")}
        | {"keys": [f"{key} ({kind})" for key, kind in zip(row["keys"], row["kinds"], strict=True)]}
        for row in rows
    ]
    parts = listing_or("No subscriptions.", shown)
    for row in rows:
        at = f"{row['article']} at {row['subscriber']}"
        parts += [f"{at}: not compared: {each}." for each in row.get("not_compared", ())]
        parts += [f"{at}: {row['error']}"] if row.get("error") else []
    return parts


def jobs_of_root(who: AgentStatus, found: Sequence[Job]) -> list[Part]:
    """Return who runs the jobs of a root, and the jobs."""
    runs = (
        f"{who.root}: no agent runs. Start one with `mergerepl agent run -f {typed(who.root)}`."
        if who.pid is None
        else f"{who.root}: process {who.pid} on {who.host} runs the jobs, since {who.since}."
    )
    return [runs, listing(found, JOBS)] if found else [runs, "There are no jobs."]


def cleaned(done: CleanupResult) -> list[Part]:
    """Return the numbers of change rows that were removed, and what could not be cleaned up."""
    if done.low_water_mark is None:
        return ["Nothing is old enough."]
    removed = ", ".join(f"{name} {rows:,}" for name, rows in done.rows.items()) or "none"
    parts: list[Part] = [
        f"Change rows removed: {removed}. The low end is {cell(done.low_water_mark)} or higher."
    ]
    return [*parts, *(f"{name} could not be cleaned up: {why}" for name, why in done.failed.items())]

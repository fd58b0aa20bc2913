"""What `mergerepl cdc` shows to people: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mergerepl.cli.report.table import Table
from mergerepl.model.cdc import (
    AgentStatus,
    AppliedChanges,
    CapturedColumn,
    CaptureInstance,
    CleanupResult,
    DatabaseStatus,
    DdlEntry,
    Job,
    ScanError,
    ScanResult,
    ScanSession,
)
from mergerepl.model.words import counted, moment_text, typed, value_text


def lsn_text(lsn: bytes | None) -> str | None:
    """Return an LSN as people write it."""
    return None if lsn is None else f"0x{lsn.hex().upper()}"


def instances(found: Iterable[CaptureInstance]) -> Table:
    """Return the capture instances."""
    table = Table(("instance", "table", "key", "net changes", "start_lsn", "end_lsn", "columns"))
    for each in found:
        table.add(
            each.capture_instance,
            f"{each.source_schema}.{each.source_table}",
            ", ".join(each.index_column_list),
            "yes" if each.supports_net_changes else "no",
            lsn_text(each.start_lsn),
            lsn_text(each.end_lsn),
            ", ".join(each.captured_column_list),
        )
    return table


def columns(found: Iterable[CapturedColumn]) -> Table:
    """Return the captured columns of an instance."""
    table = Table((">ordinal", "column", "type", "in the table"))
    for each in found:
        table.add(each.column_ordinal, each.column_name, each.column_type, each.source_name or "dropped")
    return table


def ddl_history(found: Iterable[DdlEntry]) -> Table:
    """Return the history of a source's columns."""
    table = Table(("lsn", "time", "change table rewritten", "statement"))
    for each in found:
        rewritten = "yes" if each.required_column_update else "no"
        table.add(lsn_text(each.ddl_lsn), moment_text(each.ddl_time), rewritten, each.ddl_command)
    return table


def captured(result: ScanResult) -> list[Table | str]:
    """Return what a scan captured, and what it left out."""
    if not result.cycles:
        return ["Nothing is new."]
    rows, cycles = counted(result.rows, "row"), counted(result.cycles, "cycle")
    parts: list[Table | str] = [
        f"{counted(result.transactions, 'transaction')}, {rows} in {cycles}. "
        f"Highest LSN: {lsn_text(result.last_lsn) or 'as before'}."
    ]
    parts += [f"Paused: {reason}" for reason in result.paused.values()]
    return parts


def status(found: DatabaseStatus) -> list[Table | str]:
    """Return the sources with their positions, and the validity interval."""
    table = Table(
        (
            "table",
            "status",
            ">read",
            ">head",
            ">unread",
            "VACUUM is safe until",
            "log_reuse_wait",
            "instances",
        )
    )
    for each in found.sources:
        until = moment_text(each.vacuum_safe_until) or "any time"
        table.add(
            *(each.source, each.status, each.position, each.head, each.unread_commits, until),
            *(each.log_reuse_wait, ", ".join(each.capture_instances)),
        )
    parts: list[Table | str] = [table] if found.sources else []
    parts.append(
        f"LSNs: {lsn_text(found.min_lsn) or 'none'} to {lsn_text(found.max_lsn) or 'none'}"
        f" ({moment_text(found.max_time) or 'no time'})."
    )
    if found.has_plan:
        parts.append("A scan cycle was begun and not finished: the next scan goes on with it.")
    parts += [f"{each.source}: {each.reason}" for each in found.sources if each.reason]
    return parts


def errors(found: Sequence[ScanError]) -> list[Table | str]:
    """Return errors and notices, newest first."""
    if not found:
        return ["No errors."]
    table = Table(("time", ">number", ">severity", "message"))
    for each in found:
        table.add(*(moment_text(each.entry_time), each.error_number, each.error_severity, each.error_message))
    return [table]


def changes(
    rows: Sequence[Mapping[str, object]], names: Sequence[str], *, has_more: bool
) -> list[Table | str]:
    """Return changes: LSN, operation, mask where there is one, the captured columns."""
    if not rows:
        return ["No changes."]
    shown = [name for name in names if name != "__$seqval"]
    shown = [name for name in shown if name != "__$update_mask" or any(row[name] for row in rows)]
    table = Table([name.removeprefix("__$") for name in shown])
    for row in rows:
        table.add(*(value_text(row[name]) for name in shown))
    return [table, "There are more: see them with --limit."] if has_more else [table]


def applied(done: AppliedChanges) -> list[str]:
    """Return what `apply` did, and what keeps the target from the newest state."""
    if done.to_lsn is None:
        lines = [f"{done.target}: nothing is new."]
    elif done.is_snapshot:
        lines = [
            f"{done.target} is filled with {counted(done.upserted, 'row')} as of {lsn_text(done.to_lsn)}."
        ]
    else:
        lines = [
            f"{done.target}: {counted(done.upserted, 'row')} inserted or updated, {done.deleted:,} deleted, up to "
            f"{lsn_text(done.to_lsn)}."
        ]
    if done.foreign_commits:
        lines.append(
            f"Other writers changed rows of it since the last run ({counted(done.foreign_commits, 'commit')}): the rows of "
            "this run are right, others were not compared."
        )
    if done.paused is not None:
        lines.append(f"Its source is paused, and later changes are not captured: {done.paused}")
    elif done.unread_commits:
        lines.append(
            "Not captured yet: "
            f"{counted(done.unread_commits, 'commit')} of its source. Run `mergerepl cdc capture` or the agent."
        )
    return lines


def cleaned(done: CleanupResult) -> list[Table | str]:
    """Return what a cleanup removed, and what it could not clean."""
    if done.low_water_mark is None:
        return ["Nothing is old enough."]
    removed = ", ".join(f"{name} {rows:,}" for name, rows in done.rows.items()) or "none"
    parts: list[Table | str] = [
        f"Change rows removed: {removed}. The low end is {lsn_text(done.low_water_mark)} or higher."
    ]
    return [*parts, *(f"{name} could not be cleaned up: {why}" for name, why in done.failed.items())]


def sessions(found: Sequence[ScanSession]) -> list[Table | str]:
    """Return scan sessions, newest first."""
    if not found:
        return ["No scan has found anything yet."]
    table = Table(
        (">session", "began", ">seconds", "last LSN", ">transactions", ">rows", ">latency", ">errors")
    )
    for each in found:
        table.add(
            *(each.session_id, moment_text(each.start_time), each.duration, lsn_text(each.end_lsn)),
            *(each.tran_count, each.command_count, each.latency, each.error_count),
        )
    return [table]


def jobs(found: Sequence[Job]) -> Table:
    """Return jobs with their parameters."""
    table = Table(("job", "asked to be", "parameters"))
    for each in found:
        named = (
            "maxtrans",
            "maxscans",
            "continuous",
            "pollinginterval",
            "retention",
            "threshold",
            "schedule",
        )
        given = [(name, getattr(each, name)) for name in named]
        given.append(("last run", moment_text(each.last_run) or None))
        table.add(
            each.job_type,
            each.requested,
            ", ".join(f"{name} {value}" for name, value in given if value is not None),
        )
    return table


def agent(who: AgentStatus, found: Sequence[Job]) -> list[Table | str]:
    """Return who runs the jobs of a root, and the jobs."""
    runs = (
        f"{who.root}: no agent runs. Start one with `mergerepl agent run {typed(who.root)}`."
        if who.pid is None
        else f"{who.root}: process {who.pid} on {who.host} runs the jobs, since {who.since}."
    )
    return [runs, jobs(found)] if found else [runs, "There are no jobs."]

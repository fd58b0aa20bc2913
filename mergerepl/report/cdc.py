"""What `mergerepl cdc` shows to people: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mergerepl.model.cdc import (
    CapturedColumn,
    CaptureInstance,
    DatabaseStatus,
    DdlEntry,
    ScanError,
    ScanResult,
)
from mergerepl.report.table import Table
from mergerepl.report.words import counted, moment_text


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

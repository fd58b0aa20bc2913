"""What `mergerepl tracking` shows to people: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mergerepl.cli.report.table import Table
from mergerepl.model.tracking import CommittedTransaction, OpenTransaction, Purged, TrackingStatus
from mergerepl.model.words import counted, moment_text


def status(found: TrackingStatus) -> list[Table | str]:
    """Return tables, open transactions, consumers, foreign commits, and the numbers."""
    tables = Table(("table", "tracked", "key", "foreign commits", ">enabled at CSN"))
    for each in found.tables:
        tracked = ", ".join(option.name.lower() for option in each.options if option.name)
        tables.add(each.name, tracked, ", ".join(each.key), each.foreign.value, each.enabled_csn)
    parts: list[Table | str] = [tables]
    if found.open_transactions:
        parts.append(open_transactions(found.open_transactions))
    if found.consumers:
        consumers = Table(("consumer", ">LBSN", ">LCSN", "last window"))
        for one in found.consumers:
            consumers.add(one.name, one.lbsn, one.lcsn, moment_text(one.last_time) or "never")
        parts.append(consumers)
    if found.foreign_commits:
        foreign = Table(("foreign commit to", ">version", "operation", "by"))
        for commit in found.foreign_commits:
            foreign.add(commit.table, commit.version, commit.operation, commit.writer)
        parts.append(foreign)
    parts.extend(found.problems.values())
    for name, mark in sorted(found.purged_through.items()):
        parts.append(f"{name}: purged; consumers below CSN {mark} must be initialised again.")
    parts.append(
        f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, last committed CSN {found.last_committed_csn}."
    )
    return parts


def open_transactions(found: Iterable[OpenTransaction]) -> Table:
    """Return the transactions that have begun and not ended."""
    table = Table((">open BSN", "state", "since", "owner"))
    for each in found:
        table.add(each.bsn, each.state, moment_text(each.since), each.owner)
    return table


def committed(found: Iterable[CommittedTransaction]) -> Table:
    """Return committed transactions."""
    table = Table((">CSN", ">BSN", "committed", "changed rows", "context", ">foreign version"))
    for each in found:
        changes = ", ".join(f"{name} {count}" for name, count in sorted(each.changes.items()))
        table.add(
            each.csn,
            each.bsn,
            moment_text(each.commit_time),
            changes or "none",
            each.tracking_context,
            each.foreign_version,
        )
    return table


def window(id_: str, counts: Mapping[str, Mapping[str, int]], initial: Sequence[str]) -> list[Table | str]:
    """Return how many rows a window holds."""
    table = Table(("table", ">deletes", ">inserts", ">updates"))
    for name, each in counts.items():
        if name not in initial:
            table.add(name, each["deletes"], each["inserts"], each["updates"])
    parts: list[Table | str] = [table]
    parts += [f"{name}: the consumer has no copy yet; take all its rows." for name in initial]
    return [*parts, f"Window {id_}."]


def purged(done: Purged) -> str:
    """Return what a purge removed."""
    removed = "to be removed" if done.dry_run else "removed"
    kept = f"; {counted(done.held_back, 'row')} kept for consumers" if done.held_back else ""
    return f"{done.target}: {counted(done.removed, 'row')} {removed}{kept}."

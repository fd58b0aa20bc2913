"""What `mergerepl transactional` shows to people: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.table import Table

if TYPE_CHECKING:
    from mergerepl.model.transactional import DistributionResult, LogReaderResult


def listed(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows of the same keys as a table."""
    table = Table(tuple(rows[0]) if rows else ())
    for row in rows:
        table.add(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value


def compared_parts(rows: Sequence[Mapping[str, Any]], none: str) -> list[Table | str]:
    """Return the results of a validation or a repair: a table, and what is not compared as sentences."""
    if not rows:
        return [none]
    hidden = ("kinds", "not_compared", "error")
    shown = [
        {name: value for name, value in row.items() if name not in hidden}
        | {"keys": [f"{key} ({kind})" for key, kind in zip(row["keys"], row["kinds"], strict=True)]}
        for row in rows
    ]
    parts: list[Table | str] = [listed(shown)]
    for row in rows:
        at = f"{row['article']} at {row['subscriber']}"
        parts += [f"{at}: not compared: {each}." for each in row.get("not_compared", ())]
        parts += [f"{at}: {row['error']}"] if row.get("error") else []
    return parts


def read_parts(done: LogReaderResult) -> list[Table | str]:
    """Return what the log reader did."""
    paused = [f"{path}: {reason}" for path, reason in done.paused.items()]
    if not done.cycles:
        return ["Nothing new in the log.", *paused]
    return [
        f"{done.transactions} transactions were read, with {done.commands} commands; last LSN {done.last_lsn}.",
        *paused,
    ]


def distributed(done: Iterable[DistributionResult]) -> Table:
    """Return what the distribution agents did."""
    return listed(
        [
            {
                "subscriber": each.subscriber,
                "transactions": each.transactions,
                "commands": each.commands,
                "inserts": each.inserts,
                "updates": each.updates,
                "deletes": each.deletes,
                "skipped": each.skipped,
                "latency": "" if each.latency_s is None else f"{each.latency_s:.1f} s",
            }
            for each in done
        ]
    )


def status_parts(found: Mapping[str, Any]) -> list[Table | str]:
    """Return a publisher's state."""
    parts: list[Table | str] = []
    for each in found["publications"]:
        parts.append(f"Publication {each['publication']} at {found['root']} (transactional)")
        parts.append(listed(each["articles"]))
        parts.append(listed(each["subscriptions"]))
    return parts or [f"{found['root']} publishes nothing."]

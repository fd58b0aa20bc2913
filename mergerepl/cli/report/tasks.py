"""The reports of the tasks that all products have (rows of model/tasks.py), and of jobs: one form for all types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.columns import COLUMNS, listing_or, sparse
from mergerepl.cli.report.table import Part, cell, printable
from mergerepl.model.listing import shown_fields
from mergerepl.model.products import CDC, MERGE, TRACKING
from mergerepl.model.words import counted, moment_text, short, typed

if TYPE_CHECKING:
    from mergerepl.model.cdc import AgentStatus, Job
    from mergerepl.model.tasks import Captured, Pending, PendingRow, Run, Status


def _tables(details: Any) -> Iterator[Part]:
    """Yield a table for each field of a product's state that has rows."""
    for rows in shown_fields(details).values():
        if isinstance(rows, tuple) and rows and type(rows[0]).__name__ in COLUMNS:
            yield sparse(rows)


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
    parts: list[Part] = [sparse(waiting)]
    if any(each.uncaptured_commits for each in waiting):
        parts.append(
            "`not captured` counts commits to the table that the next sync or `mergerepl capture` reads."
        )
    # Several subscriptions report the same table.
    parts += [f"Problem: {text}" for text in dict.fromkeys(each.problem for each in found if each.problem)]
    return parts if any(not each.is_empty for each in found) else ["Nothing is pending."]


def pending_rows(found: Sequence[PendingRow]) -> list[Part]:
    """Report the rows that wait."""
    return [sparse(found)] if found else ["No captured row waits."]


def history(found: Sequence[Run], *, failed: bool, total: int) -> list[Part]:
    """Report runs, newest first, what each says, and how many there are in all."""
    if not found:
        return ["Nothing has failed." if failed else "Nothing has run yet."]
    said = (
        f"{moment_text(each.time)} {short(each.subscriber or each.replica)}: {each.text}"
        for each in found
        if each.text
    )
    return [sparse(found), *said, of_total(len(found), total, "run")]


def of_total(shown: int, total: int, noun: str) -> str:
    """Return the last line of a list with a limit."""
    if shown >= total:
        return f"{counted(total, noun)}."
    return f"{shown:,} of {counted(total, noun)}. See more with --limit."


def captured(found: Sequence[Captured]) -> list[Part]:
    """Report the changes that were recorded, and tables that are paused."""
    parts: list[Part] = [sparse(found)]
    parts += [part for each in found for part in _tables(each.details)]
    paused = [f"Paused: {table}: {why}" for each in found for table, why in each.paused.items()]
    failed = [f"{each.replica} ({each.type}) is not captured: {each.error}" for each in found if each.error]
    return [*parts, *dict.fromkeys(paused), *failed]


def jobs_of_root(who: AgentStatus, found: Sequence[Job]) -> list[Part]:
    """Return who runs the jobs of a root, and the jobs."""
    runs = (
        f"{who.root}: no agent runs. Start one with `mergerepl agent run -f {typed(who.root)}`."
        if who.pid is None
        else f"{who.root}: process {who.pid} on {who.host} runs the jobs, since {who.since}."
    )
    return [runs, *listing_or("There are no jobs.", found)]

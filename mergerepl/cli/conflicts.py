"""`mergerepl conflicts`: list and show conflicts, decide them again, and the resolvers that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.report import merge
from mergerepl.cli.report.columns import COLUMNS, columns, listing
from mergerepl.cli.report.table import Part, Report
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.words import counted, typed

if TYPE_CHECKING:
    from mergerepl.conflicts.selection import Conflicts
    from mergerepl.model.conflicts import ExportedFile, PurgeResult, ResolveResult, RetryResult
    from mergerepl.model.resolvers import Resolver

conflicts = group(
    "conflicts",
    """List conflicts, compare the rows, decide again, report.

    ID is a conflict's id, as `mergerepl conflicts list` shows it; its beginning will do. Times are UTC.

    Example:
      mergerepl conflicts list
    """,
    is_at=True,
)
_CHOICE = "--publication --table --conflict-type --from:time --to:time --column --resolver --status"


@conflicts.add(READS, f"Replica.conflicts.list {_CHOICE} [ID]... --count-by --limit", name="list")
def list_conflicts(run: Invocation, count_by: tuple[str, ...] | None, limit: int, **conditions: Any) -> None:
    """List conflicts; --count-by table counts them.

    Example:
      mergerepl conflicts list --table orders
      mergerepl conflicts list --status open --from 2026-11-01
      mergerepl conflicts list --count-by day,table
    """
    chosen: Conflicts = run.api("Replica.conflicts", conditions)
    if count_by:
        counts, shown = chosen.count_by(*count_by), COLUMNS["ConflictCount"]
        table = listing(counts, {name: shown[name] for name in (*count_by, ">conflicts", "columns")})
        parts: list[Part] = [table if counts else f"{typed(run.root)}: no conflicts."]
        run.report({"replica": run.root, "counts": counts}, *parts)
        return
    found = chosen.list(limit=limit)
    run.report(*merge.conflict_list(run.root, found, total=found.total))


@conflicts.add(READS, f"Replica.conflicts.get {_CHOICE} [ID]... --limit", name="show")
def show_conflicts(run: Invocation, limit: int, **conditions: Any) -> None:
    """Show losing and winning row side by side.

    Name conflicts, or say by options which are meant. `*` marks the columns in conflict, `~` others that differ.

    Example:
      mergerepl conflicts show 3f2a
      mergerepl conflicts show --table orders
    """
    chosen: Conflicts = run.api("Replica.conflicts", conditions)
    ids = chosen.chosen.ids
    if chosen.chosen == ConflictFilter():
        raise click.UsageError("Name a conflict's ID, or say which are meant, as by --table.")
    found = chosen.list(limit=limit, with_rows=True)
    if len(ids) == 1 and len(found) > 1:
        # The beginning of one id must not mean several: it names them.
        chosen.get(ids[0])
    run.report(*merge.conflict_rows(run.root, found, total=found.total))


def _choice(run: Invocation) -> dict[str, Any]:
    """Return what is decided, in place of the options that say it."""
    options = {name: run.given[name] for name in ("winner", "loser", "values", "nulls")}
    edits = [*options["values"], *((column, None) for column in options["nulls"])]
    if options["winner"] + options["loser"] + bool(edits) != 1:
        raise click.UsageError("Say one of --winner, --loser and --set (or --set-null).")
    if len(dict(edits)) < len(edits):
        raise click.UsageError("A column is set twice.")
    choice = "winner" if options["winner"] else "loser" if options["loser"] else dict(edits)
    return dict.fromkeys(options) | {"choice": choice}


@conflicts.add(
    WRITES,
    f"Replica.conflicts.resolve() {_CHOICE} [ID]... --winner --loser --set --set-null --all --whole-row --force --message",
    also=_choice,
)
def resolve(run: Invocation, result: ResolveResult) -> Report:
    """Decide again; the next syncs carry it everywhere.

    It is an ordinary change of this replica. A row that was changed since its conflict is left alone, and named; the exit
    code is 1 then. If a table would refuse one of the rows, none is written.

    Example:
      mergerepl conflicts resolve 3f2a --loser
      mergerepl conflicts resolve 3f2a --set quantity=12
    """
    parts: list[Part] = [listing(result.planned)]
    if result.planned and (more := result.written - len(result.planned)):
        parts.append(f"{counted(more, 'more row')} not shown.")
    if result.changed_since:
        parts += [
            listing(result.changed_since),
            "These were left alone: their rows were changed since. Look at them; --force writes over.",
        ]
    settled, written = counted(result.settled, "conflict"), counted(result.written, "row")
    if run.dry_run:
        parts.append(f"{settled} would be settled, {written} written. Nothing was changed (--dry-run).")
    else:
        end = " The next syncs bring them everywhere." if result.written else ""
        parts.append(f"{settled} settled, {written} written.{end}")
    return result, *parts


@conflicts.add(
    WRITES, "Replica.conflicts.retry() --publication --table", would="Refused changes would be sent again."
)
def retry(run: Invocation, done: RetryResult) -> Report:
    """Send again what a table refused.

    The next syncs do so by themselves when the row or the table's rules change. Meant are the changes that wait at this
    replica, and those that wait for it at the replicas in reach.

    Example:
      mergerepl conflicts retry --table orders
    """
    lines = [
        f"{counted(count, 'refused change')} at {typed(root)}: sent again with the next sync."
        for root, count in done.waiting_at.items()
    ]
    return done, *(lines or [f"{typed(run.root)}: no refused change waits."])


def _dropped(result: PurgeResult) -> str:
    return f"{counted(result.conflicts, 'conflict')}, {counted(result.rows, 'losing row')}"


@conflicts.add(
    DESTROYS,
    f"Replica.conflicts.drop() {_CHOICE} [ID]... --older-than",
    hidden=True,
    asks=lambda run, planned: f"Remove {_dropped(planned)} at {run.root}?" if planned.conflicts else "",
)
def drop(run: Invocation, done: PurgeResult) -> Report:
    """Remove conflicts, with their losing rows.

    Without an ID and --older-than: those past the file's `conflict_retention`.

    Example:
      mergerepl conflicts drop --older-than 30d
    """
    return done, f"{_dropped(done)} {'would be removed (--dry-run)' if run.dry_run else 'removed'}."


def _to_stream(run: Invocation) -> dict[str, Any]:
    if run.given["output"] != "-":
        return {}
    if run.as_json:
        raise click.UsageError("Standard output cannot have the object of --json and the result of -o -.")
    return {"output": run.output.out}


@conflicts.add(READS, f"Replica.conflicts.export() {_CHOICE} [ID]... --output! --format", also=_to_stream)
def export(run: Invocation, found: Sequence[ExportedFile]) -> Report:
    """Write conflicts with their rows as CSV, JSON or Parquet.

    A file for each article in the folder that --output names, or all to standard output (-o -; no Parquet, and CSV of
    one --table only). JSON has one row a line.

    Example:
      mergerepl conflicts export -o lost --format csv
      mergerepl conflicts export -o - --format json
    """
    files = {each.file: each.conflicts for each in found}
    lines = [f"{file}: {counted(count, 'conflict')}" for file, count in files.items()]
    return () if _to_stream(run) else ({"files": files}, *(lines or ["No conflicts to export."]))


@conflicts.add(READS, f"Replica.conflicts.report() {_CHOICE} [ID]... --output! --limit=2000", also=_to_stream)
def report(run: Invocation, count: int) -> Report:
    """Write one HTML page.

    It has the newest conflicts to look through, with what differs highlighted.

    Example:
      mergerepl conflicts report -o conflicts.html
    """
    file = run.given["output"]
    shown = {"file": file, "conflicts": count}, f"{file}: {counted(count, 'conflict')}."
    return () if _to_stream(run) else shown


@conflicts.add(READS, "resolvers()", hidden=True, is_at=False)
def resolvers(run: Invocation, found: Sequence[Resolver]) -> Report:
    """List the resolvers that a file may name.

    And the functions that this machine's agent has for the resolver `custom`.

    Example:
      mergerepl conflicts resolvers
    """
    own = [each for each in found if each.function]
    built_in = listing(each for each in found if each.function is None)
    return {"resolvers": found}, built_in, listing(own, columns("function=name, is=function"))

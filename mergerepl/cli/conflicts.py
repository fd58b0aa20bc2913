"""`mergerepl conflicts`: list and show conflicts, decide them again, and the resolvers that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, Effect, Invocation, group
from mergerepl.cli.options import option
from mergerepl.cli.report import merge
from mergerepl.cli.report.columns import COLUMNS, columns, listing
from mergerepl.cli.report.table import Part
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.conflicts import ConflictRecord, PurgeResult
from mergerepl.model.words import counted, typed

if TYPE_CHECKING:
    from mergerepl.conflicts.selection import Conflicts

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
_NAMES = tuple(str(option(each).name) for each in _CHOICE.split())


def choosing(effect: Effect, usage: str, **terms: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a command of the group with the options that say which conflicts are meant: `chosen`."""

    def make(function: Callable[..., Any]) -> Any:
        def chosen(run: Invocation, ids: tuple[str, ...] = (), **given: Any) -> Any:
            terms = {name: given.pop(name) for name in _NAMES}
            return function(run, chosen=run.replica.conflicts.where(ids=ids, **terms), **given)

        chosen.__doc__, chosen.__name__ = function.__doc__, function.__name__
        return conflicts.add(effect, f"{_CHOICE} [ID]... {usage}", **terms)(chosen)

    return make


@choosing(READS, "Replica.conflicts.list --count-by --limit", name="list")
def list_conflicts(run: Invocation, chosen: Conflicts, count_by: tuple[str, ...] | None, limit: int) -> None:
    """List conflicts; --count-by table counts them.

    Example:
      mergerepl conflicts list --table orders
      mergerepl conflicts list --status open --from 2026-11-01
      mergerepl conflicts list --count-by day,table
    """
    root = str(chosen.root)
    if count_by:
        shown = COLUMNS["ConflictCount"]
        *fields, number, columns = shown
        if unknown := [name for name in count_by if name not in fields]:
            raise click.BadParameter(
                f"{unknown[0]!r} is none of {', '.join(fields)}.", param_hint="--count-by"
            )
        counts = chosen.count_by(*count_by)
        table = listing(counts, {name: shown[name] for name in (*count_by, number, columns)})
        parts: list[Part] = [table if counts else f"{typed(root)}: no conflicts."]
        run.report({"replica": root, "counts": counts}, *parts)
        return
    found = chosen.list(limit=limit)
    _require_found(chosen, found, limit)
    run.report(*merge.conflict_list(root, found, total=_total(chosen, len(found), limit)))


@choosing(READS, "Replica.conflicts.get --limit", name="show")
def show_conflicts(run: Invocation, chosen: Conflicts, limit: int) -> None:
    """Show losing and winning row side by side.

    Name conflicts, or say by options which are meant. `*` marks the columns in conflict, `~` others that differ.

    Example:
      mergerepl conflicts show 3f2a
      mergerepl conflicts show --table orders
    """
    ids = chosen.chosen.ids
    if chosen.chosen == ConflictFilter():
        raise click.UsageError("Name a conflict's ID, or say which are meant, as by --table.")
    found = chosen.list(limit=limit, with_rows=True)
    if len(ids) == 1 and len(found) > 1:
        # The beginning of one id must not mean several: it names them.
        chosen.get(ids[0])
    _require_found(chosen, found, limit)
    run.report(*merge.conflict_rows(str(chosen.root), found, total=_total(chosen, len(found), limit)))


def _require_found(chosen: Conflicts, found: Sequence[ConflictRecord], limit: int) -> None:
    """Check that the options leave out no conflict that is named by its id.

    Raises: ConfigurationError.
    """
    missing = chosen.chosen.ids_without([record.conflict_id for record in found])
    if not missing or len(found) >= limit:
        return
    from mergerepl.replicas import Replica

    other = Replica(chosen.root).conflicts.where(ids=missing[:1]).list(limit=1)[0]
    raise ConfigurationError(
        f"Conflict {missing[0]!r} at {chosen.root} is of article {other.article!r} of publication {other.publication!r}, "
        "and is not among what the options mean: leave them out.",
        conflict_id=missing[0],
    )


def _total(chosen: Conflicts, found: int, limit: int) -> int:
    """Return how many conflicts there are in all; fewer than the limit need no counting."""
    return found if found < limit else chosen.count()


@choosing(
    WRITES,
    "Replica.conflicts.resolve --winner --loser --set --set-null --all --whole-row --force --message",
    name="resolve",
)
def resolve(run: Invocation, chosen: Conflicts, winner: bool, loser: bool, is_all: bool, **terms: Any) -> int:
    """Decide again; the next syncs carry it everywhere.

    It is an ordinary change of this replica. A row that was changed since its conflict is left alone, and named; the exit
    code is 1 then. If a table would refuse one of the rows, none is written.

    Example:
      mergerepl conflicts resolve 3f2a --loser
      mergerepl conflicts resolve 3f2a --set quantity=12
    """
    edits = [*terms.pop("values"), *((column, None) for column in terms.pop("nulls"))]
    if winner + loser + bool(edits) != 1:
        raise click.UsageError("Say one of --winner, --loser and --set (or --set-null).")
    if bool(chosen.chosen.ids) == is_all:
        raise click.UsageError("Name the conflicts by ID, or say --all.")
    if len(dict(edits)) < len(edits):
        raise click.UsageError("A column is set twice.")
    with run.progress as progress:
        choice: Any = "winner" if winner else "loser" if loser else dict(edits)
        result = chosen.resolve(choice, dry_run=run.dry_run, progress=progress, **terms)
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
    run.report(result, *parts)
    return 1 if result.changed_since else 0


@conflicts.add(WRITES, "Replica.conflicts.retry --publication --table")
def retry(run: Invocation, publication: str | None, table: str | None) -> None:
    """Send again what a table refused.

    The next syncs do so by themselves when the row or the table's rules change. Meant are the changes that wait at this
    replica, and those that wait for it at the replicas in reach.

    Example:
      mergerepl conflicts retry --table orders
    """
    chosen = run.replica.conflicts.where(table, publication=publication)
    result = run.carry_out(chosen.retry, would="Refused changes would be sent again.")
    lines = [
        f"{counted(count, 'refused change')} at {typed(root)}: sent again with the next sync."
        for root, count in result.waiting_at.items()
    ]
    run.report(result, *lines or [f"{typed(str(chosen.root))}: no refused change waits."])


@choosing(DESTROYS, "Replica.conflicts.drop --older-than", name="drop", hidden=True)
def drop(run: Invocation, chosen: Conflicts, older_than: timedelta | None) -> None:
    """Remove conflicts, with their losing rows.

    Without an ID and --older-than: those past the file's `conflict_retention`.

    Example:
      mergerepl conflicts drop --older-than 30d
    """

    def removed(result: PurgeResult) -> str:
        return f"{counted(result.conflicts, 'conflict')}, {counted(result.rows, 'losing row')}"

    result = run.carry_out(
        partial(chosen.drop, older_than=older_than),
        asks=lambda planned: f"Remove {removed(planned)} at {chosen.root}?" if planned.conflicts else "",
    )
    end = "would be removed (--dry-run)" if run.dry_run else "removed"
    run.report(result, f"{removed(result)} {end}.")


def _standard_output(run: Invocation) -> TextIO:
    if run.as_json:
        raise click.UsageError("Standard output cannot have the object of --json and the result of -o -.")
    return run.output.out


@choosing(READS, "Replica.conflicts.export --output! --format", name="export")
def export(
    run: Invocation, chosen: Conflicts, output: str, format: Literal["csv", "json", "parquet"]
) -> None:
    """Write conflicts with their rows as CSV, JSON or Parquet.

    A file for each article in the folder that --output names, or all to standard output (-o -; no Parquet, and CSV of
    one --table only). JSON has one row a line.

    Example:
      mergerepl conflicts export -o lost --format csv
      mergerepl conflicts export -o - --format json
    """
    if output == "-":
        chosen.export(_standard_output(run), format=format)
        return
    files = {each.file: each.conflicts for each in chosen.export(output, format=format)}
    lines = [f"{file}: {counted(count, 'conflict')}" for file, count in files.items()]
    run.report({"files": files}, *lines or ["No conflicts to export."])


@choosing(READS, "Replica.conflicts.report --output! --limit=2000", name="report")
def report(run: Invocation, chosen: Conflicts, output: str, limit: int) -> None:
    """Write one HTML page.

    It has the newest conflicts to look through, with what differs highlighted.

    Example:
      mergerepl conflicts report -o conflicts.html
    """
    if output == "-":
        chosen.report(_standard_output(run), limit=limit)
        return
    count = chosen.report(output, limit=limit)
    run.report({"file": output, "conflicts": count}, f"{output}: {counted(count, 'conflict')}.")


@conflicts.add(READS, "resolvers", hidden=True, is_at=False)
def resolvers(run: Invocation) -> None:
    """List the resolvers that a file may name.

    And the functions that this machine's agent has for the resolver `custom`.

    Example:
      mergerepl conflicts resolvers
    """
    import mergerepl

    found = mergerepl.resolvers()
    built_in = listing(each for each in found if each.function is None)
    own = listing((each for each in found if each.function), columns("function=name, is=function"))
    run.report({"resolvers": found}, built_in, own)

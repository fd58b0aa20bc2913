"""`mergerepl conflicts`: list and show conflicts, decide them again, and the resolvers that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import click

from mergerepl.cli.help import Group
from mergerepl.cli.options import (
    key_part,
    limit_option,
    publication_option,
    replica_argument,
    replica_root,
    reporting,
    working,
)
from mergerepl.cli.report import merge
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, listing
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflicts import ConflictFilter, ConflictStatus
from mergerepl.model.progress import Progress
from mergerepl.model.resolvers import RESOLVERS
from mergerepl.model.results import ConflictRecord
from mergerepl.model.words import CONFLICT_NAMES, conflict_name, counted, key_text, typed

_AGE = re.compile(r"(\d{1,6})\s*(d|h|days?|hours?)")


def _age(_: click.Context, __: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no age: write it as 14d or 36h.")
    return timedelta(**{"days" if found[2].startswith("d") else "hours": int(found[1])})


def _in_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options that say which conflicts; the command gets `chosen`, a ConflictFilter."""

    @replica_argument
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @publication_option
    @click.option("--article", metavar="NAME", help="Only this article.")
    @click.option(
        "--type",
        "types",
        type=click.IntRange(min(CONFLICT_NAMES), max(CONFLICT_NAMES)),
        metavar="N",
        multiple=True,
        help=f"Only conflicts of this type ({min(CONFLICT_NAMES)} to {max(CONFLICT_NAMES)}).",
    )
    @click.option("--since", type=click.DateTime(), metavar="TIME", help="Only from this time on (UTC).")
    @click.option("--until", type=click.DateTime(), metavar="TIME", help="Only before this time (UTC).")
    @click.option("--column", metavar="NAME", help="Only with this column in conflict.")
    @click.option("--resolver", metavar="NAME", help="Only those that this resolver decided.")
    @click.option(
        "--status",
        type=click.Choice([each.value for each in ConflictStatus]),
        help="Only open or settled ones.",
    )
    @wraps(command)
    def chosen(
        *args: Any,
        ids: tuple[str, ...],
        publication: str | None,
        article: str | None,
        types: tuple[int, ...],
        since: datetime | None,
        until: datetime | None,
        column: str | None,
        resolver: str | None,
        status: str | None,
        **options: Any,
    ) -> Any:
        found = ConflictFilter(
            publication,
            article,
            ids,
            types,
            _in_utc(since),
            _in_utc(until),
            column,
            resolver,
            None if status is None else ConflictStatus(status),
        )
        return command(*args, chosen=found, **options)

    return chosen


_PLANNED: Columns = {
    "id": "conflict_id",
    "article": "article",
    "key": lambda each: key_text(each.key),
    "would be done": "action",
    "columns": "columns",
}
_CHANGED_SINCE: Columns = {
    "id": "conflict_id",
    "article": "article",
    "key": lambda each: key_text(each.key),
    "changed since": lambda each: each.columns or "the row",
}
_SUMMARY: Columns = {
    "day": lambda each: str(each.day),
    "article": "article",
    "meaning": lambda each: conflict_name(each.conflict_type),
    "resolver": "resolver",
    ">conflicts": "conflicts",
    "columns": "columns",
}
_RESOLVERS: Columns = {
    "name": "name",
    "column": lambda each: each.reads.value if each.reads else "",
    "tracking": lambda each: "row, column" if each.by_row else "column",
    "decides": lambda each: "updates and deletes" if each.decides_deletes else "updates",
    "in SQL Server": "original",
}

newest_option = limit_option("At most so many, newest first.")


@click.group(cls=Group)
def conflicts() -> None:
    """List conflicts, show the losing row beside the winning row, decide again, report.

    Example:
      mergerepl conflicts list ./hq
    """


@conflicts.command("list")
@choosing
@newest_option
@reporting
def list_conflicts(replica: str, chosen: ConflictFilter, limit: int, output: Output) -> None:
    """List the conflicts that a replica has logged.

    Example:
      mergerepl conflicts list ./hq --article orders
      mergerepl conflicts list ./hq --status open --since 2026-11-01
    """
    from mergerepl import api

    root = replica_root(replica)
    found = api.conflict_records(root, chosen=chosen, limit=limit)
    _require_found(root, replica, chosen, found, limit)
    output.reported(*merge.conflict_list(root, found, total=_total(root, chosen, len(found), limit)))


@conflicts.command("show")
@choosing
@newest_option
@reporting
def show_conflicts(replica: str, chosen: ConflictFilter, limit: int, output: Output) -> None:
    """Show conflicts, column by column.

    Give an ID, as `mergerepl conflicts list` shows it (its beginning will do), or say by options which are meant. `*` marks
    the columns in conflict, `~` others that differ.

    Example:
      mergerepl conflicts show ./hq 3f2a
      mergerepl conflicts show ./hq --article orders
    """
    if chosen == ConflictFilter():
        raise click.UsageError("Name a conflict's ID, or say which are meant, as by --article.")
    from mergerepl import api

    root = replica_root(replica)
    # The beginning of one id must not mean several.
    one = chosen.ids[0] if len(chosen.ids) == 1 else None
    found = api.conflict_records(root, chosen=chosen, conflict_id=one, limit=limit, with_rows=True)
    _require_found(root, replica, chosen, found, limit)
    output.reported(*merge.conflict_rows(root, found, total=_total(root, chosen, len(found), limit)))


def _require_found(
    root: str, replica: str, chosen: ConflictFilter, found: Sequence[ConflictRecord], limit: int
) -> None:
    """Check that the options leave out no conflict that is named by its id.

    Raises: ConfigurationError.
    """
    missing = chosen.ids_without([record.conflict_id for record in found])
    if not missing or len(found) >= limit:
        return
    from mergerepl import api

    other = api.conflict_records(root, chosen=ConflictFilter(ids=(missing[0],)), limit=1)[0]
    raise ConfigurationError(
        f"Conflict {missing[0]!r} at {replica} is of article {other.article!r} of publication {other.publication!r}, and "
        "is not among what the options mean: leave them out.",
        conflict_id=missing[0],
    )


def _total(root: str, chosen: ConflictFilter, found: int, limit: int) -> int:
    """Return how many conflicts there are in all; fewer than the limit need no counting."""
    from mergerepl import api

    return found if found < limit else api.conflict_count(root, chosen=chosen)


@conflicts.command()
@choosing
@reporting
def summary(replica: str, chosen: ConflictFilter, output: Output) -> None:
    """Count conflicts by day, article, type and resolver.

    Example:
      mergerepl conflicts summary ./hq --article orders
    """
    from mergerepl import api

    root = replica_root(replica)
    found = api.conflict_summary(root, chosen)
    parts: list[Part] = [listing(found, _SUMMARY) if found else f"{typed(root)}: no conflicts."]
    output.reported({"replica": root, "counts": [asdict(each) for each in found]}, parts)


@conflicts.command()
@choosing
@click.option("--winner", is_flag=True, help="The outcome stands: settle the conflict and write nothing.")
@click.option(
    "--loser", is_flag=True, help="Write what lost: the row, the columns in conflict, or the delete."
)
@click.option(
    "--set", "values", type=key_part, metavar="COLUMN=VALUE", multiple=True, help="Write this value instead."
)
@click.option("--set-null", "nulls", metavar="COLUMN", multiple=True, help="Write NULL instead.")
@click.option("--all", "is_all", is_flag=True, help="All that the options mean; without it name IDs.")
@click.option("--whole-row", is_flag=True, help="Of a loser by columns write the whole row.")
@click.option("--force", is_flag=True, help="Write rows that were changed since, too.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--message", metavar="TEXT", default="", help="Why, for the record.")
@working
@click.pass_context
def resolve(
    context: click.Context,
    replica: str,
    chosen: ConflictFilter,
    winner: bool,
    loser: bool,
    values: tuple[tuple[str, str], ...],
    nulls: tuple[str, ...],
    is_all: bool,
    whole_row: bool,
    force: bool,
    dry_run: bool,
    message: str,
    output: Output,
    progress: Progress,
) -> None:
    """Decide conflicts again: an ordinary change of this replica, which the next syncs bring everywhere.

    A row that was changed since its conflict is left alone, and named; the exit code is 1 then. If a table would refuse one
    of the rows, none is written.

    Example:
      mergerepl conflicts resolve ./hq 3f2a --loser
      mergerepl conflicts resolve ./hq 3f2a --set quantity=12
    """
    edits: dict[str, str | None] = {**dict(values), **dict.fromkeys(nulls)}
    if winner + loser + bool(edits) != 1:
        raise click.UsageError("Say one of --winner, --loser and --set (or --set-null).")
    if bool(chosen.ids) == is_all:
        raise click.UsageError("Name the conflicts by ID, or say --all.")
    if len(edits) < len(values) + len(nulls):
        raise click.UsageError("A column is set twice.")
    from mergerepl import api

    root = replica_root(replica)
    with progress:
        result = api.resolve_conflicts(
            root,
            chosen,
            accept="winner" if winner else "loser" if loser else None,
            values=edits,
            whole_rows=whole_row,
            force=force,
            dry_run=dry_run,
            message=message,
            progress=progress,
        )
    parts: list[Part] = [listing(result.planned, _PLANNED)]
    if result.planned and (more := result.written - len(result.planned)):
        parts.append(f"{counted(more, 'more row')} not shown.")
    if result.changed_since:
        parts += [
            listing(result.changed_since, _CHANGED_SINCE),
            "These were left alone: their rows were changed since. Look at them; --force writes over.",
        ]
    settled, written = counted(result.settled, "conflict"), counted(result.written, "row")
    if dry_run:
        parts.append(f"{settled} would be settled, {written} written. Nothing was changed (--dry-run).")
    else:
        end = " The next syncs bring them everywhere." if result.written else ""
        parts.append(f"{settled} settled, {written} written.{end}")
    output.reported(asdict(result), parts)
    if result.changed_since:
        context.exit(1)


@conflicts.command()
@replica_argument
@publication_option
@click.option("--article", metavar="NAME", help="Only this article.")
@reporting
def retry(replica: str, publication: str | None, article: str | None, output: Output) -> None:
    """Let the next syncs send again what a table refused.

    They do so by themselves when the row or the table's rules change. Meant are the changes that wait at this replica, and
    those that wait for it at the replicas in reach.

    Example:
      mergerepl conflicts retry ./hq --article orders
    """
    from mergerepl import api

    result = api.retry_failed(replica_root(replica), publication=publication, article=article)
    lines = [
        f"{counted(count, 'refused change')} at {typed(root)}: sent again with the next sync."
        for root, count in result.waiting_at.items()
    ]
    output.reported(asdict(result), lines or [f"{typed(replica)}: no refused change waits."])


@conflicts.command()
@choosing
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help="Older than 14d or 36h; by default the file's `conflict_retention`.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@reporting
def purge(
    replica: str, chosen: ConflictFilter, older_than: timedelta | None, dry_run: bool, output: Output
) -> None:
    """Remove old conflicts, with their losing rows.

    Example:
      mergerepl conflicts purge ./hq --older-than 30d
    """
    from mergerepl import api

    result = api.purge_conflicts(replica_root(replica), chosen, older_than=older_than, dry_run=dry_run)
    removed = f"{counted(result.conflicts, 'conflict')}, {counted(result.rows, 'losing row')}"
    end = "would be removed (--dry-run)" if dry_run else "removed"
    output.reported(asdict(result), [f"{removed} {end}."])


@conflicts.command()
@choosing
@click.option(
    "--to", "folder", metavar="FOLDER", required=True, help="Where the files go, one for each article."
)
@click.option("--format", "form", type=click.Choice(["csv", "json"]), default="csv", show_default=True)
@reporting
def export(replica: str, chosen: ConflictFilter, folder: str, form: str, output: Output) -> None:
    """Write conflicts with their rows to files, as CSV or as JSON lines.

    Example:
      mergerepl conflicts export ./hq --to lost --format csv
    """
    from mergerepl import api

    files = api.export_conflicts(replica_root(replica), folder, chosen, form=form)
    lines = [f"{file}: {counted(count, 'conflict')}" for file, count in files.items()]
    output.reported({"files": files}, lines or ["No conflicts to export."])


@conflicts.command()
@choosing
@click.option("--to", "file", metavar="FILE.html", required=True, help="The page to write.")
@click.option(
    "--rows", type=click.IntRange(min=1), default=2000, show_default=True, help="At most so many, the newest."
)
@reporting
def report(replica: str, chosen: ConflictFilter, file: str, rows: int, output: Output) -> None:
    """Write conflicts as one page of HTML to look through, with what differs highlighted.

    Example:
      mergerepl conflicts report ./hq --to conflicts.html
    """
    from mergerepl import api

    count = api.conflict_report(replica_root(replica), file, chosen, rows=rows)
    output.reported({"file": file, "conflicts": count}, [f"{file}: {counted(count, 'conflict')}."])


@conflicts.command()
@reporting
def resolvers(output: Output) -> None:
    """List the resolvers that a file may name, and the agent's own functions.

    Example:
      mergerepl conflicts resolvers
    """
    facts = [asdict(each) for each in RESOLVERS.values()]
    from mergerepl.api import resolver_functions

    functions = resolver_functions()
    own = listing(sorted(functions.items()), {"function": lambda each: each[0], "is": lambda each: each[1]})
    value = {"resolvers": facts, "functions": functions}
    output.reported(value, [listing(RESOLVERS.values(), _RESOLVERS), own])

"""`mergerepl conflicts list` and `mergerepl conflicts show`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Group
from mergerepl.cli.options import publication_option, replica_argument, replica_root, reporting
from mergerepl.errors import ConfigurationError
from mergerepl.model.results import ConflictRecord
from mergerepl.report.output import Output

article_option = click.option("--article", metavar="NAME", help="Only this article.")
limit_option = click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="At most so many, newest first."
)


@click.group(cls=Group)
def conflicts() -> None:
    """List conflicts, and show the losing row beside the winning row.

    Example:
      mergerepl conflicts list ./hq
    """


@conflicts.command("list")
@replica_argument
@publication_option
@article_option
@limit_option
@reporting
def list_conflicts(
    replica: str, publication: str | None, article: str | None, limit: int | None, output: Output
) -> None:
    """List the conflicts that a replica has logged.

    Example:
      mergerepl conflicts list ./hq --article orders
    """
    from mergerepl import api

    root = replica_root(replica)
    output.conflict_list(
        root, api.conflict_records(root, publication=publication, article=article, limit=limit)
    )


@conflicts.command("show")
@replica_argument
@click.argument("conflict_id", metavar="[ID]", required=False)
@publication_option
@article_option
@limit_option
@reporting
def show_conflicts(
    replica: str,
    conflict_id: str | None,
    publication: str | None,
    article: str | None,
    limit: int | None,
    output: Output,
) -> None:
    """Show one conflict, or an article's, column by column.

    ID is the one that `mergerepl conflicts list` shows.

    Example:
      mergerepl conflicts show ./hq --article orders
    """
    if conflict_id is None and article is None:
        raise click.UsageError("Name a conflict's ID or an --article.")
    from mergerepl import api

    root = replica_root(replica)
    found = api.conflict_records(
        root, publication=publication, article=article, conflict_id=conflict_id, limit=limit
    )
    if conflict_id is not None and not found:
        raise ConfigurationError(
            f"There is no conflict {conflict_id!r} at {replica}: see `mergerepl conflicts list {replica}`.",
            conflict_id=conflict_id,
        )
    output.conflict_rows([whole for each in found for whole in _with_rows(root, each)])


def _with_rows(root: str, conflict: ConflictRecord) -> tuple[ConflictRecord, ...]:
    """Return a conflict with its rows, which a list leaves out."""
    from mergerepl import api

    if conflict.losing_row is not None or conflict.winning_row is not None:
        return (conflict,)
    return api.conflict_records(root, conflict_id=conflict.conflict_id) or (conflict,)

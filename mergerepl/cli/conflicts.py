"""`mergerepl conflicts`: `list` and `show`; what is done about conflicts is in `conflict_tools`."""

from __future__ import annotations

import click

from mergerepl.cli.conflict_tools import COMMANDS
from mergerepl.cli.help import Group
from mergerepl.cli.options import (
    limit_option,
    publication_option,
    replica_argument,
    replica_root,
    reporting,
)
from mergerepl.errors import ConfigurationError
from mergerepl.report.output import Output

article_option = click.option("--article", metavar="NAME", help="Only this article.")
newest_option = limit_option("At most so many, newest first.")


@click.group(cls=Group)
def conflicts() -> None:
    """List conflicts, show the losing row beside the winning row, decide again, report.

    Example:
      mergerepl conflicts list ./hq
    """


@conflicts.command("list")
@replica_argument
@publication_option
@article_option
@newest_option
@reporting
def list_conflicts(
    replica: str, publication: str | None, article: str | None, limit: int, output: Output
) -> None:
    """List the conflicts that a replica has logged.

    Example:
      mergerepl conflicts list ./hq --article orders
    """
    from mergerepl import api

    root = replica_root(replica)
    found = api.conflict_records(root, publication=publication, article=article, limit=limit)
    output.conflict_list(root, found, total=_total(root, publication, article, len(found), limit))


@conflicts.command("show")
@replica_argument
@click.argument("conflict_id", metavar="[ID]", required=False)
@publication_option
@article_option
@newest_option
@reporting
def show_conflicts(
    replica: str,
    conflict_id: str | None,
    publication: str | None,
    article: str | None,
    limit: int,
    output: Output,
) -> None:
    """Show one conflict, or an article's, column by column.

    Give an ID, as `mergerepl conflicts list` shows it (its beginning will do), or an --article. `*` marks the columns in
    conflict, `~` others that differ.

    Example:
      mergerepl conflicts show ./hq --article orders
    """
    if conflict_id is None and article is None:
        raise click.UsageError("Name a conflict's ID or an --article.")
    from mergerepl import api

    root = replica_root(replica)
    found = api.conflict_records(
        root,
        publication=publication,
        article=article,
        conflict_id=conflict_id,
        limit=limit,
        with_rows=True,
    )
    if conflict_id is not None and not found:
        raise ConfigurationError(
            _not_found(root, replica, conflict_id, publication, article), conflict_id=conflict_id
        )
    is_whole = conflict_id is not None
    total = len(found) if is_whole else _total(root, publication, article, len(found), limit)
    output.conflict_rows(root, found, total=total)


for _command in COMMANDS:
    conflicts.add_command(_command)


def _not_found(
    root: str, replica: str, conflict_id: str, publication: str | None, article: str | None
) -> str:
    """Say why there is no such conflict: another article or publication has it, or none has."""
    from mergerepl import api

    elsewhere = api.conflict_records(root, conflict_id=conflict_id) if publication or article else ()
    if elsewhere:
        found = elsewhere[0]
        return (
            f"Conflict {conflict_id!r} at {replica} is of article {found.article!r} of publication "
            f"{found.publication!r}, which is not what --article or --publication names: leave them out."
        )
    return (
        f"There is no conflict {conflict_id!r} at {replica}: see `mergerepl conflicts list {replica}`. Conflicts "
        "are logged at the publisher, unless `conflict_logging` in the file says otherwise."
    )


def _total(root: str, publication: str | None, article: str | None, found: int, limit: int) -> int:
    """Return how many conflicts there are in all; fewer than the limit need no counting."""
    from mergerepl import api

    if found < limit:
        return found
    return api.conflict_count(root, publication=publication, article=article)

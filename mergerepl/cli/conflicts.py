"""`mergerepl conflicts`: `list` and `show`; what is done about conflicts is in `conflict_tools`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mergerepl.cli.conflict_tools import COMMANDS, choosing
from mergerepl.cli.help import Group
from mergerepl.cli.options import limit_option, replica_root, reporting
from mergerepl.cli.report.output import Output
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflicts import ConflictFilter
from mergerepl.model.results import ConflictRecord

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
    output.conflict_list(root, found, total=_total(root, chosen, len(found), limit))


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
    output.conflict_rows(root, found, total=_total(root, chosen, len(found), limit))


for _command in COMMANDS:
    conflicts.add_command(_command)


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

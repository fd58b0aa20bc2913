"""`mergerepl row`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import key_part, publication_option, replica_argument, replica_root, reporting
from mergerepl.cli.report.output import Output


@click.command(cls=Command)
@replica_argument
@click.option("--article", metavar="NAME", required=True, help="The row's article.")
@click.option(
    "--key",
    type=key_part,
    metavar="COLUMN=VALUE",
    required=True,
    multiple=True,
    help="Its key; once for each column of it.",
)
@publication_option
@reporting
def row(
    replica: str, article: str, key: tuple[tuple[str, str], ...], publication: str | None, output: Output
) -> None:
    """Show one row's lineage, colv and values at every replica (as sp_showrowreplicainfo does).

    Example:
      mergerepl row ./hq --article orders --key order_id=7
    """
    if len(dict(key)) < len(key):
        raise click.UsageError("A key column is given twice.")
    from mergerepl import api

    output.row(api.row(replica_root(replica), article=article, key=dict(key), publication=publication))

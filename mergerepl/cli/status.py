"""`mergerepl status`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, reporting
from mergerepl.report.output import Output


@click.command(cls=Command)
@replica_argument
@reporting
def status(replica: str, output: Output) -> None:
    """Show what a replica holds and how far each subscription is; and what is wrong with tables that CDC captures.

    Example:
      mergerepl status ./hq
    """
    from mergerepl import api, cdc, config
    from mergerepl.errors import ConfigurationError

    if (target := config.transactional_target(replica)) is not None:
        from mergerepl import transactional
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.report.transactional import status_parts

        found, problems = transactional.status(target[0]), problems_at(target[0])
        parts = [*status_parts(found), *(f"Problem: {each}" for each in problems)]
        output.reported({**found, "problems": problems}, parts)
        return
    root = replica_root(replica)
    try:
        state = api.status(root)
    except ConfigurationError:
        if not cdc.is_cdc_enabled(root):
            raise
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.report import cdc as shown

        captured, problems = cdc.status(root), problems_at(root)
        parts = [*shown.status(captured), *(f"Problem: {each}" for each in problems)]
        output.reported({"cdc": captured, "problems": problems}, parts)
        return
    output.status(state)

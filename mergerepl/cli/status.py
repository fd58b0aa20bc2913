"""`mergerepl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, reporting
from mergerepl.cli.report.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mergerepl.model.cdc import StatusWarning


@click.command(cls=Command)
@replica_argument
@click.option(
    "--check",
    is_flag=True,
    help="Of a transactional publisher: warn of what waits, of paused tables and agents that stopped.",
)
@reporting
def status(replica: str, check: bool, output: Output) -> int:
    """Show what a replica holds and how far each subscription is; and what is wrong with tables that CDC captures.

    With --check the exit code is 0 if all is well, 1 for a warning (commits or commands that wait for more than 30 seconds,
    or a subscriber that is not there, not initialised or not known to be equal), 2 if it is critical (a paused table, an
    agent that stopped at a command, a subscriber that is inactive), 3 if it is not known.

    Example:
      mergerepl status ./hq
      mergerepl status feed.yml --check
    """
    from datetime import UTC, datetime

    from mergerepl import api, cdc
    from mergerepl.cli.checking import warning_lines
    from mergerepl.config import project_file as config
    from mergerepl.errors import ConfigurationError

    if (target := config.transactional_target(replica)) is not None:
        from mergerepl import transactional
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.cli.report.transactional import status_parts

        if check:
            return _checked(target[0], output)
        found, problems = transactional.status(target[0]), problems_at(target[0])
        warnings = transactional.warnings_of(target[0], datetime.now(UTC))
        parts = [*status_parts(found), *(f"Problem: {each}" for each in problems), *warning_lines(warnings)]
        output.reported({**found, "problems": problems, "warnings": warnings}, parts)
        return 0
    if check:
        raise click.UsageError(
            "--check is for transactional publications. For captured tables use `mergerepl cdc status ROOT --check`."
        )
    root = replica_root(replica)
    try:
        state = api.status(root)
    except ConfigurationError:
        if not cdc.is_cdc_enabled(root):
            raise
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.cli.report import cdc as shown

        captured, problems = cdc.status(root), problems_at(root)
        parts = [*shown.status(captured), *(f"Problem: {each}" for each in problems)]
        output.reported({"cdc": captured, "problems": problems}, parts)
        return 0
    output.status(state)
    return 0


def _checked(root: Path, output: Output) -> int:
    """Report what is wrong with a publisher, and with tables that are captured there, too; return the exit code."""
    from datetime import UTC, datetime

    from mergerepl import cdc, transactional
    from mergerepl.cli.checking import report_check

    def find() -> tuple[Mapping[str, Any], list[StatusWarning]]:
        now = datetime.now(UTC)
        found = transactional.warnings_of(root, now)
        if cdc.is_cdc_enabled(root):
            found += cdc.warnings_of(cdc.status(root), now)
        # A paused table is met by both.
        return transactional.status(root), list(dict.fromkeys(found))

    return report_check(find, output)

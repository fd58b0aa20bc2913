"""`mergerepl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mergerepl.cli.help import Command
from mergerepl.cli.main import FAILED
from mergerepl.cli.options import publication_roots, reporting
from mergerepl.cli.report.output import Output

if TYPE_CHECKING:
    from mergerepl.monitoring.doctor import Check


def _captured(root: str) -> list[Check]:
    """Return whether Change Data Capture of a folder keeps up; nothing where it is not enabled."""
    from datetime import UTC, datetime

    from mergerepl import cdc
    from mergerepl.errors import MergeReplError

    try:
        if not cdc.is_cdc_enabled(root):
            return []
    except MergeReplError:
        # The storage check says what is wrong with the folder.
        return []
    from mergerepl.monitoring.doctor import Check, Status

    see = f"See `mergerepl cdc status {root}`."
    try:
        warnings = cdc.warnings_of(cdc.status(root), datetime.now(UTC))
    except MergeReplError as error:
        return [Check(f"cdc {root}", Status.WARN, error.message, see)]
    found = [Check(f"cdc {root}", Status.WARN, f"{each.source}: {each.text}", see) for each in warnings]
    return found or [Check(f"cdc {root}", Status.OK, "captured tables are read in time")]


@click.command(cls=Command)
@click.argument("replicas", metavar="[FILE|REPLICA]...", nargs=-1)
@click.option("--engine", is_flag=True, help="Also start the Spark engine (about ten seconds).")
@click.option("--mend", is_flag=True, help="Write files again that other libraries read or remove wrongly.")
@reporting
def doctor(replicas: tuple[str, ...], engine: bool, mend: bool, output: Output) -> int:
    """Check Java, JARs, versions, storage, locks and the files of tables.

    FILE stands for its publisher and all its subscribers. Exit code 1 if something has to be mended. Changes nothing
    without --mend; with it, the rows of all tables stay as they are.

    Example:
      mergerepl doctor ./hq
    """
    from mergerepl.monitoring import doctor as examination

    roots = list(dict.fromkeys(root for each in replicas for root in publication_roots(each)))
    checks = examination.checks(roots, start_engine=engine, mend=mend)
    checks += [check for root in roots for check in _captured(root)]
    output.checked(checks)
    return FAILED if any(check.status == "fail" for check in checks) else 0

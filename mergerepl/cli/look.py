"""What looks at replicas: `mergerepl status`, `pending`, `history`, `row` and `partition`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.help import Command, Group
from mergerepl.cli.options import (
    key_part,
    limit_option,
    publication_option,
    replica_argument,
    replica_root,
    reporting,
    subscriber_option,
    subscriber_root,
)
from mergerepl.cli.report import merge
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, listing
from mergerepl.errors import MergeReplError
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mergerepl.model.cdc import StatusWarning
    from mergerepl.model.results import PartitionInfo

UNKNOWN = 3
LEVELS = {"warning": 1, "critical": 2}
"""Exit codes of `status --check`; 0 if all is well."""
_PARTITIONS: Columns = {
    ">id": "partition_id",
    "publication": "publication",
    "HOST_NAME()": "host_name",
    "SUSER_SNAME()": "suser_sname",
    "subscribers": "subscribers",
    ">added at generation": "added_at_generation",
}


def warning_lines(warnings: Sequence[StatusWarning]) -> list[str]:
    """Return warnings as lines for people."""
    return [f"{each.level.capitalize()}: {each.source}: {each.text}" for each in warnings]


def report_check(find: Callable[[], tuple[Any, Sequence[StatusWarning]]], output: Output) -> int:
    """Report a state and what is wrong with it; return the exit code."""
    try:
        found, warnings = find()
    except MergeReplError as error:
        output.reported({"check": "unknown", "error": error.details()}, [f"Unknown: {error.message}"])
        return UNKNOWN
    output.reported({"status": found, "warnings": warnings}, warning_lines(warnings) or ["All is well."])
    return max((LEVELS[each.level] for each in warnings), default=0)


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
    from mergerepl.errors import ConfigurationError
    from mergerepl.targets import transactional_target

    if (target := transactional_target(replica)) is not None:
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.cli.transactional import publisher_parts
        from mergerepl.transactional import Distributor

        if check:
            return _checked(target[0], output)
        distributor = Distributor(target[0])
        found, problems = distributor.status(), problems_at(target[0])
        warnings = distributor.warnings(datetime.now(UTC))
        parts = [
            *publisher_parts(found),
            *(f"Problem: {each}" for each in problems),
            *warning_lines(warnings),
        ]
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
        if not cdc.Database(root).is_enabled():
            raise
        from mergerepl.cdc.monitoring import problems_at
        from mergerepl.cli.cdc import database_parts

        captured, problems = cdc.Database(root).status(), problems_at(root)
        parts = [*database_parts(captured), *(f"Problem: {each}" for each in problems)]
        output.reported({"cdc": captured, "problems": problems}, parts)
        return 0
    output.reported(*merge.status(state))
    return 0


def _checked(root: Location, output: Output) -> int:
    """Report what is wrong with a publisher, and with tables that are captured there, too; return the exit code."""
    from datetime import UTC, datetime

    from mergerepl import cdc
    from mergerepl.transactional import Distributor

    distributor = Distributor(root)

    def find() -> tuple[Mapping[str, Any], list[StatusWarning]]:
        now = datetime.now(UTC)
        found = [*distributor.warnings(now)]
        if (database := cdc.Database(root)).is_enabled():
            found += database.status().warnings
        # A paused table is met by both.
        return distributor.status(), list(dict.fromkeys(found))

    return report_check(find, output)


@click.command(cls=Command)
@replica_argument
@reporting
def pending(replica: str, output: Output) -> None:
    """Count the changes that wait for the next sync.

    Example:
      mergerepl pending ./north
    """
    from mergerepl import api
    from mergerepl.targets import transactional_target

    if transactional_target(replica) is not None:
        from mergerepl.cli.transactional import pending_of

        pending_of(replica, output)
        return
    root = replica_root(replica)
    output.reported(*merge.pending(root, api.pending(root)))


@click.command(cls=Command)
@replica_argument
@subscriber_option
@limit_option("At most so many sessions.")
@reporting
def history(replica: str, subscriber: str | None, limit: int, output: Output) -> None:
    """List past merge sessions, newest first.

    A sync that had nothing to do is not listed. Of one that failed, or left articles out, the message says why. A failure
    that repeats is listed once.

    Example:
      mergerepl history ./hq --limit 5
    """
    from mergerepl import api
    from mergerepl.targets import transactional_target

    if transactional_target(replica) is not None:
        from mergerepl.cli.transactional import history_of

        history_of(replica, limit, output)
        return
    root, only = replica_root(replica), subscriber_root(subscriber)
    found = api.history(root, limit=limit, subscriber=only)
    output.reported(*merge.history(root, found, subscriber=only))


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

    found = api.row(replica_root(replica), article=article, key=dict(key), publication=publication)
    output.reported(*merge.row(found))


@click.group(cls=Group)
def partition() -> None:
    """List the partitions of a publication with row filters, add one, drop one.

    A partition is one combination of the values of HOST_NAME() and SUSER_SNAME(). The first subscription with new values
    adds one by itself; one that is added before has its memberships computed from then on.

    Example:
      mergerepl partition list ./hq
    """


@partition.command("list")
@replica_argument
@publication_option
@reporting
def list_partitions(replica: str, publication: str | None, output: Output) -> None:
    """List the partitions of a publisher, with the subscribers of each.

    Example:
      mergerepl partition list sales.yml
    """
    from mergerepl import api

    found = api.partitions(replica_root(replica), publication=publication)
    _report(output, {"partitions": found}, found)


@partition.command("add")
@replica_argument
@click.option("--host-name", metavar="VALUE", help="What HOST_NAME() gives in it.")
@click.option("--suser-sname", metavar="VALUE", help="What SUSER_SNAME() gives in it.")
@publication_option
@reporting
def add_partition(
    replica: str, host_name: str | None, suser_sname: str | None, publication: str | None, output: Output
) -> None:
    """Add a partition before its first subscription; one that is there stays as it is.

    Example:
      mergerepl partition add ./hq --host-name North
    """
    from mergerepl import api

    added = api.add_partition(
        replica_root(replica), host_name=host_name, suser_sname=suser_sname, publication=publication
    )
    _report(output, added, (added,))


@partition.command("drop")
@replica_argument
@click.argument("partition_id", metavar="ID", type=int)
@reporting
def drop_partition(replica: str, partition_id: int, output: Output) -> None:
    """Drop a partition that no subscription has; its id is not used again.

    Example:
      mergerepl partition drop ./hq 3
    """
    from mergerepl import api

    dropped = api.drop_partition(replica_root(replica), partition_id)
    _report(output, dropped, (dropped,))


def _report(output: Output, value: object, found: tuple[PartitionInfo, ...]) -> None:
    output.reported(value, [listing(found, _PARTITIONS) if found else "There is no partition."])

"""`mergerepl partition`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mergerepl.cli.help import Group
from mergerepl.cli.options import publication_option, replica_argument, replica_root, reporting
from mergerepl.cli.report.output import Output

if TYPE_CHECKING:
    from mergerepl.model.results import PartitionInfo


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
    from mergerepl.cli.report.table import Table

    table = Table(
        (">id", "publication", "HOST_NAME()", "SUSER_SNAME()", "subscribers", ">added at generation")
    )
    for each in found:
        table.add(
            each.partition_id,
            each.publication,
            each.host_name,
            each.suser_sname,
            ", ".join(each.subscribers),
            each.added_at_generation,
        )
    output.reported(value, [table] if found else ["There is no partition."])

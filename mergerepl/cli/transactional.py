"""`mergerepl transactional`: the commands of one-way publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mergerepl.cli.grammar import READS, WRITES, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.report.columns import listing_or
from mergerepl.cli.report.table import Report
from mergerepl.cli.report.tasks import of_total

if TYPE_CHECKING:
    from mergerepl.model.delivery import Command, SkippedTransaction
    from mergerepl.model.listing import Listing

transactional = group(
    "transactional",
    """Look at the commands of one-way publications.

    `mergerepl apply`, `sync`, `status`, `validate` and the others take files with `type: transactional`.

    Example:
      mergerepl transactional browse --limit 5
    """,
)


@transactional.add(READS, "Distributor.browse() --table --from:LSN|time --to:LSN|time --limit")
def browse(run: Invocation, found: Listing[Command]) -> Report:
    """Show commands as the original does.

    Such as {CALL [sp_MSupd_dboorders] (,,12.50,,7,0x04)}; --from and --to are transactions (LSNs), or times.

    Example:
      mergerepl transactional browse --table orders --limit 5
    """
    parts = listing_or("No commands.", [asdict(each) for each in found])
    parts += [of_total(len(found), found.total, "command")] if found else []
    return {"commands": found, "total": found.total}, *parts


@transactional.add(READS, "Distributor.script() --table --at --operation --batch --custom")
def script(run: Invocation, text: str) -> Report:
    """Print the generated procedures as Spark SQL.

    The agent executes the text of --batch, which does the same to a batch of commands at once. The tables are those of the
    subscriber --at, else of the first one.

    Example:
      mergerepl transactional script --table orders --operation update
      mergerepl transactional script --batch
    """
    return {"script": text}, *text.split("\n")


def _publication(run: Invocation) -> dict[str, str]:
    """Return the publication of the file, if it states one only."""
    from mergerepl.model.transactional import Publication

    stated = {each.name for each in run.project.documents if isinstance(each, Publication)}
    return {"publication": stated.pop()} if len(stated) == 1 else {}


@transactional.add(WRITES, "Distributor.skip() XACT --at", also=_publication)
def skip(run: Invocation, done: SkippedTransaction) -> Report:
    """Leave out the next transaction of one subscription.

    XACT is its number (0x…), as the message of the stop and `history --failed` name it. It is recorded there, and the
    subscriber is not known to be equal from then on. --at names the subscriber, if there are several.

    Example:
      mergerepl transactional skip 0x00000000690b1c2a0001 --at north
    """
    counted = ", ".join(f"{name} {n:,}" for name, n in done.commands.items())
    was = "was skipped before; nothing was changed"
    if done.is_done or (run.dry_run and done.commands):
        was = f"{'is' if done.is_done else 'would be'} skipped (commands: {counted})"
    return done, f"{done.subscriber}: transaction {done.xact_seqno} {was}."


@transactional.add(READS, "Subscriber.first_rows() TABLE --at --limit", name="read", hidden=True)
def read(run: Invocation, rows: Sequence[Mapping[str, Any]]) -> Report:
    """Show an article at a subscriber as of its last complete batch.

    Example:
      mergerepl transactional read orders --at north --limit 5
    """
    return {"rows": rows}, *listing_or("No rows.", rows)

"""`mergerepl transactional`: the commands of one-way publications."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mergerepl.cli.grammar import READS, WRITES, Invocation, group
from mergerepl.cli.report.columns import listing_or
from mergerepl.cli.report.tasks import of_total
from mergerepl.model.transactional import Publication

if TYPE_CHECKING:
    from mergerepl.transactional import Distributor

transactional = group(
    "transactional",
    """Look at the commands of one-way publications.

    `mergerepl apply`, `sync`, `status`, `validate` and the others take files with `type: transactional`.

    Example:
      mergerepl transactional browse --limit 5
    """,
)


def _distributor(run: Invocation, what: str) -> Distributor:
    """Return the publisher of the place: `--at` names a subscriber of it."""
    from mergerepl.transactional import Distributor

    return Distributor(replace(run.place, at=None).of_type("transactional", what))


def _subscriber(run: Invocation) -> str | None:
    return None if run.at is None else run.place.root()


@transactional.add(READS, "Distributor.browse --table --from:LSN|time --to:LSN|time --limit")
def browse(run: Invocation, limit: int, **terms: Any) -> None:
    """Show commands as the original does.

    Such as {CALL [sp_MSupd_dboorders] (,,12.50,,7,0x04)}; --from and --to are transactions (LSNs), or times.

    Example:
      mergerepl transactional browse --table orders --limit 5
    """
    distributor = _distributor(run, "commands")
    found = distributor.browse(**terms, limit=limit)
    total = len(found) if len(found) < limit else distributor.count_commands(**terms)
    parts = listing_or("No commands.", [asdict(each) for each in found])
    parts += [of_total(len(found), total, "command")] if found else []
    run.report({"commands": found, "total": total}, *parts)


@transactional.add(READS, "Distributor.script --table --at --operation --batch --custom")
def script(run: Invocation, **terms: Any) -> None:
    """Print the generated procedures as Spark SQL.

    The agent executes the text of --batch, which does the same to a batch of commands at once. The tables are those of the
    subscriber --at, else of the first one.

    Example:
      mergerepl transactional script --table orders --operation update
      mergerepl transactional script --batch
    """
    text = _distributor(run, "procedures").script(subscriber=_subscriber(run), **terms)
    run.report({"script": text}, *text.split("\n"))


@transactional.add(WRITES, "Distributor.skip XACT --at")
def skip(run: Invocation, xact: str) -> None:
    """Leave out the next transaction of one subscription.

    XACT is its number (0x…), as the message of the stop and `history --failed` name it. It is recorded there, and the
    subscriber is not known to be equal from then on. --at names the subscriber, if there are several.

    Example:
      mergerepl transactional skip 0x00000000690b1c2a0001 --at north
    """
    stated = {each.name for each in run.place.project.documents if isinstance(each, Publication)}
    done = _distributor(run, "transactions to skip").skip(
        xact,
        subscriber=_subscriber(run),
        publication=stated.pop() if len(stated) == 1 else None,
        dry_run=run.dry_run,
    )
    counted = ", ".join(f"{name} {n:,}" for name, n in done.commands.items())
    was = "was skipped before; nothing was changed"
    if done.is_done or (run.dry_run and done.commands):
        was = f"{'is' if done.is_done else 'would be'} skipped (commands: {counted})"
    run.report(done, f"{done.subscriber}: transaction {done.xact_seqno} {was}.")


@transactional.add(READS, "Subscriber.read TABLE --at --limit", hidden=True)
def read(run: Invocation, table: str, limit: int) -> None:
    """Show an article at a subscriber as of its last complete batch.

    Example:
      mergerepl transactional read orders --at north --limit 5
    """
    from mergerepl.transactional import Subscriber

    rows = Subscriber(run.place.root()).first_rows(table, limit=limit)
    run.report({"rows": rows}, *listing_or("No rows.", rows))

"""`mergerepl transactional`: the commands of one-way publications."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import click

from mergerepl.cli.grammar import READS, WRITES, Invocation, group
from mergerepl.cli.report.table import listing_or

transactional = group(
    "transactional",
    """Look at the commands of one-way publications.

    `mergerepl apply`, `sync`, `status`, `validate` and the others take files with `type: transactional`.

    Example:
      mergerepl transactional browse --limit 5
    """,
)


@transactional.add(effect=READS, call="Distributor.browse", options=("--table", "--from", "--to", "--limit"))
def browse(run: Invocation, table: str | None, from_: Any, to: Any, limit: int) -> None:
    """Show commands as the original does.

    Such as {CALL [sp_MSupd_dboorders] (,,12.50,,7,0x04)}; --from and --to are transactions (LSNs), or times.

    Example:
      mergerepl transactional browse --table orders --limit 5
    """
    from mergerepl.transactional import Distributor

    if isinstance(from_, int) or isinstance(to, int):
        raise click.UsageError(
            "Transactions have LSNs and times: write --from and --to as 0x… or 2026-11-01."
        )
    distributor = Distributor(run.place.of_type("transactional", "commands"))
    found = distributor.browse(table=table, from_=from_, to=to, limit=limit + 1)
    rows = [asdict(each) for each in found[:limit]]
    more = [f"There are more: these are the first {limit} (--limit)."] if len(found) > limit else []
    run.output.reported({"commands": rows}, [*listing_or("No commands.", rows), *more])


@transactional.add(
    effect=READS, call="Distributor.script", options=("--table", "--at", "--operation", "--batch", "--custom")
)
def script(
    run: Invocation,
    table: str | None,
    at: str | None,
    operation: Literal["insert", "update", "delete"] | None,
    batch: bool,
    custom: bool,
) -> None:
    """Print the generated procedures as Spark SQL.

    The agent executes the text of --batch, which does the same to a batch of commands at once. The tables are those of the
    subscriber --at, else of the first one.

    Example:
      mergerepl transactional script --table orders --operation update
      mergerepl transactional script --batch
    """
    from mergerepl.transactional import Distributor

    text = Distributor(run.place.of_type("transactional", "procedures")).script(
        table=table,
        operation=operation,
        batch=batch,
        custom=custom,
        subscriber=None if at is None else run.place.root(at),
    )
    run.output.reported({"script": text}, text.split("\n"))


@transactional.add(effect=WRITES, call="Distributor.skip", takes="XACT", options=("--at",))
def skip(run: Invocation, xact: str, at: str | None, dry_run: bool) -> None:
    """Leave out the next transaction of one subscription.

    XACT is its number (0x…), as the message of the stop and `history --failed` name it. It is recorded there, and the
    subscriber is not known to be equal from then on. --at names the subscriber, if there are several.

    Example:
      mergerepl transactional skip 0x00000000690b1c2a0001 --at north
    """
    from mergerepl.transactional import Distributor

    done = Distributor(run.place.of_type("transactional", "transactions to skip")).skip(
        xact,
        subscriber=None if at is None else run.place.root(at),
        publication=run.place.publication,
        dry_run=dry_run,
    )
    counted = ", ".join(f"{name} {n:,}" for name, n in done.commands.items())
    was = "was skipped before; nothing was changed"
    if done.is_done or (dry_run and done.commands):
        was = f"{'is' if done.is_done else 'would be'} skipped (commands: {counted})"
    run.output.reported(asdict(done), [f"{done.subscriber}: transaction {done.xact_seqno} {was}."])


@transactional.add(
    effect=READS, call="Subscriber.read", takes="TABLE", options=("--at", "--limit"), hidden=True
)
def read(run: Invocation, table: str, at: str | None, limit: int) -> None:
    """Show an article at a subscriber as of its last complete batch.

    Example:
      mergerepl transactional read orders --at north --limit 5
    """
    from mergerepl.transactional import Subscriber

    rows = Subscriber(run.place.root(at)).first_rows(table, limit=limit)
    run.output.reported({"rows": rows}, listing_or("No rows.", rows))

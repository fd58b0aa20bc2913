"""`mergerepl transactional`: the agents of transactional replication, one by one, and what they leave."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl.cli.help import Group
from mergerepl.cli.main import FAILED
from mergerepl.cli.options import (
    key_part,
    limit_option,
    procedures_option,
    replica_root,
    reporting,
    subscriber_option,
    subscriber_root,
)
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, listing, listing_or

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mergerepl.store.location import Location

root_argument = click.argument("root", metavar="ROOT|FILE")
_COUNTED = ("subscriber", "transactions", "commands", "inserts", "updates", "deletes", "skipped")
_DISTRIBUTED: Columns = {
    **{name: name for name in _COUNTED},
    "latency": lambda each: None if each.latency_s is None else f"{each.latency_s:.1f} s",
}


def _target(text: str) -> tuple[Location, str | None]:
    """Return the publisher that an argument means, and its publication if it is a file."""
    from mergerepl.store.location import Location
    from mergerepl.targets import transactional_target

    return transactional_target(text) or (Location.of(replica_root(text)), None)


@click.group(cls=Group)
def transactional() -> None:
    """Run the agents of transactional replication one by one, and look at what they leave.

    ROOT is the publisher's folder; FILE stands for it. `mergerepl apply` and `mergerepl sync` take files with
    `type: transactional`.

    Example:
      mergerepl transactional logreader ./hq
      mergerepl transactional distribute ./hq
    """


@transactional.command()
@root_argument
@reporting
def logreader(root: str, output: Output) -> None:
    """Read the publisher's log: the distributor gets the commands.

    Example:
      mergerepl transactional logreader ./hq
    """
    from mergerepl.transactional import Distributor

    publisher, _ = _target(root)
    done = Distributor(publisher).capture()
    paused = [f"{path}: {reason}" for path, reason in done.paused.items()]
    read = f"{done.transactions} transactions were read, with {done.commands} commands; last LSN {done.last_lsn}."
    output.reported(done, [read if done.cycles else "Nothing new in the log.", *paused])


@transactional.command()
@root_argument
@subscriber_option
@click.option("--streams", type=int, help="Work on so many articles of a batch at a time.")
@click.option("--skip-errors", metavar="NUMBERS", help="Skip these errors, such as 20598:2627.")
@procedures_option
@reporting
def distribute(
    root: str,
    subscriber: str | None,
    streams: int | None,
    skip_errors: str | None,
    procedures: tuple[str, ...],
    output: Output,
) -> None:
    """Apply the commands that the distributor has at the subscribers.

    A command that cannot be applied stops its agent before the transaction: exit code 1. --skip-errors goes on, `skip`
    leaves out one transaction; what is skipped is recorded (`errors`).

    Example:
      mergerepl transactional distribute ./hq --subscriber ./north
      mergerepl transactional distribute ./hq --skip-errors 20598
      mergerepl transactional distribute ./hq --procedures feed_procedures
    """
    from mergerepl.transactional import Distributor

    publisher, publication = _target(root)
    skip = None if skip_errors is None else _numbers(skip_errors)
    done = Distributor(publisher).deliver(
        subscriber=subscriber_root(subscriber),
        publication=publication,
        streams=streams,
        skip_errors=skip,
        procedures=procedures,
    )
    output.reported([asdict(each) for each in done], [listing(done, _DISTRIBUTED)])


def _numbers(text: str) -> list[int]:
    parts = text.replace(",", ":").split(":")
    if not all(part.strip().isdigit() for part in parts):
        raise click.UsageError(f"{text!r} is no list of numbers: write it as 20598:2627.")
    return [int(part) for part in parts]


@transactional.command()
@root_argument
@click.option("--article", metavar="NAME", help="Only this article.")
@click.option("--operation", type=click.Choice(["insert", "update", "delete"]), help="Only this procedure.")
@click.option("--batch", is_flag=True, help="The one MERGE that stands for all three.")
@click.option("--custom", is_flag=True, help="Python to begin procedures of your own with.")
@subscriber_option
@reporting
def script(
    root: str,
    article: str | None,
    operation: Literal["insert", "update", "delete"] | None,
    batch: bool,
    custom: bool,
    subscriber: str | None,
    output: Output,
) -> None:
    """Print the generated procedures as Spark SQL.

    The agent executes the text of --batch, which does the same to a batch of commands at once.

    Example:
      mergerepl transactional script ./hq --article orders --operation update
      mergerepl transactional script ./hq --batch
      mergerepl transactional script ./hq --custom --operation update
    """
    from mergerepl.transactional import Distributor

    publisher, _ = _target(root)
    text = Distributor(publisher).script(
        table=article, operation=operation, batch=batch, custom=custom, subscriber=subscriber_root(subscriber)
    )
    output.reported({"script": text}, text.split("\n"))


@transactional.command()
@root_argument
@click.option("--article", metavar="NAME", help="Only this article.")
@click.option("--from", "from_seqno", metavar="LSN", help="From this transaction on.")
@click.option("--to", "through_seqno", metavar="LSN", help="Up to this transaction, with it.")
@limit_option("At most so many commands.")
@reporting
def browse(
    root: str,
    article: str | None,
    from_seqno: str | None,
    through_seqno: str | None,
    limit: int,
    output: Output,
) -> None:
    """Show commands as the original does: {CALL [sp_MSupd_dboorders] (,,12.50,,7,0x04)}.

    Example:
      mergerepl transactional browse ./hq --article orders --limit 5
    """
    from mergerepl.transactional import Distributor

    publisher, _ = _target(root)
    found = Distributor(publisher).browse(table=article, from_=from_seqno, to=through_seqno, limit=limit + 1)
    rows = [asdict(each) for each in found[:limit]]
    more = [f"There are more: these are the first {limit} (--limit)."] if len(found) > limit else []
    output.reported(rows, [*listing_or("No commands.", rows), *more])


def pending_of(root: str, output: Output) -> None:
    """Report the commands that wait."""
    from mergerepl.transactional import Distributor

    rows = [asdict(each) for each in Distributor(_target(root)[0]).pending()]
    output.reported(rows, listing_or("No subscriptions.", rows))


@transactional.command()
@root_argument
@reporting
def pending(root: str, output: Output) -> None:
    """Count undistributed commands, and commits that the log reader has not read.

    Example:
      mergerepl transactional pending ./hq
    """
    pending_of(root, output)


def history_of(root: str, limit: int, output: Output) -> None:
    """Report the last batches."""
    from mergerepl.transactional import Distributor

    rows = Distributor(_target(root)[0]).history(limit=limit)
    output.reported(rows, listing_or("No batches.", rows, wrapped="comments"))


@transactional.command()
@root_argument
@limit_option("At most so many batches.")
@reporting
def history(root: str, limit: int, output: Output) -> None:
    """List the batches of the distribution agents and why agents stopped, newest first.

    Example:
      mergerepl transactional history ./hq
    """
    history_of(root, limit, output)


@transactional.command()
@root_argument
@limit_option("At most so many commands.")
@reporting
def errors(root: str, limit: int, output: Output) -> None:
    """List why agents stopped, and the commands that were skipped, newest first.

    Example:
      mergerepl transactional errors ./hq
    """
    from mergerepl.transactional import Distributor

    rows = Distributor(_target(root)[0]).errors(limit=limit)
    output.reported(rows, listing_or("No errors.", rows, wrapped="text"))


@transactional.command()
@root_argument
@click.argument("xact", metavar="XACT")
@subscriber_option
@click.option("--dry-run", is_flag=True, help="Only say what would be left out.")
@reporting
def skip(root: str, xact: str, subscriber: str | None, dry_run: bool, output: Output) -> None:
    """Leave out the next transaction of one subscription, such as the one at which its agent stopped.

    XACT is its number (0x…), as the message of the stop and `errors` name it. It is recorded in `errors` and `history`, and
    the subscriber is not known to be equal from then on. --subscriber says where, if there are several.

    Example:
      mergerepl transactional skip ./hq 0x00000000690b1c2a0001 --subscriber ./north
    """
    from mergerepl.transactional import Distributor

    publisher, publication = _target(root)
    done = Distributor(publisher).skip(
        xact, subscriber=subscriber_root(subscriber), publication=publication, dry_run=dry_run
    )
    counted = ", ".join(f"{name} {n:,}" for name, n in done.commands.items())
    was = "was skipped before; nothing was changed"
    if done.is_done or (dry_run and done.commands):
        was = f"{'is' if done.is_done else 'would be'} skipped (commands: {counted})"
    output.reported(asdict(done), [f"{done.subscriber}: transaction {done.xact_seqno} {was}."])


@transactional.command()
@root_argument
@subscriber_option
@reporting
def reinit(root: str, subscriber: str | None, output: Output) -> None:
    """Begin subscriptions again from a new snapshot.

    Example:
      mergerepl transactional reinit ./hq --subscriber ./north
    """
    from mergerepl.transactional import Distributor

    publisher, publication = _target(root)
    done = Distributor(publisher).reinit(subscriber=subscriber_root(subscriber), publication=publication)
    output.reported({"subscribers": done}, [f"{each} begins again." for each in done])


@transactional.command()
@root_argument
@click.argument("article", metavar="ARTICLE")
@reporting
def resume(root: str, article: str, output: Output) -> None:
    """Let a paused table in again: what was not read becomes commands.

    A table is paused if its log cannot be read on, such as after a dropped key column. `logreader` and `sync` say why.

    Example:
      mergerepl transactional resume ./hq orders
    """
    from mergerepl.transactional import Distributor

    was = Distributor(_target(root)[0]).resume(article)
    output.reported(
        {"article": article, "changed": was},
        [f"{article} is read again." if was else f"{article} was not paused."],
    )


@transactional.command()
@root_argument
@reporting
def cleanup(root: str, output: Output) -> None:
    """Remove commands that all subscriptions have, and those above the longest retention.

    A subscription that lacks such commands becomes inactive: it must be reinitialized.

    Example:
      mergerepl transactional cleanup ./hq
    """
    from mergerepl.transactional import Distributor

    done = Distributor(_target(root)[0]).cleanup()
    output.reported(
        done,
        [
            f"{done['commands']} commands and {done['transactions']} transactions were removed; {done['inactive']} "
            "subscriptions became inactive."
        ],
    )


def validated(root: str, subscriber: str | None, output: Output) -> int:
    """Report whether subscribers equal the publisher; return the exit code."""
    from mergerepl.transactional import Distributor

    publisher, publication = _target(root)
    found = Distributor(publisher).validate(subscriber=subscriber, publication=publication)
    rows = [asdict(each) for each in found]
    output.reported(rows, _compared(rows))
    return 0 if all(each.is_equal for each in found) else FAILED


def _compared(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return the results of a validation or a repair: a table, and what is not compared as sentences."""
    shown = [
        {name: value for name, value in row.items() if name not in ("kinds", "not_compared", "error")}
        | {"keys": [f"{key} ({kind})" for key, kind in zip(row["keys"], row["kinds"], strict=True)]}
        for row in rows
    ]
    parts = listing_or("No subscriptions.", shown)
    for row in rows:
        at = f"{row['article']} at {row['subscriber']}"
        parts += [f"{at}: not compared: {each}." for each in row.get("not_compared", ())]
        parts += [f"{at}: {row['error']}"] if row.get("error") else []
    return parts


def publisher_parts(found: Mapping[str, Any]) -> list[Part]:
    """Return a publisher's state."""
    parts: list[Part] = []
    for each in found["publications"]:
        parts.append(f"Publication {each['publication']} at {found['root']} (transactional)")
        parts += [*listing_or("", each["articles"]), *listing_or("", each["subscriptions"])]
    return parts or [f"{found['root']} publishes nothing."]


@transactional.command()
@root_argument
@subscriber_option
@reporting
def validate(root: str, subscriber: str | None, output: Output) -> int:
    """Compare subscribers as they are with the publisher at their last batch; differing keys are named.

    Writers need not stop. Exit code 1 if rows differ, could not be compared, or get no more commands. `repair` brings the
    publisher's rows back.

    Example:
      mergerepl transactional validate ./hq
    """
    return validated(root, subscriber_root(subscriber), output)


@transactional.command()
@root_argument
@subscriber_option
@click.option("--article", metavar="NAME", help="Only this article.")
@click.option(
    "--key",
    type=key_part,
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only the row of this key; once for each column of it.",
)
@click.option(
    "--where", metavar="CONDITION", help="Only rows that meet this at the publisher or the subscriber."
)
@click.option("--dry-run", is_flag=True, help="Say what would be written; change nothing.")
@procedures_option
@reporting
def repair(
    root: str,
    subscriber: str | None,
    article: str | None,
    key: tuple[tuple[str, str], ...],
    where: str | None,
    dry_run: bool,
    procedures: tuple[str, ...],
    output: Output,
) -> None:
    """Bring the publisher's rows back where others changed a subscriber's tables.

    Missing rows are inserted, extra ones deleted, different ones updated, as of the subscriber's last batch. Without --key
    and --where whole tables are repaired.

    Example:
      mergerepl transactional repair ./hq --subscriber ./north --dry-run
      mergerepl transactional repair ./hq --subscriber ./north --article orders --key order_id=7
      mergerepl transactional repair ./hq --article orders --where "region='N'"
    """
    from mergerepl.transactional import Distributor

    if len(dict(key)) < len(key):
        raise click.UsageError("A key column is given twice.")
    publisher, publication = _target(root)
    done = Distributor(publisher).repair(
        subscriber=subscriber_root(subscriber),
        publication=publication,
        table=article,
        key=dict(key) or None,
        where=where,
        dry_run=dry_run,
        procedures=procedures,
    )
    rows = [asdict(each) for each in done]
    output.reported(rows, _compared(rows))


@transactional.command()
@click.argument("root", metavar="SUBSCRIBER")
@click.argument("article", metavar="ARTICLE")
@limit_option("At most so many rows.")
@reporting
def read(root: str, article: str, limit: int, output: Output) -> None:
    """Show an article at a subscriber as of its last complete batch.

    Example:
      mergerepl transactional read ./north orders --limit 5
    """
    from mergerepl.transactional import Subscriber

    rows = Subscriber(root).first_rows(article, limit=limit)
    output.reported(rows, listing_or("No rows.", rows))

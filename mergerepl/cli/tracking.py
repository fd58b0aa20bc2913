"""`mergerepl tracking`: SQL Server Compact's change tracking over a folder of Delta tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl import roots
from mergerepl.cli.help import Group
from mergerepl.cli.options import limit_option, reporting
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, listing
from mergerepl.errors import ConfigurationError
from mergerepl.model.tracking import TrackingOptions, TrackingStatus
from mergerepl.model.words import counted
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl import ChangeTracking

path_argument = click.argument("path", metavar="PATH")
table_argument = click.argument("table", metavar="TABLE")
consumer_option = click.option("--consumer", metavar="NAME", required=True, help="Name of the consumer.")

_TABLES: Columns = {
    "table": "name",
    "tracked": lambda each: [option.name.lower() for option in each.options if option.name],
    "key": "key",
    "foreign commits": lambda each: each.foreign.value,
    ">enabled at CSN": "enabled_csn",
}
_OPEN: Columns = {">open BSN": "bsn", "state": "state", "since": "since", "owner": "owner"}
_CONSUMERS: Columns = {
    "consumer": "name",
    ">LBSN": "lbsn",
    ">LCSN": "lcsn",
    "last window": lambda each: each.last_time or "never",
}
_FOREIGN: Columns = {
    "foreign commit to": "table",
    ">version": "version",
    "operation": "operation",
    "by": "writer",
}
_COMMITTED: Columns = {
    ">CSN": "csn",
    ">BSN": "bsn",
    "committed": "commit_time",
    "changed rows": lambda each: dict(sorted(each.changes.items())) or "none",
    "context": "tracking_context",
    ">foreign version": "foreign_version",
}
_WINDOW: Columns = {"table": "table", ">deletes": "deletes", ">inserts": "inserts", ">updates": "updates"}


def status_parts(found: TrackingStatus) -> list[Part]:
    """Return tables, open transactions, consumers, foreign commits, and the numbers."""
    return [
        listing(found.tables, _TABLES),
        listing(found.open_transactions, _OPEN),
        listing(found.consumers, _CONSUMERS),
        listing(found.foreign_commits, _FOREIGN),
        *found.problems.values(),
        *(
            f"{name}: purged; consumers below CSN {mark} must be initialised again."
            for name, mark in sorted(found.purged_through.items())
        ),
        f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, last committed CSN {found.last_committed_csn}.",
    ]


def _database(path: str, *, foreign: Literal["adopt", "refuse"] = "adopt") -> ChangeTracking:
    import mergerepl

    return mergerepl.ChangeTracking(roots.existing(path), foreign=foreign)


def _options(_: click.Context, __: click.Parameter, text: str) -> TrackingOptions:
    try:
        return TrackingOptions.of(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@click.group(cls=Group)
def tracking() -> None:
    """Track changes in the rows themselves, for a sync service of your own.

    PATH is a folder of Delta tables. See docs/compact.md.

    Example:
      mergerepl tracking enable ./branch orders --key order_id
      mergerepl tracking enumerate ./branch --consumer hq
    """


@tracking.command()
@path_argument
@table_argument
@click.option("--key", metavar="COLUMN", multiple=True, help="A key column; once for each.")
@click.option("--guid", metavar="COLUMN", help="A string column of GUIDs, in place of --key.")
@click.option(
    "--options",
    metavar="LIST",
    default="insert,update,delete",
    show_default=True,
    callback=_options,
    help="What is tracked.",
)
@click.option(
    "--foreign",
    type=click.Choice(["adopt", "refuse"]),
    default="adopt",
    show_default=True,
    help="What becomes of commits that go through no transaction.",
)
@reporting
def enable(
    path: str,
    table: str,
    key: tuple[str, ...],
    guid: str | None,
    options: TrackingOptions,
    foreign: Literal["adopt", "refuse"],
    output: Output,
) -> None:
    """Track a table: it gets three columns. Enabled again, what is tracked changes.

    Example:
      mergerepl tracking enable ./branch orders --key order_id
      mergerepl tracking enable ./branch stock --guid rowguid --options insert,update
    """
    if bool(key) == bool(guid):
        raise click.UsageError("Name the key's columns with --key, or a GUID column with --guid.")
    found = _database(path, foreign=foreign).enable(table, key=key, rowguid=guid, track=options)
    output.reported(found, [f"Table {table} is tracked."])


@tracking.command()
@path_argument
@table_argument
@click.option("--keep-columns", is_flag=True, help="Leave the three columns in the table.")
@reporting
def disable(path: str, table: str, keep_columns: bool, output: Output) -> None:
    """Track a table no longer.

    Example:
      mergerepl tracking disable ./branch orders --keep-columns
    """
    _database(path).disable(table, keep_columns=keep_columns)
    output.reported({"table": table, "tracked": False}, [f"Table {table} is no longer tracked."])


@tracking.command()
@path_argument
@reporting
def status(path: str, output: Output) -> None:
    """Show tables, numbers, open transactions, consumers and foreign commits.

    Example:
      mergerepl tracking status ./branch
    """
    found = _database(path).status()
    output.reported(found, status_parts(found))


@tracking.command()
@path_argument
@click.option("--open", "only_open", is_flag=True, help="Those that have begun and not ended.")
@limit_option("At most so many, newest first.")
@reporting
def transactions(path: str, only_open: bool, limit: int, output: Output) -> None:
    """List committed or open transactions.

    Example:
      mergerepl tracking transactions ./branch --open
    """
    database = _database(path)
    if only_open:
        found = database.status().open_transactions
        output.reported({"open": found}, [listing(found, _OPEN) if found else "None is open."])
    else:
        done = database.transactions(limit)
        output.reported({"transactions": done}, [listing(done, _COMMITTED)])


@tracking.command()
@path_argument
@click.argument("bsn", metavar="BSN", type=click.IntRange(min=1))
@reporting
def abort(path: str, bsn: int, output: Output) -> None:
    """End an open transaction of any owner. The owner gets an error at its next call.

    Example:
      mergerepl tracking abort ./branch 17
    """
    _database(path).abort(bsn)
    output.reported({"bsn": bsn, "state": "aborted"}, [f"Transaction {bsn} was aborted."])


@tracking.command("enumerate")
@path_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@consumer_option
@click.option(
    "--start",
    type=click.Choice(["beginning", "now"]),
    default="beginning",
    show_default=True,
    help="Where a new consumer begins.",
)
@click.option(
    "--enumeration",
    type=click.Choice(["exact", "documented"]),
    default="exact",
    show_default=True,
    help="documented: the printed queries, which lose changes in some orders.",
)
@click.option("--exclude-context", metavar="GUID", help="Leave out what came from the consumer itself.")
@click.option(
    "--output", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Write the rows there."
)
@reporting
def enumerate_changes(
    path: str,
    tables: tuple[str, ...],
    consumer: str,
    start: Literal["beginning", "now"],
    enumeration: Literal["exact", "documented"],
    exclude_context: str | None,
    folder: Path | None,
    output: Output,
) -> None:
    """Count, or write, what changed since a consumer's last acknowledged window.

    Without a TABLE: of all tables. An acknowledged window of some tables passes over the changes of the others for good.

    With --output: Parquet files in DIR/TABLE/deletes, inserts and updates, to be applied in this order, and
    DIR/window.json, which `mergerepl tracking acknowledge` takes.

    Example:
      mergerepl tracking enumerate ./branch --consumer hq --output ./changes
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"'{folder}' is not empty: name a new folder for the window.")
    reader = _database(path).consumer(consumer, start=start)
    window = reader.enumerate(tables or None, exclude_context, enumeration=enumeration)
    counts = window.counts() if folder is None else window.write_to(Location.of(folder.absolute()))
    stated = {**window.state.to_json(), "tables": counts}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "window.json").write_text(json.dumps(stated, indent=2), encoding="utf-8")
    rows = [{"table": name, **each} for name, each in counts.items() if name not in window.initial]
    copies = [f"{name}: the consumer has no copy yet; take all its rows." for name in window.initial]
    output.reported(stated, [listing(rows, _WINDOW), *copies, f"Window {window.id}."])


@tracking.command()
@path_argument
@click.argument("window", metavar="WINDOW.json", type=click.Path(path_type=Path))
@consumer_option
@click.option("--fresh", metavar="TABLE", multiple=True, help="A table that was copied whole; once for each.")
@reporting
def acknowledge(path: str, window: Path, consumer: str, fresh: tuple[str, ...], output: Output) -> None:
    """Note that a consumer has a window: its next one begins there.

    Example:
      mergerepl tracking acknowledge ./branch ./changes/window.json --consumer hq
    """
    stated = _json(window)
    if stated.get("consumer") != consumer:
        raise ConfigurationError(
            f"'{window}' is a window of consumer '{stated.get('consumer')}', not of '{consumer}'. Nothing was changed."
        )
    reader = _database(path).consumer(consumer)
    reader.acknowledge(stated, fresh=fresh)
    output.reported(reader.state, [f"Consumer {consumer} stands at CSN {reader.state.lcsn}."])


@tracking.command()
@path_argument
@consumer_option
@reporting
def forget(path: str, consumer: str, output: Output) -> None:
    """Forget a consumer that will not come again: purges wait for it no longer.

    Example:
      mergerepl tracking forget ./branch --consumer hq
    """
    _database(path).forget(consumer)
    output.reported({"consumer": consumer, "registered": False}, [f"Consumer {consumer} is forgotten."])


def _json(file: Path) -> dict[str, Any]:
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"'{file}' is no window: {error}. Give the window.json of `enumerate`."
        ) from error
    if not isinstance(stated, dict):
        raise ConfigurationError(f"'{file}' is no window. Give the window.json of `enumerate`.")
    return stated


@tracking.command()
@path_argument
@reporting
def adopt(path: str, output: Output) -> None:
    """Make transactions of the commits that went through none.

    Example:
      mergerepl tracking adopt ./branch
    """
    count = _database(path).adopt()
    output.reported({"adopted": count}, [f"Foreign commits adopted: {count}."])


@tracking.command()
@path_argument
@reporting
def recover(path: str, output: Output) -> None:
    """Finish what processes left that died. Commands that change or enumerate do so first, too.

    Example:
      mergerepl tracking recover ./branch
    """
    database = _database(path)
    database.recover()
    found = database.status()
    output.reported(
        {"last_bsn": found.last_bsn, "last_csn": found.last_csn, "open": found.open_transactions},
        [f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, open: {len(found.open_transactions)}."],
    )


@tracking.command()
@path_argument
@click.argument("what", type=click.Choice(["tombstones", "sequence"]))
@click.option("--table", metavar="TABLE", help="The table, for tombstones.")
@click.option("--days", metavar="N", type=click.IntRange(min=0), help="Rows older than so many days.")
@click.option("--csn", metavar="N", type=click.IntRange(min=0), help="Rows of transactions below this CSN.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@reporting
def purge(
    path: str, what: str, table: str | None, days: int | None, csn: int | None, dry_run: bool, output: Output
) -> None:
    """Remove tombstones, or rows of the commit sequence, that no registered consumer needs.

    Example:
      mergerepl tracking purge ./branch tombstones --table orders --days 90
      mergerepl tracking purge ./branch sequence --csn 1000 --dry-run
    """
    if (days is None) == (csn is None):
        raise click.UsageError("Give --days or --csn.")
    if (what == "tombstones") != (table is not None):
        raise click.UsageError("Name the --table of tombstones; the sequence has none.")
    older_than = None if days is None else f"{days} days"
    to = None if csn is None else csn - 1
    done = _database(path).purge(table, older_than=older_than, to=to, dry_run=dry_run)
    removed = "to be removed" if done.dry_run else "removed"
    kept = f"; {counted(done.held_back, 'row')} kept for consumers" if done.held_back else ""
    output.reported(done, [f"{done.target}: {counted(done.removed, 'row')} {removed}{kept}."])


@tracking.command(context_settings={"ignore_unknown_options": True})
@click.argument("direction", type=click.Choice(["pack", "unpack"]))
@path_argument
@table_argument
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@reporting
def key(direction: str, path: str, table: str, values: tuple[str, ...], output: Output) -> None:
    """Pack key values as tombstones hold them, or unpack them; packed keys are hexadecimal.

    Example:
      mergerepl tracking key pack ./branch orders -17
    """
    database = _database(path)
    if direction == "pack":
        text = database.pack_key(table, values).hex()
        output.reported({"table": table, "packed": text}, [text])
        return
    try:
        packed = bytes.fromhex("".join(values))
    except ValueError as error:
        raise click.BadParameter(f"{values[0]!r} is not hexadecimal.") from error
    found = database.unpack_key(table, packed)
    output.reported({"table": table, "values": found}, [", ".join(map(str, found))])


@tracking.command()
@path_argument
@reporting
def upgrade(path: str, output: Output) -> None:
    """Bring the tracking data of a folder to this version of mergerepl.

    Example:
      mergerepl tracking upgrade ./branch
    """
    is_done = _database(path).upgrade()
    text = (
        "The tracking data are of this version."
        if is_done
        else "Transactions are open: end them, then run again."
    )
    output.reported({"upgraded": is_done}, [text])


@tracking.command()
@table_argument
@reporting
def sql(table: str, output: Output) -> None:
    """Print the queries of an enumeration: exact ones, and those of SQL Server Compact's documentation.

    Example:
      mergerepl tracking sql orders
    """
    import mergerepl

    found = mergerepl.ChangeTracking.sql(table)
    output.reported(
        found,
        [
            line
            for name, text in asdict(found).items()
            for line in (f"-- {name.replace('_', ' ')}", *text.splitlines())
        ],
    )

"""`mergerepl tracking`: SQL Server Compact's change tracking over a folder of Delta tables."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl.cli.grammar import DESTROYS, WRITES, Invocation, group
from mergerepl.cli.options import key_columns
from mergerepl.cli.report.columns import columns, listing
from mergerepl.errors import ConfigurationError
from mergerepl.model.tracking import Purged
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.model.words import counted, nearest_name
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl import ChangeTracking
    from mergerepl.model.tracking import ConsumerState


def _database(run: Invocation, foreign: Literal["adopt", "refuse"] = "adopt") -> ChangeTracking:
    import mergerepl

    return mergerepl.ChangeTracking(run.place.root(), foreign=foreign)


tracking = group(
    "tracking",
    """Track changes in the rows, for a sync service of your own.

    TABLE is a table's folder below the root, CONSUMER a name of your choice. See docs/compact.md.

    Example:
      mergerepl tracking enable orders --key order_id -f ./branch
      mergerepl tracking enumerate hq -f ./branch
    """,
    is_at=True,
)


@tracking.add(WRITES, "ChangeTracking.enable TABLE --key --rowguid --track --foreign")
def enable(
    run: Invocation, table: str, key: tuple[str, ...], track: tuple[str, ...], foreign: Any, **terms: Any
) -> None:
    """Track a table: it gets three columns.

    Enabled again, what is tracked changes.

    Example:
      mergerepl tracking enable orders --key order_id
      mergerepl tracking enable stock --rowguid rowguid --track insert,update
    """
    if bool(key) == bool(terms["rowguid"]):
        raise click.UsageError("Name the key's columns with --key, or a GUID column with --rowguid.")
    try:
        options = TrackingOptions.of(",".join(track))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--track") from error
    done = run.carry_out(
        partial(_database(run, foreign).enable, table, key=key_columns(key), track=options, **terms),
        would=f"Table {table} would be tracked.",
    )
    run.report(done, f"Table {table} is tracked.")


@tracking.add(DESTROYS, "ChangeTracking.disable TABLE --keep-columns")
def disable(run: Invocation, table: str, keep_columns: bool) -> None:
    """End tracking; tombstones and tracking columns go.

    Example:
      mergerepl tracking disable orders --keep-columns
    """
    run.carry_out(
        partial(_database(run).disable, table, keep_columns=keep_columns),
        asks=f"Remove the tombstones of {table} in {run.place.root()}?",
        would=f"Table {table} would no longer be tracked.",
    )
    run.report({"table": table, "tracked": False}, f"Table {table} is no longer tracked.")


@tracking.add(
    WRITES,
    "ChangeTracking.consumer.enumerate CONSUMER --table --start --enumeration --exclude-context --output",
    name="enumerate",
)
def enumerate_changes(
    run: Invocation, consumer: str, table: str | None, start: Any, output: str | None, **terms: Any
) -> None:
    """Count, or write, what changed since a consumer's last window.

    The first window of a CONSUMER registers it. A new one with nearly the name of another is refused without --start.

    --table a,b: of these tables; an acknowledged window of some tables passes over the changes of the others for good.

    With --output: Parquet files in PATH/TABLE/deletes, inserts and updates, to be applied in this order, and
    PATH/window.json, which `mergerepl tracking acknowledge` takes.

    Example:
      mergerepl tracking enumerate hq -o ./changes
    """
    folder = None if output is None else Path(output)
    is_taken = folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_taken or output == "-":
        raise ConfigurationError(f"'{output}' is no empty folder: name a new one for the window.")
    tables = None if table is None else tuple(each.strip() for each in table.split(","))
    database = _database(run)
    known = [each.name for each in database.consumers()]
    is_new = consumer not in known
    if is_new and start is None and (near := nearest_name(consumer, known)):
        raise ConfigurationError(
            f"There is no consumer '{consumer}'. Did you mean '{near}'? To register a new one, say where it begins: "
            "--start beginning, or --start now."
        )
    window = run.carry_out(
        lambda: database.consumer(consumer, start=start or "beginning").enumerate(tables, **terms),
        would=f"Consumer {consumer} would be registered." if is_new else "Foreign commits would be adopted.",
    )
    if folder is None or run.dry_run:
        counts = window.counts()
    else:
        counts = window.write_to(Location.of(folder.absolute()))
    rows = [{"table": name, **each} for name, each in counts.items() if name not in window.initial]
    copies = [f"{name}: the consumer has no copy yet; take all its rows." for name in window.initial]
    if is_new:
        copies.append(f"Consumer {consumer} is new: it is registered, and purges wait for it.")
    stated = {**window.state.to_json(), "tables": counts}
    run.report(
        stated, listing(rows, columns("table, >deletes, >inserts, >updates")), *copies, f"Window {window.id}."
    )


@tracking.add(WRITES, "ChangeTracking.consumer.acknowledge CONSUMER --window! --fresh")
def acknowledge(run: Invocation, consumer: str, window: str, fresh: tuple[str, ...] | None) -> None:
    """Note that a consumer has a window: its next one begins there.

    Example:
      mergerepl tracking acknowledge hq --window ./changes/window.json
    """
    from mergerepl.tracking.windows import WindowState

    stated = WindowState.of_file(Location.of(Path(window).absolute()))
    if stated.consumer != consumer:
        raise ConfigurationError(
            f"'{window}' is a window of consumer '{stated.consumer}', not of '{consumer}'. Nothing was changed."
        )
    database = _database(run)

    def acknowledged() -> ConsumerState:
        # A consumer that is not known is registered: that is a write, too.
        reader = database.consumer(consumer)
        reader.acknowledge(stated, fresh=fresh or ())
        return reader.state

    would = f"Consumer {consumer} would stand at the end of this window."
    state = run.carry_out(acknowledged, would=would)
    run.report(state, f"Consumer {consumer} stands at CSN {state.lcsn}.")


@tracking.add(DESTROYS, "ChangeTracking.forget CONSUMER")
def forget(run: Invocation, consumer: str) -> None:
    """Forget a consumer that will not come again.

    Purges wait for it no longer.

    Example:
      mergerepl tracking forget hq
    """
    run.carry_out(
        partial(_database(run).forget, consumer),
        asks=f"Forget the position of {consumer} in {run.place.root()}?",
        would=f"Consumer {consumer} would be forgotten.",
    )
    value = {"consumer": consumer, "registered": False}
    run.report(value, f"Consumer {consumer} is forgotten.")


@tracking.add(DESTROYS, "ChangeTracking.abort BSN", hidden=True)
def abort(run: Invocation, bsn: int) -> None:
    """End an open transaction of any owner.

    The owner gets an error at its next call. `mergerepl status` lists open transactions.

    Example:
      mergerepl tracking abort 17
    """
    run.carry_out(
        partial(_database(run).abort, bsn),
        asks=f"End transaction {bsn} in {run.place.root()}? Its changes are undone.",
        would=f"Transaction {bsn} would be aborted.",
    )
    run.report({"bsn": bsn, "state": "aborted"}, f"Transaction {bsn} was aborted.")


@tracking.add(WRITES, "ChangeTracking.adopt", hidden=True)
def adopt(run: Invocation) -> None:
    """Make transactions of the commits that went through none.

    Example:
      mergerepl tracking adopt
    """
    count = run.carry_out(_database(run).adopt)
    did = "that would be adopted" if run.dry_run else "adopted"
    run.report({"adopted": count}, f"Foreign commits {did}: {count}.")


@tracking.add(WRITES, "ChangeTracking.recover", hidden=True)
def recover(run: Invocation) -> None:
    """Finish what processes left that died.

    Commands that change or enumerate do so first, too.

    Example:
      mergerepl tracking recover
    """
    database = _database(run)
    run.carry_out(database.recover, would="What processes left would be finished.")
    found = database.status()
    run.report(
        {"last_bsn": found.last_bsn, "last_csn": found.last_csn, "open": found.open_transactions},
        f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, open: {len(found.open_transactions)}.",
    )


@tracking.add(DESTROYS, "ChangeTracking.purge [TABLE] --older-than --to:number", hidden=True)
def purge(run: Invocation, table: str | None, older_than: timedelta | None, to: int | None) -> None:
    """Remove tombstones of a table, or without one rows of the commit sequence.

    Only rows that no registered consumer needs: older than an age, or of transactions up to the CSN --to.

    Example:
      mergerepl tracking purge orders --older-than 90d
      mergerepl tracking purge --to 1000 --dry-run
    """
    if (older_than is None) == (to is None):
        raise click.UsageError("Give --older-than (days) or --to (a CSN).")
    # `to` is the last CSN that goes.
    remove = partial(_database(run).purge, table, older_than=older_than, to=to)

    def question(planned: Purged) -> str:
        rows = counted(planned.removed, "row")
        return f"Remove {rows} of {planned.target} in {run.place.root()}?" if planned.removed else ""

    done = run.carry_out(remove, asks=question)
    removed = "to be removed" if done.dry_run else "removed"
    kept = f"; {counted(done.held_back, 'row')} kept for consumers" if done.held_back else ""
    run.report(done, f"{done.target}: {counted(done.removed, 'row')} {removed}{kept}.")

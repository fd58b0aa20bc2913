"""`mergerepl tracking`: SQL Server Compact's change tracking over a folder of Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergerepl.cli.grammar import DESTROYS, WRITES, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.report.columns import columns, listing
from mergerepl.cli.report.table import Report
from mergerepl.errors import ConfigurationError
from mergerepl.model.words import counted, nearest_name
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl import ChangeTracking
    from mergerepl.model.tracking import ConsumerState, Purged, TrackedTable


def _database(run: Invocation) -> ChangeTracking:
    import mergerepl

    return mergerepl.ChangeTracking(run.root)


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


@tracking.add(
    WRITES,
    "ChangeTracking.enable() TABLE --key:columns --rowguid --track --foreign",
    one_of="--key --rowguid",
    would="Table {table} would be tracked.",
)
def enable(run: Invocation, done: TrackedTable) -> Report:
    """Track a table: it gets three columns.

    Enabled again, what is tracked changes.

    Example:
      mergerepl tracking enable orders --key order_id
      mergerepl tracking enable stock --rowguid rowguid --track insert,update
    """
    return done, f"Table {done.name} is tracked."


@tracking.add(
    DESTROYS,
    "ChangeTracking.disable() TABLE --keep-columns",
    asks="Remove the tombstones of {table} in {run.root}?",
    would="Table {table} would no longer be tracked.",
)
def disable(run: Invocation, _: None) -> Report:
    """End tracking; tombstones and tracking columns go.

    Example:
      mergerepl tracking disable orders --keep-columns
    """
    table = run.given["table"]
    return {"table": table, "tracked": False}, f"Table {table} is no longer tracked."


@tracking.add(
    WRITES,
    "ChangeTracking.consumer.enumerate CONSUMER --table:names --start --enumeration --exclude-context --output",
    name="enumerate",
)
def enumerate_changes(
    run: Invocation, consumer: str, table: Any, start: Any, output: str | None, **terms: Any
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
    database = _database(run)
    known = [each.name for each in database.consumers()]
    is_new = consumer not in known
    if is_new and start is None and (near := nearest_name(consumer, known)):
        raise ConfigurationError(
            f"There is no consumer '{consumer}'. Did you mean '{near}'? To register a new one, say where it begins: "
            "--start beginning, or --start now."
        )
    window = run.carry_out(
        lambda: database.consumer(consumer, start=start or "beginning").enumerate(table, **terms),
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


@tracking.add(
    DESTROYS,
    "ChangeTracking.forget() CONSUMER",
    asks="Forget the position of {consumer} in {run.root}?",
    would="Consumer {consumer} would be forgotten.",
)
def forget(run: Invocation, _: None) -> Report:
    """Forget a consumer that will not come again.

    Purges wait for it no longer.

    Example:
      mergerepl tracking forget hq
    """
    consumer = run.given["consumer"]
    return {"consumer": consumer, "registered": False}, f"Consumer {consumer} is forgotten."


@tracking.add(
    DESTROYS,
    "ChangeTracking.abort() BSN",
    hidden=True,
    asks="End transaction {bsn} in {run.root}? Its changes are undone.",
    would="Transaction {bsn} would be aborted.",
)
def abort(run: Invocation, _: None) -> Report:
    """End an open transaction of any owner.

    The owner gets an error at its next call. `mergerepl status` lists open transactions.

    Example:
      mergerepl tracking abort 17
    """
    return {**run.given, "state": "aborted"}, f"Transaction {run.given['bsn']} was aborted."


@tracking.add(WRITES, "ChangeTracking.adopt()", hidden=True)
def adopt(run: Invocation, count: int) -> Report:
    """Make transactions of the commits that went through none.

    Example:
      mergerepl tracking adopt
    """
    did = "that would be adopted" if run.dry_run else "adopted"
    return {"adopted": count}, f"Foreign commits {did}: {count}."


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
    left = ["Nothing is left to finish."] if run.dry_run else []
    run.report(
        {"last_bsn": found.last_bsn, "last_csn": found.last_csn, "open": found.open_transactions},
        *left,
        f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, open: {len(found.open_transactions)}.",
    )


def _purge(run: Invocation, planned: Purged) -> str:
    rows = counted(planned.removed, "row")
    return f"Remove {rows} of {planned.target} in {run.root}?" if planned.removed else ""


@tracking.add(
    DESTROYS,
    "ChangeTracking.purge() [TABLE] --older-than --to:number",
    hidden=True,
    one_of="--older-than --to",
    asks=_purge,
)
def purge(run: Invocation, done: Purged) -> Report:
    """Remove tombstones of a table, or without one rows of the commit sequence.

    Only rows that no registered consumer needs: older than an age, or of transactions up to the CSN --to.

    Example:
      mergerepl tracking purge orders --older-than 90d
      mergerepl tracking purge --to 1000 --dry-run
    """
    removed = "to be removed" if done.dry_run else "removed"
    kept = f"; {counted(done.held_back, 'row')} kept for consumers" if done.held_back else ""
    return done, f"{done.target}: {counted(done.removed, 'row')} {removed}{kept}."

"""`mergerepl tracking`: SQL Server Compact's change tracking over a folder of Delta tables."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl.cli.grammar import DESTROYS, WRITES, Invocation, group
from mergerepl.cli.options import key_columns, option
from mergerepl.cli.report.table import Columns, listing
from mergerepl.errors import ConfigurationError
from mergerepl.model.tracking import Purged
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.model.words import counted, nearest_name
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import REHEARSED, rehearsed

if TYPE_CHECKING:
    from mergerepl import ChangeTracking
    from mergerepl.model.tracking import ConsumerState

_WINDOW: Columns = {"table": "table", ">deletes": "deletes", ">inserts": "inserts", ">updates": "updates"}


def _database(run: Invocation, *, foreign: Literal["adopt", "refuse"] = "adopt") -> ChangeTracking:
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


@tracking.add(
    effect=WRITES,
    call="ChangeTracking.enable",
    takes="TABLE",
    options=("--key", "--rowguid", "--track", "--foreign"),
)
def enable(
    run: Invocation,
    table: str,
    key: tuple[str, ...],
    rowguid: str | None,
    track: tuple[str, ...],
    foreign: Literal["adopt", "refuse"],
) -> None:
    """Track a table: it gets three columns.

    Enabled again, what is tracked changes.

    Example:
      mergerepl tracking enable orders --key order_id
      mergerepl tracking enable stock --rowguid rowguid --track insert,update
    """
    if bool(key) == bool(rowguid):
        raise click.UsageError("Name the key's columns with --key, or a GUID column with --rowguid.")
    try:
        options = TrackingOptions.of(",".join(track))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--track") from error
    database = _database(run, foreign=foreign)
    done = run.rehearse(
        lambda: database.enable(table, key=key_columns(key), rowguid=rowguid, track=options),
        {"table": table},
        f"Table {table} would be tracked.",
    )
    run.output.reported(done, [f"Table {table} is tracked."])


@tracking.add(effect=DESTROYS, call="ChangeTracking.disable", takes="TABLE", options=("--keep-columns",))
def disable(run: Invocation, table: str, keep_columns: bool) -> None:
    """End tracking; tombstones and tracking columns go.

    Example:
      mergerepl tracking disable orders --keep-columns
    """
    database = _database(run)
    run.confirm(f"Remove the tombstones of {table} in {run.place.root()}?")
    run.rehearse(
        lambda: database.disable(table, keep_columns=keep_columns),
        {"table": table, "tracked": True},
        f"Table {table} would no longer be tracked.",
    )
    run.output.reported({"table": table, "tracked": False}, [f"Table {table} is no longer tracked."])


@tracking.add(
    name="enumerate",
    effect=WRITES,
    call="ChangeTracking.consumer.enumerate",
    takes="CONSUMER",
    options=("--table", "--start", "--enumeration", "--exclude-context", "--output"),
)
def enumerate_changes(
    run: Invocation,
    consumer: str,
    table: str | None,
    start: Literal["beginning", "now"] | None,
    enumeration: Literal["exact", "documented"],
    exclude_context: str | None,
    output: str | None,
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
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"'{folder}' is not empty: name a new folder for the window.")
    tables = None if table is None else tuple(each.strip() for each in table.split(","))
    database = _database(run)
    known = [each.name for each in database.consumers()]
    is_new = consumer not in known
    if is_new and start is None and (near := nearest_name(consumer, known)):
        raise ConfigurationError(
            f"There is no consumer '{consumer}'. Did you mean '{near}'? To register a new one, say where it begins: "
            "--start beginning, or --start now."
        )
    window = run.rehearse(
        lambda: database.consumer(consumer, start=start or "beginning").enumerate(
            tables, exclude_context, enumeration=enumeration
        ),
        {"consumer": consumer},
        f"Consumer {consumer} would be registered." if is_new else "Foreign commits would be adopted first.",
    )
    folder = None if run.dry_run else folder
    counts = window.counts() if folder is None else window.write_to(Location.of(folder.absolute()))
    stated = {**window.state.to_json(), "tables": counts}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "window.json").write_text(json.dumps(stated, indent=2), encoding="utf-8")
    rows = [{"table": name, **each} for name, each in counts.items() if name not in window.initial]
    copies = [f"{name}: the consumer has no copy yet; take all its rows." for name in window.initial]
    if is_new:
        copies.append(f"Consumer {consumer} is new: it is registered, and purges wait for it.")
    run.output.reported(stated, [listing(rows, _WINDOW), *copies, f"Window {window.id}."])


@tracking.add(
    effect=WRITES,
    call="ChangeTracking.consumer.acknowledge",
    takes="CONSUMER",
    options=(option("--window", required=True), "--fresh"),
)
def acknowledge(run: Invocation, consumer: str, window: str, fresh: tuple[str, ...] | None) -> None:
    """Note that a consumer has a window: its next one begins there.

    Example:
      mergerepl tracking acknowledge hq --window ./changes/window.json
    """
    stated = _json(Path(window))
    if stated.get("consumer") != consumer:
        raise ConfigurationError(
            f"'{window}' is a window of consumer '{stated.get('consumer')}', not of '{consumer}'. Nothing was changed."
        )
    database = _database(run)

    def acknowledged() -> ConsumerState:
        # A consumer that is not known is registered: that is a write, too.
        reader = database.consumer(consumer)
        reader.acknowledge(stated, fresh=fresh or ())
        return reader.state

    state = run.rehearse(
        acknowledged, {"consumer": consumer}, f"Consumer {consumer} would stand at the end of this window."
    )
    run.output.reported(state, [f"Consumer {consumer} stands at CSN {state.lcsn}."])


@tracking.add(effect=DESTROYS, call="ChangeTracking.forget", takes="CONSUMER")
def forget(run: Invocation, consumer: str) -> None:
    """Forget a consumer that will not come again.

    Purges wait for it no longer.

    Example:
      mergerepl tracking forget hq
    """
    database = _database(run)
    run.confirm(f"Forget the position of {consumer} in {run.place.root()}?")
    value = {"consumer": consumer, "registered": True}
    run.rehearse(lambda: database.forget(consumer), value, f"Consumer {consumer} would be forgotten.")
    run.output.reported({**value, "registered": False}, [f"Consumer {consumer} is forgotten."])


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


@tracking.add(effect=DESTROYS, call="ChangeTracking.abort", takes="BSN", hidden=True)
def abort(run: Invocation, bsn: int) -> None:
    """End an open transaction of any owner.

    The owner gets an error at its next call. `mergerepl status` lists open transactions.

    Example:
      mergerepl tracking abort 17
    """
    database = _database(run)
    run.confirm(f"End transaction {bsn} in {run.place.root()}? Its changes are undone.")
    value = {"bsn": bsn, "state": "open"}
    run.rehearse(lambda: database.abort(bsn), value, f"Transaction {bsn} would be aborted.")
    run.output.reported({**value, "state": "aborted"}, [f"Transaction {bsn} was aborted."])


@tracking.add(effect=WRITES, call="ChangeTracking.adopt", hidden=True)
def adopt(run: Invocation) -> None:
    """Make transactions of the commits that went through none.

    Example:
      mergerepl tracking adopt
    """
    database = _database(run)
    if run.dry_run:
        count = len(database.status().foreign_commits)
        run.output.reported({"adopted": count}, [f"Foreign commits that would be adopted: {count}."])
        return
    count = database.adopt()
    run.output.reported({"adopted": count}, [f"Foreign commits adopted: {count}."])


@tracking.add(effect=WRITES, call="ChangeTracking.recover", hidden=True)
def recover(run: Invocation) -> None:
    """Finish what processes left that died.

    Commands that change or enumerate do so first, too.

    Example:
      mergerepl tracking recover
    """
    database = _database(run)
    done = rehearsed(run.dry_run, database.recover)
    found = database.status()
    lines = [f"Last BSN {found.last_bsn}, last CSN {found.last_csn}, open: {len(found.open_transactions)}."]
    if run.dry_run:
        left = (
            "Something is left, and would be finished" if done is REHEARSED else "Nothing is left to finish"
        )
        lines.insert(0, f"{left}. Nothing was changed (--dry-run).")
    run.output.reported(
        {"last_bsn": found.last_bsn, "last_csn": found.last_csn, "open": found.open_transactions}, lines
    )


@tracking.add(
    effect=DESTROYS,
    call="ChangeTracking.purge",
    takes="[TABLE]",
    options=("--older-than", "--to"),
    hidden=True,
)
def purge(run: Invocation, table: str | None, older_than: timedelta | None, to: Any) -> None:
    """Remove tombstones of a table, or without one rows of the commit sequence.

    Only rows that no registered consumer needs: older than an age, or of transactions up to the CSN --to.

    Example:
      mergerepl tracking purge orders --older-than 90d
      mergerepl tracking purge --to 1000 --dry-run
    """
    if (older_than is None) == (to is None) or not (to is None or isinstance(to, int)):
        raise click.UsageError("Give --older-than (days) or --to (a CSN).")
    database = _database(run)
    # `to` is the last CSN that goes.
    remove = partial(database.purge, table, older_than=older_than, to=to)

    def question(planned: Purged) -> str:
        rows = counted(planned.removed, "row")
        return f"Remove {rows} of {planned.target} in {run.place.root()}?" if planned.removed else ""

    done = run.carry_out(remove, question)
    removed = "to be removed" if done.dry_run else "removed"
    kept = f"; {counted(done.held_back, 'row')} kept for consumers" if done.held_back else ""
    run.output.reported(done, [f"{done.target}: {counted(done.removed, 'row')} {removed}{kept}."])

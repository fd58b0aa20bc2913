"""`mergerepl cdc`: Change Data Capture over a folder of Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, Invocation, group
from mergerepl.cli.main import FAILED
from mergerepl.cli.options import key_columns
from mergerepl.cli.place import captured, database
from mergerepl.cli.report import tasks
from mergerepl.cli.report.columns import PARAMETERS, listing
from mergerepl.cli.report.table import Part, Table, cell
from mergerepl.model.words import counted, value_text
from mergerepl.store.rehearsal import rehearsed

if TYPE_CHECKING:
    from mergerepl.cdc.jobs import Jobs
    from mergerepl.model.cdc import AppliedChanges

cdc = group(
    "cdc",
    """Capture changes into change tables for ETL jobs.

    TABLE is a table's folder below the root; it stands for its only INSTANCE. `mergerepl capture` or the agent reads new
    commits; `status`, `history`, `resume`, `cleanup` and `vacuum` take captured tables, too.

    Example:
      mergerepl cdc enable orders --key order_id -f ./shop
      mergerepl capture -f ./shop
      mergerepl cdc changes orders -f ./shop
    """,
    is_at=True,
)


@cdc.add(
    WRITES,
    "cdc.Database.enable TABLE... --name --key --index-name --columns --role --no-net --on-gap "
    "--log-retention",
)
def enable(
    run: Invocation, tables: tuple[str, ...], key: tuple[str, ...], no_net: bool, **terms: Any
) -> None:
    """Capture a table: an instance begins.

    The first table enables the folder. A table has two instances at most.

    Example:
      mergerepl cdc enable orders --key order_id
      mergerepl cdc enable bronze/eu/items --columns id,price --key id
    """
    from mergerepl.cdc import Database

    if terms["name"] is not None and len(tables) > 1:
        raise click.UsageError("--name is for one table.")
    begin = Database(run.place.root()).enable
    terms |= {"key": key_columns(key) or None, "net": False if no_net else None}
    if terms["log_retention"] is None:
        del terms["log_retention"]
    calls = [partial(begin, table, **terms) for table in tables]
    # A table that is refused is refused before another one begins.
    for call in calls if run.dry_run or len(calls) > 1 else ():
        rehearsed(True, call)
    would = f"{', '.join(tables)} would be captured."
    found = [run.carry_out(call, would=would).describe().instance for call in calls]
    lines = [
        f"Capture instance {each.capture_instance} begins at {cell(each.start_lsn)}. Run `mergerepl capture "
        f"{run.place}`, or the agent, to capture what comes."
        for each in found
    ]
    run.report({"capture_instances": found}, *lines)


@cdc.add(DESTROYS, "cdc.Database.disable [TABLE]... --name --all")
def disable(run: Invocation, tables: tuple[str, ...], name: str | None, is_all: bool) -> None:
    """End capture; the change rows go.

    --name chooses one of a table's two instances. --all ends the capture of the folder.

    Example:
      mergerepl cdc disable orders
      mergerepl cdc disable --all --yes
    """
    if bool(tables) == is_all:
        raise click.UsageError("Name the tables, or say --all.")
    root, disable = run.place.root(), database(run.place).disable
    wanted: tuple[str | None, ...] = tables or (None,)

    def end(*, dry_run: bool) -> list[str]:
        return [each for table in wanted for each in disable(table, name=name, dry_run=dry_run)]

    # A table that is not captured is refused before another one ends.
    end(dry_run=True)
    names = run.carry_out(
        end, asks=lambda names: f"Remove all change rows of {', '.join(names) or 'no instance'} in {root}?"
    )
    did = "Would be disabled" if run.dry_run else "Disabled"
    run.report({"disabled": names}, f"{did}: {', '.join(names) or root}.")


@cdc.add(READS, "cdc.Database.instances --table", name="list")
def list_(run: Invocation, table: str | None) -> None:
    """List capture instances.

    Example:
      mergerepl cdc list --table orders
    """
    found = database(run.place).instances(table)
    run.report({"capture_instances": found}, listing(found))


@cdc.add(READS, "cdc.Instance.describe INSTANCE")
def show(run: Invocation, instance: str) -> None:
    """Show columns, LSN range and column changes of one.

    Example:
      mergerepl cdc show orders
    """
    found = captured(run.place, instance).describe()
    low, high = cell(found.min_lsn), cell(found.max_lsn)
    run.report(
        found,
        listing(found.columns),
        f"LSNs: {low or 'none'} to {high or 'none'}.",
        listing(found.ddl_history),
    )


@cdc.add(READS, "cdc.Instance.changes INSTANCE --from:LSN|time --to:LSN|time --net --row-filter --limit")
def changes(
    run: Invocation, instance: str, from_: Any, to: Any, net: bool, row_filter: str, limit: int
) -> None:
    """Show changes of a range; --net: one for each row.

    Both ends are included. Operations: 1 delete, 2 insert, 3 and 4 update, 5 insert or update.

    Example:
      mergerepl cdc changes orders
      mergerepl cdc changes orders --from 0x003757F80000002A0003 --row-filter all-update-old
      mergerepl cdc changes orders --net --row-filter all-with-merge
    """
    from mergerepl.cdc.shown_changes import shown_changes

    allowed = ("all", "all-with-mask", "all-with-merge") if net else ("all", "all-update-old")
    if row_filter not in allowed:
        raise click.UsageError(f"--row-filter {row_filter} is none of {', '.join(allowed)}.")
    source = captured(run.place, instance)
    found = shown_changes(source, from_, to, row_filter.replace("-", " "), net=net, limit=limit)
    value = {
        "from_lsn": str(found.from_lsn),
        "to_lsn": str(found.to_lsn),
        "rows": found.rows,
        "total": found.total,
    }
    run.report(value, *_change_parts(found.rows, found.columns, found.total))


def _change_parts(rows: Sequence[Mapping[str, object]], names: Sequence[str], total: int) -> list[Part]:
    """Return changes: LSN, operation, mask where there is one, the captured columns."""
    if not rows:
        return ["No changes."]
    shown = [name for name in names if name != "__$seqval"]
    shown = [name for name in shown if name != "__$update_mask" or any(row[name] for row in rows)]
    table = Table([name.removeprefix("__$") for name in shown])
    for row in rows:
        table.add(*(value_text(row[name]) for name in shown))
    return [table, tasks.of_total(len(rows), total, "change")]


@cdc.add(DESTROYS, "cdc.Instance.load INSTANCE --into! --consumer! --key --no-initial --restart")
def load(
    run: Invocation,
    instance: str,
    into: str,
    key: tuple[str, ...],
    no_initial: bool,
    restart: bool,
    **terms: Any,
) -> int:
    """Bring a Delta table up to date, exactly once.

    The first time a snapshot fills it. --key is for an instance without a key. Exit code 1: the source is paused, so that
    later changes are not captured; what was captured is applied.

    Example:
      mergerepl cdc load orders --into ./lake/orders --consumer lake
      mergerepl cdc load orders --into ./lake/orders --consumer lake --restart --yes
    """
    source = captured(run.place, instance)
    if restart:
        run.confirm(f"Replace all rows of {into}?")
    terms |= {"key": key_columns(key) or None, "initial": not no_initial, "restart": restart}
    done = run.carry_out(partial(source.load, into, **terms), would=f"{into} would be written.")
    run.report(done, *_loaded(done, str(run.place)))
    return FAILED if done.paused is not None else 0


def _loaded(done: AppliedChanges, place: str) -> list[str]:
    """Return what was done, and what keeps the target from the newest state."""
    if done.to_lsn is None:
        lines = [f"{done.target}: nothing is new."]
    elif done.is_snapshot:
        lines = [f"{done.target} is filled with {counted(done.upserted, 'row')} as of {cell(done.to_lsn)}."]
    else:
        lines = [
            f"{done.target}: {counted(done.upserted, 'row')} inserted or updated, {done.deleted:,} deleted, up to "
            f"{cell(done.to_lsn)}."
        ]
    if done.foreign_commits:
        lines.append(
            f"Other writers changed rows of it since the last run ({counted(done.foreign_commits, 'commit')}): the rows of "
            "this run are right, others were not compared."
        )
    if done.paused is not None:
        lines.append(f"Its source is paused, and later changes are not captured: {done.paused}")
    elif done.unread_commits:
        lines.append(
            "Not captured yet: "
            f"{counted(done.unread_commits, 'commit')} of its source. Run `mergerepl capture {place}` or the agent."
        )
    return lines


@cdc.add(WRITES, "cdc.Database.relocate", hidden=True)
def relocate(run: Invocation) -> None:
    """Take over a folder that was moved or copied.

    A copy gets LSNs of its own from then on.

    Example:
      mergerepl cdc relocate -f ./shop-copy
    """
    from mergerepl.cdc import Database

    root = run.place.root()
    is_copy = run.carry_out(Database(root).relocate, would=f"{root} would be taken over.")
    text = "A new epoch begins: its LSNs are higher than all before." if is_copy else "Its LSNs go on."
    run.report({"database": root, "new_epoch": is_copy}, f"{root} is taken over. {text}")


@cdc.add(READS, "cdc.Lsn [LSN]", hidden=True)
def lsn(run: Invocation, lsn: str | None) -> None:
    """Show the lowest and the highest LSN that can be asked for, or the parts of one.

    Example:
      mergerepl cdc lsn
      mergerepl cdc lsn 0x003757F80000002A0003
    """
    from mergerepl.cdc import Lsn

    if lsn is not None:
        try:
            value = Lsn.parse(lsn)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        epoch, cycle = divmod(value.scan_cycle, 1 << 32)
        parts = {"lsn": str(value), "epoch": epoch, "cycle": cycle, "slot": value.slot}
        run.report(parts, f"{value} is {epoch}:{cycle}:{value.slot} (epoch:cycle:slot).")
        return
    found = database(run.place).status()
    low, high = cell(found.min_lsn), cell(found.max_lsn)
    run.report(
        {"min_lsn": low, "max_lsn": high, "max_time": found.max_time}, f"{low or 'none'} to {high or 'none'}"
    )


@cdc.add(DESTROYS, "cdc.Instance.cleanup INSTANCE --to:LSN --threshold", hidden=True)
def cleanup(run: Invocation, instance: str, to: str | None, threshold: int | None) -> int:
    """Remove the change rows of one instance below an LSN.

    --to is its new low end; without it only what lies below the present one goes. Exit code 1 says that the change table
    could not be cleaned.

    Example:
      mergerepl cdc cleanup orders --to 0x003757F80000002A0003
    """
    source = captured(run.place, instance)
    more = {} if threshold is None else {"threshold": threshold}
    rows = f"the change rows of {source.name} in {run.place.root()} below {to or 'its low end'}"
    done = run.carry_out(
        partial(source.cleanup, to, **more), asks=f"Remove {rows}?", would=f"It would remove {rows}."
    )
    rows = counted(sum(done.rows.values()), "change row")
    low = cell(done.low_water_mark) or "as before"
    failed = (f"{name} could not be cleaned up: {why}" for name, why in done.failed.items())
    run.report(done, f"{rows} removed. The low end is {low}.", *failed)
    return FAILED if done.failed else 0


# -- jobs --------------------------------------------------------------------------------------------------------------

jobs = group(
    "jobs",
    """Look at the jobs, change, start and stop them.

    `mergerepl agent run` runs them: `capture` captures changes, `cleanup` removes old change rows. Where transactional
    publications are in the folder, `logreader` stands in place of `capture`.

    Example:
      mergerepl cdc jobs list
    """,
    is_at=True,
)
jobs.hidden = True
cdc.add_command(jobs)
_PARAMETERS = " ".join(f"--{name}" for name in PARAMETERS)


def _jobs(run: Invocation) -> Jobs:
    from mergerepl.cdc import Database

    return Database(run.place.root()).jobs


def _change(run: Invocation, call: Callable[[], Any], *, is_started: bool = False) -> None:
    """Change a job and report it."""
    from mergerepl.agents.control import agent_status

    job = run.carry_out(call, would="The job would be changed.")
    parts: list[Part] = [listing([job])]
    runs = agent_status(run.place.root()).pid is not None
    if is_started and not runs:
        parts.append(f"No agent runs: start one with `mergerepl agent run {run.place}`.")
    run.report({"job": job, "agent_runs": runs}, *parts)


@jobs.add(READS, "cdc.Database.jobs.list", name="list")
def list_jobs(run: Invocation) -> None:
    """List the jobs.

    Example:
      mergerepl cdc jobs list
    """
    from mergerepl.agents.control import agent_status

    agent, found = agent_status(run.place.root()), _jobs(run).list()
    run.report({"jobs": found, "agent_runs": agent.pid is not None}, *tasks.jobs_of_root(agent, found))


@jobs.add(WRITES, f"cdc.Database.jobs.add JOB {_PARAMETERS} --no-start")
def add(run: Invocation, job: str, no_start: bool, **parameters: Any) -> None:
    """Create a job: capture, cleanup or logreader.

    Both come with the first capture instance.

    Example:
      mergerepl cdc jobs add capture --pollinginterval 60
    """
    work = partial(_jobs(run).add, job, start=not no_start, **parameters)
    _change(run, work, is_started=not no_start)


@jobs.add(WRITES, f"cdc.Database.jobs.change JOB {_PARAMETERS}")
def change(run: Invocation, job: str, **parameters: Any) -> None:
    """Change parameters of a job.

    They take effect when it is stopped and started.

    Example:
      mergerepl cdc jobs change cleanup --retention 10080
    """
    _change(run, partial(_jobs(run).change, job, **parameters))


@jobs.add(WRITES, "cdc.Database.jobs.drop JOB")
def drop(run: Invocation, job: str) -> None:
    """Remove a job.

    Example:
      mergerepl cdc jobs drop capture
    """
    run.carry_out(partial(_jobs(run).drop, job), would=f"Job {job} would be removed.")
    by_hand = "cleanup" if job == "cleanup" else "capture"
    text = f"Job {job} is removed. `mergerepl {by_hand} {run.place}` does its work by hand."
    run.report({"dropped": job}, text)


@jobs.add(WRITES, "cdc.Database.jobs.start JOB")
def start(run: Invocation, job: str) -> None:
    """Ask for a job to run.

    An agent takes it up within a second.

    Example:
      mergerepl cdc jobs start capture
    """
    _change(run, partial(_jobs(run).start, job), is_started=True)


@jobs.add(WRITES, "cdc.Database.jobs.stop JOB")
def stop(run: Invocation, job: str) -> None:
    """Ask for a job to stop.

    A cycle that runs is finished first; nothing is lost.

    Example:
      mergerepl cdc jobs stop capture
    """
    _change(run, partial(_jobs(run).stop, job))

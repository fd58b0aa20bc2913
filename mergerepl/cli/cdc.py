"""`mergerepl cdc`: Change Data Capture over a folder of Delta tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.report import tasks
from mergerepl.cli.report.columns import PARAMETERS, listing
from mergerepl.cli.report.table import Part, Report, Table, cell
from mergerepl.model.words import counted, value_text
from mergerepl.store.rehearsal import rehearsed

if TYPE_CHECKING:
    from mergerepl.cdc import Database
    from mergerepl.model.cdc import AppliedChanges, CaptureInstance, InstanceDescription, Job, RemovedChanges


def _database(run: Invocation) -> Database:
    from mergerepl.cdc import Database

    return Database(run.root)


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
    "cdc.Database.enable TABLE... --name --key:columns --index-name --columns --role --no-net --on-gap "
    "--log-retention",
)
def enable(run: Invocation, tables: tuple[str, ...], **terms: Any) -> None:
    """Capture a table: an instance begins.

    The first table enables the folder. A table has two instances at most.

    Example:
      mergerepl cdc enable orders --key order_id
      mergerepl cdc enable bronze/eu/items --columns id,price --key id
    """
    if terms["name"] is not None and len(tables) > 1:
        raise click.UsageError("--name is for one table.")
    given = {option: value for option, value in terms.items() if value is not None}
    tables = tuple(dict.fromkeys(tables))
    calls = [partial(_database(run).enable, table, **given) for table in tables]
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


@cdc.add(
    DESTROYS,
    "cdc.Database.disable() [TABLE]... --name --all",
    asks=lambda run, names: f"Remove all change rows of {', '.join(names) or 'no instance'} in {run.root}?",
)
def disable(run: Invocation, names: Sequence[str]) -> Report:
    """End capture; the change rows go.

    --name chooses one of a table's two instances. --all ends the capture of the folder.

    Example:
      mergerepl cdc disable orders
      mergerepl cdc disable --all --yes
    """
    did = "Would be disabled" if run.dry_run else "Disabled"
    return {"disabled": names}, f"{did}: {', '.join(names) or run.root}."


@cdc.add(READS, "cdc.Database.instances() --table", name="list")
def list_(run: Invocation, found: Sequence[CaptureInstance]) -> Report:
    """List capture instances.

    Example:
      mergerepl cdc list --table orders
    """
    return {"capture_instances": found}, listing(found)


@cdc.add(READS, "cdc.Instance.describe() INSTANCE")
def show(run: Invocation, found: InstanceDescription) -> Report:
    """Show columns, LSN range and column changes of one.

    Example:
      mergerepl cdc show orders
    """
    low, high = cell(found.min_lsn), cell(found.max_lsn)
    lsns = f"LSNs: {low or 'none'} to {high or 'none'}."
    return found, listing(found.columns), lsns, listing(found.ddl_history)


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
    source = _database(run).instance(instance)
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


@cdc.add(
    DESTROYS,
    "cdc.Instance.load() INSTANCE --into! --consumer! --key:columns --no-initial --restart",
    asks="Replace all rows of {target}?",
    asks_with="restart",
    would="{target} would be written.",
)
def load(run: Invocation, done: AppliedChanges) -> Report:
    """Bring a Delta table up to date, exactly once.

    The first time a snapshot fills it. --key is for an instance without a key. Exit code 1: the source is paused, so that
    later changes are not captured; what was captured is applied.

    Example:
      mergerepl cdc load orders --into ./lake/orders --consumer lake
      mergerepl cdc load orders --into ./lake/orders --consumer lake --restart --yes
    """
    return done, *_loaded(done, run.place)


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


@cdc.add(WRITES, "cdc.Database.relocate()", hidden=True, would="{run.root} would be taken over.")
def relocate(run: Invocation, is_copy: bool) -> Report:
    """Take over a folder that was moved or copied.

    A copy gets LSNs of its own from then on.

    Example:
      mergerepl cdc relocate -f ./shop-copy
    """
    text = "A new epoch begins: its LSNs are higher than all before." if is_copy else "Its LSNs go on."
    return {"database": run.root, "new_epoch": is_copy}, f"{run.root} is taken over. {text}"


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
    found = _database(run).status()
    low, high = cell(found.min_lsn), cell(found.max_lsn)
    run.report(
        {"min_lsn": low, "max_lsn": high, "max_time": found.max_time}, f"{low or 'none'} to {high or 'none'}"
    )


@cdc.add(
    DESTROYS,
    "cdc.Instance.cleanup() INSTANCE --to:LSN --threshold",
    hidden=True,
    asks="Remove the change rows of {instance} in {run.root} below {to}?",
    asks_with="to",
    would="Change rows of {instance} in {run.root} would be removed.",
)
def cleanup(run: Invocation, done: RemovedChanges) -> Report:
    """Remove the change rows of one instance below an LSN.

    --to is its new low end; without it only what lies below the present one goes. Exit code 1 says that the change table
    could not be cleaned.

    Example:
      mergerepl cdc cleanup orders --to 0x003757F80000002A0003
    """
    rows = counted(sum(done.rows.values()), "change row")
    low = cell(done.low_water_mark) or "as before"
    failed = (f"{name} could not be cleaned up: {why}" for name, why in done.failed.items())
    return done, f"{rows} removed. The low end is {low}.", *failed


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


def _changed(run: Invocation, job: Job, *, is_started: bool = False) -> Report:
    """Return the report of a job, and whether an agent runs that takes it up."""
    from mergerepl.agents.control import agent_status

    runs = agent_status(run.root).pid is not None
    said = [f"No agent runs: start one with `mergerepl agent run {run.place}`."]
    return {"job": job, "agent_runs": runs}, listing([job]), *(said if is_started and not runs else ())


@jobs.add(READS, "cdc.Database.jobs.list()", name="list")
def list_jobs(run: Invocation, found: Sequence[Job]) -> Report:
    """List the jobs.

    Example:
      mergerepl cdc jobs list
    """
    from mergerepl.agents.control import agent_status

    agent = agent_status(run.root)
    return {"jobs": found, "agent_runs": agent.pid is not None}, *tasks.jobs_of_root(agent, found)


_CHANGED = "The job would be changed."


@jobs.add(WRITES, f"cdc.Database.jobs.add() JOB {_PARAMETERS} --no-start", would=_CHANGED)
def add(run: Invocation, job: Job) -> Report:
    """Create a job: capture, cleanup or logreader.

    Both come with the first capture instance.

    Example:
      mergerepl cdc jobs add capture --pollinginterval 60
    """
    return _changed(run, job, is_started=run.given["start"] is None)


@jobs.add(WRITES, f"cdc.Database.jobs.change() JOB {_PARAMETERS}", would=_CHANGED)
def change(run: Invocation, job: Job) -> Report:
    """Change parameters of a job.

    They take effect when it is stopped and started.

    Example:
      mergerepl cdc jobs change cleanup --retention 10080
    """
    return _changed(run, job)


@jobs.add(WRITES, "cdc.Database.jobs.drop() JOB", would="Job {job} would be removed.")
def drop(run: Invocation, _: None) -> Report:
    """Remove a job.

    Example:
      mergerepl cdc jobs drop capture
    """
    job = run.given["job"]
    by_hand = "cleanup" if job == "cleanup" else "capture"
    return {"dropped": job}, f"Job {job} is removed. `mergerepl {by_hand} {run.place}` does its work by hand."


@jobs.add(WRITES, "cdc.Database.jobs.start() JOB", would=_CHANGED)
def start(run: Invocation, job: Job) -> Report:
    """Ask for a job to run.

    An agent takes it up within a second.

    Example:
      mergerepl cdc jobs start capture
    """
    return _changed(run, job, is_started=True)


@jobs.add(WRITES, "cdc.Database.jobs.stop() JOB", would=_CHANGED)
def stop(run: Invocation, job: Job) -> Report:
    """Ask for a job to stop.

    A cycle that runs is finished first; nothing is lost.

    Example:
      mergerepl cdc jobs stop capture
    """
    return _changed(run, job)

"""`mergerepl cdc`: what consumers and operators use: changes, apply, cleanup, vacuum, jobs, sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.help import Command, Group
from mergerepl.cli.options import limit_option, reporting
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, Table, cell, listing
from mergerepl.model.cdc import AgentStatus, AppliedChanges, CleanupResult, Job
from mergerepl.model.words import counted, moment_text, typed, value_text

if TYPE_CHECKING:
    from mergerepl.logreader.lsn import Lsn

root_argument = click.argument("root", metavar="ROOT")
instance_argument = click.argument("instance", metavar="INSTANCE")
job_types = click.Choice(["capture", "cleanup", "logreader"])
job_argument = click.argument("job_type", metavar="JOB", type=job_types)

_SESSIONS: Columns = {
    ">session": "session_id",
    "began": "start_time",
    ">seconds": "duration",
    "last LSN": "end_lsn",
    ">transactions": "tran_count",
    ">rows": "command_count",
    ">latency": "latency",
    ">errors": "error_count",
}
_PARAMETERS = ["maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold", "schedule"]


def _parameters_of(job: Job) -> str:
    given = {name: getattr(job, name) for name in _PARAMETERS} | {
        "last run": moment_text(job.last_run) or None
    }
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


_JOBS: Columns = {"job": "job_type", "asked to be": "requested", "parameters": _parameters_of}
chosen_job_argument = click.argument("job_type", metavar="[JOB]", type=job_types, default="capture")


class LsnType(click.ParamType[Any]):
    """An LSN: `0x` and 20 hexadecimal digits, or `epoch:cycle:slot`."""

    name = "LSN"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Lsn:
        """Read an LSN."""
        from mergerepl import cdc as api

        if isinstance(value, api.Lsn):
            return value
        try:
            return api.Lsn.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(click.ParamType[Any]):
    """A time as ISO 8601 writes it; one without a zone is local."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read a time."""
        try:
            return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time: write it as 2026-03-01T12:00:00Z.", param, ctx)


@dataclass(frozen=True)
class _Window:
    """What the options say of a window."""

    from_lsn: Lsn | None
    to_lsn: Lsn | None
    from_time: datetime | None
    to_time: datetime | None

    def ends(self, root: str, instance: str) -> tuple[Lsn | None, Lsn | None]:
        """Return the LSNs of an instance's window, both included; None where there is none."""
        from mergerepl import cdc as api

        database = api.Database(root)
        first, last = self.from_lsn, self.to_lsn
        if first is None and self.from_time is None:
            first = database.instance(instance).min_lsn()
        elif first is None and self.from_time is not None:
            first = database.lsn_at(self.from_time, "smallest greater than or equal")
        if last is None:
            last = database.max_lsn() if self.to_time is None else database.lsn_at(self.to_time)
        return first, last


def _window(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which window is read; the command gets a `window`."""

    @wraps(command)
    def with_window(*, from_lsn: Any, to_lsn: Any, from_time: Any, to_time: Any, **others: Any) -> Any:
        return command(window=_Window(from_lsn, to_lsn, from_time, to_time), **others)

    for option in (
        click.option(
            "--to-time", metavar="TIME", type=TimeType(), help="In place of --to-lsn: up to this time."
        ),
        click.option(
            "--from-time", metavar="TIME", type=TimeType(), help="In place of --from-lsn: from this time on."
        ),
        click.option(
            "--to-lsn", metavar="LSN", type=LsnType(), help="End of the window; else the highest LSN."
        ),
        click.option(
            "--from-lsn", metavar="LSN", type=LsnType(), help="Beginning of the window; else the lowest LSN."
        ),
    ):
        with_window = option(with_window)
    return with_window


@click.command(cls=Command)
@root_argument
@instance_argument
@_window
@click.option(
    "--option",
    "row_filter_option",
    type=click.Choice(["all", "all-update-old"]),
    default="all",
    show_default=True,
    help="Whether rows before updates (3) are among them.",
)
@limit_option("At most so many rows.")
@reporting
def changes(
    root: str, instance: str, window: _Window, row_filter_option: str, limit: int, output: Output
) -> None:
    """Show all changes of an instance in a window, both ends included. Operations: 1 delete, 2 insert, 3 and 4 update.

    Example:
      mergerepl cdc changes ./shop dbo_orders
      mergerepl cdc changes ./shop dbo_orders --from-lsn 0x003757F80000002A0003 --option all-update-old
    """
    from mergerepl.cdc import tsql

    _show(tsql.fn_cdc_get_all_changes, root, instance, window, row_filter_option, limit, output)


@click.command(cls=Command)
@root_argument
@instance_argument
@_window
@click.option(
    "--option",
    "row_filter_option",
    type=click.Choice(["all", "all-with-mask", "all-with-merge"]),
    default="all",
    show_default=True,
    help="Whether to say which columns changed; or 5 (insert or update) in place of 2 and 4.",
)
@limit_option("At most so many rows.")
@reporting
def net(
    root: str, instance: str, window: _Window, row_filter_option: str, limit: int, output: Output
) -> None:
    """Show the net change of each row of an instance in a window, both ends included.

    Example:
      mergerepl cdc net ./shop dbo_orders --option all-with-merge
    """
    from mergerepl.cdc import tsql

    _show(tsql.fn_cdc_get_net_changes, root, instance, window, row_filter_option, limit, output)


def _show(
    query: Callable[..., Any],
    root: str,
    instance: str,
    window: _Window,
    row_filter_option: str,
    limit: int,
    output: Output,
) -> None:
    from mergerepl.cdc.queries import first_rows

    first, last = window.ends(root, instance)
    frame = query(root, instance, first, last, row_filter_option.replace("-", " "))
    rows, has_more = first_rows(frame, limit)
    value = {"from_lsn": str(first), "to_lsn": str(last), "rows": rows, "has_more": has_more}
    output.reported(value, _change_parts(rows, frame.columns, has_more=has_more))


def _change_parts(
    rows: Sequence[Mapping[str, object]], names: Sequence[str], *, has_more: bool
) -> list[Part]:
    """Return changes: LSN, operation, mask where there is one, the captured columns."""
    if not rows:
        return ["No changes."]
    shown = [name for name in names if name != "__$seqval"]
    shown = [name for name in shown if name != "__$update_mask" or any(row[name] for row in rows)]
    table = Table([name.removeprefix("__$") for name in shown])
    for row in rows:
        table.add(*(value_text(row[name]) for name in shown))
    return [table, "There are more: see them with --limit."] if has_more else [table]


@click.command(cls=Command)
@root_argument
@instance_argument
@click.argument("target", metavar="TARGET")
@click.option(
    "--consumer", metavar="NAME", required=True, help="Name of the consumer: each has a cursor of its own."
)
@click.option(
    "--keys", metavar="COLUMNS", help="The columns that identify a row, of an instance without a key."
)
@click.option(
    "--initial/--no-initial",
    default=True,
    show_default=True,
    help="Fill a target without a cursor from a snapshot, or take its rows as they are.",
)
@click.option(
    "--restart", is_flag=True, help="Replace the rows of the target by a snapshot, and go on from it."
)
@reporting
@click.pass_context
def apply(
    ctx: click.Context,
    root: str,
    instance: str,
    target: str,
    consumer: str,
    keys: str | None,
    initial: bool,
    restart: bool,
    output: Output,
) -> None:
    """Bring a Delta table to the newest state of an instance, exactly once. The first time it is filled from a snapshot.

    Exit code 1 says that the source is paused, so that later changes are not captured; what was captured is applied.

    Example:
      mergerepl cdc apply ./shop dbo_orders ./lake/orders --consumer lake
      mergerepl cdc apply ./shop dbo_orders ./lake/orders --consumer lake --restart
    """
    from mergerepl import cdc as api

    source = api.Database(root).instance(instance)
    done = source.load(target, consumer=consumer, key=keys, initial=initial, restart=restart)
    output.reported(done, _applied(done))
    if done.paused is not None:
        ctx.exit(1)


def _applied(done: AppliedChanges) -> list[str]:
    """Return what `apply` did, and what keeps the target from the newest state."""
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
            f"{counted(done.unread_commits, 'commit')} of its source. Run `mergerepl cdc capture` or the agent."
        )
    return lines


@click.command(cls=Command)
@root_argument
@click.option("--instance", metavar="INSTANCE", help="Only this one, up to --low-water-mark.")
@click.option(
    "--low-water-mark",
    metavar="LSN",
    type=LsnType(),
    help="With --instance: its new low end; else only what lies below the present one goes.",
)
@click.option(
    "--retention", metavar="MINUTES", type=int, help="How long change rows are kept; else the job's."
)
@click.option("--threshold", metavar="N", type=int, help="Rows of one statement; else the job's.")
@reporting
@click.pass_context
def cleanup(
    ctx: click.Context,
    root: str,
    instance: str | None,
    low_water_mark: Lsn | None,
    retention: int | None,
    threshold: int | None,
    output: Output,
) -> None:
    """Remove old change rows, once. Exit code 1 says that a change table could not be cleaned.

    Example:
      mergerepl cdc cleanup ./shop
      mergerepl cdc cleanup ./shop --instance dbo_orders --low-water-mark 0x003757F80000002A0003
    """
    from mergerepl import cdc as api

    if instance is None:
        if low_water_mark is not None:
            raise click.UsageError("--low-water-mark needs --instance.")
        done = api.Database(root).cleanup(retention=retention, threshold=threshold)
    else:
        more = {} if threshold is None else {"threshold": threshold}
        done = api.Database(root).instance(instance).cleanup(low_water_mark, **more)
    output.reported(done, _cleaned(done))
    if done.failed:
        ctx.exit(1)


def _cleaned(done: CleanupResult) -> list[Part]:
    if done.low_water_mark is None:
        return ["Nothing is old enough."]
    removed = ", ".join(f"{name} {rows:,}" for name, rows in done.rows.items()) or "none"
    parts: list[Part] = [
        f"Change rows removed: {removed}. The low end is {cell(done.low_water_mark)} or higher."
    ]
    return [*parts, *(f"{name} could not be cleaned up: {why}" for name, why in done.failed.items())]


@click.command(cls=Command)
@root_argument
@click.argument("source", metavar="TABLE")
@reporting
def vacuum(root: str, source: str, output: Output) -> None:
    """Remove old files of a captured table (VACUUM), but none that a reader of its changes has still to read.

    Example:
      mergerepl cdc vacuum ./shop orders
    """
    from mergerepl import cdc as api

    done = api.Database(root).vacuum(source)
    kept = f"Files of the last {done.retention_hours:,} hours are kept."
    why = f" Version {done.read_through + 1:,} has still to be read." if done.read_through is not None else ""
    output.reported(done, [f"{source}: old files are removed. {kept}{why}"])


@click.command(cls=Command)
@root_argument
@limit_option("At most so many, newest first.")
@reporting
def sessions(root: str, limit: int, output: Output) -> None:
    """List the scan cycles that did something: their LSNs, transactions, rows and latency.

    Example:
      mergerepl cdc sessions ./shop
    """
    from mergerepl import cdc as api

    found = api.Database(root).history(limit=limit)
    output.reported(
        {"scan_sessions": found}, [listing(found, _SESSIONS) if found else "No scan has found anything yet."]
    )


# -- jobs --------------------------------------------------------------------------------------------------------------


@click.group(cls=Group)
def jobs() -> None:
    """Look at the jobs, change, start and stop them. `mergerepl agent run` runs them.

    capture captures changes, cleanup removes old change rows. Where transactional publications are in the folder, logreader
    stands in place of capture.

    Example:
      mergerepl cdc jobs list ./shop
      mergerepl cdc jobs stop ./shop capture
    """


def _parameters(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--schedule", metavar="HH:MM", help="cleanup: local time of day (02:00)."),
        click.option(
            "--threshold", metavar="N", type=int, help="cleanup: rows of a statement at most (5,000)."
        ),
        click.option(
            "--retention", metavar="MINUTES", type=int, help="cleanup: how long rows are kept (4,320)."
        ),
        click.option(
            "--pollinginterval", metavar="SECONDS", type=int, help="capture: how long it waits (5)."
        ),
        click.option(
            "--continuous/--once", default=None, help="capture: whether it goes on after it waited."
        ),
        click.option("--maxscans", metavar="N", type=int, help="capture: cycles before it waits (10)."),
        click.option("--maxtrans", metavar="N", type=int, help="capture: transactions of a cycle (1,000)."),
    ):
        command = option(command)
    return command


def _report_job(root: str, job: Any, output: Output, *, is_started: bool = False) -> None:
    from mergerepl.agents.control import agent_status

    parts: list[Part] = [listing([job], _JOBS)]
    runs = agent_status(root).pid is not None
    if is_started and not runs:
        parts.append(f"No agent runs: start one with `mergerepl agent run {root}`.")
    output.reported({"job": job, "agent_runs": runs}, parts)


def agent_parts(who: AgentStatus, found: Sequence[Job]) -> list[Part]:
    """Return who runs the jobs of a root, and the jobs."""
    runs = (
        f"{who.root}: no agent runs. Start one with `mergerepl agent run {typed(who.root)}`."
        if who.pid is None
        else f"{who.root}: process {who.pid} on {who.host} runs the jobs, since {who.since}."
    )
    return [runs, listing(found, _JOBS)] if found else [runs, "There are no jobs."]


@jobs.command("list")
@root_argument
@reporting
def list_(root: str, output: Output) -> None:
    """List the jobs of a database.

    Example:
      mergerepl cdc jobs list ./shop
    """
    from mergerepl import cdc as api
    from mergerepl.agents.control import agent_status

    agent, found = agent_status(root), api.Database(root).jobs.list()
    output.reported({"jobs": found, "agent_runs": agent.pid is not None}, agent_parts(agent, found))


@jobs.command()
@root_argument
@job_argument
@_parameters
@click.option("--start/--no-start", default=True, show_default=True, help="Whether it is started at once.")
@reporting
def add(root: str, job_type: str, start: bool, output: Output, **parameters: Any) -> None:
    """Create a job. Both come with the first capture instance.

    Example:
      mergerepl cdc jobs add ./shop capture --pollinginterval 60
    """
    from mergerepl import cdc as api

    _report_job(
        root, api.Database(root).jobs.add(job_type, start=start, **parameters), output, is_started=start
    )


@jobs.command()
@root_argument
@chosen_job_argument
@_parameters
@reporting
def change(root: str, job_type: str, output: Output, **parameters: Any) -> None:
    """Change parameters of a job. They take effect when it is stopped and started.

    Example:
      mergerepl cdc jobs change ./shop cleanup --retention 10080
    """
    from mergerepl import cdc as api

    _report_job(root, api.Database(root).jobs.change(job_type, **parameters), output)


@jobs.command()
@root_argument
@job_argument
@reporting
def drop(root: str, job_type: str, output: Output) -> None:
    """Remove a job.

    Example:
      mergerepl cdc jobs drop ./shop capture
    """
    from mergerepl import cdc as api

    api.Database(root).jobs.drop(job_type)
    output.reported(
        {"dropped": job_type},
        [f"Job {job_type} is removed. `mergerepl cdc {job_type}` does its work by hand."],
    )


@jobs.command()
@root_argument
@chosen_job_argument
@reporting
def start(root: str, job_type: str, output: Output) -> None:
    """Ask for a job to run. An agent takes it up within a second.

    Example:
      mergerepl cdc jobs start ./shop capture
    """
    from mergerepl import cdc as api

    _report_job(root, api.Database(root).jobs.start(job_type), output, is_started=True)


@jobs.command()
@root_argument
@chosen_job_argument
@reporting
def stop(root: str, job_type: str, output: Output) -> None:
    """Ask for a job to stop. A cycle that runs is finished first; nothing is lost.

    Example:
      mergerepl cdc jobs stop ./shop capture
    """
    from mergerepl import cdc as api

    _report_job(root, api.Database(root).jobs.stop(job_type), output)


COMMANDS = (changes, net, apply, cleanup, vacuum, sessions, jobs)

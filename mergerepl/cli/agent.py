"""`mergerepl agent`: the process that runs the jobs of roots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.help import Group
from mergerepl.cli.main import run_command
from mergerepl.cli.options import duration, reporting
from mergerepl.cli.report.output import Output
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.model.cdc import JobEvent

roots_argument = click.argument("targets", metavar="FILE|ROOT...", nargs=-1, required=True)


def _interval_options(command: Callable[..., Any]) -> Callable[..., Any]:
    interval = click.option(
        "--interval",
        type=duration,
        default="60s",
        show_default=True,
        metavar="TIME",
        help="Wait this long (60s, 5m, 1h) after the syncs of a merge publication.",
    )
    no_sync = click.option(
        "--no-sync", is_flag=True, help="Run no syncs and distributions, but those that commands hand over."
    )
    return interval(no_sync(command))


@click.group(cls=Group)
def agent() -> None:
    """Run captures, log readers, distributions, syncs and cleanups in the background.

    One process serves any number of roots; FILE means the root of its publisher. The agent looks at the jobs of each
    (`mergerepl cdc jobs`) twice a second. It reads the log of a root with transactional publications and distributes
    the commands every 5 seconds. It runs the merge sessions of a root's publications every --interval. Between the jobs
    it runs the syncs of these publishers that `mergerepl sync` hands over: see there.

    Example:
      mergerepl agent run ./shop
      mergerepl agent stop ./shop
    """


@agent.command()
@roots_argument
@_interval_options
@reporting
def run(targets: tuple[str, ...], interval: int, no_sync: bool, output: Output) -> None:
    """Run the jobs of roots until Ctrl-C, SIGTERM or `mergerepl agent stop`. A job that runs is never cut short.

    Example:
      mergerepl agent run ./shop ./warehouse
      mergerepl agent run sales.yml --interval 5m
    """
    from mergerepl.agents import jobs
    from mergerepl.agents.loop import in_worker, signals
    from mergerepl.agents.server import CommandServer, warm_up
    from mergerepl.model.words import moment_text

    def report(event: JobEvent) -> None:
        failed = " failed" if event.is_failed else ""
        text = f"{moment_text(event.time)} {event.database} {event.job}{failed}: {event.text}"
        output.noted(event, text)

    roots = _roots(targets)
    with (
        signals() as stop,
        CommandServer([Location.of(root) for root in roots], run_command, warm_up) as server,
    ):
        terms: dict[str, Any] = {
            "report": report,
            "is_asked_to_stop": lambda: stop.asked,
            "pause": server.serve,
            "intervals": None if no_sync else jobs.Intervals(sync_s=interval),
        }
        in_worker(lambda: jobs.run(roots, **terms), name="agent")


@agent.command()
@roots_argument
@_interval_options
@reporting
def start(targets: tuple[str, ...], interval: int, no_sync: bool, output: Output) -> None:
    """Start `mergerepl agent run` in the background. It logs to .mergerepl.agent.log in the first root.

    Example:
      mergerepl agent start ./shop ./warehouse
    """
    from mergerepl.agents.control import start_agent

    options = ["--interval", f"{interval}s", *(["--no-sync"] if no_sync else [])]
    found = start_agent(_roots(targets), options)
    output.reported({"started": found}, [f"{each.root}: process {each.pid} runs." for each in found])


@agent.command()
@roots_argument
@reporting
def status(targets: tuple[str, ...], output: Output) -> None:
    """Show who runs the jobs of roots, and what was asked of each job.

    Example:
      mergerepl agent status ./shop
    """
    from mergerepl.agents.control import agent_status, jobs_of, replication_jobs
    from mergerepl.cdc.tables import tables_at
    from mergerepl.cli.cdc_reading import agent_parts

    found = [agent_status(root) for root in _roots(targets)]
    jobs = {
        each.root: [*jobs_of(tables_at(each.root)), *replication_jobs(Location.of(each.root))]
        for each in found
    }
    value = [{"agent": each, "jobs": jobs[each.root]} for each in found]
    output.reported({"roots": value}, [part for each in found for part in agent_parts(each, jobs[each.root])])


@agent.command()
@roots_argument
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="How long to wait for a cycle that runs.",
)
@reporting
def stop(targets: tuple[str, ...], wait_s: float, output: Output) -> None:
    """End the agent of roots, after the cycle that runs. An agent of several roots ends as a whole.

    Example:
      mergerepl agent stop ./shop
    """
    from mergerepl.agents.control import stop_agent

    found = [stop_agent(root, wait_s=wait_s) for root in _roots(targets)]
    texts = [
        f"{each.root}: no agent runs." if each.pid is None else f"{each.root}: process {each.pid} has ended."
        for each in found
    ]
    output.reported({"stopped": found}, texts)


def _roots(targets: Sequence[str]) -> list[str]:
    """Return the folders that arguments mean: of a file, its publisher's."""
    from mergerepl.project import Project

    return Project.load(*targets).own_roots()

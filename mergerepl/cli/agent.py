"""`mergerepl agent`: the process that runs the jobs of databases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.help import Group
from mergerepl.cli.options import reporting
from mergerepl.cli.report.output import Output
from mergerepl.roots import existing

if TYPE_CHECKING:
    from mergerepl.model.cdc import JobEvent

roots_argument = click.argument("roots", metavar="ROOT...", nargs=-1, required=True)


@click.group(cls=Group)
def agent() -> None:
    """Run the jobs of databases: capture and cleanup; for transactional publications, the log reader.

    One process serves any number of roots. It looks at the jobs of each (`mergerepl cdc jobs`) twice a second. The log of
    a root with publications is read without a word; `mergerepl transactional distribute` brings the commands on. Between
    the jobs it runs the syncs of these publishers that `mergerepl sync` hands over: see there.

    Example:
      mergerepl agent run ./shop
      mergerepl agent stop ./shop
    """


@agent.command()
@roots_argument
@reporting
def run(roots: tuple[str, ...], output: Output) -> None:
    """Run the jobs of roots until Ctrl-C, SIGTERM or `mergerepl agent stop`. A cycle is never cut short.

    Example:
      mergerepl agent run ./shop ./warehouse
    """
    from concurrent.futures import ThreadPoolExecutor

    from mergerepl.agents import agent as jobs
    from mergerepl.cli.agent_server import Desk, run_command, warm_up
    from mergerepl.cli.rounds import result_of, signals
    from mergerepl.model.words import moment_text

    def report(event: JobEvent) -> None:
        failed = " failed" if event.is_failed else ""
        text = f"{moment_text(event.time)} {event.database} {event.job}{failed}: {event.text}"
        output.noted(event, text)

    with (
        signals() as stop,
        Desk([Path(existing(root)) for root in roots], run_command, warm_up) as desk,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent") as worker,
    ):
        terms: dict[str, Any] = {
            "report": report,
            "is_asked_to_stop": lambda: stop.asked,
            "pause": desk.serve,
        }
        result_of(worker.submit(jobs.run, roots, **terms))


@agent.command()
@roots_argument
@reporting
def start(roots: tuple[str, ...], output: Output) -> None:
    """Start `mergerepl agent run` in the background. What it says goes to .mergerepl.agent.log in the first root.

    Example:
      mergerepl agent start ./shop ./warehouse
    """
    from mergerepl.agents.control import start_agent

    found = start_agent(roots)
    output.reported({"started": found}, [f"{each.root}: process {each.pid} runs." for each in found])


@agent.command()
@roots_argument
@reporting
def status(roots: tuple[str, ...], output: Output) -> None:
    """Show who runs the jobs of roots, and what was asked of each job.

    Example:
      mergerepl agent status ./shop
    """
    from mergerepl.agents.control import agent_status, jobs_of
    from mergerepl.cdc.database import database_at
    from mergerepl.cli.report import cdc as shown

    found = [agent_status(root) for root in roots]
    jobs = {each.root: jobs_of(database_at(each.root)) for each in found}
    value = [{"agent": each, "jobs": jobs[each.root]} for each in found]
    output.reported({"roots": value}, [part for each in found for part in shown.agent(each, jobs[each.root])])


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
def stop(roots: tuple[str, ...], wait_s: float, output: Output) -> None:
    """End the agent of roots, after the cycle that runs. An agent of several roots ends as a whole.

    Example:
      mergerepl agent stop ./shop
    """
    from mergerepl.agents.control import stop_agent

    found = [stop_agent(root, wait_s=wait_s) for root in roots]
    texts = [
        f"{each.root}: no agent runs." if each.pid is None else f"{each.root}: process {each.pid} has ended."
        for each in found
    ]
    output.reported({"stopped": found}, texts)

"""`mergerepl agent`: the process that runs the jobs of roots."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mergerepl.cli.grammar import READS, RUNS, Invocation, group
from mergerepl.cli.main import run_command
from mergerepl.cli.options import option
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.model.cdc import JobEvent

agent = group(
    "agent",
    """Run captures, syncs and cleanups in the background.

    One process serves any number of folders and files (several -f). The agent looks at the jobs of each
    (`mergerepl cdc jobs`) twice a second. It reads the log of a root with transactional publications and distributes the
    commands every 5 seconds. It runs the merge sessions of a root's publications every --interval. Between the jobs it runs
    the syncs of these publishers that `mergerepl sync` hands over: see there.

    Example:
      mergerepl agent run --detach
      mergerepl agent stop
    """,
)


@agent.add(
    effect=RUNS,
    call="agents.jobs.run",
    options=(option("--interval", default="60s", show_default=True), "--no-sync", "--detach"),
    several_places=True,
)
def run_(run: Invocation, interval: timedelta, no_sync: bool, detach: bool) -> None:
    """Run jobs until Ctrl-C, SIGTERM or `mergerepl agent stop`.

    A job that runs is never cut short. With --detach it runs in the background, and logs to .mergerepl.agent.log in the
    first folder.

    Example:
      mergerepl agent run --interval 5m
      mergerepl agent run -f ./shop -f ./warehouse --detach
    """
    roots, interval_s = run.place.project.own_roots(), int(interval.total_seconds())
    if detach:
        from mergerepl.agents.control import start_agent

        started = start_agent(roots, ["--interval", f"{interval_s}s", *(["--no-sync"] if no_sync else [])])
        run.output.reported(
            {"started": started}, [f"{each.root}: process {each.pid} runs." for each in started]
        )
        return

    from mergerepl.agents import jobs
    from mergerepl.agents.loop import in_worker, signals
    from mergerepl.agents.server import CommandServer, warm_up
    from mergerepl.model.words import moment_text

    def report(event: JobEvent) -> None:
        failed = " failed" if event.is_failed else ""
        text = f"{moment_text(event.time)} {event.database} {event.job}{failed}: {event.text}"
        run.output.noted(event, text)

    with (
        signals() as stop,
        CommandServer([Location.of(root) for root in roots], run_command, warm_up) as server,
    ):
        terms: dict[str, Any] = {
            "report": report,
            "is_asked_to_stop": lambda: stop.asked,
            "pause": server.serve,
            "intervals": None if no_sync else jobs.Intervals(sync_s=interval_s),
        }
        in_worker(lambda: jobs.run(roots, **terms), name="agent")


@agent.add(effect=READS, call="agents.control.agent_status", several_places=True)
def status(run: Invocation) -> None:
    """Show who runs the jobs, and what was asked of each.

    Example:
      mergerepl agent status
    """
    from mergerepl.agents.control import agent_status, jobs_of, replication_jobs
    from mergerepl.cdc.tables import tables_at
    from mergerepl.cli.report.tasks import jobs_of_root

    found = [agent_status(root) for root in run.place.project.own_roots()]
    jobs = {
        each.root: [*jobs_of(tables_at(each.root)), *replication_jobs(Location.of(each.root))]
        for each in found
    }
    value = [{"agent": each, "jobs": jobs[each.root]} for each in found]
    run.output.reported(
        {"roots": value}, [part for each in found for part in jobs_of_root(each, jobs[each.root])]
    )


@agent.add(effect=RUNS, call="agents.control.stop_agent", options=("--wait",), several_places=True)
def stop(run: Invocation, wait_s: float) -> None:
    """End the agent, after the cycle that runs.

    An agent of several folders ends as a whole.

    Example:
      mergerepl agent stop
    """
    from mergerepl.agents.control import stop_agent

    found = [stop_agent(root, wait_s=wait_s) for root in run.place.project.own_roots()]
    texts = [
        f"{each.root}: no agent runs." if each.pid is None else f"{each.root}: process {each.pid} has ended."
        for each in found
    ]
    run.output.reported({"stopped": found}, texts)

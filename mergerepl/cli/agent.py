"""`mergerepl agent`: the process that runs the jobs of roots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mergerepl.cli.grammar import READS, RUNS, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.main import run_command
from mergerepl.cli.report.table import Report
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.model.cdc import AgentStatus, JobEvent

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
    RUNS,
    "Agent.run --interval=60s --no-sync --detach --dashboard --metrics --metrics-file",
    several_places=True,
)
def run_(run: Invocation, interval: timedelta, sync: bool | None, detach: bool, **views: str | None) -> None:
    """Run jobs until Ctrl-C, SIGTERM or `mergerepl agent stop`.

    A job that runs is never cut short. Every interval it writes the page of `mergerepl dashboard` (--dashboard), and
    metrics for Prometheus (--metrics-file) which --metrics serves: `pip install 'mergerepl[metrics]'`. With --detach it
    runs in the background, and logs to .mergerepl.agent.log in the first folder, or in this one if all are in buckets.
    With --log-format json what the jobs did are lines of the log, too.

    Example:
      mergerepl agent run --interval 5m
      mergerepl agent run -f ./shop -f ./warehouse --detach
    """
    from mergerepl.agents.agent import Agent
    from mergerepl.agents.server import CommandServer, warm_up
    from mergerepl.model.words import moment_text

    agent = Agent(*run.paths)
    terms: dict[str, Any] = {"interval": interval.total_seconds(), "sync": sync is not False, **views}
    if detach:
        started = run.work("start", lambda: agent.start(**terms, log_format=run.log_format))
        lines = [f"{each.root}: process {each.pid} runs." for each in started]
        run.report({"started": started}, *lines)
        return

    def report(event: JobEvent) -> None:
        failed = " failed" if event.is_failed else ""
        text = f"{moment_text(event.time)} {event.database} {event.job}{failed}: {event.text}"
        run.output.noted(
            event,
            text,
            level="ERROR" if event.is_failed else "INFO",
            event=event.text,
            at=event.time.timestamp(),
            job=event.job,
            replica=event.database,
        )

    # A store has no sockets.
    folders = [root for root in map(Location.of, agent.roots) if root.is_local]
    with CommandServer(folders, run_command, warm_up) as server:
        agent.run(**terms, report=report, pause=server.serve)


@agent.add(READS, "Agent.status()", several_places=True)
def status(run: Invocation, found: Sequence[AgentStatus]) -> Report:
    """Show who runs the jobs, and what was asked of each.

    Example:
      mergerepl agent status
    """
    from mergerepl.cli.report.tasks import jobs_of_root

    return {"agents": found}, *(part for each in found for part in jobs_of_root(each, each.jobs))


@agent.add(RUNS, "Agent.stop() --wait", several_places=True)
def stop(run: Invocation, found: Sequence[AgentStatus]) -> Report:
    """End the agent, after the cycle that runs.

    An agent of several folders ends as a whole.

    Example:
      mergerepl agent stop
    """
    texts = (f"process {each.pid} has ended" if each.pid is not None else "no agent runs" for each in found)
    return {"stopped": found}, *(f"{each.root}: {text}." for each, text in zip(found, texts, strict=True))

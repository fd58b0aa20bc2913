"""`Agent`: the process that runs the captures, syncs and cleanups of files and folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mergerepl.agents import control
from mergerepl.errors import ConfigurationError
from mergerepl.model.cdc import AgentStatus, JobEvent
from mergerepl.model.listing import Listing
from mergerepl.project import Project


class Agent:
    """The agent of files and folders: one process for the jobs of all their publishers and databases.

    Args:
        paths: As `Project.load` takes them.

    Raises: as `Project.load`; ConfigurationError if a folder does not exist.
    """

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        self.project = Project.load(*paths)
        self.roots = self.project.own_roots()

    def __repr__(self) -> str:
        return f"Agent({', '.join(map(repr, self.roots))})"

    def run(
        self,
        *,
        interval: float = 60.0,
        sync: bool = True,
        dashboard: str | None = None,
        metrics: str | None = None,
        metrics_file: str | None = None,
        report: Callable[[JobEvent], None] | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """Run the jobs in this process until Ctrl-C, SIGTERM or `stop`; a job that runs is finished first.

        Args:
            interval: Seconds from the end of a merge publisher's syncs to the next ones.
            sync: Run merge sessions and distributions, not only captures, log readers and cleanups.
            dashboard: The file of the page that is written every `interval`, see `Project.dashboard`.
            metrics: Address and port, such as `127.0.0.1:9464`, at which Prometheus finds the metrics.
            metrics_file: The file of metrics that is written every `interval`.
            report: Receives what the jobs did.
            pause: Waits some seconds between two checks for due work, and may do work; by default `time.sleep`.

        Raises: LeaseError if a folder has an agent already; ConfigurationError if metrics cannot be served or continued.
        """
        works: dict[str, Callable[[], object]] = {}
        if dashboard is not None:
            works["dashboard"] = lambda: self.project.dashboard(interval_s=interval).write(dashboard)
        server = None
        if metrics is not None or metrics_file is not None:
            from mergerepl.dashboard.metrics import Metrics, read_metrics, serve
            from mergerepl.spark import session as engine

            measured = Metrics() if metrics_file is None else read_metrics(metrics_file)
            works["metrics"] = lambda: measured.measure(
                self.project, metrics_file, is_engine_up=engine.jvm_pid() is not None
            )
            server = None if metrics is None else serve(measured, *address(metrics))
        try:
            self._run(works, interval, sync, report, pause)
        finally:
            if server is not None:
                server.shutdown()

    def _run(
        self,
        works: Mapping[str, Callable[[], object]],
        interval: float,
        sync: bool,
        report: Callable[[JobEvent], None] | None,
        pause: Callable[[float], None] | None,
    ) -> None:
        from mergerepl.agents import jobs
        from mergerepl.agents.loop import in_worker, signals

        with signals() as stop:
            terms: dict[str, Any] = {
                "report": report or (lambda event: None),
                "is_asked_to_stop": lambda: stop.asked,
                "pause": pause or time.sleep,
                "intervals": jobs.Intervals(sync_s=interval) if sync else None,
                "views": jobs.Views(interval, works),
            }
            in_worker(lambda: jobs.run(self.roots, **terms), name="agent")

    def start(
        self,
        *,
        interval: float = 60.0,
        sync: bool = True,
        dashboard: str | None = None,
        metrics: str | None = None,
        metrics_file: str | None = None,
        log_format: str = "text",
    ) -> Listing[AgentStatus]:
        """Run the jobs in a process of its own, in the background.

        It logs to `.mergerepl.agent.log` in the first folder; in the working folder if all publishers are in buckets.

        `log_format`: text, or json with one object a line.

        Raises: LeaseError if a folder has an agent already; StoreError if the process ended or did not get that far.
        """
        words = ["--interval", f"{interval:g}s", *([] if sync else ["--no-sync"])]
        words += [] if dashboard is None else ["--dashboard", os.path.abspath(dashboard)]
        words += [] if metrics is None else ["--metrics", metrics]
        words += [] if metrics_file is None else ["--metrics-file", os.path.abspath(metrics_file)]
        words += [] if log_format == "text" else ["--log-format", log_format]
        return Listing(control.start_agent(self.roots, words))

    def status(self) -> Listing[AgentStatus]:
        """Return who runs the jobs of each folder, and the jobs."""
        return Listing(
            replace(each, jobs=tuple(control.all_jobs(each.root)))
            for each in map(control.agent_status, self.roots)
        )

    def stop(self, *, wait_s: float = 600.0) -> Listing[AgentStatus]:
        """End the agents of the folders, each for all its folders, after the work that runs. Returns those that ran.

        Raises: ConfigurationError if one runs on another machine; LeaseError if one did not end in time.
        """
        found = Listing(map(control.agent_status, self.roots))
        for root in _one_of_each(found):
            control.stop_agent(root, wait_s=wait_s)
        return found


def address(text: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:9464`, `:9464` or `9464`; without a host only this machine can read.

    Raises: ConfigurationError.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ConfigurationError(f"{text!r} is no address: write it as 127.0.0.1:9464.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _one_of_each(found: Iterable[AgentStatus]) -> list[str]:
    """Return a folder of each process."""
    return list({(each.host, each.pid): each.root for each in found if each.pid is not None}.values())

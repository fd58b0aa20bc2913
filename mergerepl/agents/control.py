"""The jobs of a root, their agent, and how to stop it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mergerepl import roots
from mergerepl.agents.agent_socket import LOG, last_line, open_log
from mergerepl.cdc.jobs import LOG_READER, new_job
from mergerepl.cdc.tables import CdcTables, is_shared, tables_at
from mergerepl.errors import ConfigurationError, LeaseError, StoreError
from mergerepl.logreader.positions import has_log_reader, read_state
from mergerepl.model.cdc import AgentStatus, Job
from mergerepl.sessions.targets import Target, merge_targets
from mergerepl.settings import Settings
from mergerepl.store.lease import AGENT_LOCK, holder
from mergerepl.store.location import Location
from mergerepl.store.storage import has_system_tables
from mergerepl.systables.cdc import CDC_JOBS
from mergerepl.transactional.catalog import DistributionStore, subscriptions_of

DISTRIBUTE = "distribute"
SYNC = "sync"

_LOOK_S, _LOOK_AT_STORE_S = 0.1, 1.0

_FOR_PUBLICATIONS = replace(new_job("", LOG_READER, {}), job_id="")
"""The log reader job of a log read only for publications: no table has it without capture instances. It always runs."""


def jobs_of(database: CdcTables) -> list[Job]:
    """Return the jobs of a folder, by type. No Spark."""
    found: list[Job] = []
    # Between its steps `disable` leaves a folder without tables.
    if database.is_enabled and database.control.exists(CDC_JOBS):
        found = sorted(database.control.rows(CDC_JOBS), key=lambda job: job.job_type)
        if database.instances():
            return found
    is_stated = any(job.job_type == LOG_READER for job in found)
    if not is_stated and has_log_reader(database.log) and is_shared(read_state(database.log)):
        found.append(_FOR_PUBLICATIONS)
    return found


def distributes(root: Location) -> bool:
    """Whether a folder publishes transactionally to a subscriber. No Spark."""
    distributor = DistributionStore(root)
    return distributor.is_there and bool(subscriptions_of(distributor))


def synced_from(root: Location) -> list[Target]:
    """Return the subscriptions of the merge publications that a root publishes. No Spark."""
    if not has_system_tables(root):
        return []
    return [each for each in merge_targets([root]) if each.publisher == root]


def replication_jobs(root: Location) -> list[Job]:
    """Return the jobs of a folder's publications: they run as long as the agent does, and are in no table."""
    stated = ((DISTRIBUTE, distributes), (SYNC, synced_from))
    return [
        Job(database_id="", job_type=job_type, job_id="", continuous=True)
        for job_type, has_work in stated
        if has_work(root)
    ]


def all_jobs(root: str) -> list[Job]:
    """Return the jobs of a folder: the stored ones, and those of its publications."""
    place = Location.of(root)
    return [*jobs_of(tables_at(root)), *replication_jobs(place)]


def agent_status(root: str | os.PathLike[str]) -> AgentStatus:
    """Return the agent of a root.

    Raises: ConfigurationError if the folder does not exist.
    """
    path = roots.existing(os.fspath(root), may_be_stored=True)
    who = holder(Location.of(path), file=AGENT_LOCK)
    if who is None:
        return AgentStatus(path)
    return AgentStatus(path, int(str(who["pid"])), str(who.get("host")), str(who.get("since")))


_started: list[subprocess.Popen[bytes]] = []
"""Agents that this process started. They outlive it; Python warns about a running process that is forgotten."""


def start_agent(
    roots_: Sequence[str], options: Sequence[str] = (), *, wait_s: float = 60.0
) -> list[AgentStatus]:
    """Start an agent in the background, and wait until it holds all roots. Returns the agent of each.

    `options` are options of `mergerepl agent run`.

    Raises: ConfigurationError if a folder does not exist; LeaseError if a root already has an agent; StoreError if the
        agent ended or did not get that far in time (the reason is in its log).
    """
    before = [agent_status(root) for root in roots_]
    places = [Location.of(each.root) for each in before]
    # Whether an agent elsewhere is alive shows only who watches its register in the store.
    here = [
        each
        for each, place in zip(before, places, strict=True)
        if place.is_local or each.host == socket.gethostname()
    ]
    if (taken := next((each for each in here if each.pid is not None), None)) is not None:
        raise LeaseError(
            f"'{taken.root}' has an agent already: process {taken.pid} on {taken.host}. Nothing was started. End it with "
            "`mergerepl agent stop` first.",
            replica=taken.root,
            holder=taken.pid,
        )
    first = next((place for place in places if place.is_local), Location.of(os.getcwd()))
    look_s = _look_s(places)
    if look_s == _LOOK_AT_STORE_S:
        wait_s += Settings.from_environment().lease_s
    try:
        log = open_log(first)
    except OSError as error:
        raise StoreError(
            f"'{first / LOG}' cannot be written: {error.strerror}. Nothing was started.", replica=str(first)
        ) from error
    try:
        command = [
            sys.executable,
            "-m",
            "mergerepl",
            "agent",
            "run",
            *options,
            *(word for each in before for word in ("-f", each.root)),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        _started.append(process)
    finally:
        os.close(log)
    deadline = time.monotonic() + wait_s
    while True:
        found = [agent_status(each.root) for each in before]
        if all(each.pid == process.pid for each in found):
            return found
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise StoreError(
                f"The agent of '{first}' did not start: {last_line(first)} (log: '{first / LOG}')",
                replica=str(first),
            )
        time.sleep(look_s)


def _look_s(places: Sequence[Location]) -> float:
    return _LOOK_S if all(place.is_local for place in places) else _LOOK_AT_STORE_S


def stop_agent(root: str | os.PathLike[str], *, wait_s: float = 600.0) -> AgentStatus:
    """Stop the agent of a root, for all its roots. Returns the agent that was stopped; without a pid if none ran.

    The agent finishes the cycle that runs; this waits for it.

    Raises: ConfigurationError if it runs on another machine; LeaseError if it did not end in time.
    """
    who = agent_status(root)
    if who.pid is None:
        return who
    if who.host != socket.gethostname():
        raise ConfigurationError(
            f"The agent of '{who.root}' runs on {who.host}, process {who.pid}. Nothing was changed. Stop it there."
        )
    with suppress(ProcessLookupError):
        os.kill(who.pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while agent_status(root).pid == who.pid:
        if time.monotonic() > deadline:
            raise LeaseError(
                f"The agent of '{who.root}', process {who.pid}, was asked to stop and still runs after {wait_s:g} s: it "
                "finishes a cycle. Wait, then look at `mergerepl agent status`.",
                replica=who.root,
                holder=who.pid,
            )
        time.sleep(_look_s([Location.of(who.root)]))
    return who

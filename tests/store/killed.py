"""Commands on two replicas in a bucket that are killed at a request, each in a process of its own.

The bucket is put back to the same objects for each point. At a point the process is killed before a request reaches
the store, or after the store has carried it out.
"""

import json
import multiprocessing
import os
import re
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from mergerepl.store.location import Location
from tests.store.order_tables import command, rows_of
from tests.store.proxy import Fault, Proxy, Request

MOST_OF_REGISTER = 4
"""How many writes of a register every sync makes. How often it is renewed depends on the machine."""

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")

LEASE_S = "0.3"

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *("tests.store.order_tables", "mergerepl.cli.main", "mergerepl.merge.session.merge_session"),
        *("mergerepl.merge.session.carry_out", "mergerepl.conflicts.listing"),
    ]
)
"""Each command has a process of its own, which would load these modules."""


Point = tuple[str, str, int]
"""A request: its kind, its key without the names that each run draws, and how many such requests the run makes until it."""


def points_of(requests: list[Request]) -> list[Point]:
    """Return the requests of a run."""
    counts: Counter[tuple[str, str]] = Counter()
    points = []
    for request in requests:
        what = request.kind, UUID.sub("*", request.key)
        counts[what] += 1
        points.append((*what, counts[what]))
    return points


def _call(channel: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    channel.send(function(*arguments))


def _outcome(folder: Path, hq: Location, north: Location) -> dict[str, Any]:
    exit_code, shown, error = command(folder, "conflicts", "list", "--json")
    assert exit_code == 0, error
    told = sorted(
        (each["article"], str(each["key"]), each["conflict_type"], each["winner"])
        for each in json.loads(shown)["conflicts"]
    )
    return {"hq": rows_of(hq), "north": rows_of(north), "conflicts": told}


@dataclass(frozen=True)
class Site:
    """Two replicas in a bucket, and the objects of that bucket before a sync."""

    folder: Path
    hq: Location
    north: Location
    proxy: Proxy

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function in a process of its own; None if the process was killed."""
        process, channel = self.started(function, *arguments)
        process.join()
        return channel.recv() if channel.poll() else None

    def started(self, function: Any, *arguments: Any) -> tuple[Any, Any]:
        receiver, sender = FORKED.Pipe(duplex=False)
        process = FORKED.Process(target=_call, args=(sender, function, arguments))
        process.start()
        sender.close()
        return process, receiver

    def run(self, *words: str) -> str:
        exit_code, shown, error = self.call(command, self.folder, *words)
        assert exit_code == 0, error
        return str(shown)

    def outcome(self) -> dict[str, Any]:
        """Return what a finished session leaves: rows of both tables, and the conflicts."""
        found: dict[str, Any] = self.call(_outcome, self.folder, self.hq, self.north)
        return found

    def objects(self) -> dict[str, bytes]:
        store = S3Store(self.hq.bucket)
        return {
            each["path"]: bytes(store.get(each["path"]).bytes()) for page in store.list() for each in page
        }

    def put_back(self, objects: dict[str, bytes]) -> None:
        store = S3Store(self.hq.bucket)
        store.delete([each["path"] for page in store.list() for each in page])
        for key, data in objects.items():
            store.put(key, data)

    def killed_at(self, point: Point, words: tuple[str, ...], *, is_stored: bool) -> Request:
        """Run a command that is killed at a request; return it."""
        self.proxy.reset()
        process, _ = self.started(command, self.folder, *words)

        def kill() -> None:
            os.kill(process.pid, signal.SIGKILL)

        fault = Fault(is_lost=True, after=kill) if is_stored else Fault(is_cut=True, before=kill)

        def is_it(request: Request) -> bool:
            return points_of(self.proxy.requests[: request.number])[-1] == point

        with self.proxy.breaking(fault, is_it) as broken:
            process.join()
        assert len(broken) == 1, f"{words} did not send {point}"
        assert process.exitcode == -signal.SIGKILL
        return broken[0]

    def points(self, words: tuple[str, ...], before: dict[str, bytes]) -> list[tuple[Point, bool]]:
        """Return the points of a command that two runs of it share; the second one's outcome is left."""
        runs = []
        for _ in range(2):
            self.put_back(before)
            self.proxy.reset()
            self.run(*words)
            runs.append(points_of(self.proxy.requests))
        every = [
            point
            for point in sorted({*runs[0]} & {*runs[1]})
            if not point[1].endswith(".lock") or point[2] <= MOST_OF_REGISTER
        ]
        return [(point, is_stored) for point in every for is_stored in (False, True)]

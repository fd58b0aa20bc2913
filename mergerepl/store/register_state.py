"""The content of a register, as it lies in its object."""

import json
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from mergerepl.errors import StoreError
from mergerepl.store.location import Location

FORMAT = 1
"""The format of registers. One of another format is refused, never guessed at."""


def new_uuid() -> str:
    """Return the UUID of a write or of an agent."""
    return str(uuid.uuid4())


def process_start(pid: int) -> str | None:
    """Return the start time of a live process, to tell it from a reused pid; or None."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            stat = file.read()
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "alive"
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else fields[19]


class ConditionalStorage(Protocol):
    """The functions of a storage that a register needs; the tag names one content of an object.

    If another writer was first, `put_if_absent` raises FileExistsError and `put_if_unchanged` ChangedError. Any other
    error means that the outcome is unknown.
    """

    def read(self, at: Location) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its tag, or None if it is absent."""

    def put_if_absent(self, at: Location, data: bytes) -> str:
        """Create an object and return its tag."""

    def put_if_unchanged(self, at: Location, data: bytes, tag: str) -> str:
        """Replace an object that still has a tag, and return the new tag."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The agent that holds a register."""

    agent: str
    purpose: str
    host: str
    pid: int
    since: str
    started: str | None = None
    """When the process started, in the words of its system: a later process may have its number."""

    @classmethod
    def of_this_process(cls, purpose: str) -> "Holder":
        """Return a new agent of this process."""
        now, pid = datetime.now(UTC).isoformat(timespec="seconds"), os.getpid()
        return cls(
            agent=new_uuid(),
            purpose=purpose,
            host=socket.gethostname(),
            pid=pid,
            since=now,
            started=process_start(pid),
        )


@dataclass(frozen=True, kw_only=True)
class StagedSession:
    """A session that will be carried out: the SHA-256 of its manifest, its subscriber, and the outcomes by side."""

    manifest: str
    subscriber: str
    done: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PointedSession:
    """A subscriber's record of a session that may be staged at a publisher."""

    publisher: str
    replid: str


@dataclass(frozen=True, kw_only=True)
class RegisterState:
    """The content of a register, and the tag by which the store names it. `write` is the UUID of the PUT that wrote it."""

    write: str = ""
    fence: int = 0
    in_flight: bool = False
    holder: Holder | None = None
    sessions: Mapping[str, StagedSession] = field(default_factory=dict)
    pointers: Mapping[str, PointedSession] = field(default_factory=dict)
    scan: str | None = None
    """The name of the object with the log reader's plan: a scan cycle that will be carried out."""
    intent: str | None = None
    """The name of the object with the intent of a tracked transaction that will be carried out."""
    numbers: Mapping[str, Any] | None = None
    """The numbers of a tracked database; None where no table was ever tracked."""
    batches: Mapping[str, str] = field(default_factory=dict)
    """Subscription of a transactional publication -> the name of the object with the plan of a batch that was decided."""
    writers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Delta application of a product without system tables here -> the tables below the root that it may write."""
    tag: str = field(default="", compare=False)

    def encoded(self) -> bytes:
        """Return the object's bytes."""
        stated = {"format": FORMAT} | asdict(self)
        del stated["tag"]
        return json.dumps(stated, indent=1).encode()

    @classmethod
    def of(cls, at: Location, found: tuple[bytes, str]) -> "RegisterState":
        """Read an object.

        Raises: StoreError if it is damaged or has another format.
        """
        data, tag = found
        try:
            stated = json.loads(data)
            if stated["format"] != FORMAT:
                raise StoreError(
                    f"The register '{at}' has the format {stated['format']}; this mergerepl reads {FORMAT}. Nothing was "
                    "changed. Use the mergerepl that wrote it.",
                    path=str(at),
                )
            return cls(
                write=stated["write"],
                fence=int(stated["fence"]),
                in_flight=bool(stated["in_flight"]),
                holder=stated["holder"] and Holder(**stated["holder"]),
                sessions={name: StagedSession(**each) for name, each in stated["sessions"].items()},
                pointers={name: PointedSession(**each) for name, each in stated["pointers"].items()},
                scan=stated.get("scan"),
                intent=stated.get("intent"),
                numbers=stated.get("numbers"),
                batches=stated.get("batches", {}),
                writers={app: tuple(tables) for app, tables in stated.get("writers", {}).items()},
                tag=tag,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"The register '{at}' is damaged ({error}). Nothing was changed. Restore the object from a copy; a "
                "replica must not go on without it.",
                path=str(at),
            ) from error


def read_register(store: ConditionalStorage, at: Location) -> RegisterState | None:
    """Return the content of a register, or None if it is absent.

    Raises: StoreError if it is damaged.
    """
    found = store.read(at)
    return None if found is None else RegisterState.of(at, found)


def described(holder: Holder) -> str:
    """Return who holds a register, as a clause."""
    return f"{holder.purpose} by process {holder.pid} on {holder.host} since {holder.since}"

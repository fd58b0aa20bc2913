"""The commits of a scan cycle, their order and their times (cdc.md 3). Pure.

A commit is in the cut if its log file was written before the cycle began (`began_ns`, by the clock of the file system), or
if the listing of an earlier cycle has seen it. The cut has a prefix of each source. A writer that commits b after it saw a
writes b's file after a appeared: so if b is in the cut, a is in it, too, with a lower LSN.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

TICK = timedelta(microseconds=1)
"""The least time between the last LSN of a cycle and the first one of the next."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LoggedCommit:
    """A commit to be cut; `written_ns` is the time of its log file."""

    object_id: int
    version: int
    written_ns: int


@dataclass(frozen=True)
class Placed:
    """A commit in the cut with its effective time: at most `began_ns`, never below that of the version before it."""

    effective_ns: int
    object_id: int
    version: int


def cut(
    commits: Iterable[LoggedCommit], *, began_ns: int, seen: int, effective_ns: int = 0
) -> Iterator[Placed]:
    """Yield the commits of one source that are in the cut: a prefix of those after its position, which are given in order.

    `seen` is the highest version that an earlier listing has seen, `effective_ns` the effective time at the position.
    """
    for commit in commits:
        if commit.written_ns >= began_ns and commit.version > seen:
            return
        effective_ns = max(effective_ns, min(commit.written_ns, began_ns))
        yield Placed(effective_ns, commit.object_id, commit.version)


def in_order(sources: Iterable[Sequence[Placed]], *, most: int) -> list[Placed]:
    """Return the first commits of all sources: by effective time, then source, then version."""
    placed = [each for source in sources for each in source]
    return sorted(placed, key=lambda each: (each.effective_ns, each.object_id, each.version))[:most]


def end_times(times: Iterable[datetime], *, last: datetime | None) -> list[datetime]:
    """Return the tran_end_time of each commit of a cycle, in order: they never fall, and begin later than the last cycle's.

    `last` is the highest time of the cycles before: a consumer that reads by time may have passed it.
    """
    floor = _EPOCH if last is None else last + TICK
    found = []
    for time in times:
        floor = max(floor, time)
        found.append(floor)
    return found


def moment_of_ns(nanoseconds: int) -> datetime:
    """Return a time in microseconds, cut off."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def moment_of_ms(milliseconds: int) -> datetime:
    """Return a time given in milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=milliseconds)

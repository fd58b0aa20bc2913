"""The generations that a session sends: make_generation and the start of enumeration, on rows of MSmerge_genhistory.

Pure Python over the rows after a watermark. Rules: merge_replication.md 2.5 to 2.7.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mergerepl.errors import EnumerationError, reinit_advice
from mergerepl.systables.genhistory import Generation, GenStatus

Held = Callable[[Collection[str]], Collection[str]]
"""Returns the generations that a replica has, among those with these guids."""


@dataclass(frozen=True)
class Watermark:
    """A generation number with its guid; (0, None) is before the first generation."""

    generation: int
    guid: str | None


def make_generation(genhistory: Iterable[Generation]) -> list[Generation]:
    """Return genhistory with every open generation closed: later changes join a new one."""
    return [row.closed() for row in genhistory]


def start_generation(
    *,
    sent: Watermark,
    received: Watermark,
    source_genhistory: Iterable[Generation],
    source: str,
    destination: str,
) -> int:
    """Return the generation after which the source's changes are enumerated: the lower of sentgen and recgen.

    Args:
        sent: sentgen of the destination, kept by the source.
        received: recgen, kept by the destination.
        source_genhistory: The source's generations: both guids must be among them.
        source: Replica root, for the message.
        destination: Replica root, for the message.

    Raises:
        UnknownGenerationError: A watermark's guid is not the source's generation of that number.
    """
    guid_of = {row.generation: row.guidsrc for row in source_genhistory}
    for watermark, where in ((sent, source), (received, destination)):
        if watermark.generation > 0 and guid_of.get(watermark.generation) != watermark.guid:
            raise UnknownGenerationError(
                f"'{destination}' and '{source}' no longer fit together: '{where}' remembers generation "
                f"{watermark.generation} ({watermark.guid}) of '{source}', which is not there. One of the "
                "replicas was restored from an older copy. Nothing was changed. Fill the subscriber again: "
                "`mergerepl reinit REPLICA --upload-first`, or `--discard-local`, at the publisher.",
                source=source,
                destination=destination,
                generation=watermark.generation,
            )
    return min(sent.generation, received.generation)


def generations_to_send(
    source_genhistory: Iterable[Generation],
    held: Held,
    *,
    from_generation_exclusive: int,
    tablenicks: Iterable[int],
    destination_nickname: int | None = None,
    destination_replid: str = "",
    settled: int = 0,
) -> list[Generation]:
    """Return the closed generations of these articles after the start that the destination does not hold yet.

    It holds those up to its `settled` version, although it may have forgotten them, but not a change that waits for it.

    `held` reads the destination, once for all generations that may be sent. If the destination cannot be read, the
    source's list of holders decides; it may be wrong, as the destination may have been restored. Changes that wait for
    another destination are in an earlier generation as well.
    """
    articles = set(tablenicks)
    waiting = [
        row
        for row in source_genhistory
        if row.generation > from_generation_exclusive
        and not row.is_open
        and row.art_nick in articles
        and row.is_for(destination_replid)
        and destination_nickname not in row.nicknames
        and not (row.waits_for is None and row.maxversion is not None and row.maxversion <= settled)
    ]
    there = held([row.guidsrc for row in waiting])
    return sorted((row for row in waiting if row.guidsrc not in there), key=lambda row: row.generation)


def received_generation(row: Generation, *, generation: int, nickname: int, now: Any) -> Generation:
    """Return the row a destination keeps of a generation it received: the source's guid under its own number."""
    return replace(
        row,
        generation=generation,
        genstatus=GenStatus.CLOSED_ELSEWHERE,
        waits_for=None,
        refused_by=None,
        nicknames=tuple(sorted({*row.nicknames, nickname})),
        coldate=now,
    )


class UnknownGenerationError(EnumerationError):
    """One side's watermark names a generation the other side does not have: a restore or a copy."""


def lost_by_publisher(publisher: str, subscriber: str) -> EnumerationError:
    """Return the error for a subscriber with generations that its publisher has lost."""
    return EnumerationError(
        f"'{subscriber}' received changes in a session that its publisher '{publisher}' does not know of: the publisher "
        "was put back to an older state, or that session's folder was removed before it was finished. Nothing was changed. "
        f"{reinit_advice(publisher, subscriber)}",
        publisher=publisher,
        subscriber=subscriber,
    )

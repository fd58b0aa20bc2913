"""Lineage and colv1 in plain Python; `lineage_columns` has the same rules in Spark; a property test ties the two.

lineage: nickname -> version; colv: column -> (nickname, version). Versions are per row and Lamport-like: a
bump takes the largest version seen plus one (merge_replication.md 2.2, 2.4).
"""

from collections.abc import Mapping

Lineage = Mapping[int, int]

PUBLICATION = 0
"""The writer of every row that existed when its table was published: no replica has this nickname."""

PUBLISHED: Lineage = {PUBLICATION: 1}
"""The lineage of a row that exists without a recorded change. (decisions/0002)"""


def bump(lineage: Lineage, nickname: int, floor: int = 0) -> dict[int, int]:
    """Return the lineage after one more change by `nickname`."""
    return {**lineage, nickname: max([floor, *lineage.values()]) + 1}


def covers(known: Lineage, other: Lineage, floor: int = 0) -> bool:
    """Return whether `known` includes every change of `other`; versions up to the floor count as known."""
    return all(version <= max(known.get(nickname, 0), floor) for nickname, version in other.items())


def merge(one: Lineage, other: Lineage) -> dict[int, int]:
    """Return the lineage that includes the changes of both."""
    return {nickname: max(one.get(nickname, 0), other.get(nickname, 0)) for nickname in {**one, **other}}


def is_covered(column_version: tuple[int, int] | None, known: Lineage, floor: int = 0) -> bool:
    """Return whether the last change of a column is included in a lineage."""
    return column_version is None or covers(known, {column_version[0]: column_version[1]}, floor)


LATE_STRIDE = 1 << 20
"""Distance between the nicknames of a replica's writers; replica nicknames stay below it."""


def agent_nickname(nickname: int) -> int:
    """Return the nickname under which a replica's merge agent resolves conflicts.

    A replica's users may write a row while its agent resolves it: two independent events, so they need separate entries
    in a lineage. (decisions/0002)
    """
    return -nickname


def late_nickname(nickname: int, round_number: int) -> int:
    """Return the nickname of users' changes captured in a late round: they are independent of the rounds before."""
    return nickname + LATE_STRIDE * round_number


def replica_nickname(writer: int) -> int:
    """Return the replica of a lineage entry."""
    return abs(writer) % LATE_STRIDE

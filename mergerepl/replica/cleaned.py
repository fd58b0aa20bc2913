"""Metadata that was cleaned up: rows of contents, tombstones and genhistory that no reader sees any more.

`cleaned` of MSmerge_replinfo is the cleanup: from that commit on, rows up to that generation of their article do not count.
Removing them is left to later commits, in any order and as often as needed.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from mergerepl.delta.tables import FEW, KEPT, KEPT_ROWS, count_rows, remove_unused
from mergerepl.failpoints import failpoint
from mergerepl.replica.replica import Replica
from mergerepl.systables import contents, genhistory, partitions, registry, tombstone
from mergerepl.systables.genhistory import GenStatus
from mergerepl.systables.table import SystemTable

TABLES: Final[tuple[SystemTable, ...]] = (
    contents.TABLE,
    tombstone.TABLE,
    genhistory.TABLE,
    *partitions.MAPPINGS,
)
"""The tables that a cleanup removes rows from."""

_READ_AT_ONCE: Final = {table.name for table in registry.CONTROL_PLANE}

_ALWAYS: Final[tuple[SystemTable, ...]] = (contents.TABLE, tombstone.TABLE, genhistory.TABLE)


def dead_rows(replica: Replica, also: Mapping[int, int] = MappingProxyType({})) -> dict[str, str]:
    """Return, by system table, the SQL condition of the rows that were cleaned up; nothing without a cleanup.

    `also` has, by tablenick, generations up to which rows would go. The generation that a watermark names stays, and so
    does the last one that was cleaned up: the enumeration for a new subscriber begins there.
    """
    info = replica.info()
    # An `apply` or a session that ended an article may have died before it noted that in `cleaned`.
    ended = dict.fromkeys(replica.all_ended, info.last_generation)
    cleaned = {nick: last for nick, last in {**info.cleaned, **also, **ended}.items() if last}
    if not cleaned:
        return {}
    rows = " or ".join(f"tablenick = {nick} and generation <= {last}" for nick, last in cleaned.items())
    named = {row.sentgen for row in replica.relations() if not row.is_ended} | {0}
    older = " or ".join(f"art_nick = {nick} and generation < {last}" for nick, last in cleaned.items())
    history = f"({older}) and genstatus <> {int(GenStatus.OPEN)}"
    history += f" and generation not in ({', '.join(map(str, sorted(named)))})"
    # A row that only changed its partitions keeps its generation, and is sent to those that it entered.
    moved = " or ".join(f"tablenick = {nick} and partchangegen > {last}" for nick, last in cleaned.items())
    found = {contents.NAME: f"({rows}) and coalesce({moved}, false) = false", tombstone.NAME: rows}
    return {**found, genhistory.NAME: history, **_dead_mappings(replica, cleaned, rows)}


def _dead_mappings(replica: Replica, cleaned: Mapping[int, int], rows: str) -> dict[str, str]:
    """Return the conditions of a publisher with row filters; one of its tables names no articles."""
    counts = []
    for publication in (each for each in replica.published if each.filters is not None):
        articles = replica.articles_of(publication.pubid)
        last = min((cleaned.get(each.nickname, 0) for each in articles), default=0)
        counts.append(f"publication_number = {publication.publication_number} and generation <= {last}")
    if not counts:
        return {}
    of_rows = dict.fromkeys((partitions.CURRENT.name, partitions.PAST.name), rows)
    return {**of_rows, partitions.GENERATION_PARTITIONS.name: " or ".join(counts)}


def count_dead(replica: Replica, also: Mapping[int, int] = MappingProxyType({})) -> dict[str, int]:
    """Return the number of rows that were cleaned up and are still there, by system table; `also` as for `dead_rows`."""
    found = dead_rows(replica, also)
    return {
        name: count_rows(replica.folder / name, where=found[name]) if name in found else 0
        for name in {table.name: 0 for table in _ALWAYS} | found
    }


def remove_dead(replica: Replica) -> dict[str, int]:
    """Remove the rows that were cleaned up, in a marked commit of each table that has some. Returns their number.

    The caller holds the replica. Starts no engine.
    """
    counts = count_dead(replica)
    for table in (*_ALWAYS, *partitions.MAPPINGS):
        if counts.get(table.name):
            failpoint("cleanup.before_rewrite")
            replica.control.delete(table, where=dead_rows(replica)[table.name])
            failpoint("cleanup.after_rewrite")
    return counts


def remove_files(replica: Replica, *, now: datetime | None = None, dry_run: bool = False) -> int:
    """Remove files of the system tables that no version has needed for a while; return their number, as `remove_unused`.

    The caller holds the replica. Commands that do not hold it read the tables of the control plane at once, and those of
    rows perhaps later: a caller in Python gets a DataFrame.
    """
    return remove_unused(
        replica.folder,
        lambda name: KEPT if name in _READ_AT_ONCE else KEPT_ROWS,
        few=FEW,
        now=now,
        dry_run=dry_run,
    )

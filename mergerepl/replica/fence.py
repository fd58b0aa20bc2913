"""The fences of a root on an object store: one commit to each of its tables, before its new holder reads one."""

import logging
from collections.abc import Collection, Iterable, Mapping

from mergerepl.delta.marks import FENCE
from mergerepl.delta.tables import commit_fence, is_delta_table, read_commit
from mergerepl.errors import CommitConflictError
from mergerepl.replica.application_ids import application_ids
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.store.register import fence_of, register_of, state_of
from mergerepl.store.rehearsal import worker_threads
from mergerepl.store.storage import files_in, is_local
from mergerepl.systables import catalog, cdc, logreader, replinfo, tracking, transactional

log = logging.getLogger(__name__)

_AT_ONCE = 8

_LOG_APP_IDS = (cdc.APP_ID, cdc.COLUMNS_APP_ID)

_READ_FIRST = (catalog.PUBLICATIONS, catalog.ARTICLES, catalog.SUBSCRIPTIONS, replinfo.TABLE)
"""The tables that say which other tables the root has, and who writes to them."""


def write_fences(root: Location, fence: int) -> None:
    """Commit a fence to all tables of a root: its system tables, and the tables that are published, tracked or captured.

    Those that a transactional publication fills are named by the root's register: the publisher knows them otherwise.

    Raises: CommitConflictError, StoreError, LeaseError, as `commit_fence`. Run again: the fences are written first.
    """
    replica = Replica(root)
    first = [replica.folder / table.name for table in _READ_FIRST]
    _commit(dict.fromkeys(first, ()), fence)
    if not all(map(is_delta_table, first)):
        # An `apply` that was cut short: no session has written here.
        subids: set[str] = set()
        tables = []
    else:
        subids = {row.subid for row in replica.subscriptions()}
        tables = [replica.table(article) for article in replica.articles]
    numbers = state_of(root).numbers
    tracking_ids = [] if numbers is None else [tracking.app_id(numbers["counters"]["database_id"])]
    tracked = ControlPlane(root / tracking.FOLDER)
    _commit(dict.fromkeys(files_in(tracked.folder), tracking_ids), fence)
    names = {row.table: None for row in tracked.rows_if_any(tracking.TRACKED_OBJECTS)}
    tables += [table for table in (root / name for name in names) if table not in tables]
    system = [each for each in files_in(replica.folder) if each not in first]
    # One commit for each table: with its fence in the log a table gets no second one.
    ids = (*application_ids(subids), *tracking_ids)
    writers: dict[Location, Collection[str]] = dict.fromkeys([*system, *tables], ids)
    for app_id, filled in state_of(root).writers.items():
        for table in (root / name for name in filled):
            writers[table] = [*writers.get(table, ()), app_id]
    _commit(writers, fence)
    _commit(dict.fromkeys(files_in(root / transactional.FOLDER), ()), fence)
    _fence_log(root, fence, writers)
    log.info("fence %s is in the tables of %s", fence, root)


def _fence_log(root: Location, fence: int, fenced: Collection[Location]) -> None:
    """Commit a fence to the tables of the log reader and its consumers, and to the tables that it reads."""
    reader = ControlPlane(root / logreader.FOLDER)
    _commit(dict.fromkeys(files_in(reader.folder), ()), fence)
    _commit(dict.fromkeys(files_in(root / cdc.FOLDER), _LOG_APP_IDS), fence)
    sources = (root / row.source_path for row in reader.rows_if_any(logreader.LOG_READER) if row.source_path)
    _commit({each: () for each in sources if each not in fenced}, fence)


def stop_own_writes(root: Location) -> None:
    """Let no write that this process began at a root, and whose answer it does not have, be committed any more.

    Folders need no fence: a commit has been made or not when its call returns, and an engine's end is waited for.

    Raises: as `write_fences`.
    """
    if not is_local(root):
        register = register_of(root)
        register.raise_fence()
        write_fences(root, register.fence)


def fence_new_table(table: Location, app_ids: Iterable[str]) -> int:
    """Fence a table that was just made, if it is on a store; return its version then.

    An earlier table of this place was removed with its fences: an agent that was displaced may still commit to it.

    Raises: CommitConflictError if another commit came first; others as `write_fences`.
    """
    if is_local(table):
        return 0
    commit_fence(table, fence_of(table), app_ids)
    if (mark := read_commit(table, 1).mark) is None or mark.kind != FENCE:
        raise CommitConflictError(
            f"Another agent wrote to '{table}', which was just made. Run again: the table is made again.",
            table=str(table),
        )
    return 1


def fence_table(table: Location, app_ids: Iterable[str] = ()) -> None:
    """Commit the present fence to a table that is about to be written for the first time, if it is on a store.

    It may have been made since the root was taken, by an agent that was displaced.

    Raises: as `write_fences`.
    """
    if not is_local(table):
        commit_fence(table, fence_of(table), app_ids)


def _commit(writers: Mapping[Location, Collection[str]], fence: int) -> None:
    """Commit a fence to some tables, each with the applications that write it by Spark."""
    with worker_threads(_AT_ONCE) as pool:
        for done in [pool.submit(_commit_one, table, fence, ids) for table, ids in writers.items()]:
            done.result()


def _commit_one(table: Location, fence: int, app_ids: Collection[str]) -> None:
    if is_delta_table(table):
        commit_fence(table, fence, app_ids)

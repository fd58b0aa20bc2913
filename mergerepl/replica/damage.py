"""Checks of a replica's system tables: an edited, restored or half-made one is refused before a session believes it."""

from collections.abc import Container, Iterable

from mergerepl.delta.tables import TruncatedLogError, head_version, read_commit, way_back
from mergerepl.errors import EnumerationError, PublicationError, StoreError
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables import catalog, replinfo
from mergerepl.systables.catalog import ArticleRow, SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER


def no_subscriptions(root: Location) -> StoreError:
    """The error for a replica of a publication without rows in sysmergesubscriptions."""
    name = catalog.SUBSCRIPTIONS.name
    return StoreError(
        f"System table '{name}' of replica '{root}' is empty, though the replica takes part in a publication: it was "
        "edited or damaged, or `mergerepl apply` was cut short. Nothing was changed. "
        f"{way_back(root / FOLDER)}; or run `mergerepl apply` again.",
        replica=str(root),
        table=str(root / FOLDER / name),
    )


def require_schema_version(root: Location, version: int) -> None:
    """Check that this mergerepl knows the version of a replica's system tables.

    Raises: PublicationError if they are older or newer.
    """
    if version != replinfo.SCHEMA_VERSION:
        raise PublicationError(
            f"The system tables of replica '{root}' have version {version}; this mergerepl knows "
            f"{replinfo.SCHEMA_VERSION}. Upgrade mergerepl on this machine, or use the release that wrote them.",
            replica=str(root),
        )


def refuse_older_bookkeeping(root: Location, info: ReplicaInfo, rows: Iterable[SubscriptionRow]) -> None:
    """Check that MSmerge_replinfo was not restored alone: a session writes there before it notes its end anywhere else.

    An older MSmerge_replinfo does not know the latest runs: they would be removed as leftovers.

    Raises: EnumerationError.
    """
    completed = max((row.session_number for row in rows), default=0)
    if info.session_number < completed:
        raise EnumerationError(
            f"'MSmerge_replinfo' of '{root}' is older than its other system tables: it knows of "
            f"{info.session_number} sessions, they of {completed}. Nothing was changed. "
            f"{way_back(root / FOLDER)}.",
            replica=str(root),
        )


def contradiction_of(row: ArticleRow, publications: Container[str]) -> str | None:
    """Return how a row of sysmergearticles contradicts itself or the publications, or None."""
    columns, types, key = row.published_columns, row.published_types, row.key_columns
    if row.pubid not in publications:
        return f"a pubid that {catalog.PUBLICATIONS.name} does not have ({row.pubid})"
    if not columns or None in columns or len(set(columns)) < len(columns):
        return "no list of columns in published_columns"
    if None in types or len(types) != len(columns):
        return "not one type in published_types for each of published_columns"
    try:
        known = row.definitions
    except (ValueError, KeyError, TypeError):
        return "no definitions that can be read in fields"
    if not known:
        return "no definition in fields"
    if not key or not set(key) <= set(columns) or row.rowguid_column not in (None, *key):
        return "key_columns or a rowguid_column that are not among published_columns"
    return None


def refuse_edited(table: Location) -> None:
    """Check in the log that only sessions and `apply` changed the rows of contents or of a tombstone table.

    These rows decide which changes count as known. After an edit by hand (a lineage set to NULL, rows deleted, an older
    version restored) a session may take a user's write for known and overwrite it silently. Only the last change of
    rows is read, so every write of ours is checked first. An edit that RESTORE undid does not count. An edit whose
    commit is gone from the log is not detected.

    Raises: StoreError naming the commit and the version to go back to.
    """
    version = head_version(table)
    while True:
        try:
            commit = read_commit(table, version)
        except TruncatedLogError:
            return
        if commit.mark is not None:
            return
        if version > 0 and not commit.data_change:
            version -= 1
            continue
        last, to = _last_of_ours(table, before=version), commit.restored_version
        if to is None or to >= version or (last is not None and to < last):
            raise _edited(table, version, commit.operation, last)
        version = to


def _last_of_ours(table: Location, *, before: int) -> int | None:
    """Return the last version that has our mark; None if the log has none, or does not go back far enough."""
    for version in range(before - 1, -1, -1):
        try:
            if read_commit(table, version).mark is not None:
                return version
        except TruncatedLogError:
            return None
    return None


def _edited(table: Location, version: int, operation: str, last: int | None) -> StoreError:
    undo = f"RESTORE TABLE delta.{quote(str(table))} TO VERSION AS OF {last}"
    remedy = f"Undo it ({undo}; no table of users' is touched), or restore" if last is not None else "Restore"
    return StoreError(
        f"System table '{table.name}' of replica '{table.parent.parent}' was edited: its version {version} "
        f"({operation or 'of an unknown writer'}) is not ours. Which changes count as known hangs on its rows, so nothing "
        f"was read. {remedy} the folder '{table.parent}' from a copy taken together with the tables; then run again.",
        table=str(table),
        version=version,
    )

"""Contents and tombstone are the sessions' own: what they say of a row decides which changes count as known.

An edit by hand (a lineage made NULL, rows deleted, an older version restored) may make a user's write look known where
it is not, and a session would overwrite it silently. The log records who changed rows last.
"""

from pathlib import Path

from mergerepl.delta.tables import TruncatedLogError, head_version, read_commit
from mergerepl.errors import StoreError
from mergerepl.rows.sql import quote


def refuse_edited(table: Path) -> None:
    """Check that nobody else changed the rows of a table that only sessions and `apply` write.

    Only the last change of rows is read, so every write of ours is checked first. An edit that RESTORE undid does not
    count. An edit whose commit is gone from the log is not detected.

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


def _last_of_ours(table: Path, *, before: int) -> int | None:
    """Return the last version that has our mark; None if there is none, or the log does not go back so far."""
    for version in range(before - 1, -1, -1):
        try:
            if read_commit(table, version).mark is not None:
                return version
        except TruncatedLogError:
            return None
    return None


def _edited(table: Path, version: int, operation: str, last: int | None) -> StoreError:
    undo = f"RESTORE TABLE delta.{quote(str(table))} TO VERSION AS OF {last}"
    remedy = f"Undo it ({undo}; no table of users' is touched), or restore" if last is not None else "Restore"
    return StoreError(
        f"System table '{table.name}' of replica '{table.parent.parent}' was edited: its version {version} "
        f"({operation or 'of an unknown writer'}) is not ours. Which changes count as known hangs on its rows, so nothing "
        f"was read. {remedy} the folder '{table.parent}' from a copy taken together with the tables; then run again.",
        table=str(table),
        version=version,
    )

"""Refusals of tracking: each text has the failure, the object, the reason, and the next step."""

from collections.abc import Sequence
from typing import Self

from mergerepl.delta.tables import Commit
from mergerepl.errors import MergeReplError, Transient
from mergerepl.roots import uses
from mergerepl.store.location import Location


def _end_tracking(table: str) -> str:
    return (
        f"end its tracking (`mergerepl tracking disable {table} --keep-columns`) and enable it again; consumers then "
        "take an initial copy."
    )


class TrackingError(MergeReplError):
    """A table, a transaction, a key or a consumer cannot be tracked as asked; nothing was changed."""

    @classmethod
    def no_database(cls, root: Location) -> Self:
        """The folder never had a tracked table."""
        return cls(
            f"'{root}' has no tracked tables: there is no folder '_tracking'. Enable tracking of a table first: "
            f"`mergerepl tracking enable TABLE --key COLUMN -f {root}`.{uses(root, but='_tracking')}",
            path=str(root),
        )

    @classmethod
    def not_tracked(cls, table: str, tracked: Sequence[str]) -> Self:
        """The table is not under tracking."""
        known = f"Tracked are: {', '.join(tracked)}." if tracked else "No table is."
        return cls(
            f"Table '{table}' is not tracked. {known} Enable it first: `mergerepl tracking enable {table} "
            "--key COLUMN`.",
            table=table,
        )

    @classmethod
    def cannot_enable(cls, table: str, why: str, remedy: str) -> Self:
        """Enabling refuses the table."""
        return cls(f"Table '{table}' cannot be tracked: {why}. Nothing was changed. {remedy}", table=table)

    @classmethod
    def other_key(cls, table: str, key: Sequence[str]) -> Self:
        """A tracked table is enabled again, with another key."""
        return cls(
            f"Table '{table}' is tracked by the key ({', '.join(key)}). The key cannot change while it is: the keys of "
            "deleted rows are stored. Disable tracking first, then enable it with the new key.",
            table=table,
        )

    @classmethod
    def reserved(cls, kind: str, value: object) -> Self:
        """A reserved or invalid value."""
        return cls(f"{value!r} is no usable {kind}. See docs/compact.md for those that are.")

    @classmethod
    def bad_rows(cls, table: str, what: str, keys: Sequence[str]) -> Self:
        """Rows that an operation of a transaction gave cannot be written."""
        named = f": {', '.join(keys)}" if keys else ""
        return cls(
            f"Table '{table}': {what}{named}. The transaction was aborted; nothing was changed.", table=table
        )

    @classmethod
    def cannot_abort(cls, bsn: int, why: str) -> Self:
        """A finished or decided transaction cannot be aborted."""
        return cls(f"Transaction {bsn} cannot be aborted: {why}. Nothing was changed.", bsn=bsn)

    @classmethod
    def unfinished(cls, bsn: int, error: Exception, *, is_lost: bool) -> Self:
        """A transaction was decided, and is not carried out yet; `is_lost`: another agent holds the bucket's root."""
        # Texts of takeovers say to run again, and rows that another agent has removed are no problem.
        why = "another agent took its root over, and finishes it." if is_lost else str(error)
        return cls(
            f"Transaction {bsn} was decided and could not be finished: {why} Do not repeat the transaction: its changes "
            "would be made twice. The next command that takes the folder's lock finishes it, as `mergerepl tracking "
            "recover` does. If a table can never take them, end its tracking: `mergerepl tracking disable -f TABLE "
            "--keep-columns`.",
            bsn=bsn,
        )

    @classmethod
    def in_doubt(cls, bsn: int, why: str) -> Self:
        """The store did not say whether a transaction is decided."""
        return cls(
            f"Whether transaction {bsn} was decided is not known: {why} Run `mergerepl tracking recover` when the store "
            "answers; then `mergerepl history` lists it if it was. Repeat it only if it is not listed.",
            bsn=bsn,
        )

    @classmethod
    def counters(cls, path: Location, why: str) -> Self:
        """counters.json is missing or damaged."""
        return cls(
            f"'{path}' cannot be used: {why}. No number may be given twice, so nothing goes on without it. Restore it from "
            "a copy that was taken together with the tables.",
            path=str(path),
        )

    @classmethod
    def later(cls, what: str, way_out: str) -> Self:
        """A capability that this version lacks."""
        return cls(f"{what} is for a later version. {way_out}")

    @classmethod
    def bad_key(cls, table: str, what: str) -> Self:
        """Key values or packed bytes that do not fit the key of the table."""
        return cls(f"Table '{table}': {what}.", table=table)

    @classmethod
    def no_consumer(cls, consumer: str) -> Self:
        """The consumer is not registered."""
        return cls(
            f"Consumer '{consumer}' is not registered. `ct.consumer(name)` registers one; `mergerepl status` "
            "lists them.",
            consumer=consumer,
        )

    @classmethod
    def bad_window(cls, consumer: str, what: str) -> Self:
        """A window that cannot be acknowledged."""
        return cls(f"Consumer '{consumer}': {what} Nothing was changed.", consumer=consumer)


class TransactionConflictError(TrackingError, Transient):
    """Another transaction changed a row of ours and committed first. Ours was aborted; run it again."""

    exit_code = 3

    @classmethod
    def was_aborted(cls, bsn: int) -> Self:
        """Another process aborted the transaction."""
        return cls(
            f"Transaction {bsn} was aborted by another process (`mergerepl tracking abort`). Nothing of it was written. "
            "Run it again.",
            bsn=bsn,
        )

    @classmethod
    def was_taken_over(cls, bsn: int) -> Self:
        """Another agent holds the root in a bucket: the open transaction of the earlier holder has ended."""
        return cls(
            f"Transaction {bsn} was aborted: another agent took its root over, because this process was paused or cut "
            "off from the store for too long. Nothing of it was written. Run it again.",
            bsn=bsn,
        )


class ForeignCommitError(TrackingError):
    """A commit outside of transactions blocks the operation."""

    @classmethod
    def unreadable(cls, table: str, version: int, why: str) -> Self:
        """The change feed does not have the commit."""
        return cls(
            f"Table '{table}': the foreign commit of version {version} cannot be adopted: {why}. Other tables go on. "
            f"Restore the table (RESTORE TABLE to version {version - 1}), or {_end_tracking(table)}",
            table=table,
            version=version,
        )

    @classmethod
    def column_replaced(cls, table: str, column: str, commit: Commit) -> Self:
        """A column is another one than consumers know by its name, or was dropped together with rows."""
        return cls(
            f"Table '{table}': column '{column}' is not the column any more that it was before version {commit.version} "
            f"({commit.operation}): it was dropped, or another column has its name now. No row tells consumers that its "
            f"values are gone. Other tables go on. Restore the table (RESTORE TABLE to version {commit.version - 1}), or "
            f"{_end_tracking(table)}",
            table=table,
            column=column,
            version=commit.version,
        )


class ConsumerBehindError(TrackingError):
    """A purge removed changes that the consumer has not enumerated."""

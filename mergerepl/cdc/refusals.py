"""Refusals of Change Data Capture, each with its text and SQL Server's error number.

| error | meaning | exit |
|---|---|---|
| CdcError | it failed for good | 1 |
| CdcUsageError | a parameter or a name is wrong | 2 |
| LsnRangeError | 313: a range is not in the validity interval | 1 |
| ScanInProgressError | 22903: another scan or command holds the log; run again | 3 |
"""

from collections.abc import Sequence
from typing import Any, Self

from mergerepl.errors import MergeReplError, Transient
from mergerepl.model.words import did_you_mean
from mergerepl.store.location import Location

NOTHING = "Nothing was changed."


class CdcError(MergeReplError):
    """Change Data Capture failed. `number` is SQL Server's error number."""

    def __init__(self, number: int, message: str, **facts: Any) -> None:
        super().__init__(message, number=number, **facts)
        self.number = number

    @classmethod
    def gone(cls, source: str, why: str) -> Self:
        """22859: changes of a source can no longer be determined."""
        return cls(22859, f"Table '{source}': {why}.", source=source)

    @classmethod
    def version_gone(cls, source: str, version: int, why: str) -> Self:
        """22859: the rows of a source at a version cannot be read any more."""
        return cls(
            22859,
            f"Table '{source}' cannot be read at version {version}: {why}. Take the snapshot at a later LSN.",
            source=source,
            version=version,
        )

    @classmethod
    def target_replaced(cls, target: Location, consumer: str, why: str, command: str) -> Self:
        """22859: the rows of a target are not those that the consumer's last batch left."""
        return cls(
            22859,
            f"Target '{target}' of consumer '{consumer}' was changed since the last batch: {why}. Changes that were "
            f"applied may be missing. {NOTHING} Replace its rows by a snapshot: `{command} --restart`; or name a new or "
            "empty table.",
            table=str(target),
            consumer=consumer,
        )

    @classmethod
    def log_is_shared(cls, database: Location | str) -> Self:
        """22911: publications are served from the same log: the log reader reads it for both."""
        return cls(
            22911,
            f"The log of '{database}' is read for transactional publications, too: the log reader reads it for both, "
            f"not a capture job. {NOTHING} Run `mergerepl capture -f {database}`, or the agent.",
            database=str(database),
        )


class CdcUsageError(CdcError):
    """A parameter or a name is wrong; nothing was changed."""

    exit_code = 2

    @classmethod
    def no_such_source(cls, source: str, why: str) -> Self:
        """22931: the table does not exist."""
        return cls(
            22931,
            f"Table '{source}' cannot be captured: {why}. {NOTHING} Name a Delta table by its folder below the database.",
            source=source,
        )

    @classmethod
    def unfenceable(cls, source: str, why: str, remedy: str) -> Self:
        """22974: an agent that takes the root over could not commit to the table."""
        return cls(22974, f"Table '{source}' cannot be captured: {why}. {NOTHING} {remedy}", source=source)

    @classmethod
    def bad_instance_name(cls, number: int, name: str, why: str) -> Self:
        """22926, 22927, 22932: the name of an instance is taken, too long, or no identifier."""
        return cls(
            number,
            f"Capture instance '{name}' cannot be created: {why}. {NOTHING} Choose another one by `name`, on the "
            "command line `--name`.",
            capture_instance=name,
        )

    @classmethod
    def unknown_column(cls, source: str, column: str, columns: Sequence[str]) -> Self:
        """22930: the source lacks a column."""
        return cls(
            22930,
            f"Table '{source}' has no column '{column}'. {NOTHING} Its columns are: {', '.join(columns)}.",
            source=source,
        )

    @classmethod
    def bad_columns(cls, number: int, source: str, why: str, remedy: str = "") -> Self:
        """22925, 22928, 22929, …: the columns or the key cannot be used."""
        return cls(number, f"Table '{source}': {why}. {NOTHING} {remedy}".rstrip(), source=source)

    @classmethod
    def no_such_instance(cls, name: str, known: Sequence[str]) -> Self:
        """22985: the instance does not exist."""
        listed = f"There are: {', '.join(known)}." if known else "There is none."
        text = f"There is no capture instance '{name}'.{did_you_mean(name, known)} {listed}"
        return cls(22985, text, capture_instance=name)

    @classmethod
    def two_instances(cls, table: str, names: Sequence[str]) -> Self:
        """22985: a table has two instances, and one is meant."""
        return cls(
            22985, f"Table '{table}' has two instances: name {' or '.join(names)}.", capture_instance=table
        )

    @classmethod
    def bad_parameter(cls, number: int, name: str, value: object, allowed: str) -> Self:
        """A parameter has a value that is not allowed."""
        return cls(number, f"{name} is {value!r}; {allowed}. {NOTHING}")

    @classmethod
    def later(cls, what: str, way_out: str) -> Self:
        """A capability that this version lacks."""
        return cls(22905, f"{what} is for a later version. {way_out}")


class LsnRangeError(CdcError):
    """A range of LSNs is outside the validity interval (313), `low` to `high`. `reason` is the kind of error."""

    alternate_number = 208

    def __init__(self, message: str, *, reason: str, **facts: Any) -> None:
        """`reason`: null, reversed, below_low, above_high, paused or no_net_changes."""
        super().__init__(313, message, reason=reason, **facts)
        self.reason = reason
        self.low: bytes | None = facts.get("low")
        self.high: bytes | None = facts.get("high")


class ScanInProgressError(CdcError, Transient):
    """Another scan cycle or command holds the log (22903). Wait for it to finish, then run again."""

    exit_code = 3


def refuse_in_store(root: Location, what: str, instead: str) -> None:
    """Check that a root is a folder, for what Change Data Capture does not do in a store.

    Raises: CdcUsageError.
    """
    if not root.is_local:
        raise CdcUsageError(
            22990,
            f"{what} does not work in a bucket: '{root}'. {NOTHING} Instead, {instead}.",
            database=str(root),
        )

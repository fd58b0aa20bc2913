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
from mergerepl.store.location import Location

_NOTHING = "Nothing was changed."


class CdcError(MergeReplError):
    """Change Data Capture failed. `number` is SQL Server's error number."""

    def __init__(self, number: int, message: str, **facts: Any) -> None:
        super().__init__(message, number=number, **facts)
        self.number = number

    @classmethod
    def not_captured(cls, database: Location | str, source: str, why: str, remedy: str) -> Self:
        """22851/22853-like: the data of Change Data Capture do not fit together."""
        return cls(22851, f"Change Data Capture of '{database}': {why}. {remedy}", source=source)

    @classmethod
    def bad_key(cls, source: str, key: Sequence[str], why: str, keys: Sequence[str]) -> Self:
        """22838: the key of a source has NULLs or duplicates."""
        named = f": {'; '.join(keys)}" if keys else ""
        return cls(
            22838,
            f"Table '{source}' cannot be captured by the key ({', '.join(key)}): {why}{named}. {_NOTHING} Correct these "
            "rows, name another key (--index), or capture without net changes (leave --index out).",
            source=source,
        )

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
            f"applied may be missing. {_NOTHING} Replace its rows by a snapshot: `{command} --restart`; or name a new or "
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
            f"not a capture job. {_NOTHING} Run `mergerepl transactional logreader {database}`, or the agent.",
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
            f"Table '{source}' cannot be captured: {why}. {_NOTHING} Name a Delta table by its folder below the database.",
            source=source,
        )

    @classmethod
    def reserved_source(cls, source: str) -> Self:
        """22974: the table is one of the system's."""
        return cls(
            22974, f"Table '{source}' lies in a folder of system tables and is not captured. {_NOTHING}"
        )

    @classmethod
    def reserved_column(cls, source: str, column: str) -> Self:
        """22975: a captured column has a reserved name."""
        return cls(
            22975,
            f"Table '{source}': column '{column}' cannot be captured: names that begin with __$ are the change table's. "
            f"{_NOTHING} Leave the column out of the captured column list, or rename it.",
            source=source,
        )

    @classmethod
    def bad_instance_name(cls, number: int, name: str, why: str) -> Self:
        """22926, 22927, 22932: the name of an instance is taken, too long, or no identifier."""
        return cls(
            number,
            f"Capture instance '{name}' cannot be created: {why}. {_NOTHING} Choose another name (--capture-instance).",
            capture_instance=name,
        )

    @classmethod
    def two_instances(cls, source: str, names: Sequence[str]) -> Self:
        """22962: a source has two instances already."""
        return cls(
            22962,
            f"Table '{source}' has two capture instances already: {', '.join(names)}. {_NOTHING} Disable one of them "
            "first.",
            source=source,
        )

    @classmethod
    def unknown_column(cls, source: str, column: str, columns: Sequence[str]) -> Self:
        """22930: the source lacks a column."""
        return cls(
            22930,
            f"Table '{source}' has no column '{column}'. {_NOTHING} Its columns are: {', '.join(columns)}.",
            source=source,
        )

    @classmethod
    def bad_columns(cls, number: int, source: str, why: str) -> Self:
        """22925, 22928, 22938, …: the captured column list cannot be used."""
        return cls(number, f"Table '{source}': {why}. {_NOTHING}", source=source)

    @classmethod
    def key_type(cls, source: str, column: str, type_: str) -> Self:
        """22929: a column cannot be part of a key."""
        return cls(
            22929,
            f"Table '{source}': column '{column}' of type {type_} cannot be part of the key. {_NOTHING} Keys are whole "
            "numbers, strings, dates, times, decimals, booleans and binary.",
            source=source,
        )

    @classmethod
    def net_without_key(cls, source: str) -> Self:
        """22939: net changes need a key."""
        return cls(
            22939,
            f"Table '{source}': net changes need a key. {_NOTHING} Name its columns (--index), or capture without net "
            "changes.",
            source=source,
        )

    @classmethod
    def no_such_instance(cls, name: str, known: Sequence[str]) -> Self:
        """22985: the instance does not exist."""
        listed = f"There are: {', '.join(known)}." if known else "There is none."
        return cls(22985, f"There is no capture instance '{name}'. {listed}", capture_instance=name)

    @classmethod
    def narrow_columns(
        cls, target: Location, instance: str, columns: Sequence[str], statements: Sequence[str], command: str
    ) -> Self:
        """22990: a target cannot hold every value of the captured columns."""
        then = " and ".join(f"`{each}`" for each in statements)
        way = f"Run {then} in Spark, then run again. Or replace" if statements else "Replace"
        return cls(
            22990,
            f"Target '{target}' cannot hold every value of '{instance}': column {'; column '.join(columns)}. {_NOTHING} "
            f"{way} its rows, and its columns if it has only captured ones, by a snapshot: `{command} --restart`; or name "
            "a new table.",
            table=str(target),
            capture_instance=instance,
        )

    @classmethod
    def bad_parameter(cls, number: int, name: str, value: object, allowed: str) -> Self:
        """A parameter has a value that is not allowed."""
        return cls(number, f"{name} is {value!r}; {allowed}. {_NOTHING}")

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

    @classmethod
    def outside(cls, instance: str, reason: str, asked: str, *, low: bytes, high: bytes | None) -> Self:
        """A request is not in the interval of its instance; `asked` names the two LSNs, or the one."""
        why = {
            "null": "from_lsn or to_lsn is missing. Take the first from get_min_lsn, map_time_to_lsn, or increment_lsn of "
            "the last window's end, the other from get_max_lsn",
            "reversed": "its end lies before its beginning. A window after the last one that begins above get_max_lsn is "
            "empty: nothing is new yet",
            "below_low": "change rows below the low end were cleaned up, or the instance began later. Take "
            f"`cdc.snapshot(database, '{instance}')` and go on from its LSN",
            "above_high": "nothing was captured up to its end yet. Ask up to get_max_lsn, or wait for the next scan",
            "paused": "its table is paused, and later changes have no LSN yet. Ask up to the high end; see `mergerepl cdc "
            f"status`, then `mergerepl cdc resume ROOT {instance}`",
        }[reason]
        interval = f"{_lsn_text(low)} to {'none' if high is None else _lsn_text(high)}"
        return cls(
            f"Capture instance '{instance}': {asked} is not in the validity interval {interval}: {why}.",
            reason=reason,
            capture_instance=instance,
            low=low,
            high=high,
        )

    def passed_target(self, target: str, command: str) -> "LsnRangeError":
        """Return the error of a consumer of `cdc apply` that cleanup has passed."""
        name = str(self.facts["capture_instance"])
        low = _lsn_text(self.low or b"")
        return LsnRangeError(
            f"Capture instance '{name}': changes that '{target}' lacks were cleaned up, or were made before the instance "
            f"began again: the low end is {low} now. "
            f"{_NOTHING} Replace its rows by a snapshot: `{command} --restart`; or name a new or empty table.",
            reason=self.reason,
            capture_instance=name,
            low=self.low,
            high=self.high,
        )


def _lsn_text(lsn: bytes) -> str:
    return f"0x{lsn.hex().upper()}"


class ScanInProgressError(CdcError, Transient):
    """Another scan cycle or command holds the log (22903). Wait for it to finish, then run again."""

    exit_code = 3

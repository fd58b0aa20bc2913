"""The choice between the two engines that read and write rows: Arrow with delta-rs for few rows, and Spark.

A session chooses once, after it has read the logs and before it reads a row or starts Java. What Arrow or delta-rs
refuse later, before they write, falls back to Spark and is counted; any other error fails the session.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

from mergerepl.delta.table import reason_of
from mergerepl.frames import NeedsSparkError as NeedsSparkError
from mergerepl.frames import NotInProcessError, in_process, is_in_process
from mergerepl.settings import Settings
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ARROW_FOR_FEW, SPARK_ALONE = "auto", "spark"
"""The `engine` of a publication or a command."""

MOST_IN_PROCESS = 10_000
"""The most changed rows of a session or a scan cycle whose rules run in this process: of 10,000 narrow ones, half the
time of Spark was measured."""

MOST_VALUES = 200_000
"""The most values in them: rows times columns."""

MOST_BYTES = 64 << 20
"""The most bytes of files that this process reads into memory."""

_NOT_UTF8 = re.compile("non UTF-8|invalid utf-?8", re.IGNORECASE)
"""How the libraries refuse a text that Spark takes: the one refusal of theirs that files of other writers can cause."""

NO_SESSION = cast("SparkSession", None)
"""Stands for the Spark session in process, where nothing uses one."""

log = logging.getLogger(__name__)


def embedded_spark() -> "SparkSession":
    """Return the Spark session of this process, started when it is first asked for; `NO_SESSION` in process."""
    if is_in_process():
        return NO_SESSION
    from mergerepl.spark import session as engine

    return engine.session()


class TooLargeForArrowError(NeedsSparkError):
    """More rows or bytes than this process handles: Spark is the engine for them."""


@contextmanager
def arrow_refusals() -> Iterator[None]:
    """Turn an error with which Arrow or delta-rs refuse to read or write into a NeedsSparkError.

    `MERGEREPL_STRICT_ENGINE` leaves the errors of these libraries unchanged, so that a test sees a refusal that this
    code does not foresee. Spark explains unreadable data better.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError
    from pyarrow import ArrowException

    try:
        yield
    except CommitFailedError:
        # Another writer was first, which is not a refusal.
        raise
    except OSError as error:
        raise NeedsSparkError(f"a file cannot be read: {reason_of(error)}") from error
    except (ArrowException, DeltaError) as error:
        if Settings.from_environment().strict_engine and not _NOT_UTF8.search(str(error)):
            raise
        raise NeedsSparkError(reason_of(error)) from error


def require_texts(rows: "pa.Table | pa.RecordBatch") -> None:
    """Check that all texts are UTF-8; Spark accepts other bytes as text, too.

    Raises: NeedsSparkError.
    """
    import pyarrow as pa

    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise NeedsSparkError(reason_of(error)) from error


def too_many(rows: int, values: int) -> TooLargeForArrowError | None:
    """Return why the rules may not run in this process on these changed rows; None if they may."""
    if rows <= MOST_IN_PROCESS and values <= MOST_VALUES:
        return None
    return TooLargeForArrowError(f"{rows} rows changed, with {values} values")


def require_few(rows: int, values: int) -> None:
    """Check that the rules may run in this process on these changed rows. Raises: TooLargeForArrowError."""
    if (problem := too_many(rows, values)) is not None:
        raise problem


def require_few_bytes(count: int) -> None:
    """Check that this process may read files of so many bytes into memory. Raises: TooLargeForArrowError."""
    if count > MOST_BYTES:
        raise TooLargeForArrowError(f"{count >> 20} MiB to read")


@dataclass(frozen=True)
class EngineChoice:
    """The engines of a session, chosen once: where its rules run, and who writes rows.

    `in_process`: the rules run in this process (`mergerepl.frames`), else on Spark. `uses_arrow`: Arrow and delta-rs write
    few rows. `fallbacks`: why Spark works on a table of few rows, by table. `spark_of` starts Spark, once
    something needs it.
    """

    uses_arrow: bool
    fallbacks: dict[Location | None, str] = field(default_factory=dict)
    in_process: bool = False
    spark_of: "Callable[[], SparkSession] | None" = None

    @cached_property
    def spark(self) -> "SparkSession":
        """The Spark session, started at the first use."""
        assert self.spark_of is not None
        return self.spark_of()

    @property
    def for_rules(self) -> "SparkSession":
        """The session of the rules' frames; None in process, where no rule uses one."""
        return NO_SESSION if self.in_process else self.spark

    @contextmanager
    def rules(self) -> Iterator[None]:
        """Let the rules run where the session chose.

        What the rules ask for and the process lacks is a fault of ours: Spark has it, and the reason is counted.
        `MERGEREPL_STRICT_ENGINE` leaves the error unchanged.
        """
        with in_process() if self.in_process else nullcontext():
            try:
                yield
            except NotInProcessError as error:
                if Settings.from_environment().strict_engine:
                    raise
                raise NeedsSparkError(f"{error} is not computed in process") from error

    def left_for_spark(self, error: NeedsSparkError) -> "EngineChoice":
        """Note why this process cannot go on, and return the choice with which Spark does."""
        self.fall_back(error.table, error)
        return replace(self, in_process=False)

    def fall_back(self, table: Location | None, error: NeedsSparkError) -> None:
        """Note that Spark reads or writes a table. A large table does not count; the first reason is kept."""
        log.info("Spark: %s%s", f"table '{table}': " if table is not None else "", error)
        if not isinstance(error, TooLargeForArrowError):
            named = f"table '{table.name}': " if table is not None else ""
            self.fallbacks.setdefault(table, f"{named}{error}")

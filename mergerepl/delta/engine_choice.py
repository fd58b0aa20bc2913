"""The choice between the two engines that read and write rows: Arrow with delta-rs for few rows, and Spark.

A session chooses once, after it has read the logs and before it reads a row or starts Java. Tables that Arrow or
delta-rs refuse later, before they write, fall back to Spark and are counted; any other error fails the session.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.delta.table import reason_of
from mergerepl.settings import Settings
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ARROW_FOR_FEW, SPARK_ALONE = "auto", "spark"
"""The `engine` of a publication or a command."""

_NOT_UTF8 = re.compile("non UTF-8|invalid utf-?8", re.IGNORECASE)
"""How the libraries refuse a text that Spark takes: the one refusal of theirs that files of other writers can cause."""

log = logging.getLogger(__name__)


class NeedsSparkError(Exception):
    """Only Spark reads or writes these rows correctly; nothing was written. The message is a clause with the reason."""


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


@dataclass(frozen=True)
class EngineChoice:
    """The engines of a session, chosen once: where its rules run, and who reads and writes rows.

    `in_process`: the rules run in this process (`mergerepl.frames`), else on Spark. `uses_arrow`: Arrow and delta-rs read
    and write few rows, except of the tables left to Spark (`for_spark`: table -> why). `fallbacks` also collects the
    tables that were refused later. `spark_of` starts Spark, once something needs it.
    """

    uses_arrow: bool
    for_spark: Mapping[Location, NeedsSparkError] = field(default_factory=dict)
    fallbacks: dict[Location, str] = field(default_factory=dict)
    in_process: bool = False
    spark_of: "Callable[[], SparkSession] | None" = None

    def __post_init__(self) -> None:
        """Count the tables of the choice."""
        for table, error in self.for_spark.items():
            self.fall_back(table, error)

    @cached_property
    def spark(self) -> "SparkSession":
        """The Spark session, started at the first use."""
        assert self.spark_of is not None
        return self.spark_of()

    def fall_back(self, table: Location, error: NeedsSparkError) -> None:
        """Note that Spark reads or writes a table. A large table does not count; the first reason is kept."""
        log.info("Spark: table '%s': %s", table, error)
        if not isinstance(error, TooLargeForArrowError):
            self.fallbacks.setdefault(table, f"table '{table.name}': {error}")

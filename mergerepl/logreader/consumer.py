"""The interface of a consumer of the log reader. The log reader reads each commit once and serves all consumers.

A scan cycle runs as follows; a process may die at every step, and the next one goes on from the plan.

| step | the log reader calls | a consumer |
|---|---|---|
| 2 | `wanted()` | returns its sources, their keys, and its handling of gaps |
| 4 | `check(source, rows, spark)` | may raise `PauseSource`: this source leaves the cycle, the others go on |
| 5 | `decide(plan)` | returns its other steps as JSON; the plan stores them. Pure: no writes |
| 6 | `write(cycle)` | appends its rows, each table once: transaction version = `plan.scan_cycle` |
| 7 | `show(cycle)` | commits its gate, last of all, with `plan.scan_cycle` as transaction version |

`write` and `show` may be called again with the same plan, in another process: finished writes are skipped, by transaction
versions. Readers of a consumer see nothing above its gate.

A source is begun by `logreader.scan.begin`: a cycle of its own gives the begin its LSN. From there on its commits come.
`logreader.scan.leave` ends that. Both, and every scan, call `served(state)`: other readers of the log may matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.sql_text import quoted
from mergerepl.delta.tables import Transaction, delete_rows, is_delta_table, transaction_version
from mergerepl.errors import StoreError
from mergerepl.logreader.plan import Plan, Reading, SourcePlan
from mergerepl.logreader.positions import RESUME, LogState, may_pass
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

UNUSABLE = 22859
"""The number of the error that the changes of a source cannot be taken, for reasons of its tables."""

COMPARE = "compare"
STOP = "stop"


@dataclass(frozen=True)
class Wanted:
    """What a consumer needs of a source: the columns that identify its rows, and how it handles a gap in its feed.

    `pairs`: where another consumer states another key, the source is read by that one, and this consumer pairs the rows
    again by its own.
    """

    key: tuple[str, ...] = ()
    on_gap: str = COMPARE
    pairs: bool = False


@dataclass(frozen=True)
class ReadRows:
    """The changes of one reading: version, row_hash, before, after (`feed.commit_changes`), kept until the cycle ends."""

    reading: Reading
    rows: DataFrame
    count: int = 0
    """How many changes they are."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the images: field c<i> is the i-th."""
        return self.reading.columns


@dataclass(frozen=True)
class Cycle:
    """A plan that is carried out. `changes` returns the readings of a source, in the order of its versions.

    `written` are the numbers of rows of each append.
    """

    plan: Plan
    spark: Callable[[], SparkSession]
    changes: Callable[[int], Sequence[ReadRows]]
    written: list[int] = field(default_factory=list)

    def transaction(self, app_id: str, step: str) -> Transaction:
        """Return the Delta transaction of a consumer's write in this cycle."""
        mark = CommitMark(self.plan.after.database.database_id, f"{step}:{self.plan.scan_cycle}")
        return Transaction(app_id, self.plan.scan_cycle, mark)

    def is_written(self, table: Location, app_id: str) -> bool:
        """True if a table has its rows of this cycle."""
        return transaction_version(table, app_id) >= self.plan.scan_cycle

    def append(
        self, frames: Sequence[DataFrame], table: Location, transaction: Transaction, count: int
    ) -> None:
        """Append rows to a table, in one commit if there are any. `count`: of how many changes they are made."""
        from mergerepl.delta import appended
        from mergerepl.spark.in_memory import collected

        rows: DataFrame | pa.Table = reduce(lambda one, other: one.unionByName(other), frames)
        if not is_local(table) and appended.may_be_collected(table, count):
            # Spark sends some 70 requests for a file.
            rows = collected(rows)
        self.written.append(appended.append(rows, table, transaction, even_if_empty=False) or 0)


class PauseSource(Exception):
    """A consumer cannot use a source's changes: the source is paused. `number` and `reason` are kept and shown.

    `object_id` is the source, if the code that raises it knows it.
    """

    def __init__(self, number: int, reason: str, object_id: int | None = None) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason
        self.object_id = object_id


@contextmanager
def pausing(source: SourcePlan) -> Iterator[None]:
    """Pause a source for errors that its own tables give, so that the other sources go on.

    Raises: PauseSource; the error itself if it is local and temporary.
    """
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        cause = str(error).partition(";")[0].splitlines()[0]
        raise PauseSource(UNUSABLE, _unusable(source, cause), source.object_id) from error
    except StoreError as error:
        if may_pass(error):
            raise
        raise PauseSource(UNUSABLE, _unusable(source, error.message), source.object_id) from error


def _unusable(source: SourcePlan, cause: str) -> str:
    return (
        f"Table '{source.path}': its changes cannot be taken: {cause.rstrip('.')}. Its capture is paused; other tables go "
        f"on. Undo what was done to the table (RESTORE TABLE, say), then run {RESUME}; or run the first with "
        "--restart, after which consumers take a snapshot."
    )


class Consumer(Protocol):
    """A consumer of the log reader."""

    name: str
    app_id: str
    """The Delta transaction application of its tables of rows."""
    cycle_column: str
    """The column of these tables with the scan cycle."""
    is_in_process: bool
    """True if this process writes its rows of few changes, without Spark."""

    def at_work(self) -> AbstractContextManager[None]:
        """Wrap a scan cycle: errors that end it pass through, and may be recorded."""

    def served(self, state: LogState) -> None:
        """Note the consumers of each source. Called under the lock, at every scan and when they have changed."""

    def wanted(self) -> Mapping[int, Wanted]:
        """Return its needs, by source_object_id."""

    def gate_cycle(self) -> int:
        """Return the scan cycle that its readers may see; -1 if it has shown none."""

    def tables(self) -> list[tuple[int, Location]]:
        """Return its tables of rows, each with its source_object_id; some may be missing."""

    def check(self, source: SourcePlan, rows: Sequence[ReadRows], spark: Callable[[], SparkSession]) -> None:
        """Check the readings of a source.

        Raises: PauseSource.
        """

    def decide(self, plan: Plan) -> Any:
        """Return its steps other than rows, as JSON, or None."""

    def write(self, cycle: Cycle) -> None:
        """Write the rows of a cycle, each table once.

        Raises: PauseSource with its `object_id` for a source whose rows can never be written (`pausing`).
        """

    def show(self, cycle: Cycle) -> None:
        """Commit the gate: readers see the cycle."""


def highest_cycle(consumer: Consumer) -> int:
    """Return the highest scan cycle in the gate and the tables of a consumer, or -1."""
    tables = (table for _, table in consumer.tables() if is_delta_table(table))
    return max([consumer.gate_cycle(), *(transaction_version(each, consumer.app_id) for each in tables)])


def remove_rows(
    consumer: Consumer, cycles: str, from_cycle: int, object_ids: frozenset[int] | None = None
) -> None:
    """Remove a consumer's rows of some scan cycles (`> 7`), the first of which is `from_cycle`; None: of all sources."""
    for object_id, table in consumer.tables():
        is_meant = object_ids is None or object_id in object_ids
        if is_meant and is_delta_table(table) and transaction_version(table, consumer.app_id) >= from_cycle:
            delete_rows(table, where=f"{quoted(consumer.cycle_column)} {cycles}")

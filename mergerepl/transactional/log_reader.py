"""The log reader agent: scan cycles that serve transactional publications, and Change Data Capture where it is enabled."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from mergerepl.engine.errors import told_plainly
from mergerepl.errors import LeaseError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.scan import scan
from mergerepl.model.transactional import LogReaderResult
from mergerepl.transactional.catalog import Distributor, distributor_at
from mergerepl.transactional.refusals import LogReaderBusyError

MOST_TRANSACTIONS = 10_000


def log_reader(
    distributor: Distributor, *, spark: SparkSession | None = None, wait_s: float = 0.0
) -> LogReader:
    """Return the log reader of a publisher. It serves Change Data Capture of the same folder, too."""
    return LogReader(distributor.root, spark, wait_s)


def spark_of(given: SparkSession | None) -> Callable[[], SparkSession]:
    """Return what gives the Spark session: the one that is given, the running one or an embedded one."""

    def session() -> SparkSession:
        from mergerepl.engine import session as engine

        return given if given is not None else engine.session()

    return session


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for one cycle, or one command.

    Raises: LogReaderBusyError (18752) if somebody else holds it.
    """
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise LogReaderBusyError(
            f"18752: {error.message} Only one log reader agent may read a database's log at a time.",
            number=LogReaderBusyError.number,
        ) from error


def logreader(
    root: str | os.PathLike[str], *, spark: SparkSession | None = None, lock_wait_s: float = 0.0
) -> LogReaderResult:
    """Read the publisher's log until nothing is new: the distributor gets the commands. Without a JVM if nothing is new.

    Raises: TransactionalUsageError if nothing is published there; LogReaderBusyError (18752); LogReaderError if the folder
        is a copy, or a part of the bookkeeping was restored.
    """
    distributor = distributor_at(root)
    distributor.require()
    return read_log(log_reader(distributor, spark=spark, wait_s=lock_wait_s))


def read_log(reader: LogReader) -> LogReaderResult:
    """Run cycles until nothing is new."""
    cycles = transactions = commands = 0
    last: str | None = None
    paused: dict[str, str] = {}
    while True:
        with told_plainly("the log was read"), held(reader, "transactional logreader"):
            done = scan(reader, maxtrans=MOST_TRANSACTIONS)
        if done.scan_cycle is not None:
            cycles += 1
        transactions, commands = transactions + done.transactions, commands + done.rows
        last = str(done.last_lsn) if done.last_lsn else last
        paused |= done.paused
        if not done.has_more:
            return LogReaderResult(cycles, transactions, commands, last, paused)

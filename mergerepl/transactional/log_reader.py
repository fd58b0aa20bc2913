"""The log reader agent: scan cycles that serve transactional publications, and Change Data Capture where it is enabled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mergerepl.errors import LeaseError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.positions import read_state, save_state
from mergerepl.logreader.scan import checked_state, look_ahead, scan
from mergerepl.model.transactional import LogReaderResult
from mergerepl.spark.plain import plain_errors
from mergerepl.systables.transactional import CONSUMER
from mergerepl.transactional.catalog import Distributor, Root, required
from mergerepl.transactional.refusals import LogReaderBusyError, TransactionalError, TransactionalUsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_TRANSACTIONS = 10_000


def log_reader(
    distributor: Distributor, *, spark: SparkSession | None = None, wait_s: float = 0.0
) -> LogReader:
    """Return the log reader of a publisher. It serves Change Data Capture of the same folder, too."""
    return LogReader(distributor.root, spark, wait_s)


def spark_of(given: SparkSession | None) -> Callable[[], SparkSession]:
    """Return a function that returns the Spark session: the given one, the running one or an embedded one."""

    def session() -> SparkSession:
        from mergerepl.spark import session as engine

        return given if given is not None else engine.session()

    return session


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for one cycle, or one command.

    Raises: LogReaderBusyError (18752) if another process holds it.
    """
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise LogReaderBusyError(
            f"18752: {error.message} Only one log reader agent may read a database's log at a time.",
            number=LogReaderBusyError.number,
        ) from error


def logreader(root: Root, *, spark: SparkSession | None = None, lock_wait_s: float = 0.0) -> LogReaderResult:
    """Read the publisher's log until nothing is new: the distributor gets the commands. Without a JVM if nothing is new.

    Raises: TransactionalUsageError if nothing is published there; LogReaderBusyError (18752); LogReaderError if the folder
        is a copy, or a part of the bookkeeping was restored.
    """
    distributor = required(root)
    return read_log(log_reader(distributor, spark=spark, wait_s=lock_wait_s))


def read_log(reader: LogReader) -> LogReaderResult:
    """Run cycles until nothing is new."""
    cycles = transactions = commands = 0
    last: str | None = None
    paused: dict[str, str] = {}
    while True:
        with plain_errors("the log was read"), held(reader, "transactional logreader"):
            done = scan(reader, maxtrans=MOST_TRANSACTIONS)
        if done.scan_cycle is not None:
            cycles += 1
        transactions, commands = transactions + done.transactions, commands + done.rows
        last = str(done.last_lsn) if done.last_lsn else last
        paused |= done.paused
        if not done.has_more:
            return LogReaderResult(cycles, transactions, commands, last, paused)


def resume(root: Root, article: str, *, spark: SparkSession | None = None, lock_wait_s: float = 0.0) -> bool:
    """Resume the paused source of an article: its unread commits get new LSNs. Returns False if it was not paused.

    Raises: TransactionalUsageError if the article does not exist, or Change Data Capture reads its table, too;
        TransactionalError if the source still cannot be read; LogReaderBusyError (18752).
    """
    distributor = required(root)
    (row,) = distributor.articles_named(article)
    reader = log_reader(distributor, spark=spark, wait_s=lock_wait_s)
    with plain_errors("a source was resumed"), held(reader, "transactional resume"):
        state = checked_state(reader)
        source = state.sources[row.source_object_id]
        if set(source.consumers) != {CONSUMER}:
            raise TransactionalUsageError(
                f"The table '{source.source_path}' of article '{article}' is captured, too. Nothing was changed. "
                "Resume its capture instance: `mergerepl cdc resume PUBLISHER INSTANCE`; the publication is read on "
                "with it.",
                article=article,
            )
        if source.status == "active":
            return False
        active = replace(source, status="active", error_number=None, reason=None)
        look = look_ahead(reader, state, active)
        if look.paused is not None:
            raise TransactionalError.paused(reader.root, article, look.paused.reason, is_captured=False)
        save_state(reader.control, state.with_source(active))
    return True


def require_read(distributor: Distributor, publication: str | None = None) -> None:
    """Check that all sources of a publication (None: of all publications) are read.

    Raises: TransactionalError.
    """
    sources = read_state(distributor.log).sources
    for row in distributor.publications():
        if publication in (None, row.publication):
            for article in distributor.articles(row.publication_id):
                source = sources.get(article.source_object_id)
                if source is not None and source.status != "active":
                    is_captured = set(source.consumers) != {CONSUMER}
                    raise TransactionalError.paused(
                        distributor.root, article.article, str(source.reason), is_captured=is_captured
                    )

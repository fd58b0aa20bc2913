"""The log reader of one database: its tables, its lock, its consumers and its engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from mergerepl.delta.tables import is_delta_table
from mergerepl.logreader.consumer import Consumer
from mergerepl.logreader.lsn import epoch_of
from mergerepl.logreader.positions import LogState, control_of, has_log_reader, read_state, save_state
from mergerepl.replica.control import ControlPlane
from mergerepl.store.lease import LOG_READER_LOCK, lease, record_jvm
from mergerepl.store.location import Location
from mergerepl.systables import cdc, logreader, transactional
from mergerepl.systables.logreader import LogReaderRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class LogReader:
    """A database and the consumers of its log. Kept between cycles, it reads only changed tables again.

    `given` is the Spark session to work in; without one, the running one or an embedded one is used, from when rows are
    read.
    """

    root: Location
    given: SparkSession | None = None
    lock_wait_s: float = 0.0
    is_long_running: bool = False
    """Whether an embedded session is configured for an agent: it starts slower and works faster."""

    _known: dict[str, Consumer] = field(default_factory=dict)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order in which their gates are committed. A product may be set up between cycles."""
        return tuple(consumers_at(self.root, self._known))

    @cached_property
    def control(self) -> ControlPlane:
        """The log reader's tables."""
        return control_of(self.root)

    @property
    def spark(self) -> Callable[[], SparkSession]:
        """Returns the Spark session.

        Raises (when called): EngineError if it cannot be started or used.
        """
        return self._session

    def _session(self) -> SparkSession:
        from mergerepl.spark import session as engine

        if self.given is not None:
            return engine.usable(self.given)
        session = engine.session(long_running=self.is_long_running)
        record_jvm(self.root, engine.jvm_pid(), file=LOG_READER_LOCK)
        return session

    @contextmanager
    def held(self, purpose: str) -> Iterator[None]:
        """Hold the log: one cycle, or one command.

        Raises: LeaseError if it is still held after the time to wait.
        """
        with lease(self.root, purpose=purpose, wait_s=self.lock_wait_s, file=LOG_READER_LOCK):
            yield


def make_log_reader(reader: LogReader, retention: timedelta) -> None:
    """Make the log reader's tables, or begin a new epoch in those that a database of an earlier life left.

    `retention` is how long removed files of sources are kept at least. The caller holds the log.
    """
    now = datetime.now(UTC)
    if has_log_reader(reader.control):
        state = read_state(reader.control)
        if not state.sources:
            epoch = max(epoch_of(now), state.database.epoch + 1)
            seconds = int(retention.total_seconds())
            row = replace(state.database, epoch=epoch, root=str(reader.root), file_retention=seconds)
            save_state(reader.control, replace(state, database=row))
        return
    row = LogReaderRow(
        source_object_id=logreader.DATABASE,
        database_id=str(uuid.uuid4()),
        root=str(reader.root),
        epoch=epoch_of(now),
        file_retention=int(retention.total_seconds()),
    )
    reader.control.replace(logreader.SCAN_SESSIONS, ())
    reader.control.replace(logreader.ERRORS, ())
    save_state(reader.control, LogState(row))


@dataclass(frozen=True)
class Product:
    """A product that is served from the log. `module` has `consumer_at(root)`; `table` exists if it is set up."""

    name: str
    module: str
    table: str


PRODUCTS = (
    Product(
        "transactional",
        "mergerepl.transactional.consumer",
        f"{transactional.FOLDER}/{transactional.PUBLICATIONS.name}",
    ),
    Product("cdc", "mergerepl.cdc.consumer", f"{cdc.FOLDER}/{cdc.CHANGE_TABLES.name}"),
)
"""The products in the order in which their gates are committed. They do not import each other: each is loaded by name."""


def consumers_at(root: Location, known: dict[str, Consumer]) -> Iterator[Consumer]:
    """Yield the consumers of a folder, in the order of their gates; `known` keeps them from one call to the next."""
    for product in PRODUCTS:
        if not is_delta_table(root / product.table):
            continue
        if product.name not in known:
            known[product.name] = import_module(product.module).consumer_at(root)
        yield known[product.name]

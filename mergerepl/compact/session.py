"""The database, the Spark session and the root's lease, which all parts of tracking use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from mergerepl.compact.database import Database
from mergerepl.spark import session as engine
from mergerepl.store.lease import lease, record_jvm


@dataclass
class Session:
    """A database and how this process reaches it. Spark is started when it is first asked for."""

    database: Database
    lock_wait_s: float = 60.0
    given: SparkSession | None = None
    """The caller's Spark session; without one, the running one or an embedded one is used."""

    @property
    def spark(self) -> SparkSession:
        """The Spark session.

        Raises: EngineError if it has no Delta, passes over files that it cannot read, or cannot be started.
        """
        if self.given is not None:
            return engine.usable(self.given)
        session = engine.session()
        record_jvm(self.database.root, engine.jvm_pid())
        return session

    @contextmanager
    def held(self, purpose: str) -> Iterator[None]:
        """Hold the root's lease: all writes to tables and system tables happen under it.

        Raises: LeaseError if it is still held after the time to wait.
        """
        with lease(self.database.root, purpose=purpose, wait_s=self.lock_wait_s):
            record_jvm(self.database.root, engine.jvm_pid())
            yield

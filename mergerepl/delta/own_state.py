"""A table as this process knows it without delta-rs (`own_log`)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from mergerepl.delta.fences import FENCE_APP_ID, number_of, refuse_fence
from mergerepl.delta.log import LOG_FOLDER, note_checkpoint
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.opened import OpenedTable, open_or_reuse, outcome_noted
from mergerepl.delta.own_log import (
    PLAIN_WRITER,
    OwnLog,
    last_transaction,
    log_of,
    users_log,
    write_checkpoint,
)
from mergerepl.delta.table import Stated, TableState, stated_by
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import scratch_files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


class _OpenedLater(OpenedTable):
    """delta-rs' view of a table: opened once it is needed, for a query or a commit by delta-rs."""

    def __init__(self, path: Location) -> None:
        self._path = path

    @contextmanager
    def at(self, version: int) -> "Iterator[DeltaTable]":
        with open_or_reuse(self._path, version).at(version) as log:
            yield log

    @contextmanager
    def writing(self, version: int) -> "Iterator[DeltaTable]":
        with open_or_reuse(self._path, version).writing(version) as log:
            yield log


@dataclass(frozen=True)
class OwnState(TableState):
    """The state of a table by its own log."""

    own: OwnLog = field(default_factory=OwnLog, repr=False, compare=False)

    def files(self, *, with_bounds: bool = True) -> "pa.Table":
        """Return the files of this version, with their sizes, row counts and bounds."""
        del with_bounds
        return self.own.file_table()

    def transaction_version(self, app_id: str) -> int:
        """Return the number of the last transaction of an application in this version, or -1."""
        return number_of(last_transaction(self.own.transactions, app_id), self.path)

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        is_plain = self.writer_version <= PLAIN_WRITER and not self.features
        if is_plain and not self.path.is_local:
            write_checkpoint(self.path, self.own)
        else:
            super().checkpoint()
        note_checkpoint(self.path)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Check that this process may commit the next version, for one commit by itself; notes an unknown outcome."""
        before_write()
        if self.path.is_local:
            yield
            return
        refuse_fence(last_transaction(self.own.transactions, FENCE_APP_ID), self.path)
        with outcome_noted(self.path):
            yield


def own_state(path: Location, version: int) -> OwnState | None:
    """Return a system table, in a store one whose register this process holds; None for other tables."""
    if (own := log_of(path, version)) is None:
        return None
    readers = frozenset(own.protocol.get("readerFeatures") or ())
    stated = own.metadata
    metadata = TableMetadata(
        str(stated["id"]),
        stated["schemaString"],
        stated.get("configuration") or {},
        tuple(stated.get("partitionColumns") or ()),
    )
    return OwnState(
        path,
        version,
        metadata,
        int(own.protocol["minReaderVersion"]),
        int(own.protocol["minWriterVersion"]),
        readers,
        readers | frozenset(own.protocol.get("writerFeatures") or ()),
        stated.get("description"),
        _OpenedLater(path),
        own,
    )


def users_state(path: Location, version: int) -> TableState | None:
    """Return a user's table whose root this process holds; None if delta-rs has to read its log.

    delta-rs reads protocol and columns from a log of one commit on this machine, so they are what it reads in the store.
    """
    from deltalake.exceptions import DeltaError

    own = users_log(path, version)
    if own is None or not own.protocol or not own.metadata:
        return None
    try:
        stated = _stated(json.dumps([{"protocol": own.protocol}, {"metaData": own.metadata}]))
    except (DeltaError, OSError):
        return None
    return TableState(path, version, *stated, _OpenedLater(path))


@lru_cache(maxsize=256)
def _stated(actions: str) -> Stated:
    """Return metadata, protocol and description of a table, as `TableState` has them.

    Raises: DeltaError if delta-rs cannot read the table.
    """
    from deltalake import DeltaTable

    text = "\n".join(map(json.dumps, json.loads(actions)))
    with scratch_files({f"{LOG_FOLDER}/{0:020}.json": text.encode()}) as folder:
        return stated_by(DeltaTable(str(folder)))

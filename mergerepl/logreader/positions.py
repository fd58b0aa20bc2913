"""The table `log_reader` as a value: the facts of the database, and the position of each source."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from mergerepl.delta.properties import KEPT_A_DAY
from mergerepl.errors import StoreError, Transient
from mergerepl.replica.control import ControlPlane
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.logreader import DATABASE, FOLDER, LOG_READER, SCHEMA_VERSION, LogReaderRow


@dataclass(frozen=True)
class LogState:
    """The row of the database, and those of the sources by source_object_id."""

    database: LogReaderRow
    sources: Mapping[int, LogReaderRow] = field(default_factory=dict)

    def source_at(self, path: str) -> LogReaderRow | None:
        """Return the source at a path below the root; None if it is not read."""
        return next((row for row in self.sources.values() if row.source_path == path), None)

    def with_source(self, row: LogReaderRow) -> "LogState":
        """Return the state with a source added or replaced."""
        return replace(self, sources={**self.sources, row.source_object_id: row})

    def without_consumer(self, name: str, object_ids: frozenset[int] | None = None) -> "LogState":
        """Return the state after a consumer left some sources (None: all); sources without a consumer are removed."""
        left = {}
        for object_id, row in self.sources.items():
            is_meant = object_ids is None or object_id in object_ids
            consumers = tuple(each for each in row.consumers if each != name or not is_meant)
            if consumers:
                left[object_id] = replace(row, consumers=consumers)
        return replace(self, sources=left)


def control_of(root: Location) -> ControlPlane:
    """Return the log reader's tables of a database. Kept between cycles, it reads only other processes' changes."""
    return ControlPlane(root / FOLDER, KEPT_A_DAY)


def has_log_reader(control: ControlPlane) -> bool:
    """True if the table `log_reader` exists. In a store it gets its rows by a commit of its own."""
    return control.exists(LOG_READER) and (is_local(control.folder) or bool(control.rows(LOG_READER)))


def read_state(control: ControlPlane) -> LogState:
    """Return the log reader's state.

    Raises: LogReaderError if it is missing, or another version of mergerepl wrote it.
    """
    root = control.folder.parent
    if not has_log_reader(control):
        raise LogReaderError(
            f"'{root}' has no log reader: there is no table '_logreader/log_reader'. Enable the database first: "
            f"`mergerepl cdc enable TABLE -f {root}`.",
            root=str(root),
        )
    rows = {row.source_object_id: row for row in control.rows(LOG_READER)}
    database = rows.pop(DATABASE, None)
    if database is None:
        raise LogReaderError.restored(root, "the table log_reader has no row of the database")
    if database.schema_version != SCHEMA_VERSION:
        raise LogReaderError(
            f"The log reader's tables of '{root}' have the schema version {database.schema_version}; this mergerepl "
            f"reads {SCHEMA_VERSION}. Use the mergerepl that wrote them, or begin again: `mergerepl cdc disable --all -f "
            f"{root}`, then `cdc enable`.",
            root=str(root),
        )
    return LogState(database, rows)


def save_state(control: ControlPlane, state: LogState) -> None:
    """Make this the log reader's state, in one commit."""
    control.replace(LOG_READER, (state.database, *(row for _, row in sorted(state.sources.items()))))


RESUME = "`mergerepl resume`"
"""The command that resumes a paused source."""


def may_pass(error: StoreError) -> bool:
    """True for an error that pauses no source: a temporary one of this machine, such as a share that does not answer, or
    one of a store, which says nothing of the source's table.
    """
    cause = error.__cause__
    is_of_tables = isinstance(cause, PermissionError | FileNotFoundError | NotADirectoryError)
    if isinstance(error, Transient) or "location" in error.facts:
        return True
    return isinstance(cause, OSError) and not is_of_tables


class LogReaderError(StoreError):
    """The log reader's bookkeeping cannot be used; nothing was changed."""

    @classmethod
    def restored(cls, root: Location, what: str) -> Self:
        """A part of the bookkeeping is older than another."""
        return cls(
            f"The log reader of '{root}' cannot go on: {what}. A part of '_logreader' or '_cdc' was restored alone. "
            "Nothing was changed. Restore both folders from copies of one moment; or begin again with "
            f"`mergerepl cdc relocate -f {root}`, after which consumers take a snapshot.",
            root=str(root),
        )

    @classmethod
    def other_key(cls, source: str, one: str, other: str) -> Self:
        """Two consumers identify the rows of a source by different keys."""
        return cls(
            f"Table '{source}' is read by the key ({one}) and cannot be read by the key ({other}), too: articles of "
            "one table have the same key. Nothing was changed. State the first one.",
            source=source,
        )

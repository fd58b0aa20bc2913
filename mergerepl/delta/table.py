"""One table at one version: the contents of its log, as a value."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mergerepl.delta.commits import Commit, commits, read_commit
from mergerepl.delta.fences import number_of
from mergerepl.delta.log import CHECKPOINT, LOG_FOLDER, head_version, log_actions, log_path
from mergerepl.delta.metadata import CHAR_VARCHAR, CONSTRAINT_PREFIX, WIDENING_PROPERTY, TableMetadata
from mergerepl.delta.opened import OpenedTable, kept_table, open_or_reuse
from mergerepl.delta.own_log import last_transaction, transactions_of
from mergerepl.delta.types import Field, has_not_null_parts, invariants, nested_names
from mergerepl.errors import StoreError
from mergerepl.rows.arrow_values import python_values
from mergerepl.store.location import Location
from mergerepl.store.register import registers_above
from mergerepl.store.storage import exists, facts_of, files_in, is_local

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    from mergerepl.model.article import PublishedArticle

_MAPPING_MODE = "delta.columnMapping.mode"
RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
_EMPTY_IS_NULL = ("string", "binary")
"""Types of partition columns in which Delta stores an empty value as NULL."""


_UNSUPPORTED = ("nsupported", "Schema error", "Invalid", "catalog-managed")
"""Words in delta-rs' errors about an unknown feature, protocol or type."""


_MOST_BETWEEN = 20
"""The most commits that are read to see whether an earlier version has the same columns."""


@dataclass(frozen=True)
class TableState:
    """A table at one version: metadata, protocol and columns. `opened` is delta-rs' view of it, which may have moved on."""

    path: Location
    version: int
    metadata: TableMetadata
    reader_version: int
    writer_version: int
    reader_features: frozenset[str]
    features: frozenset[str]
    description: str | None
    opened: OpenedTable = field(repr=False, compare=False)

    def files(self, *, with_bounds: bool = True) -> "pa.Table":
        """Return the files of this version, with their sizes, row counts and bounds (`min.<column>`)."""
        import pyarrow as pa

        with self.opened.at(self.version) as log:
            return pa.table(log.get_add_actions(flatten=with_bounds))

    def file_values(self, names: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
        """Return the names of all columns of `files`, and the values of these columns; a missing column is left out."""
        with self.opened.at(self.version) as log:
            found = log.get_add_actions(flatten=True)
        there = list(found.schema.names)
        # A column of a name that occurs twice cannot be told apart.
        return there, {
            name: python_values(found.column(there.index(name)))
            for name in dict.fromkeys(names)
            if there.count(name) == 1
        }

    def transaction_version(self, app_id: str) -> int:
        """Return the number of the last transaction of an application in this version, or -1."""
        if not self.path.is_local and (known := transactions_of(self.path, self.version)) is not None:
            return number_of(last_transaction(known, app_id), self.path)
        with self.opened.at(self.version) as log:
            version = log.transaction_version(app_id)
        return -1 if version is None else number_of(int(version), self.path)

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        with self.opened.at(self.version) as log:
            log.create_checkpoint()

    def writing(self) -> "AbstractContextManager[DeltaTable]":
        """Give delta-rs' view of this version, for one commit."""
        return self.opened.writing(self.version)

    def committing(self) -> "AbstractContextManager[object]":
        """Check that this process may commit the next version, for one commit by itself; notes an unknown outcome."""
        return self.writing()

    @property
    def fields(self) -> list[Field]:
        """The top-level fields, as in the log."""
        return self.metadata.fields

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        return dict(self.metadata.configuration)

    @property
    def generated_columns(self) -> dict[str, str]:
        """The generated columns: name -> expression."""
        return self.metadata.generated_columns

    @property
    def is_append_only(self) -> bool:
        """Whether the table refuses updates and deletes."""
        return self.properties.get("delta.appendOnly", "false").lower() == "true"

    @property
    def has_column_mapping(self) -> bool:
        """Whether columns have physical names: then Delta can rename and drop them."""
        return self.properties.get(_MAPPING_MODE, "none").lower() != "none"

    @property
    def has_type_widening(self) -> bool:
        """Whether a column can have, or has, a wider type than some files."""
        return any(name.startswith("typeWidening") for name in self.features)

    @property
    def widens_types(self) -> bool:
        """Whether ALTER TABLE may give a column a wider type."""
        return self.properties.get(WIDENING_PROPERTY, "").lower() == "true"

    @property
    def written_columns(self) -> list[str]:
        """The columns that a writer may set: without those that Delta computes or counts itself."""
        return [
            field["name"]
            for field in self.fields
            if field["name"] not in self.generated_columns
            and not any(key.startswith("delta.identity.") for key in field["metadata"])
        ]

    @cached_property
    def schema(self) -> "StructType":
        """The columns as Spark knows them."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.metadata.schema_json))

    @cached_property
    def arrow_schema(self) -> "pa.Schema":
        """The columns as Spark exchanges them with Arrow."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the columns and of all fields inside of them."""
        inside = (name for field in self.fields for name in nested_names(field["type"]))
        return frozenset([*(field["name"] for field in self.fields), *inside])

    def field(self, name: str) -> Field | None:
        """Return the column of exactly this name, or None."""
        return next((field for field in self.fields if field["name"] == name), None)

    def keeps_empty_as_null(self, name: str) -> bool:
        """Whether Delta stores an empty value of this column as NULL, as in partition columns."""
        partitions = {column.lower() for column in self.metadata.partition_columns}
        field = self.field(name)
        return field is not None and field["type"] in _EMPTY_IS_NULL and name.lower() in partitions

    def declared_lengths(self, name: str) -> str:
        """Return a column's declared type in DDL if it contains char(n) or varchar(n); else nothing."""
        field = self.field(name)
        return str(field["metadata"].get(CHAR_VARCHAR, "")) if field is not None else ""

    @property
    def invariants(self) -> dict[str, str]:
        """The columns, or parts of columns, that have an invariant: dotted name -> SQL text."""
        return invariants(self.fields)

    def may_hold_uncopied(self, name: str) -> bool:
        """Whether other engines may have written values to a column that a copy would refuse or alter."""
        field = self.field(name)
        return field is not None and bool(
            self.keeps_empty_as_null(name)
            or self.declared_lengths(name)
            or has_not_null_parts(field["type"])
            or invariants([field])
        )

    @property
    def has_random_folders(self) -> bool:
        """Whether new files lie in folders with random names."""
        return self.properties.get(RANDOM_PREFIXES, "false").lower() == "true"

    @property
    def may_name_folders_in_unicode(self) -> bool:
        """Whether folders named after its partition columns and their values may have non-ASCII names."""
        return any(
            not name.isascii() or field["type"] in _EMPTY_IS_NULL
            for name in self.metadata.partition_columns
            if (field := self.field(name)) is not None
        )

    @property
    def names_folders_after_values(self) -> bool:
        """Whether Delta names the folders of new files after the values of partition columns."""
        is_mapped = self.properties.get(_MAPPING_MODE, "none").lower() != "none"
        return not is_mapped and not self.has_random_folders

    def commits_after(self, version: int) -> Iterator[Commit]:
        """Yield the commits after a version, up to this one, in order.

        Raises: TruncatedLogError if one is gone from the log; StoreError if one is damaged.
        """
        return commits(self.path, from_version_exclusive=version, through_version_inclusive=self.version)


Stated = tuple[TableMetadata, int, int, frozenset[str], frozenset[str], str | None]
"""Metadata, protocol and description of a table: the fields of `TableState` between its version and `opened`."""


def open_table(path: Location, version: int | None = None) -> TableState:
    """Return a table at a version, by default at its head.

    Raises: StoreError if it is not a Delta table, its log has a gap or is damaged, or it has a feature or type unknown
    to delta-rs.
    """
    from deltalake.exceptions import DeltaError

    path = Location.of(path)
    at = head_version(path) if version is None else version
    refuse_empty_commit(path, at)
    from mergerepl.delta.own_state import own_state, users_state

    if (known := own_state(path, at) or users_state(path, at)) is not None:
        return known
    read_at = _version_alike(path, at)
    try:
        opened = open_or_reuse(path, read_at)
        with opened.at(read_at) as log:
            stated = stated_by(log)
    except DeltaError as error:
        # An error about one of the commits that delta-rs read names the damaged file.
        for each in range(at, max(_checkpoints(path, at), default=-1), -1):
            read_commit(path, each)
        raise _unreadable(path, at, reason_of(error)) from error
    return TableState(path, at, *stated, opened)


def stated_by(log: "DeltaTable") -> Stated:
    """Return metadata, protocol and description of a table that delta-rs opened, as `TableState` has them.

    Raises: DeltaError.
    """
    stated, protocol = log.metadata(), log.protocol()
    readers = protocol.reader_features or ()
    partitions = tuple(stated.partition_columns)
    return (
        TableMetadata(str(stated.id), log.schema().to_json(), stated.configuration, partitions),
        protocol.min_reader_version,
        protocol.min_writer_version,
        frozenset(readers),
        frozenset((*readers, *(protocol.writer_features or ()))),
        stated.description,
    )


def _version_alike(path: Location, version: int) -> int:
    """Return the version at which a table in a store is open already, if it has the columns and features of another one.

    delta-rs reads each commit since the last checkpoint twice to open an earlier version. While the root is held, the
    commits between the two are known.
    """
    opened = kept_table(path)
    if path.is_local or opened is None or not registers_above(path):
        return version
    between = range(version + 1, opened.version + 1)
    if len(between) > _MOST_BETWEEN:
        return version
    try:
        actions = (action for each in between for action in log_actions(path, each))
        is_alike = not any({"metaData", "protocol"} & action.keys() for action in actions)
    except (OSError, ValueError):
        return version
    return opened.version if between and is_alike else version


def row_constraints(table: TableState, article: "PublishedArticle") -> str:
    """Hash the conditions under which a table takes a row; if the hash changes, a refused change is sent again.

    With CHECK constraints on unpublished columns, every commit may change the result.
    """
    has_checks = any(key.startswith(CONSTRAINT_PREFIX) for key in table.properties)
    has_others = any(field["name"] not in article.columns for field in table.fields)
    version = table.version if has_checks and has_others else None
    partitions = list(table.metadata.partition_columns)
    asked = [table.fields, table.properties, partitions, version, article.compensates]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def file_names(table: Location, version: int) -> list[str]:
    """Return the paths of a table's files at a version, as its log writes them."""
    names: list[str] = open_table(table, version).files(with_bounds=False)["path"].to_pylist()
    return names


def _unreadable(path: Location, version: int, reason: str) -> StoreError:
    if "'udt'" in reason:
        return StoreError(
            f"'{path}' has a column of a user-defined type, such as a vector of Spark ML: delta-rs cannot open the table, "
            "whether the column is published or not. Store it as an array or a struct of plain types (`vector_to_array`, "
            "say), and drop that column.",
            table=str(path),
        )
    if any(word in reason for word in ("catalog-managed", "catalogOwned")):
        return StoreError(
            f"'{path}' is managed by a catalog, such as Unity Catalog, and cannot be written by path. Publish an external "
            "table by its location, or copy it to one.",
            table=str(path),
        )
    checkpoints = _checkpoints(path, version)
    is_unsupported = any(word in reason for word in _UNSUPPORTED)
    if checkpoints and not is_unsupported:
        return StoreError(
            f"The checkpoint '{checkpoints[max(checkpoints)]}' of a Delta log cannot be read: {reason}. Restore the file "
            "from a copy; or, if all commits since the last checkpoint before it are there, remove it.",
            table=str(path),
        )
    return StoreError(
        f"The log of '{path}' cannot be read: {reason}. Restore it from a copy, or undo what this version of Delta does "
        "not support.",
        table=str(path),
    )


def _checkpoints(path: Location, version: int) -> dict[int, Location]:
    files = ((CHECKPOINT.match(each.name), each) for each in files_in(path / LOG_FOLDER))
    return {int(match[1]): each for match, each in files if match and int(match[1]) <= version}


def refuse_empty_commit(path: Location, version: int) -> None:
    """Check that a commit is not an empty file, as a power loss leaves it: delta-rs skips it silently.

    Raises: StoreError.
    """
    if not is_local(path):
        # A store has an object whole or not at all.
        return
    file = log_path(path, version)
    if exists(file) and not facts_of(file).size:
        read_commit(path, version)


def reason_of(error: Exception) -> str:
    """Return the reason in an error of delta-rs, without the native stack trace and log structures that follow it."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first.partition(": ParsedLogPath {")[0].removeprefix("Kernel error: ").rstrip(". ")[:500]

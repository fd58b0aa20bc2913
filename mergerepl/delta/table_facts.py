"""What a Delta log says of a table at its head, read without an engine."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergerepl.delta.log import (
    CHAR_VARCHAR,
    CHECKPOINT,
    LOG_FOLDER,
    TableMetadata,
    actions_of,
    head_version,
    log_path,
    read_commit,
)
from mergerepl.delta.types import Field, has_not_null_parts, invariants
from mergerepl.errors import StoreError

_ACTIONS = ("metaData", "protocol", "domainMetadata")
_CLUSTERING = "delta.clustering"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_MAPPING_MODE = "delta.columnMapping.mode"
RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
_EMPTY_IS_NULL = ("string", "binary")
"""Types of partition columns in which Delta stores an empty value as NULL."""


@dataclass(frozen=True)
class TableFacts:
    """A table at one version."""

    path: Path
    version: int
    metadata: TableMetadata
    reader_version: int
    writer_version: int
    features: frozenset[str]
    description: str | None = None

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
    def written_columns(self) -> list[str]:
        """The columns that a writer may set: those that Delta computes or counts itself are left out."""
        return [
            field["name"]
            for field in self.fields
            if field["name"] not in self.generated_columns
            and not any(key.startswith("delta.identity.") for key in field["metadata"])
        ]

    def field(self, name: str) -> Field | None:
        """Return the column of this very name, or None."""
        return next((field for field in self.fields if field["name"] == name), None)

    def keeps_empty_as_null(self, name: str) -> bool:
        """Return whether Delta stores an empty value of this column as NULL, as it does of partition columns."""
        partitions = {column.lower() for column in self.metadata.partition_columns}
        field = self.field(name)
        return field is not None and field["type"] in _EMPTY_IS_NULL and name.lower() in partitions

    def declared_lengths(self, name: str) -> str:
        """Return a column's type as it was declared, in DDL, if char(n) or varchar(n) are part of it; else nothing."""
        field = self.field(name)
        return str(field["metadata"].get(CHAR_VARCHAR, "")) if field is not None else ""

    @property
    def invariants(self) -> dict[str, str]:
        """The columns, or parts of columns, that have an invariant: dotted name -> SQL text."""
        return invariants(self.fields)

    def may_hold_uncopied(self, name: str) -> bool:
        """Return whether other engines may have written values to a column that a copy would not take or keep."""
        field = self.field(name)
        return field is not None and bool(
            self.keeps_empty_as_null(name)
            or self.declared_lengths(name)
            or has_not_null_parts(field["type"])
            or invariants([field])
        )

    @property
    def has_random_folders(self) -> bool:
        """Return whether new files lie in folders of random names."""
        return self.properties.get(RANDOM_PREFIXES, "false").lower() == "true"

    @property
    def may_name_folders_in_unicode(self) -> bool:
        """Return whether folders named after its partition columns and their values may have names that are not ASCII."""
        return any(
            not name.isascii() or field["type"] in _EMPTY_IS_NULL
            for name in self.metadata.partition_columns
            if (field := self.field(name)) is not None
        )

    @property
    def names_folders_after_values(self) -> bool:
        """Return whether Delta names the folders of new files after the values of partition columns."""
        is_mapped = self.properties.get(_MAPPING_MODE, "none").lower() != "none"
        return not is_mapped and not self.has_random_folders


def read_table_facts(table: Path) -> TableFacts:
    """Return the facts of a table at its head.

    Raises: StoreError if it is no Delta table or its log is damaged.
    """
    version = head_version(table)
    metadata: dict[str, Any] | None = None
    protocol: dict[str, Any] | None = None
    for action in _newest_first(table, version):
        metadata = metadata or action.get("metaData")
        protocol = protocol or action.get("protocol")
        if metadata and protocol:
            return _facts(table, version, metadata, protocol)
    raise StoreError(
        f"'{table}' cannot be read: its log holds no {'protocol' if metadata else 'schema'} up to version "
        f"{version}. Log files are missing; restore them, or the table, from a copy.",
        table=str(table),
    )


def _facts(table: Path, version: int, metadata: dict[str, Any], protocol: dict[str, Any]) -> TableFacts:
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    return TableFacts(
        table,
        version,
        TableMetadata(
            metadata["id"],
            metadata["schemaString"],
            dict(metadata.get("configuration") or {}),
            tuple(metadata.get("partitionColumns") or ()),
        ),
        int(protocol["minReaderVersion"]),
        int(protocol["minWriterVersion"]),
        frozenset(features),
        metadata.get("description"),
    )


def clustering_columns(table: TableFacts) -> list[list[str]]:
    """Return the columns a table is clustered by, each as its path of names; none if it is not."""
    if "clustering" not in table.features:
        return []
    for action in _newest_first(table.path, table.version):
        domain = action.get("domainMetadata") or {}
        if domain.get("domain") == _CLUSTERING:
            stated = json.loads(domain["configuration"] or "{}") if not domain.get("removed") else {}
            return [_logical(table.fields, names) for names in stated.get("clusteringColumns", [])]
    return []


def _logical(fields: list[Field], physical: list[str]) -> list[str]:
    """Return a column's path by the names users see; column mapping stores others."""
    found = next(
        (field for field in fields if field["metadata"].get(_PHYSICAL_NAME, field["name"]) == physical[0]),
        None,
    )
    if found is None:
        return physical
    inner = found["type"]["fields"] if isinstance(found["type"], dict) and "fields" in found["type"] else []
    return [found["name"], *(_logical(inner, physical[1:]) if len(physical) > 1 else [])]


def _newest_first(table: Path, version: int) -> Iterator[dict[str, Any]]:
    """Yield the metaData and protocol actions from the head back to the last checkpoint, and of that."""
    checkpoints = _checkpoints(table)
    oldest = max((v for v in checkpoints if v <= version), default=-1)
    for v in range(version, oldest, -1):
        try:
            text = log_path(table, v).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        if not text.strip():
            read_commit(table, v)  # raises, naming the file and what is wrong with it
        if any(f'"{name}"' in text for name in _ACTIONS):
            yield from _actions(table, v, text)
    for path in checkpoints.get(oldest, ()):
        yield from _checkpoint_actions(path)


def _actions(table: Path, version: int, text: str) -> list[dict[str, Any]]:
    try:
        return actions_of(text)
    except ValueError:
        read_commit(table, version)
        raise


def _checkpoints(table: Path) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for path in (table / LOG_FOLDER).iterdir():
        if match := CHECKPOINT.match(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return found


def _checkpoint_actions(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        return actions_of(path.read_text(encoding="utf-8"))
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    try:
        file = pq.ParquetFile(path)
        for name in set(_ACTIONS).intersection(file.schema_arrow.names):
            column = file.read(columns=[name])
            # Most rows of a checkpoint are the table's files: those are left out before Python makes objects of them.
            rows += column.filter(pc.is_valid(column[name])).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are these
        raise StoreError(
            f"The checkpoint '{path}' of a Delta log cannot be read: {error}. Restore the file from a copy; or, if all "
            "commits since the last checkpoint before it are there, remove it.",
            table=str(path.parent.parent),
        ) from error
    return [_plain(row) for row in rows]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Turn the map that arrow hands out as pairs into a dictionary."""
    metadata = row.get("metaData")
    if metadata:
        metadata["configuration"] = dict(metadata.get("configuration") or ())
    return row

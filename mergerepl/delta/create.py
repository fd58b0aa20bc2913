"""Create an empty Delta table by writing its first commit.

A table made through an engine loses column comments, char lengths, constraints, defaults or generation expressions on
the way, or costs a second each. The first commit of a Delta table is three JSON lines (PROTOCOL.md of Delta Lake:
commitInfo, protocol, metaData), put in place by a hard link, which fails if a table exists.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mergerepl.delta.known_heads import forget_head
from mergerepl.delta.log import is_delta_table, log_path, note_new_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, CONSTRAINT_PREFIX, DEFAULT_EXPRESSION, DEFAULTS_FEATURE
from mergerepl.delta.own_log import forget_log
from mergerepl.delta.types import Field, leaf_types
from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.storage import HALF_WRITTEN, files_below, is_folder, is_there, make_folder, storage

_READER_FEATURES = frozenset({"timestampNtz", "deletionVectors", "variantType"})


@dataclass(frozen=True)
class NewTable:
    """The contents of the first commit."""

    fields: Sequence[Field]
    partition_columns: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    clustering: Sequence[Sequence[str]] = ()


def is_vacant(table: Location) -> bool:
    """Whether a table can be made: a free path, a folder without files, or one with an interrupted first commit only."""
    if not is_folder(table):
        return not is_there(table)
    log = log_path(table, 0).parent
    return all(file.parent == log and file.name.endswith(HALF_WRITTEN) for file in files_below(table))


def create_table(path: Location, table: NewTable, mark: CommitMark) -> str:
    """Create the table and return its id.

    Raises: StoreError if a table already exists, or the folder cannot be written.
    """
    table_id = str(uuid.uuid4())
    clustering = []
    if table.clustering:
        columns = {"clusteringColumns": list(map(list, table.clustering)), "domainName": "delta.clustering"}
        domain = {"domain": "delta.clustering", "configuration": json.dumps(columns), "removed": False}
        clustering.append({"domainMetadata": domain})
    actions = [_commit_info(table, mark), _protocol(table), _metadata(table, table_id), *clustering]
    text = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    target = log_path(path, 0)
    try:
        make_folder(target.parent)
        if is_delta_table(path):
            raise FileExistsError
        forget_head(path)
        forget_log(path)
        data = f"{text}\n".encode()
        note_new_table(path, data, storage(target).put_if_absent(target, data))
    except FileExistsError as error:
        raise StoreError(
            f"'{path}' cannot be created: there is a Delta table already. Remove it, or choose another "
            "folder.",
            table=str(path),
        ) from error
    except OSError as error:
        raise StoreError(
            f"'{path}' cannot be created: {error.strerror}. Check that the folder is writable and has space "
            "left.",
            table=str(path),
        ) from error
    return table_id


def _commit_info(table: NewTable, mark: CommitMark) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": int(time.time() * 1000),
            "operation": "CREATE TABLE",
            "operationParameters": {
                "partitionBy": json.dumps(list(table.partition_columns)),
                "properties": json.dumps(dict(table.properties)),
            },
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {},
            "userMetadata": mark.to_user_metadata(),
            "engineInfo": "mergerepl",
            "txnId": str(uuid.uuid4()),
        }
    }


def _protocol(table: NewTable) -> dict[str, Any]:
    features = set(features_of(table))
    if not features:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    features |= {"appendOnly", "invariants"}
    reader_features = sorted(features & _READER_FEATURES)
    protocol: dict[str, Any] = {"minReaderVersion": 3 if reader_features else 1, "minWriterVersion": 7}
    if reader_features:
        protocol["readerFeatures"] = reader_features
    protocol["writerFeatures"] = sorted(features)
    return {"protocol": protocol}


def features_of(table: NewTable) -> Iterable[str]:
    """Yield the table features that the schema and the properties need."""
    types = set().union(*(leaf_types(field["type"]) for field in table.fields))
    metadata = set().union(*(field["metadata"] for field in table.fields))
    if table.properties.get(CDF_PROPERTY, "").lower() == "true":
        yield "changeDataFeed"
    if table.properties.get("delta.enableDeletionVectors", "").lower() == "true":
        yield "deletionVectors"
    if any(name.startswith(CONSTRAINT_PREFIX) for name in table.properties):
        yield "checkConstraints"
    if "timestamp_ntz" in types:
        yield "timestampNtz"
    if "variant" in types:
        yield "variantType"
    if "delta.generationExpression" in metadata:
        yield "generatedColumns"
    if DEFAULT_EXPRESSION in metadata:
        yield DEFAULTS_FEATURE
    if table.clustering:
        yield from ("clustering", "domainMetadata")


def _metadata(table: NewTable, table_id: str) -> dict[str, Any]:
    schema = {"type": "struct", "fields": list(table.fields)}
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":"), ensure_ascii=False),
        "partitionColumns": list(table.partition_columns),
        "configuration": dict(table.properties),
        "createdTime": int(time.time() * 1000),
    }
    if table.description is not None:
        metadata["description"] = table.description
    return {"metaData": metadata}

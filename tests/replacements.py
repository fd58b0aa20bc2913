"""A replaced table, as Spark's CREATE OR REPLACE TABLE AS SELECT commits it, without Spark."""

import json
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from mergerepl.delta.log import actions_of, log_path
from mergerepl.delta.table import open_table

_KEPT = ("add", "remove", "protocol")


def create_or_replace(table: Path, rows: pa.Table) -> None:
    """Replace a table: another table id, none of its properties, all files removed."""
    state = open_table(table)
    write_deltalake(str(table), rows, mode="overwrite", schema_mode="overwrite")
    file = log_path(table, state.version + 1)
    actions = actions_of(file.read_text())
    stated = next(
        (each["metaData"]["schemaString"] for each in actions if "metaData" in each),
        state.metadata.schema_json,
    )
    metadata = {
        "id": f"replaced-{state.version + 1}",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": stated,
        "partitionColumns": [],
        "configuration": {},
    }
    info = {"operation": "CREATE OR REPLACE TABLE AS SELECT", "operationParameters": {}}
    files = [each for each in actions if each.keys() & {*_KEPT}]
    lines = [{"commitInfo": info}, {"metaData": metadata}, *files]
    file.write_text("\n".join(map(json.dumps, lines)))

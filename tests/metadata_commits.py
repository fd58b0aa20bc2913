"""Metadata of tables and the commits that change it, for tests of what follows columns."""

import json
from typing import Any

from mergerepl.delta.commits import Commit
from mergerepl.delta.marks import CommitMark, SchemaStep
from mergerepl.delta.metadata import TableMetadata

Columns = dict[str, str]
"""Name -> physical name; the name itself where columns are not mapped."""


def table(columns: Columns, *, mapped: bool = True, **stated: dict[str, Any]) -> TableMetadata:
    fields = [
        {"name": name, "type": "integer", "nullable": True, "metadata": {}, **stated.get(name, {})}
        for name in columns
    ]
    for each in fields:
        if mapped:
            each["metadata"] = {**each["metadata"], "delta.columnMapping.physicalName": columns[each["name"]]}
    mode = {"delta.columnMapping.mode": "name"} if mapped else {}
    return TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), mode, ())


def plain(*names: str, **stated: dict[str, Any]) -> TableMetadata:
    return table({name: name for name in names}, mapped=False, **stated)


def alter(metadata: TableMetadata | None, *, mark: CommitMark | None = None) -> Commit:
    return Commit(0, "CHANGE COLUMN", mark, False, metadata)


def own(what: str, number: int, metadata: TableMetadata | None, name: str = "") -> Commit:
    return alter(metadata, mark=CommitMark("s", SchemaStep(what, number, name).to_step(), "me"))


def replaced(metadata: TableMetadata) -> Commit:
    return Commit(
        0, "CREATE OR REPLACE TABLE AS SELECT", None, True, metadata, replaces_rows=True, replaces_table=True
    )


def restored(metadata: TableMetadata, version: int) -> Commit:
    return Commit(0, "RESTORE", None, True, metadata, restored_version=version)

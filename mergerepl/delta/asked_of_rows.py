"""A table's rules for its rows, as one text to compare: a refused change is sent again when this text has changed."""

import hashlib
import json
from collections.abc import Collection

from mergerepl.delta.table import TableState

_CHECK = "delta.constraints."


def asked_of_rows(table: TableState, published: Collection[str]) -> str:
    """Return a hash of a table's columns and properties.

    With CHECK constraints on columns that may not be `published`, every commit may change the result.
    """
    has_checks = any(key.startswith(_CHECK) for key in table.properties)
    has_others = any(field["name"] not in published for field in table.fields)
    version = table.version if has_checks and has_others else None
    asked = [table.fields, table.properties, list(table.metadata.partition_columns), version]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

"""A table's rules for its rows, as one text to compare: a refused change is sent again when this text has changed."""

import hashlib
import json

from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.table import TableState
from mergerepl.model.article import PublishedArticle


def asked_of_rows(table: TableState, article: PublishedArticle) -> str:
    """Return a hash of a table's columns and properties, and of whether its article compensates for what it refuses.

    With CHECK constraints on columns that are not published, every commit may change the result.
    """
    has_checks = any(key.startswith(CONSTRAINT_PREFIX) for key in table.properties)
    has_others = any(field["name"] not in article.columns for field in table.fields)
    version = table.version if has_checks and has_others else None
    partitions = list(table.metadata.partition_columns)
    asked = [table.fields, table.properties, partitions, version, article.compensates]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

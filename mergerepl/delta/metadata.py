"""A table's metaData action: its id, schema, partition columns and properties."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

STATS_PROPERTY = "delta.dataSkippingStatsColumns"
"""Names the whole-number columns for which every commit states the bounds of its files."""

CDF_PROPERTY = "delta.enableChangeDataFeed"

CONSTRAINT_PREFIX = "delta.constraints."
"""Prefix of a CHECK constraint's property."""

FEED_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Columns of the change data feed: a table with one of them cannot have a feed."""

CHAR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""The property of a column with its full type, if that contains char or varchar at any depth."""

GENERATION_EXPRESSION = "delta.generationExpression"
"""The property of a column with the expression that Delta computes it from."""

DEFAULT_EXPRESSION = "CURRENT_DEFAULT"
"""The property of a column with its default value."""

DEFAULTS_FEATURE = "allowColumnDefaults"
"""The table feature of tables with defaults; delta-rs 1.6.6 writes to none of them."""

WIDENING_PROPERTY = "delta.enableTypeWidening"
"""Whether columns may get a wider type without their files being rewritten; delta-rs 1.6.6 does not write such tables."""

COMMENT = "comment"
"""The property of a column with its comment."""


@dataclass(frozen=True)
class TableMetadata:
    """A metaData action: the table's id, schema (Spark JSON), properties and partition columns."""

    table_id: str
    schema_json: str
    configuration: Mapping[str, str]
    partition_columns: tuple[str, ...]

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        """The top-level fields of the schema, as in the log."""
        fields: list[dict[str, Any]] = json.loads(self.schema_json)["fields"]
        return fields

    @property
    def generated_columns(self) -> dict[str, str]:
        """The generated columns: name -> expression."""
        found = ((field["name"], field["metadata"].get(GENERATION_EXPRESSION)) for field in self.fields)
        return {name: str(expression) for name, expression in found if expression is not None}

    @property
    def timestamp_partitions(self) -> tuple[str, ...]:
        """The partition columns that are instants; their values in the log may have no time zone."""
        return tuple(
            f["name"] for f in self.fields if f["name"] in self.partition_columns and f["type"] == "timestamp"
        )

    @property
    def change_data_feed(self) -> bool:
        """True when commits under this metadata record their row changes."""
        return self.configuration.get(CDF_PROPERTY, "false").lower() == "true"

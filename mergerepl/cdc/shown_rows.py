"""The first rows of a query's result as values that can be shown: LSNs and masks in hexadecimal."""

from typing import Any

from pyspark.sql import DataFrame

from mergerepl.rows.images import with_readable
from mergerepl.spark.errors import plain_errors
from mergerepl.systables.cdc import OPERATION, RESERVED_PREFIX


def first_rows(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return at most so many rows of changes, and whether there are more. Captured values are readable text, or None."""
    names = [name for name in frame.columns if not name.startswith(RESERVED_PREFIX)]
    with plain_errors("changes were read"):
        found = with_readable(frame.limit(limit + 1), names).collect()
    rows = [
        {name: _shown(name, value) for name, value in zip(frame.columns, row, strict=True)}
        for row in found[:limit]
    ]
    return rows, len(found) > limit


def _shown(name: str, value: Any) -> Any:
    is_own = name.startswith(RESERVED_PREFIX) and name != OPERATION
    return f"0x{bytes(value).hex().upper()}" if is_own and value is not None else value

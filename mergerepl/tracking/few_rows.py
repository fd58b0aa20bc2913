"""Few rows of a transaction in this process: what may be computed here, given values, and rows of the snapshot by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from mergerepl.delta.commit_files import frame_having
from mergerepl.delta.engine_choice import NeedsSparkError, require_few, require_few_bytes
from mergerepl.delta.small_writer import KEY_TYPES, written_problem
from mergerepl.delta.tables import open_table
from mergerepl.frames import DataFrame
from mergerepl.model.tracking_options import TrackingKeyType
from mergerepl.rows.rowguid import base_type
from mergerepl.spark.in_memory import frame_of_tuples
from mergerepl.systables.tracking import ROW_COLUMNS

if TYPE_CHECKING:
    from mergerepl.tracking.staged_rows import Touched

_VALUES: dict[str, type] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime),
    "string": str,
    "binary": bytes,
    "boolean": bool,
    "date": date,
    "decimal": Decimal,
}
"""The values that a type of column has in Python. Spark refuses or converts others."""


def require_few_rows(touched: Touched, given: int) -> None:
    """Check that this process may compute an operation with some given rows, or the net rows of a transaction.

    Raises: NeedsSparkError.
    """
    path, facts = touched.facts.path, touched.facts
    if (problem := written_problem(facts)) is not None:
        raise NeedsSparkError(problem, path)
    for name in touched.table.key:
        if (stored := facts.field(name)) is None or stored["type"] not in KEY_TYPES:
            raise NeedsSparkError(f"key column '{name}'", path)
    count = given + touched.staged_count
    require_few(count, count * len(facts.fields))
    require_few_bytes(touched.staged_bytes)


def few_values(rows: Sequence[tuple[Any, ...]], fields: Sequence[StructField]) -> DataFrame:
    """Return given values, which have the types of these columns, as a frame in process.

    Raises: NeedsSparkError for a value that Spark may take otherwise, or refuses.
    """
    for field, values in zip(fields, zip(*rows, strict=True), strict=False):
        if any(each is not None and not _is_plain(each, field.dataType) for each in values):
            named = f"column '{field.name}' of type {field.dataType.simpleString()}"
            raise NeedsSparkError(f"a value given for {named}")
    from pyarrow import ArrowException

    try:
        return frame_of_tuples(None, rows, StructType(list(fields)))
    except (ArrowException, ArithmeticError, ValueError) as error:
        raise NeedsSparkError(f"a value that was given: {error}") from error


def _is_plain(value: object, data_type: DataType) -> bool:
    type_ = base_type(data_type.simpleString())
    if type(value) is not _VALUES.get(type_):
        return False
    if isinstance(value, datetime):
        # Spark takes a time without a zone in the zone of this machine.
        return (value.tzinfo is None) is (type_ == "timestamp_ntz")
    if isinstance(value, Decimal):
        # Spark rounds other ones half up.
        assert isinstance(data_type, DecimalType)
        return value.is_finite() and -int(value.as_tuple().exponent) <= data_type.scale
    return True


def rows_with_keys(touched: Touched, among: DataFrame) -> DataFrame:
    """Return the rows of a transaction's snapshot that have, in each key column, the value of one of some staged keys.

    Raises: NeedsSparkError if Arrow does not read them as Spark does, or they are too many.
    """
    table = touched.table
    state = open_table(touched.facts.path, touched.version)
    columns = [*touched.columns, *(name for name, _ in ROW_COLUMNS)]
    names = dict(zip(table.key, touched.keys, strict=True))
    return frame_having(state, columns, among, names, is_guid=table.key_type is TrackingKeyType.GUID)

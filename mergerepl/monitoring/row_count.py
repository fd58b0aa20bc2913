"""How many rows a table has: from its log's statistics where they say it, else by counting."""

from mergerepl.delta.tables import head_version, open_table
from mergerepl.errors import StoreError
from mergerepl.store.location import Location


def row_count(table: Location) -> int:
    """Return the number of rows of a table's latest version. Starts an engine only if the log does not say it.

    Raises: StoreError if it is no Delta table.
    """
    version = head_version(table)
    known = _count_in_log(table, version)
    return known if known is not None else _count_by_spark(table, version)


def _count_in_log(table: Location, version: int) -> int | None:
    """Return the sum of the files' record counts; None if one is missing or there may be deletion vectors."""
    from deltalake.exceptions import DeltaError

    try:
        opened = open_table(table, version)
        if "deletionVectors" in opened.features:
            return None
        counts = opened.files()["num_records"].to_pylist()
    except (StoreError, DeltaError, KeyError, OSError):
        return None
    return None if None in counts else sum(counts)


def _count_by_spark(table: Location, version: int) -> int:
    from mergerepl.delta.tables import read_version
    from mergerepl.spark import session as engine
    from mergerepl.spark.errors import plain_errors

    with plain_errors(f"counting the rows of '{table}'"):
        return read_version(engine.session(), table, version).count()

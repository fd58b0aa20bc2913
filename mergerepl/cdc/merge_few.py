"""Few net changes are merged into a target by delta-rs: without Java where they are read in process, too."""

from collections.abc import Sequence
from typing import Any

from mergerepl.cdc.change_rows import ALL, net_rows
from mergerepl.cdc.queries import open_window, without_doubtful
from mergerepl.cdc.tables import CdcTables
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.small_writer import ACTION, SmallRows, holds_inserts, holds_twice, merge_by_delta_rs
from mergerepl.delta.tables import Transaction, recent_head
from mergerepl.delta.types import ddl_of
from mergerepl.frames import DataFrame, F
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import collected
from mergerepl.store.location import Location
from mergerepl.systables.cdc import DELETE, INSERT, OPERATION, ChangeTable


def merge_in_process(
    database: CdcTables,
    instance: ChangeTable,
    target: Location,
    key: tuple[str, ...],
    ends: tuple[Lsn, Lsn],
    transaction: Transaction,
    *,
    is_shared: bool,
) -> dict[int, int]:
    """Merge the net changes of a window into a target, in one commit if there are any. Returns their number by operation.

    `is_shared`: other writers have changed the target's rows.

    Raises: NeedsSparkError, with nothing written; CommitFailedError if another writer committed first; as `open_window`.
    """
    with EngineChoice(uses_arrow=True, in_process=True).rules():
        window = open_window(database, instance.capture_instance, *ends)
        net = net_rows(window.rows, key, window.captured, ALL, compared=window.present)
        rows, doubtful = without_doubtful(net, key)
        if not doubtful.isEmpty():
            raise NeedsSparkError("the changes of a key do not determine its row")
        counts = {operation: count for (operation,), count in counts_of(rows).items()}
        if counts:
            merge_few(rows, target, key, window.captured, transaction, is_shared=is_shared)
        return counts


def counts_of(rows: DataFrame, *also: str) -> dict[tuple[Any, ...], int]:
    """Return the number of rows by operation, and by other columns."""
    counted = rows.groupBy(*map(quote, (OPERATION, *also))).agg(F.count("*").alias("count")).collect()
    return {tuple(row)[:-1]: row[-1] for row in counted}


def merge_few(
    rows: DataFrame,
    target: Location,
    key: tuple[str, ...],
    captured: Sequence[str],
    transaction: Transaction,
    *,
    is_shared: bool = False,
) -> None:
    """Merge few net changes by delta-rs. `is_shared`: other writers have changed the target's rows.

    Raises: NeedsSparkError, with nothing written, if Spark has to: a new row is there, too, a key is NULL, or others wrote
        a key twice; CommitFailedError if another writer committed first.
    """
    types = {name: ddl_of(rows.schema[name].jsonValue()["type"]) for name in captured}
    article = PublishedArticle.of_table(target.name, key, types)
    operation = F.col(quote(OPERATION))
    action = F.when(operation == DELETE, "delete").when(operation == INSERT, "insert").otherwise("update")
    image = (F.col(quote(name)).alias(field) for name, field in zip(captured, article.fields, strict=True))
    few = SmallRows(
        collected(rows.select(action.alias(ACTION), *image)),
        dict(zip(article.fields, article.types, strict=True)),
    )
    if any(few.rows[field].null_count for field in article.identity_fields):
        # Spark's MERGE finds the row of a NULL key; delta-rs compares keys by `=`.
        raise NeedsSparkError("a key is NULL", target)
    # A commit after what is read here ends the merge.
    at = recent_head(target)
    if holds_inserts(few, target, article):
        raise NeedsSparkError("it has a row that is new", target)
    if is_shared and holds_twice(few, target, article):
        raise NeedsSparkError("it has a key twice", target)
    actions = {"update": few.rows.num_rows}
    merge_by_delta_rs(
        *(lambda: few, target, article),
        actions=actions,
        bounds=few.bounds(article),
        transaction=transaction,
        at=at,
    )

"""Bring the publisher's rows back to a subscriber's tables, where other writers changed them (transactional.md 13).

Each table gets one commit, marked `repair:`. After a crash, run it again: it writes the rows that still differ.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import (
    Transaction,
    create_table,
    head_version,
    is_delta_table,
    lost_commits,
    marked_session,
    merge_into,
    next_transaction,
    read_back,
    retry_conflicts,
)
from mergerepl.failpoints import failpoint
from mergerepl.filters.chosen_rows import ChosenRows
from mergerepl.model.tasks import Repair
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, KEY_PREFIX, MISSING, TWICE
from mergerepl.rows.images import all_true
from mergerepl.rows.nested import as_declared
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import in_session
from mergerepl.store.location import Location
from mergerepl.systables.transactional import PositionRow, SubscriptionRow
from mergerepl.transactional.agents import forget_stop, stop_of
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.distribution import Agent
from mergerepl.transactional.position import REPAIR, begin_writing, fence_article, position_of, repair_app_id
from mergerepl.transactional.refusals import CHECK_BROKEN, DUPLICATE, EXPIRED, NOT_FOUND, TransactionalError
from mergerepl.transactional.row_rules import refusing_rule
from mergerepl.transactional.snapshot import rows_at, subscriber_table
from mergerepl.transactional.validation import Difference, Expected, differing, expected_of, validate_one

_OF_ROWS = (NOT_FOUND, DUPLICATE, EXPIRED)
"""Errors at which an agent stops because rows are not in the state that it left."""


def _chosen_articles(chosen: ChosenRows, expected: list[Expected]) -> list[Expected]:
    names = chosen.tables([each.article.article for each in expected])
    return [each for each in expected if each.article.article in names]


def _chosen_rows(chosen: ChosenRows, rows: DataFrame, article: Shape) -> DataFrame:
    """Return the chosen ones of the rows of `compared_rows`."""
    fields = {name: f"c{i}" for i, name in enumerate(article.columns)}
    numbers = {name: i for i, name in enumerate(article.key_columns)}
    conditions = chosen.conditions(
        article.article,
        dict(zip(article.columns, article.types, strict=True)),
        article.key_columns,
        key_column=lambda name: F.col(f"{KEY_PREFIX}{numbers[name]}"),
        rows=[lambda name, side=side: F.col(f"{side}.{fields[name]}") for side in ("ours", "theirs")],  # type: ignore[misc]
    )
    return rows.where(all_true(conditions)) if conditions else rows


def repair_one(
    distributor: DistributionStore,
    publication: str,
    row: SubscriptionRow,
    chosen: ChosenRows,
    spark: SparkSession,
    *,
    is_dry: bool,
    makes_missing: bool = False,
) -> list[Repair]:
    """Repair the chosen rows of one subscription, then compare it. The caller holds the subscriber.

    `makes_missing`: a table that is gone is created first.

    Raises: As `Distributor.repair`.
    """
    position = position_of(distributor, row, has_to_go_on=False)
    if not is_dry:
        begin_writing(distributor, row)
    wanted = _chosen_articles(chosen, expected_of(distributor, row, position))
    missing = [each for each in wanted if makes_missing and not is_delta_table(each.table)]
    for each in wanted:
        if each not in missing and not each.can_be_compared:
            name, root = each.article.article, str(Location.of(row.subscriber))
            raise TransactionalError(
                EXPIRED,
                f"Article '{name}' at '{root}' cannot be repaired. {each.refused} Nothing was changed.",
                subscriber=root,
                article=name,
            )
    for each in missing if not is_dry else ():
        new = subscriber_table(each.source, each.version, each.article, each.table)
        create_table(each.table, new, CommitMark(row.subscription_guid, f"{REPAIR}:{uuid.uuid4()}"))
        fence_article(each.table, row.subscription_guid)
        failpoint("repair.after_create")
    if not is_dry:
        position = _finished(distributor, publication, row, position, spark)
        wanted = _chosen_articles(chosen, expected_of(distributor, row, position))
    done = []
    for each in wanted:
        if not is_delta_table(each.table):
            rows = rows_at(spark, each.source, each.version, each.article).count()
            done.append(Repair(publication, row.subscriber, each.article.article, rows, 0, 0, ()))
            continue
        found = _write(spark, row, each, chosen, is_dry=is_dry)
        counts = found.counts
        done.append(
            Repair(
                publication,
                row.subscriber,
                each.article.article,
                inserts=counts.get(MISSING, 0),
                updates=counts.get(DIFFERENT, 0) + counts.get(TWICE, 0),
                deletes=counts.get(EXTRA, 0),
                examples=found.examples,
            )
        )
        failpoint("repair.after_article")
    if is_dry:
        return done
    after = validate_one(distributor, publication, row, spark)
    stop = stop_of(distributor, row)
    if all(each.ok for each in after) and stop is not None and stop.error_code in _OF_ROWS:
        forget_stop(distributor, row)
    left = {each.article: each.differing_rows for each in after}
    return [Repair(**{**vars(each), "differing": left[each.article]}) for each in done]


def _finished(
    distributor: DistributionStore,
    publication: str,
    row: SubscriptionRow,
    position: PositionRow,
    spark: SparkSession,
) -> PositionRow:
    try:
        return Agent(distributor, row, lambda: spark, publication).finish(position)
    except TransactionalError as error:
        if error.number != NOT_FOUND:
            raise
        # The batch is finished. Other writers' changes from the same time are repaired now.
        return position_of(distributor, row, has_to_go_on=False)


def _write(
    spark: SparkSession, row: SubscriptionRow, expected: Expected, chosen: ChosenRows, *, is_dry: bool
) -> Difference:
    """Write the chosen rows that differ to a table, in one commit if there are any."""

    def repair() -> Difference:
        head, kept = head_version(expected.table), Kept()
        try:
            rows = kept.keep(
                _chosen_rows(chosen, expected.compared(spark, head), expected.article).where(
                    "kind is not null"
                )
            )
            found = differing(rows, expected.article, expected.unknown)
            if found.count and not is_dry:
                step = f"{REPAIR}:{uuid.uuid4()}"
                # Every repair is its own transaction: it determines the rows to write again.
                mark = CommitMark(row.subscription_guid, step)
                transaction = next_transaction(expected.table, repair_app_id(row.subscription_guid), mark)
                with _rules_named(row, expected):
                    _merge(spark, _operations(rows, expected), expected, transaction)
                read_back(expected.table, transaction, from_version_exclusive=head)
            return found
        finally:
            kept.release()

    lost = lost_commits(f"'{expected.table}'", "the repair", "Run again.", table=str(expected.table))
    return retry_conflicts(repair, expected.table, lost)


@contextmanager
def _rules_named(row: SubscriptionRow, expected: Expected) -> Iterator[None]:
    """Turn Delta's refusal of a row by a rule of the table into an error that names the article.

    Raises: TransactionalError 547.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if (rule := refusing_rule(error)) is None:
            raise
        name = expected.article.article
        raise TransactionalError(
            CHECK_BROKEN,
            f"547: '{expected.table}' refuses a row of article '{name}' that the publisher has: {rule}. The article "
            "was not repaired. `mergerepl validate` names the keys that differ. Lift the rule, or "
            "choose other rows with --table, --key or --where, then run again.",
            subscriber=str(Location.of(row.subscriber)),
            article=name,
        ) from error


def _operations(rows: DataFrame, expected: Expected) -> DataFrame:
    """Return k0, k1, …, `ours` and `operation` (ins, upd, del); a duplicate key loses all rows and gets one."""
    known = {MISSING, EXTRA, DIFFERENT, TWICE} - set(expected.unknown)
    has_ours = F.col("ours").isNotNull()
    operations: Any = F.when(F.col("kind") == MISSING, F.array(F.lit("ins")))
    operations = operations.when(F.col("kind") == DIFFERENT, F.array(F.lit("upd")))
    operations = operations.when(has_ours, F.array(F.lit("del"), F.lit("ins"))).otherwise(
        F.array(F.lit("del"))
    )
    is_known = F.col("kind").isin(sorted(known))
    if EXTRA in expected.unknown:
        # Which of the duplicate rows is the extra one is unknown too.
        is_known &= has_ours | (F.col("kind") != TWICE)
    return rows.where(is_known).withColumn("operation", F.explode(operations))


def _merge(spark: SparkSession, rows: DataFrame, expected: Expected, transaction: Transaction) -> None:
    article = expected.article
    is_row = [
        F.col(f"t.{quote(name)}").eqNullSafe(F.col(f"s.{KEY_PREFIX}{i}"))
        for i, name in enumerate(article.key_columns)
    ]
    with marked_session(spark, transaction, expected.table) as session:
        merge, types = merge_into(
            session,
            in_session(rows, session),
            expected.table,
            all_true([*is_row, F.col("s.operation") != "ins"]),
        )
        there = {name.lower(): data_type for name, data_type in types.items()}
        values: dict[str, str | Column] = {
            quote(name): as_declared(session, F.col(f"s.ours.c{i}"), there[name.lower()])
            for i, name in enumerate(article.columns)
        }
        changed = {
            quote(name): values[quote(name)] for name in article.columns if name not in article.key_columns
        }
        merge = merge.whenMatchedDelete(condition=F.col("s.operation") == "del")
        if changed:
            merge = merge.whenMatchedUpdate(condition=F.col("s.operation") == "upd", set=changed)
        merge.whenNotMatchedInsert(condition=F.col("s.operation") == "ins", values=values).execute()

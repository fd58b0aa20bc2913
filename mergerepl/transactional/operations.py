"""The functions behind `mergerepl transactional` and Python: scripts, monitoring, validation, cleanup."""

import os
from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import roots
from mergerepl.delta import appended
from mergerepl.delta.tables import is_delta_table, read_version
from mergerepl.logreader.lsn import Lsn
from mergerepl.rows.images import with_readable
from mergerepl.spark.errors import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import batch_script, procedure_text
from mergerepl.transactional.catalog import Distributor, Subscriber, required, shape_of, subscriptions_of
from mergerepl.transactional.commands import BrowsedCommand, command_texts
from mergerepl.transactional.log_reader import log_reader, spark_of
from mergerepl.transactional.procedures import OPERATIONS, custom_operations, skeleton
from mergerepl.transactional.refusals import TransactionalUsageError
from mergerepl.transactional.snapshot import initialise

Root = str | os.PathLike[str]


def script(
    root: Root,
    *,
    article: str | None = None,
    operation: Literal["insert", "update", "delete"] | None = None,
    batch: bool = False,
    custom: bool = False,
    subscriber: Root | None = None,
) -> str:
    """Return the generated procedures of the articles as Spark SQL; `batch`: the single MERGE that does the work of all
    three.

    `custom`: a Python template for custom procedures. The tables are the named or first subscriber's. Starts no JVM.

    Raises: TransactionalUsageError if the article does not exist.
    """
    distributor = required(root)
    found = subscriptions_of(distributor, subscriber=subscriber)
    row = found[0][1] if found else None
    texts = []
    for each in distributor.articles_named(article):
        at = Subscriber(Location.of(row.subscriber)) if row else Subscriber(Location.of("SUBSCRIBER"))
        destination = row.destination.get(each.article) if row else None
        shape = shape_of(each, destination)
        table = str(at.root / shape.destination)
        if batch:
            texts.append(batch_script(shape, table))
            continue
        for name, each_operation in OPERATIONS.items():
            command = shape.command(each_operation)
            if operation not in (None, name) or command.method == "NONE":
                continue
            if custom:
                texts.append(skeleton(shape, each_operation))
            elif each_operation not in custom_operations(shape):
                texts.append(procedure_text(shape, each_operation, table))
    return "\n\n".join(texts)


def browse(
    root: Root,
    *,
    article: str | None = None,
    from_seqno: str | None = None,
    through_seqno: str | None = None,
    limit: int = 20,
    spark: SparkSession | None = None,
) -> list[BrowsedCommand]:
    """Return waiting and delivered commands as text, in the form of `sp_browsereplcmds`, the first `limit`."""
    distributor = required(root)
    low = bytes(Lsn.parse(from_seqno)) if from_seqno else bytes(10)
    high = bytes(Lsn.parse(through_seqno)) if through_seqno else b"\xff" * 10
    wanted = {row.article_id for row in distributor.articles_named(article)}
    found: list[BrowsedCommand] = []
    for shape in distributor.shapes():
        table = distributor.commands_table(shape)
        if shape.article_id in wanted and is_delta_table(table):
            rows = appended.read(spark_of(spark)(), table)
            rows = rows.where((F.col("xact_seqno") >= F.lit(low)) & (F.col("xact_seqno") <= F.lit(high)))
            found += command_texts(rows, shape, limit=limit)
    return sorted(found, key=lambda each: (each.xact_seqno, each.command_id))[:limit]


def reinit(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    spark: SparkSession | None = None,
) -> tuple[str, ...]:
    """Begin subscriptions again from a new snapshot. Returns the subscribers.

    The rows of each table are replaced in one commit; the position is moved after the last one. `reinit` or `apply`
    restarts a run that died; until then no command is applied.
    """
    distributor = required(root)
    reader = log_reader(distributor, spark=spark, wait_s=60.0)
    done = []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        with (
            plain_errors("a subscription was reinitialized"),
            lease(Location.of(row.subscriber), purpose="reinit"),
        ):
            initialise(distributor, reader, row, name, replaces=True)
        done.append(row.subscriber)
    return tuple(done)


def read(
    root: Root, article: str, *, spark: SparkSession | None = None, publication: str | None = None
) -> DataFrame:
    """Return an article at a subscriber as of its last complete batch: several are consistent with each other.

    Raises: TransactionalUsageError if `root` is not a subscriber, or does not have the article.
    """
    subscriber = Subscriber(Location.of(roots.existing(os.fspath(root))))
    for position in subscriber.positions():
        if publication not in (None, position.publication) or article not in position.table_versions:
            continue
        distributor = Distributor(Location.of(position.publisher))
        row = distributor.subscription(position.subscription_guid)
        if row is None:
            # It ended while this folder was out of reach.
            continue
        of_article = next(
            each for each in distributor.articles(row.publication_id) if each.article == article
        )
        table = subscriber.table(row, of_article)
        return read_version(spark_of(spark)(), table, position.table_versions[article])
    known = ", ".join(name for each in subscriber.positions() for name in each.table_versions) or "none"
    raise TransactionalUsageError(
        f"'{subscriber.root}' receives no article '{article}'. The articles here are: {known}."
    )


def shown(root: Root, article: str, *, limit: int) -> list[Mapping[str, Any]]:
    """Return the first rows of `read`, with values as text."""
    rows = read(root, article)
    texts = with_readable(rows, rows.columns).limit(limit).collect()
    return [row.asDict() for row in texts]

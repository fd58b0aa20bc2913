"""Compare subscribers with their publisher at the last batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import plain_errors
from mergerepl.logreader.positions import read_state
from mergerepl.store.lease import lease
from mergerepl.systables.transactional import TRANSACTIONS, ArticleRow, TransactionRow
from mergerepl.transactional.catalog import Root, Subscriber, required, subscriptions_of
from mergerepl.transactional.comparison import differing
from mergerepl.transactional.log_reader import spark_of
from mergerepl.transactional.snapshot import rows_at


@dataclass(frozen=True)
class Validation:
    """One article at one subscriber, at the publisher's version of its last batch. `keys` are some that differ."""

    publication: str
    subscriber: str
    article: str
    publisher_rows: int
    subscriber_rows: int
    differing: int
    keys: tuple[str, ...]


def validate(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    spark: SparkSession | None = None,
) -> tuple[Validation, ...]:
    """Compare subscribers with the publisher, each at its last batch: writers need not stop.

    Raises: StoreError if the versions of that moment are gone.
    """
    distributor = required(root)
    found = []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        at = Subscriber(Path(row.subscriber))
        position = at.position(row.subscription_guid)
        if position is None:
            continue
        session = spark_of(spark)()
        seqno = position.transaction_timestamp
        of_row = []
        with plain_errors("a subscription was validated"), lease(at.root, purpose="validate"):
            # In this order: what the log reader adds meanwhile lies after the positions.
            sources = read_state(distributor.log).sources
            gate = distributor.control.rows(TRANSACTIONS)
            for article in distributor.articles(row.publication_id):
                shape = distributor.shape_at(article.article_id, seqno)
                version = _version_at(gate, article, seqno, sources[article.source_object_id].position)
                compared = differing(
                    rows_at(session, distributor.root / article.source_object, version, shape),
                    read_version(session, at.table(row, article), position.table_versions[article.article]),
                    shape,
                )
                of_row.append(
                    Validation(
                        name,
                        row.subscriber,
                        article.article,
                        compared.publisher_rows,
                        compared.subscriber_rows,
                        compared.count,
                        compared.keys,
                    )
                )
        found += of_row
        if not row.is_equal and not any(each.differing for each in of_row):
            distributor.change_subscription(row.subscription_guid, is_equal=True)
    return tuple(found)


def _version_at(gate: Sequence[TransactionRow], article: ArticleRow, seqno: bytes, position: int) -> int:
    """Return the publisher's version of an article at an LSN: that before the next transaction, else the last one read."""
    before: list[int] = []
    later: list[int] = []
    for row in gate:
        of_article = [each for each in row.commits if each["source_object_id"] == article.source_object_id]
        if row.xact_seqno <= seqno:
            before += [each["version"] for each in of_article]
        else:
            later += [each["from_version"] for each in of_article]
    return min(later) - 1 if later else max([position, *before])

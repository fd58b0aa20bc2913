"""Compare subscribers with their publisher at the last batch."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import plain_errors
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.store.lease import lease
from mergerepl.systables.transactional import TRANSACTIONS, ArticleRow
from mergerepl.transactional.catalog import Distributor, Root, Subscriber, required, subscriptions_of
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
        of_row = []
        with plain_errors("a subscription was validated"), lease(at.root, purpose="validate"):
            for article in distributor.articles(row.publication_id):
                shape = distributor.shape_at(article.article_id, position.transaction_timestamp)
                version = _version_at(distributor, article, position.transaction_timestamp)
                table = at.table(row, article)
                compared = differing(
                    rows_at(session, distributor.root / article.source_object, version, shape),
                    read_version(session, table, position.table_versions[article.article]),
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


def _version_at(distributor: Distributor, article: ArticleRow, seqno: bytes) -> int:
    """Return the publisher's version of an article at an LSN: that of the last transaction before, or where it begins."""
    rows = distributor.control.rows(TRANSACTIONS, where=f"scan_cycle <= {Lsn(seqno).scan_cycle}")
    commits: list[int] = [
        commit["version"]
        for row in rows
        if row.xact_seqno <= seqno
        for commit in row.commits
        if commit["source_object_id"] == article.source_object_id
    ]
    source = read_state(distributor.log).sources[article.source_object_id]
    later: list[int] = [
        commit["from_version"]
        for row in distributor.transactions_after(seqno)
        for commit in row.commits
        if commit["source_object_id"] == article.source_object_id
    ]
    if later:
        return min(later) - 1
    return max([source.position, *commits])

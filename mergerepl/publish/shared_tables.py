"""Tables that two publications of one publisher have: what goes together, and what is refused by name.

Each article has metadata of its own. Rows that sessions of the other publication write to the table count as changes made
at the publisher (docs/decisions/0126).
"""

from collections.abc import Iterator

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article, Publication
from mergerepl.model.resolvers import RESOLVERS
from mergerepl.publish.stored import Stored, SubscriberState
from mergerepl.roots import resolved
from mergerepl.store.location import Location
from mergerepl.systables.catalog import ArticleRow


def check_shared_tables(publication: Publication, stored: Stored) -> None:
    """Check the tables of a publication that other publications of the publisher have as well.

    Raises: PublicationError if a subscriber would get a table twice, or if an article sends nothing of its publisher.
    """
    names = {row.pubid: row.name for row in stored.publisher.publications}
    for article, row in _shared(publication, stored):
        path = stored.publisher.root / article.table
        said = f"Article '{article.name}': table '{path}' is article '{row.name}' of publication '{names.get(row.pubid)}'"
        if any(_is_one_way_up(each) for each in (article.resolver, row.article_resolver)):
            raise PublicationError(
                f"{said} already, and one of both is upload_only: it would take back what the other publication writes "
                "there. Choose another resolver, or a table of its own.",
                article=article.name,
                table=str(path),
            )
        for subscriber in stored.subscribers:
            if _has_subscribed(stored, row, subscriber):
                raise PublicationError(
                    f"{said} already, and '{subscriber.replica.root}' has it from there. A subscriber gets a table from "
                    "one publication. Give another folder; or take the subscription out there first, and run `mergerepl "
                    "apply`.",
                    article=article.name,
                    table=str(path),
                )


def _shared(publication: Publication, stored: Stored) -> Iterator[tuple[Article, ArticleRow]]:
    root = stored.publisher.root
    others = [row for row in stored.publisher.articles if row.pubid != stored.pubid]
    places = {resolved(root / article.table): article for article in publication.articles} if others else {}
    for row in others:
        if (article := places.get(resolved(root / row.source_table))) is not None:
            yield article, row


def _is_one_way_up(resolver: str | None) -> bool:
    known = RESOLVERS.get(resolver or "")
    return known is not None and known.rejects == "publisher"


def _has_subscribed(stored: Stored, row: ArticleRow, subscriber: SubscriberState) -> bool:
    root = resolved(subscriber.replica.root)
    return any(
        each.replid == subscriber.replica.repid or resolved(Location.of(each.subscriber_server)) == root
        for each in stored.publisher.others_of(row.pubid)
    )

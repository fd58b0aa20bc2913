"""The row filters of a publication that count: `apply` writes changed ones before the commit from which they count."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mergerepl.filters.publication_filters import counted
from mergerepl.model.definition import FIRST_VERSION
from mergerepl.systables.catalog import ArticleRow, PublicationRow


def counted_filters(
    row: PublicationRow, articles: Iterable[ArticleRow], versions: Mapping[int, int]
) -> PublicationRow:
    """Return a row of sysmergepublications with the filters that count at its publisher.

    `versions` is MSmerge_replinfo.article_versions.
    """
    if row.filters is None:
        return row
    by_nickname = {each.nickname: each for each in articles}

    def filter_number(tablenick: int) -> int:
        article = by_nickname.get(tablenick)
        if article is None:
            return 0
        return article.definitions[versions.get(tablenick, FIRST_VERSION)].filter_number

    return replace(row, filters=counted(row.filters, filter_number))

"""The properties of a session's articles as a column of rows that have a tablenick."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.engine.made_once import made_once
from mergerepl.model.session_terms import ArticleTerms


def article_terms(articles: Iterable[ArticleTerms], tablenick: str) -> Column:
    """Return the terms of the article that a column names, as a struct with the fields of ArticleTerms.

    It is looked up in a small table of constants.
    """
    rows = [part for each in articles for part in (F.lit(each.tablenick), _struct(each))]
    return F.try_element_at(F.create_map(*rows), F.col(tablenick))


def _struct(article: ArticleTerms) -> Column:
    numbers = {
        "floor": article.floor,
        "resolved_at_publisher": article.resolved_at_publisher,
        "resolved_at_subscriber": article.resolved_at_subscriber,
    }
    return F.struct(
        *_properties(article.column_tracking, article.by_columns, article.whole_rows, article.resolver),
        _names(article.names),
        *(F.lit(number).cast("bigint").alias(name) for name, number in numbers.items()),
    )


@made_once
def _properties(
    column_tracking: bool, by_columns: bool, whole_rows: bool, resolver: str
) -> tuple[Column, ...]:
    return (
        F.lit(column_tracking).alias("column_tracking"),
        F.lit(by_columns).alias("by_columns"),
        F.lit(whole_rows).alias("whole_rows"),
        F.lit(resolver).alias("resolver"),
    )


@made_once
def _names(names: tuple[str | None, ...]) -> Column:
    return F.array(*(F.lit(name) for name in names)).cast("array<string>").alias("names")

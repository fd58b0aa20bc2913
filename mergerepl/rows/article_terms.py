"""The properties of a session's articles as a column of rows that have a tablenick."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.model.session_terms import ArticleTerms
from mergerepl.spark.made_once import made_once


def article_terms(articles: Iterable[ArticleTerms], tablenick: str) -> Column:
    """Return the terms of the article that a column names, as a struct with the fields of ArticleTerms but `rejects`.

    By that one the articles of a query are chosen. The struct is looked up in a small table of constants. The terms of one
    article alone are constants themselves: Spark leaves out of a query what they make needless.
    """
    articles = list(articles)
    if len(articles) == 1:
        return _struct(articles[0])
    rows = [part for each in articles for part in (F.lit(each.tablenick), _struct(each))]
    return F.try_element_at(F.create_map(*rows), F.col(tablenick))


def _struct(article: ArticleTerms) -> Column:
    numbers = {
        "floor": article.floor,
        "resolved_at_publisher": article.resolved_at_publisher,
        "resolved_at_subscriber": article.resolved_at_subscriber,
    }
    return F.struct(
        *_properties(article.column_tracking, article.by_columns, article.whole_rows),
        *_rules(article.resolver, article.update_delete, article.made_columns, article.clashing_columns),
        _names(article.names),
        *(F.lit(number).cast("bigint").alias(name) for name, number in numbers.items()),
    )


@made_once
def _properties(column_tracking: bool, by_columns: bool, whole_rows: bool) -> tuple[Column, ...]:
    return (
        F.lit(column_tracking).alias("column_tracking"),
        F.lit(by_columns).alias("by_columns"),
        F.lit(whole_rows).alias("whole_rows"),
    )


@made_once
def _rules(
    resolver: str, update_delete: str, made_columns: tuple[str, ...], clashing_columns: tuple[str, ...]
) -> tuple[Column, ...]:
    return (
        F.lit(resolver).alias("resolver"),
        F.lit(update_delete).alias("update_delete"),
        _texts(made_columns).alias("made_columns"),
        _texts(clashing_columns).alias("clashing_columns"),
    )


@made_once
def _names(names: tuple[str | None, ...]) -> Column:
    return _texts(names).alias("names")


def _texts(texts: Iterable[str | None]) -> Column:
    return F.array(*(F.lit(text) for text in texts)).cast("array<string>")

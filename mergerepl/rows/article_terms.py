"""The properties of a session's articles as a column of rows that have a tablenick."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.model.session_terms import ArticleTerms
from mergerepl.rows.sql import literal


def article_terms(articles: Iterable[ArticleTerms], tablenick: str) -> Column:
    """Return the terms of the article that a column names, as a struct with the fields of ArticleTerms.

    It is looked up in a small table of constants: as text, since each function of an expression costs several messages to
    the JVM.
    """
    rows = ", ".join(f"{each.tablenick}, {_struct(each)}" for each in articles)
    return F.expr(f"try_element_at(map({rows}), {tablenick})")


def _struct(article: ArticleTerms) -> str:
    names = ", ".join("cast(null as string)" if name is None else literal(name) for name in article.names)
    fields = {
        "column_tracking": str(article.column_tracking).lower(),
        "by_columns": str(article.by_columns).lower(),
        "whole_rows": str(article.whole_rows).lower(),
        "resolver": literal(article.resolver),
        "floor": f"cast({article.floor} as bigint)",
        "names": f"cast(array({names}) as array<string>)",
        "resolved_at_publisher": f"cast({article.resolved_at_publisher} as bigint)",
        "resolved_at_subscriber": f"cast({article.resolved_at_subscriber} as bigint)",
    }
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"

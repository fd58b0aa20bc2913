"""The columns that a resolver is given must be there, and of a type that it takes."""

import pytest

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article, Tracking
from mergerepl.model.resolvers import ResolverInfo
from mergerepl.publish.check_article import check_resolver

TYPES = {
    "id": "int",
    "n": "int",
    "wide": "decimal(36,2)",
    "d": "decimal(35,2)",
    "text": "string",
    "day": "date",
    "made": "int",
}


def article(resolver: str, *columns: str, tracking: Tracking = Tracking.COLUMN) -> Article:
    info = ResolverInfo(columns, "; ")
    return Article("orders", "orders", ("id",), tracking=tracking, resolver=resolver, resolver_info=info)


@pytest.mark.parametrize(
    ("resolver", "column"),
    [
        ("additive", "n"),
        ("averaging", "d"),
        ("maximum", "wide"),
        ("merge_text", "text"),
        ("datetime_later_wins", "day"),
    ],
)
def test_a_column_of_the_type_is_taken(resolver: str, column: str) -> None:
    check_resolver(article(resolver, column), TYPES, {"made"})


@pytest.mark.parametrize(
    ("resolver", "column", "words"),
    [
        ("additive", "N", "is not published .did you mean 'n'?"),
        ("additive", "other", "is not published"),
        ("additive", "id", "identifies a row"),
        ("additive", "made", "Delta computes"),
        ("additive", "text", "is string, and it must be a number"),
        ("additive", "wide", "35 digits"),
        ("merge_text", "n", "must be a string"),
        ("datetime_later_wins", "n", "must be a date or timestamp"),
    ],
)
def test_another_column_is_refused(resolver: str, column: str, words: str) -> None:
    with pytest.raises(PublicationError, match=words) as refused:
        check_resolver(article(resolver, column), TYPES, {"made"})
    assert str(refused.value).startswith(
        f"Article 'orders' cannot be published: its resolver '{resolver}' names column"
    )


@pytest.mark.parametrize(
    "odd",
    [
        article("odd"),
        article("additive"),
        article("priority", "n"),
        article("additive", "n", tracking=Tracking.ROW),
    ],
)
def test_an_article_made_in_code_is_refused_as_a_file_would_be(odd: Article) -> None:
    with pytest.raises(PublicationError, match="names the resolver"):
        check_resolver(odd, TYPES, set())

"""Check that a table has the columns that its article's resolver reads or computes, with supported types."""

from collections.abc import Collection, Mapping

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article, Tracking
from mergerepl.model.resolvers import RESOLVERS, TypeFamily

_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_TYPES = {
    TypeFamily.NUMBER: (*_INTEGERS, "decimal", "float", "double"),
    TypeFamily.TIME: ("date", "timestamp", "timestamp_ntz"),
    TypeFamily.TEXT: ("string",),
    TypeFamily.ARRAY: ("array",),
    TypeFamily.FIELDS: ("struct", "map"),
}
_MOST_DIGITS = 35
"""Of a decimal that is computed with: sums of three, and half of one, are exact in Spark's 38."""


def check_resolver(article: Article, types: Mapping[str, str], generated: Collection[str]) -> None:
    """Check the columns that an article names for its resolver.

    `types` are the published columns with their types as Spark DDL, `generated` those that Delta computes.

    Raises: PublicationError naming the article, the column and the next step.
    """
    resolver = RESOLVERS.get(article.resolver)
    if (
        resolver is None
        or (resolver.reads is not None) != bool(article.resolver_info.columns)
        or not (resolver.by_row or article.tracking is Tracking.COLUMN)
    ):
        # A file with these is refused when it is read.
        raise PublicationError(
            f"Article '{article.name}' cannot be published: it names the resolver '{article.resolver}', which is unknown, "
            "or without the column or the tracking that it needs. See the table of resolvers in docs/conflicts.md.",
            article=article.name,
            table=article.table,
        )
    for name in article.resolver_info.columns:
        problem = _problem(name, article, types, generated)
        if problem is None and resolver.reads is not None:
            data_type = types[name]
            head = data_type.partition("<")[0].partition("(")[0]
            if head not in _TYPES[resolver.reads] or (
                resolver.reads is TypeFamily.ARRAY and "map<" in data_type
            ):
                problem = f"is {data_type}, and it must be {resolver.reads.value}"
            elif resolver.makes_value and head == "decimal" and _digits(data_type) > _MOST_DIGITS:
                problem = f"is {data_type}, and it can have {_MOST_DIGITS} digits at most to be computed with"
        if problem is not None:
            raise PublicationError(
                f"Article '{article.name}' cannot be published: its resolver '{resolver.name}' names column '{name}', "
                f"which {problem}. Name another column, or another resolver.",
                article=article.name,
                table=article.table,
            )


def _problem(name: str, article: Article, types: Mapping[str, str], generated: Collection[str]) -> str | None:
    if name not in types:
        near = next((other for other in types if other.lower() == name.lower()), None)
        return f"is not published (did you mean '{near}'?)" if near else "is not published"
    if name in article.identity:
        return "identifies a row"
    return "Delta computes (GENERATED ALWAYS AS)" if name in generated else None


def _digits(decimal: str) -> int:
    return int(decimal.partition("(")[2].partition(",")[0])

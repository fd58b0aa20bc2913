"""Checks of a publication's filters against its tables and its subscribers' values. Nothing is written here."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.delta.tables import TableState
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PUBLISH_AGAIN, PublicationError
from mergerepl.filters.clause import ClauseError, SessionFunction, evaluate, text
from mergerepl.filters.parse import parse_filter, parse_on
from mergerepl.filters.prepare import prepare_clause, uncastable
from mergerepl.filters.publication_filters import (
    NO_FILTERS,
    Equality,
    JoinFilter,
    PublicationFilters,
    parts_of,
)
from mergerepl.filters.stated import NO_OVERLAP, value_of
from mergerepl.model import refused_pairs
from mergerepl.model.publication import Article, Publication, Subscription
from mergerepl.publish.check_article import published_fields
from mergerepl.systables.catalog import PublicationRow

Values = Mapping[SessionFunction, str | None]
"""The values of the functions in one partition."""


@dataclass(frozen=True)
class FilterChange:
    """Filters of articles that subscribers have, and the `articles` whose rows change, with the words of `schema list`.

    `columns` are those of sysmergepublications once the filters count.
    """

    filters: PublicationFilters
    articles: Mapping[str, str]
    columns: Mapping[str, object]


def stored_filters(row: PublicationRow | None) -> PublicationFilters:
    """Return a publication's filters as its publisher stored them."""
    return NO_FILTERS if row is None or row.filters is None else PublicationFilters.from_json(row.filters)


def values_of(
    subscription: Subscription, functions: Sequence[SessionFunction]
) -> dict[SessionFunction, str | None]:
    """Return the values of a publication's functions for a subscription."""
    return {function: value_of(subscription, function) for function in functions}


def filters_of(publication: Publication, tables: Mapping[str, TableState]) -> PublicationFilters:
    """Return the publication's filters, prepared for its tables (by article name).

    Raises: PublicationError naming the article and the key: an unknown or unpublished column, incompatible types.
    """
    if not publication.joins and all(article.filter is None for article in publication.articles):
        return NO_FILTERS
    types = {
        name: {f["name"]: f["metadata"].get(CHAR_VARCHAR) or ddl_of(f["type"]) for f in table.fields}
        for name, table in tables.items()
    }
    own = {}
    for article in publication.articles:
        if article.filter is not None:
            try:
                own[article.name] = prepare_clause(parse_filter(article.filter), {None: types[article.name]})
            except ClauseError as error:
                raise _refusal(article.name, "filter", str(error)) from None
    joins = []
    for join in publication.joins:
        try:
            on = parse_on(join.on, parent=join.parent, article=join.article)
            on = prepare_clause(on, {name: types[name] for name in (join.parent, join.article)})
        except ClauseError as error:
            raise _refusal(
                join.article, f"join with '{join.parent}' cannot be used: `on`", str(error)
            ) from None
        joins.append(JoinFilter(join.article, join.parent, on, join.unique))
    filters = PublicationFilters(own, tuple(joins))
    for article in publication.articles:
        published = {field["name"] for field in published_fields(article, tables[article.name])}
        for name in filters.columns_used(article.name):
            if name not in published:
                raise PublicationError(
                    f"Article '{article.name}': a filter needs the column '{name}', which is not published: add it to "
                    "`columns`.",
                    article=article.name,
                )
    return filters


def check_values(filters: PublicationFilters, values: Values, *, of: str) -> None:
    """Check that the clauses can use the values of one partition; `of` names their owner in the message.

    Raises: PublicationError: `Subscriber './n': host_name 'abc' is no INT, as the filter of 'staff' needs.`
    """
    for article, clause in filters.own.items():
        if found := uncastable(clause, values):
            function, type_ = found
            value = values.get(SessionFunction(function))
            raise PublicationError(
                f"{of}: {function.lower()} '{value}' is no {type_}, as the filter of '{article}' needs. "
                "Correct the value, or the filter.",
                article=article,
            )


def check_no_overlap(
    publication: Publication, filters: PublicationFilters, partitions: Sequence[Values]
) -> None:
    """Check that articles with partition_options 2 or 3 give each row to one partition, by construction.

    That holds with one path to a row: an own filter with an equality on functions and no join, or one unique join to
    such an article. `partitions` are the values of all active partitions: no two may share a value in that equality.

    Raises: PublicationError naming the article.
    """
    for article in publication.articles:
        if article.partition_options < NO_OVERLAP:
            continue
        if problem := _path_problem(article, filters) or _shared_value(article, filters, partitions):
            raise PublicationError(
                refused_pairs.OPTIONS_OF_PATHS.says(
                    article=article.name, options=article.partition_options, problem=problem
                ),
                article=article.name,
            )


def _path_problem(article: Article, filters: PublicationFilters) -> str | None:
    joins = filters.joins_of(article.name)
    own = filters.own.get(article.name)
    if len(joins) + (own is not None) > 1:
        ways = [
            *(["its own filter"] if own is not None else []),
            *(f"the join with '{j.parent}'" for j in joins),
        ]
        return f"{' and '.join(ways)} are {len(ways)}"
    if own is None:
        return None if joins[0].unique else f"the join with '{joins[0].parent}' is not `unique: true`"
    if len(parts_of(own)) > 1:
        return "its filter has an OR"
    if not _equalities(article, filters):
        return "its filter has no equality of a column with HOST_NAME() or SUSER_SNAME()"
    return None


def _equalities(article: Article, filters: PublicationFilters) -> tuple[Equality, ...]:
    own = filters.own.get(article.name)
    return parts_of(own)[0].equalities if own is not None else ()


def _shared_value(article: Article, filters: PublicationFilters, partitions: Sequence[Values]) -> str | None:
    """Return a message naming two partitions that would have the same rows, or None.

    A join has the partitions of its parent.
    """
    seen: dict[tuple[object, ...], Values] = {}
    equalities = _equalities(article, filters)
    for values in partitions if equalities else ():
        key = tuple(evaluate(equality.of_other, {}, values) for equality in equalities)
        if None not in key and (other := seen.setdefault(key, values)) != values:
            return f"partitions {_shown(other)} and {_shown(values)} would have the same rows"
    return None


def _shown(values: Values) -> str:
    return "(" + ", ".join(f"{name.lower()} '{value}'" for name, value in values.items()) + ")"


def followed_filters(
    before: PublicationFilters, now: PublicationFilters, given: Collection[str]
) -> PublicationFilters:
    """Return the filters that count for articles that subscribers have (`given`), before new ones are published."""
    of = {name: now if name in given else before for name in {*before.order, *now.order}}
    own = {name: filters.own[name] for name, filters in sorted(of.items()) if name in filters.own}
    joins = (
        *(join for join in now.joins if join.article in given),
        *(join for join in before.joins if join.article not in given),
    )
    return PublicationFilters(own, joins)


def changed_filters(
    before: PublicationFilters, now: PublicationFilters, given: Collection[str]
) -> dict[str, str]:
    """Return the articles that subscribers have and whose filter or joins change, each with the new ones as text."""
    changed = (name for name in now.order if name in given)
    return {
        name: " or by ".join(_written(now, name))
        for name in changed
        if _written(before, name) != _written(now, name)
    }


def added_columns(before: PublicationFilters, now: PublicationFilters, article: str) -> list[str]:
    """Return the columns of an article that its filter or a join newly reads."""
    return sorted({*now.columns_used(article)} - {*before.columns_used(article)})


def check_followed_filters(
    before: PublicationFilters, now: PublicationFilters, given: Collection[str]
) -> None:
    """Refuse changed filters of articles that subscribers have, unless their rows can follow.

    Raises: PublicationError naming the article, its filters before and now.
    """
    for article in given:
        one, other = _written(before, article), _written(now, article)
        if one == other:
            continue
        new = next((join.parent for join in now.joins_of(article) if join.parent not in given), None)
        said = f"Article '{article}' was published {_said(one)} and is {_said(other)} in the file"
        if not one or not other:
            raise PublicationError(f"{said}. Put that back; or {PUBLISH_AGAIN}.", article=article)
        if new is not None:
            raise PublicationError(
                f"{said}, and article '{new}' is not published yet. Put the filters of '{article}' back, run `mergerepl "
                "apply`, and then change them.",
                article=article,
            )
    if before.functions != now.functions:
        was, is_ = (
            " and ".join(f"{each}()" for each in of.functions) or "no function" for of in (before, now)
        )
        raise PublicationError(
            f"The row filters were published with {was} and use {is_} in the file: each subscriber would have another "
            f"partition. Put that back; or {PUBLISH_AGAIN}."
        )


def _written(filters: PublicationFilters, article: str) -> list[str]:
    own = filters.own.get(article)
    joins = [f"a join with '{join.parent}' on {text(join.on)}" for join in filters.joins_of(article)]
    return [*([f"the filter {text(own)}"] if own is not None else []), *sorted(joins)]


def _said(filters: Sequence[str]) -> str:
    return f"with {' and '.join(filters)}" if filters else "without a filter"


def describe_rows(filters: PublicationFilters, article: str) -> str:
    """Describe an article's row filters for the step that publishes it; '' for all rows."""
    written = _written(filters, article)
    if not written:
        return ""
    said = f"rows by {' or by '.join(written)}"
    own = filters.own.get(article)
    if own is not None and len(written) > 1 and any(part.is_static for part in parts_of(own)):
        # The two are ORed: a static filter with a join selects more rows, it does not narrow the join.
        said += (
            " (what its static filter selects goes to every subscriber; to narrow a join, write it in `on`)"
        )
    return said


def _refusal(article: str, key: str, why: str) -> PublicationError:
    return PublicationError(f"Article '{article}': its {key} {why}.", article=article)

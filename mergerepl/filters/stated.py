"""The filters of a publication as the file or a program states them: the refusals possible before a table is opened."""

from collections.abc import Iterator, Mapping

from mergerepl.filters.clause import Clause, ClauseError, SessionFunction, functions_of
from mergerepl.filters.parse import parse_filter, parse_on
from mergerepl.filters.publication_filters import CircleError, parents_first
from mergerepl.model import refused_pairs
from mergerepl.model.publication import ConflictLogging, Publication, Subscription, SyncType
from mergerepl.model.resolvers import CUSTOM, RESOLVERS
from mergerepl.model.words import nearest_name

Path = tuple[str | int, ...]
"""The keys that lead to a value of the file, such as ("articles", 0, "filter")."""

NO_OVERLAP, ONE_SUBSCRIPTION = 2, 3
"""partition_options from which partitions share no row, and from which a partition has one subscription."""


def first_problem(publication: Publication) -> tuple[Path, str] | None:
    """Return the first unusable value about filters, and why; the message follows the value's key."""
    return next(_problems(publication), None)


def value_of(subscription: Subscription, function: SessionFunction) -> str | None:
    """Return a function's value for a subscription."""
    value: str | None = getattr(subscription, function.lower())
    return value


def _problems(publication: Publication) -> Iterator[tuple[Path, str]]:
    filters: dict[str, Clause] = {}
    for index, article in enumerate(publication.articles):
        if article.filter is not None:
            try:
                filters[article.name] = parse_filter(article.filter)
            except ClauseError as error:
                yield ("articles", index, "filter"), str(error)
    yield from _of_joins(publication)
    yield from _of_options(publication)
    yield from _of_values(publication, filters)
    if filters or publication.joins:
        yield from _unsupported(publication)
    if not publication.allow_partition_realignment:
        yield ("allow_partition_realignment",), refused_pairs.FILTERED_STAYING.says()


def _of_joins(publication: Publication) -> Iterator[tuple[Path, str]]:
    names = [article.name for article in publication.articles]
    for index, join in enumerate(publication.joins):
        for key, name in (("article", join.article), ("parent", join.parent)):
            if name not in names:
                nearest = nearest_name(name, names)
                hint = f"; did you mean {nearest}" if nearest else f"; there are {', '.join(names)}"
                yield ("joins", index, key), f"names the article '{name}', which is not in the file{hint}"
        if join.article == join.parent:
            yield ("joins", index, "parent"), "is the article itself: a join filter is about two articles"
        try:
            parse_on(join.on, parent=join.parent, article=join.article)
        except ClauseError as error:
            yield ("joins", index, "on"), str(error)
    try:
        parents_first(names, [(join.parent, join.article) for join in publication.joins])
    except CircleError as error:
        yield ("joins",), f"makes a circle: {error}; an article cannot depend on its own children"


def _of_options(publication: Publication) -> Iterator[tuple[Path, str]]:
    options = {article.name: article.partition_options for article in publication.articles}
    children = {join.article for join in publication.joins}
    for index, article in enumerate(publication.articles):
        path: Path = ("articles", index, "partition_options")
        chosen = article.partition_options
        if chosen not in range(4):
            yield path, f"is {chosen}; it may be 0, 1, 2 or 3"
        if chosen and article.filter is None and article.name not in children:
            yield path, refused_pairs.OPTIONS_UNFILTERED.says(options=chosen)
        for join in publication.joins:
            if join.article == article.name and chosen >= NO_OVERLAP > options[join.parent]:
                facts = {"options": chosen, "parent": join.parent, "of_parent": options[join.parent]}
                yield path, refused_pairs.OPTIONS_OF_PARENT.says(**facts)


def _unsupported(publication: Publication) -> Iterator[tuple[Path, str]]:
    """Yield settings that row filters exclude."""
    filtered = {article.name for article in publication.articles if article.filter is not None}
    filtered |= {join.article for join in publication.joins}
    for index, join in enumerate(publication.joins):
        if join.parent not in filtered:
            yield ("joins", index, "parent"), refused_pairs.FILTERED_PARENT.says(parent=join.parent)
    for index, article in enumerate(publication.articles):
        path: Path = ("articles", index, "resolver")
        # An unknown resolver is refused with the article's table.
        if article.resolver in RESOLVERS and RESOLVERS[article.resolver].rejects is not None:
            yield path, refused_pairs.FILTERED_ONE_WAY.says(resolver=article.resolver)
        if article.resolver == CUSTOM:
            yield path, refused_pairs.FILTERED_CUSTOM.says()
    if (logging := publication.conflict_logging) is not ConflictLogging.PUBLISHER:
        yield ("conflict_logging",), refused_pairs.FILTERED_LOGGING.says(logging=logging)
    for index, subscription in enumerate(publication.subscriptions):
        if subscription.sync_type is SyncType.NONE:
            yield ("subscriptions", index, "sync_type"), refused_pairs.FILTERED_SYNC_TYPE.says()


def _of_values(publication: Publication, filters: Mapping[str, Clause]) -> Iterator[tuple[Path, str]]:
    users: dict[SessionFunction, str] = {}
    for name, clause in filters.items():
        for function in functions_of(clause):
            users.setdefault(function, name)
    is_single = any(article.partition_options == ONE_SUBSCRIPTION for article in publication.articles)
    first: dict[tuple[str | None, ...], str] = {}
    for index, subscription in enumerate(publication.subscriptions):
        path = ("subscriptions", index)
        for function in sorted(users):
            if value_of(subscription, function) is None:
                user = users[function]
                yield path, f"has no {function.lower()}, and the filter of '{user}' uses {function}()"
        partition = tuple(value_of(subscription, function) for function in sorted(users))
        other = first.setdefault(partition, subscription.subscriber)
        if is_single and other != subscription.subscriber:
            values = ", ".join(str(value) for value in partition)
            yield path, refused_pairs.OPTIONS_SHARED.says(values=values, other=other)

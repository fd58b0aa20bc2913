"""The filters of a publication: the JSON that `sysmergepublications.filters` keeps, and the trees made of it on load.

filters = PublicationFilters.from_json(text)
for article in filters.order: filters.own.get(article), filters.joins_of(article)
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from mergerepl.filters.clause import (
    Clause,
    Operation,
    Operator,
    SessionFunction,
    all_of,
    columns_of,
    functions_of,
    text,
)
from mergerepl.filters.parse import parse_stored


@dataclass(frozen=True)
class JoinFilter:
    """A row of `article` belongs to the partitions of each row of `parent` that it matches (sysmergesubsetfilters).

    `unique`: the parent's join columns contain its key (`join_unique_key`). `on` is prepared.
    """

    article: str
    parent: str
    on: Clause
    unique: bool = False

    def columns_of(self, article: str) -> tuple[str, ...]:
        """Return the columns of the parent or of the child that occur in `on`, residual terms included."""
        return tuple(column.name for column in columns_of(self.on) if column.article == article)


@dataclass(frozen=True)
class PublicationFilters:
    """The filters that decide the rows of a partition. All clauses are prepared: exact names, explicit casts.

    A row of an article is in a partition by its own filter (`own`, by article name) OR by one of the joins whose
    `article` it is. An article in neither is unfiltered: every subscriber has its rows.
    """

    own: Mapping[str, Clause]
    joins: tuple[JoinFilter, ...] = ()

    @property
    def functions(self) -> tuple[SessionFunction, ...]:
        """Return the functions whose values make a partition, in the order of the enum."""
        used = frozenset[SessionFunction]().union(*map(functions_of, self.own.values()))
        return tuple(name for name in SessionFunction if name in used)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Return the articles that have filters or are parents in joins, parents first."""
        names = {*self.own, *(join.article for join in self.joins), *(join.parent for join in self.joins)}
        return parents_first(sorted(names), [(join.parent, join.article) for join in self.joins])

    def is_filtered(self, article: str) -> bool:
        """Whether some partition excludes rows of an article."""
        return article in self.own or bool(self.joins_of(article))

    def joins_of(self, article: str) -> tuple[JoinFilter, ...]:
        """Return the join filters that bring in rows of an article."""
        return tuple(join for join in self.joins if join.article == article)

    def joins_to(self, parent: str) -> tuple[JoinFilter, ...]:
        """Return the join filters in which an article is the parent."""
        return tuple(join for join in self.joins if join.parent == parent)

    def columns_used(self, article: str) -> tuple[str, ...]:
        """Return the columns of an article that its filter or an `on` uses, each once."""
        own = [column.name for column in columns_of(self.own[article])] if article in self.own else []
        joined = [name for join in self.joins for name in join.columns_of(article)]
        return tuple(dict.fromkeys([*own, *joined]))

    def to_json(self) -> str:
        """Return the canonical JSON: the same filters give the same text.

        {"filters": {"customers": "`region` = HOST_NAME()"},
         "joins": [{"article": "orders", "on": "…", "parent": "customers", "unique": true}]}
        """
        joins = [
            {"article": join.article, "on": text(join.on), "parent": join.parent, "unique": join.unique}
            for join in self.joins
        ]
        filters = {article: text(clause) for article, clause in self.own.items()}
        return json.dumps({"filters": filters, "joins": joins}, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, stored: str) -> "PublicationFilters":
        """Return the filters that `to_json` wrote, each clause read from its canonical text."""
        read = json.loads(stored)
        return cls(
            {article: parse_stored(clause) for article, clause in read["filters"].items()},
            tuple(
                JoinFilter(join["article"], join["parent"], parse_stored(join["on"]), join["unique"])
                for join in read["joins"]
            ),
        )


NO_FILTERS = PublicationFilters({})


def with_next(stored: str, following: PublicationFilters, *, tablenick: int, number: int) -> str:
    """Return the JSON of filters that are to be followed by others.

    These count once the article `tablenick` has a definition of this filter number.
    """
    after = json.loads(following.to_json()) | {"article": tablenick, "number": number}
    return json.dumps(json.loads(stored) | {"next": after}, sort_keys=True, ensure_ascii=False)


def has_next(stored: str | None) -> bool:
    """Whether filters are followed by others, which may count already."""
    return stored is not None and '"next"' in stored


def counted(stored: str, filter_number: Callable[[int], int]) -> str:
    """Return the JSON of the filters that count, by the filter number of an article's definition (by tablenick)."""
    if not has_next(stored):
        return stored
    read = json.loads(stored)
    following = read.pop("next", None)
    if following is not None and filter_number(following.pop("article")) >= following.pop("number"):
        read = following
    return json.dumps({name: read[name] for name in ("filters", "joins")}, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Equality:
    """`of_row` = `of_other`; NULL matches nothing.

    In a part of an own filter `of_row` uses columns only and `of_other` functions only. In the terms of an `on`
    `of_row` uses columns of the child and `of_other` columns of the parent.
    """

    of_row: Clause
    of_other: Clause


@dataclass(frozen=True)
class Part:
    """Terms that must all be true: equalities for a hash join, and a `residual` condition on the rows joined.

    A part of an own filter without equalities is joined with the values by its residual alone; if `is_static`, it uses
    no function, and every subscriber has its rows (partition_id -1).
    """

    equalities: tuple[Equality, ...]
    residual: Clause | None
    is_static: bool = False


def parts_of(clause: Clause) -> tuple[Part, ...]:
    """Return the parts of an own filter: a row belongs to a partition if one of them is true for the two.

    region = HOST_NAME() AND active OR everywhere    (region = HOST_NAME(), active) and (static: everywhere)
    """
    return tuple(_part_of_filter(alternative) for alternative in _terms(clause, Operator.OR))


def terms_of_on(on: Clause, *, article: str) -> Part:
    """Return the equalities of a join filter's `on` (`of_row` of the child `article`) and the rest of its terms."""

    def pair(one: Clause, other: Clause) -> Equality | None:
        sides = [{column.article for column in columns_of(side)} for side in (one, other)]
        is_pair = sides[0] == {article} and len(sides[1]) == 1 and sides[1] != {article}
        return Equality(one, other) if is_pair else None

    return _part(on, pair, is_static=False)


def _part_of_filter(clause: Clause) -> Part:
    def pair(one: Clause, other: Clause) -> Equality | None:
        is_pair = columns_of(one) and not functions_of(one) and functions_of(other) and not columns_of(other)
        return Equality(one, other) if is_pair else None

    return _part(clause, pair, is_static=not functions_of(clause))


def _part(clause: Clause, pair: Callable[[Clause, Clause], Equality | None], *, is_static: bool) -> Part:
    equalities: list[Equality] = []
    others: list[Clause] = []
    for term in _terms(clause, Operator.AND):
        found = None
        if isinstance(term, Operation) and term.operator is Operator.EQUAL:
            one, other = term.operands
            found = pair(one, other) or pair(other, one)
        if found is None:
            others.append(term)
        else:
            equalities.append(found)
    return Part(tuple(equalities), all_of(tuple(others)), is_static)


def _terms(clause: Clause, operator: Operator) -> tuple[Clause, ...]:
    """Return the operands of a chain of ANDs or ORs, or the clause itself."""
    if isinstance(clause, Operation) and clause.operator is operator:
        return clause.operands
    return (clause,)


class CircleError(ValueError):
    """Articles are each other's parents; `circle` begins and ends with the same one, each before its child."""

    def __init__(self, circle: Sequence[str]) -> None:
        super().__init__(" → ".join(circle))
        self.circle = tuple(circle)


def parents_first(articles: Iterable[str], edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Sort the articles so that every parent is before its children; `edges` are (parent, child).

    Raises: CircleError.
    """
    graph = TopologicalSorter[str](dict.fromkeys(articles, ()))
    for parent, child in edges:
        graph.add(child, parent)
    try:
        return tuple(graph.static_order())
    except CycleError as error:
        raise CircleError(error.args[1]) from None


def followed_articles(stored: str | None) -> dict[str, tuple[str, ...]]:
    """Return the parents of each article by the join filters that sysmergepublications stores; parses no clause."""
    found: dict[str, tuple[str, ...]] = {}
    for join in json.loads(stored)["joins"] if stored else ():
        found[join["article"]] = (*found.get(join["article"], ()), join["parent"])
    return found

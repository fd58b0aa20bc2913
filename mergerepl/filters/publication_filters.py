"""The filters of a publication: the JSON that `sysmergepublications.filters` keeps, and the trees made of it on load.

filters = PublicationFilters.from_json(text)
for article in filters.order: filters.own.get(article), filters.joins_of(article)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mergerepl.filters.clause import Clause, SessionFunction, columns_of, functions_of, text
from mergerepl.filters.parse import parse_stored
from mergerepl.model.article_graph import parents_first


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

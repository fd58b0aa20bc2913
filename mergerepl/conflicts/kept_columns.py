"""The columns of a conflict table by field: a losing row has its fields under the names of its version of the columns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import FIRST_VERSION
from mergerepl.replica.replica import Replica
from mergerepl.rows.sql import quote
from mergerepl.systables import catalog

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class KeptColumns:
    """The names of an article's fields now, and by version of its columns at a replica."""

    article: PublishedArticle
    now: Mapping[str, str]
    then: Mapping[int, Mapping[str, str]]

    @classmethod
    def of(cls, replica: Replica, article: PublishedArticle) -> "KeptColumns":
        """Return those of an article at a replica."""
        now = dict(zip(article.fields, article.columns, strict=True))
        if article.version == FIRST_VERSION:
            return cls(article, now, {FIRST_VERSION: now})
        rows = replica.control.rows(catalog.ARTICLES)
        row = next(each for each in rows if each.nickname == article.nickname)
        then = {n: {each.key: each.name for each in known.fields} for n, known in row.definitions.items()}
        return cls(article, now, then)

    @property
    def all_names(self) -> list[str]:
        """The columns of the conflict table that have fields."""
        counted = (names for version, names in self.then.items() if version <= self.article.version)
        return list(dict.fromkeys(name for names in counted for name in names.values()))

    def lacking(self, version: int) -> set[str]:
        """Return the present fields that a version lacked: a row of it says nothing of them."""
        return self.now.keys() - self.then.get(version, self.now).keys()

    def losing_row(self, version: int, kept: Mapping[str, object]) -> dict[str, object]:
        """Return a row of the conflict table under the present names; a dropped column has its last one."""
        then = self.then.get(version, self.now)
        row: dict[str, object] = {
            name: kept[then[field]] if field in then else None for field, name in self.now.items()
        }
        dropped = {field: name for field, name in then.items() if field not in self.now}
        for field, name in dropped.items():
            row[f"{name} ({field})" if name in row else name] = kept[name]
        return row

    def present_names(self, version: int, names: Iterable[str]) -> tuple[str, ...]:
        """Return the present names of columns that a conflict of a version names."""
        fields = {name: field for field, name in self.then.get(version, self.now).items()}
        return tuple(self.now.get(fields.get(name, ""), name) for name in names)

    def losing_field(self, field: str, version: "Column", *, table: str = "") -> "Column":
        """Return a field of a losing row; NULL if its version, a column, lacked it."""
        from pyspark.sql import functions as F

        names: dict[str, list[int]] = {}
        for number, known in self.then.items():
            if field in known:
                names.setdefault(known[field], []).append(number)
        if len(names) == 1 and len(names[self.now[field]]) == len(self.then):
            return F.col(f"{table}{quote(self.now[field])}")
        type_ = dict(zip(self.article.fields, self.article.types, strict=True))[field]
        return F.coalesce(
            *(
                # A column of a former name may have a narrower type.
                F.when(version.isin(numbers), F.col(f"{table}{quote(name)}")).cast(type_)
                for name, numbers in names.items()
            )
        )

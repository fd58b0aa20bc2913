"""The definition of an article: its fields, which are the published columns under numbers that the root gives once.

Names belong to tables; whatever outlives a session speaks of fields: images (`c<number>`), colv1, `unknown`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mergerepl.model.article import ImageColumn

FIRST_VERSION = 1


@dataclass(frozen=True)
class PublishedField:
    """A field as a replica's table has it.

    `type` is Spark DDL. `default` is an SQL expression, `physical` the column's physical name where columns are mapped.
    """

    number: int
    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    comment: str | None = None
    physical: str | None = None

    @property
    def key(self) -> str:
        """Its name in images, colv1 and `unknown`."""
        return f"c{self.number}"

    @property
    def identity(self) -> str:
        """The identity of its column in the table."""
        return self.physical or self.name


@dataclass(frozen=True)
class Definition:
    """The fields of an article at one version, in stored order; `image` is the version that introduced its image column.

    A replica counts its own versions. `root` is the publisher's version that this one has in full. `column_tracking` and
    `vertical` (only some columns are published) are None as long as they are as the article was published.
    `filter_number` counts the changes of its row filter and joins.
    """

    version: int
    image: int
    fields: tuple[PublishedField, ...]
    root: int = FIRST_VERSION
    column_tracking: bool | None = None
    filter_number: int = 0
    vertical: bool | None = None

    @cached_property
    def by_number(self) -> dict[int, PublishedField]:
        """The fields by number."""
        return {field.number: field for field in self.fields}

    @property
    def image_column(self) -> ImageColumn:
        """Its image column."""
        keys = tuple(field.key for field in self.fields)
        return ImageColumn(self.image, keys, tuple(field.type for field in self.fields))

    @property
    def columns(self) -> dict[int, tuple[str, str]]:
        """The name and type of each field, by number."""
        return {field.number: (field.name, field.type) for field in self.fields}

    def is_like(self, other: "Definition") -> bool:
        """Whether both have the same fields, tracking, filters and so on, under whichever version."""
        alike = replace(self, version=other.version, image=other.image, root=other.root)
        return alike == other

    def next(
        self, fields: Iterable[PublishedField], number: int, *, is_root: bool, is_changed: bool = False
    ) -> "Definition":
        """Return the next definition, with these fields and this version; the same one if it has the same columns.

        Another set of fields or types gets its own image column. `is_root`: at the publisher, which counts the versions.
        `is_changed`: also with the same columns, for another comment, default or NOT NULL.
        """
        after = replace(self, version=number, fields=tuple(fields), root=number if is_root else self.root)
        if after.columns == self.columns and not is_changed:
            return self
        is_same = after.image_column == self.image_column
        return after if is_same else replace(after, image=number)

    def tracked(self, number: int, *, by_column: bool, is_root: bool) -> "Definition":
        """Return the next definition, with the same columns and this tracking."""
        root = number if is_root else self.root
        return replace(self, version=number, column_tracking=by_column, root=root)

    def filtered(self, number: int) -> "Definition":
        """Return the root's next definition, with the same columns and other row filters."""
        return replace(self, version=number, root=number, filter_number=self.filter_number + 1)


def first_definition(columns: Iterable[str], types: Iterable[str]) -> Definition:
    """Return the definition of an article whose columns never changed."""
    # A row that lacks one of them is refused by name when the replica is read.
    named = enumerate(zip(columns, types, strict=False))
    return Definition(FIRST_VERSION, FIRST_VERSION, tuple(PublishedField(n, *each) for n, each in named))


def definitions_text(definitions: Iterable[Definition]) -> str:
    """Return definitions as JSON, by version."""
    stated = {str(each.version): _stated_definition(each) for each in definitions}
    return json.dumps(stated, separators=(",", ":"), ensure_ascii=False)


def _stated_definition(each: Definition) -> dict[str, Any]:
    stated = {"image": each.image, "root": each.root, "fields": [*map(_stated, each.fields)]}
    of_article = {"column_tracking": each.column_tracking, "vertical": each.vertical}
    stated |= {name: value for name, value in of_article.items() if value is not None}
    return stated | ({"filter_number": each.filter_number} if each.filter_number else {})


def _stated(field: PublishedField) -> dict[str, Any]:
    stated: dict[str, Any] = {"field": field.number, "name": field.name, "type": field.type}
    stated |= {} if field.nullable else {"nullable": False}
    others = {"default": field.default, "comment": field.comment, "physical": field.physical}
    return stated | {name: value for name, value in others.items() if value is not None}


def definitions_of(text: str) -> Mapping[int, Definition]:
    """Return definitions by version from their JSON.

    Raises: ValueError, KeyError, TypeError if the text is no such JSON.
    """
    found = {}
    for number, stated in json.loads(text).items():
        fields = tuple(PublishedField(each.pop("field"), **each) for each in stated["fields"])
        found[int(number)] = Definition(
            int(number),
            int(stated["image"]),
            fields,
            int(stated["root"]),
            stated.get("column_tracking"),
            stated.get("filter_number", 0),
            stated.get("vertical"),
        )
    return dict(sorted(found.items()))


def image_columns(definitions: Mapping[int, Definition], through: int) -> tuple[ImageColumn, ...]:
    """Return the image columns of an article's definitions up to a version, the one of that version last."""
    used = {
        each.image: definitions[each.image].image_column for n, each in definitions.items() if n <= through
    }
    last = definitions[through].image
    return (*(column for image, column in used.items() if image != last), used[last])

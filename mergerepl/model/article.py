"""An article as in the system tables: the facts about a published table that the phases need, without storage."""

from collections.abc import Mapping
from dataclasses import dataclass

from mergerepl.model.resolvers import RESOLVERS

BOUNDED_TYPES = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types whose values sort alike in Spark, in the bounds of files and as text that is cast back."""


@dataclass(frozen=True)
class ImageColumn:
    """An image column of an article, by the version that introduced it: its fields and their types (Spark DDL)."""

    version: int
    fields: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class PublishedArticle:
    """One row of sysmergearticles.

    `columns` are the published columns in stored order. Each is a *field* under a number that the root gives once:
    `c<number>` names it in row images, in colv1 and in `unknown`, so that a column may have any name, and another
    one later. `numbers` are these numbers; empty: 0, 1, …. `version` is the replica's version of its columns,
    `root_version` the publisher's, `images` are all of its image columns, the present one last; empty: only that of
    version 1. `identity` are the columns (among them) that identify a row, `generated` those that Delta computes,
    each with its expression. `resolver_info` are the settings of the resolver, as stored. `partition_options` from
    1 on: a subscriber may not write rows outside of its partition. `compensates`: a subscriber's change that the
    publisher's table refuses is undone at that subscriber. `ends_after`: of an article that ends, the subscriptions
    (subid) that upload once more.
    """

    publication: str
    pubid: str
    name: str
    artid: str
    nickname: int
    table: str
    identity: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[str, ...]
    column_tracking: bool
    resolution: str
    resolver: str
    conflict_table: str
    vertical: bool
    rowguid_column: str | None = None
    generated: tuple[tuple[str, str], ...] = ()
    resolver_info: str | None = None
    partition_options: int = 0
    compensates: bool = False
    numbers: tuple[int, ...] = ()
    version: int = 1
    images: tuple[ImageColumn, ...] = ()
    root_version: int = 1
    ends_after: tuple[str, ...] = ()

    @classmethod
    def of_table(
        cls, table: str, key: tuple[str, ...], types: Mapping[str, str], rowguid_column: str | None = None
    ) -> "PublishedArticle":
        """Return a table that is not published as an article, for the writers of rows; `types`: column -> Spark DDL."""
        return cls(
            *("", "", table, "", 0, table, key, tuple(types), tuple(types.values())),
            *(False, "", "", "", False, rowguid_column),
        )

    @property
    def identity_fields(self) -> tuple[str, ...]:
        """Return the image fields of the identity columns."""
        return tuple(self.field_of(name) for name in self.identity)

    @property
    def bounded_identity(self) -> tuple[str, ...]:
        """Return the identity columns by whose bounds a MERGE prunes files; GUIDs have no useful bounds."""
        types = dict(zip(self.columns, self.types, strict=True))
        bounded = (name for name in self.identity if types[name] in BOUNDED_TYPES)
        return () if self.rowguid_column is not None else tuple(bounded)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the image fields, in column order."""
        return tuple(f"c{number}" for number in self.numbers or range(len(self.columns)))

    def field_of(self, name: str) -> str:
        """Return the image field of a column."""
        return self.fields[self.columns.index(name)]

    @property
    def image_columns(self) -> tuple[ImageColumn, ...]:
        """Return all of its image columns; the last one is of the present fields and types."""
        return self.images or (ImageColumn(1, self.fields, self.types),)

    @property
    def may_lack_fields(self) -> bool:
        """Whether a row of it may say nothing of a field: its columns changed since it was published."""
        return len(self.image_columns) > 1

    @property
    def has_ended_fields(self) -> bool:
        """True if it had fields that ended: its older images have them."""
        present = {*self.fields}
        return any(not present.issuperset(image.fields) for image in self.image_columns)

    @property
    def image_version(self) -> int:
        """Return the version that introduced its present image column."""
        return self.image_columns[-1].version

    @property
    def written_fields(self) -> tuple[str, ...]:
        """Return the image fields of the columns that writers set, in column order: all but the generated ones."""
        computed = dict(self.generated)
        return tuple(
            field for name, field in zip(self.columns, self.fields, strict=True) if name not in computed
        )

    @property
    def value_columns(self) -> tuple[str, ...]:
        """Return the columns outside the identity that writers set: colv1 has an entry for each that was changed.

        A generated column never changes by itself, so it neither counts as changed nor conflicts.
        """
        computed = dict(self.generated)
        return tuple(name for name in self.columns if name not in self.identity and name not in computed)

    @property
    def value_fields(self) -> tuple[str, ...]:
        """Return the image fields of `value_columns`: the keys of colv1."""
        return tuple(self.field_of(name) for name in self.value_columns)

    @property
    def needs_base(self) -> bool:
        """Whether its resolver reads the row before both changes: then capture keeps overwritten rows."""
        resolver = RESOLVERS.get(self.resolver)
        return resolver is not None and resolver.needs_base

    @property
    def rejects(self) -> str | None:
        """Return the side (`publisher`, `subscriber`) whose changes its resolver never takes, or None."""
        resolver = RESOLVERS.get(self.resolver)
        return resolver.rejects if resolver is not None else None

    @property
    def may_resolve_alone(self) -> bool:
        """Whether a row changed at only one side may be resolved: then a session numbers such rows separately."""
        return self.compensates or self.rejects is not None

    @property
    def triggers(self) -> tuple[str, str, str]:
        """Return the names of the article's insert, update and delete triggers, as in the original."""
        return (f"MSmerge_ins_{self.artid}", f"MSmerge_upd_{self.artid}", f"MSmerge_del_{self.artid}")

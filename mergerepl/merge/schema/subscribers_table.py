"""An article's table at a subscriber: the steps that give it the publisher's columns, or why it cannot take them.

The subscriber's columns are brought to the publisher's definition, not through its history.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mergerepl.delta.feed.column_changes import (
    ADD,
    COMMENT,
    DEFAULT,
    DROP,
    LEAVE,
    NULLABILITY,
    STATEMENTS,
    ColumnChange,
)
from mergerepl.delta.marks import SchemaStep
from mergerepl.delta.metadata import CHAR_VARCHAR, DEFAULT_EXPRESSION, DEFAULTS_FEATURE, GENERATION_EXPRESSION
from mergerepl.delta.tables import TableState, has_values, open_table
from mergerepl.delta.types import Field, bare, ddl_of, field
from mergerepl.errors import SchemaStoppedError
from mergerepl.merge.schema.fixed_types import fixed_type
from mergerepl.merge.schema.follow import article_row
from mergerepl.merge.schema.moves import field_of
from mergerepl.merge.schema.waiting import recorded_since, skipped_changes
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import Definition, PublishedField
from mergerepl.replica.replica import Replica
from mergerepl.rows.sql import free_name, literal, quote

_KEPT_METADATA = ("comment", CHAR_VARCHAR)
"""The properties that a new column takes from the publisher's; a statement of its own sets the default."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """A change of one column of a subscriber's table, by what follows ALTER TABLE; empty: the table stays as it is.

    `added` is a new column; `comment` the name and the new comment of one.
    """

    what: SchemaStep
    statement: str
    added: Field | None = None
    comment: tuple[str, str] | None = None


@dataclass(frozen=True)
class SubscribersTable:
    """An article's table at a subscriber, with its definition there and the publisher's."""

    article: str
    root: str
    table: TableState
    known: Definition
    target: Definition
    publishers: TableState
    changed: Collection[tuple[int | None, str]] = ()
    """The fields, with the kinds of their changes, that the publisher recorded since the version that is known here."""
    left: Collection[str] = ()
    """The names of columns that were published here once, in lower case."""
    skipped: Collection[tuple[int | None, str]] = ()
    """The fields, with the kinds of their changes, whose last change the subscriber leaves out."""

    def steps(self) -> list[Step]:
        """Return the steps that give the table the publisher's columns.

        Raises: SchemaStoppedError if the table cannot take them; nothing was changed.
        """
        return [*self._drops(), *self._renames(), *self._types(), *self._adds(), *self._statements()]

    def _drops(self) -> Iterator[Step]:
        """Yield drops; a column that the table cannot drop stays, as the subscriber's own."""
        columns = {column["name"]: column for column in self.table.fields}
        for number, each in self.known.by_number.items():
            if number in self.target.by_number:
                continue
            if self._can_drop(each):
                yield Step(SchemaStep(SchemaStep.DROP, number, each.name), f"DROP COLUMN {quote(each.name)}")
            elif columns[each.name]["nullable"]:
                yield Step(SchemaStep(SchemaStep.LEAVE, number, each.name), "")
            else:
                statement = f"ALTER COLUMN {quote(each.name)} DROP NOT NULL"
                yield Step(SchemaStep(SchemaStep.LEAVE, number, each.name), statement)

    def leaves(self) -> list[Step]:
        """Return the drops if a column that stays has a name that another published one gets; else nothing.

        They come first, with a capture of their own: unsent values are logged before the column is emptied or adopted.
        """
        names = {each.name.lower() for each in self.target.fields}
        ended = (each for number, each in self.known.by_number.items() if number not in self.target.by_number)
        is_returning = any(each.name.lower() in names and not self._can_drop(each) for each in ended)
        return [*self._drops()] if is_returning else []

    def _can_drop(self, each: PublishedField) -> bool:
        is_partition = each.name in self.table.metadata.partition_columns
        stays = (each.number, LEAVE) in self.changed or (each.number, DROP) in self.skipped
        return self.table.has_column_mapping and not is_partition and not stays

    @property
    def _free(self) -> set[str]:
        """The names, in lower case, that the drops make free."""
        ended = (each for number, each in self.known.by_number.items() if number not in self.target.by_number)
        return {each.name.lower() for each in ended if self._can_drop(each)}

    def _renames(self) -> Iterator[Step]:
        """Yield renames, each to a name that is free then: in a circle one column has a temporary name for a while."""
        now = {
            number: each.name
            for number, each in self.known.by_number.items()
            if number in self.target.by_number and each.name != self.target.by_number[number].name
        }
        taken = {column["name"].lower() for column in self.table.fields} - self._free
        while now:
            wanted = {number: self.target.by_number[number].name for number in now}
            number = next((each for each, name in wanted.items() if name.lower() not in taken), None)
            is_last = number is not None
            if number is None:
                in_circle = {name.lower() for name in now.values()}
                own = [name for name in wanted.values() if name.lower() not in in_circle]
                if own:
                    columns = {column["name"].lower(): column for column in self.table.fields}
                    raise self._taken("renamed a column to", own[0], columns[own[0].lower()])
                number = next(iter(now))
            before, after = now.pop(number), wanted[number]
            if not is_last:
                after = free_name(f"{after}__{number}", taken)
                now[number] = after
            yield self._rename(number, before, after)
            taken = (taken - {before.lower()}) | {after.lower()}

    def _rename(self, number: int, before: str, after: str) -> Step:
        if not self.table.has_column_mapping:
            raise stopped(
                self.article,
                self.root,
                f"the publisher renamed column '{before}' to '{after}', and table '{self.table.path}' has no column "
                f"mapping. Run ALTER TABLE delta.{quote(str(self.table.path))} SET TBLPROPERTIES "
                "('delta.columnMapping.mode' = 'name'), then run `mergerepl sync` again",
            )
        statement = f"RENAME COLUMN {quote(before)} TO {quote(after)}"
        return Step(SchemaStep(SchemaStep.RENAME, number, after), statement)

    def _types(self) -> Iterator[Step]:
        """Yield wider types; a column to which the subscriber's user gave the type already is taken as it is."""
        for number, each in self.known.by_number.items():
            target = self.target.by_number.get(number)
            there = self.table.field(each.name)
            if target is None or target.type == each.type or there is None:
                continue
            step, has = SchemaStep(SchemaStep.TYPE, number, target.name), ddl_of(there["type"])
            if has == target.type:
                yield Step(step, "")
                continue
            if (reason := fixed_type(self.table, each.name, has, target.type)) is not None:
                raise stopped(
                    self.article,
                    self.root,
                    f"the publisher gave column '{each.name}' type {target.type.upper()}, and {reason}",
                )
            yield Step(step, f"ALTER COLUMN {quote(target.name)} TYPE {target.type.upper()}")

    def _taken(self, what: str, name: str, there: Field, *, is_left: bool = False) -> SchemaStoppedError:
        """Return the error about a name that a column of the table's own has, with the statements that free it.

        `is_left`: it was published here, and becomes the published one again once it has no value.
        """
        column, table = quote(there["name"]), f"delta.{quote(str(self.table.path))}"
        if self.leaves():
            remedy = "It is published here until the next `mergerepl sync`, which says how to empty it"
        elif is_left:
            remedy = (
                "It was published before, and its old values must not come back as changes. Copy those that are needed, "
                f"run UPDATE {table} SET {column} = NULL WHERE {column} IS NOT NULL, then run `mergerepl sync` again"
            )
        else:
            mapping = (
                ""
                if self.table.has_column_mapping
                else f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'), after which deltalake "
                "cannot write it, then "
            )
            remedy = (
                f"Rename or drop that one: run {mapping}ALTER TABLE {table} DROP COLUMN {column}, then `mergerepl sync` "
                "again"
            )
        return stopped(
            self.article,
            self.root,
            f"the publisher {what} '{name}' and table '{self.table.path}' has a column of that name of its own "
            f"({ddl_of(there['type'])}). {remedy}",
        )

    def _adds(self) -> Iterator[Step]:
        renamed = {
            each.name.lower()
            for number, each in self.known.by_number.items()
            if number in self.target.by_number
        }
        free = self._free
        names = ((column["name"].lower(), column) for column in self.table.fields)
        present = {name: column for name, column in names if name not in free}
        for each in self.target.fields:
            if each.number in self.known.by_number:
                continue
            column = self._new_column(each)
            lower = each.name.lower()
            there = present.get(lower) if lower not in renamed else None
            is_alike = there is not None and self._is_alike(there, column)
            holds = self._may_hold_values(there) if there is not None and is_alike else None
            if there is not None and holds is False:
                comment = each.comment or there["metadata"].get("comment", "")
                statement = f"ALTER COLUMN {quote(each.name)} COMMENT {literal(comment)}"
                step = SchemaStep(SchemaStep.ADOPT, each.number, each.name)
                yield Step(step, statement, comment=(each.name, comment))
                continue
            if there is not None:
                raise self._taken("added column", each.name, there, is_left=bool(holds))
            statement = f"ADD COLUMN {quote(each.name)} {each.type}"
            yield Step(SchemaStep(SchemaStep.ADD, each.number, each.name), statement, column)

    def _statements(self) -> Iterator[Step]:
        """Yield what the publisher's table says of the columns: that they take NULL, comments and defaults."""
        for number, each in self.target.by_number.items():
            known = self.known.by_number.get(number)
            there = self.table.field(known.name) if known is not None else None
            is_stated = any((number, kind) in self.changed for kind in (ADD, NULLABILITY, *STATEMENTS))
            if is_stated and each.nullable and there is not None and not there["nullable"]:
                statement = f"ALTER COLUMN {quote(each.name)} DROP NOT NULL"
                yield Step(SchemaStep(SchemaStep.NULLABLE, number, each.name), statement)
            adopted = self.table.field(each.name) if number not in self.known.by_number else None
            said = (there or adopted or field(each.name, each.type))["metadata"]
            comment = each.comment or ""
            takes = {kind: (number, kind) not in self.skipped for kind in STATEMENTS}
            if there is not None and is_stated and takes[COMMENT] and comment != said.get("comment", ""):
                statement = f"ALTER COLUMN {quote(each.name)} COMMENT {literal(comment)}"
                yield Step(
                    SchemaStep(SchemaStep.COMMENT, number, each.name), statement, comment=(each.name, comment)
                )
            is_said = there is None or is_stated
            if (
                is_said
                and takes[DEFAULT]
                and (each.default or "") != said.get(DEFAULT_EXPRESSION, "")
                and self._takes_default(each)
            ):
                yield Step(SchemaStep(SchemaStep.DEFAULT, number, each.name), default_statement(each))

    def _takes_default(self, each: PublishedField) -> bool:
        """Whether the table can have a default. Its writers may not know the table feature, so it is not switched on."""
        if DEFAULTS_FEATURE in self.table.features:
            return True
        log.warning(
            "Article '%s' at '%s': the default of column '%s' is left out, because table '%s' lacks the table feature "
            "%s, with which deltalake cannot write it. If all its writers can, run ALTER TABLE delta.%s SET TBLPROPERTIES "
            "('delta.feature.%s' = 'supported'), then ALTER TABLE delta.%s %s",
            *(self.article, self.root, each.name, self.table.path, DEFAULTS_FEATURE),
            *(quote(str(self.table.path)), DEFAULTS_FEATURE, quote(str(self.table.path))),
            default_statement(each),
        )
        return False

    def _is_alike(self, there: Field, column: Field) -> bool:
        """Whether a column of the table's own has the name and type of the published one, and Delta does not compute it."""
        computed = {GENERATION_EXPRESSION, *(each for each in there["metadata"] if "identity" in each)}
        types = [
            (each["name"], bare(each["type"]), each["metadata"].get(CHAR_VARCHAR)) for each in (there, column)
        ]
        is_same = types[0] == types[1] and there["nullable"]
        is_plain = (
            not computed & there["metadata"].keys()
            and there["name"] not in self.table.metadata.partition_columns
        )
        return is_same and is_plain

    def _may_hold_values(self, there: Field) -> bool | None:
        """Whether a column that was published here has values, which would come back as changes; None if it is unread."""
        if self.leaves():
            return None
        return there["name"].lower() in self.left and has_values(self.table, there["name"])

    def _new_column(self, each: PublishedField) -> Field:
        source = self.publishers.field(each.name)
        if source is None:
            raise stopped(
                self.article,
                self.root,
                f"column '{each.name}' was changed at the publisher just now. Run again",
            )
        kept = {name: source["metadata"][name] for name in _KEPT_METADATA if name in source["metadata"]}
        return {**field(each.name, source["type"]), "metadata": kept}


def default_statement(each: PublishedField) -> str:
    """Return what gives a column its published default, as it follows ALTER TABLE and the table's name."""
    change = "DROP DEFAULT" if not each.default else f"SET DEFAULT {each.default}"
    return f"ALTER COLUMN {quote(each.name)} {change}"


def stopped(article: str, root: str, reason: str) -> SchemaStoppedError:
    """Return the error about a table that cannot take a schema change."""
    error = SchemaStoppedError(
        f"Article '{article}' at '{root}': {reason}. No row was changed; other articles and subscribers go on.",
        replica=root,
        article=article,
    )
    error.reason = reason
    return error


def table_at(
    publisher: Replica,
    subscriber: Replica,
    article: PublishedArticle,
    target: Definition,
    publishers: TableState,
    planned: Iterable[ColumnChange] = (),
) -> SubscribersTable:
    """Return an article's table at a subscriber, beside the publisher's table and a definition of the publisher.

    `planned` are changes that lead to this definition and are not recorded yet.
    """
    changed = recorded_since(publisher, article.artid, article.root_version)
    changed |= {(field_of(each, target), each.kind) for each in planned}
    skipped = skipped_changes(publisher, subscriber, article)
    definitions = article_row(subscriber, article.nickname).definitions
    known = definitions[article.version]
    left = {
        each.name.lower()
        for one in definitions.values()
        if one.version <= article.version
        for each in one.fields
    }
    table = open_table(subscriber.table(article))
    return SubscribersTable(
        *(article.name, str(subscriber.root), table, known, target, publishers), changed, left, skipped
    )

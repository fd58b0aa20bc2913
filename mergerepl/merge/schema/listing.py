"""The schema changes that a replica knows, with the subscribers that have them. It starts no engine."""

from typing import Any

from mergerepl.delta.feed.column_changes import (
    ADD,
    COLUMNS,
    COMMENT,
    DEFAULT,
    DROP,
    FILTER,
    LEAVE,
    NULLABILITY,
    RENAME,
    REPLACE,
    RESTORE,
    TRACKING,
    TYPE,
    ColumnChange,
)
from mergerepl.delta.metadata import DEFAULTS_FEATURE
from mergerepl.delta.tables import open_table
from mergerepl.model.article import PublishedArticle
from mergerepl.model.schema_changes import SchemaChange
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SchemaChangeRow


def schema_changes(root: Location, *, publication: str | None = None) -> tuple[SchemaChange, ...]:
    """Return the schema changes of all publications, or of one, newest first.

    Raises: ConfigurationError if the folder is not a replica, or has no publication of that name; StoreError.
    """
    replica = Replica(root).require()
    chosen = None if publication is None else replica.publication(publication).pubid
    articles = {article.artid: article for article in replica.articles}
    relations = [row for row in replica.relations() if not row.is_ended]
    found = []
    for row in replica.schema_changes():
        article = articles.get(row.artid or "")
        if article is None or chosen not in (None, row.pubid):
            continue
        stated = row.stated
        version = row.schemaversion or 0
        is_publisher = replica.publishes(article.pubid)
        states = {
            each.subscriber_server if is_publisher else str(root): (
                "skipped"
                if version in each.skipped_changes
                else "done"
                if each.schemaversion >= version
                else "pending"
            )
            for each in relations
            if each.pubid == row.pubid
        }
        found.append(
            SchemaChange(
                article.publication,
                article.name,
                version,
                stated.get("article_version", 0),
                tuple(
                    _words(each, is_left_out=_is_left_out(replica, article, each))
                    for each in stated.get("changes", ())
                ),
                *(
                    tuple(name for name, state in states.items() if state == wanted)
                    for wanted in ("done", "pending", "skipped")
                ),
            )
        )
    return tuple(sorted(found, key=lambda each: (each.publication, -each.version)))


def _is_left_out(replica: Replica, article: PublishedArticle, change: dict[str, Any]) -> bool:
    """Whether a subscriber's table cannot have the default that a change states."""
    if change["what"] != DEFAULT or not change.get("text") or replica.publishes(article.pubid):
        return False
    return DEFAULTS_FEATURE not in open_table(replica.table(article)).features


_TEXTS = {
    ADD: "add {name} {type}",
    DROP: "drop {column}",
    RENAME: "rename {column} to {name}",
    TYPE: "{column} is {type}",
    COMMENT: "comment of {column}: {text}",
    DEFAULT: "default of {column}: {text}",
    TRACKING: "tracking by {text}",
    FILTER: "rows by {text}",
    LEAVE: "leave {column} out",
    COLUMNS: "{text} columns are published",
    REPLACE: "the table was replaced",
    RESTORE: "the table was restored",
}
"""A change of each kind in words, by the keys of its record."""


def _words(change: dict[str, Any], *, is_left_out: bool) -> str:
    what = change["what"]
    if what == NULLABILITY:
        return f"{change['column']} {'takes NULL' if change.get('nullable') else 'is NOT NULL'}"
    if what not in _TEXTS:
        return " ".join(str(part) for part in (what, change.get("column"), change.get("name")) if part)
    said = _TEXTS[what].format_map({"text": "none", **change})
    return said + (f" (left out here: the table lacks {DEFAULTS_FEATURE})" if is_left_out else "")


def words_of(row: SchemaChangeRow) -> tuple[str, ...]:
    """Return the changes of a row of sysmergeschemachange in words."""
    return tuple(_words(each, is_left_out=False) for each in row.stated.get("changes", ()))


def change_in_words(change: ColumnChange) -> str:
    """Return a change that is not recorded yet in the words that it will have."""
    name = change.new_name if change.kind == ADD or change.new_name != change.column else ""
    stated = {"what": change.kind, "column": change.column, "name": name, "type": change.new_type}
    stated |= {"text": change.new_text or "none"}
    return _words(stated | {"nullable": change.is_nullable}, is_left_out=False)

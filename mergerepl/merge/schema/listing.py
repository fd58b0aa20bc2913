"""The schema changes that a replica knows, with the subscribers that have them. It starts no engine."""

from typing import Any

from mergerepl.delta.feed.column_changes import ADD, RENAME, REPLACE, RESTORE
from mergerepl.model.schema_changes import SchemaChange
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location

_OF_TABLE = {REPLACE: "the table was replaced", RESTORE: "the table was restored"}


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
            each.subscriber_server if is_publisher else str(root): each.schemaversion >= version
            for each in relations
            if each.pubid == row.pubid
        }
        found.append(
            SchemaChange(
                article.publication,
                article.name,
                version,
                stated.get("article_version", 0),
                tuple(map(_words, stated.get("changes", ()))),
                tuple(name for name, is_done in states.items() if is_done),
                tuple(name for name, is_done in states.items() if not is_done),
            )
        )
    return tuple(sorted(found, key=lambda each: (each.publication, -each.version)))


def _words(change: dict[str, Any]) -> str:
    if change["what"] in _OF_TABLE:
        return _OF_TABLE[change["what"]]
    if change["what"] == ADD:
        return f"add {change['name']} {change['type']}"
    if change["what"] == RENAME:
        return f"rename {change['column']} to {change['name']}"
    return " ".join(str(part) for part in (change["what"], change.get("column"), change.get("name")) if part)

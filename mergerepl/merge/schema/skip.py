"""`mergerepl schema skip`: a subscriber leaves out a recorded schema change (sp_markpendingschemachange), without Spark.

A skip is the number of the change in both rows of the subscription. A skipped DROP leaves the column as the subscriber's
own; a skipped comment or default is not stated there, until a later change of it. Other kinds of changes are refused: rows
or later values would need them.
"""

from collections.abc import Iterator, Mapping

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
)
from mergerepl.delta.tables import open_table
from mergerepl.errors import ConfigurationError, OutOfReachError, SchemaMismatchError
from mergerepl.failpoints import failpoint
from mergerepl.merge.schema.follow import article_row
from mergerepl.merge.schema.listing import words_of
from mergerepl.merge.schema.subscribers_table import default_statement
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import Definition
from mergerepl.model.schema_changes import SkippedChange
from mergerepl.monitoring.parties import reachable
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import refuse_copies
from mergerepl.rows.sql import literal, quote
from mergerepl.store.lease import leases
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SchemaChangeRow, SubscriptionRow

_SKIPPED = (DROP, COMMENT, DEFAULT)
_OF_ROWS = (REPLACE, RESTORE)
"""Changes of the whole table: their rows travel as changes of rows."""

_REASONS = {
    ADD: "rows that arrive have values of the new column, which the subscriber has to keep. If its table has a column of "
    "that name, rename or drop that one; a publication that lists `columns` leaves new ones out",
    RENAME: "the column would have two names. Switch on column mapping in the subscriber's table, and it follows",
    NULLABILITY: "rows with NULL would be refused there",
    TRACKING: "both sides decide conflicts in the same way",
    TYPE: "later values would be cut",
    FILTER: "the publisher alone chooses the rows of a subscriber",
    LEAVE: "the subscriber's table keeps the column anyway",
    COLUMNS: "both sides publish the same columns",
}
_UNRECORDED = (
    "is not recorded. `mergerepl schema list` has the numbers; `mergerepl capture` at the publisher records what its "
    "tables have"
)
_NOTHING = "Nothing was changed."


def skip_change(root: Location, version: int, *, publication: str | None, undo: bool) -> SkippedChange:
    """Let a subscriber leave out a schema change that it does not have yet, or (`undo`) take it again.

    Raises: ConfigurationError if the folder is no subscriber, or the change is unknown; SchemaMismatchError if it has
    arrived, or is of a kind that cannot be skipped; OutOfReachError if the publisher is out of reach; LeaseError (run
    again).
    """
    replica = Replica(root).require()
    relation, publisher = _publisher_of(replica, version, publication)
    with leases(publisher.root, replica.root, purpose="mergerepl schema skip"):
        subscriber, publisher = replica.reread(), publisher.reread()
        refuse_copies(publisher, subscriber)
        relation = next(row for row in subscriber.relations(relation.pubid) if row.subid == relation.subid)
        change = _recorded(publisher, relation, version)
        if change is None:
            raise _refused(root, version, _UNRECORDED)
        article = next((each for each in subscriber.articles if each.artid == change.artid), None)
        if article is None:
            raise _refused(root, version, "is of a table that it does not have")
        is_done = article.root_version >= change.stated.get("article_version", 0)
        has_passed = is_done or _has_dropped(subscriber, article, change)
        is_skipped = version in relation.skipped_changes
        if undo and not is_skipped:
            raise _refused(root, version, "is not skipped")
        if not undo and not is_skipped:
            _require_skippable(root, version, change, has_passed=has_passed)
        numbers = {*relation.skipped_changes, version} - ({version} if undo else set())
        _write(publisher, subscriber, relation, tuple(sorted(numbers)))
        statements = _statements(publisher, subscriber, article, change) if undo and has_passed else ()
        return SkippedChange(
            article.publication,
            article.name,
            version,
            str(subscriber.root),
            words_of(change),
            undo,
            tuple(statements),
        )


def forget_stale_skips(publisher: Replica, subscriber: Replica, pubid: str) -> None:
    """Take away the skips of changes that a held publisher, restored from an older copy, lacks or has otherwise.

    Skips go by number, which the publisher gives again.
    """
    theirs, ours = (
        {each.schemaversion: each.schemaguid for each in replica.schema_changes() if each.pubid == pubid}
        for replica in (publisher, subscriber)
    )
    known = {row.subid: row.skipped_changes for row in publisher.relations(pubid)}
    for row in (each for each in subscriber.relations(pubid) if not each.is_ended):
        kept = [each for each in row.skipped_changes if each in theirs]
        kept = [each for each in kept if ours.get(each, theirs[each]) == theirs[each]]
        if not (tuple(kept) == row.skipped_changes == known.get(row.subid, ())):
            _write(publisher, subscriber, row, tuple(kept))


def _write(
    publisher: Replica, subscriber: Replica, relation: SubscriptionRow, numbers: tuple[int, ...]
) -> None:
    """Set the skipped changes of a subscription; the subscriber's row, which its sessions read, comes last."""
    values = {"skipped_changes": numbers}
    replids = {publisher: {subscriber.info().replid}, subscriber: {relation.replid}}
    for replica, other in replids.items():
        replica.control.change_where(catalog.SUBSCRIPTIONS, values, pubid=relation.pubid, replid=other)
        if replica is publisher:
            failpoint("schema.between_skips")


def _publisher_of(replica: Replica, version: int, publication: str | None) -> tuple[SubscriptionRow, Replica]:
    """Return the subscription of a replica whose publisher recorded a change, and that publisher.

    Raises: ConfigurationError; OutOfReachError.
    """
    pubid = None if publication is None else replica.publication(publication).pubid
    rows = [
        row
        for row in replica.relations(pubid)
        if row.is_live and not row.is_ended and not replica.publishes(row.pubid)
    ]
    if not rows:
        raise ConfigurationError(
            f"'{replica.root}' has no active subscription: a subscriber skips a schema change. {_NOTHING} Name it with "
            "--at.",
            replica=str(replica.root),
        )
    found = []
    for row in rows:
        publisher = reachable(row.subscriber_server, row.replid)
        if publisher is None:
            raise OutOfReachError(
                f"Publisher '{row.subscriber_server}' is out of reach, and a skip is recorded at both sides. {_NOTHING} "
                "Run again when it is back.",
                replica=row.subscriber_server,
            )
        if _recorded(publisher, row, version) is not None:
            found.append((row, publisher))
    if not found:
        raise _refused(replica.root, version, _UNRECORDED)
    if len(found) > 1:
        raise _refused(replica.root, version, "is one of several publications: name one with --publication")
    return found[0]


def _recorded(publisher: Replica, relation: SubscriptionRow, version: int) -> SchemaChangeRow | None:
    rows = (row for row in publisher.schema_changes() if row.pubid == relation.pubid)
    return next((row for row in rows if row.schemaversion == version), None)


def _require_skippable(root: Location, version: int, change: SchemaChangeRow, *, has_passed: bool) -> None:
    kinds = [each["what"] for each in change.stated.get("changes", ())]
    if has_passed:
        raise _not_skipped(root, version, f"has arrived already ({', '.join(words_of(change))})")
    for kind in kinds:
        if kind not in (*_SKIPPED, *_OF_ROWS):
            words = ", ".join(words_of(change))
            raise _not_skipped(root, version, f"({words}) cannot be skipped, because {_REASONS[kind]}")
    if not {*kinds} & {*_SKIPPED}:
        raise _not_skipped(root, version, f"({', '.join(words_of(change))}) changes no column")


def _has_dropped(subscriber: Replica, article: PublishedArticle, change: SchemaChangeRow) -> bool:
    """Whether a session that died dropped a column already."""
    fields = article_row(subscriber, article.nickname).definitions[article.version].by_number
    table = open_table(subscriber.table(article))
    numbers = [each.get("field") for each in change.stated.get("changes", ()) if each["what"] == DROP]
    return any(number not in fields or table.field(fields[number].name) is None for number in numbers)


def _refused(root: Location, version: int, why: str) -> ConfigurationError:
    """Return the error about a number that names no change to skip."""
    return ConfigurationError(_said(root, version, why), replica=str(root))


def _not_skipped(root: Location, version: int, why: str) -> SchemaMismatchError:
    """Return the error about a change that a subscriber cannot leave out."""
    return SchemaMismatchError(_said(root, version, why), replica=str(root))


def _said(root: Location, version: int, why: str) -> str:
    return f"Subscriber '{root}': schema change {version} {why}. {_NOTHING}"


def _statements(
    publisher: Replica, subscriber: Replica, article: PublishedArticle, change: SchemaChangeRow
) -> Iterator[str]:
    """Yield the statements that bring a subscriber's table to a skipped change that its sessions have passed."""
    table = open_table(subscriber.table(article))
    theirs = article_row(publisher, article.nickname).definitions
    target = theirs[publisher.info().article_versions.get(article.nickname, 1)]
    ours = article_row(subscriber, article.nickname).definitions
    here = ours[article.version]
    alter = f"ALTER TABLE delta.{quote(str(table.path))}"
    for each in change.stated.get("changes", ()):
        number, kind = each.get("field"), each["what"]
        if kind == DROP:
            name = _former_name(ours, number)
            if name is not None and number not in here.by_number and table.field(name) is not None:
                yield f"{alter} DROP COLUMN {quote(name)}"
        elif number in target.by_number and number in here.by_number:
            column, stated = quote(here.by_number[number].name), target.by_number[number]
            if kind == COMMENT:
                yield f"{alter} ALTER COLUMN {column} COMMENT {literal(stated.comment or '')}"
            elif kind == DEFAULT:
                yield f"{alter} {default_statement(stated)}"


def _former_name(definitions: Mapping[int, Definition], number: int | None) -> str | None:
    names = [
        each.name for _, one in sorted(definitions.items()) for each in one.fields if each.number == number
    ]
    return names[-1] if names else None

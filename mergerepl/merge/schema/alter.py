"""`mergerepl schema alter`: a change of one published column, after every subscriber in reach was asked if it can follow.

The question is the plan that the next session will make: the publisher's definition as a capture of the altered table
would move it, and the steps that bring a subscriber's table there. The statement itself is a user's: the next capture
follows it as it follows the same statement of any engine.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.delta.feed.column_changes import ADD, DROP, RENAME, TYPE, ColumnChange, clause
from mergerepl.delta.feed.window import FeedWindow, feed_window
from mergerepl.delta.metadata import COMMENT, TableMetadata
from mergerepl.delta.tables import Commit, TableState, add_columns, alter_table, open_table
from mergerepl.delta.types import Field, ddl_of, field, is_widening, json_of
from mergerepl.errors import ConfigurationError, SchemaMismatchError, SchemaStoppedError
from mergerepl.merge.schema.fixed_types import fixed_type
from mergerepl.merge.schema.follow import follower_of
from mergerepl.merge.schema.moves import Move
from mergerepl.merge.schema.subscribers_table import table_at
from mergerepl.model.article import PublishedArticle
from mergerepl.model.schema_changes import FOLLOWS, NOT_ASKED, STOPS, AlterResult, SchemaAnswer
from mergerepl.monitoring.parties import article_named, others, reachable
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import captured_position
from mergerepl.rows.sql import quote
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location


def alter_published(
    root: Location, article: str, change: ColumnChange, *, publication: str | None, asks: bool, dry_run: bool
) -> AlterResult:
    """Change a column of a published table as `change` says.

    Raises: ConfigurationError if the folder is not a replica, or a name does not fit; SchemaMismatchError if the change
    does not travel or the table cannot take it; SchemaStoppedError if a subscriber's table cannot; StoreError;
    CaptureError; LeaseError (run again).
    """
    with (
        plain_errors(f"altering article '{article}' of '{root}'"),
        lease(root, purpose="mergerepl schema alter"),
    ):
        publisher = Replica(root).require()
        of = _articles(publisher, article, publication)
        table = open_table(publisher.table(of[0]))
        altered = _altered(publisher, of[0], table, change)
        answers: list[SchemaAnswer] = []
        for each in of:
            window = _planned_window(publisher, each, table, altered)
            move = _move(publisher, each, window)
            target = replace(table, metadata=altered)
            answers += _answers(publisher, each, move, target) if asks else []
        stopped = [each for each in answers if each.answer == STOPS]
        if stopped:
            raise SchemaStoppedError(
                f"Subscribers cannot follow {clause(change)} of '{article}': "
                + " ".join(f"[{each.subscriber}] {each.reason}." for each in stopped)
                + " Nothing was changed. With --no-ask the publisher's table is altered all the same, and their "
                "subscriptions stop until they can.",
                replica=str(root),
                article=article,
            )
        if not dry_run:
            _write(publisher, table, change)
    return AlterResult(str(table.path), clause(change), tuple(answers), dry_run, change.kind == DROP)


def _articles(publisher: Replica, name: str, publication: str | None) -> list[PublishedArticle]:
    """Return the published articles of the table of an article."""
    published = [each for each in publisher.articles if publisher.publishes(each.pubid)]
    tables = {str(publisher.table(each)) for each in published if each.name == name}
    if len(tables) != 1 or publication is not None:
        tables = {str(publisher.table(article_named(publisher, name, publication)))}
    found = [each for each in published if str(publisher.table(each)) in tables]
    if not found:
        raise ConfigurationError(
            f"'{publisher.root}' receives article '{name}': a published column changes at its publisher. Nothing was "
            "changed.",
            replica=str(publisher.root),
            article=name,
        )
    return found


def _altered(
    publisher: Replica, article: PublishedArticle, table: TableState, change: ColumnChange
) -> TableMetadata:
    """Return the metadata of a table after a change.

    Raises: SchemaMismatchError if the table cannot take it.
    """
    columns = {each["name"].lower(): each for each in table.fields}
    path = quote(str(table.path))
    problem = None
    if change.kind != ADD and change.column not in (each["name"] for each in table.fields):
        problem = f"it has no column '{change.column}'"
    elif change.kind == RENAME and change.new_name.lower() == change.column.lower():
        problem = "a new name that differs in letter case alone does not travel"
    elif change.kind in (ADD, RENAME) and change.new_name.lower() in columns:
        problem = f"it has a column '{columns[change.new_name.lower()]['name']}'"
    elif change.kind in (DROP, RENAME) and change.column in article.identity:
        problem = (
            f"'{change.column}' is in the key of article '{article.name}', so the change does not travel"
        )
    elif change.kind in (DROP, RENAME) and not table.has_column_mapping:
        problem = (
            f"it has no column mapping. Run ALTER TABLE delta.{path} SET TBLPROPERTIES ('delta.columnMapping.mode' = "
            "'name')"
        )
    elif change.kind == TYPE:
        has, wanted = ddl_of(columns[change.column.lower()]["type"]), change.new_type
        problem = (
            f"column '{change.column}' is {has.upper()}, and Delta does not widen that to {wanted.upper()}"
        )
        if is_widening(has, wanted):
            problem = fixed_type(table, change.column, has, wanted, again="`mergerepl schema alter`")
    if problem is not None:
        raise SchemaMismatchError(
            f"Table '{table.path}' cannot take {clause(change)}: {problem}. Nothing was changed.",
            replica=str(publisher.root),
            article=article.name,
        )
    fields = [*_altered_fields(table.fields, change)]
    return replace(table.metadata, schema_json=json.dumps({"type": "struct", "fields": fields}))


def _altered_fields(fields: list[Field], change: ColumnChange) -> Iterator[Field]:
    for each in fields:
        if change.kind == ADD or each["name"] != change.column:
            yield each
        elif change.kind == RENAME:
            yield {**each, "name": change.new_name}
        elif change.kind == TYPE:
            yield {**each, "type": json_of(change.new_type)}
    if change.kind == ADD:
        yield _new_column(change)


def _new_column(change: ColumnChange) -> Field:
    said = {COMMENT: change.new_text} if change.new_text else {}
    return {**field(change.new_name, json_of(change.new_type)), "metadata": said}


def _planned_window(
    publisher: Replica, article: PublishedArticle, table: TableState, altered: TableMetadata
) -> FeedWindow:
    """Return the window of a capture after the table is altered."""
    position = captured_position(publisher, article, publisher.info())
    window = feed_window(table.path, position)
    number = table.version + 1
    commit = Commit(number, "ALTER TABLE", None, data_change=False, metadata=altered)
    return replace(window, through_version_inclusive=number, commits=(*window.commits, commit))


def _move(publisher: Replica, article: PublishedArticle, window: FeedWindow) -> Move:
    """Return the move that a capture makes over the change.

    Raises: SchemaMismatchError if it makes none, or another one first.
    """
    move = (
        None
        if window.unreadable is not None
        else follower_of(publisher, article, publisher.info()).next_move(window)
    )
    if move is not None and move.through == window.through_version_inclusive:
        return move
    why = (
        "it does not travel: it would stop the article, or concerns no published column. See `columns:` in the file and "
        "docs/errors.md"
        if move is None
        else "other changes of its columns wait for a session. Run `mergerepl sync`, then this again"
    )
    raise SchemaMismatchError(
        f"Article '{article.name}' of publication '{article.publication}' at '{publisher.root}' cannot be altered so: "
        f"{why}. Nothing was changed.",
        replica=str(publisher.root),
        article=article.name,
    )


def _answers(
    publisher: Replica, article: PublishedArticle, move: Move, altered: TableState
) -> Iterator[SchemaAnswer]:
    """Yield whether each subscriber can follow a move of the publisher's definition."""
    for relation in others(publisher, article.pubid):
        root = relation.subscriber_server
        subscriber = reachable(root, relation.replid)
        if subscriber is None:
            yield SchemaAnswer(article.publication, root, NOT_ASKED, reason="it is out of reach")
            continue
        there = next((each for each in subscriber.articles if each.artid == article.artid), None)
        if there is None:
            yield SchemaAnswer(
                article.publication, root, NOT_ASKED, reason="it does not have the article yet"
            )
            continue
        try:
            steps = table_at(publisher, subscriber, there, move.definition, altered, move.changes).steps()
        except SchemaStoppedError as error:
            yield SchemaAnswer(article.publication, root, STOPS, reason=error.reason)
            continue
        statements = tuple(each.statement for each in steps if each.statement)
        yield SchemaAnswer(article.publication, root, FOLLOWS, statements)


def _write(publisher: Replica, table: TableState, change: ColumnChange) -> None:
    spark_of = recording_jvm(embedded_spark, (publisher,))
    if change.kind == ADD:
        add_columns(spark_of, table.path, [_new_column(change)])
    else:
        alter_table(spark_of, table.path, clause(change))

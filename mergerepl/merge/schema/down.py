"""Bring the publisher's columns to a subscriber's tables: the step of a session before rows.

All that a table cannot take is found before the first statement, except where the name of a column that stays is given
to another one: the former one ends first. Each ALTER is a marked commit, read back by `follow_columns`, which captures what
users wrote before it under the old columns. A step that dies leaves marks; the next one plans the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mergerepl.delta.marks import CommitMark, SchemaStep
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import set_properties
from mergerepl.delta.tables import add_columns, alter_table, open_table, set_comment
from mergerepl.failpoints import failpoint
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.schema.follow import article_row, change_tracking, follow_columns
from mergerepl.merge.schema.subscribers_table import Step, SubscribersTable, stopped, table_at
from mergerepl.model.definition import Definition, PublishedField
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SchemaChangeRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def schema_down(publisher: Replica, recorder: Recorder, nickname: int) -> int:
    """Bring one article's columns to the publisher's definition at a held subscriber; return the number of statements.

    Raises: SchemaStoppedError if the table cannot take them; as `follow_columns`.
    """
    row = article_row(publisher, nickname)
    version = publisher.info().article_versions.get(nickname, 1)
    target = row.definitions[version]
    # What a step that died has done already.
    follow_columns(recorder, [nickname])
    subscriber = recorder.replica.reread()
    article = subscriber.article(nickname)
    if article.root_version == target.version:
        return 0
    publishers = open_table(publisher.root / row.source_table)
    at = table_at(publisher, subscriber, article, target, publishers)
    leaves = at.leaves()
    if leaves:
        _carry_out_all(recorder, at, leaves)
        follow_columns(recorder, [nickname])
        subscriber = recorder.replica.reread()
        at = table_at(publisher, subscriber, subscriber.article(nickname), target, publishers)
    steps = at.steps()
    for step in steps:
        if step.what.what == SchemaStep.DEFAULT:
            require_expression(recorder.spark_of, at, target.by_number[step.what.field])
    _carry_out_all(recorder, at, steps)
    failpoint("schema.before_capture")
    follow_columns(recorder, [nickname])
    change_tracking(recorder, nickname, by_column=row.is_by_column(target))
    _settle(recorder.replica.reread(), publisher, nickname, target)
    return len(leaves) + len(steps)


def require_expression(
    spark_of: "Callable[[], SparkSession]", at: SubscribersTable, each: PublishedField
) -> None:
    """Check that a default, which becomes part of a statement, is one expression without columns.

    Raises: SchemaStoppedError.
    """
    if not each.default:
        return
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    nothing = spark_of().range(0).select()
    try:
        # In brackets, an alias is refused; without them, a list.
        nothing.select(F.expr(each.default), F.expr(f"({each.default})")).schema  # noqa: B018
    except AnalysisException as error:
        raise stopped(
            at.article,
            at.root,
            f"the publisher's default of column '{each.name}' is no expression that Spark knows: {each.default}. Give it "
            "another one there with ALTER TABLE … ALTER COLUMN … SET DEFAULT, then run `mergerepl sync` again",
        ) from error


def _carry_out_all(recorder: Recorder, at: SubscribersTable, steps: Iterable[Step]) -> None:
    replid = recorder.replica.info().replid
    for step in steps:
        failpoint("schema.before_alter")
        mark = CommitMark("schema", step.what.to_step(), replid)
        _carry_out(recorder, at.table.path, step, mark)
        failpoint("schema.after_alter")


def _carry_out(recorder: Recorder, path: Location, step: Step, mark: CommitMark) -> None:
    if step.added is not None:
        add_columns(recorder.spark_of, path, [step.added], mark)
    elif step.comment is not None:
        set_comment(recorder.spark_of, path, *step.comment, mark)
    elif step.statement:
        alter_table(recorder.spark_of, path, step.statement, mark)
    else:
        # A commit that changes nothing carries the mark.
        set_properties(recorder.spark_of, open_table(path), {CDF_PROPERTY: "true"}, mark)


def _settle(subscriber: Replica, publisher: Replica, nickname: int, target: Definition) -> None:
    """Note that a subscriber has the publisher's version of the columns, and copy what changed for readers.

    Raises: SchemaStoppedError if a user changed the columns meanwhile.
    """
    row = article_row(subscriber, nickname)
    version = subscriber.info().article_versions.get(nickname, 1)
    known = row.definitions[version]
    if known.columns != target.columns:
        raise stopped(
            row.name,
            str(subscriber.root),
            "its columns were changed at the same time. Run `mergerepl sync` again",
        )
    failpoint("schema.before_articles")
    control = subscriber.control
    theirs = publisher.schema_changes()
    changes = [each for each in theirs if each.artid == row.artid]
    control.replace_where(catalog.SCHEMACHANGE, changes, artid=row.artid)
    last = _last_done([each for each in theirs if each.pubid == row.pubid], subscriber, row.artid)
    values = {"schemaversion": last.schemaversion or 0, "schemaguid": last.schemaguid} if last else {}
    replids = {publisher.info().replid, subscriber.info().replid}
    for replica in (subscriber, publisher) if values else ():
        if replica is publisher:
            failpoint("schema.before_published_version")
        other = replids - {replica.info().replid}
        replica.control.change_where(catalog.SUBSCRIPTIONS, values, pubid=row.pubid, replid=other)
    # Last: until the subscriber names the publisher's version, the step is repeated.
    entered = row.with_definition(replace(known, root=target.version, vertical=target.vertical))
    control.replace_where(catalog.ARTICLES, [entered], artid=row.artid)
    failpoint("schema.after_articles")


def _last_done(changes: Sequence[SchemaChangeRow], subscriber: Replica, artid: str) -> SchemaChangeRow | None:
    """Return the last change of a publication before the first one that a subscriber lacks; this article has all."""
    # A new article has them all when it is copied, and an article that ended needs none.
    has = {article.artid: article.root_version for article in subscriber.articles if article.artid != artid}
    last = None
    for each in sorted(changes, key=lambda each: each.schemaversion or 0):
        wanted = each.stated.get("article_version", 0)
        if has.get(each.artid or "", wanted) < wanted:
            break
        last = each
    return last

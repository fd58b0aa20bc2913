"""Follow the columns of a replica's tables: capture what was written before each change, then move the definition.

A move is one commit of MSmerge_replinfo, with the captured version. What is written before it (image columns, columns of
the conflict table, sysmergeschemachange, sysmergearticles) does not count without it, and is written again.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

from enumeration.horizon import clock_of
from mergerepl.delta.feed.column_changes import ADD, FILTER, NULLABILITY, TRACKING, ColumnChange
from mergerepl.delta.feed.window import FeedWindow, feed_window
from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.properties import missing_properties, set_properties
from mergerepl.delta.tables import open_table
from mergerepl.errors import MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.capture.windows import article_window, filter_columns, windows_beside
from mergerepl.merge.schema.moves import Follower, Move, field_of
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import FIRST_VERSION, Definition
from mergerepl.model.results import PhaseCounts
from mergerepl.publish.system_tables import add_definition_columns
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import captured_position
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, SchemaChangeRow
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.schema_checks import ArticleTable, check_captured_table, check_columns
from triggers.window import Followed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SCHEMA_TYPE = 300
"""sysmergeschemachange.schematype of a change of columns (ALTER TABLE)."""

_MOST_MOVES = 100


def follow_columns(recorder: Recorder, tablenicks: Iterable[int]) -> dict[int, PhaseCounts]:
    """Follow the columns of some articles of a held replica up to the heads of their tables; return the captured rows.

    Raises: SchemaMismatchError if columns changed in a way that is not followed; as a capture.
    """
    found: dict[int, PhaseCounts] = {}
    for nickname in tablenicks:
        for _ in range(_MOST_MOVES):
            counts = _follow_once(recorder, nickname)
            if counts is None:
                break
            found[nickname] = found.get(nickname, PhaseCounts()) + counts
    return found


def article_row(replica: Replica, nickname: int) -> ArticleRow:
    """Return an article's row."""
    return next(row for row in replica.control.rows(catalog.ARTICLES) if row.nickname == nickname)


def follower_of(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> Follower:
    """Return the follower that finds the moves of an article's definition at a replica."""
    row = article_row(replica, article.nickname)
    at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
    return Follower(at, row.definitions[article.version], row.definitions, filter_columns(replica, article))


def _follow_once(recorder: Recorder, nickname: int) -> PhaseCounts | None:
    """Make the next move of one article; None without one."""
    replica = recorder.replica.reread()
    info = replica.info()
    article = replica.article(nickname)
    at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
    window = feed_window(at.path, captured_position(replica, article, info))
    if window.head_version is None or not window.commits:
        return None
    if _passed_replacement(window):
        set_properties_again(recorder.spark_of, replica, article)
        _take_table_id(replica, info, window, nickname)
        return PhaseCounts()
    row = article_row(replica, nickname)
    definition = row.definitions[article.version]
    follower = follower_of(replica, article, info)
    move = follower.next_move(window)
    if move is None:
        if _lacks_feed(window):
            check_captured_table(at, window)
            check_columns(at, window)
            set_properties_again(recorder.spark_of, replica, article)
        return None
    check_captured_table(at, window, is_followed=True)
    info = replace(info, clock=clock_of(info, replica.relations()))
    recorder = replace(recorder, replica=replica)
    counts = PhaseCounts()
    if move.first - 1 > window.from_version_exclusive:
        # A subscriber's edit of such a column stays a change until its value was logged.
        followed = Followed(ended=follower.ended(window) if at.is_publisher else ())
        before = article_window(
            replica, article, info, through_version_inclusive=move.first - 1, followed=followed
        )
        counts, *_ = recorder.record(info, [before, *windows_beside(replica, article, info)])
        info = replica.info()
        info = replace(info, clock=clock_of(info, replica.relations()))
    return counts + _moved(recorder, info, at, row, definition, move)


def _passed_replacement(window: FeedWindow) -> bool:
    """Whether a session that was writing captured a replacement with the same columns: it knows the commit, not the id."""
    is_known = window.position.commit is not None and not window.is_another_commit and not window.is_older
    before = window.before
    return is_known and before is not None and before.table_id != window.position.table_id


def _lacks_feed(window: FeedWindow) -> bool:
    """Whether the feed is off at a table's head: what should have set it again died or failed."""
    stated = window.metadata_commits
    metadata = stated[-1].metadata if stated else window.before
    return window.unreadable is None and metadata is not None and not metadata.change_data_feed


def _take_table_id(replica: Replica, info: ReplicaInfo, window: FeedWindow, nickname: int) -> None:
    assert window.before is not None
    replica.save_info(replace(info, table_ids={**info.table_ids, nickname: window.before.table_id}))


def _moved(
    recorder: Recorder,
    info: ReplicaInfo,
    at: ArticleTable,
    row: ArticleRow,
    definition: Definition,
    move: Move,
) -> PhaseCounts:
    """Move the definition and capture the rows that the same commits changed."""
    replica, article = recorder.replica, at.article
    if move.gap is not None:
        # Before the capture: a capture that dies is made again, and no step looks at a captured table again.
        set_properties_again(recorder.spark_of, replica, article)
        failpoint("replace.after_properties")
    after = info
    dropped = move.dropped(definition)
    if dropped and not at.is_publisher:
        # It loads pyspark.
        from mergerepl.merge.schema.dropped import log_dropped_values

        log_dropped_values(recorder, replica, article, dropped, move.definition.version)
    if move.definition is not definition:
        state_definition(recorder, row, move.definition, move.changes if at.is_publisher else None)
        versions = {**info.article_versions, article.nickname: move.definition.version}
        after = replace(after, article_versions=versions)
    table_id = open_table(at.path).metadata.table_id
    after = replace(after, table_ids={**info.table_ids, article.nickname: table_id})
    entered = row if move.definition is definition else row.with_definition(move.definition)
    published = entered.published(article.publication, move.definition.version)
    captured = {**info.captured, article.nickname: move.first - 1}
    as_before = replace(after, captured=captured, table_ids=info.table_ids)
    window = article_window(
        replica,
        published,
        as_before,
        through_version_inclusive=move.through,
        followed=Followed(move.gap, move.former),
    )
    counts, *_ = recorder.record(after, [window, *windows_beside(replica, article, info)])
    failpoint("schema.after_capture")
    if move.gap is not None:
        failpoint("replace.after_capture")
    log.info(
        "%s: the columns of '%s' were followed up to version %d", replica.root, article.name, move.through
    )
    return counts


def change_tracking(recorder: Recorder, nickname: int, *, by_column: bool, is_captured: bool = True) -> None:
    """Give an article of a held replica another tracking, after a capture under the old one, in the same commit.

    `is_captured`: whether there are subscribers, so that changes are to be captured.

    Raises: SchemaMismatchError if its columns changed in a way that is not followed; as a capture.
    """
    recorder = recorder_of_followed(recorder, nickname, is_captured=is_captured)
    replica = recorder.replica
    row, article, info = article_row(replica, nickname), replica.article(nickname), replica.info()
    definition, is_root = row.definitions[article.version], replica.publishes(article.pubid)
    if row.is_by_column(definition) == by_column:
        return
    info = replace(info, clock=clock_of(info, replica.relations()))
    windows = [article_window(replica, article, info)] if is_captured else []
    after = definition.tracked(max(row.definitions) + 1, by_column=by_column, is_root=is_root)
    change = ColumnChange(0, TRACKING, new_text="column" if by_column else "row")
    state_definition(recorder, row, after, [change] if is_root else None)
    versions = {**info.article_versions, nickname: after.version}
    beside = windows_beside(replica, article, info) if is_captured else []
    recorder.record(replace(info, article_versions=versions), [*windows, *beside])
    failpoint("schema.after_capture")


def recorder_of_followed(recorder: Recorder, nickname: int, *, is_captured: bool) -> Recorder:
    """Follow the columns of an article if changes are to be captured; return the recorder of its replica as it is then.

    Raises: as `follow_columns`.
    """
    if is_captured:
        follow_columns(recorder, [nickname])
    return replace(recorder, replica=recorder.replica.reread())


def enter_changed_filter(publisher: Replica, row: ArticleRow, said: str) -> Definition:
    """Write the definition of an article with another row filter to its held publisher, and record the change.

    It counts once MSmerge_replinfo names its version.
    """
    version = publisher.info().article_versions.get(row.nickname, FIRST_VERSION)
    after = row.definitions[version].filtered(max(row.definitions) + 1)
    publisher.control.replace_where(catalog.ARTICLES, [row.with_definition(after)], artid=row.artid)
    record_change(publisher, row, after, [ColumnChange(0, FILTER, new_text=said)])
    return after


def state_definition(
    recorder: Recorder, row: ArticleRow, definition: Definition, changes: Iterable[ColumnChange] | None
) -> None:
    """Write a definition; a publisher also records the `changes` that lead to it."""
    failpoint("schema.before_record")
    enter_definition(recorder, row, definition)
    if changes is not None:
        record_change(recorder.replica, row, definition, changes)
    failpoint("schema.after_record")


def enter_definition(recorder: Recorder, row: ArticleRow, definition: Definition) -> None:
    """Write a definition to a replica's tables; it counts once MSmerge_replinfo names its version."""
    replica = recorder.replica
    entered = row.with_definition(definition)
    add_definition_columns(recorder.spark_of, replica.root, entered, definition)
    replica.control.replace_where(catalog.ARTICLES, [entered], artid=row.artid)


def record_change(
    replica: Replica, row: ArticleRow, definition: Definition, found: Iterable[ColumnChange]
) -> None:
    """Record changes that lead to a definition in sysmergeschemachange; what died before it counted is replaced."""
    guid = str(uuid5(NAMESPACE_OID, f"{row.artid} {definition.version}"))
    counted = replica.info().article_versions.get(row.nickname, FIRST_VERSION)
    others = [
        each
        for each in replica.control.rows(catalog.SCHEMACHANGE)
        if each.artid != row.artid or each.stated.get("article_version", 0) <= counted
    ]
    number = max((each.schemaversion or 0 for each in others if each.pubid == row.pubid), default=0) + 1
    changes = [_stated(each, definition) for each in found]
    change = SchemaChangeRow(
        pubid=row.pubid,
        artid=row.artid,
        schemaversion=number,
        schemaguid=guid,
        schematype=SCHEMA_TYPE,
        schematext=json.dumps({"article_version": definition.version, "changes": changes}),
        schemastatus=1,
    )
    replica.control.replace(catalog.SCHEMACHANGE, [*others, change])


def _stated(change: ColumnChange, after: Definition) -> dict[str, object]:
    stated = {
        "what": change.kind,
        "field": field_of(change, after),
        "column": change.column,
        "name": change.new_name if change.kind == ADD or change.new_name != change.column else "",
        "type": change.new_type,
        "text": change.new_text,
        "nullable": change.is_nullable if change.kind == NULLABILITY else None,
    }
    return {name: value for name, value in stated.items() if value not in ("", None)}


def set_properties_again(
    spark_of: "Callable[[], SparkSession]", replica: Replica, article: PublishedArticle
) -> None:
    """Set the properties that a replacement dropped: without the feed the next changes would have to be compared."""
    table = open_table(replica.table(article))
    retention = replica.publication(pubid=article.pubid).keeps
    missing = missing_properties(table, retention or timedelta(0))
    if not missing:
        return
    mark = CommitMark("schema", f"{SETUP}:properties", replica.info().replid)
    try:
        set_properties(spark_of, table, missing, mark)
    except MergeReplError as error:
        # The rows are captured all the same; `apply` sets them, and says why not.
        log.warning("%s: %s", table.path, error.message)

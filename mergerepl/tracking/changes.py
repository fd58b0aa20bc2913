"""The effect of commits on the rows of a tracked table, read from its change feed."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import ROW
from mergerepl.delta.appended import union_all
from mergerepl.delta.feed.column_identity import identities
from mergerepl.delta.feed.commit_changes import read_segment
from mergerepl.delta.feed.net_changes import AFTER, BEFORE, COMMIT_VERSION, is_before, sides_of
from mergerepl.delta.feed.window import FeedPosition, FeedWindow, feed_window
from mergerepl.delta.metadata import FEED_COLUMNS
from mergerepl.delta.tables import Commit, open_table
from mergerepl.errors import StoreError
from mergerepl.model.tracking import TrackedTable
from mergerepl.rows.images import all_true, same_value
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN, ROW_COLUMNS
from mergerepl.tracking import adopted
from mergerepl.tracking.database import Database, columns_problem, facts_of, snapshot_version
from mergerepl.tracking.errors import ForeignCommitError
from mergerepl.tracking.overlay import key_columns, key_names


def readable_window(
    path: Location, table: TrackedTable, *, from_version_exclusive: int, through_version_inclusive: int
) -> FeedWindow:
    """Return a window of commits whose changes can be read. No Spark.

    Raises: ForeignCommitError if the feed does not have them, or the columns were replaced.
    """
    position = FeedPosition(table.table_id, from_version_exclusive)
    window = feed_window(path, position, through_version_inclusive=through_version_inclusive)
    changes = window.changes(lambda _: False)
    removals = window.unmatched_removals
    gap = window.gap(changes) or removals.gap
    if gap is None and removals.standing:
        gap = "files were removed from it by names that its log does not know"
    if gap is not None and changes:
        raise ForeignCommitError.unreadable(table.name, changes[0].version, gap)
    for name, commit in window.replaced_columns.items():
        raise ForeignCommitError.column_replaced(table.name, name, commit)
    lost = _lost_column(window)
    if lost is not None:
        raise ForeignCommitError.column_replaced(table.name, *lost)
    for commit in window.metadata_commits:
        if commit.metadata is not None and columns_problem(table, commit.metadata.fields) is not None:
            why = f"version {commit.version} ({commit.operation}) took away its key or a tracking column"
            raise ForeignCommitError.unreadable(table.name, commit.version, why)
    return window


def require_known_columns(database: Database, table: TrackedTable, versions: Mapping[str, int]) -> None:
    """Check that a table's columns are those that a consumer knows by their names from a published snapshot. No Spark.

    Raises: ForeignCommitError; TrackingError as `facts_of`.
    """
    facts, since = facts_of(database, table), snapshot_version(table, versions)
    try:
        known = identities(open_table(facts.path, since).fields)
    except StoreError:
        # That version is gone from the log: the rows of the whole table are read then.
        return
    if identities(facts.fields).items() <= known.items() or since == facts.version:
        return
    window = feed_window(facts.path, FeedPosition(table.table_id, since))
    for name, commit in window.replaced_columns.items():
        raise ForeignCommitError.column_replaced(table.name, name, commit)


def _lost_column(window: FeedWindow) -> tuple[str, Commit] | None:
    """Return a column that a commit took away together with its rows: consumers could not know when it comes back."""
    known = window.before
    for commit in window.metadata_commits:
        assert commit.metadata is not None
        names = [each["name"] for each in commit.metadata.fields]
        if known is not None and commit.data_change and commit.restored_version is None:
            lost = next((each["name"] for each in known.fields if each["name"] not in names), None)
            if lost is not None:
                return lost, commit
        known = commit.metadata
    return None


def events_of(spark: SparkSession, table: TrackedTable, window: FeedWindow) -> DataFrame:
    """Return the effect of each commit of a window on each key. Each commit is read under the columns that it wrote.

    Returns: the staged key columns, VERSION, and the columns of an event that its rows give: BEFORE and AFTER (the stamps),
        DIFFERS, SHARED.

    Raises: ForeignCommitError if this Spark cannot read them.
    """
    changes = window.changes(lambda _: False)
    frames = [read_segment(spark, window.path, segment) for segment in window.segments(changes, table.key)]
    if any(frame is None for frame in frames):
        why = "this Spark cannot read the changes of an UPDATE by delta-rs"
        raise ForeignCommitError.unreadable(table.name, changes[0].version, why)
    return union_all([_events(frame, table) for frame in frames if frame is not None])


def _events(feed: DataFrame, table: TrackedTable) -> DataFrame:
    others = {name for name, _ in ROW_COLUMNS} | FEED_COLUMNS
    columns = [name for name in feed.columns if name not in others]
    image = F.struct(
        F.struct(CHANGE_BSN, INSERT_BSN, CONTEXT).alias("stamps"),
        *(F.col(quote(name)).alias(f"c{i}") for i, name in enumerate(columns)),
    )
    keys = [key.alias(name) for key, name in zip(key_columns(table), key_names(table), strict=True)]
    images = feed.select(*keys, F.col(COMMIT_VERSION).alias(adopted.VERSION), image.alias(ROW), is_before())
    sides = sides_of(images, [F.col(name) for name in (*key_names(table), adopted.VERSION)])
    same = [
        same_value(F.col(f"{BEFORE}.c{i}"), F.col(f"{AFTER}.c{i}"), feed.schema[name].dataType)
        for i, name in enumerate(columns)
    ]
    return sides.select(
        *key_names(table),
        adopted.VERSION,
        F.when(F.col(BEFORE).isNotNull(), F.col(f"{BEFORE}.stamps")).alias(adopted.BEFORE),
        F.when(F.col(AFTER).isNotNull(), F.col(f"{AFTER}.stamps")).alias(adopted.AFTER),
        (~all_true(same)).alias(adopted.DIFFERS),
        (F.greatest("rows_before", "rows_after") > 1).alias(adopted.SHARED),
    )

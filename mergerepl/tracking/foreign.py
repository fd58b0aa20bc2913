"""Commits outside of this database's transactions: found in a table's log, and their effect on its rows (compact.md 10).

A commit that changes no data (OPTIMIZE, properties, a fence) only moves the version. The effect of others is read from the
change feed, commit by commit, as events: the final stamps of a row, and the tombstones left. A foreign commit counts by
the bits of the user's columns: a row rewritten without a change keeps its stamps, also if the writer lost or copied them.
Each event of a key is applied to the state after the earlier ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import ROW
from mergerepl.delta.appended import union_all
from mergerepl.delta.feed.commit_changes import as_feed, read_segment
from mergerepl.delta.feed.net_changes import COMMIT_VERSION, is_before, sides_of
from mergerepl.delta.feed.schema_walk import identities, is_replacement
from mergerepl.delta.feed.window import FeedPosition, FeedWindow, feed_window
from mergerepl.delta.metadata import FEED_COLUMNS
from mergerepl.delta.tables import (
    Commit,
    TableState,
    TruncatedLogError,
    commits,
    head_version,
    open_table,
    read_version,
)
from mergerepl.delta.types import fits
from mergerepl.errors import MergeReplError, StoreError
from mergerepl.model.tracking import ForeignCommit, TrackedTable
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.rows.images import all_true, same_value
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN, ROW_COLUMNS
from mergerepl.tracking.database import (
    Database,
    columns_problem,
    facts_of,
    last_commit,
    snapshot_version,
    tracked_tables,
    versions_of,
)
from mergerepl.tracking.errors import ForeignCommitError, TrackingError
from mergerepl.tracking.staged_rows import (
    STAMPS,
    key_columns,
    key_names,
    stamps_of_insert,
    stamps_of_update,
    unwritable,
)


def foreign_commits(
    database: Database, table: TrackedTable, *, from_version_exclusive: int, through_version_inclusive: int
) -> list[Commit]:
    """Return the foreign commits of a range of versions, in order, without those that a RESTORE to its beginning undid.

    Raises: ForeignCommitError if the log does not hold the range any more.
    """
    try:
        found = [
            commit
            for commit in commits(
                database.path(table.name),
                from_version_exclusive=from_version_exclusive,
                through_version_inclusive=through_version_inclusive,
            )
            if commit.data_change and not database.is_own(commit.mark)
        ]
    except TruncatedLogError as error:
        why = "its log was cleaned up before it was looked at"
        raise ForeignCommitError.unreadable(table.name, from_version_exclusive + 1, why) from error
    undone = [
        i
        for i, commit in enumerate(found)
        if commit.restored_version is not None
        and from_version_exclusive <= commit.restored_version < found[0].version
    ]
    return found[undone[-1] + 1 :] if undone else found


@dataclass(frozen=True)
class Looked:
    """A tracked table, and the commits to its log since a published version."""

    table: TrackedTable
    commits: list[Commit]
    """The foreign commits that are not adopted yet, in order."""
    head: int
    problem: MergeReplError | None = None
    """Why the table cannot be read: it stays at its published snapshot, and other tables go on."""

    @property
    def quiet_through(self) -> int:
        """The last version before the first foreign commit that is not adopted; else the head."""
        return self.commits[0].version - 1 if self.commits else self.head

    @property
    def named(self) -> list[ForeignCommit]:
        """The foreign commits as shown to users."""
        return [
            ForeignCommit(self.table.name, each.version, each.operation, _writer_of(each))
            for each in self.commits
        ]


def look(database: Database, table: TrackedTable, versions: Mapping[str, int]) -> Looked:
    """Read a table's log after the version of a published snapshot.

    Raises: TrackingError as `facts_of`; ForeignCommitError as `foreign_commits`.
    """
    head = head_version(facts_of(database, table).path)
    since = snapshot_version(table, versions)
    found = foreign_commits(database, table, from_version_exclusive=since, through_version_inclusive=head)
    return Looked(table, found, head)


def look_at_all(database: Database) -> list[Looked]:
    """Read the logs of all tracked tables, by name, after the last published snapshot."""
    versions = versions_of(last_commit(database))
    found = []
    for table in tracked_tables(database).values():
        try:
            found.append(look(database, table, versions))
        except (TrackingError, StoreError) as error:
            found.append(Looked(table, [], snapshot_version(table, versions), error))
    return found


def writable_facts(database: Database, table: TrackedTable) -> TableState:
    """Return the facts of a tracked table at its head, if a transaction can write it.

    Raises: TrackingError if it was altered so that transactions cannot write it; as `facts_of`.
    """
    facts = facts_of(database, table)
    problem = unwritable(facts)
    if problem is not None:
        why, remedy = problem
        raise TrackingError(
            f"Table '{table.name}' cannot be written: {why}. Nothing was changed. {remedy}", table=table.name
        )
    return facts


def _writer_of(commit: Commit) -> str:
    by = commit.engine or "an unknown writer"
    return by if commit.mark is None else f"mergerepl ({commit.mark.step})"


VERSION, BSN, CSN, TIME, BY = "version", "bsn", "csn", "time", "by"
IS_OWN, BEFORE, AFTER, DIFFERS, SHARED = "is_own", "before", "after", "differs", "shared"
"""Columns of an event: version, numbers, time and context of its commit; whether it is ours; the stamps of the row before
and after as structs, NULL without a row; whether the user's columns differ; whether two rows had the key."""

EVENT = (VERSION, BSN, CSN, TIME, BY, IS_OWN, BEFORE, AFTER, DIFFERS, SHARED)

WAS_ABSENT = "was_absent"
IS_THERE, LAST_IS_OWN, TOMBSTONES, CHANGED = "is_there", "last_is_own", "tombstones", "changed_versions"

_TOMBSTONE = "struct<bsn:binary,csn:bigint,insert_bsn:binary,time:timestamp,by:string>"


def folded(events: DataFrame, keys: list[str], options: TrackingOptions) -> DataFrame:
    """Return one row per key: its correct tracking columns, whether the row exists, and its tombstones.

    Reads: events (keys, EVENT). Returns: keys, the tracking columns, IS_THERE, LAST_IS_OWN (a commit of ours came last and
    has the stamps already), TOMBSTONES, CHANGED (the versions of the foreign commits that changed the row), WAS_ABSENT
    (the first event found no row), SHARED (the events do not fit one row: the key had two at a time).
    """
    in_order = F.array_sort(F.collect_list(F.struct(*EVENT)))
    grouped = events.groupBy(*keys).agg(in_order.alias("events"))
    nothing = F.struct(
        F.lit(None).cast(STAMPS).alias("stamps"),
        F.lit(False).alias("is_known"),
        F.lit(False).alias("is_there"),
        F.lit(False).alias("shared"),
        F.expr(f"cast(array() as array<{_TOMBSTONE}>)").alias("tombstones"),
        F.expr("cast(array() as array<bigint>)").alias("changed"),
    )
    state = F.aggregate("events", nothing, lambda state, event: _after(state, event, options))
    first, last = F.element_at("events", 1), F.element_at("events", -1)
    return grouped.select(*keys, state.alias("state"), first.alias("first"), last.alias("last")).select(
        *keys,
        *(F.col(f"state.stamps.{name}").alias(name) for name in (CHANGE_BSN, INSERT_BSN, CONTEXT)),
        F.col(f"last.{AFTER}").isNotNull().alias(IS_THERE),
        F.col(f"last.{IS_OWN}").alias(LAST_IS_OWN),
        F.col("state.tombstones").alias(TOMBSTONES),
        F.col("state.changed").alias(CHANGED),
        F.col(f"first.{BEFORE}").isNull().alias(WAS_ABSENT),
        F.col("state.shared").alias(SHARED),
    )


def _after(state: Column, event: Column, options: TrackingOptions) -> Column:
    before, after = event[BEFORE], event[AFTER]
    # The first event shows the row's stamps; foreign writers may have changed those of later ones.
    known = F.when(state["is_known"], state["stamps"]).otherwise(before)
    is_own = event[IS_OWN]
    is_born = ~is_own & before.isNull() & after.isNotNull()
    is_gone = ~is_own & before.isNotNull() & after.isNull()
    is_updated = ~is_own & before.isNotNull() & after.isNotNull() & event[DIFFERS]
    now = (
        F.when(is_own, after)
        .when(is_born, stamps_of_insert(options, event[BSN], event[BY]))
        .when(is_gone, F.lit(None).cast(STAMPS))
        .when(is_updated, stamps_of_update(options, known, event[BSN], event[BY]))
        .otherwise(known)
    )
    tombstone = F.struct(
        event[BSN].alias("bsn"),
        event[CSN].alias("csn"),
        known[INSERT_BSN].alias("insert_bsn"),
        event[TIME].alias("time"),
        event[BY].alias("by"),
    ).cast(_TOMBSTONE)
    tombstones = state["tombstones"]
    if TrackingOptions.DELETE in options:
        tombstones = F.when(is_gone, F.array_append(tombstones, tombstone)).otherwise(tombstones)
    is_change = is_born | is_gone | is_updated
    changed = F.when(is_change, F.array_append(state["changed"], event[VERSION])).otherwise(state["changed"])
    does_not_fit = state["is_known"] & (state["is_there"] != before.isNotNull())
    return F.struct(
        now.alias("stamps"),
        F.lit(True).alias("is_known"),
        after.isNotNull().alias("is_there"),
        (state["shared"] | event[SHARED] | does_not_fit).alias("shared"),
        tombstones.alias("tombstones"),
        changed.alias("changed"),
    )


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
    # The two versions around a replacement are compared: it needs no feed.
    gap = window.gap([each for each in changes if not is_replacement(each)]) or removals.gap
    if gap is None and removals.standing:
        gap = "files were removed from it by names that its log does not know"
    if gap is not None and changes:
        raise ForeignCommitError.unreadable(table.name, changes[0].version, gap)
    for names, commit in window.schema.replaced_names.items():
        raise ForeignCommitError.column_replaced(table.name, ".".join(names), commit)
    _refuse_lost_values(table, window)
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
    for names, commit in window.schema.replaced_names.items():
        raise ForeignCommitError.column_replaced(table.name, ".".join(names), commit)


def _refuse_lost_values(table: TrackedTable, window: FeedWindow) -> None:
    """Check that no commit took a column away, or gave it another type, together with the rows.

    Consumers could not know when such a column comes back, or what its values are.

    Raises: ForeignCommitError.
    """
    known = window.before
    for commit in window.metadata_commits:
        assert commit.metadata is not None
        if known is not None and commit.data_change and commit.restored_version is None:
            types = {each["name"]: each["type"] for each in commit.metadata.fields}
            for each in known.fields:
                name = each["name"]
                if name not in types:
                    raise ForeignCommitError.column_replaced(table.name, name, commit)
                if is_replacement(commit) and not fits(each["type"], types[name]):
                    why = (
                        f"version {commit.version} changed the type of column '{name}' together with its rows"
                    )
                    raise ForeignCommitError.unreadable(table.name, commit.version, why)
        known = commit.metadata


def events_of(spark: SparkSession, table: TrackedTable, window: FeedWindow) -> DataFrame:
    """Return the effect of each commit of a window on each key. Each commit is read under the columns that it wrote.

    Returns: the staged key columns, VERSION, and the columns of an event that its rows give: BEFORE and AFTER (the stamps),
        DIFFERS, SHARED.

    Raises: ForeignCommitError if this Spark cannot read them.
    """
    changes = window.changes(lambda _: False)
    runs = groupby(changes, key=is_replacement)
    frames: list[DataFrame | None] = []
    for is_replaced, run in runs:
        if is_replaced:
            frames += [_replaced_rows(spark, window.path, commit.version) for commit in run]
        else:
            segments = window.segments(list(run), table.key)
            frames += [read_segment(spark, window.path, segment) for segment in segments]
    if any(frame is None for frame in frames):
        why = "this Spark cannot read the changes of an UPDATE by delta-rs"
        raise ForeignCommitError.unreadable(table.name, changes[0].version, why)
    return union_all([_events(frame, table) for frame in frames if frame is not None])


def _replaced_rows(spark: SparkSession, path: Location, version: int) -> DataFrame:
    """Return the versions before and after a replacement as its feed; a new column is NULL before it."""
    before, after = read_version(spark, path, version - 1), read_version(spark, path, version)
    names = {name.lower() for name in before.columns}

    def value(name: str) -> Column:
        there = F.col(quote(name)) if name.lower() in names else F.lit(None)
        return there.cast(after.schema[name].dataType).alias(name)

    return as_feed(before.select(*map(value, after.columns)), after, version)


def _events(feed: DataFrame, table: TrackedTable) -> DataFrame:
    others = {name for name, _ in ROW_COLUMNS} | FEED_COLUMNS
    columns = [name for name in feed.columns if name not in others]
    image = F.struct(
        F.struct(CHANGE_BSN, INSERT_BSN, CONTEXT).alias("stamps"),
        *(F.col(quote(name)).alias(f"c{i}") for i, name in enumerate(columns)),
    )
    keys = [key.alias(name) for key, name in zip(key_columns(table), key_names(table), strict=True)]
    images = feed.select(*keys, F.col(COMMIT_VERSION).alias(VERSION), image.alias(ROW), is_before())
    sides = sides_of(images, [F.col(name) for name in (*key_names(table), VERSION)])
    same = [
        same_value(F.col(f"{BEFORE}.c{i}"), F.col(f"{AFTER}.c{i}"), feed.schema[name].dataType)
        for i, name in enumerate(columns)
    ]
    return sides.select(
        *key_names(table),
        VERSION,
        F.when(F.col(BEFORE).isNotNull(), F.col(f"{BEFORE}.stamps")).alias(BEFORE),
        F.when(F.col(AFTER).isNotNull(), F.col(f"{AFTER}.stamps")).alias(AFTER),
        (~all_true(same)).alias(DIFFERS),
        (F.greatest("rows_before", "rows_after") > 1).alias(SHARED),
    )

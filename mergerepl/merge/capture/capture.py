"""Capture: the users' changes of a replica since the last time become rows of its contents and tombstones.

`read_changes` computes the new changes and keeps them in memory, `commit_changes` appends them; `sync --dry-run` does
only the first step. The commit point is MSmerge_replinfo: until it moves, appended runs do not count, and the next
capture removes them and starts from the same versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from uuid import uuid4

from pyspark.sql import SparkSession

from mergerepl.changes import ROWGUID
from mergerepl.delta.commit_files import MOST_KEYS_BYTES, few_rows, frame_here, rows_having
from mergerepl.delta.feed.commit_changes import feed_here, read_segment
from mergerepl.delta.feed.net_changes import CHANGE_TYPE, COMMIT_VERSION
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import Transaction, open_table, read_columns, read_version, transaction_version
from mergerepl.failpoints import failpoint
from mergerepl.frames import DataFrame, F, is_in_process
from mergerepl.merge.apply.side import append_run, next_seq, run_tables
from mergerepl.merge.partitions.runs import Events, append_events
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.application_ids import RUN_APP_ID
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns, RecentRows, delete_runs_after
from mergerepl.rows.key_bounds import KeyBounds, within_bounds
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept, collected, in_one_task, release, released_on_error
from mergerepl.spark.session import require_utc
from mergerepl.systables.genhistory import Generation, GenStatus, new_guid
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.capture import TableReader, capture
from triggers.tracked_rows import KNOWN_COLUMNS, Origin
from triggers.window import CaptureWindow

Known = Callable[[DataFrame, int], DataFrame | None]
"""Gives what contents and tombstone know of some rows (a frame of rowguids, how many they are)."""


@dataclass(frozen=True)
class CapturedArticle:
    """The new changes of one article: `rows` (CHANGES columns), readable until `release`; None without changes.

    With row filters: `images` (rowguid, before, after) of the changed rows. `rows` includes `touched` unchanged rows
    whose membership changed, and `events` has the mappings of all.
    """

    window: CaptureWindow
    rows: DataFrame | None
    generation: Generation | None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    in_memory: Sequence[DataFrame] = ()
    images: DataFrame | None = None
    touched: int = 0
    events: Events | None = None

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.window.article

    @property
    def changes(self) -> int:
        """Changed rows."""
        return self.inserts + self.updates + self.deletes

    def release(self) -> None:
        """Free the memory."""
        for frame in self.in_memory:
            release(frame)


@dataclass(frozen=True)
class CaptureJob:
    """The window of one article, and the origin of its changes: an open generation and the writer's priority."""

    replica: Replica
    window: CaptureWindow
    info: ReplicaInfo
    priority: float
    generation: Generation
    with_images: bool = False

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.window.article


def read_changes(
    spark: SparkSession,
    job: CaptureJob,
    *,
    through_seq_inclusive: int | None = None,
    writer: int | None = None,
    known_meanwhile: DataFrame | None = None,
    is_late: bool = False,
) -> CapturedArticle:
    """Compute the net changes of a window as CHANGES rows of its open generation.

    `known_meanwhile` (KNOWN_COLUMNS) is newer than the runs' versions of its rows. `is_late`: a session has sent all
    changes before the window.

    Raises: NullKeyError, DuplicateKeyError naming keys; FeedGapError if both the feed and the old version are gone;
    CaptureError if this session would compute the values of a generated column otherwise; EngineError if the session
    would read timestamp partition columns otherwise.
    """
    window, info = job.window, job.info
    if not window.has_changes:
        return CapturedArticle(window, None, None)
    require_utc(spark, window.article.name, window.table, window.timestamp_partitions)
    seq = info.last_seq if through_seq_inclusive is None else through_seq_inclusive
    runs = ArticleRuns.of(spark, job.replica, window.article, seq)
    lookup = Kept()

    def known(guids: DataFrame, rows: int) -> DataFrame | None:
        found = None
        if seq > 0:
            found = runs.latest_of(guids, rows=rows, columns=KNOWN_COLUMNS, kept=lookup)
        if known_meanwhile is None:
            return found
        newer = known_meanwhile.join(guids, on=ROWGUID, how="left_semi")
        if found is None:
            return newer
        return newer.unionByName(found.join(newer.select(ROWGUID), on=ROWGUID, how="left_anti"))

    def recent(rows: int) -> RecentRows | None:
        if seq == 0 or known_meanwhile is not None:
            return None
        return runs.recent(rows=rows, columns=KNOWN_COLUMNS, kept=lookup)

    sent = job.replica.sent_from_partition(window.article.pubid)
    anew = 0 if sent is None else job.generation.generation if is_late else sent
    origin = Origin(
        writer or info.nickname,
        job.priority,
        job.generation.generation,
        info.clock,
        anew,
        # `merge.stage.invisible` reads it where columns end.
        keeps_base=not is_late and not job.replica.publishes(window.article.pubid),
    )
    with released_on_error(lookup):
        if is_in_process():
            reader = reader_here(window, known)
        else:
            reader = table_reader(spark, window, known, recent)
        found = capture(window, reader, origin, with_images=job.with_images)
    if found is None:
        lookup.release()
        return CapturedArticle(window, None, None)
    changes = found.inserts + found.updates + found.deletes
    return CapturedArticle(
        window,
        found.rows,
        replace(job.generation, changecount=job.generation.changecount + changes),
        found.inserts,
        found.updates,
        found.deletes,
        (*found.in_memory, *lookup.frames),
        found.images,
    )


def table_reader(
    spark: SparkSession, window: CaptureWindow, known: Known, recent: Callable[[int], RecentRows | None]
) -> TableReader:
    """Return the functions that read an article's table for a capture."""
    table, article = window.table, window.article

    def with_keys(_: DataFrame, bounds: KeyBounds) -> DataFrame:
        rows = read_columns(spark, table, window.through_version_inclusive, article.identity)
        return rows.where(within_bounds(article, bounds))

    def rows_at(version: int) -> DataFrame:
        return _as_published(read_version(spark, table, version), window, version)

    return TableReader(
        feed=partial(_feed, spark, window), rows_at=rows_at, with_keys=with_keys, known=known, recent=recent
    )


def reader_here(window: CaptureWindow, known: Known) -> TableReader:
    """Return the functions that read an article's table for a capture in this process, from the files of its commits.

    They raise NeedsSparkError if Arrow does not read the rows as Spark does.
    """
    table, article = window.state, window.article
    assert table is not None

    def feed() -> DataFrame:
        (segment,) = window.segments
        versions = [each.version for each in window.user_commits]
        return feed_here(table, article.columns, versions, segment, article.identity)

    def with_keys(keys: DataFrame, _: KeyBounds) -> DataFrame:
        found = collected(keys)
        wanted = {name: found[f"k{i}"].combine_chunks() for i, name in enumerate(article.identity)}
        is_guid = article.rowguid_column is not None
        rows = rows_having(table, article.identity, wanted, is_guid=is_guid, most_bytes=MOST_KEYS_BYTES)
        return frame_here(rows, table)

    def rows_at(version: int) -> DataFrame:
        at = open_table(window.table, version)
        names = [was for was in window.names_at(version).values() if was is not None]
        return _as_published(frame_here(few_rows(at, names, is_key=False), at), window, version)

    return TableReader(feed=feed, rows_at=rows_at, with_keys=with_keys, known=known)


def _as_published(rows: DataFrame, window: CaptureWindow, version: int) -> DataFrame:
    """Return the rows of a version of the table with the published columns; one that it lacked is NULL."""
    types = dict(zip(window.article.columns, window.article.types, strict=True))
    values = {
        name: F.lit(None) if was is None else F.col(quote(was))
        for name, was in window.names_at(version).items()
    }
    return rows.select(*(value.cast(types[name]).alias(name) for name, value in values.items()))


def _feed(spark: SparkSession, window: CaptureWindow) -> DataFrame | None:
    """Return the feed of all segments, with the published columns if there are several; None if a segment has no feed."""
    found = [read_segment(spark, window.table, segment) for segment in window.segments]
    frames = [frame for frame in found if frame is not None]
    if len(frames) < len(found):
        return None
    if len(frames) > 1:
        names = [*(quote(name) for name in window.article.columns), CHANGE_TYPE, COMMIT_VERSION]
        frames = [reduce(DataFrame.unionByName, (frame.select(*names) for frame in frames))]
    return in_one_task(frames[0], window.changed_rows)


def open_generations(
    genhistory: Sequence[Generation], windows: Sequence[CaptureWindow], info: ReplicaInfo
) -> list[Generation]:
    """Return the open generation for the changes of each window; new ones are numbered in turn."""
    number = info.last_generation
    found = []
    for window in windows:
        number += window.has_changes
        found.append(open_generation(genhistory, window.article, info, number))
    return found


def open_generation(
    genhistory: Sequence[Generation], article: PublishedArticle, info: ReplicaInfo, number: int
) -> Generation:
    """Return the article's open generation, or a new one with the given number, for changes above the clock."""
    version = info.clock + 1
    for row in genhistory:
        if row.art_nick == article.nickname and row.is_open:
            return replace(row, maxversion=version)
    own = [info.nickname]
    return new_generation(article, number=number, nicknames=own, status=GenStatus.OPEN, maxversion=version)


def new_generation(
    article: PublishedArticle,
    *,
    number: int,
    nicknames: Sequence[int],
    status: GenStatus,
    maxversion: int,
    guid: str | None = None,
) -> Generation:
    """Return a new row of MSmerge_genhistory; no version of its rows is higher than `maxversion`."""
    return Generation(
        guidsrc=guid or new_guid(),
        pubid=article.pubid,
        generation=number,
        art_nick=article.nickname,
        nicknames=tuple(sorted(nicknames)),
        coldate=datetime.now(UTC),
        genstatus=status,
        changecount=0,
        maxversion=maxversion,
    )


def after_commit(
    captured: Sequence[CapturedArticle], genhistory: Sequence[Generation], info: ReplicaInfo
) -> tuple[ReplicaInfo, list[Generation]]:
    """Return replinfo and genhistory as `commit_changes` leaves them, except for the number of the run.

    Windows without changes (OPTIMIZE, property changes) only move the captured version.
    """
    entered = [item.generation for item in captured if item.generation is not None]
    moved = {item.article.nickname: item.window.through_version_inclusive for item in captured}
    last = max([info.last_generation, *(row.generation for row in entered)])
    clock = max([info.clock, *(row.maxversion or 0 for row in entered)])
    after = replace(info, last_generation=last, captured={**info.captured, **moved}, clock=clock)
    return after, upserted(genhistory, entered)


def commit_changes(
    replica: Replica, captured: Sequence[CapturedArticle], genhistory: Sequence[Generation], info: ReplicaInfo
) -> ReplicaInfo:
    """Append the captured rows, then move the captured versions. Returns the new replinfo."""
    after, _ = after_commit(captured, genhistory, info)
    changed = [item for item in captured if item.rows is not None]
    if changed:
        after = replace(after, last_seq=next_seq(replica.root, info.last_seq))
        mark = CommitMark(str(uuid4()), f"capture:{after.last_seq}", info.replid)
        failpoint("capture.before_genhistory")
        replica.append_generations(
            [item.generation for item in changed if item.generation], seq=after.last_seq
        )
        failpoint("capture.before_contents")
        append_run(
            [(item.article, item.rows) for item in changed if item.rows is not None],
            replica,
            Transaction(RUN_APP_ID, after.last_seq, mark),
            contents=any(item.inserts + item.updates + item.touched for item in changed),
            tombstones=any(item.deletes for item in changed),
        )
        events = [item.events for item in changed if item.events is not None]
        if events:
            append_events(replica, events, Transaction(RUN_APP_ID, after.last_seq, mark))
        failpoint("capture.before_replinfo")
    if after != info:
        replica.save_info(after)
        failpoint("capture.after_replinfo")
    return after


def remove_leftovers(replica: Replica, info: ReplicaInfo) -> None:
    """Remove runs that a crashed capture appended without reaching its commit point. Starts no engine."""
    replica.drop_uncounted_generations()
    for path in run_tables(replica.root):
        if transaction_version(path, RUN_APP_ID) > info.last_seq:
            delete_runs_after(path, through_seq_inclusive=info.last_seq)


def upserted(genhistory: Sequence[Generation], rows: Sequence[Generation]) -> list[Generation]:
    """Return genhistory with rows added, or replaced if it has the guid already."""
    by_guid = {row.guidsrc: row for row in genhistory}
    by_guid.update({row.guidsrc: row for row in rows})
    return sorted(by_guid.values(), key=lambda row: row.generation)

"""Capture of few changes: all articles of a session together, in two queries over rows that Arrow read (decision 0021).

The rules are those of `triggers`, on images with encoded fields, so that rows of any article fit into one frame. The
outcome names the rows of the feed by number. Nothing is refused or settled here: `read_changes` takes an article with a
key in doubt, or with a table that Arrow reads otherwise than Spark.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from mergerepl.changes import CHANGE_COLUMNS, DELETED, ROW, ROWGUID, TABLENICK
from mergerepl.delta.commit_files import MOST_ROWS, as_images, feed_of_files, image_of, rows_with_keys
from mergerepl.delta.engine_choice import ARROW_FOR_FEW, EngineChoice, NeedsSparkError, TooLargeForArrowError
from mergerepl.delta.feed.net_changes import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    EXISTED,
    EXISTS,
    HALF_UPDATES,
    is_change,
    net_of_events,
    of_event,
)
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import TableState
from mergerepl.delta.update_keys import update_keys
from mergerepl.frames import DataFrame, F
from mergerepl.merge.capture.capture import CapturedArticle, CaptureJob
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.runs import current_rows, few_known_rows
from mergerepl.rows.encodings import encoded_fields
from mergerepl.rows.images import rowguid_of_image
from mergerepl.spark.in_memory import collected, frame_of, frame_of_images, in_one_task
from mergerepl.store.location import Location
from triggers.tracked_rows import (
    CHANGED_COLUMNS,
    FLOOR_OF_ARTICLE,
    GENERATION_OF_ORIGIN,
    KNOWN_COLUMNS,
    NICKNAME,
    ORIGIN_PRIORITY,
    tracked_rows_of,
)
from triggers.window import CaptureWindow

if TYPE_CHECKING:
    import pyarrow as pa

JOB = "job"
"""Column: which of the articles that are captured a row belongs to."""

_KEYS = (JOB, ROWGUID)
_NUMBER = "number"
"""Field of `row` beside the encoded fields: the number of the row in the article's feed."""

_IMAGE = T.StructType([T.StructField("c0", T.ArrayType(T.BinaryType()))])
_DIFFERS, _IS_CHANGE, _IS_INSERT, _NAMES, _THERE = "differs", "is_change", "is_insert", "names", "there"


@dataclass(frozen=True)
class _Feed:
    """The feed of one article in Arrow: `row`, kind and version; and the table at its end."""

    rows: "pa.Table"
    table: TableState
    image: T.StructType


def capture_small(
    spark: SparkSession, jobs: Sequence[CaptureJob], choice: EngineChoice
) -> dict[int, CapturedArticle]:
    """Return the new changes of the articles that can be captured here, by the number of the job."""
    import pyarrow.compute as pc

    feeds = {n: feed for n, job in enumerate(jobs) if (feed := _feed(job, choice)) is not None}
    if not feeds:
        return {}
    net = _net(spark, jobs, feeds)
    odd = {*_values(net.filter(net[DOUBTFUL]), JOB), *_unbalanced(net)}
    net = net.filter(pc.and_(net[_IS_CHANGE], pc.invert(pc.is_in(net[JOB], _array(odd)))))
    net = net.select([*_KEYS, EXISTED, BEFORE, EXISTS, AFTER, _DIFFERS])
    keys, doubtful = _keys_there(spark, jobs, feeds, net, choice)
    net = net.filter(pc.invert(pc.is_in(net[JOB], _array(doubtful))))
    odd |= doubtful
    tracked = _tracked(spark, jobs, net, keys) if net.num_rows else None
    if tracked is not None:
        several = pc.greater(tracked[_THERE], pc.if_else(tracked[DELETED], 0, 1))
        odd |= set(_values(tracked.filter(several), JOB))
    for number in odd - doubtful:
        choice.fall_back(jobs[number].window.table, NeedsSparkError("keys of changed rows are in doubt"))
    found = {}
    for number in feeds.keys() - odd:
        mine, images = (
            rows if rows is None else rows.filter(pc.equal(rows[JOB], number)) for rows in (tracked, net)
        )
        found[number] = _article(spark, jobs[number], feeds[number], mine, images)
    return found


def _values(rows: "pa.Table", name: str) -> list[Any]:
    found: list[Any] = rows[name].unique().to_pylist()
    return found


def _array(numbers: set[Any]) -> "pa.Array[Any]":
    import pyarrow as pa

    return pa.array(sorted(numbers), pa.int32())


def _unbalanced(net: "pa.Table") -> list[int]:
    import pyarrow.compute as pc

    sums = net.group_by(JOB).aggregate([(HALF_UPDATES, "sum")])
    return _values(sums.filter(pc.not_equal(sums[f"{HALF_UPDATES}_sum"], 0)), JOB)


def choose_engine(engine: str, windows: Iterable[CaptureWindow]) -> EngineChoice:
    """Choose by the logs the tables that Arrow reads; none with an `engine` other than `auto`."""
    if engine != ARROW_FOR_FEW:
        return EngineChoice(uses_arrow=False)
    reasons = {window.table: _spark_reason(window) for window in windows if window.has_changes}
    return EngineChoice(True, {table: reason for table, reason in reasons.items() if reason is not None})


def _spark_reason(window: CaptureWindow) -> NeedsSparkError | None:
    """Return the reason why Spark captures a window of changes, by its log alone; None if Arrow may read its feed."""
    article, state = window.article, window.state
    if window.gap is not None:
        return NeedsSparkError(f"its feed has a gap: {window.gap}")
    if window.generated_columns:
        return NeedsSparkError("it has generated columns")
    if article.needs_base:
        return NeedsSparkError("its resolver reads the rows before the changes")
    if state is None or len(window.segments) != 1 or not window.segments[0].is_one_metadata:
        return NeedsSparkError("its metadata changed")
    if (window.changed_rows or 0) > MOST_ROWS:
        return TooLargeForArrowError("too many rows")
    problem = article_problem(state, article)
    return None if problem is None else NeedsSparkError(problem)


def _feed(job: CaptureJob, choice: EngineChoice) -> _Feed | None:
    """Return the feed of an article if it has changes, and Arrow reads them as Spark does."""
    window, article, table = job.window, job.article, job.window.state
    if not window.has_changes or window.table in choice.for_spark or table is None:
        return None
    (segment,) = window.segments
    versions = {commit.version: commit.version in segment.by_files for commit in window.user_commits}
    keys = {v: update_keys(window.table, v, article.identity) for v in segment.by_keys}
    versions = {v: by_files or v in keys for v, by_files in versions.items()}
    try:
        rows = feed_of_files(table, article.columns, versions, keys)
        if any(rows[ROW].combine_chunks().field(field).null_count for field in article.identity_fields):
            raise NeedsSparkError("a key is NULL")
    except NeedsSparkError as error:
        choice.fall_back(window.table, error)
        return None
    return _Feed(rows, table, image_of(table, article.columns))


def _net(spark: SparkSession, jobs: Sequence[CaptureJob], feeds: Mapping[int, _Feed]) -> "pa.Table":
    """Return the net changes of all feeds; before and after are row numbers."""
    import pyarrow as pa

    def events(number: int, feed: _Feed) -> DataFrame:
        rows = feed.rows.append_column(_NUMBER, pa.array(range(feed.rows.num_rows), pa.int32()))
        frame = frame_of_images(spark, rows, feed.image)
        fields = encoded_fields(ROW, feed.image, feed.image.names)
        return frame.select(
            F.lit(number).alias(JOB),
            _rowguid(jobs[number].article, feed.image).alias(ROWGUID),
            F.struct(fields.alias("c0"), _NUMBER).alias(ROW),
            *of_event(),
        )

    together = reduce(DataFrame.unionByName, (events(*each) for each in feeds.items()))
    count = sum(feed.rows.num_rows for feed in feeds.values())
    net = net_of_events(
        in_one_task(together, min(count, 10_000)), [F.col(key) for key in _KEYS], _IMAGE, kept=_KEYS
    )
    differs = F.zip_with(f"{BEFORE}.c0", f"{AFTER}.c0", lambda one, other: ~one.eqNullSafe(other))
    found = net.select(
        *_KEYS,
        EXISTED,
        F.col(f"{BEFORE}.{_NUMBER}").alias(BEFORE),
        EXISTS,
        F.col(f"{AFTER}.{_NUMBER}").alias(AFTER),
        is_change(_IMAGE).alias(_IS_CHANGE),
        *(DOUBTFUL, HALF_UPDATES),
        differs.alias(_DIFFERS),
    )
    return collected(found)


def _rowguid(article: PublishedArticle, image: T.StructType) -> Any:
    return rowguid_of_image(ROW, image, article.identity_fields, existing=article.rowguid_column is not None)


def _tracked(
    spark: SparkSession, jobs: Sequence[CaptureJob], net: "pa.Table", keys: DataFrame | None
) -> "pa.Table":
    """Return CAPTURED of net changes, with their job and the number of table rows that share an added or removed key.

    `row` is the number of the row.
    """
    import pyarrow as pa

    columns = {
        GENERATION_OF_ORIGIN: (pa.int64(), [job.generation.generation for job in jobs]),
        NICKNAME: (pa.int32(), [job.info.nickname for job in jobs]),
        ORIGIN_PRIORITY: (pa.float64(), [job.priority for job in jobs]),
        FLOOR_OF_ARTICLE: (pa.int64(), [job.article.maxversion_at_cleanup for job in jobs]),
        _NAMES: (pa.list_(pa.string()), [_names(job.article) for job in jobs]),
    }
    described = net
    for name, (type_, values) in columns.items():
        described = described.append_column(name, pa.array(values, type_).take(net[JOB]))
    # A new row differs in all fields.
    differs = F.when(F.col(EXISTED), F.col(_DIFFERS))
    changed = F.zip_with(
        _NAMES, differs, lambda name, differs: F.when(F.coalesce(differs, F.lit(True)), name)
    )
    named = F.when(F.col(EXISTED), F.array_compact(changed)).otherwise(F.array_compact(_NAMES))
    frame = in_one_task(frame_of(spark, described).withColumn(CHANGED_COLUMNS, named), net.num_rows)
    known = _known(spark, jobs, net)
    if known is not None:
        known = in_one_task(
            current_rows(in_one_task(known, net.num_rows), KNOWN_COLUMNS, keys=_KEYS), net.num_rows
        )
    there = F.lit(0).cast("bigint")
    if keys is not None:
        counted = in_one_task(keys, net.num_rows).groupBy(*_KEYS).agg(F.count(F.lit(1)).alias(_THERE))
        frame = in_one_task(
            frame.join(in_one_task(counted, net.num_rows), on=list(_KEYS), how="left"), net.num_rows
        )
        came_or_went = F.col(EXISTED) != F.col(EXISTS)
        there = F.when(came_or_went, F.coalesce(F.col(_THERE), there)).otherwise(there)
    tracked = tracked_rows_of(frame, known, keys=_KEYS, more={_THERE: there, _IS_INSERT: ~F.col(EXISTED)})
    return collected(tracked)


def _names(article: PublishedArticle) -> list[str | None] | None:
    """Return each field's column name if colv1 tracks it; None for a row-tracked article."""
    if not article.column_tracking:
        return None
    return [name if name in article.value_columns else None for name in article.columns]


def _known(spark: SparkSession, jobs: Sequence[CaptureJob], net: "pa.Table") -> DataFrame | None:
    """Return the versions of these rows in contents and tombstone, or None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_folder: dict[Location, dict[int, int]] = defaultdict(dict)
    for number in _values(net, JOB):
        of_folder[jobs[number].replica.folder][jobs[number].article.nickname] = number
    found = []
    for folder, numbers in of_folder.items():
        seq = jobs[next(iter(numbers.values()))].info.last_seq
        if not seq:
            continue
        mine = net.filter(pc.is_in(net[JOB], _array(set(numbers.values()))))
        runs = few_known_rows(folder, list(numbers), _values(mine, ROWGUID), through_seq_inclusive=seq)
        nicknames = pa.array(list(numbers), pa.int32())
        job = pa.array(list(numbers.values()), pa.int32()).take(pc.index_in(runs[TABLENICK], nicknames))
        found.append(runs.drop_columns([TABLENICK]).append_column(JOB, job))
    if not any(runs.num_rows for runs in found):
        return None
    return frame_of(spark, pa.concat_tables(found))


def _keys_there(
    spark: SparkSession,
    jobs: Sequence[CaptureJob],
    feeds: Mapping[int, _Feed],
    net: "pa.Table",
    choice: EngineChoice,
) -> tuple[DataFrame | None, set[int]]:
    """Return job and rowguid of the table rows that may have the key of an added or removed row.

    The second value has the jobs whose tables only Spark can search.
    """
    import pyarrow.compute as pc

    net = net.filter(pc.not_equal(net[EXISTED], net[EXISTS]))
    found = []
    refused = set()
    for number in _values(net, JOB):
        job, feed = jobs[number], feeds[number]
        article, is_guid = job.article, job.article.rowguid_column is not None
        rows = net.filter(pc.equal(net[JOB], number))
        first = (
            feed.rows[ROW]
            .combine_chunks()
            .field(article.identity_fields[0])
            .take(rows[AFTER].combine_chunks())
        )
        try:
            keys = rows_with_keys(
                feed.table, article.identity, pc.utf8_lower(first) if is_guid else first, is_guid=is_guid
            )
        except NeedsSparkError as error:
            choice.fall_back(job.window.table, error)
            refused.add(number)
            continue
        image = image_of(feed.table, article.identity)
        frame = frame_of_images(spark, as_images(keys, article.identity), image)
        guid = rowguid_of_image(ROW, image, image.names, existing=is_guid)
        found.append(frame.select(F.lit(number).alias(JOB), guid.alias(ROWGUID)))
    return (reduce(DataFrame.unionByName, found) if found else None), refused


def _article(
    spark: SparkSession, job: CaptureJob, feed: _Feed, tracked: "pa.Table | None", net: "pa.Table"
) -> CapturedArticle:
    """Return the new changes of an article; `tracked` and `net` are its rows."""
    import pyarrow.compute as pc

    if tracked is None or not tracked.num_rows:
        return CapturedArticle(job.window, None, None)
    values = feed.rows[ROW].combine_chunks().take(tracked[ROW].combine_chunks())
    place = tracked.schema.get_field_index(ROW)
    rows = tracked.set_column(place, ROW, values).select(list(CHANGE_COLUMNS))
    images = _images(net, feed) if job.with_images else None
    deletes = pc.sum(tracked[DELETED]).as_py()
    inserts = pc.sum(tracked[_IS_INSERT]).as_py()
    return CapturedArticle(
        job.window,
        frame_of_images(spark, rows, feed.image),
        replace(job.generation, changecount=job.generation.changecount + rows.num_rows),
        inserts,
        rows.num_rows - inserts - deletes,
        deletes,
        images=None if images is None else frame_of_images(spark, images, feed.image),
        few=rows,
        few_images=images,
    )


def _images(net: "pa.Table", feed: _Feed) -> "pa.Table":
    """Return the images before and after of an article's net changes; NULL if the row does not exist."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = feed.rows[ROW].combine_chunks()
    found = {ROWGUID: net[ROWGUID]}
    for image, is_there in ((BEFORE, EXISTED), (AFTER, EXISTS)):
        place = pc.if_else(net[is_there], net[image], pa.scalar(None, pa.int32()))
        found[image] = rows.take(place.combine_chunks())
    return pa.table(found)

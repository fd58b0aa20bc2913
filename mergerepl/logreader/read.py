"""Read the sources of a plan: each reading once, as the changes of its commits, kept in memory until the cycle ends."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from mergerepl.delta.engine_choice import NeedsSparkError, require_few
from mergerepl.delta.feed.column_changes import added_fields
from mergerepl.delta.feed.commit_changes import (
    KeptEvents,
    as_feed,
    commit_changes,
    feed_here,
    keep_events,
    read_segment,
)
from mergerepl.delta.feed.net_changes import CHANGE_TYPE, COMMIT_VERSION, RowShape
from mergerepl.delta.feed.window import Segment
from mergerepl.delta.small_writer import rows_problem
from mergerepl.delta.tables import open_table, read_version
from mergerepl.delta.types import ddl_of
from mergerepl.frames import is_in_process
from mergerepl.logreader.consumer import STOP, UNUSABLE, PauseSource, ReadRows
from mergerepl.logreader.plan import Reading, SourcePlan
from mergerepl.logreader.positions import RESUME
from mergerepl.rows.nested import in_shape
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import cause_of, gone_reason, unopened_file
from mergerepl.spark.in_memory import in_one_task, release
from mergerepl.spark.session import require_utc
from mergerepl.store.location import Location

log = logging.getLogger(__name__)

TYPE_CHANGED = 22976

_FILE = re.compile(r"reading file (?:file:)?(\S+?)\.?(?:\s|$)")
_OF_A_STORE = re.compile(
    r"\bjava\.net\.|AccessDeniedException|fs\.s3a\.AWS\w*Exception|SdkClientException|NoAuthWithAWSException"
)
"""A store that does not answer, or refuses the credentials: its files may be read later."""

_NEWER_PROTOCOL = ("DELTA_UNSUPPORTED_FEATURES_FOR_READ", "DELTA_INVALID_PROTOCOL_VERSION")


@dataclass
class ReadSource:
    """The readings of a source. `readings` may differ from the planned ones if the feed was missing.

    `changes`: how many rows changed, counted once for each commit.
    """

    readings: tuple[Reading, ...]
    rows: list[ReadRows]
    kept: list[DataFrame] = field(default_factory=list)
    changes: int = 0

    def release(self) -> None:
        """Release the memory."""
        for frame in self.kept:
            release(frame)


def require_in_process(root: Location, sources: Iterable[SourcePlan]) -> None:
    """Check that this process may read the changes of some sources as Spark does.

    Raises: NeedsSparkError.
    """
    rows, values = 0, 0
    for source in sources:
        path = root / source.path
        if source.columns:
            raise NeedsSparkError("its columns changed", path)
        if source.readings and not source.key:
            # Its rows are told apart by a hash of Spark's texts.
            raise NeedsSparkError("it has no key", path)
        for reading in source.readings:
            if reading.compared is not None or not reading.is_one_metadata:
                raise NeedsSparkError("versions are compared, or its metadata changed", path)
            # A commit that does not count its rows is checked when it was read.
            rows += reading.most_rows or 0
            values += (reading.most_rows or 0) * len(reading.fields)
            table = open_table(path, reading.through_version_inclusive)
            if (problem := rows_problem(table)) is not None:
                raise NeedsSparkError(problem, path)
            if nested := [each["name"] for each in reading.fields if not isinstance(each["type"], str)]:
                raise NeedsSparkError(f"column '{nested[0]}' is nested", path)
    require_few(rows, values)


def require_few_read(sources: Iterable[ReadSource]) -> None:
    """Check that this process may go on with what it read: a commit that replaces files need not count its rows.

    Raises: NeedsSparkError.
    """
    if is_in_process():
        counts = [(each.changes, len(each.readings[-1].fields)) for each in sources if each.readings]
        require_few(sum(rows for rows, _ in counts), sum(rows * columns for rows, columns in counts))


def read_source(
    spark: SparkSession, root: Location, source: SourcePlan, *, on_gap: str, is_decided: bool = False
) -> ReadSource:
    """Read a source. Without a feed, versions are compared, unless a gap stops the source, or the cycle is decided.

    In process (`require_in_process`) `spark` is not used.

    Raises: PauseSource if its changes cannot be determined; EngineError if the session would read timestamp partition
        columns otherwise.
    """
    found = ReadSource((), [])
    path = root / source.path
    try:
        for reading in source.readings:
            if not is_in_process():
                require_utc(spark, source.path, path, reading.timestamp_partitions)
            read, events = _read(spark, path, source, reading, on_gap=on_gap, is_decided=is_decided)
            found.kept.append(events.kept)
            found.changes += events.groups
            rows = commit_changes(replace(events, kept=in_one_task(events.kept, read.most_rows)))
            found.rows.append(ReadRows(read, rows, events.groups))
    except BaseException:
        found.release()
        raise
    return replace(found, readings=tuple(each.reading for each in found.rows))


def _read(
    spark: SparkSession,
    path: Location,
    source: SourcePlan,
    reading: Reading,
    *,
    on_gap: str,
    is_decided: bool,
) -> tuple[Reading, KeptEvents]:
    shape = _shape(source, reading)
    why = reading.compared
    if why is None:
        try:
            events = _events_of_feed(spark, path, reading, shape)
            if events is not None and (is_decided or not events.half_updates):
                return reading, events
            if events is not None:
                release(events.kept)
                by_files = tuple(sorted({*reading.by_files, *events.half_updates}))
                reading = replace(reading, by_files=by_files, most_rows=None)
                events = _events_of_feed(spark, path, reading, shape)
                if events is not None:
                    return reading, events
            why = "its feed may hold other values than were written"
        except Exception as error:
            why = _unreadable(error)
            if why is None:
                raise
    if reading.is_gap or reading.compared is None:
        if on_gap == STOP or (is_decided and reading.compared is None):
            raise PauseSource(UNUSABLE, _gap_text(source, reading, why, ""))
        log.warning(
            "%s: %s; comparing versions %d and %d instead",
            *(path, why, reading.from_version_inclusive - 1, reading.through_version_inclusive),
        )
    last = reading.through_version_inclusive
    compared = replace(reading, compared=why, versions=(last,), by_files=(), by_keys=(), most_rows=None)
    try:
        return compared, _events_of_versions(spark, path, compared, shape)
    except Exception as error:
        gone = _unreadable(error)
        if gone is None:
            raise
        raise PauseSource(UNUSABLE, _gap_text(source, reading, why, gone)) from error


def _unreadable(error: Exception) -> str | None:
    """Return why a table cannot be read anywhere; None for an error of this machine."""
    if (gone := gone_reason(error)) is not None:
        return gone
    text = str(error)
    if "blockmgr-" in text or unopened_file(error) is not None:
        return None
    if any(code in text for code in _NEWER_PROTOCOL):
        return "it has a feature of Delta that this version cannot read"
    if "FAILED_READ_FILE" not in text or _OF_A_STORE.search(text):
        return None
    damaged = _FILE.search(text)
    return f"its file {damaged[1]} is damaged" if damaged else f"a file of it is damaged: {cause_of(error)}"


def _shape(source: SourcePlan, reading: Reading) -> RowShape:
    key = tuple(source.name_at(name, reading.through_version_inclusive) for name in source.key)
    missing = [name for name in key if name not in reading.columns]
    if missing:
        raise PauseSource(
            UNUSABLE,
            f"Table '{source.path}': key column '{missing[0]}' was dropped. Its capture is paused; other tables go on. "
            "Disable its capture instances and enable it again with another key.",
        )
    return RowShape(reading.columns, key)


def _gap_text(source: SourcePlan, reading: Reading, why: str, gone: str) -> str:
    versions = f"versions {reading.from_version_inclusive} to {reading.through_version_inclusive}"
    also = f"; the versions around them cannot be compared either: {gone}" if gone else ""
    return (
        f"Table '{source.path}': the changes of {versions} cannot be read: {why}{also}. Its capture is paused; other "
        f"tables go on. Put back what is missing, then run {RESUME}; or run the first with --restart, after which "
        "consumers take a snapshot" + (", or with --compare." if not gone else ".")
    )


def _events_of_feed(
    spark: SparkSession, path: Location, reading: Reading, shape: RowShape
) -> KeptEvents | None:
    segment = Segment(
        reading.from_version_inclusive,
        reading.through_version_inclusive,
        reading.left_out,
        reading.by_files,
        reading.is_one_metadata,
        reading.by_keys,
        shape.identity,
    )
    if is_in_process():
        table = open_table(path, reading.through_version_inclusive)
        here = feed_here(table, reading.columns, reading.versions, segment, shape.identity)
        return keep_events(here, shape, rows=reading.most_rows)
    feed = read_segment(spark, path, segment)
    if feed is None:
        return None
    names = [*(quote(name) for name in reading.columns), CHANGE_TYPE, COMMIT_VERSION]
    rows = in_one_task(feed.select(*names), reading.most_rows)
    return keep_events(rows, shape, rows=reading.most_rows)


def _events_of_versions(spark: SparkSession, path: Location, reading: Reading, shape: RowShape) -> KeptEvents:
    before_version, after_version = reading.from_version_inclusive - 1, reading.through_version_inclusive
    after = read_version(spark, path, after_version).select(*(quote(name) for name in reading.columns))
    try:
        before = rows_before(spark, path, before_version, reading)
    except AnalysisException as error:
        raise PauseSource(
            TYPE_CHANGED,
            f"Table '{path.name}': versions {before_version} and {after_version} cannot be compared, since the type of a "
            f"column changed between them ({str(error).splitlines()[0]}). Its capture is paused; other tables go on. Run "
            "`mergerepl resume` with --restart, after which consumers take a snapshot.",
        ) from error
    return keep_events(as_feed(before, after, after_version), shape)


def rows_before(spark: SparkSession, path: Location, version: int, reading: Reading) -> DataFrame:
    """Return the rows of an earlier version under the columns of a reading; missing values are NULL."""
    rows = read_version(spark, path, version)
    types = {each["name"]: each["type"] for each in open_table(path, version).metadata.fields}

    def value(stated: Mapping[str, Any], before: str | None) -> Column:
        type_ = ddl_of(stated["type"])
        if before is None:
            return F.lit(None).cast(type_)
        column = F.col(quote(before))
        fields = added_fields(types[before], stated["type"], "")
        if fields is None:
            return column.try_cast(type_)
        is_same = ddl_of(types[before]) == type_
        return column if is_same else in_shape(column, rows.schema[before].dataType, DataType.fromDDL(type_))

    pairs = zip(reading.fields, reading.former, strict=True)
    return rows.select(*(value(stated, before).alias(stated["name"]) for stated, before in pairs))


def counts_of(rows: Sequence[ReadRows]) -> int | None:
    """Return the number of changed rows at most; None if unknown."""
    counts = [each.reading.most_rows for each in rows]
    return None if None in counts else sum(count or 0 for count in counts)

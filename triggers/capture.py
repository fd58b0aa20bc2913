"""Capture of one article: users' changes of its rows become rows of contents and tombstone.

Four steps, each settled before the next one: read the feed, net changes, settle doubtful keys, check keys. Then the
insert, update and delete triggers (`tracked_rows`). Merge session step: capture. Read-only jobs on the given frames: no
table is opened or written, no session is involved.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from mergerepl.changes import ROWGUID
from mergerepl.delta.feed.net_changes import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    DUPLICATED,
    EXISTED,
    EXISTS,
    HALF_UPDATES,
    RowShape,
    compared_versions,
    counts,
    decided,
    has_null_key,
    net_changes,
)
from mergerepl.errors import CaptureError, begin_again
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import (
    differs_from_expression,
    identity_value,
    image_type,
    rowguid_of_image,
    with_readable,
)
from mergerepl.rows.key_bounds import KeyBounds, bound_measures, bounds_found
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.in_memory import (
    are_few,
    broadcast_if_few,
    in_one_task,
    is_for_one_task,
    keep_for_joins,
    keep_in_memory,
    release,
    released_on_error,
)
from triggers.errors import DuplicateKeyError, FeedGapError, NullKeyError
from triggers.tracked_rows import IS_KNOWN, Origin, tracked_rows
from triggers.window import CaptureWindow

if TYPE_CHECKING:
    from mergerepl.replica.runs import RecentRows

log = logging.getLogger(__name__)

_NAMED_KEYS = 5

_BOUND = "bound_"


@dataclass(frozen=True)
class TableReader:
    """Returns the frames that capture of one article reads.

    Args:
        feed: The change feed of the window's segments; None where Delta cannot give it (see `commit_changes.read_segment`).
        rows_at: All rows of a version.
        with_keys: The identity columns of the rows at the window's end that may have the keys of some rows (given a frame
            with the columns k0, …, and the bounds of these keys); others may be among them.
        known: KNOWN_COLUMNS of some rows in contents and tombstone (given a frame of rowguids and their number); None if
            both tables lack all of them.
        recent: The metadata in their newest runs, for any rows, where that costs less than looking the rows up; else None.
    """

    feed: Callable[[], DataFrame | None]
    rows_at: Callable[[int], DataFrame]
    with_keys: Callable[[DataFrame, KeyBounds], DataFrame]
    known: Callable[[DataFrame, int], DataFrame | None]
    recent: Callable[[int], "RecentRows | None"] = lambda rows: None


@dataclass(frozen=True)
class CapturedRows:
    """The captured rows of an article (CHANGES columns), readable until `in_memory` is released.

    `images` (rowguid, before, after; NULL: no row) are set if `capture` was called `with_images`.
    """

    rows: DataFrame
    in_memory: Sequence[DataFrame]
    inserts: int
    updates: int
    deletes: int
    images: DataFrame | None = None


def capture(
    window: CaptureWindow, table: TableReader, origin: Origin, *, with_images: bool = False
) -> CapturedRows | None:
    """Return the new changes of one article; None if nothing changed.

    `with_images`: return also the rows before the changes, which the filters of a publication need.

    Raises: NullKeyError, DuplicateKeyError naming keys; FeedGapError if both the feed and the old version are gone;
        CaptureError if a generated column has values that this session computes otherwise.
    """
    net = captured_net(window, table)
    if net.changes == 0:
        release(net.kept)
        return None
    in_memory = [net.kept]
    with released_on_error(net.kept):
        if is_for_one_task(net.changes):
            known = table.known(net.rows.select(ROWGUID), net.changes)
            rows = tracked_rows(in_one_task(net.rows, net.changes), known, window.article, origin)
            if known is not None:
                # The first reader computes them, in a separate job.
                rows = keep_in_memory(rows)
                in_memory.append(rows)
        else:
            # Their former images would be shuffled with them.
            rows, kept = _many_rows(net, table, window.article, replace(origin, keeps_base=False))
            if kept is not None:
                in_memory = [kept, net.kept] if with_images else [kept]
                if not with_images:
                    release(net.kept)
    images = None
    if with_images:
        images = net.rows.select(
            ROWGUID,
            F.when(F.col(EXISTED), F.col(BEFORE)).alias(BEFORE),
            F.when(F.col(EXISTS), F.col(AFTER)).alias(AFTER),
        )
    updates = net.changes - net.inserts - net.deletes
    return CapturedRows(rows, in_memory, net.inserts, updates, net.deletes, images)


def _many_rows(
    net: "NetRows", table: TableReader, article: PublishedArticle, origin: Origin
) -> tuple[DataFrame, DataFrame | None]:
    """Return CAPTURED of many net changes, and the frame that keeps them in memory (None without known metadata)."""

    def tracked(known: DataFrame | None) -> DataFrame:
        if known is not None and not are_few(net.changes):
            # The session's other joins of these rows need them partitioned and sorted, too.
            known = known.hint("merge")
        return tracked_rows(net.rows, known, article, origin, is_written_out=True, marks_known=is_recent)

    def kept(rows: DataFrame) -> DataFrame:
        return keep_in_memory(rows, now=True) if are_few(net.changes) else keep_for_joins(rows)

    recent = table.recent(net.changes)
    is_recent = recent is not None and recent.older is not None
    known = recent.rows if recent is not None else table.known(net.rows.select(ROWGUID), net.changes)
    rows = tracked(known)
    if known is None:
        return rows, None
    rows = kept(rows)
    if recent is None or recent.older is None:
        return rows, rows
    with released_on_error(rows):
        others = rows.where(~F.col(IS_KNOWN)).select(ROWGUID)
        count = others.count()
        older = recent.older(others, count) if count else None
        is_complete = older is None or not older.count()
    if older is not None and not is_complete:
        release(rows)
        rows = kept(tracked(recent.rows.unionByName(older)))
    return rows.select(*(name for name in rows.columns if name != IS_KNOWN)), rows


@dataclass(frozen=True)
class NetRows:
    """Net changes with their rowguids, kept in memory, with their number by kind.

    NULL keys and keys in doubt have no kind. `bounds` are those of inserted and deleted keys. `gap` is why whole versions
    were compared; None if the net changes come from the feed.
    """

    kept: DataFrame
    rows: DataFrame
    gap: str | None
    bounds: KeyBounds
    changes: int
    inserts: int
    deletes: int
    doubtful: int
    duplicates: int
    nulls: int
    half_updates: int


def captured_net(window: CaptureWindow, table: TableReader) -> NetRows:
    """Return the net changes of a window, settled and checked."""
    net = _net_rows(window, table)
    with released_on_error(net.kept):
        settled, duplicates = _settled(window, table, net)
    with released_on_error(settled.kept):
        if settled.nulls:
            settled = _without_null_keys(window, settled)
        _check_keys(window, settled, duplicates)
        _check_generated(window, settled)
    return settled


def _net_rows(window: CaptureWindow, table: TableReader) -> NetRows:
    """Return the net changes by the feed; by the versions around the window where the feed has a gap.

    Raises: FeedGapError.
    """
    shape = shape_of(window.article)
    gap = window.gap
    if gap is None:
        try:
            feed = table.feed()
            if feed is None:
                gap = "its feed may hold other values than delta-rs wrote"
            else:
                net = _kept(window, net_changes(feed, shape), gap=None)
                if not net.half_updates:
                    return net
                release(net.kept)
                gap = "updates without what the rows were before"
        except Exception as error:
            gap = gone_reason(error)
            if gap is None:
                raise
    level = logging.INFO if window.is_gap_meant else logging.WARNING
    log.log(level, "%s: %s; comparing versions instead", window.table, gap)
    with _gap_if_gone(window, gap):
        before, after = (
            table.rows_at(version)
            for version in (window.from_version_exclusive, window.through_version_inclusive)
        )
        return _kept(window, compared_versions(before, after, shape), gap=gap)


@contextmanager
def _gap_if_gone(window: CaptureWindow, gap: str | None = None) -> Iterator[None]:
    """Raise FeedGapError for Spark's error that a version is gone; `gap` is why it is needed."""
    try:
        yield
    except Exception as error:
        reason = gone_reason(error)
        if reason is None:
            # For example a full disk or memory: the version still exists, and the next run may read it.
            raise
        since, name = window.from_version_exclusive, window.article.name
        raise FeedGapError(
            f"Article '{name}': the changes of '{window.table}' since version {since} cannot be computed any more: "
            f"{gap or reason}, and that version cannot be read either. Nothing was changed. Restore the table from a copy "
            f"that still has these versions, or {begin_again()}.",
            article=name,
            table=str(window.table),
        ) from error


def shape_of(article: PublishedArticle) -> RowShape:
    """Return the columns of an article's images, and those that identify its rows."""
    return RowShape(article.columns, article.identity, article.rowguid_column is not None, article.fields)


def _kept(window: CaptureWindow, changed: DataFrame, *, gap: str | None) -> NetRows:
    article, shape = window.article, shape_of(window.article)
    ended = {article.field_of(name) for name in window.ended}
    image = StructType([each for each in image_type(changed, AFTER) if each.name not in ended])
    guid = rowguid_of_image(AFTER, image, shape.identity_fields, existing=shape.is_guid)
    kept = keep_in_memory(changed.select(guid.alias(ROWGUID), "*"))
    with released_on_error(kept):
        found = in_one_task(kept, window.changed_rows).agg(*_counted(article, image)).collect()[0].asDict()
    number = {name: int(value or 0) for name, value in found.items() if not name.startswith(_BOUND)}
    rows = kept.where(counts(image)) if number["idle"] else kept
    del number["idle"]
    return NetRows(kept, rows, gap, bounds_found(article, found, prefix=_BOUND), **number)


@cached
def _counted(article: PublishedArticle, image: StructType) -> tuple[Column, ...]:
    is_null = has_null_key(shape_of(article))
    is_counted = counts(image) & ~is_null

    def count(condition: Column) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False)))

    def came_or_went(field: str) -> Column:
        """Return a field of the rows that `_rows_in_table` looks up, NULL for others."""
        return F.when(is_counted & _came_or_went(), F.col(f"{AFTER}.{field}"))

    return (
        count(is_counted).alias("changes"),
        count(is_counted & _is_insert()).alias("inserts"),
        count(is_counted & ~F.col(EXISTS)).alias("deletes"),
        count(F.col(DOUBTFUL)).alias("doubtful"),
        count(is_counted & F.col(DUPLICATED)).alias("duplicates"),
        count(is_null).alias("nulls"),
        count(~counts(image)).alias("idle"),
        F.sum(HALF_UPDATES).alias("half_updates"),
        *(
            measure.alias(name)
            for name, measure in bound_measures(article, came_or_went, prefix=_BOUND).items()
        ),
    )


def _is_insert() -> Column:
    return F.col(EXISTS) & ~F.col(EXISTED)


def _came_or_went() -> Column:
    return (_is_insert() | ~F.col(EXISTS)) & ~F.col(DOUBTFUL)


def _settled(window: CaptureWindow, table: TableReader, net: NetRows) -> tuple[NetRows, list[str]]:
    """Return net changes without doubtful keys, and some keys that several rows have.

    The feed alone shows neither an earlier row of an inserted key nor the deleted one among a key's rows. So inserted and
    deleted keys are looked up in the table; keys in doubt are decided by the versions before and after the changes. Where
    whole versions were compared, the rows of each key have been counted.

    Raises: FeedGapError.
    """
    if net.gap is not None:
        return net, []
    with _gap_if_gone(window):
        duplicates, is_left = _rows_in_table(window, table, net)
        if not (net.doubtful or is_left):
            return net, duplicates
        # One of several rows of a key was deleted. That is rare, so looking up all deletes is acceptable.
        is_doubtful = F.col(DOUBTFUL) | (~F.col(EXISTS) if is_left else F.lit(False))
        before, after = (
            table.rows_at(version) for version in (window.first_change - 1, window.through_version_inclusive)
        )
        in_doubt = net.rows.withColumn(DOUBTFUL, is_doubtful)
        settled = _kept(window, decided(in_doubt, before, after, shape_of(window.article)), gap=None)
        release(net.kept)
        return settled, duplicates


def _rows_in_table(window: CaptureWindow, table: TableReader, net: NetRows) -> tuple[list[str], bool]:
    """Return some inserted keys that have several rows in the table, and whether a deleted key still has one."""
    article = window.article
    if net.inserts + net.deletes == 0:
        return [], False
    existing = article.rowguid_column is not None
    # Generated names: a user's column may have any name used in between.
    keys = [f"k{i}" for i, _ in enumerate(article.identity)]

    def keyed(columns: Sequence[str]) -> list[Column]:
        values = [identity_value(F.col(column), existing=existing) for column in columns]
        return [value.alias(key) for key, value in zip(keys, values, strict=True)]

    # An inserted key may have one row; a deleted one, whose AFTER is the former row, must have none.
    came_or_went = net.rows.where(_came_or_went()).select(
        *keyed([f"{AFTER}.{field}" for field in article.identity_fields]),
        F.col(EXISTS).cast("int").alias("most"),
    )
    rows = table.with_keys(came_or_went, net.bounds)
    looked_up = broadcast_if_few(came_or_went, net.inserts + net.deletes)
    there = rows.select(*keyed([quote(name) for name in article.identity])).join(looked_up, on=keys)
    by_key = there.groupBy(*keys, "most").agg(F.count(F.lit(1)).alias("rows"))
    several = by_key.where(F.col("rows") > F.col("most")).orderBy("most").limit(_NAMED_KEYS)
    found = with_readable(several, keys).collect()
    duplicates = [_key_text([row[key] for key in keys], article) for row in found if row["most"]]
    return duplicates, any(not row["most"] for row in found)


def _without_null_keys(window: CaptureWindow, net: NetRows) -> NetRows:
    """Return a late window's changes without the rows that have NULL in their key, and log those.

    Raises: NullKeyError if the window is not late.
    """
    article = window.article
    if not window.is_late:
        raise NullKeyError(
            f"Article '{article.name}': {net.nulls} new rows of '{window.table}' have NULL in their key "
            f"({', '.join(article.identity)}). A row without a key cannot be replicated. Nothing was captured. Give them "
            "keys or delete them, then run again.",
            article=article.name,
            table=str(window.table),
        )
    log.warning("%s: rows with NULL in their key are not replicated", window.table)
    return replace(net, rows=net.rows.where(~has_null_key(shape_of(article))))


def _check_keys(window: CaptureWindow, net: NetRows, duplicates: Sequence[str]) -> None:
    """Refuse keys that several rows have; a late window's rows stay, so those keys are only logged.

    Raises: DuplicateKeyError.
    """
    article = window.article
    named = list(duplicates)
    if net.duplicates:
        parts = (F.coalesce(f"{AFTER}.{f}", f"{BEFORE}.{f}").alias(f) for f in article.identity_fields)
        keys = with_readable(
            net.rows.where(DUPLICATED).select(*parts).limit(_NAMED_KEYS), article.identity_fields
        )
        named += [_key_text(row, article) for row in keys.collect()]
    named = list(dict.fromkeys(named))[:_NAMED_KEYS]
    if not named:
        return
    found = (
        f"Article '{article.name}': several rows of '{window.table}' have one key ({', '.join(article.identity)}): "
        f"{'; '.join(named)}."
    )
    if window.is_late:
        log.warning(
            "%s They came in during the session; one of them is replicated. Remove the others.", found
        )
        return
    raise DuplicateKeyError(
        f"{found} Nothing was captured. Remove the duplicates, then run again.",
        article=article.name,
        table=str(window.table),
        keys=", ".join(named),
    )


def _key_text(values: Sequence[object], article: PublishedArticle) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(article.identity, values, strict=True))


def _check_generated(window: CaptureWindow, net: NetRows) -> None:
    """Refuse values of generated columns that this session computes otherwise; a late window's are logged.

    Each replica computes them itself, so they would differ. The date or the hour of a time depends on the time zone.

    Raises: CaptureError.
    """
    if not window.generated_columns or not net.changes:
        return
    article = window.article
    rows = net.rows.where(EXISTS).select(
        *(
            F.col(f"{AFTER}.{field}").alias(name)
            for name, field in zip(article.columns, article.fields, strict=True)
        )
    )
    measures = [F.count_if(differs) for differs in differs_from_expression(window.generated_columns).values()]
    others = dict(zip(window.generated_columns, rows.agg(*measures).collect()[0], strict=True))
    name = next((name for name, count in others.items() if count), None)
    if name is None:
        return
    zone = rows.sparkSession.conf.get("spark.sql.session.timeZone")
    found = (
        f"Article '{article.name}': {others[name]} changed rows of '{window.table}' have values of the generated column "
        f"'{name}' ({window.generated_columns[name]}) that a session with time zone {zone} computes differently, as the "
        "other replicas would."
    )
    if window.is_late:
        log.warning(
            "%s They came in during the session. Delete and insert them again in such a session.", found
        )
        return
    raise CaptureError(
        f"{found} Nothing was captured. Delete these rows and insert them again in a session with that time zone "
        "(spark.sql.session.timeZone), then run again. A Python program whose own session has the writers' time zone may "
        "synchronize them as they are.",
        article=article.name,
        table=str(window.table),
        column=name,
    )

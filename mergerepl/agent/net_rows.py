"""The net changes of a window, in memory and checked: whatever the feed does not tell, and keys that are no keys.

What the feed leaves open is looked up in the table's versions; what cannot be replicated is refused, or told where the
rows are in the session already.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.agent.feed_window import FeedWindow
from mergerepl.changes import ROWGUID
from mergerepl.delta.plain_files import read_columns
from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import gone_reason
from mergerepl.engine.in_memory import broadcast_if_few, keep_in_memory, let_go
from mergerepl.engine.made_once import made_once
from mergerepl.errors import CaptureError
from mergerepl.feed.read import read_feed
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import (
    identity_value,
    image_type,
    rowguid_of_image,
    unlike_generated,
    with_readable,
)
from mergerepl.rows.key_bounds import KeyBounds, bound_measures, bounds_found, within_bounds
from mergerepl.rows.sql import quote
from triggers.errors import DuplicateKeyError, FeedGapError, NullKeyError
from triggers.net_changes import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    DUPLICATED,
    EXISTED,
    EXISTS,
    HALF_UPDATES,
    compared_versions,
    decided,
    differing,
    has_null_key,
    is_change,
    net_changes,
    unlike_table,
    updated_rows,
)

log = logging.getLogger(__name__)

_NAMED_KEYS = 5

_BOUND = "bound_"


def materialised_net(spark: SparkSession, window: FeedWindow) -> tuple[DataFrame, dict[str, int]]:
    """Return the net changes, kept in memory, and their counts; compare versions where the feed has a gap.

    Returns: rowguid with the columns of `net_changes`; how many changes, inserts and deletes there are.

    Raises: NullKeyError, DuplicateKeyError naming keys; FeedGapError if neither the feed nor the old version is there;
        CaptureError if a generated column has values that this session computes otherwise.
    """
    if window.gap is not None:
        return _compared(spark, window)
    reason: str | None = "its feed may tell something else than delta-rs wrote"
    try:
        feed = _feed(spark, window, by_files=window.retold_versions)
        if feed is not None:
            return _checked(spark, window, net_changes(feed, window.article))
    except (PySparkException, Py4JJavaError) as error:
        reason = gone_reason(error)
        if reason is None:
            raise
    try:
        return _compared(spark, replace(window, gap=reason))
    except FeedGapError:
        told = _proved_true(spark, window) if window.retold_versions else None
        if told is None:
            raise
        return told


def _feed(spark: SparkSession, window: FeedWindow, *, by_files: Sequence[int]) -> DataFrame | None:
    first, last = window.user_commits[0].version, window.user_commits[-1].version
    return read_feed(
        spark,
        window.table,
        from_version_exclusive=first - 1,
        through_version_inclusive=last,
        own_versions=[version for version in window.own_versions if first < version < last],
        by_files=by_files,
        is_one_metadata=not any(first < version <= last for version in window.metadata_versions),
    )


def _proved_true(spark: SparkSession, window: FeedWindow) -> tuple[DataFrame, dict[str, int]] | None:
    """Return what `materialised_net` does where delta-rs took away the files that it updated.

    Its VACUUM leaves change files. They are believed if they tell of as many rows as were updated, and each row that they
    come to is in the table. None otherwise, or if they are gone, too.
    """
    article = window.article
    try:
        feed = _feed(spark, window, by_files=())
        if feed is None:
            return None
        updated = updated_rows(feed, window.retold_versions).collect()
        told = {row["version"]: str(row["rows"]) for row in updated}
        if any(
            commit.retells_rows and commit.metrics.get("num_updated_rows") != told.get(commit.version, "0")
            for commit in window.user_commits
        ):
            return None
        net, counts = _checked(spark, window, net_changes(feed, article))
        after = read_version(spark, window.table, window.through_version_inclusive)
        is_true = False
        try:
            is_true = unlike_table(net, after, article).isEmpty()
        finally:
            if not is_true:
                let_go(net)
        return (net, counts) if is_true else None
    except (PySparkException, Py4JJavaError) as error:
        if gone_reason(error) is None:
            raise
        return None


def _compared(spark: SparkSession, window: FeedWindow) -> tuple[DataFrame, dict[str, int]]:
    """Return what `materialised_net` does, from whole versions. Raises: FeedGapError if the old one is gone."""
    log.warning("%s: %s; comparing versions instead", window.table, window.gap)
    try:
        before = read_version(spark, window.table, window.from_version_exclusive)
        after = read_version(spark, window.table, window.through_version_inclusive)
        return _checked(spark, window, compared_versions(before, after, window.article))
    except (PySparkException, Py4JJavaError) as error:
        if gone_reason(error) is None:
            # A full disk or memory, say: the version is there, and the next run may read it.
            raise
        raise FeedGapError(
            f"Article '{window.article.name}': the changes of '{window.table}' since version "
            f"{window.from_version_exclusive} cannot be told any more: {window.gap}, and that version cannot be read "
            "either. Nothing was changed. Initialise this replica anew, or restore the table from a copy that still "
            "has these versions.",
            article=window.article.name,
            table=str(window.table),
        ) from error


def _checked(spark: SparkSession, window: FeedWindow, changed: DataFrame) -> tuple[DataFrame, dict[str, int]]:
    """Keep the net changes in memory, count them and refuse keys that do not identify one row."""
    article = window.article
    if ROWGUID not in changed.columns:
        existing = article.rowguid_column is not None
        guid = rowguid_of_image(AFTER, image_type(changed, AFTER), article.identity_fields, existing=existing)
        changed = changed.select(guid.alias(ROWGUID), "*")
    net = keep_in_memory(changed)
    is_result = False
    try:
        counts, bounds = _counts(net, article)
        if counts["half_updates"]:
            return _compared(spark, replace(window, gap="updates without what the rows were before"))
        if counts["idle"]:
            # First of all: what follows takes each row that is told for a change.
            return _checked(spark, window, differing(net.withColumn(HALF_UPDATES, F.lit(0))))
        if counts["doubtful"]:
            return _checked(spark, window, _decided(spark, window, net))
        if window.is_late and counts["nulls"]:
            # These rows are in the table already and the session must come to its end.
            log.warning("%s: rows with NULL in their key are not replicated", window.table)
            # Half an update is missing then where a key became NULL.
            keyed = changed.where(~has_null_key(article)).withColumn(HALF_UPDATES, F.lit(0))
            return _checked(spark, window, keyed)
        duplicates, still_there = _rows_in_table(spark, window, net, counts, bounds)
        if still_there:
            # One of several rows of a key went. Nobody does that often: all deletes may be looked up.
            in_doubt = net.withColumn(DOUBTFUL, ~F.col(EXISTS))
            return _checked(spark, window, _decided(spark, window, in_doubt))
        _refuse_keys(window, counts["nulls"], duplicates)
        if window.generated_columns:
            _refuse_generated(window, net)
        is_result = True
        return net, counts
    finally:
        if not is_result:
            let_go(net)


def _counts(net: DataFrame, article: PublishedArticle) -> tuple[dict[str, int], KeyBounds]:
    """Return how many rows there are of what kind, and between which keys `_rows_in_table` is to look."""
    found = net.agg(*_counted(article, image_type(net, BEFORE))).collect()[0].asDict()
    counts = {name: int(value or 0) for name, value in found.items() if not name.startswith(_BOUND)}
    return counts, bounds_found(article, found, prefix=_BOUND)


@made_once
def _counted(article: PublishedArticle, image: StructType) -> tuple[Column, ...]:
    def count(condition: Column) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False)))

    return (
        F.count(F.lit(1)).alias("changes"),
        count(_is_insert()).alias("inserts"),
        count(~F.col(EXISTS)).alias("deletes"),
        count(F.col(DOUBTFUL)).alias("doubtful"),
        count(F.col(DUPLICATED)).alias("duplicates"),
        count(has_null_key(article)).alias("nulls"),
        F.sum(HALF_UPDATES).alias("half_updates"),
        count((F.col(HALF_UPDATES) != 0) & ~is_change(image)).alias("idle"),
        *(
            measure.alias(name)
            for name, measure in bound_measures(article, _looked_up, prefix=_BOUND).items()
        ),
    )


def _looked_up(field: str) -> Column:
    """Return a field of the rows that `_rows_in_table` looks up, NULL for others."""
    return F.when(_is_insert() | ~F.col(EXISTS), F.col(f"{AFTER}.{field}"))


def _is_insert() -> Column:
    return F.col(EXISTS) & ~F.col(EXISTED)


def _refuse_keys(window: FeedWindow, nulls: int, duplicates: list[str]) -> None:
    """Refuse keys that are NULL or that several rows have; a late window's are there to stay, and only told.

    Raises: NullKeyError, DuplicateKeyError.
    """
    article = window.article
    if nulls:
        raise NullKeyError(
            f"Article '{article.name}': {nulls} new rows of '{window.table}' have NULL in their key "
            f"({', '.join(article.identity)}). A row without a key cannot be replicated. Nothing was "
            "captured. Give them keys or delete them, then run again.",
            article=article.name,
            table=str(window.table),
        )
    several = (
        f"Article '{article.name}': several rows of '{window.table}' have one key "
        f"({', '.join(article.identity)}): {'; '.join(duplicates)}."
    )
    if duplicates and window.is_late:
        log.warning(
            "%s They came in during the session; one of them is replicated. Remove the others.", several
        )
    elif duplicates:
        raise DuplicateKeyError(
            f"{several} Nothing was captured. Remove the duplicates, then run again.",
            article=article.name,
            table=str(window.table),
            keys=", ".join(duplicates),
        )


def _decided(spark: SparkSession, window: FeedWindow, net: DataFrame) -> DataFrame:
    """Return the net changes without doubtful ones: those keys are looked up before and after the users' commits."""
    first = window.user_commits[0].version
    before = read_version(spark, window.table, first - 1)
    after = read_version(spark, window.table, window.through_version_inclusive)
    return decided(net, before, after, window.article).withColumn(HALF_UPDATES, F.lit(0))


def _rows_in_table(
    spark: SparkSession, window: FeedWindow, net: DataFrame, counts: dict[str, int], bounds: KeyBounds
) -> tuple[list[str], bool]:
    """Return some keys that several rows have, and whether the table still has rows of keys told as deleted.

    The feed alone tells neither an insert of a key that was there nor which of a key's rows was deleted.
    """
    article = window.article
    if counts["duplicates"]:
        return _keys_of(net.where(DUPLICATED), article), False
    # Where whole versions were compared, the rows of each key have been counted.
    if window.gap is not None or counts["inserts"] + counts["deletes"] == 0:
        return [], False
    existing = article.rowguid_column is not None
    # Names of our own: a column of the user's may have any name that is used on the way.
    keys = [f"k{i}" for i, _ in enumerate(article.identity)]

    def keyed(columns: Sequence[str]) -> list[Column]:
        values = [identity_value(F.col(column), existing=existing) for column in columns]
        return [value.alias(key) for key, value in zip(keys, values, strict=True)]

    # A key told as inserted may have one row, a deleted one (whose AFTER is the row that was there) none.
    came_or_went = net.where(_is_insert() | ~F.col(EXISTS)).select(
        *keyed([f"{AFTER}.{field}" for field in article.identity_fields]),
        F.col(EXISTS).cast("int").alias("most"),
    )
    rows = read_columns(spark, window.table, window.through_version_inclusive, article.identity).where(
        within_bounds(article, bounds)
    )
    looked_up = broadcast_if_few(came_or_went, counts["inserts"] + counts["deletes"])
    there = rows.select(*keyed([quote(name) for name in article.identity])).join(looked_up, on=keys)
    by_key = there.groupBy(*keys, "most").agg(F.count(F.lit(1)).alias("rows"))
    several = by_key.where(F.col("rows") > F.col("most")).orderBy("most").limit(_NAMED_KEYS)
    found = with_readable(several, keys).collect()
    duplicates = [_key_text([row[key] for key in keys], article) for row in found if row["most"]]
    return duplicates, any(not row["most"] for row in found)


def _refuse_generated(window: FeedWindow, net: DataFrame) -> None:
    """Refuse values of generated columns that this session computes otherwise; a late window's are only told.

    Each replica computes them anew, so they would differ. What a time falls on (its date, its hour) is another thing in
    each time zone.

    Raises: CaptureError.
    """
    article = window.article
    rows = net.where(EXISTS).select(
        *(
            F.col(f"{AFTER}.{field}").alias(name)
            for name, field in zip(article.columns, article.fields, strict=True)
        )
    )
    counts = [F.count_if(unlike) for unlike in unlike_generated(window.generated_columns).values()]
    others = dict(zip(window.generated_columns, rows.agg(*counts).collect()[0], strict=True))
    name = next((name for name, count in others.items() if count), None)
    if name is None:
        return
    zone = net.sparkSession.conf.get("spark.sql.session.timeZone")
    told = (
        f"Article '{article.name}': {others[name]} changed rows of '{window.table}' have values of the generated column "
        f"'{name}' ({window.generated_columns[name]}) that come out otherwise in a session with time zone {zone}, and "
        "would at the other replicas."
    )
    if window.is_late:
        log.warning(
            "%s They came in during the session. Delete and insert them again in such a session.", told
        )
        return
    raise CaptureError(
        f"{told} Nothing was captured. Delete these rows and insert them again in a session with that time zone "
        "(spark.sql.session.timeZone), then run again. A Python program whose own session has the writers' time zone may "
        "synchronize them as they are.",
        article=article.name,
        table=str(window.table),
        column=name,
    )


def _keys_of(rows: DataFrame, article: PublishedArticle) -> list[str]:
    fields = article.identity_fields
    keys = rows.select(
        *(F.coalesce(f"{AFTER}.{field}", f"{BEFORE}.{field}").alias(field) for field in fields)
    )
    return [_key_text(row, article) for row in with_readable(keys.limit(_NAMED_KEYS), keys.columns).collect()]


def _key_text(values: Iterable[object], article: PublishedArticle) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(article.identity, values, strict=True))

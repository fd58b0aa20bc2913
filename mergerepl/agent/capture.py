"""Capture: the users' changes of a replica since the last time become rows of its contents and tombstones.

Two steps, so that `sync --dry-run` can do the first alone: `read_changes` computes (and keeps in memory) what
is new, `commit_changes` appends it. The commit point is MSmerge_replinfo: until it moves, appended runs do
not count, and a next capture removes them and starts from the same versions.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.agent.feed_window import FeedWindow
from mergerepl.apply.side import RUN_APP_ID, append_run, next_seq
from mergerepl.changes import CHANGE_COLUMNS, ROWGUID
from mergerepl.errors import CaptureError
from mergerepl.failpoints import failpoint
from mergerepl.model.article import PublishedArticle
from mergerepl.store import delta
from mergerepl.store.control import Row
from mergerepl.store.delta import Transaction
from mergerepl.store.deltalog import CommitMark
from mergerepl.store.images import (
    identity_value,
    image_type,
    rowguid_of_image,
    unlike_generated,
    with_readable,
)
from mergerepl.store.in_memory import Kept, broadcast_if_few, keep_in_memory, let_go
from mergerepl.store.plain_files import read_columns
from mergerepl.store.replica import Replica, ReplicaInfo
from mergerepl.store.runs import delete_runs_after, latest_of
from mergerepl.store.sql import quote
from mergerepl.systables.genhistory import GenStatus
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
    has_null_key,
    is_change,
    net_changes,
)
from triggers.tracked_rows import KNOWN_COLUMNS, Origin, tracked_rows

log = logging.getLogger(__name__)

_NAMED_KEYS = 5


@dataclass(frozen=True)
class CapturedArticle:
    """What is new in one article: `rows` (CHANGES columns), readable until `release`; None if nothing is new."""

    window: FeedWindow
    rows: DataFrame | None
    generation: Row | None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    in_memory: DataFrame | None = None

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.window.article

    @property
    def changes(self) -> int:
        """Changed rows."""
        return self.inserts + self.updates + self.deletes

    def release(self) -> None:
        """Let go of the memory."""
        if self.in_memory is not None:
            let_go(self.in_memory)


def read_changes(
    spark: SparkSession,
    replica: Replica,
    window: FeedWindow,
    info: ReplicaInfo,
    *,
    priority: float,
    generation: Row,
    through_seq_inclusive: int | None = None,
    writer: int | None = None,
    known_meanwhile: DataFrame | None = None,
) -> CapturedArticle:
    """Compute the net changes of a window as CHANGES rows of the given open generation.

    `known_meanwhile` (KNOWN_COLUMNS) is newer than what the runs tell of its rows.

    Raises: NullKeyError, DuplicateKeyError naming keys; FeedGapError if neither the feed nor the old version
    is there; CaptureError if a generated column has values that this session computes otherwise.
    """
    if not window.has_changes:
        return CapturedArticle(window, None, None)
    net, counts = _materialised_net(spark, window)
    if counts["changes"] == 0:
        let_go(net)
        return CapturedArticle(window, None, None)
    seq = info.last_seq if through_seq_inclusive is None else through_seq_inclusive
    origin = Origin(writer or info.nickname, priority, generation["generation"])
    lookup = Kept()
    try:
        known = None
        if seq > 0:
            known = latest_of(
                spark,
                replica.folder,
                window.article,
                net.select(ROWGUID),
                rows=counts["changes"],
                through_seq_inclusive=seq,
                columns=KNOWN_COLUMNS,
                kept=lookup,
            )
        if known_meanwhile is not None:
            newer = known_meanwhile.join(net.select(ROWGUID), on=ROWGUID, how="left_semi")
            if known is not None:
                newer = newer.unionByName(known.join(newer.select(ROWGUID), on=ROWGUID, how="left_anti"))
            known = newer
        rows = tracked_rows(net, known, window.article, origin).select(*CHANGE_COLUMNS)
        in_memory = net
        if known is not None:
            rows = in_memory = keep_in_memory(rows, now=True)
            let_go(net)
    except BaseException:
        let_go(net)
        raise
    finally:
        lookup.release()
    inserts, deletes = counts["inserts"], counts["deletes"]
    return CapturedArticle(
        window,
        rows,
        {**generation, "changecount": (generation["changecount"] or 0) + counts["changes"]},
        inserts,
        counts["changes"] - inserts - deletes,
        deletes,
        in_memory,
    )


def _materialised_net(spark: SparkSession, window: FeedWindow) -> tuple[DataFrame, dict[str, int]]:
    """Return the net changes, kept in memory, and their counts; compare versions where the feed has a gap."""
    if window.gap is None:
        first, last = window.user_commits[0].version, window.user_commits[-1].version
        try:
            feed = delta.read_feed(
                spark,
                window.table,
                from_version_exclusive=first - 1,
                through_version_inclusive=last,
                own_versions=[version for version in window.own_versions if first < version < last],
            )
            return _checked(spark, window, net_changes(feed, window.article))
        except (PySparkException, Py4JJavaError) as error:
            reason = feed_gap_reason(error)
            if reason is None:
                raise
            window = replace(window, gap=reason)
    return _compared(spark, window)


def _compared(spark: SparkSession, window: FeedWindow) -> tuple[DataFrame, dict[str, int]]:
    """Return what `_materialised_net` does, from whole versions. Raises: FeedGapError if the old one is gone."""
    log.warning("%s: %s; comparing versions instead", window.table, window.gap)
    try:
        before = delta.read_version(spark, window.table, window.from_version_exclusive)
        after = delta.read_version(spark, window.table, window.through_version_inclusive)
        return _checked(spark, window, compared_versions(before, after, window.article))
    except (PySparkException, Py4JJavaError) as error:
        if feed_gap_reason(error) is None:
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


def feed_gap_reason(error: Exception) -> str | None:
    """Return what is missing if an error says that the feed (or a version) is gone, None for any other error."""
    text = str(error)
    reasons = {
        "DELTA_MISSING_CHANGE_DATA": "Change Data Feed was off for some of these versions",
        "FILE_NOT_EXIST": "change files were removed by VACUUM",
        "DELTA_TRUNCATED_TRANSACTION_LOG": "versions are gone from its log",
        "DELTA_VERSION_NOT_CONTIGUOUS": "versions are gone from its log",
        "DELTA_VERSIONS_NOT_CONTIGUOUS": "versions are gone from its log",
        "DELTA_VERSION_NOT_FOUND": "versions are gone from its log",
        "DELTA_LOG_FILE_NOT_FOUND": "versions are gone from its log",
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE": "its schema changed in between",
        "FileNotFoundException": "change files were removed by VACUUM",
    }
    return next((reason for code, reason in reasons.items() if code in text), None)


def _checked(spark: SparkSession, window: FeedWindow, changed: DataFrame) -> tuple[DataFrame, dict[str, int]]:
    """Keep the net changes in memory, count them and refuse keys that do not identify one row."""
    article = window.article
    image = image_type(changed, AFTER)
    existing = article.rowguid_column is not None
    guid = rowguid_of_image(AFTER, image, article.identity_fields, existing=existing)
    net = keep_in_memory(changed.select(guid.alias(ROWGUID), "*"))
    is_result = False
    try:
        counts = _counts(net, article)
        if counts["half_updates"]:
            return _compared(spark, replace(window, gap="updates without what the rows were before"))
        if counts["doubtful"]:
            return _checked(spark, window, _decided(spark, window, net))
        if counts["idle"]:
            return _checked(spark, window, net.where(is_change(net)).withColumn(HALF_UPDATES, F.lit(0)))
        if window.is_late and counts["nulls"]:
            # These rows are in the table already and the session must come to its end.
            log.warning("%s: rows with NULL in their key are not replicated", window.table)
            return _checked(spark, window, changed.where(~has_null_key(article)))
        duplicates, still_there = _rows_in_table(spark, window, net, counts)
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


def _counts(net: DataFrame, article: PublishedArticle) -> dict[str, int]:
    def count(condition: Column) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False)))

    found = net.agg(
        F.count(F.lit(1)).alias("changes"),
        count(_is_insert()).alias("inserts"),
        count(~F.col(EXISTS)).alias("deletes"),
        count(F.col(DOUBTFUL)).alias("doubtful"),
        count(F.col(DUPLICATED)).alias("duplicates"),
        count(has_null_key(article)).alias("nulls"),
        F.sum(HALF_UPDATES).alias("half_updates"),
        count((F.col(HALF_UPDATES) != 0) & ~is_change(net)).alias("idle"),
    ).collect()[0]
    return {name: int(found[name] or 0) for name in found.asDict()}


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
    before = delta.read_version(spark, window.table, first - 1)
    after = delta.read_version(spark, window.table, window.through_version_inclusive)
    return decided(net, before, after, window.article).withColumn(HALF_UPDATES, F.lit(0))


def _rows_in_table(
    spark: SparkSession, window: FeedWindow, net: DataFrame, counts: dict[str, int]
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
    rows = read_columns(spark, window.table, window.through_version_inclusive, article.identity)
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


def last_number(genhistory: Sequence[Row], info: ReplicaInfo) -> int:
    """Return the highest generation number given out, also by a capture that died before its commit point."""
    return max(info.last_generation, *(int(row["generation"]) for row in genhistory), 0)


def open_generations(
    genhistory: Sequence[Row], windows: Sequence[FeedWindow], info: ReplicaInfo
) -> list[Row]:
    """Return the open generation that the changes of each window join; new ones are numbered in turn."""
    number = last_number(genhistory, info)
    found = []
    for window in windows:
        number += window.has_changes
        found.append(open_generation(genhistory, window.article, info, number))
    return found


def open_generation(
    genhistory: Sequence[Row], article: PublishedArticle, info: ReplicaInfo, number: int
) -> Row:
    """Return the article's open generation, or a new one under the given number."""
    for row in genhistory:
        if row["art_nick"] == article.nickname and row["genstatus"] == GenStatus.OPEN:
            # One beyond the last number given out is what a capture that died left; its rows are captured anew.
            return row if row["generation"] <= info.last_generation else {**row, "changecount": 0}
    return new_generation(article, number=number, nicknames=[info.nickname], status=GenStatus.OPEN)


def new_generation(
    article: PublishedArticle,
    *,
    number: int,
    nicknames: Sequence[int],
    status: GenStatus,
    guid: str | None = None,
) -> Row:
    """Return a new row of MSmerge_genhistory."""
    return {
        "guidsrc": guid or str(uuid4()),
        "pubid": article.pubid,
        "generation": number,
        "art_nick": article.nickname,
        "nicknames": sorted(nicknames),
        "coldate": datetime.now(UTC),
        "genstatus": int(status),
        "changecount": 0,
    }


def commit_changes(
    replica: Replica,
    captured: Sequence[CapturedArticle],
    genhistory: Sequence[Row],
    info: ReplicaInfo,
) -> tuple[ReplicaInfo, list[Row]]:
    """Append the captured rows, then move the captured versions. Returns the new replinfo and genhistory.

    Windows without changes (OPTIMIZE, property changes) only move the captured version.
    """
    changed = [item for item in captured if item.rows is not None]
    history = list(genhistory)
    seq = info.last_seq
    if changed:
        history = upserted(genhistory, [item.generation for item in changed if item.generation])
        seq = next_seq(replica.root, info.last_seq)
        marker = str(uuid4())
        mark = CommitMark(marker, f"capture:{seq}", info.replid)
        failpoint("capture.before_genhistory")
        replica.save_genhistory(history)
        failpoint("capture.before_contents")
        append_run(
            [(item.article, item.rows) for item in changed if item.rows is not None],
            replica,
            Transaction(RUN_APP_ID, seq, mark),
            contents=any(item.inserts + item.updates for item in changed),
            tombstones=any(item.deletes for item in changed),
        )
        failpoint("capture.before_replinfo")
    moved = {item.article.nickname: item.window.through_version_inclusive for item in captured}
    if moved.items() <= info.captured.items() and not changed:
        return info, history
    last = max(
        [info.last_generation, *(item.generation["generation"] for item in changed if item.generation)]
    )
    info = replace(info, last_seq=seq, last_generation=last, captured={**info.captured, **moved})
    replica.save_info(info)
    failpoint("capture.after_replinfo")
    return info, history


def remove_leftovers(spark_of: Callable[[], SparkSession], replica: Replica, info: ReplicaInfo) -> bool:
    """Remove runs that a crashed capture appended without reaching its commit point. Returns whether there were any."""
    found = False
    for path in (replica.contents, replica.tombstone):
        if delta.transaction_version(path, RUN_APP_ID) > info.last_seq:
            found = delete_runs_after(spark_of(), path, through_seq_inclusive=info.last_seq) or found
    return found


def upserted(genhistory: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return genhistory with rows added, or replaced where the guid is there already."""
    by_guid = {row["guidsrc"]: row for row in genhistory}
    by_guid.update({row["guidsrc"]: row for row in rows})
    return sorted(by_guid.values(), key=lambda row: int(row["generation"]))

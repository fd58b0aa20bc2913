"""Runs: the rows that a session appends to contents and tombstone, and the state of each row that they record.

Every run has a number (seq) above all earlier ones; the latest run of a row has its known state. The small files of runs
are joined from time to time, so that sessions do not slow down over a year.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mergerepl.changes import (
    BASE,
    BORN_GENERATION,
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PARTCHANGEGEN,
    PRIORITY,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
    UNKNOWN,
)
from mergerepl.delta import appended
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError, arrow_refusals
from mergerepl.delta.tables import compact, delete_rows
from mergerepl.errors import MergeReplError
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.model.article import ImageColumn, PublishedArticle
from mergerepl.replica.cleaned import remove_dead
from mergerepl.replica.replica import Replica
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.spark.in_memory import Kept, are_few, broadcast_if_few, in_one_task, is_for_one_task
from mergerepl.store.location import Location
from mergerepl.systables import contents, tombstone
from mergerepl.systables.contents import COLV1_TYPE, base_column, row_column
from mergerepl.systables.table import Plane

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

SESSIONS_BETWEEN = 16
"""Listing every table's files takes longer than all bookkeeping of a session; so only some sessions do it."""

FILES_AT_MOST = 32

_FAILURES = (
    MergeReplError,
    NeedsSparkError,
    DeltaError,
    ArrowException,
    OSError,
    PySparkException,
    Py4JError,
)
"""What Delta's two writers raise."""

LARGE_BYTES = 16 * 1024 * 1024
"""A file of this size is never written again."""

LARGE_BYTES_OF_HISTORY = 256 * 1024
"""The same for tables that are read without an engine, some thousand rows: every reading reads each file's footer."""

ROWS_READ_TOGETHER = 1024
"""The rows of a row group of such a table: a reading with bounds reads whole groups."""

SEQ = contents.SEQ

ENDED = "has_ended"
"""Column of runs that are read with `base`: whether the row was recorded with a column that ended since."""

_OTHERS_TOO = 3
"""Looking many rows up costs more than reading this many times as many."""

_READ_AT_ONCE = 100_000
"""So many rows are read faster than Spark plans and runs one more query."""


def newest(*columns: str, by: Column | str = SEQ) -> Column:
    """Return the aggregate of these columns in a row's newest run whose `by` is not NULL, as a struct."""
    return F.max_by(F.struct(*columns), by)


def current_rows(
    runs: DataFrame, columns: Sequence[str] = CHANGE_COLUMNS, *, keys: Sequence[str] = (ROWGUID,)
) -> DataFrame:
    """Return the latest version of each row: contents and tombstones are only appended to.

    `columns` are the wanted ones without the keys: Spark itself would also read unused fields of a struct.
    """
    wanted = [name for name in columns if name not in keys]
    latest = runs.groupBy(*keys).agg(newest(*wanted).alias("latest"))
    return latest.select(*keys, "latest.*")


def run_rows(article: PublishedArticle, rows: "pa.Table", table: str, *, seq: int, marker: str) -> "pa.Table":
    """Return the rows to append to contents, or tombstone, from CHANGES of an article.

    They are those of `triggers.tracked_rows.contents_rows` and `tombstone_rows`, without the columns that these leave
    empty.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_tombstone = table == tombstone.NAME
    chosen = rows.filter(rows[DELETED] if is_tombstone else pc.invert(rows[DELETED]))
    columns = {
        name: chosen[name] for name in (ROWGUID, GENERATION, BORN_GENERATION, LINEAGE, PRIORITY, UNKNOWN)
    }
    if is_tombstone:
        columns[tombstone.TYPE] = chosen[TOMBSTONE_TYPE]
    else:
        columns |= {name: chosen[name] for name in (PARTCHANGEGEN, COLV1)}
    columns[row_column(article.nickname, article.image_version)] = chosen[ROW]
    if BASE in chosen.column_names:
        columns[base_column(article.nickname, article.image_version)] = chosen[BASE]
    of_run = {
        contents.TABLENICK: pa.scalar(article.nickname, pa.int32()),
        contents.MARKER: pa.scalar(marker, pa.string()),
        SEQ: pa.scalar(seq, pa.int64()),
    }
    columns |= {name: pa.repeat(value, chosen.num_rows) for name, value in of_run.items()}
    return pa.table(columns)


@dataclass(frozen=True)
class RecentRows:
    """The latest versions of all rows in the newest runs.

    `older` returns the versions of other rows in older runs (takes a frame of rowguids and their number); None without
    older runs.
    """

    rows: DataFrame
    older: Callable[[DataFrame, int], DataFrame] | None


_OF_RUNS = (contents.TABLENICK, ROWGUID, GENERATION, BORN_GENERATION, LINEAGE, PRIORITY, UNKNOWN, SEQ)


@dataclass(frozen=True)
class Images:
    """The image columns of an article in contents and tombstones: each row has its image in one of them.

    Older images are brought forward by field: dropped fields are left out, wider types are a cast, and a row says nothing
    of fields that its image lacks.
    """

    article: PublishedArticle
    rows: tuple[str, ...]
    bases: tuple[str, ...]

    @classmethod
    def of(cls, article: PublishedArticle) -> "Images":
        """Return those of an article."""
        versions = [each.version for each in article.image_columns]
        rows = tuple(row_column(article.nickname, version) for version in versions)
        return cls(article, rows, tuple(base_column(article.nickname, version) for version in versions))

    def present(self, columns: Sequence[str]) -> Column:
        """Return the image of a row, in one of these columns, with the present fields and types."""
        if len(columns) == 1:
            return F.col(columns[0])
        types = dict(zip(self.article.fields, self.article.types, strict=True))

        def brought(image: ImageColumn, column: str) -> Column:
            fields = (
                (F.col(f"{column}.{name}") if name in image.fields else F.lit(None)).cast(type_).alias(name)
                for name, type_ in types.items()
            )
            return F.when(F.col(column).isNotNull(), F.struct(*fields))

        return F.coalesce(*map(brought, self.article.image_columns, columns))

    def ended(self) -> Column:
        """Return whether the image of a row has fields that the article does not have any more."""
        there: Column = F.lit(False)
        for image, column in zip(self.article.image_columns, self.rows, strict=True):
            if not {*image.fields} <= {*self.article.fields}:
                there = there | F.col(column).isNotNull()
        return there

    def unknown(self) -> Column:
        """Return the fields of which a row says nothing; NULL: none."""
        found = F.col(UNKNOWN)
        if len(self.rows) == 1:
            return found
        present = F.array(*(F.lit(name) for name in self.article.fields))
        stated = F.array_intersect(found, present)
        for image, column in zip(self.article.image_columns, self.rows, strict=True):
            lacking = [name for name in self.article.fields if name not in image.fields]
            if lacking:
                lacks = F.array(*(F.lit(name) for name in lacking))
                both = F.array_union(F.coalesce(found, F.array().cast("array<string>")), lacks)
                stated = F.when(F.col(column).isNotNull(), F.array_intersect(both, present)).otherwise(stated)
        return stated


@dataclass(frozen=True)
class ArticleRuns:
    """The runs of one article in contents and tombstones of a replica's system folder, up to a committed one.

    Rows of generations up to `cleaned` were forgotten.
    """

    spark: SparkSession
    folder: Location
    article: PublishedArticle
    through_seq_inclusive: int
    cleaned: int

    @classmethod
    def of(
        cls, spark: SparkSession, replica: Replica, article: PublishedArticle, through_seq_inclusive: int
    ) -> "ArticleRuns":
        """Return the runs of an article at a replica, up to a committed one."""
        cleaned = replica.cleaned([article.nickname])
        return cls(spark, replica.folder, article, through_seq_inclusive, cleaned)

    def until(self, seq: int) -> "ArticleRuns":
        """Return those of the runs up to another one."""
        return replace(self, through_seq_inclusive=min(seq, self.through_seq_inclusive))

    def read(
        self,
        *,
        from_seq_exclusive: int | None = None,
        from_generation_exclusive: int | None = None,
        with_base: bool = False,
        with_marker: bool = False,
        guids: Collection[str] | None = None,
    ) -> DataFrame:
        """Return the appended runs of contents and tombstones: CHANGES columns and seq, not netted.

        In process they may be limited to the rows of `guids`.

        `with_base` adds `base`, as in CAPTURED, and `has_ended`, `with_marker` the session that wrote the run. Generations
        rise with runs, so a lower bound on the generation prunes files and still leaves the latest version of every row it
        admits.
        """
        most = self.through_seq_inclusive
        above = max(from_generation_exclusive or 0, self.cleaned) or None
        images = Images.of(self.article)

        def of(table: str) -> DataFrame:
            is_tombstone = table == tombstone.NAME
            kept = [tombstone.TYPE] if is_tombstone else [PARTCHANGEGEN, COLV1]
            kept += [*images.bases] if with_base else []
            kept += [contents.MARKER] if with_marker else []
            bounds = {SEQ: (from_seq_exclusive, most), GENERATION: (above, None)}
            rows = appended.read(
                self.spark,
                self.folder / table,
                bounds,
                columns=[*_OF_RUNS, *images.rows, *kept],
                among={contents.TABLENICK: [self.article.nickname]}
                | ({} if guids is None else {ROWGUID: guids}),
            ).where(F.col(contents.TABLENICK) == self.article.nickname)
            rows = appended.within(rows, bounds, lambda number: query_parameter(number, "bigint"))
            return rows.select(
                ROWGUID,
                F.lit(is_tombstone).alias(DELETED),
                (F.col(tombstone.TYPE) if is_tombstone else F.lit(None).cast("int")).alias(TOMBSTONE_TYPE),
                GENERATION,
                (F.lit(None).cast("bigint") if is_tombstone else F.col(PARTCHANGEGEN)).alias(PARTCHANGEGEN),
                BORN_GENERATION,
                LINEAGE,
                (F.lit(None).cast(COLV1_TYPE) if is_tombstone else F.col(COLV1)).alias(COLV1),
                PRIORITY,
                images.unknown().alias(UNKNOWN),
                images.present(images.rows).alias(ROW),
                SEQ,
                *([images.present(images.bases).alias(BASE)] if with_base else ()),
                *([images.ended().alias(ENDED)] if with_base else ()),
                *([contents.MARKER] if with_marker else ()),
            )

        if appended.file_count(self.folder / tombstone.NAME) == 0:
            return of(contents.NAME)
        return of(contents.NAME).unionByName(of(tombstone.NAME))

    def latest_of(self, guids: DataFrame, *, rows: int, columns: Sequence[str], kept: Kept) -> DataFrame:
        """Return the latest version of some rows.

        Rows that changed recently often change again. So if the tables are much larger than the wanted rows, the newest
        runs are read first, and older runs only for the rows missing there. `guids` has each rowguid once, `rows` is their
        number; `columns` include the rowguid; `kept` holds the frames until the caller has read the result.
        """

        def latest(runs: ArticleRuns, wanted: DataFrame, *, above: int | None = None) -> DataFrame:
            rows_of_runs = runs.read(from_seq_exclusive=above)
            return current_rows(rows_of_runs.join(wanted, on=ROWGUID, how="left_semi"), columns)

        if is_in_process():
            return current_rows(self.read(guids=[row[0] for row in guids.collect()]), columns)
        newest_runs = _newest_runs(self.folder, rows)
        if newest_runs is None and is_for_one_task(rows):
            wanted = in_one_task(guids, rows, join="shuffle_hash")
            # Each wanted row is there once. Spark would do a semi-join before it joins the tasks.
            there = in_one_task(self.read(), rows, join="shuffle_hash").join(wanted, on=ROWGUID)
            return in_one_task(current_rows(there, columns), rows)
        wanted = broadcast_if_few(guids, rows)
        if newest_runs is None:
            return latest(self, wanted)
        bound, _ = newest_runs
        newest = latest(self, wanted, above=bound)
        newest = kept.keep(newest) if are_few(rows) else kept.keep_for_joins(newest)
        found = newest.count()
        if found == rows:
            return newest
        others = guids.join(broadcast_if_few(newest.select(ROWGUID), found), on=ROWGUID, how="left_anti")
        older = latest(self.until(bound), broadcast_if_few(others, rows - found))
        return newest.unionByName(older)

    def recent(self, *, rows: int, columns: Sequence[str], kept: Kept) -> RecentRows | None:
        """Return the rows in the newest runs if that costs less than a lookup of `rows` rows in them; or None.

        As `latest_of`.
        """
        if are_few(rows):
            return None
        newest_runs = _newest_runs(self.folder, rows)
        if newest_runs is None:
            if not _hold_at_most(self.folder, _OTHERS_TOO * rows):
                return None
            return RecentRows(current_rows(self.read(), columns), None)
        bound, count = newest_runs
        gone = appended.row_count(self.folder / tombstone.NAME, from_run_exclusive=bound)
        if (
            bound >= self.through_seq_inclusive
            or gone is None
            or count + gone > _OTHERS_TOO * max(rows, _READ_AT_ONCE)
        ):
            return None

        def older(others: DataFrame, wanted: int) -> DataFrame:
            there = self.until(bound).read()
            there = there.join(broadcast_if_few(others, wanted), on=ROWGUID, how="left_semi")
            return kept.keep(current_rows(there, columns))

        newest = self.read(from_seq_exclusive=bound)
        # Runs are separate files, so pre-aggregation before the shuffle gains little.
        return RecentRows(current_rows(newest.repartition(ROWGUID), columns), older)


def _newest_runs(folder: Location, rows: int) -> tuple[int, int] | None:
    return appended.newest_runs(folder / contents.NAME, rows=max(2 * rows, _READ_AT_ONCE))


def _hold_at_most(folder: Location, rows: int) -> bool:
    """True if contents and tombstones are known to have at most `rows` rows."""
    counts = [appended.row_count(folder / table) for table in (contents.NAME, tombstone.NAME)]
    return all(count is not None and count <= rows for count in counts)


def delete_runs_after(table: Location, *, through_seq_inclusive: int) -> None:
    """Remove runs that a crash left after the last committed one: whole files, which are not rewritten. No engine."""
    delete_rows(table, where=f"{SEQ} > {through_seq_inclusive}")


def compact_when_due(
    replicas: tuple[Replica, ...], choice: EngineChoice, *, number: int, previous_number: int
) -> dict[Location, int]:
    """When a subscription's session numbers pass a multiple of 16, join the files of appended tables with more than 32.

    A publisher's subscriptions share their numbers, so a subscription may never see such a multiple itself. The caller
    holds the replicas. A failure here is only logged: the session itself is complete. Returns by root the number of rows of
    metadata that had been cleaned up and were removed.
    """
    removed: dict[Location, int] = {}
    if number // SESSIONS_BETWEEN == previous_number // SESSIONS_BETWEEN:
        return removed
    for replica in replicas:
        removed[replica.root] = _remove_dead(replica)
        for table, plane in replica.appended_tables().items():
            try:
                files = appended.file_count(table)
                if files > FILES_AT_MOST:
                    if plane is Plane.HISTORY:
                        compact(table, target_bytes=LARGE_BYTES_OF_HISTORY, rows_of_group=ROWS_READ_TOGETHER)
                    else:
                        _join(table, choice)
                    log.info("%s: joined %s files", table, files)
            except _FAILURES as error:
                log.warning("%s: its small files could not be joined: %s", table, error)
    return removed


def _remove_dead(replica: Replica) -> int:
    try:
        return sum(remove_dead(replica).values())
    except _FAILURES as error:
        log.warning("%s: cleaned up rows could not be removed: %s", replica.root, error)
        return 0


def _join(table: Location, choice: EngineChoice) -> None:
    """Join the files of a table of rows, without Spark if possible: Spark takes 1 to 3 s a table."""
    if choice.uses_arrow:
        try:
            with arrow_refusals():
                compact(table, target_bytes=LARGE_BYTES, most_files=FILES_AT_MOST)
        except NeedsSparkError as error:
            choice.fall_back(table, error)
        else:
            return
    appended.join_small_files(choice.spark, table, large_bytes=LARGE_BYTES)

"""Carry out one side of a staged changeset: MERGE its articles, append its run of contents and tombstones.

Every step is marked and happens once; a repeated run finds it done. All decisions were staged before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.sql import SparkSession

from mergerepl import changes
from mergerepl.delta import appended
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.feed.window import FeedPosition, feed_window
from mergerepl.delta.marks import CommitMark, CommitUnit, apply_step
from mergerepl.delta.tables import (
    Commit,
    TableState,
    Transaction,
    head_version,
    is_delta_table,
    merge_rows,
    open_table,
    transaction_version,
)
from mergerepl.delta.types import ddl_of
from mergerepl.failpoints import failpoint
from mergerepl.frames import Column, DataFrame, F, in_process
from mergerepl.merge.partitions.runs import Events, append_events
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.application_ids import RUN_APP_ID, data_app_id, round_number
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import run_rows
from mergerepl.replica.staged_rows import (
    are_few,
    are_for_arrow,
    are_small,
    read_staged,
    recorded_in_batches,
    small_rows,
)
from mergerepl.rows.images import image_type
from mergerepl.spark.session import require_utc
from mergerepl.store.changeset import ArticleWork, Changeset, SideWork
from mergerepl.store.location import Location
from mergerepl.systables import contents, partitions, tombstone
from mergerepl.systables.table import FOLDER
from mergerepl.systables.tombstone import TombstoneType
from triggers.schema_checks import ArticleTable, check_merged_columns
from triggers.tracked_rows import contents_rows, tombstone_rows

if TYPE_CHECKING:
    import pyarrow as pa

_CONTENTS, _TOMBSTONE = contents.NAME, tombstone.NAME


class _AppendTerms(TypedDict):
    contents: bool
    tombstones: bool


class _RunTerms(TypedDict):
    seq: int
    marker: str


@dataclass(frozen=True)
class Side:
    """One side of a changeset: its name, its replica, and its articles there by nickname."""

    changeset: Changeset
    name: str
    replica: Replica
    articles: dict[int, PublishedArticle]

    @classmethod
    def of(cls, changeset: Changeset, name: str, replica: Replica) -> "Side":
        """Return a side with the articles as they are now."""
        return cls(changeset, name, replica, {article.nickname: article for article in replica.articles})

    @property
    def work(self) -> SideWork:
        """The side's work."""
        return self.changeset.work_of(self.name)

    def work_on(self, article: PublishedArticle) -> ArticleWork:
        """Return the side's work on an article that takes part."""
        return next(work for work in self.work.articles if work.nickname == article.nickname)

    @property
    def action(self) -> str:
        """Name of the side's action column."""
        return changes.ACTION_OF[self.name]

    @property
    def generation(self) -> str:
        """Name of the side's generation column."""
        return changes.GENERATION_OF[self.name]


def data_transaction(side: Side, nickname: int) -> Transaction:
    """Return the transaction of one article's MERGE; the MERGEs of a side are one unit."""
    manifest = side.changeset.manifest
    step = apply_step(side.name, nickname, manifest.round)
    tables = tuple(
        sorted(
            side.articles[work.nickname].table
            for work in side.work.articles
            if work.touches_rows and work.nickname in side.articles
        )
    )
    unit = CommitUnit(f"{manifest.session}:{side.name}:{manifest.round}", tables) if len(tables) > 1 else None
    mark = CommitMark(manifest.session, step, side.work.replid, side.work.peer, unit)
    return Transaction(data_app_id(manifest.subid), round_number(manifest.number, manifest.round), mark)


def merge_article(choice: EngineChoice, side: Side, work: ArticleWork) -> Commit:
    """Bring one article's table at one side to the staged state; Delta computes the generated columns.

    Raises: CommitConflictError, StoreError; EngineError if the session reads timestamp partition columns otherwise.
    """
    article, rows = side.articles[work.nickname], side.changeset.rows(work.nickname)
    table = open_table(side.replica.table(article))
    if table.metadata.timestamp_partitions:
        # An interrupted session may be finished in another time zone.
        require_utc(choice.spark, article.name, table.path, table.metadata.timestamp_partitions)
    left_out_columns = [name for name in table.written_columns if name not in article.columns]
    # A late round inserts a row that the MERGE before it deleted and a late write keeps.
    left_out = left_out_columns if side.changeset.manifest.round else ()
    failpoint(f"{side.name}.before_merge")
    by_arrow = choice.uses_arrow and not left_out and are_small(rows)
    types = {each["name"]: ddl_of(each["type"]) for each in table.fields}
    is_plain = not table.has_column_mapping and not table.has_type_widening
    is_same = is_plain and all(types.get(n) == t for n, t in zip(article.columns, article.types, strict=True))
    is_known = is_same

    def check() -> None:
        nonlocal is_known
        if not is_known:
            _check_columns(side, work, table)
        # After another writer's commit the table may have other columns.
        is_known = False

    commit = merge_rows(
        lambda: choice.spark,
        lambda session: read_staged(session, rows),
        table.path,
        article,
        action=side.action,
        generated_columns=table.generated_columns,
        left_out_columns=left_out,
        small_rows=(lambda: small_rows(rows, side.action)) if by_arrow else None,
        choice=choice,
        actions=work.actions,
        bounds=work.bounds,
        transaction=data_transaction(side, work.nickname),
        from_version_exclusive=work.from_version,
        check=check,
    )
    failpoint(f"{side.name}.after_merge")
    return commit


def _check_columns(side: Side, work: ArticleWork, table: TableState) -> None:
    """Check that no user renamed or retyped a column since the capture.

    The MERGE would write into another column of that name, and late rows would be read with the former type.

    Raises: StagedColumnsError.
    """
    article, replica = side.articles[work.nickname], side.replica
    at = ArticleTable(article, replica.root, side.work.replid, replica.publishes(article.pubid))
    check_merged_columns(
        at, feed_window(table.path, FeedPosition(table.metadata.table_id, work.from_version))
    )


def recorded_rows(
    spark: SparkSession,
    side: Side,
    work: ArticleWork,
    *,
    actions: Sequence[changes.Action] = tuple(changes.Action),
) -> DataFrame:
    """Return the CHANGES rows one side records of one article: final states under its own generation numbers.

    A late round's rows have `base`, as in CAPTURED: no other table records its capture.
    """
    staged = read_staged(spark, side.changeset.rows(work.nickname)).where(
        F.col(side.action).isin(list(actions))
    )
    generation = F.col(side.generation)
    # If the row was here before, the next receivers may have it too: for them it is not an insert.
    # `conflict.failed_changes` has already decided this for a row that waits.
    is_insert = F.col(side.action) == changes.Action.INSERT.value
    waits = F.col(changes.VERDICT) == changes.Verdict.REFUSED.value
    staged_born = F.col(changes.BORN_GENERATION)
    born = F.when(waits, staged_born).when(is_insert & staged_born.isNotNull(), generation)
    columns = {
        changes.GENERATION: generation.alias(changes.GENERATION),
        changes.BORN_GENERATION: born.alias(changes.BORN_GENERATION),
    }
    if work.is_filtered:
        columns |= _in_partition(staged, side, work)
    more = [changes.BASE] if changes.BASE in staged.columns else []
    return staged.select(*(columns.get(name, F.col(name)) for name in changes.CHANGE_COLUMNS), *more)


def _in_partition(staged: DataFrame, side: Side, work: ArticleWork) -> dict[str, Column]:
    """Return the columns that reduce a row outside the partition to its key, for a subscriber's records."""
    article = side.articles[work.nickname]
    has_left = F.col(side.action) == changes.Action.LEAVE.value
    is_deleted = F.col(changes.DELETED) | has_left
    key_only = F.struct(
        *(
            (F.col(f"{changes.ROW}.{field.name}") if field.name in article.identity_fields else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in image_type(staged, changes.ROW)
        )
    )
    left = F.lit(int(TombstoneType.PARTIAL_DELETE))
    values = {
        changes.DELETED: is_deleted,
        changes.TOMBSTONE_TYPE: F.when(has_left, left).otherwise(F.col(changes.TOMBSTONE_TYPE)),
        changes.ROW: F.when(is_deleted, key_only).otherwise(F.col(changes.ROW)),
        # The publisher's number.
        changes.PARTCHANGEGEN: F.lit(None).cast("bigint"),
    }
    return {name: value.alias(name) for name, value in values.items()}


def _recorded(side: Side, work: ArticleWork) -> "tuple[PublishedArticle, Callable[[], Iterator[pa.Table]]]":
    """Return a function that yields the rows of `recorded_rows` as Arrow tables."""
    article = side.articles[work.nickname]
    keys = article.identity_fields if work.is_filtered else None
    return article, partial(
        recorded_in_batches, side.changeset.rows(work.nickname), side.name, keys_of_gone=keys
    )


def next_seq(root: Location, last_seq: int) -> int:
    """Return the number of a replica's next run: above the committed one and above runs that a crash left."""
    return max([last_seq, *(transaction_version(table, RUN_APP_ID) for table in run_tables(root))]) + 1


def run_tables(root: Location) -> list[Location]:
    """Return the tables that a run may have appended to; those of partitions only with row filters."""
    mappings = [root / FOLDER / table.name for table in partitions.MAPPINGS]
    used = [path for path in mappings if is_delta_table(path) and head_version(path) > 0]
    return [*(root / FOLDER / name for name in (contents.NAME, tombstone.NAME)), *used]


def append_run(
    rows: "Sequence[tuple[PublishedArticle, DataFrame | Callable[[], Iterator[pa.Table]]]]",
    replica: Replica,
    transaction: Transaction,
    *,
    contents: bool,
    tombstones: bool,
) -> None:
    """Append one run (CHANGES rows of several articles) to contents and tombstone.

    The seq is the transaction's version. The rows are frames, or functions that yield Arrow batches.
    """
    if contents:
        of_run = _rows_of_run(rows, _CONTENTS, transaction)
        failpoint("run.before_contents")
        appended.append(of_run, replica.contents, transaction)
        failpoint("run.after_contents")
    if tombstones:
        of_run = _rows_of_run(rows, _TOMBSTONE, transaction)
        failpoint("run.before_tombstone")
        appended.append(of_run, replica.tombstone, transaction)
        failpoint("run.after_tombstone")


def _rows_of_run(
    rows: Sequence[tuple[PublishedArticle, Any]], table: str, transaction: Transaction
) -> "DataFrame | Iterator[pa.Table]":
    terms: _RunTerms = {"seq": transaction.version, "marker": transaction.mark.session}
    if callable(rows[0][1]):
        return (run_rows(article, each, table, **terms) for article, batches in rows for each in batches())
    rows_of = contents_rows if table == _CONTENTS else tombstone_rows
    return appended.union_all([rows_of(frame, article, **terms) for article, frame in rows])


def append_side_run(choice: EngineChoice, side: Side) -> None:
    """Append the rows that one side records of the whole changeset."""
    works = [work for work in side.work.articles if work.live or work.deleted]
    if not works:
        return
    changeset = side.changeset
    mark = CommitMark(
        changeset.manifest.session, f"run:{side.name}:{changeset.manifest.round}", side.work.replid
    )
    transaction = Transaction(RUN_APP_ID, side.work.seq, mark)
    terms: _AppendTerms = {
        "contents": any(work.live for work in works),
        "tombstones": any(work.deleted for work in works),
    }

    def frames() -> list[tuple[PublishedArticle, DataFrame]]:
        return [(side.articles[work.nickname], recorded_rows(choice.spark, side, work)) for work in works]

    nicknames = [work.nickname for work in works]
    batches = [_recorded(side, work) for work in works]
    try:
        is_for_arrow = choice.uses_arrow and all(are_for_arrow(changeset.rows(n)) for n in nicknames)
        append_run(batches if is_for_arrow else frames(), side.replica, transaction, **terms)
    except NeedsSparkError as error:
        choice.fall_back(side.replica.contents, error)
        append_run(frames(), side.replica, transaction, **terms)
    folders = {work.nickname: changeset.events(work.nickname) for work in works if work.events}
    is_small = choice.uses_arrow and all(are_few(folder) for folder in folders.values())
    with in_process() if is_small else nullcontext():
        spark = None if is_small else choice.spark
        events = [
            Events(side.work.publication_number, nickname, read_staged(spark, folder))
            for nickname, folder in folders.items()
        ]
        if events:
            append_events(side.replica, events, transaction)

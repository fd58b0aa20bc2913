"""Decide a conflict again: the loser, or other values, become an ordinary change of one replica, which syncs send on.

The row is written only if it still equals the outcome of the conflict, bit by bit. The commit counts as a user's change
(its mark's kind is `resolve`). So the next capture records it with knowledge of the outcome, and it does not conflict with
changes that also knew it. A run that died after its commit finds the rows as they should be, and only notes the conflicts
as settled.
"""

import getpass
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import DELETED, LINEAGE, ROW, ROWGUID, Action
from mergerepl.conflict_tools.interrupted import refuse_interrupted
from mergerepl.delta import appended
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.merge import merge_rows
from mergerepl.delta.plain_files import write_files
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import plain_errors
from mergerepl.engine.in_memory import Kept, frame_of
from mergerepl.errors import ConfigurationError, ConflictError
from mergerepl.failpoints import failpoint
from mergerepl.model.article import PublishedArticle
from mergerepl.model.conflicts import Choice, ConflictFilter, NotResolved, PlannedWrite, ResolveResult
from mergerepl.model.progress import Progress
from mergerepl.monitoring.conflicts import conditions_of, no_conflict, require_ids
from mergerepl.monitoring.waiting import is_all_captured
from mergerepl.rows.images import (
    all_true,
    differing_columns,
    image_type,
    row_image,
    rowguid_of_image,
    same_value,
)
from mergerepl.rows.key_bounds import bound_measures, bounds_found, within_bounds
from mergerepl.rows.sql import struct_type
from mergerepl.store.changeset import drop
from mergerepl.store.lease import lease
from mergerepl.store.replica import Replica
from mergerepl.store.staged_rows import read_staged
from mergerepl.systables import conflict_resolutions, conflicts_info, contents, tombstone
from mergerepl.systables.conflict_resolutions import ResolutionRow
from mergerepl.systables.conflicts_info import ConflictRow, ConflictType
from mergerepl.systables.contents import row_column

if TYPE_CHECKING:
    import pyarrow as pa

MOST_AT_ONCE = 100_000
"""Conflicts that one run settles: their ids and keys are in memory."""

_SHOWN_IDS = 5
_MOST_PLANNED = 100
_FOLDER = "resolving"
_LOSER, _HELD, _KNOWN, _NEW, _ACTION = "loser_row", "held_row", "known", "new_row", "action"


@dataclass(frozen=True)
class Wish:
    """The decision for the chosen conflicts: `values` are texts by column (None: NULL), for Choice.EDITED."""

    choice: Choice
    values: Mapping[str, str | None]
    whole_rows: bool = False
    force: bool = False
    message: str = ""


def resolve_conflicts(
    spark_of: Callable[[], SparkSession],
    root: Path,
    chosen: ConflictFilter,
    wish: Wish,
    *,
    dry_run: bool,
    progress: Progress,
) -> ResolveResult:
    """Settle conflicts of one replica. Without rows to write no engine is started.

    Raises: ConfigurationError if the folder is no replica, no conflict is meant, or a column or value cannot be;
        ConflictError if there are too many, a session is interrupted, an article is not published any more, or one is a
        change that a table refuses; LeaseError; StoreError, CommitConflictError.
    """
    with lease(root, purpose="mergerepl conflicts resolve"):
        replica = Replica(root).require()
        refuse_interrupted(replica)
        rows = _chosen_rows(replica, chosen)
        resolution = str(uuid4())
        if wish.choice is Choice.WINNER:
            if not dry_run:
                _note(replica, rows, resolution, wish, {})
            return ResolveResult(resolution, wish.choice.value, len(rows), 0, dry_run=dry_run)
        _refuse_failed_changes(replica, rows)
        articles = {article.nickname: article for article in replica.articles}
        _check_values(replica, rows, articles, wish)
        settled: list[ConflictRow] = []
        changed_since: list[NotResolved] = []
        versions: dict[int, int | None] = {}
        planned: list[PlannedWrite] = []
        written = 0
        for nickname in dict.fromkeys(row.tablenick for row in rows):
            article = articles[nickname]
            own = [row for row in rows if row.tablenick == nickname]
            progress.step("resolve", article=article.name, rows=len(own))
            with plain_errors(f"resolving conflicts of article '{article.name}'"):
                done = _of_article(spark_of(), replica, article, own, wish, resolution, dry_run=dry_run)
            settled += [row for row in own if row.conflict_id in done.settled]
            changed_since += done.changed_since
            planned += done.planned
            written += done.written
            versions[nickname] = done.version
            if not dry_run:
                failpoint("resolve.before_note")
                settled_here = [row for row in own if row.conflict_id in done.settled]
                _note(replica, settled_here, resolution, wish, versions)
        return ResolveResult(
            resolution,
            wish.choice.value,
            len(settled),
            written,
            tuple(changed_since),
            dry_run=dry_run,
            planned=tuple(planned[:_MOST_PLANNED]),
        )


def _chosen_rows(replica: Replica, chosen: ConflictFilter) -> list[ConflictRow]:
    """Return the chosen conflicts: the newest of each row, which has its outcome."""
    require_ids(replica.root, chosen)
    conditions = conditions_of(replica, chosen)
    rows: list[ConflictRow] = []
    if conditions is not None:
        rows = replica.control.rows(
            conflicts_info.TABLE,
            where=" and ".join(conditions) or None,
            order_limit=f'order by "MSrepl_create_time" desc, conflict_id limit {MOST_AT_ONCE + 1}',
        )
    if not rows:
        raise ConfigurationError(no_conflict(replica.root), replica=str(replica.root))
    if len(rows) > MOST_AT_ONCE:
        raise ConflictError(
            f"More than {MOST_AT_ONCE:,} conflicts at '{replica.root}' are meant. Choose fewer, by --article, --since or "
            "--type, and run again for the others.",
            replica=str(replica.root),
        )
    for beginning in chosen.ids:
        named = [row.conflict_id for row in rows if row.conflict_id.startswith(beginning.strip().lower())]
        if len(named) != 1:
            found = f"Several begin so: {', '.join(named[:_SHOWN_IDS])}" if named else "None does"
            raise ConfigurationError(
                f"'{beginning}' names no one conflict at '{replica.root}'. {found}. Nothing was changed. See `mergerepl "
                "conflicts list` for their ids.",
                replica=str(replica.root),
            )
    newest: dict[tuple[int, str], ConflictRow] = {}
    for row in rows:
        newest.setdefault((row.tablenick, row.rowguid), row)
    return list(newest.values())


def _refuse_failed_changes(replica: Replica, rows: Sequence[ConflictRow]) -> None:
    failed = next((row for row in rows if row.is_undecided), None)
    if failed is not None:
        raise ConflictError(
            f"Conflict {failed.conflict_id} is a change that a table refuses ({failed.reason_text}): it was not decided, "
            f"and waits at '{failed.origin_datasource}'. Nothing was changed. Correct the row there, or lift the rule, and "
            "run `mergerepl sync`; or choose others by --type, or settle it with --winner.",
            replica=str(replica.root),
            conflict_id=failed.conflict_id,
        )


def _check_values(
    replica: Replica, rows: Sequence[ConflictRow], articles: Mapping[int, PublishedArticle], wish: Wish
) -> None:
    gone = next((row for row in rows if row.tablenick not in articles), None)
    if gone is not None:
        raise ConflictError(
            f"Conflict {gone.conflict_id} at '{replica.root}' is of an article that is not published any more: nothing "
            "can be written for it. Choose others, or settle it with --winner.",
            conflict_id=gone.conflict_id,
        )
    for nickname in {row.tablenick for row in rows}:
        article = articles[nickname]
        for name in wish.values:
            if name not in article.value_columns:
                raise ConfigurationError(
                    f"Article '{article.name}' has no column '{name}' that can be set: those of the key and generated ones "
                    f"cannot. There are {', '.join(article.value_columns)}.",
                    article=article.name,
                )


@dataclass(frozen=True)
class _Done:
    settled: Collection[str]
    changed_since: Sequence[NotResolved]
    written: int
    version: int | None
    planned: Sequence[PlannedWrite] = ()


def _of_article(
    spark: SparkSession,
    replica: Replica,
    article: PublishedArticle,
    rows: Sequence[ConflictRow],
    wish: Wish,
    resolution: str,
    *,
    dry_run: bool,
) -> _Done:
    kept = Kept()
    table = replica.table(article)
    head = head_version(table)
    try:
        decided = kept.keep(_decided(spark, replica, article, rows, wish, head, kept))
        found = decided.select("conflict_id", "is_unchanged", _ACTION, "differs", "set_to").collect()
        by_id = {row.conflict_id: row for row in rows}
        left = [each for each in found if not each["is_unchanged"] and not wish.force and each[_ACTION]]
        changed_since = tuple(
            NotResolved(
                each["conflict_id"],
                article.name,
                dict(by_id[each["conflict_id"]].rowkey),
                tuple(each["differs"] or ()),
            )
            for each in left
        )
        settled = set(by_id) - {each.conflict_id for each in changed_since}
        written = [each for each in found if each[_ACTION] and each["conflict_id"] in settled]
        if dry_run:
            planned = [
                PlannedWrite(
                    each["conflict_id"],
                    article.name,
                    dict(by_id[each["conflict_id"]].rowkey),
                    each[_ACTION],
                    tuple(each["set_to"] or ()),
                )
                for each in written[:_MOST_PLANNED]
            ]
            return _Done(settled, changed_since, len(written), None, planned)
        if not written:
            return _Done(settled, changed_since, 0, None)
        actions = [each[_ACTION] for each in written]
        folder = replica.folder / _FOLDER / resolution / str(article.nickname)
        try:
            may_write = F.lit(True) if wish.force else F.col("is_unchanged")
            wanted = decided.where(F.col(_ACTION).isNotNull() & may_write)
            write_files(wanted.select(ROWGUID, _ACTION, F.col(_NEW).alias(ROW)), folder)
            failpoint("resolve.before_merge")
            commit = merge_rows(
                spark,
                lambda session: read_staged(session, folder),
                table,
                article,
                action=_ACTION,
                actions={each: actions.count(each) for each in set(actions)},
                bounds=_bounds(wanted, article),
                transaction=Transaction(
                    f"mergerepl-resolve-{resolution}",
                    1,
                    CommitMark(resolution, f"resolve:{resolution}", replica.info().replid),
                ),
                from_version_exclusive=head,
                generated_columns=dict(article.generated),
            )
        finally:
            drop(replica.folder / _FOLDER)
        return _Done(settled, changed_since, len(written), commit.version)
    finally:
        kept.release()


def _bounds(rows: DataFrame, article: PublishedArticle) -> dict[str, tuple[str, str]]:
    measures = bound_measures(article, lambda field: F.col(f"{_NEW}.{field}"))
    if not measures:
        return {}
    found = rows.agg(*(measure.alias(name) for name, measure in measures.items())).collect()[0].asDict()
    return bounds_found(article, found)


def _decided(
    spark: SparkSession,
    replica: Replica,
    article: PublishedArticle,
    rows: Sequence[ConflictRow],
    wish: Wish,
    head: int,
    kept: Kept,
) -> DataFrame:
    """Return the decision for each row: conflict_id, rowguid, is_unchanged, differs, set_to, action (None: none), new_row.

    `differs` are the columns that were changed since, `set_to` those that an update writes.
    """
    conflicts = F.broadcast(frame_of(spark, _listed(rows)))
    lost = appended.read(spark, replica.folder / article.conflict_table)
    losers = lost.join(conflicts.select("conflict_id"), on="conflict_id", how="left_semi").select(
        "conflict_id", row_image(article.columns).cast(struct_type(article.types)).alias(_LOSER)
    )
    known = _latest(spark, replica, article, conflicts)
    is_captured = False
    # A refused change that was not undone is none to be decided again.
    if any(row.conflict_type in conflicts_info.FAILED_CHANGES for row in rows):
        known = _with_unrecorded(known, conflicts, losers)
        is_captured = is_all_captured(replica, article, replica.info())
    known = kept.keep(known)
    held = _held(spark, replica, article, known, head)
    joined = (
        conflicts.join(losers, on="conflict_id", how="left")
        .join(known, on=ROWGUID, how="left")
        .join(held, on=ROWGUID, how="left")
    )
    image = image_type(joined, _HELD)
    known_row, is_held = F.col(f"{_KNOWN}.{ROW}"), F.col(_HELD).isNotNull()
    written = article.written_fields
    is_outcome = (F.col(f"{_KNOWN}.marker") == F.col("session_id")) | (
        _entries(F.col(f"{_KNOWN}.{LINEAGE}")) == _entries(F.col("winning"))
    )

    def same(one: str, other: str) -> Column:
        terms = (same_value(F.col(f"{one}.{f}"), F.col(f"{other}.{f}"), image[f].dataType) for f in written)
        return all_true(list(terms))

    is_as_recorded = F.when(F.col(f"{_KNOWN}.{DELETED}"), ~is_held).otherwise(
        is_held & same(_HELD, f"{_KNOWN}.{ROW}")
    )
    with_new = joined.withColumn(_NEW, _new_row(spark, article, wish, known_row))
    is_gone = F.col("is_deleted")
    action = (
        F.when(is_gone & is_held, Action.DELETE.value)
        .when(is_gone, F.lit(None))
        .when(~is_held, Action.INSERT.value)
        .when(~same(_HELD, _NEW), Action.UPDATE.value)
    )
    kind = F.col("conflict_type")
    rejected = (int(ConflictType.RESOLUTION), int(ConflictType.UPLOAD_DELETE_FAILED))
    is_rejected_delete = kind.isin(*rejected) & F.col(_LOSER).isNull()
    is_delete = F.lit(wish.choice is Choice.LOSER) & (
        (kind == int(ConflictType.UPDATE_WINS_DELETE)) | is_rejected_delete
    )
    is_unrecorded = F.col(_KNOWN).isNotNull() & F.col(f"{_KNOWN}.{LINEAGE}").isNull()
    is_untouched = is_unrecorded & F.lit(is_captured)
    names = list(zip(article.columns, article.fields, strict=True))
    sent = [(name, field) for name, field in names if field in written]
    return (
        with_new.withColumn("is_deleted", is_delete)
        .withColumn(_ACTION, action)
        .withColumn("is_unchanged", is_untouched | F.coalesce(is_outcome & is_as_recorded, F.lit(False)))
        .withColumn("differs", F.when(is_held, differing_columns(_HELD, f"{_KNOWN}.{ROW}", image, names)))
        .withColumn("set_to", F.when(is_held & ~is_gone, differing_columns(_HELD, _NEW, image, sent)))
        .select("conflict_id", ROWGUID, "is_unchanged", "differs", "set_to", _ACTION, _NEW)
    )


def _with_unrecorded(known: DataFrame, conflicts: DataFrame, losers: DataFrame) -> DataFrame:
    """Return what is known of rows, with undone ones of which nothing is recorded here: the losing row has their key.

    The publisher records nothing of what it undoes, and may have recorded nothing of that row before.
    """
    is_undone = F.col("conflict_type").isin(*conflicts_info.FAILED_CHANGES)
    lost = conflicts.where(is_undone).join(losers, on="conflict_id")
    fields = image_type(known, _KNOWN)
    version = F.struct(
        *((F.col(_LOSER) if f.name == ROW else F.lit(None)).cast(f.dataType).alias(f.name) for f in fields)
    )
    others = lost.join(known, on=ROWGUID, how="left_anti").dropDuplicates([ROWGUID])
    return known.unionByName(others.select(ROWGUID, version.alias(_KNOWN)))


def _listed(rows: Sequence[ConflictRow]) -> "pa.Table":
    import pyarrow as pa

    columns = {
        "conflict_id": pa.array([row.conflict_id for row in rows], pa.string()),
        "rowguid": pa.array([row.rowguid for row in rows], pa.string()),
        "conflict_type": pa.array([row.conflict_type for row in rows], pa.int32()),
        "columns": pa.array([list(row.columns) for row in rows], pa.list_(pa.string())),
        "session_id": pa.array([row.session_id for row in rows], pa.string()),
        "winning": pa.array(
            [list(row.winning_lineage.items()) for row in rows], pa.map_(pa.int32(), pa.int64())
        ),
    }
    return pa.table(columns)


def _entries(lineage: Column) -> Column:
    """Return a lineage as something that Spark compares."""
    return F.array_sort(F.map_entries(lineage))


def _new_row(spark: SparkSession, article: PublishedArticle, wish: Wish, known_row: Column) -> Column:
    """Return the row to write: the losing one, of a conflict by columns the outcome with the losing columns; or edited."""
    field_of = dict(zip(article.columns, article.fields, strict=True))
    now = F.coalesce(F.col(_HELD), F.col(_LOSER), known_row)
    if wish.choice is Choice.EDITED:
        types = dict(zip(article.columns, article.types, strict=True))
        edited = {
            field_of[name]: _value(spark, article, name, text, types[name])
            for name, text in wish.values.items()
        }
        return F.struct(*(edited.get(f, now[f]).alias(f) for f in article.fields))
    loser = F.coalesce(F.col(_LOSER), known_row)
    if wish.whole_rows:
        return loser
    by_column = (F.col("conflict_type") == int(ConflictType.COLUMN_UPDATE)) & F.col(_HELD).isNotNull()
    parts = (
        F.when(by_column & ~F.array_contains("columns", name), now[field])
        .otherwise(loser[field])
        .alias(field)
        for name, field in field_of.items()
    )
    return F.struct(*parts)


def _value(spark: SparkSession, article: PublishedArticle, name: str, text: str | None, type_: str) -> Column:
    """Return a value as the column's type.

    Raises: ConfigurationError if the text is none of that type.
    """
    value = F.lit(text).try_cast(type_)
    try:
        is_value = text is None or spark.range(1).select(value.isNotNull().alias("is_value")).collect()[0][0]
    except AnalysisException:
        is_value = False
    if not is_value:
        raise ConfigurationError(
            f"Article '{article.name}': column '{name}' is {type_}, and {text!r} is no such value. Nothing was changed.",
            article=article.name,
        )
    return value


def _latest(
    spark: SparkSession, replica: Replica, article: PublishedArticle, conflicts: DataFrame
) -> DataFrame:
    """Return the newest version that is recorded here of each row: rowguid, known (marker, deleted, lineage, row)."""
    image = row_column(article.nickname)
    through = replica.info().last_seq
    frames = []
    for table in (contents.NAME, tombstone.NAME):
        rows = appended.read(spark, replica.folder / table).where(
            (F.col(contents.TABLENICK) == article.nickname) & (F.col(contents.SEQ) <= through)
        )
        frames.append(
            rows.join(conflicts.select(ROWGUID).distinct(), on=ROWGUID, how="left_semi").select(
                ROWGUID,
                contents.SEQ,
                F.struct(
                    contents.MARKER,
                    F.lit(table == tombstone.NAME).alias(DELETED),
                    LINEAGE,
                    F.col(image).alias(ROW),
                ).alias(_KNOWN),
            )
        )
    runs = reduce(DataFrame.unionByName, frames)
    return runs.groupBy(ROWGUID).agg(F.max_by(_KNOWN, contents.SEQ).alias(_KNOWN))


def _held(
    spark: SparkSession, replica: Replica, article: PublishedArticle, known: DataFrame, head: int
) -> DataFrame:
    """Return the rows as the table has them: rowguid, held_row. Files whose keys lie outside are not read."""
    measures = bound_measures(article, lambda field: F.col(f"{_KNOWN}.{ROW}.{field}"))
    bounds = {}
    if measures:
        found = known.agg(*(measure.alias(name) for name, measure in measures.items())).collect()[0].asDict()
        bounds = bounds_found(article, found)
    rows = read_version(spark, replica.table(article), head).where(within_bounds(article, bounds))
    images = rows.select(row_image(article.columns).cast(struct_type(article.types)).alias(_HELD))
    rowguid = rowguid_of_image(
        _HELD,
        image_type(images, _HELD),
        article.identity_fields,
        existing=article.rowguid_column is not None,
    )
    return images.select(rowguid.alias(ROWGUID), _HELD).join(F.broadcast(known.select(ROWGUID)), on=ROWGUID)


def _note(
    replica: Replica,
    rows: Sequence[ConflictRow],
    resolution: str,
    wish: Wish,
    versions: Mapping[int, int | None],
) -> None:
    by, now = f"{getpass.getuser()}@{socket.gethostname()}", datetime.now(UTC)
    replica.control.append(
        conflict_resolutions.TABLE,
        [
            ResolutionRow(
                resolution_id=resolution,
                conflict_id=row.conflict_id,
                choice=wish.choice.value,
                root=str(replica.root),
                by=by,
                message=wish.message or None,
                table_version=versions.get(row.tablenick),
                resolved_at=now,
            )
            for row in rows
        ],
    )

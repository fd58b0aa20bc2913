"""Resolve a conflict by hand.

The loser, or other values, become an ordinary change of one replica, which syncs send on. The row is written only if it
still equals the outcome of the conflict, bit by bit. The commit counts as a user's change (its mark's kind is
`resolve`). So the next capture records it with knowledge of the outcome, and it does not conflict with changes that
also knew it. If a run dies after its commit, the next one finds the rows as wanted and only notes the conflicts as settled.
"""

import getpass
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conflict.merge_columns import with_generated
from mergerepl.changes import ROW, ROWGUID, Action
from mergerepl.conflicts.decide_again import ACTION, NEW, decide_again
from mergerepl.conflicts.listing import conditions_of, no_conflict, require_ids
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.feed.window import feed_window
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import (
    TableState,
    head_version,
    merge_rows,
    next_transaction,
    open_table,
    write_files,
)
from mergerepl.errors import ApplyError, ConfigurationError, ConflictError, MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.merge.stage.constraints import Destination, broken_rules, refuse_table
from mergerepl.model.article import PublishedArticle
from mergerepl.model.conflict_filter import Choice, ConflictFilter, Wish
from mergerepl.model.conflicts import NotResolved, PlannedWrite, ResolveResult
from mergerepl.model.progress import Progress
from mergerepl.replica.application_ids import RESOLVE_APP_ID
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged
from mergerepl.replica.subscription import captured_position, refuse_staged
from mergerepl.rows.images import image_type
from mergerepl.rows.key_bounds import bounds_of
from mergerepl.spark.errors import cause_of, engine_answers
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import remove_leftover
from mergerepl.systables import conflict_resolutions, conflicts_info
from mergerepl.systables.conflict_resolutions import ResolutionRow
from mergerepl.systables.conflicts_info import ConflictRow
from triggers.schema_checks import ArticleTable, check_columns

MOST_AT_ONCE = 100_000
"""Conflicts that one run settles: their ids and keys are in memory."""

_SHOWN_IDS = 5
_MOST_PLANNED = 100
_FOLDER = "resolving"
_AGAIN = "Correct the cause, then run the command again."


def resolve_conflicts(
    spark_of: Callable[[], SparkSession],
    root: Location,
    chosen: ConflictFilter,
    wish: Wish,
    *,
    dry_run: bool,
    progress: Progress,
) -> ResolveResult:
    """Settle conflicts of one replica. Starts an engine only if rows must be written.

    The rows of all articles are decided and checked against their tables before the first one is written.

    Raises: ConfigurationError if the folder is not a replica, no conflict matches, or a column or value is invalid;
    SchemaMismatchError if a table's columns differ from the published ones; ConflictError if there are too many, a
    session is interrupted, an article is no longer published, a conflict is a refused change, or a table would refuse a
    row; LeaseError; StoreError, CommitConflictError.
    """
    with lease(root, purpose="mergerepl conflicts resolve"):
        replica = Replica(root).require()
        refuse_staged(replica)
        rows = _chosen_rows(replica, chosen)
        resolution = str(uuid4())
        if wish.choice is Choice.WINNER:
            if not dry_run:
                _note(replica, rows, resolution, wish, None)
            return ResolveResult(resolution, wish.choice.value, len(rows), 0, dry_run=dry_run)
        _refuse_failed_changes(replica, rows)
        articles = {article.nickname: article for article in replica.articles}
        _check_values(replica, rows, articles, wish)
        try:
            plans = []
            for nickname in dict.fromkeys(row.tablenick for row in rows):
                own = [row for row in rows if row.tablenick == nickname]
                progress.step("resolve", article=articles[nickname].name, rows=len(own))
                with _ending("Nothing was changed.", articles[nickname]):
                    plans.append(_plan(spark_of(), replica, articles[nickname], own, wish, resolution))
            done: list[_Plan] = []
            for plan in plans:
                if not dry_run:
                    names = ", ".join(f"'{each.article.name}'" for each in done)
                    so_far = f"The conflicts of {names} are settled. " if done else ""
                    with _ending(f"{so_far}Run again: no row is written twice.", plan.article):
                        plan = _carry_out(spark_of(), replica, plan, wish, resolution)
                done.append(plan)
        finally:
            remove_leftover(replica.folder / _FOLDER)
        return ResolveResult(
            resolution,
            wish.choice.value,
            sum(len(plan.settled) for plan in done),
            sum(plan.written for plan in done),
            tuple(each for plan in done for each in plan.changed_since),
            dry_run=dry_run,
            planned=tuple([each for plan in done for each in plan.planned][:_MOST_PLANNED])
            if dry_run
            else (),
        )


@contextmanager
def _ending(end: str, article: PublishedArticle) -> Iterator[None]:
    """Add the progress so far to an error about an article's conflicts."""
    try:
        with plain_errors(f"resolving conflicts of article '{article.name}'", again=_AGAIN):
            yield
    except MergeReplError as error:
        raise type(error)(f"{error.message} {end}", **error.facts) from error


def _chosen_rows(replica: Replica, chosen: ConflictFilter) -> list[ConflictRow]:
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
            f"More than {MOST_AT_ONCE:,} conflicts at '{replica.root}' are meant. Choose fewer, by --table, --from or "
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
    return rows


def _newest_of_each_row(rows: Sequence[ConflictRow]) -> dict[str, ConflictRow]:
    """Return the newest conflict of each row, by its id; expects the newest first in `rows`."""
    newest: dict[str, ConflictRow] = {}
    for row in rows:
        newest.setdefault(row.rowguid, row)
    return {row.conflict_id: row for row in newest.values()}


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
    info = replica.info()
    for nickname in {row.tablenick for row in rows}:
        article = articles[nickname]
        at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
        # The values must mean the published columns.
        check_columns(at, feed_window(at.path, captured_position(replica, article, info)))
        for name in wish.values:
            if name not in article.value_columns:
                raise ConfigurationError(
                    f"Article '{article.name}' has no column '{name}' that can be set: those of the key and generated ones "
                    f"cannot. There are {', '.join(article.value_columns)}.",
                    article=article.name,
                )


@dataclass(frozen=True)
class _Plan:
    """The decisions for an article's conflicts, with their rows staged; `work.actions` counts rows by action."""

    article: PublishedArticle
    rows: Sequence[ConflictRow]
    head: int
    settled: Sequence[ConflictRow]
    changed_since: Sequence[NotResolved]
    planned: Sequence[PlannedWrite] = ()
    work: ArticleWork | None = None

    @property
    def written(self) -> int:
        return sum(self.work.actions.values()) if self.work is not None else 0


def _plan(
    spark: SparkSession,
    replica: Replica,
    article: PublishedArticle,
    rows: Sequence[ConflictRow],
    wish: Wish,
    resolution: str,
) -> _Plan:
    """Decide an article's conflicts, stage the rows to write, and check that the table takes them.

    The newest of several conflicts of a row has its outcome. It is decided; the others are settled with it.

    Raises: ConflictError naming the conflict, its row and the rule.
    """
    kept = Kept()
    table = replica.table(article)
    head = head_version(table)
    by_id = _newest_of_each_row(rows)
    try:
        decided = kept.keep(decide_again(spark, replica, article, [*by_id.values()], wish, head, kept))
        found = decided.select("conflict_id", "is_unchanged", ACTION, "differs", "set_to").collect()
        left = [each for each in found if not each["is_unchanged"] and not wish.force and each[ACTION]]
        changed_since = [
            NotResolved(id_, article.name, dict(by_id[id_].rowkey), tuple(each["differs"] or ()))
            for each in left
            if (id_ := each["conflict_id"])
        ]
        left_ids = {each.conflict_id for each in changed_since}
        left_rows = {by_id[each].rowguid for each in left_ids}
        settled = [row for row in rows if row.rowguid not in left_rows]
        written = [each for each in found if each[ACTION] and each["conflict_id"] not in left_ids]
        if not written:
            return _Plan(article, rows, head, settled, changed_since)
        may_write = F.lit(True) if wish.force else F.col("is_unchanged")
        wanted = decided.where(F.col(ACTION).isNotNull() & may_write)
        actions = [each[ACTION] for each in written]
        work = ArticleWork(
            nickname=article.nickname,
            from_version=head,
            actions={each: actions.count(each) for each in set(actions)},
            bounds=bounds_of(wanted, article, lambda field: F.col(f"{NEW}.{field}")),
        )
        _stage_checked(
            spark,
            _staged_at(replica, resolution, article),
            wanted,
            work,
            article,
            open_table(table),
            {each["conflict_id"]: by_id[each["conflict_id"]] for each in written},
        )
        planned = [
            PlannedWrite(
                id_, article.name, dict(by_id[id_].rowkey), each[ACTION], tuple(each["set_to"] or ())
            )
            for each in written[:_MOST_PLANNED]
            if (id_ := each["conflict_id"])
        ]
        return _Plan(article, rows, head, settled, changed_since, planned, work)
    finally:
        kept.release()


def _staged_at(replica: Replica, resolution: str, article: PublishedArticle) -> Location:
    return replica.folder / _FOLDER / resolution / str(article.nickname)


def _stage_checked(
    spark: SparkSession,
    folder: Location,
    wanted: DataFrame,
    work: ArticleWork,
    article: PublishedArticle,
    facts: TableState,
    conflicts: Mapping[str, ConflictRow],
) -> None:
    """Write the rows of one article to a folder, with generated columns computed, and check that its table takes them.

    Raises: ConflictError naming the conflict, its row and the rule, or the reason why the table takes no rows.
    """
    remove_leftover(folder)
    rows = wanted.select("conflict_id", ROWGUID, ACTION, F.col(NEW).alias(ROW))
    if article.generated:
        rows = with_generated(rows, article, image_type(rows, ROW), F.lit(True))
    takes_away = any(work.actions.get(each) for each in (Action.UPDATE, Action.DELETE))
    try:
        write_files(rows, folder)
        at = Destination(ACTION, facts, article, work, folder)
        refuse_table(EngineChoice(uses_arrow=False, spark_of=lambda: spark), at, takes_away=takes_away)
        staged = read_staged(spark, folder)
        broken = broken_rules(spark, staged.where(F.col(ACTION) != Action.DELETE.value), facts, article)
        first = (
            None if broken is None else broken.join(staged.select(ROWGUID, "conflict_id"), on=ROWGUID).first()
        )
    except ApplyError as error:
        raise ConflictError(f"{_named(conflicts, article)} cannot be decided so. {error.message}") from error
    except (PySparkException, Py4JJavaError) as error:
        if not engine_answers():
            raise
        raise ConflictError(
            f"{_named(conflicts, article)} cannot be decided so: generated columns or rules of '{facts.path}' cannot be "
            f"computed for the rows: {cause_of(error)}. Write other values with --set, or settle them with --winner."
        ) from error
    if first is not None:
        raise ConflictError(
            f"Conflict {first['conflict_id']} of article '{article.name}' cannot be decided so: its row "
            f"{first['key']} would break the {first['rule']} of '{facts.path}'. Write other values with --set, settle it "
            "with --winner, or lift that rule.",
            conflict_id=first["conflict_id"],
            article=article.name,
        )


def _named(conflicts: Mapping[str, ConflictRow], article: PublishedArticle) -> str:
    shown = [
        f"{id_} ({', '.join(f'{name}={value}' for name, value in row.rowkey.items())})"
        for id_, row in [*conflicts.items()][:_SHOWN_IDS]
    ]
    more = f" and {len(conflicts) - len(shown)} more" if len(conflicts) > len(shown) else ""
    return f"Of article '{article.name}' conflict {', '.join(shown)}{more}"


def _carry_out(spark: SparkSession, replica: Replica, plan: _Plan, wish: Wish, resolution: str) -> _Plan:
    """Write the staged rows of one article and note its conflicts as settled; return the plan that was carried out.

    Raises: ConflictError if another writer changed one of the rows between the decision and our commit.
    """
    article, table = plan.article, replica.table(plan.article)
    if head_version(table) != plan.head:
        # Users may have written these rows since.
        plan = _plan(spark, replica, article, plan.rows, wish, resolution)
    version, overwritten = None, ""
    if plan.work is not None:
        failpoint("resolve.before_merge")
        folder = _staged_at(replica, resolution, article)
        commit = merge_rows(
            lambda: spark,
            lambda session: read_staged(session, folder),
            table,
            article,
            action=ACTION,
            actions=plan.work.actions,
            bounds=plan.work.bounds,
            transaction=next_transaction(
                table, RESOLVE_APP_ID, CommitMark(resolution, f"resolve:{resolution}", replica.info().replid)
            ),
            from_version_exclusive=plan.head,
            generated_columns=open_table(table).generated_columns,
        )
        version = commit.version
        if version > plan.head + 1 and not wish.force:
            overwritten = _overwritten(spark, replica, plan, wish, resolution, version - 1)
    failpoint("resolve.before_note")
    _note(replica, plan.settled, resolution, wish, version)
    if overwritten and version is not None:
        raise ConflictError(
            f"{overwritten} was decided while another writer changed its row, and the decision replaced that change. The "
            f"row as it was then is in version {version - 1} of '{table}' (SELECT … VERSION AS OF {version - 1}): write "
            "it again if it is the right one.",
            article=article.name,
        )
    return plan


def _overwritten(
    spark: SparkSession, replica: Replica, plan: _Plan, wish: Wish, resolution: str, before: int
) -> str:
    """Return the conflicts whose rows we wrote although others had changed them by the version before our commit.

    Returns: The beginning of a sentence, or ''.
    """
    by_id = _newest_of_each_row(plan.settled)
    kept = Kept()
    try:
        written = read_staged(spark, _staged_at(replica, resolution, plan.article)).select("conflict_id")
        rows = decide_again(spark, replica, plan.article, [*by_id.values()], wish, before, kept)
        changed = rows.where("not is_unchanged").join(written, on="conflict_id", how="left_semi")
        found = {id_: by_id[id_] for id_, *_ in changed.select("conflict_id").collect()}
    finally:
        kept.release()
    return _named(found, plan.article) if found else ""


def _note(
    replica: Replica, rows: Sequence[ConflictRow], resolution: str, wish: Wish, version: int | None
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
                table_version=version,
                resolved_at=now,
            )
            for row in rows
        ],
    )

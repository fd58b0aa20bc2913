"""Late changes against the rows that we applied: decided, and compared with what the table holds."""

import logging
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER, Action
from mergerepl.delta.tables import open_table
from mergerepl.frames import DataFrame, F
from mergerepl.merge.apply.side import Side, recorded_rows
from mergerepl.merge.capture.capture import CapturedArticle
from mergerepl.merge.stage.constraints import broken_rules
from mergerepl.merge.stage.decision import Changed, decided, resolved
from mergerepl.merge.stage.late_round import LateRound
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, PRIORITY, RESOLVERS
from mergerepl.model.session_terms import SessionTerms, terms_of
from mergerepl.rows.images import image_type, same_image
from mergerepl.rows.lineage_value import agent_nickname
from mergerepl.spark.errors import cause_of
from mergerepl.spark.in_memory import Kept

log = logging.getLogger(__name__)


def late_rows(late: LateRound, captured: CapturedArticle, kept: Kept) -> DataFrame:
    """Return RESOLVED of the late changes against the rows we applied: the remaining changes of the table.

    If the article's resolver needs it, the rows have `base`, as captured.
    """
    article, side = captured.article, late.side
    assert captured.rows is not None
    assert captured.generation is not None
    generation = captured.generation.generation
    late_keys = captured.rows.select(changes.ROWGUID)
    # A row that left cannot conflict: the late write is inserted again, and the next session uploads it.
    decided_here = tuple(action for action in changes.DATA_ACTIONS if action is not Action.LEAVE)
    written = recorded_rows(late.spark, side, side.work_on(article), actions=decided_here)
    applied = written.join(late_keys, on=changes.ROWGUID, how="left_semi")
    # The publisher's position wins ties. From the second round on the applied row is this replica's earlier late write:
    # the later write takes the winning position.
    wins_ties = side.name == PUBLISHER or late.number > 1
    at_publisher, at_subscriber = (captured.rows, applied) if wins_ties else (applied, captured.rows)
    terms = SessionTerms(
        upload=True,
        download=True,
        resolver_nickname=agent_nickname(side.work.nickname),
        client_subscription=late.client_subscription and side.name == PUBLISHER,
        publisher_generations={generation: generation},
        subscriber_generations={generation: generation},
        # At a subscriber, a merged row keeps the priority of the late write until it is uploaded.
        unpublished=None if side.name == PUBLISHER else PUBLISHER if wins_ties else SUBSCRIBER,
    )
    in_table = _in_table(late, captured.rows, article)

    # A sum already includes an older state of the late value. From the second round on it belongs to no side.
    is_default = late.number > 1 or RESOLVERS[article.resolver].makes_value
    # The resolver's function may fail, but the session must finish.
    is_default = is_default or article.resolver == CUSTOM
    decided_as = replace(article, resolver=PRIORITY, resolver_info=None) if is_default else article

    def resolve(at_publisher: DataFrame, at_subscriber: DataFrame, *, whole_rows: bool = False) -> DataFrame:
        of_article = terms_of(
            decided_as,
            resolved_at_publisher=generation,
            resolved_at_subscriber=generation,
            whole_rows=whole_rows,
            floor=side.changeset.manifest.floor,
            clock=late.info.clock + 1,
            # A row that was inserted late.
            publisher_fresh_after=generation - 1,
            subscriber_fresh_after=generation - 1,
        )
        # A row that we applied without a late write is not compared.
        changed = Changed(decided_as, of_article, at_publisher, at_subscriber, rows=2 * captured.changes)
        return resolved(changed, decided([changed], terms, kept), terms)

    outcome = kept.keep(resolve(at_publisher, at_subscriber))
    if article.generated and not _is_computable(outcome, article):
        outcome = kept.keep(resolve(at_publisher, at_subscriber, whole_rows=True))
    acted = _acted_on(outcome, in_table, side, generation)
    broken = _not_taken(late, acted, article, kept)
    if broken is None:
        return _with_base(acted, captured.rows)
    # Both halves were in this table, but not together: each row becomes one side's whole row; the other's is logged.
    publishers, subscribers = (
        wanted.join(broken, on=changes.ROWGUID, how="left_semi") for wanted in (at_publisher, at_subscriber)
    )
    as_wholes = resolve(publishers, subscribers, whole_rows=True)
    others = acted.join(broken, on=changes.ROWGUID, how="left_anti")
    return _with_base(others.unionByName(_acted_on(as_wholes, in_table, side, generation)), captured.rows)


def _with_base(rows: DataFrame, captured: DataFrame) -> DataFrame:
    if changes.BASE not in captured.columns:
        return rows
    return rows.join(captured.select(changes.ROWGUID, changes.BASE), on=changes.ROWGUID, how="left")


def _is_computable(outcome: DataFrame, article: PublishedArticle) -> bool:
    """True if Delta can compute the generated columns of merged rows: both halves together may overflow.

    Each half is already in the table, and the session must finish.
    """
    try:
        outcome.count()
    except (PySparkException, Py4JJavaError) as error:
        log.warning("%s: late changes are not merged by columns: %s", article.name, cause_of(error))
        return False
    return True


def _not_taken(late: LateRound, acted: DataFrame, article: PublishedArticle, kept: Kept) -> DataFrame | None:
    """Return the rowguids of rows that the table would refuse; None if it takes all.

    Returns all of them if a rule cannot be computed, as for an overflow in a CHECK: the error does not name the row.
    """
    facts = open_table(late.side.replica.table(article))
    written = acted.where(F.col(late.side.action).isin(Action.INSERT.value, Action.UPDATE.value))
    refused = broken_rules(late.spark, written, facts, article)
    if refused is None:
        return None
    try:
        found = kept.keep(refused.select(changes.ROWGUID))
        # Computed for every row: Spark would stop at the first one, and a later one may fail.
        return found if found.count() else None
    except (PySparkException, Py4JJavaError) as error:
        log.warning("%s: late changes are not merged by columns: %s", article.name, cause_of(error))
        return kept.keep(written.select(changes.ROWGUID))


def _in_table(late: LateRound, rows: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the late rows as the table has them now: as our MERGE wrote them, or else as the user left them.

    If the changeset has only metadata of a row, we did not write it, so the user's late write stands.

    Returns: rowguid, held_deleted, held_row.
    """
    written = late.staged_rows(article).select(
        changes.ROWGUID,
        F.struct(
            (F.col(changes.DELETED) | (F.col(late.side.action) == Action.LEAVE.value)).alias(changes.DELETED),
            changes.ROW,
        ).alias("written"),
    )
    held = rows.select(changes.ROWGUID, F.struct(changes.DELETED, changes.ROW).alias("left")).join(
        written, on=changes.ROWGUID, how="left"
    )
    held_now = F.coalesce("written", "left")
    return held.select(
        changes.ROWGUID,
        held_now[changes.DELETED].alias("held_deleted"),
        held_now[changes.ROW].alias("held_row"),
    )


def _acted_on(resolved: DataFrame, in_table: DataFrame, side: Side, generation: int) -> DataFrame:
    """Set the action of this side by comparing the final state with the table."""
    joined = resolved.join(in_table, on=changes.ROWGUID, how="left")
    same = same_image(changes.ROW, "held_row", image_type(joined, changes.ROW))
    action = (
        F.when(F.col(changes.DELETED) & F.col("held_deleted"), Action.METADATA.value)
        .when(F.col(changes.DELETED), Action.DELETE.value)
        .when(F.col("held_deleted"), Action.INSERT.value)
        .when(same, Action.METADATA.value)
        .otherwise(Action.UPDATE.value)
    )
    other_action = changes.ACTION_OF[changes.OTHER_SIDE[side.name]]
    acted = joined.withColumns(
        {
            side.action: action,
            side.generation: F.lit(generation).cast("bigint"),
            other_action: F.lit(None).cast("string"),
        }
    )
    return acted.select(*changes.RESOLVED_COLUMNS)

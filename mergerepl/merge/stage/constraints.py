"""The rows of a changeset that a destination table would refuse, found before anything is applied.

A row that breaks a CHECK constraint, a NOT NULL or a length at its destination would fail the MERGE of the whole
article, and a partition column would store some texts as others. The staged rows and the destination's log are checked,
so that such rows are withheld; a filtered article is left out of the session as a whole.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from conflict.failed_changes import REFUSED_AT, REFUSED_COLUMNS
from mergerepl import changes
from mergerepl.delta.contract.problems import write_problem
from mergerepl.delta.contract.rules import table_rules
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.metadata import DEFAULT_EXPRESSION, GENERATION_EXPRESSION
from mergerepl.delta.small_writer import reason_for_spark
from mergerepl.delta.tables import TableState, analyse_merge, open_table, read_version, recent_head
from mergerepl.delta.types import padded_types
from mergerepl.errors import ApplyError
from mergerepl.frames import Column, DataFrame, F, is_in_process, on_spark
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.images import identity_value
from mergerepl.rows.sql import free_name, quote
from mergerepl.spark.errors import cause_of, engine_answers
from mergerepl.spark.session import require_utc
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import worker_threads

log = logging.getLogger(__name__)


def takes_any_row(facts: TableState, article: PublishedArticle) -> bool:
    """True if a table takes every row of its types, and every delete."""
    return not facts.is_append_only and not table_rules(facts, article.columns)


@dataclass(frozen=True)
class Destination:
    """One side's table of a staged article, with the side's work on it.

    `rows` is the place of the staged rows, with `row` and the column `action`.
    """

    action: str
    table: TableState
    article: PublishedArticle
    work: ArticleWork
    rows: Location


def destinations(
    rows: Location, staged: StagedArticle, at: Mapping[str, PublishedArticle], replicas: Mapping[str, Replica]
) -> dict[str, Destination]:
    """Return both sides of a staged article.

    Raises: ApplyError if they pad texts otherwise.
    """
    places = {side: replicas[side].table(article) for side, article in at.items()}
    tables = {side: open_table(place, recent_head(place)) for side, place in places.items()}
    _refuse_other_padding(at[changes.PUBLISHER], tables[changes.PUBLISHER], tables[changes.SUBSCRIBER])
    return {
        side: Destination(changes.ACTION_OF[side], tables[side], at[side], work, rows)
        for side, work in staged.works.items()
    }


def refuse_violations(choice: EngineChoice, at: Destination) -> None:
    """Check one side's rows of one article against its table there, and its MERGE.

    Raises: ApplyError naming the table, and the rule with up to three keys, or the reason why Delta cannot merge the
    rows; EngineError if the session would read the table's timestamp partition columns otherwise. Nothing has been applied.
    """
    takes_away = any(at.work.actions.get(each) for each in (changes.Action.UPDATE, changes.Action.DELETE))
    refuse_table(choice, at, takes_away=takes_away)
    written = _written(read_staged(choice.for_rules, at.rows), at.action)
    broken = broken_rules(choice.for_rules, written, at.table, at.article)
    examples = _left_to_spark(broken, at.table).limit(3).collect() if broken is not None else []
    if examples:
        undo = ""
        if at.action == changes.PUBLISHER_ACTION:
            undo = " Or have them undone at the subscriber: state `compensate_for_errors: upload` for the article."
        raise ApplyError(
            f"Article '{at.article.name}': changed rows break the {examples[0][changes.RULE]} of '{at.table.path}': "
            f"{', '.join(row[changes.KEY] for row in examples)}. Nothing of this article was applied. Correct these rows "
            f"where they were changed, or lift that rule there, then run again.{undo}",
            article=at.article.name,
            table=str(at.table.path),
        )


def refuse_table(choice: EngineChoice, at: Destination, *, takes_away: bool) -> None:
    """Check that a table takes an article's rows, except for rules of single rows.

    Raises: as `refuse_violations`.
    """
    table, article = at.table, at.article
    problem = write_problem(table, takes_away=takes_away)
    if problem is not None:
        what, remedy = problem
        raise ApplyError(
            f"Article '{article.name}': {what}. Nothing of this article was applied. {remedy}",
            article=article.name,
            table=str(table.path),
        )
    if choice.uses_arrow and not reason_for_spark(table, article, at.work.actions, at.work.bounds):
        return
    with on_spark():
        require_utc(choice.spark, article.name, table.path, table.metadata.timestamp_partitions)
        _refuse_unmergeable(choice.spark, at)


def _refuse_unmergeable(spark: SparkSession, at: Destination) -> None:
    """Let Delta analyse the MERGE before anything is staged: a session that cannot merge would never finish.

    Raises: ApplyError with Delta's reason.
    """
    table, article = at.table, at.article
    try:
        analyse_merge(
            spark,
            lambda session: read_staged(session, at.rows),
            table.path,
            article,
            action=at.action,
            actions=at.work.actions,
            bounds=at.work.bounds,
            generated_columns=table.generated_columns,
        )
    except (PySparkException, Py4JJavaError) as error:
        if not engine_answers():
            raise
        raise ApplyError(
            f"Article '{article.name}': Delta cannot merge its changed rows into '{table.path}': {cause_of(error)}. "
            "Nothing of this article was applied. Fix that table, or leave the column that this names out with "
            "`columns:`, then run again.",
            article=article.name,
            table=str(table.path),
        ) from error


def require_takers(choice: EngineChoice, both: Mapping[str, Destination]) -> None:
    """Check the written tables of an article, except for rules of single rows.

    Raises: as `refuse_violations`.
    """

    def check(at: Destination) -> None:
        refuse_table(choice, at, takes_away=False)

    # Spark analyses a MERGE on one core.
    with worker_threads(len(both)) as pool:
        list(pool.map(check, (at for at in both.values() if at.work.touches_rows)))


def _written(rows: DataFrame, action: str) -> DataFrame:
    return rows.where(F.col(action).isin(changes.Action.INSERT.value, changes.Action.UPDATE.value))


def refused_rows(
    spark: SparkSession, rows: DataFrame, at: Mapping[str, PublishedArticle], tables: Mapping[str, TableState]
) -> DataFrame | None:
    """Return REFUSED: the RESOLVED rows that one of the two tables would refuse; None if both take any row."""
    found = [
        _left_to_spark(broken, facts).select(
            changes.ROWGUID, F.lit(REFUSED_AT[side]).alias("side"), changes.RULE
        )
        for side, facts in tables.items()
        if (broken := _not_taken(spark, rows, facts, at[side], changes.ACTION_OF[side])) is not None
    ]
    if not found:
        return None
    rules = [
        F.max(F.when(F.col("side") == name, F.col(changes.RULE))).alias(name) for name in REFUSED_AT.values()
    ]
    broken = reduce(DataFrame.unionByName, found).groupBy(changes.ROWGUID).agg(*rules)
    planned = rows.select(changes.ROWGUID, changes.VERDICT, *changes.ACTION_OF.values())
    return planned.join(broken, on=changes.ROWGUID).select(*REFUSED_COLUMNS)


def _not_taken(
    spark: SparkSession, rows: DataFrame, facts: TableState, article: PublishedArticle, action: str
) -> DataFrame | None:
    """Return rowguid and rule of the rows that a table would refuse; None if it takes any row."""
    broken = broken_rules(spark, _written(rows, action), facts, article)
    if not facts.is_append_only:
        return broken
    takes_away = F.col(action).isin(changes.Action.UPDATE.value, changes.Action.DELETE.value)
    kept = rows.where(takes_away).select(
        changes.ROWGUID, F.lit("append-only table (delta.appendOnly = true)").alias(changes.RULE)
    )
    return kept if broken is None else kept.unionByName(broken.select(changes.ROWGUID, changes.RULE))


def _refuse_other_padding(article: PublishedArticle, publisher: TableState, subscriber: TableState) -> None:
    """Check that texts are padded on both sides or on neither: otherwise equal keys differ, and each row arrives twice.

    The log shows a table that was declared again, unless that happened during a session.

    Raises: ApplyError.
    """
    for name in article.columns:
        one, other = publisher.field(name), subscriber.field(name)
        if one is None or other is None or padded_types(one) == padded_types(other):
            continue
        raise ApplyError(
            f"Article '{article.name}': column '{name}' is a char(n) at one side only, or of another length "
            f"({publisher.path}: {', '.join(padded_types(one)) or 'none'}; {subscriber.path}: "
            f"{', '.join(padded_types(other)) or 'none'}), so its texts would differ in their padding. Nothing of "
            "this article was applied. Declare the column as it was when it was published, then run again.",
            article=article.name,
            column=name,
        )


def broken_rules(
    spark: SparkSession, rows: DataFrame, facts: TableState, article: PublishedArticle
) -> DataFrame | None:
    """Return rowguid, rule, key of the rows (rowguid, row) that a table would refuse; None if it takes any row.

    A CHECK about columns that are not published reads the table. The key is there on Spark only.
    """
    rules = table_rules(facts, article.columns)
    if not rules:
        return None
    # A CHECK may name a column that is not published: it must not match a column of ours.
    guid = free_name(changes.ROWGUID, [field["name"] for field in facts.fields])
    named = rows.select(
        F.col(changes.ROWGUID).alias(guid),
        *(
            F.col(f"{changes.ROW}.{field}").alias(name)
            for name, field in zip(article.columns, article.fields, strict=True)
        ),
    )
    if _speak_of_others(named, rules):
        named = _with_left_out(named, facts, article, read_version(spark, facts.path, facts.version))
    broken = F.coalesce(*(F.when(~rule, F.lit(name)) for name, rule in rules.items()), F.lit(None))
    # In process no row's key is named (`_left_to_spark`).
    columns = [F.col(guid).alias(changes.ROWGUID), broken.alias(changes.RULE)]
    if not is_in_process():
        columns.append(
            F.to_json(F.struct(*(F.col(quote(name)) for name in article.identity))).alias(changes.KEY)
        )
    return named.select(*columns).where(F.col(changes.RULE).isNotNull())


def _left_to_spark(refused: DataFrame, facts: TableState) -> DataFrame:
    """Return rows that a table refuses; [] in process, as Spark names their keys and decides about them."""
    if is_in_process() and refused.count():
        raise NeedsSparkError("it refuses some rows", facts.path)
    return refused


def _speak_of_others(rows: DataFrame, rules: Mapping[str, Column]) -> bool:
    """True if rules name columns that the rows lack, as a CHECK about unpublished columns does."""
    try:
        rows.select(*rules.values())
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            return True
        raise
    return False


def _with_left_out(
    named: DataFrame, facts: TableState, article: PublishedArticle, held: DataFrame
) -> DataFrame:
    """Add the columns that the article leaves out, as the MERGE will write them.

    They have the value of the table's row with that key, else the default or NULL. Generated columns are computed again.
    """
    others = [field for field in facts.fields if field["name"] not in article.columns]
    plain = [field for field in others if field["name"] not in facts.generated_columns]
    taken = [*named.columns, *(field["name"] for field in others)]
    is_guid = article.rowguid_column is not None
    keys = {name: free_name(f"key_{i}", taken) for i, name in enumerate(article.identity)}
    there = free_name("held", taken)
    then = held.select(
        *(identity_value(F.col(quote(name)), existing=is_guid).alias(key) for name, key in keys.items()),
        F.struct(F.lit(1), *(F.col(quote(field["name"])) for field in plain)).alias(there),
    )
    same = reduce(
        and_,
        (identity_value(F.col(quote(name)), existing=is_guid) == F.col(key) for name, key in keys.items()),
    )
    joined = named.join(then, on=same, how="left")
    values = []
    for field in plain:
        name, metadata = field["name"], field["metadata"]
        type_ = held.schema[name].dataType
        otherwise = F.expr(metadata[DEFAULT_EXPRESSION]) if DEFAULT_EXPRESSION in metadata else F.lit(None)
        kept = F.when(F.col(there).isNotNull(), F.col(there).getField(name)).otherwise(otherwise.cast(type_))
        values.append(kept.alias(name))
    rows = joined.select(*(quote(name) for name in named.columns), *values)
    generated = {
        field["name"]: F.expr(field["metadata"][GENERATION_EXPRESSION])
        for field in others
        if field["name"] in facts.generated_columns
    }
    return rows.withColumns(generated) if generated else rows

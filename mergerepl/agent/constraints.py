"""Refuse a changeset whose rows a destination table would not take, before anything is applied.

A row that breaks a CHECK constraint, a NOT NULL or a length at its destination would make the MERGE fail for
the whole article. It is told from the staged rows and the destination's log, so that the session ends with
nothing changed and the row named.
"""

import logging
import re
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import changes
from mergerepl.agent.stage import StagedArticle
from mergerepl.errors import ApplyError
from mergerepl.model.article import PublishedArticle
from mergerepl.publish.table_facts import TableFacts, read_table_facts
from mergerepl.store.replica import Replica
from mergerepl.store.sql import quote

log = logging.getLogger(__name__)

_CHECK = "delta.constraints."
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"


def rules_of(facts: TableFacts, article: PublishedArticle) -> dict[str, Column]:
    """Return name -> condition of what a table asks of its rows beyond their types, on columns by their own names."""
    rules = {
        # Delta, unlike SQL, takes a row only if the condition is true: NULL breaks it.
        f"CHECK constraint '{key.removeprefix(_CHECK)}' ({text})": F.coalesce(F.expr(text), F.lit(False))
        for key, text in facts.properties.items()
        if key.startswith(_CHECK)
    }
    for name in article.columns:
        field = facts.field(name)
        if field is None:
            continue
        if not field["nullable"]:
            rules[f"NOT NULL of column '{name}'"] = F.col(quote(name)).isNotNull()
        declared = re.match(r"(?:var)?char\((\d+)\)", str(field["metadata"].get(_LENGTH, "")))
        if declared:
            rules[f"type {declared.group(0)} of column '{name}'"] = F.char_length(F.col(quote(name))) <= int(
                declared.group(1)
            )
    return rules


def refuse_violations(
    spark: SparkSession,
    staged_rows: Path,
    staged: StagedArticle,
    publisher: Replica,
    subscriber: Replica,
    at_publisher: PublishedArticle,
    at_subscriber: PublishedArticle,
) -> None:
    """Check the staged rows of one article against both tables' rules.

    Raises: ApplyError naming the rule, the table and up to three keys; nothing has been applied then.
    """
    sides = (
        (staged.publisher.touches_rows, publisher, at_publisher, changes.PUBLISHER_ACTION),
        (staged.subscriber.touches_rows, subscriber, at_subscriber, changes.SUBSCRIBER_ACTION),
    )
    for touches, replica, article, action in sides:
        rules = rules_of(read_table_facts(replica.table(article)), article) if touches else {}
        if not rules:
            continue
        rows = (
            spark.read.parquet(str(staged_rows))
            .where(F.col(action).isin(changes.Action.INSERT.value, changes.Action.UPDATE.value))
            .select(
                *(
                    F.col(f"{changes.ROW}.{f}").alias(n)
                    for n, f in zip(article.columns, article.fields, strict=True)
                )
            )
        )
        rules = _computable(rows, rules)
        if not rules:
            continue
        broken = F.coalesce(*(F.when(~rule, F.lit(name)) for name, rule in rules.items()), F.lit(None))
        identity = F.to_json(F.struct(*(F.col(quote(name)) for name in article.identity)))
        found = rows.select(broken.alias("rule"), identity.alias("key")).where(F.col("rule").isNotNull())
        examples = found.limit(3).collect()
        if examples:
            raise ApplyError(
                f"Article '{article.name}': changed rows break the {examples[0]['rule']} of "
                f"'{replica.table(article)}': "
                f"{', '.join(row['key'] for row in examples)}. Nothing was applied. Correct these rows where "
                "they were "
                "changed, or drop the constraint there, then run again.",
                article=article.name,
                table=str(replica.table(article)),
            )


def _computable(rows: DataFrame, rules: dict[str, Column]) -> dict[str, Column]:
    """Return the rules that speak of published columns only.

    What a CHECK says of other columns is not in the changeset: an update leaves them as they are at the
    destination, an insert leaves them NULL. A row that breaks such a CHECK fails the MERGE instead, with
    Delta's own message and nothing of the article applied.
    """
    computable = {}
    for name, rule in rules.items():
        try:
            rows.select(rule)
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
                raise
            log.info("%s is left to the MERGE: it speaks of unpublished columns", name)
            continue
        computable[name] = rule
    return computable

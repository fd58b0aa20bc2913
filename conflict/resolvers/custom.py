"""Resolvers of your own: the input of such a function, its allowed answers, and their meaning.

Pure: the agent loads the function, runs it once, and hands its answer on as a column of the detected rows.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import types as T

from conflict.detect import NAME, PUBLISHER_CHANGED, SIDES, SUBSCRIBER_CHANGED, is_conflict
from conflict.resolvers import priority
from conflict.resolvers.base import Rule, Values
from mergerepl.changes import (
    CONFLICT_COLUMNS,
    DELETED,
    LINEAGE,
    MADE,
    PRIORITY,
    PUBLISHER,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TABLENICK,
    ancestor_column,
    made_column,
    values_column,
)
from mergerepl.frames import Column, DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, RESOLVERS
from mergerepl.rows.images import same_value

ANSWER: Final = "answer"
"""Column of detected rows: the answer to a conflict, as a struct (name, outcome, message); NULL without a question."""

NAME_OF: Final = "name"
OUTCOME: Final = "outcome"
MESSAGE: Final = "message"
KIND: Final = "kind"
UPDATE: Final = "update"
UPDATE_DELETE: Final = "update_delete"

OUTCOMES: Final = ("publisher", "subscriber", "default", "row", "delete")
"""The outcomes of a function: one side's row, the decision by priority, its own row (for two updates only), or no row."""

PROBLEM: Final = "problem"
_LONGEST_MESSAGE = 512


def conflicts_of(detected: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the conflicts of one article in the form that a function gets, each rowguid once.

    Returns: rowguid, kind (update or update_delete), publisher and subscriber as structs (deleted, priority, changed,
        lineage, row with the columns by their names), base (the row before both changes; NULL: it did not exist, or is
        unknown) and base_known, conflict_columns, default_publisher_wins. For a deleted side `row` is its last image.
    """
    values, ancestor = values_column(article.nickname), ancestor_column(article.nickname)
    found = F.col(f"{SUBSCRIBER}.{ancestor}")

    def named(struct: str) -> Column:
        fields = zip(article.columns, article.fields, strict=True)
        return F.struct(*(F.col(f"{struct}.{field}").alias(column) for column, field in fields))

    def side(name: str, changed: str) -> Column:
        own = F.filter(SIDES, lambda each: each[NAME].isNotNull() & each[changed])
        names = F.transform(own, lambda each: each[NAME])
        return F.struct(
            F.col(f"{name}.{DELETED}").alias(DELETED),
            F.col(f"{name}.{PRIORITY}").alias(PRIORITY),
            names.alias("changed"),
            F.col(f"{name}.{LINEAGE}").alias(LINEAGE),
            named(f"{name}.{values}").alias(ROW),
        ).alias(name)

    is_of_delete = F.col(f"{PUBLISHER}.{DELETED}") != F.col(f"{SUBSCRIBER}.{DELETED}")
    return detected.where((F.col(TABLENICK) == article.nickname) & is_conflict()).select(
        ROWGUID,
        F.when(is_of_delete, UPDATE_DELETE).otherwise(UPDATE).alias(KIND),
        side(PUBLISHER, PUBLISHER_CHANGED),
        side(SUBSCRIBER, SUBSCRIBER_CHANGED),
        F.when(~found[DELETED], named(f"{SUBSCRIBER}.{ancestor}")).alias("base"),
        found.isNotNull().alias("base_known"),
        CONFLICT_COLUMNS,
        priority.publisher_wins().alias("default_publisher_wins"),
    )


def schema_problem(answers: T.StructType, asked: T.StructType) -> str | None:
    """Return the problem of the columns of a function's answer; None if they are right. No value is cast."""
    side = asked[PUBLISHER].dataType
    assert isinstance(side, T.StructType)
    types = {
        ROWGUID: T.StringType(),
        OUTCOME: T.StringType(),
        ROW: side[ROW].dataType,
        MESSAGE: T.StringType(),
    }
    missing = [name for name in (ROWGUID, OUTCOME) if name not in answers.names]
    if missing:
        return f"it has no column {' and no column '.join(missing)}"
    extra = [name for name in answers.names if name not in types]
    if extra or len(set(answers.names)) < len(answers.names):
        return (
            f"it has the columns {', '.join(answers.names)}, and may have {', '.join(types)} only, each once"
        )
    for name in answers.names:
        given, wanted = answers[name].dataType.simpleString(), types[name].simpleString()
        if given != wanted:
            return f"its column {name} is {given}, and must be {wanted}"
    return None


def complete(answers: DataFrame, asked: DataFrame) -> DataFrame:
    """Return answers with the columns that may be left out, each NULL then."""
    row = asked.select(f"{PUBLISHER}.{ROW}").schema[ROW].dataType
    missing = {ROW: F.lit(None).cast(row), MESSAGE: F.lit(None).cast("string")}
    values = [missing[name].alias(name) if name not in answers.columns else F.col(name) for name in missing]
    return answers.select(ROWGUID, OUTCOME, *values)


def problems_of(answers: DataFrame, asked: DataFrame, key: Iterable[str]) -> DataFrame:
    """Return the answers that cannot be used: rowguid, problem. `answers` are complete, `key` identifies a row."""
    given = answers.groupBy(ROWGUID).agg(
        F.count("*").alias("answers"), F.first(OUTCOME).alias(OUTCOME), F.first(ROW).alias("made")
    )
    both = asked.select(ROWGUID, KIND, F.col(f"{PUBLISHER}.{ROW}").alias("had")).join(
        given, on=ROWGUID, how="full_outer"
    )
    is_row = F.col(OUTCOME) == "row"
    types = {field.name: field.dataType for field in asked.select(f"{PUBLISHER}.{ROW}.*").schema}
    same_key = [
        same_value(F.col("made").getField(name), F.col("had").getField(name), types[name]) for name in key
    ]
    changes_key = ~F.forall(F.array(*same_key), lambda each: each)
    problem = (
        F.when(F.col(KIND).isNull(), "an answer to a conflict that was not asked for")
        .when(F.col("answers").isNull(), "no answer")
        .when(F.col("answers") > 1, "several answers")
        .when(F.col(OUTCOME).isNull() | ~F.col(OUTCOME).isin(*OUTCOMES), "an outcome that there is not")
        .when(is_row & (F.col(KIND) == UPDATE_DELETE), "a row where one side deleted it")
        .when(is_row & F.col("made").isNull(), "the outcome `row` without a row")
        .when(~is_row & F.col("made").isNotNull(), "a row with another outcome than `row`")
        .when(is_row & changes_key, "a row with another key")
    )
    return both.select(ROWGUID, problem.alias(PROBLEM)).where(F.col(PROBLEM).isNotNull())


def with_answers(detected: DataFrame, answers: DataFrame, article: PublishedArticle, name: str) -> DataFrame:
    """Return the detected rows with the answers of one article's function, which the rule `custom` then follows."""
    fields = dict(zip(article.columns, article.fields, strict=True))
    making = F.struct(
        *(
            F.struct((F.col(OUTCOME) == "row").alias(MADE), F.col(ROW).getField(column).alias("value")).alias(
                fields[column]
            )
            for column in article.value_columns
        )
    )
    answer = F.struct(
        F.lit(name).alias(NAME_OF), OUTCOME, F.substring(MESSAGE, 1, _LONGEST_MESSAGE).alias(MESSAGE)
    )
    given = answers.select(
        F.lit(article.nickname).alias(TABLENICK),
        ROWGUID,
        answer.alias("given"),
        making.alias(made_column(article.nickname)),
    )
    joined = detected.join(given, on=[TABLENICK, ROWGUID], how="left")
    before = F.col(ANSWER) if ANSWER in detected.columns else F.lit(None)
    return joined.withColumn(ANSWER, F.coalesce("given", before)).drop("given")


def is_row() -> Column:
    """True if the answer to a conflict is a row of its own."""
    return F.coalesce(F.col(f"{ANSWER}.{OUTCOME}") == "row", F.lit(False))


def is_delete() -> Column:
    """True if the answer to a conflict is to delete the row."""
    return F.coalesce(F.col(f"{ANSWER}.{OUTCOME}") == "delete", F.lit(False))


def note() -> Column:
    """Return the message of an answer."""
    return F.col(f"{ANSWER}.{MESSAGE}")


def _wins(_: Values | None) -> Column:
    outcome = F.col(f"{ANSWER}.{OUTCOME}")
    deleted = F.col(f"{PUBLISHER}.{DELETED}")
    is_of_delete = deleted != F.col(f"{SUBSCRIBER}.{DELETED}")
    return (
        F.when(outcome == "publisher", True)
        .when(outcome == "subscriber", False)
        .when((outcome == "delete") & is_of_delete, deleted)
    )


RULES: Final = (Rule(RESOLVERS[CUSTOM], _wins),)

"""Commands whose rows the subscriber's table would refuse, found before the batch is applied, like missing rows.

Delta refuses a whole commit, and after the commit of another article. So each command is judged separately, on the row
after it: the values set by it and earlier commands, else those of the table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from mergerepl.delta.contract.rules import table_rules
from mergerepl.delta.metadata import DEFAULT_EXPRESSION
from mergerepl.delta.tables import TableState
from mergerepl.delta.types import ddl_of, fits, json_of
from mergerepl.rows.images import readable
from mergerepl.rows.sql import free_name, quote
from mergerepl.spark.errors import cause_of
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.refusals import CHECK_BROKEN, NOT_NULL_BROKEN, TOO_LONG

RULE = "rule"
HELD = "held"
SHOWN = "shown"
_REFUSAL = re.compile(
    r"\[DELTA_(?:VIOLATE_CONSTRAINT\w*|NOT_NULL_CONSTRAINT_VIOLATED|EXCEED_CHAR_VARCHAR_LIMIT|CANNOT_MODIFY_APPEND_ONLY)\] "
    r"(.+?)(?: violated by row|$)"
)
"""How Delta names the rule that refuses a row."""

_APPEND_ONLY = "append-only table (delta.appendOnly = true)"


@dataclass(frozen=True)
class RowRules:
    """The rules of a subscriber's table. `columns` are those in the rules, unless Delta computes them.

    `held` are those whose values are read from the table: commands may lack them. `written` are the operations that write
    to the table: custom procedures may not.
    """

    table: TableState
    conditions: Mapping[str, Column]
    columns: tuple[str, ...]
    held: tuple[str, ...]
    written: frozenset[Operation]


def refusing_rule(error: Exception) -> str | None:
    """Return the rule of a table by which Delta refused a row, None for another error."""
    found = _REFUSAL.search(cause_of(error))
    return None if found is None else found[1].strip()


COMPUTED = "computed"


def misfits(table: TableState, article: Shape) -> dict[str, str]:
    """Return the columns that a subscriber's table has otherwise than an article: its type there, COMPUTED, '' for none."""
    known = {each["name"].lower(): ddl_of(each["type"]) for each in table.fields}
    plain = {each.lower() for each in table.written_columns}
    found = {}
    for name, type_ in zip(article.columns, article.types, strict=True):
        has = known.get(name.lower(), "")
        if has != type_ or name.lower() not in plain:
            found[name] = COMPUTED if has == type_ else has
    return found


def narrower_columns(table: TableState, article: Shape) -> dict[str, str]:
    """Return the columns of a subscriber's table that cannot hold every value of an article, with their types there."""
    types = dict(zip(article.columns, article.types, strict=True))
    known = {each["name"].lower(): each["type"] for each in table.fields}
    return {
        name: has
        for name, has in misfits(table, article).items()
        if has not in ("", COMPUTED)
        and ("<" in types[name] or not fits(json_of(types[name]), known[name.lower()]))
    }


def row_rules(table: TableState, shape: Shape, written: frozenset[Operation]) -> RowRules | None:
    """Return the rules of a subscriber's table for the rows of an article; None if it accepts any row."""
    known = {*table.written_columns, *table.generated_columns}
    # Delta counts identity columns when it writes: a rule about one is left to it.
    counted = [re.escape(field["name"]) for field in table.fields if field["name"] not in known]
    conditions = {
        name: condition
        for name, condition in table_rules(table, known).items()
        if not any(re.search(rf"(?<!\w){each}(?!\w)", name, re.IGNORECASE) for each in counted)
    }
    if not conditions and not table.is_append_only:
        return None
    texts = [*conditions, *table.generated_columns.values()]
    # By their names in the texts: an extra column costs little.
    named = [name for name in table.written_columns if any(name.lower() in text.lower() for text in texts)]
    has_gaps = shape.command(Operation.UPDATE).passes_bitmap
    held = [name for name in named if has_gaps or name not in shape.columns]
    return RowRules(table, conditions, tuple(named), tuple(held), written)


def with_broken_rules(
    commands: DataFrame, rules: RowRules, shape: Shape, sets: Callable[[int], Column], *, is_once: bool
) -> DataFrame:
    """Return judged commands with the rule that the row after each breaks (`rule`, NULL), and the row's values (`shown`).

    `sets` gives the condition that a command sets a column, by its number. `is_once`: a row has one command.

    Reads: judged commands, with `held`. `number` becomes that of the rule.
    """
    types = {field["name"]: field for field in rules.table.fields}
    is_applied = F.col("number").isNull()
    so_far = (
        Window.partitionBy("row_key", "born")
        .orderBy("ord")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )

    def value(name: str) -> Column:
        found = []
        type_ = ddl_of(types[name]["type"])
        if name in shape.columns:
            k = shape.columns.index(name) + 1
            stated = F.when(is_applied & sets(k), F.struct(F.col(f"new.c{k}").cast(type_).alias("v")))
            found.append(stated if is_once else F.last(stated, ignorenulls=True).over(so_far))
        if name in rules.held:
            was_there = F.col("is_there") & F.col("born").isNull()
            found.append(F.when(was_there, F.struct(F.col(HELD).getField(name).alias("v"))))
        default = types[name]["metadata"].get(DEFAULT_EXPRESSION)
        otherwise = F.lit(None) if default is None or name in shape.columns else F.expr(default)
        return F.coalesce(*found, F.struct(otherwise.cast(type_).alias("v"))).getField("v")

    packed = free_name("__command", types)
    rows = commands.select(
        F.struct(*commands.columns).alias(packed), *(value(name).alias(name) for name in rules.columns)
    )
    generated = {
        name: F.expr(text).cast(ddl_of(types[name]["type"]))
        for name, text in rules.table.generated_columns.items()
    }
    if generated:
        rows = rows.withColumns(generated)
    operation = F.col(f"{packed}.operation")
    is_row = operation != Operation.DELETE.value
    broken = [F.when(is_row & ~condition, F.lit(name)) for name, condition in rules.conditions.items()]
    if rules.table.is_append_only:
        broken.append(F.when(operation != Operation.INSERT.value, F.lit(_APPEND_ONLY)))
    shown = [
        F.concat(
            F.lit(f"{name} = "),
            F.coalesce(readable(F.col(quote(name)), rows.schema[name].dataType), F.lit("NULL")),
        )
        for name in rules.columns
    ]
    number = F.col(f"{packed}.number")
    is_written = operation.isin([each.value for each in rules.written])
    rule = F.when(number.isNull() & is_written, F.coalesce(*broken))
    judged = rows.select(
        *(F.col(f"{packed}.{name}").alias(name) for name in commands.columns if name not in ("number", HELD)),
        rule.alias(RULE),
        F.array(*shown).cast("array<string>").alias(SHOWN),
        number.alias("was"),
    )
    of_rule = (
        F.when(F.col(RULE).startswith("NOT NULL"), NOT_NULL_BROKEN)
        .when(F.col(RULE).startswith("type "), TOO_LONG)
        .when(F.col(RULE).isNotNull(), CHECK_BROKEN)
    )
    return judged.withColumn("number", F.coalesce("was", of_rule)).drop("was")


def broken_text(shape: Shape, table: str, number: int, title: str, rule: str, shown: list[str]) -> str:
    """Return the text of a command whose row breaks a rule, up to the key."""
    values = ", ".join(each for each in shown if each.partition(" = ")[0].lower() in rule.lower())
    row = f"The row would have {values}. " if values else ""
    said = f"{number}: The {title} command breaks the {rule} of '{table}'. {row}"
    return f"{said}Article '{shape.article}' with Primary Key(s): "

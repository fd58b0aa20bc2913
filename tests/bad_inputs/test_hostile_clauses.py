"""No clause of a file makes Spark, Java or the machine do anything; what is not on the list of filters is refused."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.errors import ConfigurationError
from mergerepl.filters.clause import Column, SessionFunction
from mergerepl.filters.columns import column_of, holds
from mergerepl.filters.parse import parse_filter
from mergerepl.filters.prepare import prepare_clause
from mergerepl.filters.publication_filters import parts_of
from tests import project_files as config
from tests.bad_inputs.hostile_clauses import HOSTILE

HOSTS = [
    "North",
    "x' OR '1' = '1",
    "' OR 1=1 --",
    "100%",
    "_____",
    "\\",
    "`region`",
    '"',
    "$(id)",
    "${HOME}",
    "\n",
    "ß",
]
"""Names of hosts, and of the region that each may see."""

HEAD = "publication: sales\npublisher: ./hq\narticles:\n"


def refusal(file: Path) -> str:
    """Return what a file is refused for, nothing if it is taken."""
    try:
        config.load(file)
    except ConfigurationError as error:
        return error.message
    return ""


@pytest.mark.spark
def test_over_100_hostile_clauses_are_refused_and_nothing_happens(
    spark: SparkSession, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    (tmp_path / "hq").mkdir()
    file = tmp_path / "sales.yml"
    before = canary.stat()
    messages = []
    for clause in HOSTILE:
        text = clause.format(canary=canary)
        is_plain = [letter.isprintable() and letter not in '"\\' for letter in text]
        quoted = "".join(
            letter if plain else f"\\u{ord(letter):04x}" for letter, plain in zip(text, is_plain, strict=True)
        )
        file.write_text(f'{HEAD}  - {{name: orders, key: [id], filter: "{quoted}"}}\n', encoding="utf-8")
        messages.append((text, refusal(file)))
    assert [text for text, message in messages if "line 4: articles[0].filter " not in message] == []
    assert max(len(message) for _, message in messages) < 400
    assert len(HOSTILE) > 100
    assert {path.name for path in tmp_path.iterdir()} == {"canary", "hq", "sales.yml"}
    assert canary.stat() == before, "it was not even read"
    assert canary.read_text() == "untouched"
    # The control: Spark's own reading of such a text would run it.
    assert spark.range(1).select(F.expr("reflect('java.lang.String', 'valueOf', 7)")).first()[0] == "7"


@pytest.mark.spark
def test_the_name_of_a_host_is_data(spark: SparkSession) -> None:
    regions = [*HOSTS, "South", "' = '", ""]
    rows = spark.range(1).select(F.explode(F.array(*map(F.lit, regions))).alias("region"))
    values = spark.range(1).select(
        F.posexplode(F.array(*map(F.lit, HOSTS))).alias("partition_id", "HOST_NAME_FN")
    )
    clause = prepare_clause(parse_filter("region = HOST_NAME()"), {None: {"region": "string"}})
    (equality,) = parts_of(clause)[0].equalities

    def column(column: Column) -> object:
        return F.col(column.name)

    def function(name: SessionFunction) -> object:
        return F.col(f"{name}_FN")

    of_row = column_of(equality.of_row, column=column)
    of_value = column_of(equality.of_other, column=column, function=function)
    is_member = holds(clause, column=column, function=function)
    is_equal = of_row == of_value
    found = rows.join(values, is_equal, "inner").select(
        "partition_id", "region", is_member.alias("is_member")
    )
    assert sorted(map(tuple, found.collect())) == [(number, host, True) for number, host in enumerate(HOSTS)]

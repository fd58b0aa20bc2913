"""What a resolver of one's own may answer."""

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from conflict.resolvers.custom import complete, problems_of, schema_problem
from mergerepl.frames import F
from tests.executors import struct_of

pytestmark = pytest.mark.spark

ROW_TYPE = "struct<id:int,qty:int>"
ASKED = f"rowguid string, kind string, publisher struct<deleted:boolean,row:{ROW_TYPE}>"
ANSWERS = f"rowguid string, outcome string, row {ROW_TYPE}"
NO_ANSWER: list[tuple[str, Row | None]] = []

# kind of the conflict (None: it was not asked for), answers (outcome, row) -> problem.
CASES: dict[str, tuple[str | None, list[tuple[str | None, Row | None]], str | None]] = {
    "the publisher's row": ("update", [("publisher", None)], None),
    "a delete": ("update_delete", [("subscriber", None)], None),
    "no row of two updates": ("update", [("delete", None)], None),
    "no row of a delete": ("update_delete", [("delete", None)], None),
    "the default": ("update_delete", [("default", None)], None),
    "a row": ("update", [("row", Row(id=1, qty=9))], None),
    "a row with NULL": ("update", [("row", Row(id=1, qty=None))], None),
    "a missing row": ("update", NO_ANSWER, "no answer"),
    "an extra row": (None, [("publisher", None)], "an answer to a conflict that was not asked for"),
    "a row that is doubled": ("update", [("default", None), ("default", None)], "several answers"),
    "an unknown outcome": ("update", [("both", None)], "an outcome that there is not"),
    "no outcome": ("update", [(None, None)], "an outcome that there is not"),
    "a row of a delete": ("update_delete", [("row", Row(id=1, qty=9))], "a row where one side deleted it"),
    "no row": ("update", [("row", None)], "the outcome `row` without a row"),
    "a row too many": ("update", [("default", Row(id=1, qty=9))], "a row with another outcome than `row`"),
    "another key": ("update", [("row", Row(id=2, qty=9))], "a row with another key"),
    "no key": ("update", [("row", Row(id=None, qty=9))], "a row with another key"),
}


@pytest.fixture(scope="module")
def asked(spark: SparkSession) -> DataFrame:
    rows = [
        (rule, kind, Row(deleted=False, row=Row(id=1, qty=1))) for rule, (kind, _, _) in CASES.items() if kind
    ]
    return spark.createDataFrame(rows, ASKED)


@pytest.fixture(scope="module")
def found(spark: SparkSession, asked: DataFrame) -> dict[str, str]:
    given = [(rule, outcome, row) for rule, (_, answers, _) in CASES.items() for outcome, row in answers]
    answers = complete(spark.createDataFrame(given, ANSWERS), asked)
    return {row["rowguid"]: row["problem"] for row in problems_of(answers, asked, ["id"]).collect()}


@pytest.mark.parametrize("rule", CASES)
def test_each_conflict_has_one_answer_that_can_be_used(found: dict[str, str], rule: str) -> None:
    assert found.get(rule) == CASES[rule][2]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("rowguid string, outcome string", None),
        ("outcome string, message string, rowguid string", None),
        (ANSWERS, None),
        ("rowguid string", "no column outcome"),
        ("id int", "no column rowguid and no column outcome"),
        ("rowguid string, outcome string, qty int", "may have rowguid, outcome, row, message only"),
        ("rowguid string, outcome int", "outcome is int, and must be string"),
        # No value is cast silently.
        (
            "rowguid string, outcome string, row struct<id:int,qty:bigint>",
            "row is struct<id:int,qty:bigint>, and must be struct<id:int,qty:int>",
        ),
        ("rowguid string, outcome string, row struct<qty:int,id:int>", "must be struct<id:int,qty:int>"),
        ("rowguid string, outcome string, row struct<id:int>", "must be struct<id:int,qty:int>"),
    ],
)
def test_the_columns_of_an_answer_are_as_they_must_be(
    columns: str, problem: str | None, asked: DataFrame
) -> None:
    said = schema_problem(struct_of(columns), asked.schema)
    assert said is None if problem is None else problem in str(said)


def test_columns_that_are_left_out_are_empty(asked: DataFrame) -> None:
    answers = complete(asked.select("rowguid", F.lit("default").alias("outcome")), asked)
    assert answers.schema["row"].dataType.simpleString() == ROW_TYPE
    assert answers.where(F.col("row").isNotNull() | F.col("message").isNotNull()).isEmpty()

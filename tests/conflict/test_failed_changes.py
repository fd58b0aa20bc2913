"""What becomes of rows that a table refuses."""

import pytest
from pyspark.sql import SparkSession

from conflict.failed_changes import withheld

pytestmark = pytest.mark.spark

RESOLVED = (
    "rowguid string, verdict string, publisher_action string, subscriber_action string, deleted boolean"
)
CASES = {
    "a row that goes up stays at the subscriber alone": (
        ("upload", "insert", None),
        True,
        ("refused", None, None),
    ),
    "a row that goes down stays at the publisher alone": (
        ("download", None, "delete"),
        True,
        ("refused", None, None),
    ),
    "of a resolved row each side keeps its own": (
        ("conflict", "update", "metadata"),
        True,
        ("refused", None, None),
    ),
    "of a merged row each side keeps its own": (("merge", "update", "update"), True, ("refused", None, None)),
    "a row that nobody refuses goes on": (("upload", "update", None), False, ("upload", "update", None)),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, tuple[str | None, ...]]:
    rows = [(rule, *row, False) for rule, (row, _, _) in CASES.items()]
    # One row may break a rule at each side.
    refused = [
        (rule, broken, "id=1") for rule, (_, is_refused, _) in CASES.items() if is_refused for broken in "ab"
    ]
    outcome = withheld(
        spark.createDataFrame(rows, RESOLVED),
        spark.createDataFrame(refused, "rowguid string, rule string, key string"),
    )
    assert outcome.columns == ["rowguid", "verdict", "publisher_action", "subscriber_action", "deleted"]
    collected = outcome.collect()
    assert len(collected) == len(CASES)
    return {row[0]: tuple(row)[1:4] for row in collected}


@pytest.mark.parametrize("rule", CASES)
def test_what_is_done_with_it(found: dict[str, tuple[str | None, ...]], rule: str) -> None:
    assert found[rule] == CASES[rule][2]

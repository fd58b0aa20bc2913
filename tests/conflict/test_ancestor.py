"""The common ancestor of two changes: the later of what each side's versions have that the other side's change includes."""

from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests import phases

pytestmark = pytest.mark.spark


class Case(NamedTuple):
    """Versions of a row at each side, oldest first, as (lineage, value; None: deleted); the last one is its change."""

    hq: list[tuple[str, str | None]]
    north: list[tuple[str, str | None]]
    ancestor: str | None
    """The value; "deleted" if the row was not there, None if no ancestor is known."""
    hq_base: str | None = None
    north_base: str | None = None


CASES = {
    "the published row": (Case([("published 1, hq 2", "p")], [("published 1, north 2", "s")], "b", "b", "b")),
    "the published row, that one side keeps": Case(
        [("published 1, hq 2", "p")], [("published 1, north 2", "s")], "b", "b"
    ),
    "nobody keeps it": Case([("published 1, hq 2", "p")], [("published 1, north 2", "s")], None),
    "two inserts": Case([("hq 1", "p")], [("north 1", "s")], None),
    "what a session brought to both": Case(
        [("published 1, hq 2", "x"), ("published 1, hq 3", "p")],
        [("published 1, hq 2", "x"), ("published 1, hq 2, north 3", "s")],
        "x",
        "b",
    ),
    "the subscriber's later version, after an upload alone": Case(
        [
            ("published 1, hq 2", "h"),
            ("published 1, hq 3, north 2", "sum"),
            ("published 1, hq 4, north 2", "p"),
        ],
        [("published 1, north 2", "n"), ("published 1, north 3", "s")],
        "n",
        "b",
        "b",
    ),
    "the publisher's later version, after a download alone": Case(
        [("published 1, hq 2", "h"), ("published 1, hq 3", "p")],
        [
            ("published 1, north 2", "n"),
            ("published 1, hq 2, north 3", "sum"),
            ("published 1, hq 2, north 4", "s"),
        ],
        "h",
        "b",
        "b",
    ),
    "a delete": Case(
        [("published 1, hq 2", None), ("published 1, hq 3", "p")],
        [("published 1, hq 2", None), ("published 1, hq 2, north 3", "s")],
        "deleted",
        "b",
    ),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, str | None]:
    sides = {
        side: {rule: (getattr(case, side), getattr(case, f"{side}_base")) for rule, case in CASES.items()}
        for side in ("hq", "north")
    }
    return phases.ancestor_values(spark, sides["hq"], sides["north"])


@pytest.mark.parametrize("rule", CASES)
def test_the_common_ancestor(found: dict[str, str | None], rule: str) -> None:
    assert found[rule] == CASES[rule].ancestor

"""What the INSERT, UPDATE and DELETE triggers record of a user's change (made at `north`, in its generation 4)."""

import pytest
from pyspark.sql import SparkSession

from tests import phases
from tests.phases import COLUMN_TRACKED, Captured, Change, Net, Setting

pytestmark = pytest.mark.spark

KNOWN = Change("x y", "hq 3, south 1", "a: hq 3", born=2)
DELETED = Change(None, "hq 3")

CASES: dict[str, tuple[Net, Captured]] = {
    "an insert nobody can have heard of is born": (
        Net(None, "x y"),
        Captured("x y", "north 1", None, born=4),
    ),
    "an update of a row as it was published": (
        Net("x y", "x z"),
        Captured("x z", "published 1, north 2", None),
    ),
    "a delete of a row as it was published": (Net("x y", None), Captured(None, "published 1, north 2", None)),
    "an update comes after all that is known of the row": (
        Net("x y", "x z", KNOWN),
        Captured("x z", "hq 3, north 4, south 1", None, born=2),
    ),
    "a writer's own version is replaced": (
        Net("x y", "x z", Change("x y", "north 2, south 1")),
        Captured("x z", "north 3, south 1", None),
    ),
    "a delete comes after all that is known of the row and keeps its birth": (
        Net("x y", None, KNOWN),
        Captured(None, "hq 3, north 4, south 1", None, born=2),
    ),
    "a row that was deleted and comes back is not born": (
        Net(None, "x z", DELETED),
        Captured("x z", "hq 3, north 4", None),
    ),
    "a row that was deleted before it was sent and comes back is as new as it was": (
        Net(None, "x z", Change(None, "north 3", born=2, generation=2), Setting(anew_through=1)),
        Captured("x z", "north 4", None, born=2),
    ),
    "where other rows of its key may be elsewhere, a row whose delete was sent begins anew": (
        Net(None, "x z", Change(None, "hq 3", generation=1), Setting(anew_through=1, floor=6)),
        Captured("x z", "north 7", None, born=4),
    ),
    "there, a change of a row goes on": (
        Net("x y", "x z", Change("x y", "hq 3", generation=1), Setting(anew_through=1)),
        Captured("x z", "hq 3, north 4", None),
    ),
    "versions begin above the floor": (
        Net("x y", "x z", Change("x y", "hq 3"), Setting(floor=6)),
        Captured("x z", "hq 3, north 7", None),
    ),
    "versions begin above the floor for a new row, too": (
        Net(None, "x z", None, Setting(floor=6)),
        Captured("x z", "north 7", None, born=4),
    ),
    "an insert changes every column": (
        Net(None, "x -", None, COLUMN_TRACKED),
        Captured("x -", "north 1", "a: north 1, b: north 1", born=4),
    ),
    "an update changes the columns that differ": (
        Net("x y", "x z", None, COLUMN_TRACKED),
        Captured("x z", "published 1, north 2", "b: north 2"),
    ),
    "a value that becomes NULL differs": (
        Net("x y", "- y", None, COLUMN_TRACKED),
        Captured("- y", "published 1, north 2", "a: north 2"),
    ),
    "a column that stays keeps its version": (
        Net("x y", "x z", KNOWN, COLUMN_TRACKED),
        Captured("x z", "hq 3, north 4, south 1", "a: hq 3, b: north 4", born=2),
    ),
    "a column that changes again gets the new version": (
        Net("x y", "z y", KNOWN, COLUMN_TRACKED),
        Captured("z y", "hq 3, north 4, south 1", "a: north 4", born=2),
    ),
    "a deleted row has no columns": (
        Net("x y", None, KNOWN, COLUMN_TRACKED),
        Captured(None, "hq 3, north 4, south 1", None, born=2),
    ),
    "a row that comes back has changed every column": (
        Net(None, "x z", DELETED, COLUMN_TRACKED),
        Captured("x z", "hq 3, north 4", "a: north 4, b: north 4"),
    ),
}


@pytest.fixture(scope="module")
def captured(spark: SparkSession) -> dict[str, Captured]:
    return phases.captured(spark, {rule: net for rule, (net, _) in CASES.items()})


@pytest.mark.parametrize("rule", CASES)
def test_what_is_recorded(captured: dict[str, Captured], rule: str) -> None:
    assert captured[rule] == CASES[rule][1]


def test_where_nothing_is_known_of_any_row(spark: SparkSession) -> None:
    rules = ("an update of a row as it was published", "an insert nobody can have heard of is born")
    assert phases.captured(spark, {rule: CASES[rule][0] for rule in rules}) == {
        rule: CASES[rule][1] for rule in rules
    }

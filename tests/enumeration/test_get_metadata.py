"""What becomes of a row that one side or both have changed: the verdict, and INSERT, UPDATE or DELETE."""

import pytest
from pyspark.sql import SparkSession

from tests import phases
from tests.phases import Change, Pair, Sent, Setting

pytestmark = pytest.mark.spark


def changed(lineage: str, *, row: str | None = "x y", **more: object) -> Change:
    return Change(row, lineage, **more)  # type: ignore[arg-type]


FLOOR_3 = Setting(floor=3)
VERDICTS: dict[str, tuple[Pair, str]] = {
    "changed at the publisher alone": (Pair(changed("hq 1"), None), "download"),
    "changed at the subscriber alone": (Pair(None, changed("north 1")), "upload"),
    "the publisher's version includes the subscriber's": (
        Pair(changed("hq 1, north 1"), changed("north 1")),
        "download",
    ),
    "the subscriber's version includes the publisher's": (
        Pair(changed("hq 1"), changed("hq 1, north 2")),
        "upload",
    ),
    "a later change of one writer includes its earlier one": (
        Pair(changed("hq 2"), changed("hq 1")),
        "download",
    ),
    "versions are compared, not counted": (Pair(changed("hq 1, south 1"), changed("south 9")), "candidate"),
    "both sides hold one version": (Pair(changed("hq 1, south 2"), changed("hq 1, south 2")), "known"),
    "neither side knows of the other's change": (Pair(changed("hq 1"), changed("north 1")), "candidate"),
    "each knows of the other's first change alone": (
        Pair(changed("hq 2, north 1"), changed("hq 1, north 2")),
        "candidate",
    ),
    "another replica's change that the publisher alone has": (
        Pair(changed("north 1, south 2"), changed("north 1")),
        "download",
    ),
    "changes of two others, one at each side": (
        Pair(changed("hq 1, south 1"), changed("hq 1, north 1")),
        "candidate",
    ),
    "a change of a row as it was published": (
        Pair(changed("published 1"), changed("published 1, north 2")),
        "upload",
    ),
    "a new row that knows nothing of the published one of its key": (
        Pair(changed("published 1"), changed("north 1")),
        "candidate",
    ),
    "versions up to the floor are known to everybody": (
        Pair(changed("hq 3"), changed("north 2"), FLOOR_3),
        "known",
    ),
    "one version above the floor": (Pair(changed("hq 3"), changed("north 4"), FLOOR_3), "upload"),
    "both versions above the floor": (Pair(changed("hq 4"), changed("north 4"), FLOOR_3), "candidate"),
    "below the floor, a new row knows nothing of another one of its key": (
        Pair(changed("hq 3"), changed("north 2", born=9), Setting(floor=3, fresh_after=8)),
        "download",
    ),
    "below the floor, a row that was sent as a new one knows all": (
        Pair(changed("hq 3"), changed("north 2", born=8), Setting(floor=3, fresh_after=8)),
        "known",
    ),
    "a new row of a key is no version of an older, live row of its writer": (
        Pair(changed("north 1"), changed("north 9", born=9), Setting(fresh_after=8)),
        "candidate",
    ),
    "a row that was sent as a new one is": (
        Pair(changed("north 1"), changed("north 9", born=8), Setting(fresh_after=8)),
        "upload",
    ),
    "a new row of a key continues its writer's delete": (
        Pair(changed("north 1", row=None), changed("north 9", born=9), Setting(fresh_after=8)),
        "upload",
    ),
    "a new row that both sides hold in one version": (
        Pair(changed("north 9"), changed("north 9", born=9), Setting(fresh_after=8)),
        "known",
    ),
    "a delete that includes the other's change": (
        Pair(changed("hq 2, north 1", row=None), changed("north 1")),
        "download",
    ),
    "a delete that knows nothing of the other's change": (
        Pair(changed("hq 1", row=None), changed("north 1")),
        "candidate",
    ),
    "two deletes that know nothing of each other": (
        Pair(changed("hq 1", row=None), changed("north 1", row=None)),
        "candidate",
    ),
}


@pytest.fixture(scope="module")
def verdicts(spark: SparkSession) -> dict[str, str]:
    return phases.verdicts(spark, {rule: pair for rule, (pair, _) in VERDICTS.items()})


@pytest.mark.parametrize("rule", VERDICTS)
def test_who_knows_of_whom(verdicts: dict[str, str], rule: str) -> None:
    assert verdicts[rule] == VERDICTS[rule][1]


@pytest.mark.parametrize(
    ("pair", "verdict"),
    [(Pair(changed("hq 1"), None), "download"), (Pair(None, changed("north 1")), "upload")],
)
def test_a_side_without_any_change(spark: SparkSession, pair: Pair, verdict: str) -> None:
    assert phases.verdicts(spark, {"alone": pair}) == {"alone": verdict}


AFTER_2 = Setting(start=2)
AS_CLIENT = Setting(client=True)
RENUMBERED = {1: 11, 2: 12}
"""The numbers of generations at their source and at their destination."""

SENT: dict[str, tuple[Pair, Sent | None]] = {
    "an update is an UPDATE": (Pair(changed("hq 1"), None), Sent("north", "update", 11, 0.0)),
    "and in the other direction": (Pair(None, changed("north 1")), Sent("hq", "update", 11, 0.0)),
    "a row born after the watermark is an INSERT": (
        Pair(changed("hq 1", born=3), None, AFTER_2),
        Sent("north", "insert", 11, 0.0),
    ),
    "also upwards": (Pair(None, changed("north 1", born=3), AFTER_2), Sent("hq", "insert", 11, 0.0)),
    "a row born at the watermark is there": (
        Pair(changed("hq 2", born=2), None, AFTER_2),
        Sent("north", "update", 11, 0.0),
    ),
    "a row born before the watermark is there": (
        Pair(None, changed("north 2", born=1), AFTER_2),
        Sent("hq", "update", 11, 0.0),
    ),
    "a delete is a DELETE": (Pair(changed("hq 1", row=None), None), Sent("north", "delete", 11, 0.0)),
    "a row comes back where it was deleted": (
        Pair(changed("hq 1, north 1"), changed("north 1", row=None)),
        Sent("north", "insert", 11, 0.0),
    ),
    "and comes back at the publisher": (
        Pair(changed("hq 1", row=None), changed("hq 1, north 2")),
        Sent("hq", "insert", 11, 0.0),
    ),
    "a delete of a row that is deleted there too": (
        Pair(changed("hq 2, north 1", row=None), changed("north 1", row=None)),
        Sent("north", "delete", 11, 0.0),
    ),
    "a change joins the destination's number of its generation": (
        Pair(changed("hq 1", generation=2), None),
        Sent("north", "update", 12, 0.0),
    ),
    "a generation that the destination cannot number has none": (
        Pair(changed("hq 1", generation=7), None),
        Sent("north", "update", None, 0.0),
    ),
    "a change keeps its priority on the way down": (
        Pair(changed("hq 1", priority=100.0), None),
        Sent("north", "update", 11, 100.0),
    ),
    "a server's change keeps its priority on the way up": (
        Pair(None, changed("north 1", priority=75.0)),
        Sent("hq", "update", 11, 75.0),
    ),
    "a client's own change gets the publisher's priority": (
        Pair(None, changed("north 1"), AS_CLIENT),
        Sent("hq", "update", 11, 100.0),
    ),
    "a client hands on the priority of another's change": (
        Pair(None, changed("south 1, north 2", priority=30.0), AS_CLIENT),
        Sent("hq", "update", 11, 30.0),
    ),
    "what both sides hold is not sent": (Pair(changed("hq 1"), changed("hq 1")), None),
    "what both have changed is left to conflict": (Pair(changed("hq 1"), changed("north 1")), None),
    "nothing goes up in a download": (Pair(None, changed("north 1"), Setting(upload=False)), None),
    "what goes down in a download": (
        Pair(changed("hq 1"), None, Setting(upload=False)),
        Sent("north", "update", 11, 0.0),
    ),
    "nothing goes down in an upload": (Pair(changed("hq 1"), None, Setting(download=False)), None),
    "what goes up in an upload": (
        Pair(None, changed("north 1"), Setting(download=False)),
        Sent("hq", "update", 11, 0.0),
    ),
}


ON_SPARK = [rule for rule, (pair, _) in SENT.items() if pair.setting == phases.ROW_TRACKED]
"""One session; a session of other terms is another plan."""


@pytest.fixture(scope="module")
def sent(spark: SparkSession, request: pytest.FixtureRequest) -> dict[str, Sent]:
    pairs = phases.asked(request, spark, {rule: pair for rule, (pair, _) in SENT.items()})
    return phases.sent(spark, pairs, RENUMBERED)


@pytest.mark.on_spark(*(f"-{rule}" for rule in ON_SPARK))
@pytest.mark.parametrize("rule", SENT)
def test_what_the_destination_does(sent: dict[str, Sent], rule: str) -> None:
    assert sent.get(rule) == SENT[rule][1]

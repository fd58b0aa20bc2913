"""What a session leaves as settled and known, and which subscriptions no longer count: case tables of plain rows."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from enumeration.horizon import horizon, publishers_horizon, refuse_expired, with_horizon
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.errors import SubscriptionExpiredError
from mergerepl.model.horizon import Horizon
from mergerepl.systables.catalog import SubscriptionRow, SubscriptionState
from mergerepl.systables.replinfo import ReplicaInfo

PUBID = "p"


def row(subid: str, **values: Any) -> SubscriptionRow:
    """Return an active row; `p` is the one about itself."""
    stated = {"subscriber_server": f"/{subid}", "pubid": PUBID, "replid": subid, "replnickname": 1}
    stated |= {"status": SubscriptionState.ACTIVE, "subscriber_type": 1, "priority": 0.0}
    return SubscriptionRow(**{**stated, "subid": subid, **values})


HUB = [row(PUBID, settled=5, known=4), row("north", through=7, knows=5), row("south", through=9, knows=6)]
INFO = ReplicaInfo(repid="hub", replnickname=1, root="/hub", clock=11)
NORTH = [row(PUBID, settled=4, known=3), row("north", through=7, knows=4)]


class Left(NamedTuple):
    """What a session of north leaves: through, knows, settled and known there; settled and known at the hub."""

    through: int
    knows: int
    settled: int
    known: int
    at_hub: tuple[int, int]


@pytest.mark.parametrize(
    ("uploaded", "downloaded", "left"),
    [
        pytest.param(True, True, Left(12, 5, 5, 4, (9, 5)), id="both ways"),
        pytest.param(
            True, False, Left(12, 5, 4, 3, (9, 5)), id="no download, or refused rows wait at the hub"
        ),
        pytest.param(False, True, Left(7, 5, 5, 4, (7, 5)), id="no upload, or refused rows wait at north"),
    ],
)
def test_what_a_session_leaves(uploaded: bool, downloaded: bool, left: Left) -> None:
    rows = {PUBLISHER: HUB, SUBSCRIBER: NORTH}
    to = horizon(rows, "north", 12, is_all_uploaded=uploaded, is_all_downloaded=downloaded)
    assert (to.through, to.knows, to.settled, to.known) == left[:4]
    itself, about = with_horizon(NORTH, subid="north", side=SUBSCRIBER, to=to, info=INFO)
    assert (itself.settled, itself.known, about.through) == (left.settled, left.known, left.through)
    itself, about, other = with_horizon(HUB, subid="north", side=PUBLISHER, to=to, info=INFO)
    assert (itself.settled, itself.known) == left.at_hub
    assert (about.through, about.knows, other) == (left.through, left.knows, HUB[2])


@pytest.mark.parametrize(
    ("south", "expected"),
    [
        pytest.param({}, (7, 5), id="the lowest of all"),
        pytest.param({"through": 6, "knows": 2}, (6, 4), id="known never decreases"),
        pytest.param({"through": 3}, (5, 5), id="settled never decreases"),
        pytest.param(
            {"through": 3, "status": SubscriptionState.DELETED}, (7, 5), id="ended: it does not count"
        ),
        pytest.param({"through": 3, "status": SubscriptionState.INACTIVE}, (7, 5), id="without rows yet"),
        pytest.param({"through": 3, "expired_at": datetime(2026, 1, 1, tzinfo=UTC)}, (7, 5), id="expired"),
    ],
)
def test_what_is_settled_and_known_at_a_publisher(south: dict[str, Any], expected: tuple[int, int]) -> None:
    assert publishers_horizon([*HUB[:2], replace(HUB[2], **south)], 20) == expected


@pytest.mark.parametrize(
    ("south", "expected"),
    [
        pytest.param({"expired_at": datetime(2026, 1, 1, tzinfo=UTC)}, (6, 5), id="as it will be left"),
        pytest.param({}, (7, 5), id="it counts as it is"),
        pytest.param({"status": SubscriptionState.DELETED}, (7, 5), id="ended"),
    ],
)
def test_inv_37_an_expired_subscription_whose_reinitialisation_is_staged_counts(
    south: dict[str, Any], expected: tuple[int, int]
) -> None:
    staged = {"south": Horizon(through=6, knows=5, settled=5, known=4)}
    assert publishers_horizon([*HUB[:2], replace(HUB[2], **south)], 20, staged) == expected


@pytest.mark.parametrize(
    ("north", "says"),
    [
        pytest.param({}, None, id="it counts"),
        pytest.param({"through": 5, "knows": 4}, None, id="at the bounds"),
        pytest.param({"through": 4}, "have arrived only up to version 4", id="through"),
        pytest.param({"knows": 3}, "knows only the changes up to version 3", id="knows"),
        pytest.param({"expired_at": datetime(2026, 1, 1, tzinfo=UTC)}, "expired on 2026-01-01", id="expired"),
    ],
)
def test_inv_37_a_subscription_that_did_not_count_is_refused(north: dict[str, Any], says: str | None) -> None:
    about = replace(HUB[1], **north)
    if says is None:
        refuse_expired([HUB[0], about], about, "/hub", "/north")
        return
    with pytest.raises(SubscriptionExpiredError, match=says):
        refuse_expired([HUB[0], about], about, "/hub", "/north")

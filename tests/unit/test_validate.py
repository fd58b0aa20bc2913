"""Validation of what the control plane tells: which articles there are at either side."""

from pathlib import Path

import pytest

from mergerepl import api
from mergerepl.systables import catalog
from tests.unit.test_quiet import make_replica, subscription


@pytest.mark.parametrize(("side", "name"), [(0, "publisher"), (1, "subscriber")])
def test_an_article_that_one_side_lacks_is_different(tmp_path: Path, side: int, name: str):
    hq, north = tmp_path / "hq", tmp_path / "north"
    pair = (
        make_replica(hq, "publisher", 1, subscription(north, "replica-2", 2)),
        make_replica(north, "subscriber", 2, subscription(hq, "replica-1", 1)),
    )
    assert [article.ok for article in api.validate(hq, level="rowcount")[str(north)]] == [True]
    pair[side].control.replace(catalog.ARTICLES, [])
    (orders,) = api.validate(hq, level="rowcount")[str(north)]
    assert (orders.article, orders.ok, orders.missing_at) == ("orders", False, name)
    rows = (0, 2) if name == "publisher" else (2, 0)
    assert (orders.publisher_rows, orders.subscriber_rows, orders.differing_rows) == (*rows, 2)

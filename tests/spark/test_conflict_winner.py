"""The winning row that a conflict is shown with, where its session recorded nothing at the replica that won."""

import pytest

from mergerepl import api
from tests.spark.publishing import Hub, orders

pytestmark = pytest.mark.spark


@pytest.fixture
def hub(spark, replica_dir):
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1, 2], "note": ["a", "b"]})
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    for at in ("hq", "north"):
        spark.sql(f"update delta.`{hub.root(at)}/orders` set note = '{at}' where id = 1")
    spark.sql(f"delete from delta.`{hub.root('hq')}/orders` where id = 2")
    spark.sql(f"update delta.`{hub.root('north')}/orders` set note = 'kept' where id = 2")
    return hub


def winners(hub):
    listed = api.conflict_records(hub.root("hq"))
    shown = [api.conflict_records(hub.root("hq"), conflict_id=each.conflict_id)[0] for each in listed]
    return {each.key["id"]: (each.losing_row, each.winning_row) for each in shown}


def test_the_winner_of_a_download_alone_is_its_own_version_and_stays_it(spark, hub):
    expected = {
        "1": ({"id": 1, "note": "north"}, {"id": 1, "note": "hq"}),
        "2": ({"id": 2, "note": "kept"}, None),
    }
    sync = {"subscriber": hub.root("north")}
    assert api.sync(hub.root("hq"), **sync, direction="download").sessions[0].download.conflicts == 2
    assert winners(hub) == expected
    spark.sql(f"update delta.`{hub.root('hq')}/orders` set note = 'later' where id = 1")
    spark.sql(f"insert into delta.`{hub.root('hq')}/orders` values (2, 'again')")
    api.sync(hub.root("hq"), **sync)
    assert winners(hub) == expected

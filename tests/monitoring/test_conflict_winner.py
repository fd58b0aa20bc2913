"""Who wins after a download alone; the winning row where its session recorded nothing at the replica that won."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from tests.calls import conflicts_of
from tests.faults.sessions import row
from tests.networks import Hub
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber
from tests.publish.publishing import orders

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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
    listed = conflicts_of(hub.root("hq")).list()
    shown = [conflicts_of(hub.root("hq")).get(each.conflict_id) for each in listed]
    return {each.key["id"]: (each.losing_row, each.winning_row) for each in shown}


def test_the_winner_of_a_download_alone_is_its_own_version_and_stays_it(spark, hub):
    expected = {
        "1": ({"id": 1, "note": "north"}, {"id": 1, "note": "hq"}),
        "2": ({"id": 2, "note": "kept"}, None),
    }
    sync = {"subscriber": hub.root("north")}
    assert (
        mergerepl.Project.load(hub.root("hq"))
        .sync(direction="download", **sync)
        .sessions[0]
        .download.conflicts
        == 2
    )
    assert winners(hub) == expected
    spark.sql(f"update delta.`{hub.root('hq')}/orders` set note = 'later' where id = 1")
    spark.sql(f"insert into delta.`{hub.root('hq')}/orders` values (2, 'again')")
    mergerepl.Project.load(hub.root("hq")).sync(**sync)
    assert winners(hub) == expected


def test_a_client_hands_on_the_priority_of_what_it_holds_of_others(
    spark: SparkSession, replica_dir: Path
) -> None:
    """What won over its own change is not the publisher's for having been there (as the model's history has it)."""
    subscribers = (
        Subscriber("north", "server", 75.0),
        Subscriber("south", "client"),
        Subscriber("east", "server", 25.0),
    )
    engine = EngineNetwork(spark, replica_dir, Setting(subscribers), {"k0": row("a", "b")})
    engine.write("east", {"k0": row("east", "b")})
    engine.sync("east")
    engine.write("north", {"k0": row("north", "b")})
    engine.write("south", {"k0": row("south", "b")})
    engine.sync("south", "download")
    assert engine.rows("south")["k0"] == ["east", "b", None]
    for name in ("south", "north", "east", "south"):
        engine.sync(name)
    assert [engine.rows(name)["k0"][0] for name in engine.names] == ["north"] * 4

"""Repair with row filters: from the publisher alone, of the rows of the partition; nothing outside of it goes up."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.errors import ConfigurationError
from tests.networks import edit_by_delta_rs, lose_changes, publish

JOIN = {"article": "orders", "parent": "customers", "on": "orders.customer = customers.id"}
TO = [{"subscriber": f"./{name.lower()}", "host_name": name} for name in ("North", "South")]


@pytest.mark.slow
def test_rows_that_a_partition_lost_come_back_and_strangers_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = {
        "customers": [{"id": 1, "region": "North"}, {"id": 2, "region": "South"}],
        "orders": [{"id": i, "customer": i // 10, "v": "old"} for i in (10, 11, 12, 20)],
    }
    for name, stored in tables.items():
        write_deltalake(str(tmp_path / "hq" / name), pa.Table.from_pylist(stored))
    articles = [
        {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"},
        {"name": "orders", "key": ["id"], "tracking": "column"},
    ]
    project = Project.load(publish(tmp_path, "sales", articles, TO, joins=[JOIN]))

    def orders(replica: str) -> dict[int, str]:
        found = DeltaTable(str(tmp_path / replica / "orders")).to_pyarrow_table().to_pydict()
        return dict(zip(found["id"], found["v"], strict=True))

    at_north = tmp_path / "north" / "orders"
    edit_by_delta_rs(at_north, "update t set v = 'lost' where id = 10")
    edit_by_delta_rs(at_north, "delete from t where id = 11")
    edit_by_delta_rs(at_north, "insert into t values (20, 2, 'strange')")
    lose_changes(tmp_path / "north")
    south = orders("south")
    with pytest.raises(ConfigurationError, match="1 rows that are not in its partition"):
        project.repair("north")
    with pytest.raises(ConfigurationError, match="must not go up"):
        project.repair("north", table="orders", source="subscriber")
    done = {each.article: each for each in project.repair("north", table="orders", where="id < 20").articles}
    assert (done["orders"].inserts, done["orders"].updates, done["orders"].deletes) == (1, 1, 0)
    for _ in range(2):
        sessions = project.sync().sessions
        assert [each.upload.total for each in sessions] == [0, 0]
    assert orders("north") == {10: "old", 11: "old", 12: "old", 20: "strange"}
    assert orders("south") == south
    assert orders("hq") == {10: "old", 11: "old", 12: "old", 20: "old"}

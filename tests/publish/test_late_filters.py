"""An `apply` died between a new article and its filters: what is captured then has no memberships, and none is missed."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.faults.deaths import dies
from tests.schema.stars import Published

FILE = """\
publication: sales
publisher: ./hq
retention: 14 days
articles:
  - {name: orders, key: [id], filter: "region = HOST_NAME()"}
subscriptions:
  - {subscriber: ./north, type: server, priority: 75.0, host_name: North}
  - {subscriber: ./south, type: server, priority: 50.0, host_name: South}
"""
LINES = """\
  - {name: lines, key: [id]}
joins:
  - {article: lines, parent: orders, on: "lines.of = orders.id", unique: true}
"""


class Network(Published):
    """A publisher whose orders are filtered by region, with lines that are to follow them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        ids = pa.array([1, 2], pa.int64())
        write_deltalake(str(root / "hq/orders"), pa.table({"id": ids, "region": ["North", "South"]}))
        lines = {"id": pa.array(range(1, 7), pa.int64()), "of": pa.array([1, 1, 1, 2, 2, 2], pa.int64())}
        write_deltalake(str(root / "hq/lines"), pa.table({**lines, "a": ["x"] * 6}))
        (root / "mergerepl.yml").write_text(FILE, encoding="utf-8")
        self.project.apply()

    def move(self, line: int, order: int, replica: str = "hq") -> None:
        self.table(replica, "lines").update({"of": str(order)}, predicate=f"id = {line}")

    def check(self) -> None:
        for _ in range(2):
            for result in self.project.sync().sessions:
                assert result.error is None, result.error
        rows = self.rows("hq", "lines")
        for place, order in (("north", 1), ("south", 2)):
            assert self.rows(place, "lines") == {key: row for key, row in rows.items() if row["of"] == order}


@pytest.mark.slow
@pytest.mark.parametrize("is_captured", [True, False], ids=["by a capture", "by the next apply"])
@pytest.mark.parametrize("point", ["publish.after_article"])
def test_rows_that_are_captured_before_the_filters_reach_their_subscribers(
    tmp_path: Path, point: str, is_captured: bool
) -> None:
    network = Network(tmp_path)
    (tmp_path / "mergerepl.yml").write_text(FILE.replace("subscriptions:", f"{LINES}subscriptions:"))
    with dies(point, action="stop"):
        network.project.apply()
    network.move(1, 2)
    network.move(4, 1)
    network.table("hq", "lines").delete("id = 6")
    if is_captured:
        network.project.capture("hq")
    network.project.apply()
    network.check()
    network.move(1, 1)
    network.move(5, 1)
    network.table("hq", "lines").update({"a": "'y'"}, predicate="id = 4")
    network.table("south", "lines").update({"a": "'s'"}, predicate="id = 1")
    network.check()
    network.move(4, 2, "north")
    network.check()
    network.table("hq", "orders").update({"region": "'South'"}, predicate="id = 1")
    for _ in range(2):
        for result in network.project.sync().sessions:
            assert result.error is None, result.error
    assert network.rows("south", "lines") == network.rows("hq", "lines")
    assert network.rows("north", "lines") == {}

"""What `vacuum` of a merge replica asks other products: how far they have read its tables."""

from pathlib import Path

from deltalake import write_deltalake

from mergerepl.cdc.sources import queue_positions
from mergerepl.delta.table import open_table
from mergerepl.products import read_through
from mergerepl.replica.control import ControlPlane
from mergerepl.store.location import Location
from mergerepl.systables import transactional
from tests.cdc.databases import arrow
from tests.networks import publish


def test_the_reader_of_a_queue_counts(tmp_path: Path) -> None:
    for name in ("orders", "items"):
        write_deltalake(str(tmp_path / "hq" / name), arrow({1: ("a", 1)}))
    publish(tmp_path, "sales", [{"name": name, "key": ["id"]} for name in ("orders", "items")])
    root = Location.of(tmp_path / "hq")
    assert read_through(root) == {}
    queue = ControlPlane(root / transactional.FOLDER)
    queue.create([transactional.POSITIONS, transactional.QUEUE])
    rows = [
        transactional.QueueRow(
            subscription_guid=f"{version}",
            article_id=version,
            table_id=open_table(root / "items").metadata.table_id,
            position=version,
            columns="[]",
        )
        for version in (7, 5)
    ]
    queue.append(transactional.QUEUE, rows)
    assert queue_positions(root, root / "items") == [7, 5]
    assert read_through(root) == {"items": 5}

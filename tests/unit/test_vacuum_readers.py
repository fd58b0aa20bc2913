"""What `vacuum` of a merge replica asks other products: how far they have read its tables."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import write_deltalake

from mergerepl import Replica
from mergerepl.cdc.sources import queue_positions
from mergerepl.delta.log import head_version
from mergerepl.delta.table import open_table
from mergerepl.errors import ConfigurationError
from mergerepl.logreader.positions import control_of
from mergerepl.products.upkeep import read_through
from mergerepl.replica.control import ControlPlane
from mergerepl.roots import CDC_FOLDER
from mergerepl.store.location import Location
from mergerepl.systables import tracking, transactional
from mergerepl.systables.logreader import LOG_READER, LogReaderRow
from tests.cdc.databases import arrow
from tests.networks import publish


def test_readers_of_other_products_count(tmp_path: Path) -> None:
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
    log = control_of(root)
    log.create([LOG_READER])
    log.append(
        LOG_READER,
        [
            LogReaderRow(source_object_id=number, source_path=path, position=version)
            for number, path, version in ((0, "", -1), (1, "orders", 3), (2, "items", 6))
        ],
    )
    (tmp_path / "hq" / CDC_FOLDER).mkdir()
    assert read_through(root) == {"orders": 3, "items": 5}
    tracked = ControlPlane(root / tracking.FOLDER)
    tracked.create([tracking.TRACKED_OBJECTS])
    key = tracking.KeyColumn("orders", 7, 1, 1, "id", "bigint", "of orders", 0, "adopt", datetime.now(UTC))
    tracked.append(tracking.TRACKED_OBJECTS, [key])
    before = head_version(root / "orders")
    with pytest.raises(ConfigurationError, match="is not vacuumed: Compact change tracking reads it"):
        Replica(tmp_path / "hq").vacuum("orders")
    assert head_version(root / "orders") == before

"""`apply` of a document with `type: tracking`, with real tables."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.model.folders import FolderTracking, TableTracking
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.tracked_tables import apply_tracking
from tests.tracking.databases import new_table

pytestmark = pytest.mark.spark


def test_a_tracked_folder_is_made_as_stated(spark: SparkSession, replica_dir: Path) -> None:
    new_table(replica_dir, "orders", {1: "a"})
    new_table(replica_dir, "lines", {1: "a"})
    orders, lines = TableTracking("orders", ("id",)), TableTracking("lines", ("id",))
    both = FolderTracking(str(replica_dir), (orders, lines))
    wrong = replace(both, tables=(orders, TableTracking("gone", ("id",))))
    for dry_run in (True, False):
        with pytest.raises(TrackingError, match="is no Delta table"):
            apply_tracking(wrong, dry_run=dry_run)
    assert [step.action for step in apply_tracking(both, dry_run=True).steps] == ["track", "track"]
    assert not (replica_dir / "_tracking").exists()
    assert len(apply_tracking(both).steps) == 2
    assert apply_tracking(both).steps == ()
    changed = replace(both, tables=(replace(orders, options=TrackingOptions.DELETE),))
    done = apply_tracking(changed).steps
    assert [(step.action, step.object, step.removes_rows) for step in done] == [
        ("untrack", "lines", True),
        ("change", "orders", False),
    ]
    assert apply_tracking(changed).steps == ()
    (known,) = mergerepl.ChangeTracking(replica_dir).tracked_tables().values()
    assert (known.name, known.options) == ("orders", TrackingOptions.DELETE)

"""What each choice of options leaves in a row, and where it leaves a tombstone: the table of docs/compact.md."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.systables.tracking import ROW_COLUMNS
from mergerepl.tracking.staged_rows import leaves_tombstone, stamps, stamps_of

pytestmark = pytest.mark.spark

INSERT, UPDATE, DELETE = TrackingOptions.INSERT, TrackingOptions.UPDATE, TrackingOptions.DELETE
NEW, KEPT, NONE, UPDATED = (
    ("new", "new", "mine"),
    ("old", "born", "his"),
    (None, None, None),
    ("new", "born", "mine"),
)
GONE = None

EXPECTED = {
    # options: after an insert, an update, a delete and an insert of a known row; tombstones of a delete, and of the last
    INSERT: (NEW, KEPT, NEW, False, False),
    UPDATE: (NONE, UPDATED, UPDATED, False, False),
    DELETE: (NONE, KEPT, KEPT, True, False),
    INSERT | UPDATE: (NEW, UPDATED, NEW, False, False),
    INSERT | DELETE: (NEW, KEPT, NEW, True, True),
    UPDATE | DELETE: (NONE, UPDATED, UPDATED, True, False),
    INSERT | UPDATE | DELETE: (NEW, UPDATED, NEW, True, True),
}
KINDS = {
    # existed, present, reborn
    "insert": (False, True, False),
    "update": (True, True, False),
    "reborn": (True, True, True),
    "delete": (True, False, False),
    "came and went": (False, False, False),
}


def test_all_seven_choices(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(kind, *flags) for kind, flags in KINDS.items()],
        "kind string, existed boolean, present boolean, reborn boolean",
    )
    flags = {name: F.col(name) for name in ("existed", "reborn")}
    was = stamps(F.lit(b"old"), F.lit(b"born"), F.lit("his"))
    columns = []
    for options in EXPECTED:
        stamped = stamps_of(options, **flags, was=was, bsn=F.lit(b"new"), context=F.lit("mine"))
        left = leaves_tombstone(options, **flags, present=F.col("present"))
        texts = (stamped[name].cast("string") for name, _ in ROW_COLUMNS)
        columns.append(F.struct(*texts, F.lit(False) if left is None else left).alias(str(options.value)))
    found = {row["kind"]: row for row in rows.select("kind", *columns).collect()}
    for options, (inserted, updated, reborn, deleted, replaced) in EXPECTED.items():
        name = str(options.value)
        assert tuple(found["insert"][name]) == (*inserted, False), options
        assert tuple(found["update"][name]) == (*updated, False), options
        assert tuple(found["reborn"][name]) == (*reborn, replaced), options
        assert found["delete"][name][3] is deleted, options
        assert found["came and went"][name][3] is False, options

"""Tracked folders for tests: tables made by Spark or deltalake, a consumer's copy, what a window holds as plain values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame

import mergerepl
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.systables.tracking import COMMIT_SEQUENCE
from mergerepl.tracking.database import unpacked
from mergerepl.tracking.windows import Window

ORDERS = pa.schema([("id", pa.int64()), ("note", pa.string())])


def new_table(root: Path, name: str = "orders", notes: Mapping[int, str] | None = None) -> Path:
    """Write a table of ids and notes, without Spark."""
    rows = [{"id": key, "note": note} for key, note in (notes or {}).items()]
    write_deltalake(str(root / name), pa.Table.from_pylist(rows, schema=ORDERS))
    return root / name


def tracked(
    root: Path,
    notes: Mapping[int, str] | None = None,
    *,
    names: Sequence[str] = ("orders",),
    options: TrackingOptions = TrackingOptions.ALL,
    **arguments: Any,
) -> mergerepl.ChangeTracking:
    """Return a database with tracked tables of the same rows."""
    tracking = mergerepl.ChangeTracking(root, **arguments)
    for name in names:
        new_table(root, name, notes)
        tracking.enable(name, key="id", track=options)
    return tracking


def rows(*notes: tuple[int, str]) -> list[dict[str, Any]]:
    """Return rows to be given to an operation."""
    return [{"id": key, "note": note} for key, note in notes]


def commit_sequence(tracking: mergerepl.ChangeTracking) -> dict[int, int]:
    """Return the BSN and CSN of the transactions that committed out of sequence."""
    stored = tracking.session.database.control.rows(COMMIT_SEQUENCE)
    return {unpacked(row.bsn): unpacked(row.csn) for row in stored}


def notes_of(frame: DataFrame) -> dict[int, str]:
    """Return id to note."""
    return {row["id"]: row["note"] for row in frame.select("id", "note").collect()}


def held(window: Window, table: str = "orders") -> dict[str, Any]:
    """Return what a window holds: ids and notes of inserts and updates, ids of deletes."""
    return {
        "inserts": notes_of(window.inserts(table)),
        "updates": notes_of(window.updates(table)),
        "deletes": sorted(row["id"] for row in window.deletes(table).select("id").collect()),
    }

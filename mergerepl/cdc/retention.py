"""VACUUM of a captured table that keeps all files that readers of its changes still need (cdc.md 8)."""

import math
import os
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.queries import reading_session
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.delta.properties import FILE_RETENTION, interval_of
from mergerepl.delta.tables import head_version, open_table, written_ns
from mergerepl.logreader.plan import moment_of_ns
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import Vacuumed
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import plain_errors
from mergerepl.spark.session import copy_if_possible
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import is_there
from mergerepl.systables import tracking
from mergerepl.systables.table import FOLDER as REPLICA_FOLDER
from mergerepl.systables.tracking import TRACKED_OBJECTS

_DEFAULT_RETENTION = timedelta(days=7)

_LONGEST_COMMIT = timedelta(days=1)
"""A commit's files may be older than the commit by its duration."""


def vacuum(
    database: str | os.PathLike[str],
    source: str,
    *,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> Vacuumed:
    """Run VACUUM on a source. Files are kept for its retention, and until all readers have read them.

    The readers are the log reader and merge capture.

    Args:
        database: The folder.
        source: The table's folder below it.
        spark: The Spark session; by default the running one, or an embedded one.
        lock_wait_s: Seconds to wait for others that hold the folder.

    Raises: CdcUsageError 22931 if it is not a source, or Compact change tracking tracks it; CdcError 22859 if it is gone;
        LeaseError.
    """
    found = database_at(database)
    found.require_enabled()
    row = read_state(found.log).source_at(source.strip("/"))
    if row is None:
        raise CdcUsageError.no_such_source(source, "no capture instance reads it")
    if row.status == "gone":
        raise CdcError.gone(source, f"it is not vacuumed while its capture is paused: {row.reason}")
    if _is_tracked(found, row.source_path):
        raise CdcUsageError.no_such_source(
            source,
            "Compact change tracking reads it, too; run `mergerepl tracking adopt` first, then Spark's own VACUUM",
        )
    path = found.root / row.source_path
    with plain_errors(f"'{path}' was vacuumed"), lease(found.root, purpose="cdc vacuum", wait_s=lock_wait_s):
        read = min([row.position, *_merge_positions(found, path)])
        kept = interval_of(open_table(path).properties.get(FILE_RETENTION, "")) or _DEFAULT_RETENTION
        unread = None
        if head_version(path) > read:
            unread = read
            since = moment_of_ns(written_ns(path, read + 1)) - _LONGEST_COMMIT
            kept = max(kept, datetime.now(UTC) - since)
        hours = math.ceil(kept.total_seconds() / 3600)
        # The copy commits, which changes a conf of its session.
        session = copy_if_possible(reading_session(spark), {})
        session.sql(f"VACUUM delta.{quote(str(path))} RETAIN {hours} HOURS")
    return Vacuumed(row.source_path, hours, unread)


def _merge_positions(database: Database, path: Location) -> list[int]:
    if not is_there(database.root / REPLICA_FOLDER):
        return []
    replica = Replica(database.root).require()
    info = replica.info()
    positions = (position_of(each, info) for each in replica.articles if replica.table(each) == path)
    return [each.version for each in positions if each is not None]


def _is_tracked(database: Database, source: str) -> bool:
    control = ControlPlane(database.root / tracking.FOLDER)
    return control.exists(TRACKED_OBJECTS) and any(
        row.table == source for row in control.rows(TRACKED_OBJECTS)
    )

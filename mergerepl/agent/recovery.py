"""Before anything else: finish what a session that died had staged."""

import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

from mergerepl.agent import history
from mergerepl.agent.carry_out import Outcome, carry_out, pointer
from mergerepl.agent.session_result import session_result
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.changeset import (
    Changeset,
    drop,
    read_changeset,
)
from mergerepl.store.replica import Replica

log = logging.getLogger(__name__)

_AT_ONCE = 2
"""Spark actions run side by side: one keeps two cores busy only in part."""

SparkSource = Callable[[], SparkSession]


def recover(publisher: Replica, subscriber: Replica, spark_of: SparkSource) -> int:
    """Roll staged sessions of the publisher forward and drop incomplete ones. Returns how many were rolled
    forward.

    A session with another subscriber is finished at the publisher only; its own subscriber may be out of
    reach, and the rest waits for that one's next session.
    """
    rolled = 0
    folders = sorted(publisher.staging.iterdir()) if publisher.staging.is_dir() else []
    for folder in (path for path in folders if path.is_dir()):
        changeset = read_changeset(folder)
        if changeset is None:
            drop(folder)
            pointer(subscriber, folder.name).unlink(missing_ok=True)
            continue
        work = changeset.manifest.subscriber
        is_ours = (
            work is not None and Path(work.root) == subscriber.root and subscriber.root != publisher.root
        )
        if not is_ours and changeset.done_file(PUBLISHER).exists():
            continue
        log.info("rolling session %s forward", folder.name)
        _roll_forward(spark_of(), changeset, publisher, subscriber, is_ours=is_ours)
        rolled += 1
    for stale in subscriber.staging.glob("*.json") if subscriber.staging.is_dir() else ():
        told = json.loads(stale.read_text(encoding="utf-8") or "{}")
        if told.get("publisher") == str(publisher.root) and not (publisher.staging / stale.stem).exists():
            stale.unlink(missing_ok=True)
    return rolled


def _roll_forward(
    spark: SparkSession, changeset: Changeset, publisher: Replica, subscriber: Replica, *, is_ours: bool
) -> None:
    manifest = changeset.manifest

    def record(outcome: Outcome) -> None:
        result = session_result(manifest.publication, subscriber, outcome, 0.0, 1)
        history.record(publisher, subscriber, manifest, result, datetime.fromisoformat(manifest.started))

    sides = (PUBLISHER, SUBSCRIBER) if is_ours else (PUBLISHER,)
    carry_out(spark, changeset, record=record, sides=sides)

"""Properties that a replacement (CREATE OR REPLACE) took away from a source are set again: the feed, and the retentions."""

import json
import logging

from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.properties import set_properties
from mergerepl.delta.tables import open_table
from mergerepl.errors import PublicationError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.positions import LogState
from mergerepl.store.lease import lease
from mergerepl.systables.logreader import LogReaderRow

log = logging.getLogger(__name__)


def lost_by_replacement(row: LogReaderRow) -> dict[str, str]:
    """Return the properties that a replacement of a source took away and that were not set again at its position."""
    found: dict[str, str] = json.loads(row.columns).get("lost", {}) if row.columns else {}
    return found


def set_properties_again(reader: LogReader, state: LogState) -> None:
    """Set the properties that replacements took away from sources: without the feed, each later change would be a gap.

    Where another process holds the root, a later cycle does it.
    """
    for row in state.sources.values():
        lost = lost_by_replacement(row) if row.status == "active" else {}
        if not lost:
            continue
        try:
            # The order of locks is the other one: nothing is waited for.
            with lease(reader.root, purpose="capture", wait_s=0.0):
                table = open_table(reader.root / row.source_path)
                missing = {name: value for name, value in lost.items() if name not in table.properties}
                mark = CommitMark(state.database.database_id, f"{SETUP}:properties")
                set_properties(reader.spark, table, missing, mark)
        except (StoreError, PublicationError) as error:
            log.warning(
                "%s: the properties that a replacement took away are not set: %s", row.source_path, error
            )
            continue
        failpoint("logreader.after_properties")

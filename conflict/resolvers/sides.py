"""Rules by role: the side, or the number of its changed columns, decides the winner; the values do not matter."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from conflict.detect import NAME, PUBLISHER_CHANGED, SIDES, SUBSCRIBER_CHANGED
from conflict.resolvers.base import Rule, Values
from mergerepl.changes import DELETED, PUBLISHER
from mergerepl.model.resolvers import RESOLVERS, OfDeletes


def _publisher(_: Values | None) -> Column:
    return F.lit(True)


def _subscriber(_: Values | None) -> Column:
    return F.lit(False)


def _most_changes(_: Values | None) -> Column:
    """True if the publisher changed more value columns; NULL if both changed the same number."""

    def changed(flag: str) -> Column:
        return F.size(F.filter(SIDES, lambda side: side[NAME].isNotNull() & side[flag]))

    publisher, subscriber = changed(PUBLISHER_CHANGED), changed(SUBSCRIBER_CHANGED)
    return F.when(publisher != subscriber, publisher > subscriber)


def _publisher_deleted() -> Column:
    return F.col(f"{PUBLISHER}.{DELETED}")


RULES: Final = (
    Rule(RESOLVERS["subscriber_wins"], _subscriber),
    Rule(RESOLVERS["publisher_wins"], _publisher),
    Rule(RESOLVERS["upload_only"], _subscriber),
    Rule(RESOLVERS["download_only"], _publisher),
    Rule(RESOLVERS["most_changes_win"], _most_changes),
)

OF_DELETES: Final = {
    OfDeletes.UPDATE_WINS.value: lambda: ~_publisher_deleted(),
    OfDeletes.DELETE_WINS.value: _publisher_deleted,
}
"""Whether the publisher's change wins between an update and a delete, by the file's `update_delete`."""

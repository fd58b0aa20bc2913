"""Rules by priority or role, whatever the values are.

The default is that the higher priority wins (merge_replication.md 3.3).

The publisher's changes have 100.00, a server subscription's its own 0.00 to 99.99, which travels with the
change; a client subscription's changes have 0.00 until they reached the publisher, then the publisher's.
Equal priorities: the change that reached the publisher first wins, and that is the one the publisher holds.
"""

from typing import Final

from conflict.detect import NAME, PUBLISHER_CHANGED, SIDES, SUBSCRIBER_CHANGED
from conflict.resolvers.base import Rule, Values
from mergerepl.changes import DELETED, PUBLISHER, SUBSCRIBER
from mergerepl.changes import PRIORITY as OF_CHANGE
from mergerepl.frames import Column, F
from mergerepl.model.resolvers import PRIORITY, RESOLVERS, SUBSCRIBER_WINS, OfDeletes


def publisher_wins() -> Column:
    """Return, for a conflicting row of PAIRS, whether the publisher's change wins."""
    return F.col(f"{PUBLISHER}.{OF_CHANGE}") >= F.col(f"{SUBSCRIBER}.{OF_CHANGE}")


def by_default(_: Values | None) -> Column:
    """Return NULL: a rule without an answer leaves it to the default, which is this one."""
    return F.lit(None).cast("boolean")


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
    Rule(RESOLVERS[PRIORITY], by_default),
    Rule(RESOLVERS[SUBSCRIBER_WINS], _subscriber),
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

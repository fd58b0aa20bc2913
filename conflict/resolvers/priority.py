"""The default resolver: the higher priority wins (merge_replication.md 3.3).

The publisher's changes have 100.00, a server subscription's its own 0.00 to 99.99, which travels with the
change; a client subscription's changes have 0.00 until they reached the publisher, then the publisher's.
Equal priorities: the change that reached the publisher first wins, and that is the one the publisher holds.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from conflict.resolvers.base import Rule, Values
from mergerepl.changes import PRIORITY as OF_CHANGE
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.model.resolvers import PRIORITY, RESOLVERS


def publisher_wins() -> Column:
    """Return, for a conflicting row of PAIRS, whether the publisher's change wins."""
    return F.col(f"{PUBLISHER}.{OF_CHANGE}") >= F.col(f"{SUBSCRIBER}.{OF_CHANGE}")


def by_default(_: Values | None) -> Column:
    """Return NULL: a rule without an answer leaves it to the default, which is this one."""
    return F.lit(None).cast("boolean")


RULES: Final = (Rule(RESOLVERS[PRIORITY], by_default),)

"""The rule that joins two arrays as sets."""

from typing import Final

from pyspark.sql import functions as F

from conflict.resolvers.base import NO_ANCESTOR, Made, Rule, Values
from conflict.resolvers.priority import by_default
from mergerepl.model.resolvers import RESOLVERS


def _union(values: Values) -> Made:
    """Return the items of both, each once, without those that either removed from the common ancestor.

    The publisher's come first, in their order, then those that only the subscriber has. If one is NULL, the other is taken.
    If no ancestor is known, nothing was removed.
    """
    publisher, subscriber = values.publisher, values.subscriber
    both = F.array_union(publisher, subscriber)
    was_there = F.coalesce(values.base, F.array_except(publisher, publisher))
    removed = F.array_except(was_there, F.array_intersect(publisher, subscriber))
    joined = F.when(values.is_base_known, F.array_except(both, removed)).otherwise(both)
    value = F.coalesce(joined, publisher, subscriber)
    return Made(value, F.lit(True), F.when(~values.is_base_known, F.lit(NO_ANCESTOR)))


RULES: Final = (Rule(RESOLVERS["union"], by_default, _union),)

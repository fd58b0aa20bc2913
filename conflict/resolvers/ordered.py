"""Rules by the order of one column: the row with the larger or smaller value wins.

A side with NULL loses to one with a value. Equal values, and two NULLs, are left to the default. Numbers are compared as
Spark orders them: NaN is the largest, -0.0 equals 0.0. Timestamps are compared as instants, without a time zone.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from conflict.resolvers.base import Rule, Values
from mergerepl.model.resolvers import RESOLVERS


def _larger(values: Values | None) -> Column:
    assert values is not None
    publisher, subscriber = values.publisher, values.subscriber
    return _with_value(values, F.when(publisher != subscriber, publisher > subscriber))


def _smaller(values: Values | None) -> Column:
    assert values is not None
    publisher, subscriber = values.publisher, values.subscriber
    return _with_value(values, F.when(publisher != subscriber, publisher < subscriber))


def _with_value(values: Values, compared: Column) -> Column:
    has_one, has_other = values.publisher.isNotNull(), values.subscriber.isNotNull()
    return F.when(has_one & has_other, compared).when(has_one != has_other, has_one)


RULES: Final = tuple(
    Rule(RESOLVERS[name], better)
    for name, better in {
        "maximum": _larger,
        "minimum": _smaller,
        "datetime_earlier_wins": _smaller,
        "datetime_later_wins": _larger,
        "priority_column": _larger,
    }.items()
)

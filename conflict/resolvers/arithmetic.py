"""Rules that compute a number from both sides' numbers: the sum, the mean.

If one side has NULL, the other's number is taken. If the result does not fit the column's type, the winner's value stays.
Integers and decimals are computed exactly, in a wider decimal: `publish` refuses columns of more than 35 digits.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DataType, DecimalType, IntegerType, LongType, ShortType

from conflict.resolvers.base import Made, Rule, Values, of_ancestor
from conflict.resolvers.priority import by_default
from mergerepl.model.resolvers import RESOLVERS

OVERFLOW: Final = "overflow"


def computed(values: Values, result: Column) -> Made:
    """Return a number as made, in the column's type, if it fits; with NULL at one side the other's number."""
    publisher, subscriber = values.publisher, values.subscriber
    has_both = publisher.isNotNull() & subscriber.isNotNull()
    fitting = F.when(has_both, result.try_cast(values.data_type)).otherwise(F.coalesce(publisher, subscriber))
    fits = ~(has_both & fitting.isNull())
    return Made(fitting, fits, F.when(~fits, F.lit(OVERFLOW)))


def wide(value: Column, data_type: DataType) -> Column:
    """Return a number in a type in which sums of three such numbers are exact; floating ones as double."""
    match data_type:
        case ByteType() | ShortType() | IntegerType() | LongType():
            return value.cast("decimal(20,0)")
        case DecimalType():
            return value
    return value.cast("double")


def _sum(values: Values) -> Made:
    one, other = (wide(each, values.data_type) for each in (values.publisher, values.subscriber))
    return computed(values, one + other)


def _mean(values: Values) -> Made:
    one, other = (wide(each, values.data_type) for each in (values.publisher, values.subscriber))
    if isinstance(values.data_type, DecimalType):
        # A cast to fewer decimals rounds half up, away from zero; a division would not be exact first.
        return computed(values, (one + other) * F.lit("0.5").cast("decimal(1,1)"))
    return computed(values, one / 2 + other / 2)


def _difference(values: Values) -> Made:
    """Return the publisher's number plus the subscriber's difference from their common ancestor: both changes count."""
    one, other, base = (
        wide(each, values.data_type) for each in (values.publisher, values.subscriber, values.base)
    )
    made = computed(values, one + (other - F.coalesce(base, F.lit(0))))
    return of_ancestor(values, made)


RULES: Final = (
    Rule(RESOLVERS["additive"], by_default, _sum),
    Rule(RESOLVERS["delta"], by_default, _difference),
    Rule(RESOLVERS["averaging"], by_default, _mean),
)

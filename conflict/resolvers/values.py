"""Rules by the values of a column: by their order, by their sum or mean, by what both texts, arrays or structs have.

By order, a side with NULL loses to one with a value; equal values, and two NULLs, are left to the default. Numbers are
compared as Spark orders them: NaN is the largest, -0.0 equals 0.0. Timestamps are compared as instants.

If one side of two numbers is NULL, the other's number is taken. If the result does not fit the column's type, the winner's
value stays. Integers and decimals are computed exactly, in a wider decimal: `publish` refuses more than 35 digits.

By field, at every depth, a field that one side changed, added or removed is taken from that side; one that both changed is
the winner's.
"""

from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from conflict.resolvers.base import NO_ANCESTOR, Made, Rule, Values, of_ancestor
from conflict.resolvers.priority import by_default, publisher_wins
from mergerepl.frames import Column, F
from mergerepl.model.resolvers import RESOLVERS
from mergerepl.rows.images import same_value

OVERFLOW: Final = "overflow"


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


def _joined(values: Values) -> Made:
    """Return the common prefix of both texts, the rest of the publisher's, the delimiter, the rest of the subscriber's.

    In characters (code points). No value is made for NULL or for two equal texts.
    """
    publisher, subscriber = (F.coalesce(each, F.lit("")) for each in (values.publisher, values.subscriber))
    same = F.zip_with(
        F.split(publisher, ""), F.split(subscriber, ""), lambda one, other: one.eqNullSafe(other)
    )
    first_difference = F.array_position(same, False).cast("int")
    rest = F.substr(subscriber, first_difference)
    text = F.concat(publisher, F.lit(values.info.delimiter or ""), rest)
    return Made(text, publisher != subscriber, F.lit(None).cast("string"))


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


def _by_field(values: Values) -> Made:
    parts = values.publisher, values.subscriber, values.base
    has_all = parts[0].isNotNull() & parts[1].isNotNull() & parts[2].isNotNull()
    return of_ancestor(values, Made(_merged(*parts, values.data_type), has_all, F.lit(None).cast("string")))


def _merged(one: Column, other: Column, base: Column, data_type: DataType) -> Column:
    """Return a value merged of two and their ancestor: by its parts where all three have any."""
    whole = (
        F.when(same_value(one, base, data_type), other)
        .when(same_value(other, base, data_type), one)
        .otherwise(F.when(publisher_wins(), one).otherwise(other))
    )
    has_all = one.isNotNull() & other.isNotNull() & base.isNotNull()
    if isinstance(data_type, StructType):
        parts = (
            _merged(one[f.name], other[f.name], base[f.name], f.dataType).alias(f.name) for f in data_type
        )
        return F.when(has_all, F.struct(*parts)).otherwise(whole)
    if isinstance(data_type, MapType):
        return F.when(has_all, _merged_map(one, other, base, data_type)).otherwise(whole)
    return whole


def _merged_map(one: Column, other: Column, base: Column, data_type: MapType) -> Column:
    """Return a map merged key by key: the publisher's keys first. A missing key and NULL are two different values."""
    entry = StructType().add("value", data_type.valueType)

    def entry_of(side: Column, key: Column) -> Column:
        value = F.struct(F.try_element_at(side, key).alias("value"))
        return F.when(F.map_contains_key(side, key), value)

    def merged(key: Column) -> Column:
        chosen = _merged(entry_of(one, key), entry_of(other, key), entry_of(base, key), entry)
        return F.struct(key.alias("key"), chosen.alias("entry"))

    keys = F.array_union(F.map_keys(one), F.map_keys(other))
    present = F.filter(F.transform(keys, merged), lambda each: each["entry"].isNotNull())
    return F.map_from_entries(
        F.transform(present, lambda each: F.struct(each["key"], each["entry"]["value"].alias("value")))
    )


RULES: Final = (
    Rule(RESOLVERS["maximum"], _larger),
    Rule(RESOLVERS["minimum"], _smaller),
    Rule(RESOLVERS["datetime_earlier_wins"], _smaller),
    Rule(RESOLVERS["datetime_later_wins"], _larger),
    Rule(RESOLVERS["priority_column"], _larger),
    Rule(RESOLVERS["additive"], by_default, _sum),
    Rule(RESOLVERS["delta"], by_default, _difference),
    Rule(RESOLVERS["averaging"], by_default, _mean),
    Rule(RESOLVERS["merge_text"], by_default, _joined),
    Rule(RESOLVERS["union"], by_default, _union),
    Rule(RESOLVERS["fields"], by_default, _by_field),
)

"""The rule that merges structs and maps field by field, at every depth.

A field that one side changed, added or removed is taken from that side; one that both changed is the winner's.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StructType

from conflict.resolvers.base import Made, Rule, Values, of_ancestor
from conflict.resolvers.priority import by_default, publisher_wins
from mergerepl.model.resolvers import RESOLVERS
from mergerepl.rows.images import same_value


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


RULES: Final = (Rule(RESOLVERS["fields"], by_default, _by_field),)

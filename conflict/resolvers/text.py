"""The rule that joins two texts."""

from typing import Final

from pyspark.sql import functions as F

from conflict.resolvers.base import Made, Rule, Values
from conflict.resolvers.priority import by_default
from mergerepl.model.resolvers import RESOLVERS


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


RULES: Final = (Rule(RESOLVERS["merge_text"], by_default, _joined),)

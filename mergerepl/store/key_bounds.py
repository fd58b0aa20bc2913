"""Between which keys changed rows lie: files whose rows are all outside need not be read."""

import re
from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.model.article import PublishedArticle
from mergerepl.store.sql import quote

KeyBounds = Mapping[str, tuple[str, str]]
"""The lowest and the highest value of identity fields, as text."""

_TYPES = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types whose values sort alike in Spark, in the bounds of files and as text that is cast back."""

_BELOW_SPACE = re.compile(r"[\x00-\x1f]")
_LAST_BEFORE_SURROGATES, _LAST_SURROGATE = 0xD7FF, 0xDFFF


def bound_measures(
    article: PublishedArticle, value: Callable[[str], Column], *, prefix: str = ""
) -> dict[str, Column]:
    """Return the aggregates that `bounds_found` reads; `value` gives a field's value in the rows that count, or NULL."""
    measures: dict[str, Column] = {}
    for field, type_ in _bounded(article).items():
        key = value(field)
        measures[f"{prefix}min_{field}"] = F.min(key).cast("string")
        measures[f"{prefix}max_{field}"] = F.max(key).cast("string")
        if type_ == "string":
            measures[f"{prefix}odd_{field}"] = F.count_if(F.coalesce(~F.is_valid_utf8(key), F.lit(False)))
    return measures


def bounds_found(
    article: PublishedArticle, found: Mapping[str, object], *, prefix: str = ""
) -> dict[str, tuple[str, str]]:
    """Return the bounds of the identity fields that have some, from the values of `bound_measures`."""
    return {
        field: (str(found[f"{prefix}min_{field}"]), str(found[f"{prefix}max_{field}"]))
        for field in _bounded(article)
        # Delta's bounds of a file are of other bytes than its keys that are no UTF-8.
        if found[f"{prefix}min_{field}"] is not None and not found.get(f"{prefix}odd_{field}")
    }


def within_bounds(article: PublishedArticle, bounds: KeyBounds, *, of: str = "") -> Column:
    """Return a condition that rows with keys inside the bounds meet, and by the bounds of their files, too.

    `of` is what the user's columns are qualified with (`t.`).
    """
    condition: Column = F.lit(True)
    types = _bounded(article)
    for name, field in zip(article.identity, article.identity_fields, strict=True):
        # A GUID's text in another case lies outside of the bounds (and GUIDs are everywhere: they prune nothing).
        if field in bounds and article.rowguid_column is None:
            condition = condition & _within(F.col(f"{of}{quote(name)}"), *bounds[field], types[field])
    return condition


def _bounded(article: PublishedArticle) -> dict[str, str]:
    """Return the identity fields that may have bounds, with their types."""
    types = dict(zip(article.fields, article.types, strict=True))
    return {field: types[field] for field in article.identity_fields if types[field] in _TYPES}


def _within(key: Column, lowest: str, highest: str, type_: str) -> Column:
    condition = key <= F.lit(highest).cast(type_)
    if type_ != "string":
        return condition & (key >= F.lit(lowest).cast(type_))
    lower = below_unpadded(lowest)
    return condition & (key >= F.lit(lower)) if lower else condition


def below_unpadded(lowest: str) -> str:
    """Return a text that sorts before every key from `lowest` on, with or without padding; '' if there is none.

    Other engines write a char(n) as it is given, and so are the bounds of their files: 'ab' lies before 'ab   '. What
    sorts before a space ends the text, too: 'a' and 'a', tab, 'b' change places where they are padded. And as Spark pads
    what such a column is compared with, the last letter is the one before it.
    """
    kept = _BELOW_SPACE.split(lowest, maxsplit=1)[0].rstrip(" ")
    if not kept:
        return ""
    before = ord(kept[-1]) - 1
    return kept[:-1] + chr(_LAST_BEFORE_SURROGATES if before == _LAST_SURROGATE else before)

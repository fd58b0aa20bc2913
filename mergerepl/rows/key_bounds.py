"""The bounds of the keys of changed rows: files whose rows are all outside need not be read."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_, or_

from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.model.article import BOUNDED_TYPES, PublishedArticle
from mergerepl.rows.images import identity_value
from mergerepl.rows.sql import quote

KeyBounds = Mapping[str, tuple[str, str]]
"""The lowest and the highest value of identity fields, as text."""

_FIRST_BOUNDED_DAY = "1582-10-25"
"""Delta reads bounds of files from 1582-10-05 to 1582-10-14 as ten days later, and would skip such rows."""

_PRINTABLE = re.compile("[ -~]*")
"""ASCII from the space on; the letter after each of these is also ASCII."""


def bound_measures(
    article: PublishedArticle, value: Callable[[str], Column], *, prefix: str = ""
) -> dict[str, Column]:
    """Return the aggregates that `bounds_found` reads; `value` gives a field's value in the rows that count, or NULL."""
    measures: dict[str, Column] = {}
    for field, type_ in _bounded(article).items():
        measures |= measures_of(field, value(field), type_, prefix=prefix)
    return measures


def measures_of(name: str, key: Column, type_: str, *, prefix: str = "") -> dict[str, Column]:
    """Return the aggregates that `found_between` reads, for one column of one of BOUNDED_TYPES."""
    measures = {
        f"{prefix}min_{name}": F.min(key).cast("string"),
        f"{prefix}max_{name}": F.max(key).cast("string"),
    }
    if type_ == "string":
        measures[f"{prefix}odd_{name}"] = F.count_if(F.coalesce(~F.is_valid_utf8(key), F.lit(False)))
    return measures


def found_between(name: str, found: Mapping[str, object], *, prefix: str = "") -> tuple[str, str] | None:
    """Return the bounds of one column as text, or None."""
    # Delta's bounds of a file have other bytes than its values if these are not UTF-8.
    if found[f"{prefix}min_{name}"] is None or found.get(f"{prefix}odd_{name}"):
        return None
    return str(found[f"{prefix}min_{name}"]), str(found[f"{prefix}max_{name}"])


def bounds_found(
    article: PublishedArticle, found: Mapping[str, object], *, prefix: str = ""
) -> dict[str, tuple[str, str]]:
    """Return the bounds of the identity fields that have bounds, from the values of `bound_measures`."""
    between = {field: found_between(field, found, prefix=prefix) for field in _bounded(article)}
    return {field: bounds for field, bounds in between.items() if bounds is not None}


def bounds_of(
    rows: DataFrame, article: PublishedArticle, value: Callable[[str], Column]
) -> dict[str, tuple[str, str]]:
    """Return the bounds of the identity fields in rows, in one job; `value` as for `bound_measures`.

    None in process: lookups there name the keys.
    """
    measures = {} if is_in_process() else bound_measures(article, value)
    if not measures:
        return {}
    found = rows.agg(*(measure.alias(name) for name, measure in measures.items())).collect()[0]
    return bounds_found(article, found.asDict())


def within_bounds(article: PublishedArticle, bounds: KeyBounds, *, of: str = "") -> Column:
    """Return a condition met by rows with keys inside the bounds, and by the bounds of their files.

    `of` qualifies the user's columns (`t.`).
    """
    condition: Column = F.lit(True)
    types = _bounded(article)
    for name, field in zip(article.identity, article.identity_fields, strict=True):
        # A GUID's text in another case lies outside the bounds (and GUIDs are scattered, so bounds prune nothing).
        if field in bounds and name in article.bounded_identity:
            condition = condition & within(F.col(f"{of}{quote(name)}"), *bounds[field], types[field])
    return condition


def numbered_key(article: PublishedArticle, field: str) -> Callable[[Column], Column] | None:
    """Return the function that maps an identity field's values to whole numbers in order, or None."""
    type_ = dict(zip(article.fields, article.types, strict=True))[field]
    if article.rowguid_column is not None or type_ not in BOUNDED_TYPES or type_ == "string":
        return None
    return F.unix_date if type_ == "date" else lambda key: key.cast("bigint")


def same_key(article: PublishedArticle, bounds: KeyBounds, ranges: Sequence[KeyBounds] = ()) -> Column:
    """Return whether a row of the table (alias `t`) has the key of a row of images (alias `s`), within the bounds.

    `ranges` are bounds; each key is within one of them.
    """
    condition = within_bounds(article, bounds, of="t.")
    if ranges:
        condition = condition & reduce(or_, (within_bounds(article, each, of="t.") for each in ranges))
    is_guid = article.rowguid_column is not None
    for name, field in zip(article.identity, article.identity_fields, strict=True):
        target, source = (
            identity_value(F.col(name), existing=is_guid) for name in (f"t.{quote(name)}", f"s.{field}")
        )
        condition = condition & (target == source)
    return condition


def _bounded(article: PublishedArticle) -> dict[str, str]:
    """Return the identity fields that may have bounds, with their types."""
    types = dict(zip(article.fields, article.types, strict=True))
    return {field: types[field] for field in article.identity_fields if types[field] in BOUNDED_TYPES}


def is_unbounded(lowest: str, type_: str) -> bool:
    """Whether a lower bound of this value would exclude rows that have such keys."""
    return type_ == "date" and lowest < _FIRST_BOUNDED_DAY


def within(key: Column, lowest: str, highest: str, type_: str) -> Column:
    """Return a condition met by the values between two bounds, and by the bounds of their files."""
    if is_unbounded(lowest, type_):
        return F.lit(True)
    if type_ != "string":
        return (key >= F.lit(lowest).cast(type_)) & (key <= F.lit(highest).cast(type_))
    lower, upper = below_unpadded(lowest), above_odd(highest)
    ends = ([key >= F.lit(lower)] if lower else []) + ([key <= F.lit(upper)] if upper else [])
    return reduce(and_, ends, F.lit(True))


def below_unpadded(lowest: str) -> str:
    """Return a text that sorts before every key from `lowest` on, with or without padding; '' if that is impossible.

    Other engines write a char(n) unpadded, and so are the bounds of their files: 'ab' sorts before 'ab   '. A character
    below the space ends the text: 'a' and 'a', tab, 'b' change order when padded. As Spark pads the literal that such a
    column is compared with, the last letter is replaced by the one before it. A non-ASCII character ends the text
    because Delta's bounds of a file replace each byte that is not UTF-8 by U+FFFD, which may sort on the other side of
    such a letter.
    """
    kept = _printable(lowest).rstrip(" ")
    return kept[:-1] + chr(ord(kept[-1]) - 1) if kept else ""


def above_odd(highest: str) -> str:
    """Return a text of the same letters that sorts after every key up to `highest`; '' if that is impossible."""
    kept = _printable(highest)
    if kept == highest or not kept:
        return kept
    return kept[:-1] + chr(ord(kept[-1]) + 1)


def _printable(text: str) -> str:
    found = _PRINTABLE.match(text)
    return found.group() if found else ""

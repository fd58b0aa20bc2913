"""Texts of delta-rs' SQL: names and literals in conditions; and times that stay within its years."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta


def quoted(name: str) -> str:
    """Return a column's name as delta-rs' SQL wants it."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(value: str) -> str:
    """Return a text as delta-rs' SQL wants it."""
    return "'" + value.replace("'", "''") + "'"


def text_literals(values: Iterable[str]) -> str:
    """Return texts as a list of literals of delta-rs' SQL."""
    return ", ".join(map(text_literal, values))


def timestamp_literal(moment: datetime) -> str:
    """Return a time, in UTC if it has a zone, as delta-rs' SQL wants it."""
    zone = "None" if moment.tzinfo is None else 'Some("UTC")'
    return f"arrow_cast('{moment}', 'Timestamp(Microsecond, {zone})')"


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC, one without a zone taken as local; what lies outside of the years 1 to 9999 there is cut."""
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        return (datetime.min if moment.year == 1 else datetime.max).replace(tzinfo=UTC)


def time_before(moment: datetime, length: timedelta) -> datetime:
    """Return the time a length before another, cut to the years 1 to 9999."""
    try:
        return moment - length
    except OverflowError:
        return (datetime.min if length > timedelta() else datetime.max).replace(tzinfo=moment.tzinfo)

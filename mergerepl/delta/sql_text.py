"""Texts of delta-rs' SQL: names and literals in conditions; times limited to its years."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta


def quoted(name: str) -> str:
    """Quote a column's name for delta-rs' SQL."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(value: str) -> str:
    """Quote a text for delta-rs' SQL."""
    return "'" + value.replace("'", "''") + "'"


def text_literals(values: Iterable[str]) -> str:
    """Return texts as a list of literals of delta-rs' SQL."""
    return ", ".join(map(text_literal, values))


def timestamp_literal(moment: datetime) -> str:
    """Return a time, in UTC if it has a zone, as a literal of delta-rs' SQL."""
    zone = "None" if moment.tzinfo is None else 'Some("UTC")'
    return f"arrow_cast('{moment}', 'Timestamp(Microsecond, {zone})')"


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC, taking one without a zone as local; clamped to the years 1 to 9999."""
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        return (datetime.min if moment.year == 1 else datetime.max).replace(tzinfo=UTC)


def time_before(moment: datetime, length: timedelta) -> datetime:
    """Return the time a length before another, clamped to the years 1 to 9999."""
    try:
        return moment - length
    except OverflowError:
        return (datetime.min if length > timedelta() else datetime.max).replace(tzinfo=moment.tzinfo)

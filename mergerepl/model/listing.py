"""`Listing`, the rows that a call returns, and the HTML form of results in notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

T = TypeVar("T")
LONGEST_LIST = 10**9
"""The highest `limit`, and what `--limit all` means. The query engine takes 64 bits, and `None` is all there are."""
MOST_ROWS = 100
"""Rows of a table in a notebook."""
_LONGEST_CELL = 300


class Listing(tuple[T, ...]):
    """Rows of one kind, frozen dataclasses, as a tuple. A notebook shows the first 100 as a table."""

    _count: Callable[[], int] | None = None

    @classmethod
    def limited(cls, rows: Iterable[T], limit: int | None, count: Callable[[], int]) -> Self:
        """Return the first rows up to a limit; `count` returns the number of all, and is called only if it is needed."""
        found = cls(rows)
        found._count = count if len(found) == limit else None
        return found

    @property
    def total(self) -> int:
        """The number of rows without a limit: of `history`, `browse` and `conflicts`, else those that are here."""
        return len(self) if self._count is None else self._count()

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`: a column for each field, a struct or list for a nested value.

        Mappings, whose keys differ from row to row, and nested values of several classes are columns of JSON text.
        """
        import pyarrow as pa

        rows = [shown_fields(each) for each in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: _column([row.get(name) for row in rows]) for name in names})

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a `pandas.DataFrame`, one column for each field.

        Raises: ImportError if pandas is not installed.
        """
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _repr_html_(self) -> str:
        return html_table([shown_fields(each) for each in self])


class HtmlResult:
    """Mixed into a result: a notebook shows its fields as a table, and a field of rows as a table of its own."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        values = shown_fields(self)
        tables = {name: each for name, each in values.items() if _are_rows(each)}
        plain = {name: each for name, each in values.items() if name not in tables}
        parts = [html_table([plain])]
        for name, rows in tables.items():
            parts += [f"<p>{_escaped(name)}</p>", html_table([shown_fields(each) for each in rows])]
        return "".join(parts)


def shown_fields(row: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without a deep copy; another value has one field."""
    if not is_dataclass(row):
        return {"value": row}
    return {each.name: getattr(row, each.name) for each in fields(row)}


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an HTML table: escaped, at most 100 rows, without a script."""
    if not rows:
        return "<p>no rows</p>"
    names = list(dict.fromkeys(name for row in rows[:MOST_ROWS] for name in row))
    head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f"<p>{len(rows) - MOST_ROWS:,} more rows</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _escaped(text: str) -> str:
    # Loaded by notebooks, not by every command.
    from html import escape

    return escape(text)


def _are_rows(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(is_dataclass, value))


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(_text(value))
    return _escaped(text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…")


def _text(value: Any) -> Any:
    """Return a value for one cell: a time in seconds, an LSN as typed, a nested value as JSON."""
    match value:
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case bytes() if type(value) is bytes:
            return f"0x{value.hex().upper()}"
        case Mapping() | tuple() | list():
            return json.dumps(_plain(value), default=str)
    return json.dumps(_plain(value), default=str) if is_dataclass(value) else value


def _column(values: Sequence[Any]) -> list[Any]:
    """Return the values of a field as Arrow takes them: of one type."""
    nested = [each for each in values if is_dataclass(each) or isinstance(each, Mapping)]
    if len({type(each) for each in nested}) > 1:
        texts = (
            _plain(each) if isinstance(each, Mapping) else json.dumps(_plain(each), default=str)
            for each in values
        )
        return [None if text == "null" else text for text in texts]
    return [_plain(each) for each in values]


def _plain(value: Any) -> Any:
    """Return a value in types that Arrow infers a column from."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(each) for name, each in shown_fields(value).items()}
    match value:
        case Enum():
            return _plain(value.value)
        case Mapping():
            return json.dumps({str(name): _plain(each) for name, each in value.items()}, default=str)
        case tuple() | list() | frozenset():
            return [_plain(each) for each in value]
        case bytes() if type(value) is not bytes:
            # An LSN, which has one notation everywhere.
            return str(value)
        case None | bool() | int() | float() | str() | bytes() | datetime() | date() | timedelta():
            return value
    return str(value)

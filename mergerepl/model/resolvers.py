"""The resolvers that a file may name, their needs, and an article's settings for its resolver.

`conflict` has their rules; a replica stores names and settings only. Source: merge_replication.md 3.3.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final


class TypeFamily(StrEnum):
    """The types of a column that a resolver reads."""

    NUMBER = "a number"
    """tinyint to bigint, decimal, float, double."""
    TIME = "a date or timestamp"
    """date, timestamp, timestamp_ntz."""
    TEXT = "a string"
    ARRAY = "an array without maps"
    FIELDS = "a struct or map"


@dataclass(frozen=True)
class Resolver:
    """A resolver as a file may name it.

    `original` is its name in SQL Server. `reads`: the required type of its column; None: it takes no column.
    `makes_value`: it computes the value of its columns, and the default decides the rest of the row. `decides_deletes`:
    it decides an update against a delete, too. `needs_base`: it reads the row before either change. `clashes_if_equal`:
    two changes of its column to one value are two changes. `by_row`: it also works with row tracking. `rejects`: the
    side (`publisher` or `subscriber`) whose changes are never taken; whole rows are decided then. `function`: the
    `module:function` that an agent of its own has under this name; a file names it for the resolver `custom`.
    """

    name: str
    original: str | None = None
    reads: TypeFamily | None = None
    makes_value: bool = False
    decides_deletes: bool = False
    needs_base: bool = False
    clashes_if_equal: bool = False
    by_row: bool = True
    rejects: str | None = None
    function: str | None = None


_making = partial(Resolver, makes_value=True, by_row=False)

PRIORITY: Final = "priority"
"""The default: the higher priority wins."""

SUBSCRIBER_WINS: Final = "subscriber_wins"

UPLOAD_ONLY: Final = "upload_only"
"""Replicas differ by design: the publisher's changes are not sent."""

CUSTOM: Final = "custom"
"""A function of the agent's own decides."""

_ORIGINAL: Final = "Microsoft SQL Server {} Conflict Resolver"
_EARLIER: Final = "Microsoft SQL Server DATETIME (Earlier Wins) Conflict Resolver"
_LATER: Final = "Microsoft SQL Server DATETIME (Later Wins) Conflict Resolver"

RESOLVERS: Final = {
    each.name: each
    for each in (
        Resolver(PRIORITY, decides_deletes=True),
        _making("additive", _ORIGINAL.format("Additive"), TypeFamily.NUMBER, clashes_if_equal=True),
        _making("averaging", _ORIGINAL.format("Averaging"), TypeFamily.NUMBER),
        Resolver("maximum", _ORIGINAL.format("Maximum"), TypeFamily.NUMBER),
        Resolver("minimum", _ORIGINAL.format("Minimum"), TypeFamily.NUMBER),
        Resolver("datetime_earlier_wins", _EARLIER, TypeFamily.TIME),
        Resolver("datetime_later_wins", _LATER, TypeFamily.TIME),
        Resolver("priority_column", _ORIGINAL.format("Priority Column"), TypeFamily.NUMBER),
        _making("delta", reads=TypeFamily.NUMBER, needs_base=True, clashes_if_equal=True),
        _making("union", reads=TypeFamily.ARRAY, needs_base=True),
        _making("fields", reads=TypeFamily.FIELDS, needs_base=True),
        _making("merge_text", _ORIGINAL.format("Merge Text Columns"), TypeFamily.TEXT),
        Resolver(SUBSCRIBER_WINS, _ORIGINAL.format("Subscriber Always Wins"), decides_deletes=True),
        Resolver("publisher_wins", decides_deletes=True),
        Resolver(UPLOAD_ONLY, _ORIGINAL.format("Upload Only"), decides_deletes=True, rejects="publisher"),
        Resolver(
            "download_only", _ORIGINAL.format("Download Only"), decides_deletes=True, rejects="subscriber"
        ),
        Resolver("most_changes_win", by_row=False),
        Resolver(
            CUSTOM, "Microsoft SQLServer Stored Procedure Resolver", decides_deletes=True, needs_base=True
        ),
    )
}
"""All resolvers, by name."""

ALIASES: Final = {
    **{each.original.lower(): each.name for each in RESOLVERS.values() if each.original is not None},
    _ORIGINAL.format("Merge Text").lower(): "merge_text",
}
"""The names of the original, in lower case."""

FUNCTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""The name of an agent's function: never a module or a path, as replicas and files state it."""


class OfDeletes(StrEnum):
    """The winner if one side updated a row and the other deleted it, unless the article's resolver decides that."""

    PRIORITY = "priority"
    PUBLISHER_WINS = "publisher_wins"
    SUBSCRIBER_WINS = "subscriber_wins"
    UPDATE_WINS = "update_wins"
    DELETE_WINS = "delete_wins"


@dataclass(frozen=True)
class ResolverInfo:
    """The settings of an article's resolver: the columns that it reads or makes, in order, the delimiter between two
    texts, and the name of the agent's function.
    """

    columns: tuple[str, ...] = ()
    delimiter: str | None = None
    update_delete: str = OfDeletes.PRIORITY.value
    function: str | None = None

    @property
    def stored(self) -> str | None:
        """The text of sysmergearticles.resolver_info: JSON, None if nothing is stated."""
        if self == ResolverInfo():
            return None
        stated = {
            "columns": list(self.columns),
            "delimiter": self.delimiter,
            "update_delete": self.update_delete,
            **({"function": self.function} if self.function is not None else {}),
        }
        return json.dumps(stated, ensure_ascii=False)


NO_RESOLVER_INFO: Final = ResolverInfo()


def resolver_info(stored: str | None) -> ResolverInfo:
    """Parse a text of sysmergearticles.resolver_info.

    Raises: ValueError for another text.
    """
    if stored is None:
        return NO_RESOLVER_INFO
    try:
        stated = json.loads(stored)
        columns, delimiter = stated["columns"], stated["delimiter"]
        function = stated.get("function")
        if not all(isinstance(name, str) for name in columns) or not isinstance(delimiter, str | None):
            raise TypeError
        if function is not None and FUNCTION.fullmatch(function) is None:
            raise ValueError
        return ResolverInfo(tuple(columns), delimiter, OfDeletes(stated["update_delete"]).value, function)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"resolver_info is {stored!r}") from error

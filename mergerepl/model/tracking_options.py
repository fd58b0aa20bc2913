"""The options of Compact change tracking: operations, kinds of keys, purges, foreign commits."""

from enum import IntEnum, IntFlag, StrEnum
from functools import reduce
from operator import or_
from typing import Final

SYSTEM_PREFIX: Final = "__sys"
"""Prefix of the runtime's columns and tables; users' names never have it."""


class TrackingOptions(IntFlag):
    """The tracked operations on a table. Combined with `|`. The original's NONE and MAX are reserved names."""

    INSERT = 1
    UPDATE = 2
    DELETE = 4
    ALL = 7

    @classmethod
    def of(cls, stated: "TrackingOptions | str") -> "TrackingOptions":
        """Return operations given as a number, or as comma-separated names such as `insert,delete`.

        Raises: ValueError.
        """
        if isinstance(stated, str):
            words = [word.strip().upper() for word in stated.split(",")]
            if unknown := [word for word in words if word not in cls.__members__]:
                raise ValueError(f"{unknown[0].lower()!r} is none of insert, update, delete, all")
            return reduce(or_, (cls[word] for word in words))
        if not stated or stated & ~cls.ALL:
            raise ValueError(f"{stated!r} is no combination of insert, update, delete")
        return cls(stated)


class TrackingKeyType(IntEnum):
    """The kind of a row's key. The original's None and Max are reserved names."""

    PRIMARY_KEY = 1
    """The columns named by `key`."""
    GUID = 2
    """One string column of GUIDs, compared without regard to case."""


class PurgeType(IntEnum):
    """The choice of rows to purge. The original's None and Max are reserved names."""

    TIME_BASED = 1
    """Rows older than `value` days."""
    CSN_BASED = 2
    """Rows of transactions with a CSN below `value`."""


class Foreign(StrEnum):
    """The handling of commits without a transaction."""

    ADOPT = "adopt"
    """Each becomes an implicit transaction."""
    REFUSE = "refuse"
    """They are an error until a command adopts them or they are undone."""

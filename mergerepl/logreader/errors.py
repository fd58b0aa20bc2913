"""Refusals of the log reader."""

from typing import Self

from mergerepl.errors import StoreError, Transient
from mergerepl.store.location import Location

RESUME = "`mergerepl cdc resume` (`mergerepl transactional resume` where publications alone read it)"
"""The command that resumes a paused source."""


def may_pass(error: StoreError) -> bool:
    """True for a temporary local error, such as a share that does not answer: it pauses no source."""
    cause = error.__cause__
    is_of_tables = isinstance(cause, PermissionError | FileNotFoundError | NotADirectoryError)
    return isinstance(error, Transient) or (isinstance(cause, OSError) and not is_of_tables)


class LogReaderError(StoreError):
    """The log reader's bookkeeping cannot be used; nothing was changed."""

    @classmethod
    def restored(cls, root: Location, what: str) -> Self:
        """A part of the bookkeeping is older than another."""
        return cls(
            f"The log reader of '{root}' cannot go on: {what}. A part of '_logreader' or '_cdc' was restored alone. "
            "Nothing was changed. Restore both folders from copies of one moment; or begin again with "
            f"`mergerepl cdc adopt {root}`, after which consumers take a snapshot.",
            root=str(root),
        )

    @classmethod
    def other_key(cls, source: str, one: str, other: str) -> Self:
        """Two consumers identify the rows of a source by different keys."""
        return cls(
            f"Table '{source}' is read by the key ({one}) and cannot be read by the key ({other}), too: capture instances "
            "and articles of one table have the same key. Nothing was changed. State the first one.",
            source=source,
        )

"""The position of a reader of a table's changes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FeedPosition:
    """The last version of a table whose changes were read.

    `commit` is `delta.log.commit_text` of that version, None if it is not known. A folder that was restored may have
    another commit with the same number.
    """

    table_id: str
    version: int
    commit: str | None = None

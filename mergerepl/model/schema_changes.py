"""What `mergerepl schema list` shows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SchemaChange:
    """A change of the published columns of one table.

    `version` rises within a publication, `article_version` is the publisher's version of the table's columns after it.
    `changes` are in words. `done` and `pending` are the subscribers that have it, and those that get it with their next
    sync; at a subscriber they name that one alone.
    """

    publication: str
    table: str
    version: int
    article_version: int
    changes: tuple[str, ...]
    done: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

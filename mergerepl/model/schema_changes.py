"""What the commands of `mergerepl schema` show."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SchemaChange:
    """A change of the published columns of one table.

    `version` rises within a publication, `article_version` is the publisher's version of the table's columns after it.
    `changes` are in words. `done` and `pending` are the subscribers that have it, and those that get it with their next
    sync; `skipped` those that leave it out. At a subscriber they name that one alone.
    """

    publication: str
    table: str
    version: int
    article_version: int
    changes: tuple[str, ...]
    done: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedChange:
    """A schema change that a subscriber leaves out, or with `undo` takes again.

    `changes` are in words. `statements` bring the subscriber's table to a change that its sessions have passed already.
    """

    publication: str
    table: str
    version: int
    subscriber: str
    changes: tuple[str, ...]
    undo: bool = False
    statements: tuple[str, ...] = ()


FOLLOWS, STOPS, NOT_ASKED = "follows", "stops", "not asked"


@dataclass(frozen=True)
class SchemaAnswer:
    """Whether a subscriber can follow a change: `follows`, with its statements; `stops` or `not asked`, with the reason."""

    publication: str
    subscriber: str
    answer: str
    statements: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class AlterResult:
    """A change of a published column: what follows ALTER TABLE and the table's name, and the subscribers' answers."""

    table: str
    statement: str
    answers: tuple[SchemaAnswer, ...] = ()
    dry_run: bool = False
    is_drop: bool = False

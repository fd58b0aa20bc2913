"""Refusals of transactional replication, each with its text and SQL Server's error number.

| error | meaning | exit |
|---|---|---|
| TransactionalError | a command (20598, 2627), subscription (21074) or table (14088) cannot be used | 1 |
| TransactionalUsageError | a name or a parameter is wrong, or a capability is not built | 2 |
| LogReaderBusyError | 18752: another log reader or command holds the log; run again | 3 |
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from mergerepl.errors import ConfigurationError, LeaseError, MergeReplError
from mergerepl.model.transactional import MOST_STREAMS
from mergerepl.store.location import Location

NOT_FOUND = 20598
DUPLICATE = 2627
EXPIRED = 21074
NO_KEY = 14088
BUSY = 18752
SCHEMA_CHANGED = 21076
CHECK_BROKEN = 547
NOT_NULL_BROKEN = 515
TOO_LONG = 2628

RULES_BROKEN = (CHECK_BROKEN, NOT_NULL_BROKEN, TOO_LONG)
"""The numbers of commands whose row the subscriber's table refuses."""

SKIPPABLE = (NOT_FOUND, DUPLICATE, 2601)
"""The numbers that `skip_errors` takes. 2601 is a unique index in SQL Server; here it is equivalent to 2627."""

_NOTHING = "Nothing was changed."


def to_run(*words: object) -> str:
    """Return a command of `mergerepl transactional` as a message names it: to be pasted."""
    return f"`{shlex.join(['mergerepl', 'transactional', *map(str, words)])}`"


@dataclass(frozen=True)
class StoppedAt:
    """The command at which an agent stopped."""

    xact_seqno: bytes
    command_id: int
    article_id: int


class TransactionalError(MergeReplError):
    """A command cannot be applied, or a table cannot be published. `number` is SQL Server's error number, `command` the
    command at which an agent stopped, or None.
    """

    def __init__(self, number: int, message: str, *, command: StoppedAt | None = None, **facts: Any) -> None:
        super().__init__(message, number=number, **facts)
        self.number = number
        self.command = command

    @classmethod
    def stopped(
        cls,
        number: int,
        publisher: Location,
        subscriber: Location,
        text: str,
        xact_seqno: str,
        command: str,
        at: StoppedAt | None = None,
    ) -> Self:
        """The agent stopped before a transaction: a row is missing (20598) or there (2627), or breaks a rule."""
        skip = to_run("skip", publisher, xact_seqno, "--subscriber", subscriber)
        remedy = f"Correct the row there, or lift the rule; or leave out this transaction, with {skip}."
        if number in SKIPPABLE:
            once = to_run("distribute", publisher, "--subscriber", subscriber, "--skip-errors", number)
            repair = to_run("repair", publisher, "--subscriber", subscriber)
            remedy = (
                f"Correct the row, where others changed it with {repair}; or leave out this transaction, with {skip}; or "
                f"skip commands with this error once, with {once}; or always, with `skip_errors: [{number}]` of the "
                "subscription in the file."
            )
        return cls(
            number,
            f"{text} Transaction {xact_seqno}, command {command}. Subscriber '{subscriber}' has everything before this "
            f"transaction and nothing of it. {remedy}",
            command=at,
            subscriber=str(subscriber),
            xact_seqno=xact_seqno,
        )

    @classmethod
    def no_key(cls, article: str, why: str) -> Self:
        """14088: a published table needs a primary key."""
        return cls(
            NO_KEY,
            f"Article '{article}' cannot be published: a transactional article must have a primary key, and {why}. "
            f"{_NOTHING} Name the columns that identify a row: `key: [order_id]`.",
            article=article,
        )

    @classmethod
    def bad_table(cls, article: str, why: str, remedy: str) -> Self:
        """14088: a table cannot be published."""
        return cls(
            NO_KEY, f"Article '{article}' cannot be published: {why}. {_NOTHING} {remedy}", article=article
        )

    @classmethod
    def expired(cls, publisher: Location, subscriber: Location, why: str) -> Self:
        """21074: the subscription is inactive, or the commands it needs are gone."""
        return cls(
            EXPIRED,
            f"The subscription of '{subscriber}' cannot go on: {why}. Nothing was applied. Begin again from a snapshot: "
            f"{to_run('reinit', publisher, '--subscriber', subscriber)}.",
            subscriber=str(subscriber),
        )

    @classmethod
    def columns_changed(cls, publisher: Location, subscriber: Location, article: str, what: str) -> Self:
        """21076: the columns of an article changed in a way that the subscriber's table cannot follow."""
        return cls(
            SCHEMA_CHANGED,
            f"Article '{article}' at '{subscriber}': the publisher's columns changed ({what}), and only added columns are "
            "carried over. Everything before that change is applied. Begin again with the new columns: "
            f"{to_run('reinit', publisher, '--subscriber', subscriber)}.",
            subscriber=str(subscriber),
            article=article,
        )

    @classmethod
    def stale_procedure(
        cls, name: str, article: str, written_for: Sequence[str], columns: Sequence[str], schema_version: int
    ) -> Self:
        """21076: a custom procedure was written for other columns."""
        return cls(
            SCHEMA_CHANGED,
            f"The procedure '{name}' was written for the columns {', '.join(written_for)}; article '{article}' has "
            f"{', '.join(columns)} (schema version {schema_version}). Everything before that change is applied. Write the "
            "procedure again for these columns and state them in `columns`, or state `columns=None`.",
            article=article,
        )

    @classmethod
    def duplicate_rows(cls, publisher: Location, subscriber: Location, table: str, keys: int) -> Self:
        """2627: the subscriber's table has several rows of one key, so that a command would mean all of them."""
        return cls(
            DUPLICATE,
            f"Table '{table}' at the subscriber has keys of this batch more than once ({keys}): another writer changed it. "
            "Nothing was applied. Bring the publisher's rows back: "
            f"{to_run('repair', publisher, '--subscriber', subscriber)}; or begin again: "
            f"{to_run('reinit', publisher, '--subscriber', subscriber)}.",
            table=table,
        )

    @classmethod
    def paused(cls, publisher: Location, article: str, reason: str, *, is_captured: bool) -> Self:
        """21076: the log of an article's table cannot be read."""
        resume = to_run("resume", publisher, article)
        if is_captured:
            resume = f"`mergerepl cdc resume {shlex.quote(str(publisher))} INSTANCE`, since the table is captured, too"
        return cls(
            SCHEMA_CHANGED,
            f"The log of article '{article}' is not read: {reason} Everything read before it was distributed; so are other "
            f"articles. When that is corrected: {resume}. If it cannot be: take the article and the subscriptions out of "
            "the file and run `mergerepl apply FILE`; put them back and apply again.",
            article=article,
        )

    @classmethod
    def restored(cls, publisher: Location, subscriber: Location, root: Location, what: str) -> Self:
        """21074: positions do not fit together."""
        return cls(
            EXPIRED,
            f"'{root}': {what}: a part was removed, or restored from an older copy. Nothing was applied. Begin again "
            f"from a snapshot: {to_run('reinit', publisher, '--subscriber', subscriber)}.",
            root=str(root),
        )


class TransactionalUsageError(ConfigurationError):
    """A name or a parameter is wrong, or a capability is not built; nothing was changed."""

    @classmethod
    def without_articles(cls, publication: str) -> Self:
        """The file has subscriptions and no article."""
        return cls(
            f"Publication '{publication}' has subscriptions and no article. Nothing was changed. State its articles. "
            "To end it, take its subscriptions out, too (`subscriptions: []`), and run `mergerepl apply FILE`."
        )

    @classmethod
    def later(cls, what: str, remedy: str) -> Self:
        """A capability that this version lacks."""
        return cls(f"{what} is not supported by this version. {_NOTHING} {remedy}")

    @classmethod
    def changed_article(cls, article: str, what: str) -> Self:
        """An article was changed in the file while subscriptions are active."""
        return cls(
            f"Article '{article}' has another {what} in the file than published, and subscriptions are active. {_NOTHING} "
            "Take the subscriptions out of the file and run `mergerepl apply FILE`; change the article and apply; put "
            "them back and apply.",
            article=article,
        )


class LogReaderBusyError(LeaseError):
    """18752: only one log reader agent may read a database's log. Run again."""

    number = BUSY


def skipped_numbers(stated: Sequence[int | str]) -> frozenset[int]:
    """Return the numbers that an agent skips.

    Raises: TransactionalUsageError for one that cannot be skipped.
    """
    found = set()
    for each in stated:
        if str(each) not in map(str, SKIPPABLE):
            raise TransactionalUsageError(
                f"skip_errors cannot have {each}. Nothing was changed. Give numbers of {', '.join(map(str, SKIPPABLE))}."
            )
        found.add(int(each))
    return frozenset(found | {2627}) if 2601 in found else frozenset(found)


def require_streams(streams: int | None) -> None:
    """Check the number of streams of an agent; None: the subscription's own.

    Raises: TransactionalUsageError.
    """
    if streams is not None and not 1 <= streams <= MOST_STREAMS:
        raise TransactionalUsageError(
            f"streams cannot be {streams}. Nothing was changed. Give a number from 1 to {MOST_STREAMS}."
        )

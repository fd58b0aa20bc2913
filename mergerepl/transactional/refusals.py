"""Refusals of transactional replication, each with its text and SQL Server's error number.

| error | meaning | exit |
|---|---|---|
| TransactionalError | a command (20598, 2627), subscription (21074) or table (14088) cannot be used | 1 |
| TransactionalUsageError | a name or a parameter is wrong, or a capability is not built | 2 |
| LogReaderBusyError | 18752: another log reader or command holds the log; run again | 3 |
"""

import os
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

RESTORED = ": a part was removed, or restored from an older copy"
"""The end of a reason why a subscription cannot go on: its positions do not fit together."""

OWN_PROCEDURES = "A procedure of your own for a subscriber"
NO_PROCEDURES = "Use the generated procedures, or put the subscriber in a folder."
"""The reason that `refuse_in_store` gives for procedures: fences do not know the tables that they write."""

_NOTHING = "Nothing was changed."


def to_run(word: str, publisher: object, *words: object, at: object = None) -> str:
    """Return a command on a publisher as a message names it, to be pasted; `at` is a subscriber."""
    name = () if at is None else (os.path.basename(str(at)),)
    place = ("-f", publisher)
    match word:
        case "skip":
            parts = ("transactional", "skip", *words, *place, "--at", *name)
        case "browse":
            parts = ("transactional", "browse", *place)
        case "resume":
            parts = ("resume", *words, *place)
        case _:
            parts = (word, *name, *place, *words)
    return f"`{shlex.join(map(str, ('mergerepl', *parts)))}`"


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

    is_of_check = True

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
        skip = to_run("skip", publisher, xact_seqno, at=subscriber)
        remedy = f"Correct the row there, or lift the rule; or leave out this transaction, with {skip}."
        if number in SKIPPABLE:
            once = to_run("sync", publisher, "--skip-errors", number, at=subscriber)
            repair = to_run("repair", publisher, at=subscriber)
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
    def expired(cls, publisher: Location, subscriber: Location, why: str) -> Self:
        """21074: the subscription is inactive, or the commands it needs are gone."""
        return cls(
            EXPIRED,
            f"The subscription of '{subscriber}' cannot go on: {why}. Nothing was applied. Begin again from a snapshot: "
            f"{to_run('reinit', publisher, at=subscriber)}.",
            subscriber=str(subscriber),
        )

    @classmethod
    def paused(cls, publisher: Location, article: str, reason: str, *, is_captured: bool) -> Self:
        """21076: the log of an article's table cannot be read."""
        resume = to_run("resume", publisher, article)
        if is_captured:
            resume = f"`mergerepl resume INSTANCE -f {shlex.quote(str(publisher))}`, since the table is captured, too"
        return cls(
            SCHEMA_CHANGED,
            f"The log of article '{article}' is not read: {reason} Everything read before it was distributed; so are other "
            f"articles. When that is corrected: {resume}. If it cannot be: take the article and the subscriptions out of "
            "the file and run `mergerepl apply`; put them back and apply again.",
            article=article,
        )


class TransactionalUsageError(ConfigurationError):
    """A name or a parameter is wrong, or a capability is not built; nothing was changed."""

    @classmethod
    def later(cls, what: str, remedy: str) -> Self:
        """A capability that this version lacks."""
        return cls(f"{what} is not supported by this version. {_NOTHING} {remedy}")


def refuse_in_store(root: Location, what: str, remedy: str) -> None:
    """Check that an end is a folder, for what is not built for buckets.

    Raises: TransactionalUsageError.
    """
    if not root.is_local:
        raise TransactionalUsageError.later(f"{what} in a bucket ('{root}')", remedy)


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

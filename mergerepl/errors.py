"""Every error mergerepl raises on purpose.

    MergeReplError
    ├── ConfigurationError        the file, an option or a name is wrong          (exit 2)
    ├── EngineError               Java, JARs or the Spark session cannot be used
    │   └── EngineLostError       the engine ended in the middle; run again               (transient)
    ├── PublicationError          a table cannot be published or a replica cannot take part
    ├── SchemaMismatchError       the two sides of an article no longer have one schema
    │   └── SchemaStoppedError      a subscriber's table cannot take a schema change
    ├── CaptureError              the change feed has a gap that cannot be bridged
    ├── EnumerationError          watermarks and generations of two replicas do not fit together
    ├── ConflictError             a resolver is unknown or returned something unusable
    ├── ApplyError                a staged changeset could not be applied
    │   └── UnfinishedSessionError  the one that was staged before
    ├── RefusedArticlesError      several articles cannot go on
    ├── AgentLostError            the warm agent that ran a command ended; run again          (transient)
    ├── DemoError                 a result of `mergerepl demo` is not the expected one
    └── StoreError                a table or file of a replica cannot be read or written
        ├── CommitConflictError   another writer won the commit; run again         (transient)
        ├── LeaseError            another agent holds the replica; run again       (transient)
        ├── OutOfReachError       the other end of a subscription is not mounted; run again (transient)
        └── StoreUnavailableError an object store does not answer; run again       (transient)

A message names the failure, the object, the cause and the next step. `details()` gives the same facts to `--json`.
"""

import errno
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "AgentLostError",
    "ApplyError",
    "CaptureError",
    "CommitConflictError",
    "ConfigurationError",
    "ConflictError",
    "DemoError",
    "EngineError",
    "EngineLostError",
    "EnumerationError",
    "LeaseError",
    "MergeReplError",
    "OutOfReachError",
    "PublicationError",
    "RefusedArticlesError",
    "SchemaMismatchError",
    "SchemaStoppedError",
    "StoreError",
    "StoreUnavailableError",
    "Transient",
    "UnfinishedSessionError",
]


class Transient(Exception):
    """Mixed into an error that an unchanged second run may not meet."""


class MergeReplError(Exception):
    """Root of the tree. `facts` are the names of the objects concerned, for machines."""

    exit_code = 1
    is_of_check = False
    """True if it is raised by checks alone, which come before a write: no request of its work has an unknown outcome."""

    def __init__(self, message: str, **facts: Any) -> None:
        """Keep the `message`, one sentence per fact, and the `facts`."""
        super().__init__(message)
        self.message = message
        self.facts = {name: value for name, value in facts.items() if value is not None}

    def details(self) -> dict[str, Any]:
        """Return the error as one JSON-able object."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "transient": isinstance(self, Transient),
            **{name: str(value) for name, value in self.facts.items()},
        }


class ConfigurationError(MergeReplError):
    """The project file, an option or a name is wrong; nothing was touched."""

    exit_code = 2


class EngineError(MergeReplError):
    """Java, the Delta JARs or the Spark session cannot be used."""


class EngineLostError(EngineError, Transient):
    """The JVM ended during the work (killed, out of memory). The next run rolls the staged session forward."""

    exit_code = 3


class PublicationError(MergeReplError):
    """A table cannot be published, or a replica cannot take part in the publication."""


class SchemaMismatchError(MergeReplError):
    """The two sides of an article no longer have one schema."""


class SchemaStoppedError(SchemaMismatchError):
    """A subscriber's table cannot take a schema change: its subscription waits until that is undone."""

    reason = ""
    """Why, without the names of the article and the subscriber."""


class CaptureError(MergeReplError):
    """The change feed of an article has a gap that capture cannot bridge."""


_INITIALISE = (
    "move its folder away, take its subscription out of the file, run `mergerepl apply`, put the subscription back "
    "and run `mergerepl apply` again"
)
SUBSCRIBE_AGAIN = f"To subscribe it again: {_INITIALISE}."
"""The way on where a replica is not the subscribed one, for the end of a message."""


def reinit_advice(publisher: object, subscriber: object) -> str:
    """Return how a subscriber goes on without a common past with its publisher, for the end of a message.

    `publisher` is None where the reader's place is known.
    """
    name = shlex.quote(str(subscriber).rstrip("/").rpartition("/")[2])
    place = "" if publisher is None else f" -f {shlex.quote(str(publisher))}"
    return (
        f"Fill the subscriber again: `mergerepl reinit {name}{place} --upload-first`, or with `--discard-local`, "
        "which gives up the changes that it has not sent."
    )


PUBLISH_AGAIN = (
    "take all subscriptions and then the article out of the file, running `mergerepl apply` after each, and put them "
    "in again (an article that is the only one gets another name instead)"
)
"""How to publish a table again unchanged, for the end of a sentence."""


def begin_again(*, is_publisher: bool | None = None) -> str:
    """Return how to restart an article at a replica, for the end of a sentence; None: the replica may have either role."""
    at_publisher, at_subscriber = (
        f"publish the table again: {PUBLISH_AGAIN}",
        "fill it again: `mergerepl reinit REPLICA --table TABLE --discard-local` at the publisher",
    )
    if is_publisher is None:
        return f"begin again (at the publisher {at_publisher}; at a subscriber {at_subscriber})"
    return at_publisher if is_publisher else at_subscriber


class EnumerationError(MergeReplError):
    """Watermarks and generations of two replicas do not fit together (a restore or a copy)."""


class ConflictError(MergeReplError):
    """Conflicts cannot be decided (unknown resolver, unusable answer), or rows wait for a session that was interrupted.

    No command writes rows before the next sync has finished a staged session.
    """


class ApplyError(MergeReplError):
    """A changeset cannot be applied: before it is staged nothing was changed; after that the next run resumes it."""


class UnfinishedSessionError(ApplyError):
    """A staged session could not be finished. The next run tries again, unless it is given up."""

    def __init__(self, session: str, publisher: str, subscriber: str, reason: str) -> None:
        """Name the session, the `reason` of its failure, and both remedies."""
        self.reason = reason
        super().__init__(
            f"Session {session} of '{publisher}' with '{subscriber}' is staged and was not carried out to its end: "
            f"{reason.rstrip('.')}. Fix the cause and run again: it is finished first. "
            f"{give_up_advice(publisher, session)}",
            session=session,
            publisher=publisher,
            subscriber=subscriber,
        )


def give_up_advice(publisher: object, session: str) -> str:
    """Return how to give up a staged session, for messages about an unfinished one."""
    return f"If it cannot be finished, end it: `mergerepl abort {session} -f {publisher}`."


class RefusedArticlesError(MergeReplError):
    """Several articles failed, each for its own reason; `details()` lists them as `articles`."""

    def __init__(self, names: Sequence[str], reasons: Sequence[MergeReplError]) -> None:
        """Join all reasons, one a line."""
        super().__init__("\n".join(reason.message for reason in reasons), article=", ".join(names))
        self.reasons = tuple(reasons)

    def details(self) -> dict[str, Any]:
        """Return the error as one JSON-able object."""
        return super().details() | {"articles": [reason.details() for reason in self.reasons]}


class AgentLostError(MergeReplError, Transient):
    """The warm agent that ran this command ended during it. Run again: the next sync finishes the staged session."""

    exit_code = 3


class DemoError(MergeReplError):
    """A result of `mergerepl demo` is not the expected one; the demo ends."""


class StoreError(MergeReplError):
    """A table or a file of a replica cannot be read or written."""


class CommitConflictError(StoreError, Transient):
    """Another writer won the commit every time we tried, replaced ours or outran us. No data is lost; run again."""

    exit_code = 3


class LeaseError(StoreError, Transient):
    """Another agent holds the replica. Wait for it to finish, then run again."""

    exit_code = 3


class SubscriptionExpiredError(EnumerationError):
    """The subscriber was away for too long, or did not count for a while: it must be reinitialised."""


class OutOfReachError(StoreError, Transient):
    """The replica at the other end of a subscription is not in its place: most likely it is not mounted."""

    exit_code = 3


class StoreUnavailableError(StoreError, Transient):
    """An object store does not answer, or answers with errors that pass. The outcome of a write may be unknown."""

    exit_code = 3


TRANSIENT, MEMORY, PERMANENT = "transient", "memory", "permanent"
TRIES = {TRANSIENT: None, MEMORY: 3, PERMANENT: 1}
"""Class of an error -> how often a session that ends so is run in one round; None: as often as `--retries` says.

The only classification of errors. docs/errors.md has the errors of each class.
"""


def error_class(kind: type[MergeReplError]) -> str:
    """Return the class of an error."""
    if issubclass(kind, EngineLostError):
        # Most JVMs end because they have too little memory, which more tries do not change.
        return MEMORY
    return TRANSIENT if issubclass(kind, Transient) else PERMANENT


def class_of_details(details: Mapping[str, Any]) -> str:
    """Return the class of an error from its `details`."""
    kind = globals().get(str(details.get("error")))
    if isinstance(kind, type) and issubclass(kind, MergeReplError):
        return error_class(kind)
    return TRANSIENT if details.get("transient") else PERMANENT


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The numbers of a disk, a quota or a file that takes no more."""


@contextmanager
def full_disk_named(what: str, **details: str) -> Iterator[None]:
    """Name what cannot be written, and the way on, if a disk takes no more.

    delta-rs has the number of the system's error in its text.

    Raises: StoreError.
    """
    try:
        yield
    except MergeReplError:
        raise
    except Exception as error:
        found = _OS_ERROR.search(str(error))
        number = getattr(error, "errno", None) or (int(found[1]) if found else None)
        if number not in _NO_SPACE:
            raise
        raise StoreError(
            f"{what} cannot be written: {os.strerror(number)}. Make room there, then run the command again: it first "
            "finishes what was begun.",
            **details,
        ) from error

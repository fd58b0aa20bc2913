"""`mergerepl sync --give-up`: end a staged session by hand, if it cannot be finished."""

from mergerepl.errors import ConfigurationError, MergeReplError, StoreError, Transient, UnfinishedSessionError
from mergerepl.merge.session.give_up import give_up
from mergerepl.merge.session.recovery import SparkSource, roll_forward
from mergerepl.merge.session.session_plan import session_plan
from mergerepl.merge.session.sides import open_sides
from mergerepl.model.results import GivenUp, SessionResult
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import find_subscription, refuse_copies
from mergerepl.spark.errors import plain_errors
from mergerepl.store.changeset import Changeset, read_changeset, set_aside, staged_folders
from mergerepl.store.lease import leases
from mergerepl.store.location import Location


def give_up_session(
    publisher: Replica, session: str, *, spark_of: SparkSource, lease_wait_s: float = 0.0
) -> SessionResult:
    """Finish a staged session if possible, else give it up, and return the next step.

    `session` is its id, or the beginning of it.

    Raises: ConfigurationError if no such session is staged there, or several ids match; PublicationError for a copy;
    LeaseError, CommitConflictError, EngineLostError (run again: it may still be finished); EngineError.
    """
    folder = _staged_folder(publisher, session)
    try:
        changeset = read_changeset(folder)
    except StoreError as error:
        # Its owner is unknown.
        with leases(
            publisher.root, purpose=f"mergerepl sync {publisher.root} --give-up", wait_s=lease_wait_s
        ):
            return _given_up("", "", folder, set_aside(folder), error.message, _NEXT)
    if changeset is None:
        raise _no_such(publisher, session)
    subscriber = _subscriber(changeset, publisher)
    roots = [publisher.root, *([subscriber.root] if subscriber is not None else [])]
    with leases(*roots, purpose=f"mergerepl sync {publisher.root} --give-up", wait_s=lease_wait_s):
        publisher = publisher.reread()
        subscriber = subscriber.reread() if subscriber is not None else None
        refuse_copies(*(each for each in (publisher, subscriber) if each is not None))
        return _finished_or_given_up(changeset, publisher, subscriber, spark_of)


def _finished_or_given_up(
    changeset: Changeset, publisher: Replica, subscriber: Replica | None, spark_of: SparkSource
) -> SessionResult:
    manifest = changeset.manifest
    root = manifest.subscriber.root if subscriber is None and manifest.subscriber else ""
    root = str(subscriber.root) if subscriber is not None else root
    reason = f"its subscriber '{root}' is out of reach"
    try:
        with plain_errors(f"finishing session {manifest.session}"):
            for replica in (publisher, *([subscriber] if subscriber is not None else [])):
                replica.require_unedited()
            roll_forward(
                spark_of(), changeset, publisher, subscriber or publisher, is_ours=subscriber is not None
            )
        if subscriber is not None:
            return SessionResult(manifest.publication, root, "succeeded", recovered=1)
    except MergeReplError as error:
        if isinstance(error, Transient):
            raise
        reason = error.reason if isinstance(error, UnfinishedSessionError) else error.message
    with plain_errors(f"giving up session {manifest.session}"):
        kept = give_up(changeset, publisher, subscriber, spark_of)
    next_step = _next_step(publisher, subscriber, manifest.publication)
    return _given_up(manifest.publication, root, changeset.folder, kept, reason, next_step)


def _given_up(
    publication: str, subscriber: str, folder: Location, kept: Location, reason: str, next_step: str
) -> SessionResult:
    return SessionResult(
        publication, subscriber, "given_up", given_up=GivenUp(folder.name, str(kept), reason, next_step)
    )


_NEXT = (
    "Run `mergerepl sync`: what the session had written already counts as users' changes, and what it had not is sent "
    "again. Then compare with `mergerepl validate`. Rows that lost a conflict are logged, or in that folder."
)


def _next_step(publisher: Replica, subscriber: Replica | None, publication: str) -> str:
    """Return the user's next step: a session, if the two replicas will have one."""
    if subscriber is None:
        return _NEXT
    try:
        _, _, row = find_subscription(publisher.root, subscriber.root, publication)
        session_plan(open_sides(publisher, subscriber, row), upload=True, download=True)
    except MergeReplError as error:
        return error.message
    return _NEXT


def _staged_folder(publisher: Replica, session: str) -> Location:
    found = [folder for folder in staged_folders(publisher.staging) if folder.name.startswith(session)]
    if len(found) != 1 or not session:
        raise _no_such(publisher, session)
    return found[0]


def _no_such(publisher: Replica, session: str) -> ConfigurationError:
    known = ", ".join(folder.name for folder in staged_folders(publisher.staging)) or "none"
    return ConfigurationError(
        f"There is no one session '{session}' staged at publisher '{publisher.root}'. Sessions staged there: {known}. "
        "Name one of them by its id, or by the beginning of it that no other has.",
        publisher=str(publisher.root),
        session=session,
    )


def _subscriber(changeset: Changeset, publisher: Replica) -> Replica | None:
    """Return the session's subscriber in its present place; None if it is out of reach."""
    work = changeset.manifest.subscriber
    if work is None:
        return None
    known = [row.subscriber_server for row in publisher.relations() if row.replid == work.replid]
    for root in dict.fromkeys([*known, work.root]):
        try:
            replica = Replica(Location.of(root)).require()
            if replica.info().replid == work.replid:
                return replica
        except MergeReplError:
            continue
    return None

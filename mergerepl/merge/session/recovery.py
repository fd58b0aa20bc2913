"""The first step of a session: finish sessions that died after they were staged."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from pyspark.sql import SparkSession

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import ARROW_FOR_FEW, SPARK_ALONE, EngineChoice
from mergerepl.delta.tables import TruncatedLogError, head_version, is_another_commit, is_delta_table
from mergerepl.errors import (
    ConfigurationError,
    EngineError,
    EnumerationError,
    MergeReplError,
    StoreError,
    Transient,
    UnfinishedSessionError,
    give_up_advice,
    reinit_advice,
)
from mergerepl.merge.apply.conflict_log import log_given_up
from mergerepl.merge.session import session_history
from mergerepl.merge.session.carry_out import Outcome, carry_out
from mergerepl.merge.session.give_up import give_up, is_refused_by, settle
from mergerepl.merge.session.session_plan import session_plan
from mergerepl.merge.session.sides import open_sides
from mergerepl.model.results import GivenUp, SessionResult
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import (
    drop_half_written_pointers,
    drop_pointer,
    find_subscription,
    pointers,
    refuse_copies,
    require_publisher,
)
from mergerepl.spark import session as spark_session
from mergerepl.spark.plain import AGAIN, plain_errors
from mergerepl.store.changeset import Changeset, drop, read_changeset, set_aside, staged_folders
from mergerepl.store.lease import leases
from mergerepl.store.location import Location
from triggers.errors import FeedGapError, StagedColumnsError

log = logging.getLogger(__name__)

SparkSource = Callable[[], SparkSession]


def recover(
    publisher: Replica, subscriber: Replica, spark_of: SparkSource, *, engine: str = SPARK_ALONE
) -> int:
    """Roll staged sessions of the publisher forward and drop incomplete ones. Returns the number rolled forward.

    A session is identified by the subscriber's replid, since the folder may have moved. A session with another
    subscriber is finished at the publisher only: that subscriber may be out of reach, and its side waits for its next
    session. If a table of the publisher now refuses its rows, it is given up; so is one whose rows have columns that the
    publisher's user renamed or dropped since: what it did not write is sent under the new columns. If the subscription has
    ended since, only the publisher's side is finished.

    Raises: EnumerationError if a replica is older than the session that was staged against it; UnfinishedSessionError.
    """
    rolled = 0
    own_id = subscriber.info().replid
    for folder in staged_folders(publisher.staging):
        changeset = read_changeset(folder)
        if changeset is None:
            drop(folder)
            drop_pointer(subscriber, folder.name)
            continue
        work = changeset.manifest.subscriber
        row = publisher.relation(changeset.manifest.subid, work.replid) if work is not None else None
        is_subscribed = row is not None and not row.is_ended
        is_ours = is_subscribed and row is not None and row.replid == own_id
        if is_ours or not changeset.is_done(PUBLISHER):
            log.info("rolling session %s forward", folder.name)
            try:
                roll_forward(spark_of, changeset, publisher, subscriber, is_ours=is_ours, engine=engine)
            except UnfinishedSessionError as error:
                if not _has_other_columns(error, publisher):
                    if is_ours or not is_refused_by(spark_of(), changeset, publisher, PUBLISHER):
                        raise
                    # Another subscriber's session. It would block this subscriber for good.
                    log.warning("%s It is given up, so that others can go on.", error.message)
                give_up(changeset, publisher, subscriber if is_ours else None, spark_of)
                continue
            rolled += 1
        if not is_subscribed:
            log_given_up(spark_of, changeset, publisher)
            drop(folder)
    _drop_stale_pointers(publisher, subscriber)
    return rolled


def _has_other_columns(error: UnfinishedSessionError, publisher: Replica) -> bool:
    cause = error.__cause__
    return isinstance(cause, StagedColumnsError) and cause.facts["replica"] == str(publisher.root)


def refuse_interrupted(publisher: Replica, subscriber: Replica) -> None:
    """Raise EnumerationError if the next session of these two has to finish an interrupted one first."""
    own_id = subscriber.info().replid
    for folder in staged_folders(publisher.staging):
        changeset = read_changeset(folder)
        work = changeset.manifest.subscriber if changeset is not None else None
        if changeset is None or work is None:
            continue
        if work.replid == own_id or not changeset.is_done(PUBLISHER):
            raise EnumerationError(
                f"Session {folder.name} of '{publisher.root}' was interrupted and is half carried out, so what a next one "
                "will do is not known yet. Nothing was changed. Run `mergerepl sync`, which finishes it first. "
                f"{give_up_advice(publisher.root, folder.name)}",
                replica=str(publisher.root),
            )


def _drop_stale_pointers(publisher: Replica, subscriber: Replica) -> None:
    """Remove pointers to finished sessions of this publisher, and pointers that a kill left half written."""
    drop_half_written_pointers(subscriber)
    publisher_id = publisher.info().replid
    # A damaged pointer does not name its publisher; a capture, which needs the name, refuses the pointer.
    own = [pointer for pointer in pointers(subscriber) if pointer.replid == publisher_id]
    staged = {folder.name for folder in staged_folders(publisher.staging)} if own else set()
    for pointer in own:
        if pointer.session not in staged:
            require_publisher(publisher)
            settle(publisher, subscriber, pointer.session)


def roll_forward(
    spark_of: SparkSource,
    changeset: Changeset,
    publisher: Replica,
    subscriber: Replica,
    *,
    is_ours: bool,
    engine: str = SPARK_ALONE,
) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is not the session's (`is_ours`).

    Raises: EnumerationError, UnfinishedSessionError: it stays staged.
    """
    manifest = changeset.manifest
    # This may be the subscriber of another session.
    subscriber_root = manifest.subscriber.root if manifest.subscriber is not None else str(subscriber.root)
    sides = {PUBLISHER: publisher, **({SUBSCRIBER: subscriber} if is_ours else {})}

    def record(outcome: Outcome) -> None:
        result = outcome.result(manifest.publication, subscriber, recovered=1)
        session_history.record(
            publisher, subscriber, manifest, result, datetime.fromisoformat(manifest.started)
        )

    restored = {
        name: difference
        for name, replica in sides.items()
        if (difference := _difference_from_staged(changeset, name, replica))
    }
    if is_ours and (later := _later_session(changeset, subscriber)):
        restored = {
            PUBLISHER: f"the subscriber has completed session {later} since, which is not known there"
        }
    if PUBLISHER not in restored:
        held = {name: replica for name, replica in sides.items() if name not in restored}
        try:
            with named(changeset, publisher):
                started = recording_jvm(spark_of, held.values())
                choice = EngineChoice(engine == ARROW_FOR_FEW, spark_of=started)
                carry_out(changeset, held, choice, record=record)
        except UnfinishedSessionError as error:
            cause = error.__cause__
            if not isinstance(cause, TruncatedLogError | FeedGapError):
                raise
            session = changeset.manifest.session
            raise EnumerationError(
                f"Session {session} of '{publisher.root}' with '{subscriber_root}' was interrupted and needs versions of "
                f"'{cause.facts['table']}' that are gone since then. It cannot be finished any more. "
                f"{give_up_advice(publisher.root, session)}",
                replica=str(publisher.root),
                session=session,
            ) from error
    for name, difference in restored.items():
        raise EnumerationError(
            f"Session {manifest.session} of '{publisher.root}' with '{subscriber_root}' was interrupted, and since then "
            f"the {name} '{sides[name].root}' was put back to an older state: {difference}. The session cannot be finished "
            f"there. {_way_out(changeset, publisher, name)}",
            replica=str(sides[name].root),
            session=manifest.session,
        )


def _way_out(changeset: Changeset, publisher: Replica, name: str) -> str:
    advice = give_up_advice(publisher.root, changeset.manifest.session)
    subscriber = changeset.manifest.subscriber.root if changeset.manifest.subscriber is not None else ""
    fill = reinit_advice(publisher.root, subscriber)
    if name == SUBSCRIBER:
        return f"The publisher's side is finished. {advice} {fill}"
    return f"Nothing was changed. Restore the publisher from a later copy. {advice} {fill}"


@contextmanager
def named(changeset: Changeset, publisher: Replica) -> Iterator[None]:
    """Add the staged session, and how to give it up, to an error of carrying it out.

    Raises: UnfinishedSessionError; a transient error, or one of the engine, stays as it is.
    """
    manifest = changeset.manifest
    subscriber = manifest.subscriber.root if manifest.subscriber is not None else ""
    try:
        with plain_errors("it was carried out"):
            yield
    except MergeReplError as error:
        if isinstance(error, Transient | EngineError):
            raise
        reason = error.message.removesuffix(AGAIN).strip()
        raise UnfinishedSessionError(manifest.session, str(publisher.root), subscriber, reason) from error


def _difference_from_staged(changeset: Changeset, name: str, replica: Replica) -> str | None:
    """Return how a replica differs from the one that the session was staged against; None if it is the same.

    A restored replica may have continued on its own: it has runs and commits of these numbers that this session lacks.
    """
    work = changeset.manifest.side(name)
    if work is None:
        return None
    info = replica.info()
    if info.replid != work.replid:
        return "it is another replica"
    if changeset.is_done(name):
        # Tables may have changed since, articles may be gone. But the file is at the publisher: only the replica's own
        # earlier records, which never go back, show that it still includes the session.
        if info.session_number < changeset.manifest.number or info.last_seq < work.seq:
            return f"session {changeset.manifest.number} was carried out there and is not in it any more"
        return None
    if info.last_seq < work.base_seq:
        return f"its last run is {info.last_seq}, not {work.base_seq}"
    if info.last_seq > work.base_seq and info.session_number < changeset.manifest.number:
        return f"it has captured changes by itself, in run {info.last_seq}"
    articles = {article.nickname: article for article in replica.articles}
    for item in work.articles:
        if item.nickname not in articles:
            return f"it no longer has the article with nickname {item.nickname}"
        article = articles[item.nickname]
        table = replica.table(article)
        if not is_delta_table(table):
            return f"the table of '{article.name}', '{table}', is gone"
        head = head_version(table)
        if head < item.from_version:
            return f"'{article.name}' is at version {head}, not {item.from_version}"
        if is_another_commit(table, item.from_version, work.commits.get(item.nickname)):
            return f"'{article.name}' has another commit as version {item.from_version}"
    return None


def _later_session(changeset: Changeset, subscriber: Replica) -> int | None:
    """Return the number of a session that the subscriber completed after this one, or None.

    Both finish this session before the next, so only an older copy of the publisher can have it still staged.
    """
    manifest = changeset.manifest
    assert manifest.publisher is not None
    row = subscriber.relation(manifest.subid, manifest.publisher.replid)
    number = row.session_number if row is not None else 0
    return number if number > manifest.number else None


def finish_session(publisher: Replica, subscriber: Replica | None, session: str) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is None (out of reach).

    The rest of it is dropped: no other session of that subscription will finish it.

    Raises: as a session does. It stays staged; run again.
    """
    publisher.require_unedited()
    if subscriber is not None:
        subscriber.require_unedited()
    try:
        recover(publisher, subscriber or publisher, spark_session.session)
    except EnumerationError:
        # The subscriber can no longer take its side, but it is about to leave; the publisher's side is done by now.
        staged = read_changeset(publisher.staging / session)
        if subscriber is None or staged is None or not staged.is_done(PUBLISHER):
            raise
        recover(publisher, publisher, spark_session.session)
    changeset = read_changeset(publisher.staging / session)
    if changeset is not None:
        # With its subscriber, the session is finished by now.
        log_given_up(spark_session.session, changeset, publisher)
    drop(publisher.staging / session)
    if subscriber is not None:
        drop_pointer(subscriber, session)


def give_up_session(
    publisher: Replica, session: str, *, spark_of: SparkSource, lease_wait_s: float = 0.0
) -> SessionResult:
    """Finish a staged session if possible, else give it up, and return the next step.

    `session` is its id, or the beginning of it.

    Raises: ConfigurationError if no such session is staged there, or several ids match; PublicationError for a copy;
    LeaseError, CommitConflictError, EngineLostError (run again: it may still be finished); EngineError.
    """
    found = [folder for folder in staged_folders(publisher.staging) if folder.name.startswith(session)]
    if len(found) != 1 or not session:
        raise _no_such(publisher, session)
    (folder,) = found
    try:
        changeset = read_changeset(folder)
    except StoreError as error:
        # Its owner is unknown.
        with leases(publisher.root, purpose=f"mergerepl abort -f {publisher.root}", wait_s=lease_wait_s):
            return _given_up("", "", folder, set_aside(folder), error.message, _NEXT)
    if changeset is None:
        raise _no_such(publisher, session)
    subscriber = _subscriber(changeset, publisher)
    roots = [publisher.root, *([subscriber.root] if subscriber is not None else [])]
    with leases(*roots, purpose=f"mergerepl abort -f {publisher.root}", wait_s=lease_wait_s):
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
                spark_of, changeset, publisher, subscriber or publisher, is_ours=subscriber is not None
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

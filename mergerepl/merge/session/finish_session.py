"""Finish an interrupted session whose subscription is about to end: `apply` does it, holding both replicas."""

from mergerepl.changes import PUBLISHER
from mergerepl.errors import EnumerationError
from mergerepl.merge.session.carry_out import log_given_up
from mergerepl.merge.session.recovery import recover
from mergerepl.replica.pointers import drop_pointer
from mergerepl.replica.replica import Replica
from mergerepl.spark import session as engine
from mergerepl.store.changeset import drop, read_changeset


def finish_session(publisher: Replica, subscriber: Replica | None, session: str) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is None: out of reach.

    The rest of it is dropped: no other session of that subscription will finish it.

    Raises: as a session does. It stays staged; run again.
    """
    publisher.require_unedited()
    if subscriber is not None:
        subscriber.require_unedited()
    try:
        recover(publisher, subscriber or publisher, engine.session)
    except EnumerationError:
        # The subscriber cannot take its side any more, but it is about to leave; the publisher's side is done by now.
        staged = read_changeset(publisher.staging / session)
        if subscriber is None or staged is None or not staged.is_done(PUBLISHER):
            raise
        recover(publisher, publisher, engine.session)
    changeset = read_changeset(publisher.staging / session)
    if changeset is not None:
        # With its subscriber it is finished by now.
        log_given_up(engine.session, changeset, publisher)
    drop(publisher.staging / session)
    if subscriber is not None:
        drop_pointer(subscriber, session)

"""Finish an interrupted session whose subscription is about to end: `apply` does it, holding both replicas."""

from mergerepl.agent.carry_out import log_given_up
from mergerepl.agent.recovery import recover
from mergerepl.changes import PUBLISHER
from mergerepl.engine import session as engine
from mergerepl.errors import EnumerationError
from mergerepl.store.changeset import drop, read_changeset
from mergerepl.store.pointers import drop_pointer
from mergerepl.store.replica import Replica


def finish_session(publisher: Replica, subscriber: Replica | None, session: str) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is None: out of reach.

    What is then left of it is dropped: no other session of that subscription will take it up.

    Raises: as a session does. It stays staged; run again.
    """
    publisher.require_unedited()
    if subscriber is not None:
        subscriber.require_unedited()
    try:
        recover(publisher, subscriber or publisher, engine.session)
    except EnumerationError:
        # A subscriber that cannot take its side any more is about to leave; the publisher has its own by now.
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

"""Finish an interrupted session whose subscription is about to end: `apply` does it, holding both replicas."""

from mergerepl import spark
from mergerepl.agent.carry_out import pointer
from mergerepl.agent.recovery import recover
from mergerepl.changeset import drop
from mergerepl.store.replica import Replica


def finish_session(publisher: Replica, subscriber: Replica | None, session: str) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is None: out of reach.

    What is then left of it is dropped: no other session of that subscription will take it up.

    Raises: as a session does. It stays staged; run again.
    """
    recover(publisher, subscriber or publisher, spark.session)
    drop(publisher.staging / session)
    if subscriber is not None:
        pointer(subscriber, session).unlink(missing_ok=True)

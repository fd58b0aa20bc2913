"""Finish an interrupted session whose subscription is about to end: `apply` does it, holding both replicas."""

from typing import TYPE_CHECKING

from mergerepl.agent.carry_out import pointer
from mergerepl.agent.recovery import recover
from mergerepl.changeset import drop
from mergerepl.store.replica import Replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def finish_session(publisher: Replica, subscriber: Replica | None, session: str) -> None:
    """Carry out a staged session, at the publisher only if the subscriber is None: out of reach.

    What is then left of it is dropped: no other session of that subscription will take it up.

    Raises: as a session does. It stays staged; run again.
    """
    recover(publisher, subscriber or publisher, _embedded_spark)
    drop(publisher.staging / session)
    if subscriber is not None:
        pointer(subscriber, session).unlink(missing_ok=True)


def _embedded_spark() -> "SparkSession":
    from mergerepl import spark

    return spark.session()

"""The distribution agents of a publisher, one after the other. Spark is loaded only for pending commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.errors import MergeReplError, OutOfReachError
from mergerepl.model.transactional import DistributionResult
from mergerepl.spark.plain import plain_errors
from mergerepl.store.folders import is_folder
from mergerepl.store.lease import lease, record_jvm
from mergerepl.store.location import Location
from mergerepl.systables.transactional import SubscriptionRow
from mergerepl.transactional.batch_plan import redo_log
from mergerepl.transactional.catalog import Distributor, Root, required, subscriptions_of
from mergerepl.transactional.log_reader import spark_of
from mergerepl.transactional.position import position_of, waiting_after
from mergerepl.transactional.refusals import require_streams, skipped_numbers
from mergerepl.transactional.stops import stops_recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def distribute(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    streams: int | None = None,
    skip_errors: Sequence[int] | None = None,
    procedures: Sequence[str] = (),
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> tuple[DistributionResult, ...]:
    """Run the distribution agents of a publisher: each subscription gets the commands that the log reader has written.

    `streams` is the number of articles applied at a time, instead of the subscription's own number. `procedures` are
    modules that register procedures; procedures registered in this process need none. If an agent fails, the others still
    run; the first failure is raised after them.

    Raises: TransactionalError where a command cannot be applied (20598, 2627), a subscription is too old (21074) or
        columns changed (21076); TransactionalUsageError for an invalid number of streams; OutOfReachError if a subscriber
        cannot be reached; LeaseError (run again).
    """
    require_streams(streams)
    distributor = required(root)
    if procedures:
        from mergerepl.transactional.procedures import load

        load(procedures)
    found, failed = [], []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        try:
            found.append(
                run_agent(
                    distributor,
                    name,
                    row,
                    spark_of(spark),
                    streams=streams,
                    skip_errors=skip_errors,
                    lock_wait_s=lock_wait_s,
                )
            )
        except MergeReplError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return tuple(found)


def run_agent(
    distributor: Distributor,
    publication: str,
    row: SubscriptionRow,
    spark: Callable[[], SparkSession],
    **options: Any,
) -> DistributionResult:
    """Run one distribution agent. Why it stopped is recorded."""
    with stops_recorded(distributor, row), plain_errors("commands were distributed"):
        if not is_folder(Location.of(row.subscriber)):
            raise OutOfReachError(
                f"Subscriber '{row.subscriber}' of '{publication}' is not there: is it mounted? Run again when it is.",
                subscriber=row.subscriber,
            )
        return _distribute_one(distributor, row, publication, spark, **options)


def _distribute_one(
    distributor: Distributor,
    subscription: SubscriptionRow,
    publication: str,
    spark: Callable[[], SparkSession],
    *,
    streams: int | None = None,
    skip_errors: Sequence[int] | None = None,
    lock_wait_s: float = 0.0,
    **bounds: Any,
) -> DistributionResult:
    """Run the distribution agent of one subscription until nothing is new; without a JVM where nothing is.

    Raises: TransactionalError where a command cannot be applied; LeaseError if the subscriber is held.
    """
    skip = skipped_numbers(skip_errors if skip_errors is not None else subscription.skip_errors)
    root, guid = Location.of(subscription.subscriber), subscription.subscription_guid
    if not redo_log(root, guid).is_pending and not waiting_after(
        distributor, subscription, position_of(distributor, subscription)
    ):
        return DistributionResult(publication, subscription.subscriber)
    from mergerepl.transactional.distribution import Agent

    with lease(root, purpose="transactional distribute", wait_s=lock_wait_s):

        def recorded() -> SparkSession:
            from mergerepl.spark import session as engine

            found = spark()
            record_jvm(root, engine.jvm_pid())
            return found

        # Another process may have restarted or removed the subscription before we held its subscriber.
        now = distributor.subscription(guid)
        if now is None:
            return DistributionResult(publication, subscription.subscriber)
        at_once = streams or now.subscription_streams
        return Agent(distributor, now, publication, recorded, skip, streams=at_once, **bounds).run()

"""Skip one transaction at one subscription: the agent goes on after it. Starts no JVM."""

from dataclasses import replace
from datetime import UTC, datetime

from mergerepl.errors import MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.transactional import SkippedTransaction
from mergerepl.store.location import Location
from mergerepl.systables.transactional import ERRORS, HISTORY, ErrorRow, HistoryRow, SubscriptionRow
from mergerepl.transactional.agents import forget_stop, stop_of
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore
from mergerepl.transactional.position import app_id, position_of, waiting_after
from mergerepl.transactional.refusals import TransactionalUsageError, to_run


def skip(
    distributor: DistributionStore, publication: str, row: SubscriptionRow, seqno: Lsn, *, dry_run: bool
) -> SkippedTransaction:
    """Skip one transaction of a subscription. The caller holds the subscriber.

    Raises: As `Distributor.skip`.
    """
    from mergerepl.transactional.position import begun_plan

    subscriber = SubscriberStore(Location.of(row.subscriber))
    position = position_of(distributor, row)
    if bytes(seqno) <= position.transaction_timestamp:
        recorded = distributor.control.rows(
            ERRORS,
            where=f"subscription_guid = '{row.subscription_guid}' and command_id is null and is_skipped "
            f"and xact_seqno = X'{bytes(seqno).hex()}'",
        )
        if recorded:
            if not dry_run:
                distributor.change_subscription(
                    row.subscription_guid, last_xact_seqno=position.transaction_timestamp
                )
                forget_stop(distributor, row)
            return SkippedTransaction(publication, row.subscriber, str(seqno), is_done=False)
        raise _refusal(
            row, seqno, "has been passed already: it was applied, or has nothing for this subscription"
        )
    waiting = distributor.meant_for(row.publication_id, waiting_after(distributor, row, position))
    next_one = waiting[0] if waiting else None
    if next_one is None or next_one.xact_seqno != bytes(seqno):
        is_known = any(each.xact_seqno == bytes(seqno) for each in waiting)
        why = "is not the next one" if is_known else "is none that waits"
        then = f"the next one is {Lsn(next_one.xact_seqno)}" if next_one else "none waits"
        see = to_run("browse", distributor.root)
        raise _refusal(row, seqno, f"{why}; {then}. Only the next one can be skipped. To see commands: {see}")
    if next_one.kind == "schema":
        reinit = to_run("reinit", distributor.root, at=row.subscriber)
        raise _refusal(
            row,
            seqno,
            f"changes columns ({next_one.schema_text}): later ones need them. Begin again: {reinit}",
        )
    articles = distributor.articles(row.publication_id)
    app = app_id(row.subscription_guid)
    tables = {each.article_id: subscriber.table(row, each) for each in articles}
    if begun_plan(subscriber, position, tables) is not None:
        finish = to_run("sync", distributor.root, at=row.subscriber)
        raise _refusal(row, seqno, f"is part of a batch that some tables have already. Finish it: {finish}")
    names = {each.article_id: each.article for each in articles}
    commands = {names[each]: n for each, n in next_one.commands.items() if each in names}
    skipped = SkippedTransaction(publication, row.subscriber, str(seqno), commands, is_done=not dry_run)
    if dry_run:
        return skipped
    now, number = datetime.now(UTC), position.batch + 1
    counted = ", ".join(f"{name} {n:,}" for name, n in commands.items())
    text = f"Transaction {seqno} was skipped by hand (commands: {counted})."
    stop = stop_of(distributor, row)
    error = ErrorRow(
        time=now,
        error_code=stop.error_code if stop else None,
        error_text=text,
        xact_seqno=bytes(seqno),
        subscription_guid=row.subscription_guid,
        is_skipped=True,
        batch=number,
    )
    run = HistoryRow(
        agent_id=row.agent_id,
        time=now,
        comments=text,
        xact_seqno=bytes(seqno),
        skipped=sum(commands.values()),
    )
    # Before the position: a skip that dies is not lost, and is recorded once.
    once = (f"{app}-skip", number)
    with distributor.writing():
        distributor.control.append(ERRORS, [error], once=once)
        distributor.control.append(HISTORY, [run], once=once)
    distributor.change_subscription(row.subscription_guid, is_equal=False)
    failpoint("transactional.before_skip")
    subscriber.save(replace(position, time=now, transaction_timestamp=bytes(seqno), batch=number))
    failpoint("transactional.after_skip")
    distributor.change_subscription(row.subscription_guid, last_xact_seqno=bytes(seqno))
    forget_stop(distributor, row)
    return skipped


def _refusal(row: SubscriptionRow, seqno: Lsn, why: str) -> MergeReplError:
    return TransactionalUsageError(
        f"Transaction {seqno} cannot be skipped at '{row.subscriber}': it {why}. Nothing was changed.",
        subscriber=row.subscriber,
        xact_seqno=str(seqno),
    )

"""The position of a subscriber, the commands that wait for it, and the commits to its tables since. Without Spark."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mergerepl.delta.batch_end import REPLACED, LeftAt, Since, changes_since, left_at
from mergerepl.delta.contract.problems import OF_STORES, TableContract
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import Commit, TableState, commits, head_version, is_delta_table, open_table
from mergerepl.errors import StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.replica.fence import fence_table
from mergerepl.store.location import Location
from mergerepl.store.redo import BatchRedoLog, RedoLog
from mergerepl.store.register import ROOT_LOCK, register_of, state_of
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import files_in, is_folder, is_local, same_place
from mergerepl.systables.transactional import (
    FOLDER,
    INACTIVE,
    QUEUED,
    SUBSCRIBED,
    PositionRow,
    SubscriptionRow,
    TransactionRow,
)
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.refusals import (
    EXPIRED,
    RESTORED,
    TransactionalError,
    TransactionalUsageError,
    to_run,
)

log = logging.getLogger(__name__)

MOST_OF_A_BATCH = 10_000
"""Transactions of a batch at most."""

DISTRIBUTE, REPAIR = "distribute", "repair"
"""The kinds of our commits at a subscriber (map.md 2)."""


def app_id(guid: str) -> str:
    """Return the Delta transaction application of a subscription: its GUID never comes again."""
    return f"mergerepl-dist-{guid}"


def repair_app_id(guid: str) -> str:
    """Return the application that counts the repairs of a subscription's tables."""
    return f"{app_id(guid)}-repair"


def app_ids(guid: str) -> list[str]:
    """Return all applications under which a subscription writes the tables of its articles."""
    return [app_id(guid), repair_app_id(guid)]


def batch_step(number: int, place: str | None = None) -> str:
    """Return the step in the marks of a batch: for the articles' tables, or for a table that a procedure writes."""
    return f"{DISTRIBUTE}:{number}" + (f":{place}" if place else "")


def batches_of(own: tuple[Commit, ...]) -> list[int]:
    """Return the numbers of the batches that some commits of ours carry."""
    steps = [commit.mark.step.split(":") for commit in own if commit.mark is not None]
    return [int(step[1]) for step in steps if step[0] == DISTRIBUTE and step[1].isdecimal()]


def is_written(table: Location, mark: CommitMark, head: int) -> bool:
    """True if the log has the mark of a batch after the version that its plan states.

    Raises: TruncatedLogError if the log has lost those commits.
    """
    return is_delta_table(table) and any(
        commit.mark is not None and (commit.mark.session, commit.mark.step) == (mark.session, mark.step)
        for commit in commits(
            table, from_version_exclusive=head, through_version_inclusive=head_version(table)
        )
    )


def changes_of(table: Location, guid: str, left: LeftAt) -> Since:
    """Return the changes of a subscriber's table since a commit of ours."""
    return changes_since(table, left, lambda mark: is_own_commit(mark, guid))


def is_own_commit(mark: CommitMark | None, guid: str) -> bool:
    """True if distribution or a repair of a subscription made the commit with this mark."""
    return mark is not None and mark.session == guid and mark.kind in (DISTRIBUTE, REPAIR)


def since_last_batch(
    distributor: DistributionStore, subscription: SubscriptionRow, position: PositionRow
) -> Mapping[str, tuple[Shape, Location, Since]]:
    """Return, by article, the changes of its table since the last batch, repair or equal validation."""
    subscriber = distributor.subscriber(subscription)
    found = {}
    for row in distributor.articles(subscription.publication_id):
        if row.article in position.left_at:
            table = subscriber.table(subscription, row)
            since = changes_of(
                table, subscription.subscription_guid, LeftAt.of_text(position.left_at[row.article])
            )
            if subscription.update_mode == QUEUED:
                # Its queue sends them.
                since = replace(since, foreign=())
            found[row.article] = (row, table, since)
    return found


def left_after(table: Location, since: Since) -> LeftAt:
    """Return the commit to remember for a table: our last one, so that later ones of other writers are seen next time."""
    if not since.own or since.own[-1].version == since.through.version:
        return since.through
    return left_at(table, since.own[-1].version)


def with_tables_at(position: PositionRow, left: Mapping[str, LeftAt]) -> PositionRow:
    """Return a position whose articles' tables are at these commits."""
    return replace(
        position,
        left_at={**position.left_at, **{name: each.text for name, each in left.items()}},
        table_versions={**position.table_versions, **{name: each.version for name, each in left.items()}},
    )


def stored_position(distributor: DistributionStore, row: SubscriptionRow) -> PositionRow | None:
    """Return the stored position of a subscriber, or None."""
    subscriber = distributor.subscriber(row)
    return subscriber.position(row.subscription_guid) if is_folder(subscriber.root) else None


def in_reach(subscriber: Location) -> bool:
    """Return whether a subscriber's folder is there: not if its bucket is gone, closed to us or does not answer.

    What concerns the publisher and its other subscribers goes on without it.
    """
    try:
        return is_folder(subscriber)
    except StoreError as error:
        log.warning("%s is out of reach: %s", subscriber, error)
        return False


def other_publisher(distributor: DistributionStore, position: PositionRow | None) -> Location | None:
    """Return the publisher whose subscription a position is, if `distributor` only is a copy of its folder, else None.

    The folder of a publisher that was moved is gone.
    """
    if position is None or position.publisher == str(distributor.root):
        return None
    other = DistributionStore(Location.of(position.publisher))
    if not other.is_there or same_place(other.root, distributor.root):
        return None
    return None if other.subscription(position.subscription_guid) is None else other.root


def refuse_copy(distributor: DistributionStore, row: SubscriptionRow, position: PositionRow | None) -> None:
    """Check that the subscriber is not that of the folder of which this one is a copy.

    Raises: TransactionalError 21074.
    """
    if (other := other_publisher(distributor, position)) is not None:
        raise TransactionalError(
            EXPIRED,
            f"'{row.subscriber}' is a subscriber of '{other}', of which '{distributor.root}' is a copy: its rows "
            "would overwrite those there. Nothing was changed. Take the subscription out of the copy's file and run "
            "`mergerepl apply`.",
            subscriber=row.subscriber,
            publisher=str(other),
        )


def begin_writing(distributor: DistributionStore, row: SubscriptionRow) -> None:
    """State at a subscriber in a store, which is held, what tables a subscription writes, and fence those that are there.

    A later holder of the root finds them without the publisher, which may be out of reach.

    Raises: as `fence_article`.
    """
    subscriber = distributor.subscriber(row)
    if is_local(subscriber.root) or is_rehearsal():
        return
    ids = app_ids(row.subscription_guid)
    tables = [subscriber.table(row, each) for each in distributor.articles(row.publication_id)]
    names = tuple(table.relative_to(subscriber.root) for table in tables)
    if register_of(subscriber.root).state_writers(dict.fromkeys(ids, names)):
        for table in tables:
            if is_delta_table(table):
                fence_article(table, row.subscription_guid)


def fence_article(table: Location, guid: str) -> None:
    """Fence a table that a subscription is about to write, if it is in a store.

    Raises: as `fence_table`; TransactionalUsageError if a fence could not be committed later, or would be forgotten.
    """
    if not is_local(table):
        require_fenceable(open_table(table))
        fence_table(table, app_ids(guid))


def require_fenceable(table: TableState) -> None:
    """Check that a table in a store can get a fence whenever an agent takes over.

    Raises: TransactionalUsageError.
    """
    if (problem := TableContract(table).explain(OF_STORES)) is not None:
        why, remedy = problem
        text = f"{why[0].upper()}{why[1:]}. Nothing was applied. {remedy}"
        raise TransactionalUsageError(text, table=str(table.path))


def delivered_through(distributor: DistributionStore, row: SubscriptionRow) -> bytes:
    """Return the last transaction that a subscriber has: from the subscriber itself, else from the distributor."""
    subscriber = distributor.subscriber(row)
    found = subscriber.position(row.subscription_guid) if in_reach(subscriber.root) else None
    return found.transaction_timestamp if found else row.last_xact_seqno or bytes(10)


def position_of(
    distributor: DistributionStore, subscription: SubscriptionRow, *, has_to_go_on: bool = True
) -> PositionRow:
    """Return the position of a subscriber.

    `has_to_go_on`: the next batch will be applied to its tables; False for work that repairs them first.

    Raises: TransactionalError 21074 if the subscription cannot go on from there, or is that of another publisher.
    """
    root = Location.of(subscription.subscriber)
    position = stored_position(distributor, subscription)
    refuse_copy(distributor, subscription, position)
    if position is None or subscription.status == SUBSCRIBED:
        raise TransactionalError.expired(distributor.root, root, "its snapshot is not done")
    if subscription.status == INACTIVE:
        raise TransactionalError.expired(
            distributor.root, root, "it is inactive, since commands that it lacks were removed"
        )
    if Lsn(position.transaction_timestamp).scan_cycle > distributor.gate_cycle:
        raise TransactionalError.expired(
            distributor.root,
            root,
            f"the last scan cycle of '{distributor.root}' is {distributor.gate_cycle}, and the subscriber has transaction "
            f"{Lsn(position.transaction_timestamp)}{RESTORED}",
        )
    for name, (_, table, since) in since_last_batch(distributor, subscription, position).items():
        version = position.table_versions[name]
        if not has_to_go_on or since.kind != REPLACED:
            continue
        if not is_delta_table(table):
            what = f"'{table}' had version {version} after the last batch and is no Delta table now{RESTORED}"
            raise TransactionalError.expired(distributor.root, root, what)
        is_older = head_version(table) < version
        why = f"it had version {version} after the last batch and is older" if is_older else str(since.reason)
        raise TransactionalError(
            EXPIRED,
            f"'{table}' is not as the last batch left it: {why}. Commands that it had may be lost. Nothing was "
            f"applied. Bring the publisher's rows back: {to_run('repair', distributor.root, at=root)}; "
            f"or begin again from a snapshot: {to_run('reinit', distributor.root, at=root)}.",
            subscriber=str(root),
            table=str(table),
        )
    return position


def waiting_after(
    distributor: DistributionStore, subscription: SubscriptionRow, position: PositionRow
) -> list[TransactionRow]:
    """Return the transactions after a position of a subscription.

    Raises: TransactionalError 21074 if cleanup removed some of them.
    """
    rows = distributor.transactions_after(position.transaction_timestamp)
    # After the gate: cleanup raises it before it removes anything.
    publication = distributor.publication_of(subscription.publication_id)
    if publication.removed_through > position.transaction_timestamp:
        raise TransactionalError.expired(
            distributor.root,
            Location.of(subscription.subscriber),
            f"it has everything through {Lsn(position.transaction_timestamp)}, and commands through "
            f"{Lsn(publication.removed_through)} were removed",
        )
    return rows


@dataclass(frozen=True)
class BatchPlan:
    """A batch: transactions after `from_seqno` through `through_seqno`; article -> version judged first.

    `places` are the versions of the tables that procedures write to: table -> head, -1 for a missing table.
    """

    number: int
    from_seqno: bytes
    through_seqno: bytes
    heads: Mapping[int, int]
    places: Mapping[str, int] = field(default_factory=dict)

    def is_written(self, guid: str, article_id: int, table: Location) -> bool:
        """True if the log shows that a subscription's table of an article has the batch; transactions may expire."""
        mark = CommitMark(guid, batch_step(self.number))
        return article_id in self.heads and is_written(table, mark, self.heads[article_id])


def redo_log(subscriber: Location, guid: str) -> RedoLog[BatchPlan]:
    """Return the redo log of a subscription, at its subscriber."""
    if is_local(subscriber):
        return RedoLog(subscriber / FOLDER, BatchPlan, "distribute", f"plan-{guid}", "The batch")
    return BatchRedoLog(
        subscriber / FOLDER / f"batches-{guid}",
        BatchPlan,
        "distribute",
        what="The batch",
        lock=subscriber / ROOT_LOCK,
        subscription=guid,
    )


def is_unfinished(root: Location) -> bool:
    """True if a batch to a subscriber at this root has to be carried out: its commits are not all there."""
    if not is_local(root):
        return bool(state_of(root).batches)
    return any(each.name.startswith("plan-") for each in files_in(root / FOLDER, ".json"))


def begun_plan(
    distributor: DistributionStore, subscription: SubscriptionRow, position: PositionRow
) -> BatchPlan | None:
    """Return the batch that a dead run had begun to apply to the articles' tables, or None.

    A finished batch, one of another position, and one that reached no table are ignored: they are decided again.
    """
    subscriber, guid = distributor.subscriber(subscription), position.subscription_guid
    plan = redo_log(subscriber.root, guid).pending()
    if plan is None or (plan.number, plan.from_seqno) != (position.batch + 1, position.transaction_timestamp):
        return None
    rows = distributor.articles(subscription.publication_id)
    is_begun = any(plan.is_written(guid, row.article_id, subscriber.table(subscription, row)) for row in rows)
    return plan if is_begun else None


def next_transactions(rows: Sequence[TransactionRow], shapes: Collection[Shape]) -> list[TransactionRow]:
    """Return the transactions of the next batch: it ends before a change of columns; one at its start is a batch alone.

    `rows` are all transactions after the position, `shapes` the articles in all shapes that they have had.
    """
    changes = {row.first_seqno for row in shapes if row.schema_version > 1}
    chosen: list[TransactionRow] = []
    for row in rows[:MOST_OF_A_BATCH]:
        if chosen and row.xact_seqno in changes:
            break
        chosen.append(row)
    return chosen

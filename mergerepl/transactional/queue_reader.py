"""The queue reader of one subscription that writes: edits of its tables go to the publisher (transactional.md 12).

| step | written | after a crash |
|---|---|---|
| 1 | `plan-queue-<subscription_guid>.json` at the subscriber, durably | removed if step 2 was not done: decided again |
| 2 | one MERGE at the publisher that compares the version of each row | found by its mark |
| 3 | the losers, by the publisher's version just before that MERGE | appended once |
| 4 | MSreplication_queue: the position | the plan is removed |
"""

from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.properties import KEPT_A_DAY
from mergerepl.delta.tables import (
    Commit,
    NewTable,
    Transaction,
    commit_text,
    create_table,
    find_own_commit,
    head_version,
    is_delta_table,
    lost_commits,
    marked_session,
    merge_into,
    open_table,
    read_back,
    read_columns,
    read_version,
    retry_conflicts,
    transaction_version,
)
from mergerepl.delta.types import field as delta_field
from mergerepl.delta.types import json_of
from mergerepl.failpoints import failpoint
from mergerepl.logreader.sources import SourceLook
from mergerepl.model.delivery import QueueResult
from mergerepl.rows.nested import as_declared
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import in_session
from mergerepl.store.location import Location
from mergerepl.store.redo import RedoLog
from mergerepl.systables.transactional import (
    CONFLICTS,
    FOLDER,
    HISTORY,
    HistoryRow,
    QueueRow,
    SubscriptionRow,
)
from mergerepl.transactional.article_batch import Ends
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import NEW_VERSION, OLD_VERSION
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.commands import row_type, row_version
from mergerepl.transactional.position import position_of
from mergerepl.transactional.queued_edits import (
    Messages,
    Run,
    UnreadableQueueError,
    counted,
    is_key,
    look,
    losers,
    messages,
    next_run,
    outcome,
    queue_row,
    row_of,
    source_row,
    twice,
)
from mergerepl.transactional.refusals import (
    CHECK_BROKEN,
    DUPLICATE,
    EXPIRED,
    SCHEMA_CHANGED,
    TransactionalError,
)
from mergerepl.transactional.row_rules import refusing_rule

QUEUE = "queue"
"""The kind of commits by which edits of a subscriber reach the publisher's tables."""


@dataclass(frozen=True)
class QueuePlan:
    """A reading: the edits of an article after one version through another; `head` is the publisher's version."""

    number: int
    article_id: int
    from_version: int
    through_version: int
    head: int


def redo_log(subscriber: Location, guid: str) -> RedoLog[QueuePlan]:
    """Return the redo log of a subscription's queue, at its subscriber."""
    return RedoLog(subscriber / FOLDER, QueuePlan, "queue", f"plan-queue-{guid}", "The reading of the queue")


def queue_app(guid: str) -> str:
    """Return the Delta transaction application of a subscription's edits at the publisher."""
    return f"mergerepl-queue-{guid}"


def may_have_edits(distributor: DistributionStore, subscription: SubscriptionRow) -> bool:
    """True if commits to the tables of a subscription were not looked at, or a reading died. Without Spark."""
    subscriber, guid = distributor.subscriber(subscription), subscription.subscription_guid
    if redo_log(subscriber.root, guid).is_pending:
        return True
    known = subscriber.queue(guid)
    tables = {
        row.article_id: subscriber.table(subscription, row)
        for row in distributor.articles(subscription.publication_id)
    }
    return any(
        each not in known or not is_delta_table(table) or head_version(table) != known[each].position
        for each, table in tables.items()
    )


@dataclass
class QueueReader(Ends):
    """A queue reader at work: one subscription, its publisher and its subscriber held."""

    publication: str
    result: QueueResult = field(init=False)

    def __post_init__(self) -> None:
        self.redo = redo_log(self.subscriber.root, self.guid)
        self.result = QueueResult(self.publication, self.subscription.subscriber)

    def run(self) -> QueueResult:
        """Send all edits to the publisher.

        Raises: TransactionalError where it must stop; earlier runs of edits are sent by then.
        """
        # Whether a table was replaced is asked of its log: what was not sent is named then.
        position = position_of(self.distributor, self.subscription, has_to_go_on=False)
        articles = self.distributor.articles(self.subscription.publication_id)
        if (plan := self.redo.pending()) is not None:
            for article in articles:
                if article.article_id == plan.article_id:
                    self._read_run(article, plan)
            self.redo.finish()
        for article in articles:
            self._require_columns(article, position.transaction_timestamp)
            while self._read_run(article):
                pass
        return self.result

    # -- one run of edits ----------------------------------------------------------------------------------------------

    def _read_run(self, article: Shape, plan: QueuePlan | None = None) -> bool:
        """Send the next run of edits of an article, or the one that a reading which died had sent; False without any."""
        known = self.subscriber.queue(self.guid).get(article.article_id)
        if known is None:
            raise self.unreadable(article, "it is not known how far they were sent")
        commit = None if plan is None else self._decided(article, known, plan)
        if plan is not None and commit is None:
            return False
        try:
            found = look(self.subscriber.root, source_row(known, self._path(article)))
            run = next_run(found, self.guid, through=None if plan is None else plan.through_version)
            if run is None:
                self._pass(found, known)
                return False
            kept = Kept()
            try:
                self._send(article, known, run, plan, commit, kept)
            finally:
                kept.release()
        except UnreadableQueueError as error:
            raise self.unreadable(article, str(error)) from error
        return True

    def _decided(self, article: Shape, known: QueueRow, plan: QueuePlan) -> Commit | None:
        """Return the publisher's commit of a reading that died after it, or None."""
        if plan.number <= known.number or plan.from_version != known.position:
            return None
        return find_own_commit(
            self._source(article), self._mark(plan.number), from_version_exclusive=plan.head
        )

    def _pass(self, found: SourceLook, known: QueueRow) -> None:
        """Remember that commits after the position are no edits."""
        if found.through_version_inclusive > known.position:
            row = found.after(commit=commit_text(found.path, found.through_version_inclusive))
            self.subscriber.save_queue(queue_row(self.guid, known.number, row))

    def _send(
        self,
        article: Shape,
        known: QueueRow,
        run: Run,
        plan: QueuePlan | None,
        commit: Commit | None,
        kept: Kept,
    ) -> None:
        spark, source = self.spark(), self._source(article)
        found = messages(spark, self.subscriber.root, run, article, self._columns(article, run), kept)
        if found.count:
            self._refuse_doubles(spark, article, run, found)
            if plan is None or commit is None:
                plan = QueuePlan(
                    self._next_number(known, source),
                    article.article_id,
                    known.position,
                    run.through,
                    head_version(source),
                )
                self.redo.stage(plan)
                commit = self._merge(spark, article, found, plan)
                failpoint("queue.after_merge")
            self._keep_losers(spark, article, found, plan, commit, kept)
            failpoint("queue.after_losers")
        number = known.number if plan is None else plan.number
        row = run.look.after(commit=commit_text(run.look.path, run.through))
        self.subscriber.save_queue(queue_row(self.guid, number, row))
        failpoint("queue.after_position")
        self.redo.finish()

    def _merge(self, spark: SparkSession, article: Shape, found: Messages, plan: QueuePlan) -> Commit:
        """Apply messages at the publisher: each to the row that it was made on. Rows of other versions stay."""
        source = self._source(article)
        transaction = Transaction(queue_app(self.guid), plan.number, self._mark(plan.number))

        def merge() -> None:
            with marked_session(spark, transaction, source) as session:
                rows = in_session(found.rows, session)
                on = is_key(article)
                builder, types = merge_into(
                    session, rows, source, found.is_in_bounds & on if found.bounds else on
                )
                image, image_type = row_of(types, found.columns)
                is_same = row_version(image, image_type) == F.col(f"s.{OLD_VERSION}")
                there = {name.lower(): data_type for name, data_type in types.items()}
                values: dict[str, str | Column] = {
                    quote(name): as_declared(session, F.col(f"s.new.c{k}"), there[name.lower()])
                    for k, name in enumerate(found.columns, 1)
                }
                exists, existed = F.col(f"s.{NEW_VERSION}").isNotNull(), F.col(f"s.{OLD_VERSION}").isNotNull()
                (
                    builder.whenMatchedDelete(condition=is_same & ~exists)
                    .whenMatchedUpdate(condition=is_same & exists, set=values)
                    .whenNotMatchedInsert(condition=exists & ~existed, values=values)
                    .execute()
                )

        lost = lost_commits(f"'{source}'", "the queue reader", "Run again.", table=str(source))
        try:
            retry_conflicts(merge, source, lost)
        except (PySparkException, Py4JError) as error:
            if (rule := refusing_rule(error)) is None:
                raise
            raise self._stop(
                article,
                CHECK_BROKEN,
                f"547: '{source}' refuses a row of article '{article.article}' that '{self.subscriber.root}' has: {rule}. "
                "None of these edits was taken. Correct the row at the subscriber, or lift the rule; then run again.",
            ) from error
        return read_back(source, transaction, from_version_exclusive=plan.head)

    def _keep_losers(
        self,
        spark: SparkSession,
        article: Shape,
        found: Messages,
        plan: QueuePlan,
        commit: Commit,
        kept: Kept,
    ) -> None:
        """Log the messages that were not taken: the version before our commit is the one that it was decided by."""
        before = read_version(spark, self._source(article), commit.version - 1)
        rows = kept.keep(outcome(before, found, article))
        counts = counted(rows)
        now = self.distributor.present
        if counts["conflicts"]:
            table = self.distributor.conflicts_table(article)
            if not is_delta_table(table):
                _create_conflicts(table, article)
            about = {
                "publication": self.publication,
                "article": article.article,
                "subscriber": self.subscription.subscriber,
                "subscription_guid": self.guid,
                "created": now,
            }
            lost = losers(rows, found, article, plan.number, self.guid).withColumns(
                {name: F.lit(value) for name, value in about.items()}
                | {
                    "queue_number": F.lit(plan.number).cast("bigint"),
                    "names": F.array(*(F.lit(name) for name in article.columns)),
                }
            )
            transaction = Transaction(queue_app(self.guid), plan.number, self._mark(plan.number))
            with self.distributor.writing():
                appended.append(lost, table, transaction)
        total = sum(counts.values())
        history = HistoryRow(
            agent_id=self.subscription.agent_id,
            time=now,
            comments=f"queue of '{article.article}': {total} edits, {counts['conflicts']} conflicts",
            xact_seqno=self.subscription.last_xact_seqno or bytes(10),
        )
        with self.distributor.writing():
            self.distributor.control.append(HISTORY, [history], once=(queue_app(self.guid), plan.number))
        sums = {name: n + getattr(self.result, name) for name, n in counts.items()}
        self.result = replace(self.result, **sums)

    # -- facts and refusals --------------------------------------------------------------------------------------------

    def _source(self, article: Shape) -> Location:
        return self.distributor.root / article.source_object

    def _path(self, article: Shape) -> str:
        return self.subscription.destination.get(article.article, article.destination_object)

    def _mark(self, number: int) -> CommitMark:
        return CommitMark(self.guid, f"{QUEUE}:{number}")

    def _next_number(self, known: QueueRow, source: Location) -> int:
        """Return an unused number, also where the subscriber or the publisher was restored from a copy."""
        numbers = [each.number for each in self.subscriber.queue(self.guid).values()]
        places = [source, self.distributor.control.path(HISTORY.name)]
        places += [
            table
            for row in self.distributor.shapes()
            if is_delta_table(table := self.distributor.conflicts_table(row))
        ]
        done = [transaction_version(table, queue_app(self.guid)) for table in places]
        return max(known.number, *numbers, *done) + 1

    def _columns(self, article: Shape, run: Run) -> list[str]:
        """Return the columns of an article that the subscriber's table had in a run."""
        there = {each["name"].lower() for each in run.look.metadata_at(run.through).fields}
        return [name for name in article.columns if name.lower() in there]

    def _require_columns(self, article: Shape, seqno: bytes) -> None:
        """Check that columns were only added at the publisher since the subscriber's position.

        Raises: TransactionalError 21076.
        """
        before = self.distributor.shape_at(article.article_id, seqno)
        source = open_table(self._source(article))
        now = dict(zip(article.columns, article.types, strict=True))
        there = {each["name"] for each in source.fields}
        lost = [
            name
            for name, type_ in zip(before.columns, before.types, strict=True)
            if now.get(name) != type_ or name not in there
        ]
        if lost:
            raise self._stop(
                article,
                SCHEMA_CHANGED,
                f"Article '{article.article}' at '{self.subscriber.root}': column '{lost[0]}' was dropped, renamed or got "
                "another type at the publisher, and a subscriber that writes follows only added columns. Its edits are in "
                f"its table; none was sent. {_AGAIN}",
            )

    def _refuse_doubles(self, spark: SparkSession, article: Shape, run: Run, found: Messages) -> None:
        table = self.table(article)
        rows = read_columns(spark, table, run.through, list(article.key_columns))
        if keys := twice(rows, found, article):
            raise self._stop(
                article,
                DUPLICATE,
                f"2627: '{table}' at the subscriber has a key more than once: {'; '.join(keys)}. None of these edits was "
                "sent. Delete all rows of the key but one, then run again.",
            )

    def unreadable(self, article: Shape, why: str) -> TransactionalError:
        """21074: edits cannot be read any more. They are not overwritten."""
        return self._stop(
            article,
            EXPIRED,
            f"The edits of article '{article.article}' at '{self.subscriber.root}' cannot be read: {why}. Nothing was sent "
            f"and nothing was applied there. {_AGAIN}",
        )

    def _stop(self, article: Shape, number: int, message: str) -> TransactionalError:
        return TransactionalError(
            number, message, subscriber=str(self.subscriber.root), article=article.article
        )


_AGAIN = (
    "Take the subscription out of the file and run `mergerepl apply`: its tables stay. Bring over what is "
    "missing, move the tables away, put the subscription back and apply."
)


def _create_conflicts(table: Location, shape: Shape) -> None:
    row = row_type(shape)
    types = {each.name: row if each.type == "struct<c1,…>" else each.type for each in CONFLICTS.columns}
    properties = dict(KEPT_A_DAY)
    fields = [delta_field(name, json_of(type_)) for name, type_ in types.items()]
    create_table(table, NewTable(fields, (), properties), CommitMark(QUEUE, "conflicts:create"))

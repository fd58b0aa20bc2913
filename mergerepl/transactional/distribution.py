"""The distribution agent of one subscription: whole transactions after its position, in batches (transactional.md 6).

| step | written | after a crash |
|---|---|---|
| 1 | `batch-<subscription_guid>.json` at the subscriber, durably | done again, the same batch |
| 2 | nothing: all articles are judged | |
| 3 | one MERGE for each article, once by its Delta transaction | what is done is skipped |
| 4 | MSreplication_subscriptions: the position | the plan is removed |
| 5 | MSsubscriptions and history at the distributor | sent again |
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.log import head_version, is_delta_table
from mergerepl.delta.marks import CommitMark, CommitUnit
from mergerepl.delta.plain_files import read_columns
from mergerepl.delta.transactions import Transaction, marked_session, read_back, transaction_version
from mergerepl.engine.errors import COMMIT_CONFLICTS
from mergerepl.engine.in_memory import Kept
from mergerepl.errors import CommitConflictError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.transactional import DistributionResult
from mergerepl.store.lease import lease, record_jvm
from mergerepl.store.subscriber_files import read_batch, remove_batch, write_batch
from mergerepl.systables.transactional import (
    ERRORS,
    HISTORY,
    INACTIVE,
    SUBSCRIBED,
    ArticleRow,
    ErrorRow,
    HistoryRow,
    PositionRow,
    SubscriptionRow,
    TransactionRow,
)
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.catalog import Distributor, Subscriber, shape_of
from mergerepl.transactional.collected_writes import Write, carry_out, prepared
from mergerepl.transactional.judge import LOGGED, Effect, Failure, judge
from mergerepl.transactional.procedures import (
    Procedure,
    called,
    custom_operations,
    procedures_of,
    session_of_procedures,
)
from mergerepl.transactional.refusals import SKIPPABLE, TransactionalError, TransactionalUsageError
from mergerepl.transactional.schema import add_columns
from mergerepl.transactional.scripts import batch_text
from mergerepl.transactional.stages import stage_end

DISTRIBUTE = "distribute"
"""The kind of the agent's commits (map.md 2)."""

COMMIT_ATTEMPTS = 8
SUCCEEDED, FAILED = 2, 6
T = TypeVar("T")


def app_id(guid: str) -> str:
    """Return the Delta transaction application of a subscription: its GUID never comes again."""
    return f"mergerepl-dist-{guid}"


@dataclass(frozen=True)
class BatchPlan:
    """A batch: transactions after `from_seqno` through `through_seqno`; article -> version judged first."""

    number: int
    from_seqno: bytes
    through_seqno: bytes
    heads: Mapping[int, int]

    def to_json(self) -> str:
        """Return the plan as its file has it."""
        return json.dumps(
            {
                "number": self.number,
                "from_seqno": self.from_seqno.hex(),
                "through_seqno": self.through_seqno.hex(),
                "heads": dict(self.heads),
            }
        )

    @staticmethod
    def of_json(text: str) -> "BatchPlan":
        """Read a plan."""
        stated = json.loads(text)
        return BatchPlan(
            stated["number"],
            bytes.fromhex(stated["from_seqno"]),
            bytes.fromhex(stated["through_seqno"]),
            {int(key): version for key, version in stated["heads"].items()},
        )


@dataclass(frozen=True)
class Sent:
    """An article's commands in a batch: how many, which operations are judged, which of them applied (None: all).

    `writes` are what procedures of the user's own hand over.
    """

    commands: int
    judged: frozenset[Operation] | None = None
    applied: frozenset[Operation] | None = None
    writes: tuple[Write, ...] = ()


@dataclass
class Agent:
    """A distribution agent at work: one subscription, its subscriber held."""

    distributor: Distributor
    subscription: SubscriptionRow
    publication: str
    spark: Callable[[], SparkSession]
    skip: frozenset[int] = frozenset()
    batch_transactions: int = 10_000
    batch_commands: int = 0
    streams: int = 1
    result: DistributionResult = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing done."""
        self.subscriber = Subscriber(Path(self.subscription.subscriber))
        self.result = DistributionResult(self.publication, self.subscription.subscriber)

    @property
    def guid(self) -> str:
        """The identity of the subscription."""
        return self.subscription.subscription_guid

    # -- batches -------------------------------------------------------------------------------------------------------

    def run(self) -> DistributionResult:
        """Apply all transactions after the position.

        Raises: TransactionalError where it must stop; what lies before is applied then.
        """
        position = self.position()
        plan = self._unfinished(position)
        while True:
            rows = self.waiting(position)
            chosen = self._chosen(rows) if plan is None else _through(rows, plan.through_seqno)
            if not chosen:
                return self.result
            if plan is None:
                chosen = self._one_stage(position, chosen)
            position = self._batch(position, chosen, plan)
            plan = None

    def position(self) -> PositionRow:
        """Return how far the subscriber is.

        Raises: TransactionalError 21074 if the subscription cannot go on from there.
        """
        root = self.subscriber.root
        position = self.subscriber.position(self.guid)
        if position is None or self.subscription.status == SUBSCRIBED:
            raise TransactionalError.expired(root, "its snapshot is not done")
        if self.subscription.status == INACTIVE:
            raise TransactionalError.expired(
                root, "it is inactive, since commands that it lacks were removed"
            )
        if Lsn(position.transaction_timestamp).scan_cycle > self.distributor.gate_cycle:
            raise TransactionalError.restored(
                self.distributor.root,
                f"its last scan cycle is {self.distributor.gate_cycle}, and subscriber '{root}' has transaction "
                f"{Lsn(position.transaction_timestamp)}",
            )
        articles = {row.article: row for row in self._articles()}
        for name, version in position.table_versions.items():
            table = self.subscriber.table(self.subscription, articles[name]) if name in articles else None
            if table is not None and (not is_delta_table(table) or head_version(table) < version):
                raise TransactionalError.restored(
                    table, f"it had version {version} after the last batch and is older"
                )
        return position

    def waiting(self, position: PositionRow) -> list[TransactionRow]:
        """Return the transactions after a position.

        Raises: TransactionalError 21074 if cleanup removed some of them.
        """
        rows = self.distributor.transactions_after(position.transaction_timestamp)
        # After the gate: cleanup raises it before it removes anything.
        publication = self.distributor.publication_of(self.subscription.publication_id)
        if publication.removed_through > position.transaction_timestamp:
            raise TransactionalError.expired(
                self.subscriber.root,
                f"it has everything through {Lsn(position.transaction_timestamp)}, and commands through "
                f"{Lsn(publication.removed_through)} were removed",
            )
        return rows

    def _articles(self) -> list[ArticleRow]:
        return self.distributor.articles(self.subscription.publication_id)

    def _unfinished(self, position: PositionRow) -> BatchPlan | None:
        text = read_batch(self.subscriber.root, self.guid)
        if text is None:
            return None
        plan = BatchPlan.of_json(text)
        if plan.number == position.batch + 1 and plan.from_seqno == position.transaction_timestamp:
            return plan
        remove_batch(self.subscriber.root, self.guid)
        return None

    def _chosen(self, rows: Sequence[TransactionRow]) -> list[TransactionRow]:
        """Return the transactions of the next batch: it ends before a change of columns, and begins with one alone."""
        mine = {row.article_id for row in self._articles()}
        shapes = {
            row.first_seqno
            for row in self.distributor.shapes()
            if row.article_id in mine and row.schema_version > 1
        }
        chosen: list[TransactionRow] = []
        commands = 0
        for row in rows:
            count = sum(n for article, n in row.commands.items() if article in mine)
            is_full = len(chosen) >= self.batch_transactions
            is_over = bool(self.batch_commands) and commands + count > self.batch_commands
            if chosen and (is_full or is_over or row.xact_seqno in shapes):
                break
            chosen.append(row)
            commands += count
        return chosen

    def _one_stage(self, position: PositionRow, chosen: Sequence[TransactionRow]) -> list[TransactionRow]:
        """Return the transactions for which one call of each procedure of the user's own is enough."""
        through = chosen[-1].xact_seqno
        named = {article for row in chosen for article in row.commands}
        ends = [
            stage_end(
                self._commands(
                    self.distributor.shape_at(row.article_id, through),
                    position.transaction_timestamp,
                    through,
                )
            )
            for row in self._articles()
            if row.article_id in named and custom_operations(shape_of(row))
        ]
        return [each for each in chosen if all(end.has(each.xact_seqno) for end in ends)]

    def _batch(
        self, position: PositionRow, chosen: Sequence[TransactionRow], plan: BatchPlan | None
    ) -> PositionRow:
        """Apply a batch, or its part before the first command that stops it."""
        began = time.monotonic()
        mine = {row.article_id: row for row in self._articles()}
        counts: dict[int, int] = {}
        for transaction in chosen:
            for article_id, n in transaction.commands.items():
                if article_id in mine:
                    counts[article_id] = counts.get(article_id, 0) + n
        through = chosen[-1].xact_seqno
        shapes = {each: self.distributor.shape_at(each, through) for each in mine}
        procedures = {each: procedures_of(shape) for each, shape in shapes.items()}
        if chosen[0].kind == "schema":
            self._follow_columns(chosen[0].xact_seqno, shapes)
        if not counts:
            return self._arrived(position, chosen, {}, {}, began)
        kept = Kept()
        # The decision is carried out, even if `skip_errors` has changed since.
        is_decided = plan is not None
        try:
            if plan is None:
                heads = {each: head_version(self._table(shapes[each])) for each in counts}
                self._refuse_applied(position, [shapes[each] for each in counts])
                plan = BatchPlan(position.batch + 1, position.transaction_timestamp, through, heads)
            decided = plan
            sent = self._each(
                counts,
                lambda each: self._called(
                    shapes[each], procedures[each], decided, counts[each], chosen, kept
                ),
            )
            judged = self._each(
                counts,
                lambda each: self._judged(shapes[each], decided, sent[each], decided.heads[each], kept),
            )
            stop = min(
                (
                    failure.order
                    for effect in judged.values()
                    for failure in effect.failures
                    if failure.number not in self.skip
                ),
                default=None,
            )
            if stop is not None and not is_decided:
                return self._stopped(position, chosen, judged, stop)
            writes = prepared(
                [write for each in sent.values() for write in each.writes], self.subscriber.root, kept
            )
            failpoint("distribute.before_plan")
            write_batch(self.subscriber.root, self.guid, plan.to_json())
            failpoint("distribute.after_plan")
            late = self._each(
                counts, lambda each: self._write(shapes[each], decided, sent[each], judged[each], kept)
            )
            carry_out(writes, self.spark, partial(self._transaction, plan))
        finally:
            kept.release()
        return self._arrived(position, chosen, judged, late, began)

    def _refuse_applied(self, position: PositionRow, articles: Sequence[ArticleRow]) -> None:
        """Check that no table has a later batch than the position: a batch of that number would not be applied to it.

        Raises: TransactionalError 21074.
        """
        for row in articles:
            table = self._table(row)
            done = transaction_version(table, app_id(self.guid))
            if done > position.batch:
                raise TransactionalError.restored(
                    self.subscriber.root,
                    f"its position says batch {position.batch}, and '{table}' has batch {done}",
                )

    def _each(self, articles: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
        """Return the results of some work on each article; `streams` of them are worked on at a time."""
        listed = list(articles)
        if self.streams == 1 or len(listed) == 1:
            return {each: work(each) for each in listed}
        with ThreadPoolExecutor(self.streams) as pool:
            return dict(zip(listed, pool.map(work, listed), strict=True))

    def _table(self, row: ArticleRow) -> Path:
        return self.subscriber.table(self.subscription, row)

    def _called(
        self,
        row: ArticleRow,
        procedures: Mapping[Operation, Procedure],
        plan: BatchPlan,
        count: int,
        chosen: Sequence[TransactionRow],
        kept: Kept,
    ) -> Sent:
        """Call an article's procedures; without any, all commands are judged and applied.

        Raises: TransactionalError 21074 if commands of the batch are gone; what a procedure raises.
        """
        if not procedures:
            return Sent(count)
        # Settings of a procedure in its session end with the batch.
        session = session_of_procedures(self.spark())
        commands = kept.keep(self._commands(row, plan.from_seqno, plan.through_seqno, spark=session))
        found = {each["operation"]: each["count"] for each in commands.groupBy("operation").count().collect()}
        self._require_all(row, count, sum(found.values()))
        calls = called(
            {each: known for each, known in procedures.items() if each.value in found},
            row,
            commands,
            {each.xact_seqno: each.commit_time for each in chosen},
            table=self._table(row),
            subscriber=self.subscriber.root,
            kept=kept,
        )
        generated = {each for each in Operation if each not in procedures}
        applied = generated | {call.does for call in calls if call.calls_default}
        return Sent(
            count,
            frozenset(applied | {call.does for call in calls if call.requires_rows}),
            frozenset(applied),
            tuple(write for call in calls for write in call.writes),
        )

    def _require_all(self, row: ArticleRow, count: int, found: int) -> None:
        if found != count:
            raise TransactionalError.expired(
                self.subscriber.root,
                f"{count} commands of article '{row.article}' are wanted and {found} are there",
            )

    def _judged(self, row: ArticleRow, plan: BatchPlan, sent: Sent, version: int, kept: Kept) -> Effect:
        """Return the effect of the batch on a table at a version.

        Raises: TransactionalError 21074 if commands of the batch are gone.
        """
        spark = self.spark()
        commands = self._commands(row, plan.from_seqno, plan.through_seqno)
        if sent.judged is not None:
            commands = commands.where(F.col("operation").isin([each.value for each in sent.judged]))
        table = self._table(row)
        effect = judge(
            spark,
            commands,
            shape_of(row),
            lambda names: read_columns(spark, table, version, list(names)),
            kept,
            table=str(table),
            expected=sent.commands,
        )
        if sent.applied is None:
            self._require_all(row, sent.commands, effect.commands)
            return effect
        applied = [each.value for each in sent.applied]
        return replace(
            effect,
            rows=effect.rows.where(F.col("operation").isin(applied)),
            counts={name: n for name, n in effect.counts.items() if name in applied},
            commands=sent.commands,
        )

    def _commands(
        self, row: ArticleRow, from_seqno: bytes, through_seqno: bytes, *, spark: SparkSession | None = None
    ) -> DataFrame:
        """Return an article's commands after one LSN, through another one."""
        cycles = (Lsn(from_seqno).scan_cycle - 1, Lsn(through_seqno).scan_cycle)
        rows = appended.read(
            spark or self.spark(), self.distributor.commands_table(row), {"scan_cycle": cycles}
        )
        return rows.where(
            (F.col("xact_seqno") > F.lit(from_seqno)) & (F.col("xact_seqno") <= F.lit(through_seqno))
        )

    def _transaction(self, plan: BatchPlan, place: str | None = None) -> Transaction:
        """Return the Delta transaction of a batch: of the articles' tables, or of a place where a procedure writes."""
        app = app_id(self.guid) if place is None else f"{app_id(self.guid)}-{place}"
        unit = self._unit(plan) if place is None else None
        return Transaction(app, plan.number, CommitMark(self.guid, f"{DISTRIBUTE}:{plan.number}", unit=unit))

    def _write(
        self, row: ArticleRow, plan: BatchPlan, sent: Sent, effect: Effect, kept: Kept
    ) -> tuple[Failure, ...]:
        """Execute the MERGE of an article once. Returns failures that only a foreign commit in between brought."""
        table = self._table(row)
        transaction = self._transaction(plan)
        if transaction_version(table, transaction.app_id) >= transaction.version:
            return ()
        judged_at = plan.heads[row.article_id]
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            if (head := head_version(table)) != judged_at:
                # Another writer changed the table since it was judged.
                effect, judged_at = self._judged(row, plan, sent, head, kept), head
            try:
                self._merge(row, table, effect, transaction)
                break
            except COMMIT_CONFLICTS as error:
                if attempt == COMMIT_ATTEMPTS:
                    raise CommitConflictError(
                        f"Article '{row.article}' at '{table}' is being changed by other writers: the batch lost "
                        f"{COMMIT_ATTEMPTS} commits in a row. Run again: the same batch is finished.",
                        table=str(table),
                    ) from error
        commit = read_back(table, transaction, from_version_exclusive=judged_at)
        if commit.version > judged_at + 1:
            effect = self._judged(row, plan, sent, commit.version - 1, kept)
        failpoint("distribute.after_article")
        return (
            effect.failures
            if judged_at != plan.heads[row.article_id] or commit.version > judged_at + 1
            else ()
        )

    def _unit(self, plan: BatchPlan) -> CommitUnit:
        tables = [self._table(self.distributor.shape_at(each, plan.through_seqno)) for each in plan.heads]
        names = tuple(str(table.relative_to(self.subscriber.root)) for table in tables)
        return CommitUnit(f"{self.guid}:{plan.number}", names)

    def _merge(self, row: ArticleRow, table: Path, effect: Effect, transaction: Transaction) -> None:
        """Execute the text of `script --batch` over a view `commands`. A batch without effect is a commit, too."""
        session = marked_session(self.spark(), transaction)
        name = f"commands_{uuid.uuid4().hex}"
        effect.rows.createGlobalTempView(name)
        try:
            session.sql(f"CREATE OR REPLACE TEMPORARY VIEW commands AS SELECT * FROM global_temp.{name}")
            session.sql(batch_text(shape_of(row), str(table), bounds=effect.bounds))
        finally:
            session.catalog.dropGlobalTempView(name)

    # -- after it ------------------------------------------------------------------------------------------------------

    def _stopped(
        self,
        position: PositionRow,
        chosen: Sequence[TransactionRow],
        judged: Mapping[int, Effect],
        stop: tuple[bytes, int],
    ) -> PositionRow:
        """Apply the transactions before the one that cannot be applied, then stop.

        Raises: TransactionalError.
        """
        before = [each for each in chosen if each.xact_seqno < stop[0]]
        if before:
            position = self._batch(position, before, None)
            # The earlier commands may have another outcome by now: go on as usual.
            return self._batch(position, [each for each in chosen if each.xact_seqno >= stop[0]], None)
        article_id, failure = next(
            (article_id, failure)
            for article_id, effect in judged.items()
            for failure in effect.failures
            if failure.order == stop
        )
        row = next(each for each in self._articles() if each.article_id == article_id)
        command = self._command_text(row, failure)
        self._log(position.batch + 1, {article_id: (failure,)}, is_skipped=False)
        raise TransactionalError.stopped(
            failure.number, self.subscriber.root, failure.text, str(Lsn(failure.xact_seqno)), command
        )

    def _command_text(self, row: ArticleRow, failure: Failure) -> str:
        from mergerepl.transactional.command_texts import command_texts

        shape = self.distributor.shape_at(row.article_id, failure.xact_seqno)
        commands = appended.read(self.spark(), self.distributor.commands_table(shape))
        is_it = (F.col("xact_seqno") == F.lit(failure.xact_seqno)) & (
            F.col("command_id") == failure.command_id
        )
        return command_texts(commands.where(is_it), shape, limit=1)[0].command

    def _arrived(
        self,
        position: PositionRow,
        chosen: Sequence[TransactionRow],
        judged: Mapping[int, Effect],
        late: Mapping[int, Sequence[Failure]],
        began: float,
    ) -> PositionRow:
        """Record skipped commands, move the position, report to the distributor."""
        number = position.batch + (1 if judged else 0)
        failures = {each: effect.failures for each, effect in judged.items()}
        skipped = sum(effect.failed for effect in judged.values())
        found_late = {each: tuple(found) for each, found in late.items() if found}
        self._log(
            number, {each: (*failures[each], *found_late.get(each, ())) for each in failures}, is_skipped=True
        )
        failpoint("distribute.before_position")
        now = datetime.now(UTC)
        versions = {row.article: head_version(self._table(row)) for row in self._articles()}
        through = chosen[-1].xact_seqno
        position = replace(
            position, time=now, transaction_timestamp=through, batch=number, table_versions=versions
        )
        self.subscriber.save(position)
        failpoint("distribute.after_position")
        remove_batch(self.subscriber.root, self.guid)
        counts = {
            name: sum(effect.counts.get(name, 0) for effect in judged.values())
            for name in ("ins", "upd", "del")
        }
        commands = sum(effect.commands for effect in judged.values())
        counted = [row for row in chosen if row.kind != "dummy"]
        latency = max(0.0, (now - chosen[-1].commit_time).total_seconds())
        if judged:
            history = HistoryRow(
                agent_id=self.subscription.agent_id,
                time=now,
                comments=f"{len(counted)} transactions, {commands} commands",
                xact_seqno=through,
                delivered_transactions=len(counted),
                delivered_commands=commands,
                delivery_latency=int(latency * 1000),
                inserts=counts["ins"],
                updates=counts["upd"],
                deletes=counts["del"],
                skipped=skipped,
                duration=round(time.monotonic() - began, 3),
            )
            with self.distributor.writing():
                self.distributor.control.append(HISTORY, [history], once=(app_id(self.guid), number))
        is_equal = self.subscription.is_equal and not skipped and not found_late
        self.subscription = replace(self.subscription, last_xact_seqno=through, is_equal=is_equal)
        known = {"last_xact_seqno": through} if is_equal else {"last_xact_seqno": through, "is_equal": False}
        self.distributor.change_subscription(self.guid, **known)
        done = self.result
        self.result = replace(
            done,
            transactions=done.transactions + len(counted),
            commands=done.commands + commands,
            inserts=done.inserts + counts["ins"],
            updates=done.updates + counts["upd"],
            deletes=done.deletes + counts["del"],
            skipped=done.skipped + skipped,
            batches=done.batches + (1 if judged else 0),
            latency_s=round(latency, 3),
            xact_seqno=str(Lsn(through)),
        )
        if found_late:
            found = next(iter(found_late.values()))
            raise TransactionalError.foreign_commit(self.subscriber.root, found[0].text)
        return position

    def _log(self, number: int, failures: Mapping[int, Sequence[Failure]], *, is_skipped: bool) -> None:
        now = datetime.now(UTC)
        rows = [
            ErrorRow(
                time=now,
                error_code=failure.number,
                error_text=failure.text,
                xact_seqno=failure.xact_seqno,
                command_id=failure.command_id,
                subscription_guid=self.guid,
                article_id=article_id,
                is_skipped=is_skipped,
                batch=number,
            )
            for article_id, found in failures.items()
            for failure in found[:LOGGED]
        ]
        # A stop is met by every run; what a batch skips is recorded once, also over a crash.
        once = (app_id(self.guid), number) if is_skipped else None
        with self.distributor.writing():
            self.distributor.control.append(ERRORS, rows, once=once)

    def _follow_columns(self, seqno: bytes, shapes: Mapping[int, ArticleRow]) -> None:
        """Bring changed columns of the articles to the subscriber's tables.

        Raises: TransactionalError 21076 if a change is none that only added columns.
        """
        for row in shapes.values():
            if row.first_seqno != seqno or row.schema_version == 1:
                continue
            if not row.is_additive:
                raise TransactionalError.columns_changed(
                    self.subscriber.root, row.article, str(row.schema_text)
                )
            add_columns(self.spark, self._table(row), row, CommitMark(self.guid, f"{DISTRIBUTE}:columns"))
            failpoint("distribute.after_columns")


def _through(rows: Sequence[TransactionRow], seqno: bytes) -> list[TransactionRow]:
    return [row for row in rows if row.xact_seqno <= seqno]


def skipped_numbers(stated: Sequence[int | str]) -> frozenset[int]:
    """Return the numbers that an agent skips.

    Raises: TransactionalUsageError for one that cannot be skipped.
    """
    found = set()
    for each in stated:
        if str(each) not in map(str, SKIPPABLE):
            raise TransactionalUsageError(
                f"skip_errors cannot have {each}. Nothing was changed. Give numbers of {', '.join(map(str, SKIPPABLE))}."
            )
        found.add(int(each))
    return frozenset(found | {2627}) if 2601 in found else frozenset(found)


def distribute_one(
    distributor: Distributor,
    subscription: SubscriptionRow,
    publication: str,
    spark: Callable[[], SparkSession],
    *,
    skip_errors: Sequence[int] | None = None,
    lock_wait_s: float = 0.0,
    **bounds: Any,
) -> DistributionResult:
    """Run the distribution agent of one subscription until nothing is new; without a JVM where nothing is.

    Raises: TransactionalError where a command cannot be applied; LeaseError if the subscriber is held.
    """
    stated = skip_errors if skip_errors is not None else subscription.skip_errors
    skip = skipped_numbers(stated)
    root = Path(subscription.subscriber)
    agent = Agent(
        distributor,
        subscription,
        publication,
        spark,
        skip,
        streams=subscription.subscription_streams,
        **bounds,
    )
    if read_batch(root, agent.guid) is None and not agent.waiting(agent.position()):
        return agent.result
    with lease(root, purpose="transactional distribute", wait_s=lock_wait_s):

        def recorded() -> SparkSession:
            from mergerepl.engine import session as engine

            found = spark()
            record_jvm(root, engine.jvm_pid())
            return found

        agent.spark = recorded
        # Somebody may have begun it again, or taken it out, until we held its subscriber.
        now = distributor.subscription(agent.guid)
        if now is None:
            return agent.result
        agent.subscription = now
        return agent.run()

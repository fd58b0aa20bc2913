"""The distribution agent of one subscription: whole transactions after its position, in batches (transactional.md 6).

| step | written | after a crash |
|---|---|---|
| 1 | `plan-<subscription_guid>.json` at the subscriber, durably | done again, the same batch |
| 2 | nothing: all articles are judged | |
| 3 | one MERGE for each article, once by its Delta transaction | finished tables are skipped |
| 4 | MSreplication_subscriptions: the position | the plan is removed |
| 5 | MSsubscriptions and history at the distributor | sent again |
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError, require_few_bytes
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import head_version, merges_prepared, transaction_version
from mergerepl.failpoints import failpoint
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.delivery import DistributionResult
from mergerepl.spark.in_memory import Kept
from mergerepl.store.rehearsal import worker_threads
from mergerepl.systables.transactional import (
    ERRORS,
    HISTORY,
    ErrorRow,
    HistoryRow,
    PositionRow,
    TransactionRow,
)
from mergerepl.transactional.article_batch import Batch, Ends, Sent, commands_between, stage_end
from mergerepl.transactional.article_procedures import Shape, at_subscriber
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.few_commands import require_few_commands
from mergerepl.transactional.followed_columns import CannotFollowError, follow
from mergerepl.transactional.judge import LOGGED, Effect, Failure
from mergerepl.transactional.position import (
    DISTRIBUTE,
    BatchPlan,
    app_id,
    batches_of,
    begin_writing,
    begun_plan,
    left_after,
    next_transactions,
    position_of,
    redo_log,
    since_last_batch,
    waiting_after,
    with_tables_at,
)
from mergerepl.transactional.procedures import carry_out, custom_operations, heads_of, prepared, procedures_of
from mergerepl.transactional.refusals import (
    NO_PROCEDURES,
    NOT_FOUND,
    OWN_PROCEDURES,
    RESTORED,
    SCHEMA_CHANGED,
    StoppedAt,
    TransactionalError,
    refuse_in_store,
)

T = TypeVar("T")


@dataclass
class Agent(Ends):
    """A distribution agent at work: one subscription, its subscriber held."""

    publication: str
    skip: frozenset[int] = frozenset()
    streams: int = 1
    result: DistributionResult = field(init=False)

    def __post_init__(self) -> None:
        self.redo = redo_log(self.subscriber.root, self.guid)
        self.result = DistributionResult(self.publication, self.subscription.subscriber)

    # -- batches -------------------------------------------------------------------------------------------------------

    def run(self) -> DistributionResult:
        """Apply all transactions after the position.

        Raises: TransactionalError where it must stop; earlier transactions are applied by then.
        """
        begin_writing(self.distributor, self.subscription)
        position = self.finish(position_of(self.distributor, self.subscription))
        while True:
            # Another process may change the columns.
            mine = self.subscription.publication_id
            shapes = [row for row in self.distributor.shapes() if row.publication_id == mine]
            rows = waiting_after(self.distributor, self.subscription, position)
            chosen = next_transactions(rows, shapes)
            if chosen:
                chosen = self._one_stage(position, chosen)
                position = self._batch(position, chosen, None)
            if len(chosen) == len(rows):
                # Transactions that came in the meantime are for the next run.
                return self.result

    def finish(self, position: PositionRow) -> PositionRow:
        """Finish the batch that a run which died had decided, if there is one; return the position."""
        plan = begun_plan(self.distributor, self.subscription, position)
        if plan is None:
            self.redo.finish()
            return position
        rows = waiting_after(self.distributor, self.subscription, position)
        chosen = [row for row in rows if row.xact_seqno <= plan.through_seqno]
        if not chosen:
            raise self.expired(
                f"it has begun batch {plan.number}, and its transactions are not there{RESTORED}"
            )
        return self._batch(position, chosen, plan)

    def _articles(self) -> list[Shape]:
        rows = self.distributor.articles(self.subscription.publication_id)
        return [at_subscriber(row, self.subscription.procedures) for row in rows]

    def _shape_at(self, article_id: int, seqno: bytes) -> Shape:
        return at_subscriber(self.distributor.shape_at(article_id, seqno), self.subscription.procedures)

    def _one_stage(self, position: PositionRow, chosen: Sequence[TransactionRow]) -> list[TransactionRow]:
        """Return the transactions for which one call of each custom procedure is enough."""
        through = chosen[-1].xact_seqno
        named = {article for row in chosen for article in row.commands}
        ends = [
            stage_end(
                commands_between(
                    self.spark(),
                    self.distributor.commands_table(self._shape_at(row.article_id, through)),
                    position.transaction_timestamp,
                    through,
                )
            )
            for row in self._articles()
            if row.article_id in named and custom_operations(row)
        ]
        return [each for each in chosen if all(end.has(each.xact_seqno) for end in ends)]

    def _batch(
        self, position: PositionRow, chosen: Sequence[TransactionRow], plan: BatchPlan | None
    ) -> PositionRow:
        """Apply a batch, or its part before the first command that stops it."""
        began = time.monotonic()
        mine = {row.article_id: row for row in self._articles()}
        counts: Counter[int] = Counter()
        for transaction in chosen:
            counts.update({each: n for each, n in transaction.commands.items() if each in mine})
        through = chosen[-1].xact_seqno
        shapes = {each: self._shape_at(each, through) for each in mine}
        # Before a table is changed: a procedure may have been written for other columns.
        procedures = {each: procedures_of(shapes[each]) for each in counts}
        if any(procedures.values()):
            refuse_in_store(self.subscriber.root, OWN_PROCEDURES, NO_PROCEDURES)
        if chosen[0].kind == "schema":
            self._follow_columns(chosen[0].xact_seqno, shapes)
        if not counts:
            return self._arrived(position, chosen, {}, {}, began)
        kept = Kept()
        # The decision is carried out, even if `skip_errors` has changed since.
        is_decided = plan is not None
        sent: dict[int, Sent] = {}
        try:
            if plan is None:
                heads = {each: head_version(self.table(shapes[each])) for each in counts}
                self._refuse_applied(position, [shapes[each] for each in counts])
                plan = BatchPlan(position.batch + 1, position.transaction_timestamp, through, heads)
            batch = Batch(self.distributor, self.subscription, self.spark, plan, chosen, kept)
            sent = self._each(counts, lambda each: batch.call(shapes[each], procedures[each], counts[each]))
            judged = self._judged(batch, counts, shapes, sent)
            failures = [failure for effect in judged.values() for failure in effect.failures]
            stop = min((each.order for each in failures if each.number not in self.skip), default=None)
            if stop is not None and not is_decided:
                return self._stopped(position, chosen, judged, stop)
            writes = prepared(
                [write for each in sent.values() for write in each.writes], self.subscriber.root, kept
            )
            if not is_decided:
                plan = replace(plan, places=heads_of(writes))
            self.redo.stage(plan)
            late = self._each(counts, lambda each: batch.write(shapes[each], sent[each], judged[each]))
            carry_out(writes, self.spark, batch.transaction, plan.places)
        finally:
            kept.release()
        return self._arrived(self._with_procedures(position, sent), chosen, judged, late, began)

    def _judged(
        self, batch: Batch, counts: Mapping[int, int], shapes: Mapping[int, Shape], sent: Mapping[int, Sent]
    ) -> dict[int, Effect]:
        """Judge all articles of a batch: in process if it is small and calls no procedures, else on Spark."""

        def judge() -> dict[int, Effect]:
            return self._each(
                counts, lambda each: batch.judge(shapes[each], sent[each], batch.plan.heads[each])
            )

        tables = {each: (self.table(shapes[each]), batch.plan.heads[each]) for each in counts}
        choice = EngineChoice(uses_arrow=True, in_process=True)
        try:
            if any(each.applied is not None for each in sent.values()):
                raise NeedsSparkError("procedures are called")
            if not self.distributor.root.is_local:
                raise NeedsSparkError("the commands are in a bucket")
            require_few_commands(counts, shapes, tables)
            require_few_bytes(sum(batch.command_bytes(shapes[each]) for each in counts))
            with choice.rules():
                return judge()
        except NeedsSparkError as error:
            choice.left_for_spark(error)
        with merges_prepared(self.spark(), [table for table, _ in tables.values()]):
            return judge()

    def _with_procedures(self, position: PositionRow, sent: Mapping[int, Sent]) -> PositionRow:
        """Return the position, noting the operations whose rows differ from the publisher's (custom procedures)."""
        tables = {self.table(row): row.article_id for row in self._articles()}
        written = {write.table for each in sent.values() for write in each.writes}
        found = {(article_id, operation) for article_id, each in sent.items() for operation in each.replaced}
        found |= {(tables[table], each) for table in written & set(tables) for each in Operation}
        named = {f"{article_id}:{operation}" for article_id, operation in found}
        return replace(position, by_procedure=tuple(sorted({*position.by_procedure, *named})))

    def _refuse_applied(self, position: PositionRow, articles: Sequence[Shape]) -> None:
        """Check that no table is ahead of the position: its Delta transaction would skip the batch.

        Raises: TransactionalError 21074.
        """
        tables = {row.article for row in articles}
        for name, (_, table, since) in since_last_batch(
            self.distributor, self.subscription, position
        ).items():
            # Delta transactions may expire, the log's marks may be older than the position.
            done = max([transaction_version(table, app_id(self.guid)), *batches_of(since.own)])
            if name in tables and done > position.batch:
                raise self.expired(
                    f"its position says batch {position.batch}, and '{table}' has batch {done}{RESTORED}"
                )

    def _each(self, articles: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
        """Return the results of some work on each article; `streams` of them are worked on at a time."""
        listed = list(articles)
        if self.streams == 1 or len(listed) == 1:
            return {each: work(each) for each in listed}
        with worker_threads(self.streams) as pool:
            return dict(zip(listed, pool.map(work, listed), strict=True))

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
        if before := [each for each in chosen if each.xact_seqno < stop[0]]:
            position = self._batch(position, before, None)
            # The earlier commands may have another outcome by now: go on as usual.
            return self._batch(position, chosen[len(before) :], None)
        article_id, failure = next(
            (article_id, failure)
            for article_id, effect in judged.items()
            for failure in effect.failures
            if failure.order == stop
        )
        row = next(each for each in self._articles() if each.article_id == article_id)
        command = self._command_text(row, failure)
        raise TransactionalError.stopped(
            failure.number,
            self.distributor.root,
            self.subscriber.root,
            failure.text,
            str(Lsn(failure.xact_seqno)),
            command,
            StoppedAt(failure.xact_seqno, failure.command_id, article_id),
        )

    def _command_text(self, row: Shape, failure: Failure) -> str:
        from mergerepl.transactional.commands import command_texts

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
        self._log(number, {each: (*failures[each], *found_late.get(each, ())) for each in failures})
        failpoint("distribute.before_position")
        now = datetime.now(UTC)
        since = since_last_batch(self.distributor, self.subscription, position)
        has_foreign = any(each.foreign or each.reason for _, _, each in since.values())
        through = chosen[-1].xact_seqno
        # A table that was replaced while the batch ran stays refused.
        left = {name: left_after(table, each) for name, (_, table, each) in since.items() if not each.reason}
        position = replace(position, time=now, transaction_timestamp=through, batch=number)
        position = with_tables_at(position, left)
        is_equal = self.subscription.is_equal and not skipped and not found_late and not has_foreign
        if self.subscription.is_equal and not is_equal:
            # Before the position: the next batch checks only later commits of other writers.
            self.distributor.change_subscription(self.guid, is_equal=False)
        self.subscriber.save(position)
        failpoint("distribute.after_position")
        self.redo.finish()
        counts: Counter[str] = Counter()
        for effect in judged.values():
            counts.update(effect.counts)
        named = {Operation.INSERT: "inserts", Operation.UPDATE: "updates", Operation.DELETE: "deletes"}
        sums = {"skipped": skipped} | {name: counts[each] for each, name in named.items()}
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
                duration=round(time.monotonic() - began, 3),
                **sums,
            )
            with self.distributor.writing():
                self.distributor.control.append(HISTORY, [history], once=(app_id(self.guid), number))
        self.subscription = replace(self.subscription, last_xact_seqno=through, is_equal=is_equal)
        self.distributor.change_subscription(self.guid, last_xact_seqno=through)
        sums |= {"transactions": len(counted), "commands": commands, "batches": 1 if judged else 0}
        total: dict[str, Any] = {name: n + getattr(self.result, name) for name, n in sums.items()}
        self.result = replace(self.result, latency_s=round(latency, 3), xact_seqno=str(Lsn(through)), **total)
        if found_late:
            found = next(iter(found_late.values()))
            raise TransactionalError(
                NOT_FOUND,
                f"{found[0].text} Another writer changed the tables of '{self.subscriber.root}' while a batch was "
                "applied. The batch is finished, and it is not known whether the tables are equal: "
                f"{self.to_run('validate')}.",
                subscriber=str(self.subscriber.root),
            )
        return position

    def _log(self, number: int, failures: Mapping[int, Sequence[Failure]]) -> None:
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
                is_skipped=True,
                batch=number,
            )
            for article_id, found in failures.items()
            for failure in found[:LOGGED]
        ]
        with self.distributor.writing():
            self.distributor.control.append(ERRORS, rows, once=(app_id(self.guid), number))

    def _follow_columns(self, seqno: bytes, shapes: Mapping[int, Shape]) -> None:
        """Bring changed columns of the articles to the subscriber's tables.

        Raises: TransactionalError 21076 if a table cannot follow.
        """
        changed = [row for row in shapes.values() if row.first_seqno == seqno and row.schema_version > 1]
        for row in changed:
            before, after, left = self.distributor.changed_at(row)
            mark = CommitMark(self.guid, f"{DISTRIBUTE}:columns")
            try:
                follow(self.spark, self.table(row), before, after, mark, left=left)
            except CannotFollowError as error:
                raise self._cannot_follow(row, error) from error

    def _cannot_follow(self, row: Shape, error: CannotFollowError) -> TransactionalError:
        subscriber, reinit = self.subscriber.root, self.to_run("reinit")
        remedy = f"Run `{error.remedy}`, then sync again; or begin" if error.remedy else "Begin"
        return TransactionalError(
            SCHEMA_CHANGED,
            f"Article '{row.article}' at '{subscriber}': the publisher's columns changed ({row.schema_text}), and table "
            f"'{self.table(row)}' cannot follow: {error.why}. Everything before that change is applied. {remedy} again "
            f"with the new columns: {reinit}.",
            subscriber=str(subscriber),
            article=row.article,
        )

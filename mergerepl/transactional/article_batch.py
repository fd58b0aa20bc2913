"""A batch at the tables of its articles: commands are given to procedures, judged against the rows, and merged once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.window import Window

from mergerepl.delta import appended
from mergerepl.delta.commit_files import frame_having
from mergerepl.delta.engine_choice import NO_SESSION, EngineChoice, NeedsSparkError
from mergerepl.delta.marks import CommitMark, CommitUnit
from mergerepl.delta.small_writer import merge_by_delta_rs
from mergerepl.delta.tables import (
    Bounds,
    TableState,
    Transaction,
    head_version,
    lost_commits,
    marked_session,
    open_table,
    read_back,
    read_columns,
    retry_conflicts,
)
from mergerepl.failpoints import failpoint
from mergerepl.frames import DataFrame, F, is_in_process
from mergerepl.logreader.lsn import Lsn
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import in_session
from mergerepl.store.location import Location
from mergerepl.systables.transactional import SubscriptionRow, TransactionRow
from mergerepl.transactional.article_procedures import Shape, batch_text
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore
from mergerepl.transactional.commands import PHASE_BITS
from mergerepl.transactional.few_commands import article_of, require_values, rows_to_merge
from mergerepl.transactional.judge import Effect, Failure, judge
from mergerepl.transactional.position import BatchPlan, app_id, batch_step, is_written
from mergerepl.transactional.procedures import Procedure, Write, called, session_of_procedures
from mergerepl.transactional.refusals import (
    DUPLICATE,
    RULES_BROKEN,
    SCHEMA_CHANGED,
    TransactionalError,
    to_run,
)
from mergerepl.transactional.row_rules import narrower_columns, row_rules


@dataclass(frozen=True)
class Sent:
    """An article's commands in a batch: their number, the operations that are judged, and those applied (None: all).
    `writes` come from custom procedures; for operations in `replaced` they do not call the default.
    """

    commands: int
    judged: frozenset[Operation] | None = None
    applied: frozenset[Operation] | None = None
    writes: tuple[Write, ...] = ()
    replaced: frozenset[Operation] = frozenset()


@dataclass
class Ends:
    """The two ends of a subscription: the distribution store, and the folder of the subscriber."""

    distributor: DistributionStore
    subscription: SubscriptionRow
    spark: Callable[[], SparkSession]

    @property
    def guid(self) -> str:
        """The identity of the subscription."""
        return self.subscription.subscription_guid

    @property
    def subscriber(self) -> SubscriberStore:
        """The folder of the subscriber."""
        return self.distributor.subscriber(self.subscription)

    def table(self, row: Shape) -> Location:
        """Return the table of an article at the subscriber."""
        return self.subscriber.table(self.subscription, row)

    def expired(self, why: str) -> TransactionalError:
        """21074: the subscription cannot go on."""
        return TransactionalError.expired(self.distributor.root, self.subscriber.root, why)

    def to_run(self, word: str) -> str:
        """Return a command for this subscriber as a message names it."""
        return to_run(word, self.distributor.root, at=self.subscriber.root)


@dataclass
class Batch(Ends):
    """A planned batch at work. What it keeps in memory is released by the agent."""

    plan: BatchPlan
    transactions: Sequence[TransactionRow]
    kept: Kept

    def call(self, row: Shape, procedures: Mapping[Operation, Procedure], count: int) -> Sent:
        """Call an article's procedures; without any, all commands are judged and applied.

        Raises: TransactionalError 21074 if commands of the batch are gone; the error of a procedure.
        """
        if not procedures:
            return Sent(count)
        # Settings of a procedure in its session end with the batch.
        session = session_of_procedures(self.spark())
        commands = self.kept.keep(self._commands(row, session))
        found = {each["operation"]: each["count"] for each in commands.groupBy("operation").count().collect()}
        self._require_all(row, count, sum(found.values()))
        calls = called(
            {each: known for each, known in procedures.items() if each.value in found},
            row,
            commands,
            {each.xact_seqno: each.commit_time for each in self.transactions},
            table=self.table(row),
            subscriber=self.subscriber.root,
            kept=self.kept,
        )
        generated = {each for each in Operation if each not in procedures}
        applied = generated | {call.does for call in calls if call.calls_default}
        return Sent(
            count,
            frozenset(applied | {call.does for call in calls if call.requires_rows}),
            frozenset(applied),
            tuple(write for call in calls for write in call.writes),
            frozenset(call.does for call in calls if not call.calls_default),
        )

    def _require_all(self, row: Shape, count: int, found: int) -> None:
        if found != count:
            raise self.expired(
                f"{count} commands of article '{row.article}' are wanted and {found} are there"
            )

    def judge(self, row: Shape, sent: Sent, version: int) -> Effect:
        """Return the effect of the batch on a table at a version.

        Raises: TransactionalError 21074 if commands of the batch are gone; NeedsSparkError in process.
        """
        spark = NO_SESSION if is_in_process() else self.spark()
        commands = self._commands(row, spark)
        if sent.judged is not None:
            commands = commands.where(F.col("operation").isin([each.value for each in sent.judged]))
        table, shape = self.table(row), row
        written = frozenset(Operation) if sent.applied is None else sent.applied
        rules = None
        if written:
            state = open_table(table, version)
            self._require_types(state, row)
            if is_in_process():
                require_values(commands, shape, state)
            else:
                rules = row_rules(state, shape, written)
        columns = list(dict.fromkeys([*row.key_columns, *(rules.held if rules else ())]))

        def table_keys(bounds: Bounds, keys: DataFrame) -> DataFrame:
            if not is_in_process():
                return read_columns(spark, table, version, columns, bounds=bounds)
            names = {name: f"k{i}" for i, name in enumerate(row.key_columns, 1)}
            return frame_having(open_table(table, version), columns, keys, names)

        effect = judge(
            spark,
            commands,
            shape,
            table_keys,
            self.kept,
            on_duplicates=partial(self._duplicate_rows, table),
            rules=rules,
            expected=sent.commands,
            is_one_transaction=sum(row.article_id in each.commands for each in self.transactions) == 1,
        )
        if sent.applied is None:
            self._require_all(row, sent.commands, effect.commands)
            if is_in_process():
                few = rows_to_merge(effect.rows, row, open_table(table, version))
                return replace(effect, few=few)
            return effect
        applied = [each.value for each in sent.applied]
        return replace(
            effect,
            rows=effect.rows.where(F.col("operation").isin(applied)),
            counts={name: n for name, n in effect.counts.items() if name in applied},
            commands=sent.commands,
        )

    def _require_types(self, state: TableState, row: Shape) -> None:
        """Check that no value would be cut: a job may have replaced the table, and a repair let it go on.

        Raises: TransactionalError 21076.
        """
        for name, has in narrower_columns(state, row).items():
            wanted = row.types[row.columns.index(name)].upper()
            raise TransactionalError(
                SCHEMA_CHANGED,
                f"Column '{name}' of table '{state.path}' is {has.upper()}, and the commands of article '{row.article}' "
                f"have {wanted}: values would be cut. Nothing of the batch was applied. Give the column that type; or "
                f"begin again: {self.to_run('reinit')}.",
                table=str(state.path),
                article=row.article,
            )

    def _duplicate_rows(self, table: Location, keys: int) -> TransactionalError:
        """2627: a command would mean all rows of a key."""
        return TransactionalError(
            DUPLICATE,
            f"Table '{table}' at the subscriber has keys of this batch more than once ({keys}): another writer changed it. "
            f"Nothing was applied. Bring the publisher's rows back: {self.to_run('repair')}; or begin again: "
            f"{self.to_run('reinit')}.",
            table=str(table),
        )

    def _commands(self, row: Shape, spark: SparkSession) -> DataFrame:
        table = self.distributor.commands_table(row)
        return commands_between(spark, table, self.plan.from_seqno, self.plan.through_seqno)

    def command_bytes(self, row: Shape) -> int:
        """Return the bytes of the files that hold an article's commands, and may hold others."""
        cycles = cycles_between(self.plan.from_seqno, self.plan.through_seqno)
        return appended.bytes_within(self.distributor.commands_table(row), cycles)

    def transaction(self, place: str | None = None) -> Transaction:
        """Return the Delta transaction of a batch: for the articles' tables, or for a table that a procedure writes."""
        app = app_id(self.guid) if place is None else f"{app_id(self.guid)}-{place}"
        unit = self._unit() if place is None else None
        return Transaction(
            app, self.plan.number, CommitMark(self.guid, batch_step(self.plan.number, place), unit=unit)
        )

    def write(self, row: Shape, sent: Sent, effect: Effect) -> tuple[Failure, ...]:
        """Execute the MERGE of an article once. Returns failures that only a foreign commit in between brought."""
        table = self.table(row)
        transaction = self.transaction()
        # Checked in the log: a Delta transaction may expire (delta.setTransactionRetentionDuration).
        if is_written(table, transaction.mark, self.plan.heads[row.article_id]):
            return ()
        judged_at = self.plan.heads[row.article_id]

        def merge() -> None:
            nonlocal effect, judged_at
            if (head := head_version(table)) != judged_at:
                # Another writer changed the table since it was judged.
                effect, judged_at = self.judge(row, sent, head), head
                for failure in effect.failures:
                    if failure.number in RULES_BROKEN:
                        raise TransactionalError(
                            failure.number,
                            f"{failure.text} The rule is newer than the batch, which is finished as it was decided, "
                            "since other tables may have it. Lift the rule and run again, or begin again: "
                            f"{self.to_run('reinit')}.",
                            subscriber=str(self.subscriber.root),
                        )
            if effect.few is not None:
                few, article = effect.few, article_of(row, table.name)
                terms = {"actions": {"update": few.rows.num_rows}, "bounds": few.bounds(article)}
                try:
                    # The rows hold what the table had: a value of a later commit would be lost.
                    merge_by_delta_rs(
                        lambda: few, table, article, **terms, transaction=transaction, at=judged_at
                    )
                    return
                except NeedsSparkError as error:
                    EngineChoice(uses_arrow=True).fall_back(table, error)
                    effect = self.judge(row, sent, judged_at)
            self._merge(row, table, effect, transaction)

        lost = lost_commits(
            f"Article '{row.article}' at '{table}'",
            "the batch",
            "Run again: the same batch is finished.",
            table=str(table),
        )
        retry_conflicts(merge, table, lost)
        commit = read_back(table, transaction, from_version_exclusive=judged_at)
        if commit.version > judged_at + 1:
            effect = self.judge(row, sent, commit.version - 1)
        failpoint("distribute.after_article")
        return (
            effect.failures
            if judged_at != self.plan.heads[row.article_id] or commit.version > judged_at + 1
            else ()
        )

    def _unit(self) -> CommitUnit:
        tables = [
            self.table(self.distributor.shape_at(each, self.plan.through_seqno)) for each in self.plan.heads
        ]
        names = tuple(str(table.relative_to(self.subscriber.root)) for table in tables)
        return CommitUnit(f"{self.guid}:{self.plan.number}", names)

    def _merge(self, row: Shape, table: Location, effect: Effect, transaction: Transaction) -> None:
        """Execute the text of `script --batch` over a view `commands`. A batch without effect is a commit, too."""
        done = [each for each in Operation if effect.counts.get(each)]
        with marked_session(self.spark(), transaction, table) as session:
            in_session(effect.rows, session).createOrReplaceTempView("commands")
            session.sql(batch_text(row, table.spark_uri, bounds=effect.bounds, operations=done))


def cycles_between(from_seqno_exclusive: bytes, through_seqno_inclusive: bytes) -> Bounds:
    """Return the bounds of the scan cycles of two LSNs."""
    ends = (Lsn(from_seqno_exclusive).scan_cycle - 1, Lsn(through_seqno_inclusive).scan_cycle)
    return {"scan_cycle": ends}


def commands_between(
    spark: SparkSession, table: Location, from_seqno_exclusive: bytes, through_seqno_inclusive: bytes
) -> DataFrame:
    """Return the commands of a table of commands whose transactions lie between two LSNs."""
    cycles = cycles_between(from_seqno_exclusive, through_seqno_inclusive)
    columns = [each["name"] for each in open_table(table).fields] if is_in_process() else ()
    rows = appended.read(spark, table, cycles, columns=columns)
    return rows.where(
        (F.col("xact_seqno") > F.lit(from_seqno_exclusive))
        & (F.col("xact_seqno") <= F.lit(through_seqno_inclusive))
    )


_LAST = b"\xff" * 10


@dataclass(frozen=True)
class StageEnd:
    """The batch has the transactions through one LSN, and those before another one (None: no bound)."""

    through: bytes = _LAST
    before: bytes | None = None

    def has(self, xact_seqno: bytes) -> bool:
        """True if a transaction belongs to the stage."""
        return xact_seqno <= self.through and (self.before is None or xact_seqno < self.before)


def stage_end(commands: DataFrame) -> StageEnd:
    """Return the end of the first stage of an article's commands.

    A row has commands of one operation in a stage, and an update of a key is alone in it. Inside a transaction a row has
    one command, so every transaction is part of one stage. If two keys share a hash, a stage ends earlier than necessary.

    Reads: commands (MSrepl_commands).
    """
    key = F.col("command_id").bitwiseAND((1 << PHASE_BITS) - 1)
    of_row = Window.partitionBy("key").orderBy("xact_seqno", "command_id")
    with_key = commands.select("xact_seqno", "command_id", "operation", "key_change", key.alias("key"))
    followed = with_key.select(
        *("xact_seqno", "key_change"),
        (
            (F.lag("operation").over(of_row) != F.col("operation"))
            & (F.lag("xact_seqno").over(of_row) != F.col("xact_seqno"))
        ).alias("is_other"),
    )
    found = followed.agg(
        F.min("xact_seqno").alias("first"),
        F.min(F.when(F.col("is_other"), F.col("xact_seqno"))).alias("other"),
        F.min(F.when(F.col("key_change"), F.col("xact_seqno"))).alias("moved"),
    ).collect()[0]
    other, moved = (None if found[name] is None else bytes(found[name]) for name in ("other", "moved"))
    if moved is not None and moved == bytes(found["first"]):
        return StageEnd(through=moved)
    return StageEnd(before=min((each for each in (other, moved) if each is not None), default=None))

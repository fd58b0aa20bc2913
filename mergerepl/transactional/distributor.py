"""`Distributor` and `Subscriber`: the folders of a publisher and a subscriber. Spark is loaded where rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mergerepl.calls import Caller, methods_of_caller
from mergerepl.errors import MergeReplError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.delivery import (
    AgentError,
    Batch,
    Command,
    DistributionResult,
    DistributorStatus,
    LogReaderResult,
    SkippedTransaction,
)
from mergerepl.model.listing import Listing
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.transactional import agents, monitoring
from mergerepl.transactional import monitoring as checks
from mergerepl.transactional.agents import ends_held, proved_spark, read_log, resume_source, skip, spark_of
from mergerepl.transactional.catalog import (
    DistributionStore,
    Root,
    SubscriberStore,
    folder_of,
    required,
    seqno_of,
    subscriptions_of,
)
from mergerepl.transactional.refusals import TransactionalUsageError, require_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mergerepl.filters.chosen_rows import ChosenRows
    from mergerepl.model.results import ArticleValidation
    from mergerepl.model.tasks import CleanupResult, Pending, Repair, StatusWarning
    from mergerepl.systables.transactional import SubscriptionRow
    from mergerepl.transactional.article_procedures import Shape

LOCK_WAIT_S = 60.0
"""Seconds that work on whole tables waits at least for another process."""


def _procedures_there(store: DistributionStore, article: Shape) -> list[str]:
    """Return the comment that names the procedures of an article at each subscriber, if there are any."""
    from mergerepl.transactional.article_procedures import at_subscriber, called_procedures

    lines = []
    for row in store.subscriptions(article.publication_id):
        reached = row.last_xact_seqno or row.snapshot_seqno
        if reached is None:
            continue
        shape = at_subscriber(store.shape_at(article.article_id, reached), row.procedures)
        named = (
            f"{name} ({'generated' if name == shape.procedure(each) else 'custom'})"
            for each, name in called_procedures(shape).items()
        )
        version = f"schema version {shape.schema_version} of {article.schema_version}"
        lines.append(f"-- {article.article} at {row.subscriber}, {version}: {', '.join(named) or 'none'}")
    return ["\n".join(lines)] if lines else []


def load_procedures(modules: Sequence[str]) -> None:
    """Import the modules that register procedures, if there are any. Spark is loaded with them."""
    if modules:
        from mergerepl.transactional.procedures import load

        load(modules)


@methods_of_caller
class Distributor(Caller):
    """The distributor of a folder that publishes transactionally: its log, its commands and its subscriptions.

    A `subscriber` is a folder, or its last part; a `table` is the name of an article. `spark` is the session to work in;
    without one an embedded one starts when rows are read. `lock_wait_s`: seconds to wait for another process.

    Raises (every method): TransactionalUsageError if nothing is published there, or a name is unknown; LeaseError (run
        again).
    """

    def __init__(self, path: Root, *, spark: SparkSession | None = None, lock_wait_s: float = 0.0) -> None:
        super().__init__(spark, lock_wait_s)
        self.path = path

    def _session(self) -> SparkSession:
        return spark_of(self.spark)()

    def _subscriptions(
        self, subscriber: Root | None, publication: str | None
    ) -> Iterator[tuple[DistributionStore, str, SubscriptionRow]]:
        store = required(self.path)
        for name, row in subscriptions_of(store, subscriber=subscriber, publication=publication):
            yield store, name, row

    def capture(self) -> LogReaderResult:
        """Read the log until nothing is new: the distributor gets the commands. Starts no JVM if nothing is new.

        Raises: LogReaderBusyError (18752); LogReaderError if the folder is a copy, or a part of the bookkeeping was
            restored.
        """
        return read_log(LogReader(required(self.path).root, self.spark, self.lock_wait_s))

    def deliver(
        self,
        *,
        subscriber: Root | None = None,
        publication: str | None = None,
        streams: int | None = None,
        skip_errors: Sequence[int] | None = None,
        procedures: Sequence[str] = (),
    ) -> Listing[DistributionResult]:
        """Run the distribution agents: each subscription gets the captured commands.

        `streams` is the number of articles applied at a time, instead of the subscription's own number. `procedures` are
        modules that register procedures; procedures registered in this process need none. If an agent fails, the others
        still run; the first failure is raised after them.

        Raises: TransactionalError where a command cannot be applied (20598, 2627), a subscription is too old (21074) or
            columns changed (21076); OutOfReachError if a subscriber cannot be reached.
        """
        require_streams(streams)
        load_procedures(procedures)
        found, failed = [], []
        options: dict[str, Any] = {"streams": streams, "skip_errors": skip_errors}
        with agents.looked_at(folder_of(self.path)):
            for store, name, row in self._subscriptions(subscriber, publication):
                try:
                    done = agents.run_agent(
                        store, name, row, self._session, lock_wait_s=self.lock_wait_s, **options
                    )
                    found.append(done)
                except MergeReplError as error:
                    failed.append(error)
        if failed:
            raise failed[0]
        return Listing(found)

    def browse(
        self,
        *,
        table: str | None = None,
        from_: str | datetime | None = None,
        to: str | datetime | None = None,
        limit: int = 20,
    ) -> Listing[Command]:
        """Return waiting and delivered commands as text, as `sp_browsereplcmds` does, the first `limit`.

        `from_` and `to` are the first and the last transaction: an LSN (`0x…`), or the time of a commit.
        """
        from pyspark.sql import functions as F

        from mergerepl.delta import appended
        from mergerepl.transactional.commands import command_texts

        found: list[Command] = []
        store, (low, high) = required(self.path), required(self.path).bounds(from_, to)
        for shape in store.shapes_with_commands(table):
            rows = appended.read(self._session(), store.commands_table(shape))
            rows = rows.where((F.col("xact_seqno") >= F.lit(low)) & (F.col("xact_seqno") <= F.lit(high)))
            found += command_texts(rows, shape, limit=limit)
        found.sort(key=lambda each: (each.xact_seqno, each.command_id))
        count = partial(self.count_commands, table=table, from_=from_, to=to)
        return Listing.limited(found[:limit], limit, count)

    def count_commands(
        self,
        *,
        table: str | None = None,
        from_: str | datetime | None = None,
        to: str | datetime | None = None,
    ) -> int:
        """Return the number of commands that `browse` lists without a limit. Starts no JVM."""
        from mergerepl.delta.tables import count_rows

        store, (low, high) = required(self.path), required(self.path).bounds(from_, to)
        where = f"xact_seqno >= X'{low.hex()}' and xact_seqno <= X'{high.hex()}'"
        return sum(
            count_rows(store.commands_table(each), where=where) for each in store.shapes_with_commands(table)
        )

    def script(
        self,
        *,
        table: str | None = None,
        operation: Literal["insert", "update", "delete"] | None = None,
        batch: bool = False,
        custom: bool = False,
        subscriber: Root | None = None,
    ) -> str:
        """Return the generated procedures (`sp_MSins_…`, `sp_MSupd_…`, `sp_MSdel_…`) as Spark SQL. Starts no JVM.

        Comments say which procedures each subscriber has, and the schema version that it has reached.

        `batch`: the single MERGE that does the work of all three. `custom`: a Python template for custom procedures. The
        tables are the named or first subscriber's.
        """
        from mergerepl.transactional.article_procedures import at_subscriber, batch_script, procedure_text
        from mergerepl.transactional.procedures import OPERATIONS, custom_operations, skeleton

        store = required(self.path)
        found = subscriptions_of(store, subscriber=subscriber)
        row = found[0][1] if found else None
        root = Location.of(row.subscriber if row else "SUBSCRIBER")
        texts = []
        for each in store.articles_named(table):
            there = row.destination if row else {}
            shape = at_subscriber(each, row.procedures if row else {})
            shape = replace(shape, destination_object=there.get(each.article, each.destination_object))
            path = str(root / shape.destination_object)
            if not custom and not batch:
                texts += _procedures_there(store, each)
            if batch:
                texts.append(batch_script(shape, path))
                continue
            for name, each_operation in OPERATIONS.items():
                if operation not in (None, name) or shape.command(each_operation).method == "NONE":
                    continue
                if custom:
                    texts.append(skeleton(shape, each_operation))
                elif each_operation not in custom_operations(shape):
                    texts.append(procedure_text(shape, each_operation, path))
        return "\n\n".join(texts)

    def skip(
        self,
        xact: str,
        *,
        subscriber: Root | None = None,
        publication: str | None = None,
        dry_run: bool = False,
    ) -> SkippedTransaction:
        """Skip the next transaction of a subscription, such as the one at which its agent stopped. Starts no JVM.

        It is recorded in errors and history, and the subscriber is not known to be equal from then on. Done again,
        nothing happens. `subscriber` may be omitted if there is only one.

        Raises: TransactionalUsageError if the transaction is unknown, was applied or is not the next one; if it changes
            columns, or a batch with it was begun. TransactionalError 21074 if the subscription cannot go on.
        """
        seqno = Lsn(seqno_of(xact))
        found = list(self._subscriptions(subscriber, publication))
        if len(found) != 1:
            known = ", ".join(row.subscriber for *_, row in found) or "none"
            raise TransactionalUsageError(
                f"A transaction is skipped at one subscription, and '{self.path}' has {len(found)}: {known}. Nothing was "
                "changed. Name it with `--at`, and the publication by its file."
            )
        ((store, name, row),) = found
        with ends_held(store.root, Location.of(row.subscriber), "transactional skip"):
            return skip(store, name, row, seqno, dry_run=dry_run)

    def status(self) -> DistributorStatus:
        """Return the state of the publications and subscriptions. Starts no JVM."""
        return monitoring.status(self.path)

    def warnings(self, now: datetime) -> Listing[StatusWarning]:
        """Return the present and imminent problems of the published tables and the subscribers. Starts no JVM."""
        return Listing(checks.warnings_of(self.path, now))

    def pending(self) -> Listing[Pending]:
        """Return the undelivered commands of each subscription, and the unread commits. Starts no JVM."""
        return Listing(monitoring.pending(self.path))

    def history(self, *, limit: int = 20, subscriber: str | None = None) -> Listing[Batch]:
        """Return the last batches of all agents and why agents stopped, newest first. Starts no JVM.

        `subscriber` is a folder: only the batches of its agents.
        """
        return Listing(monitoring.history(self.path, limit=limit, subscriber=subscriber))

    def errors(self, *, limit: int = 20, subscriber: str | None = None) -> Listing[AgentError]:
        """Return why agents stopped, and the commands that were skipped, newest first. Starts no JVM.

        `subscriber` is a folder: only what stopped its agents.
        """
        return Listing(monitoring.errors(self.path, limit=limit, subscriber=subscriber))

    def validate(
        self,
        *,
        subscriber: Root | None = None,
        publication: str | None = None,
        table: str | Sequence[str] = (),
    ) -> Listing[ArticleValidation]:
        """Compare subscribers with the publisher at their positions; writers need not stop. `table`: names of articles.

        `error` has the reason for an article that could not be compared, `not_compared` the names of columns. Tables
        stay unchanged; only whether a subscriber is known to be equal is recorded: that it is, if all articles are.
        """
        from mergerepl.transactional.validation import validate_one

        tables = (table,) if isinstance(table, str) else table
        found: list[ArticleValidation] = []
        for store, name, row in self._subscriptions(subscriber, publication):
            at = store.subscriber(row)
            if at.position(row.subscription_guid) is None:
                continue
            with plain_errors("a subscription was validated"), ends_held(store.root, at.root, "validate"):
                # The row may have changed before we held the subscriber.
                now = store.subscription(row.subscription_guid)
                if now is not None and at.position(now.subscription_guid) is not None:
                    session = proved_spark(self._session, store.root, at.root)()
                    found += validate_one(store, name, now, session, tables)
        return Listing(found)

    def repair(
        self,
        *,
        subscriber: Root | None = None,
        publication: str | None = None,
        table: str | None = None,
        key: Mapping[str, str] | None = None,
        where: str | None = None,
        procedures: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Listing[Repair]:
        """Make rows of subscribers equal to the publisher's at their positions.

        Missing rows are inserted, extra ones deleted. `key` (column -> value as text) or `where` (on the publisher's or
        the subscriber's row) choose rows of one table; without them whole tables are repaired. Columns that `validate`
        does not compare stay. A batch that died is finished first. Afterwards the subscription is validated.
        `procedures` are those of `deliver`.

        Raises: ConfigurationError for an unknown column; TransactionalError 21074 if a table cannot be repaired and
            has to begin again; CommitConflictError (run again).
        """
        from mergerepl.filters.chosen_rows import ChosenRows

        load_procedures(procedures)
        chosen = ChosenRows(table, key, where)
        found = self._subscriptions(subscriber, publication)
        return Listing(self._repaired(found, chosen, "repair", dry_run, makes_missing=False))

    def _repaired(
        self,
        subscriptions: Iterable[tuple[DistributionStore, str, SubscriptionRow]],
        chosen: ChosenRows,
        purpose: str,
        is_dry: bool,
        *,
        makes_missing: bool,
    ) -> list[Repair]:
        from mergerepl.transactional.repairing import repair_one

        done: list[Repair] = []
        for store, name, row in subscriptions:
            at = Location.of(row.subscriber)
            with (
                plain_errors("a subscriber was repaired"),
                ends_held(store.root, at, purpose, max(LOCK_WAIT_S, self.lock_wait_s)),
            ):
                # The row may have changed before we held the subscriber.
                now = store.subscription(row.subscription_guid)
                if now is not None:
                    session = proved_spark(self._session, store.root, at)()
                    done += repair_one(
                        store, name, now, chosen, session, is_dry=is_dry, makes_missing=makes_missing
                    )
        return done

    def reinit_articles(
        self,
        *tables: str,
        subscriber: Root | None = None,
        publication: str | None = None,
        dry_run: bool = False,
    ) -> Listing[Repair]:
        """Fill some articles of subscriptions again, as `repair` does; a table that is gone is created.

        The other articles and the position stay: no command is skipped. So the publisher's version at the position must
        still be readable.

        Raises: ConfigurationError for an unknown article; TransactionalError 21074 if a subscription or a table has
            to begin again with all articles.
        """
        from mergerepl.filters.chosen_rows import ChosenRows
        from mergerepl.systables.transactional import QUEUED

        found = [*self._subscriptions(subscriber, publication)]
        for store, _, row in found:
            if row.update_mode == QUEUED:
                raise TransactionalUsageError(
                    f"Subscriber '{row.subscriber}' is updatable: its queue begins with all its tables. Nothing was "
                    "changed. Leave out the article: `reinit` sends its edits first."
                )
            known = [each.article for each in store.articles(row.publication_id)]
            for table in tables:
                ChosenRows(table).tables(known)
        done: list[Repair] = []
        for table in tables:
            done += self._repaired(found, ChosenRows(table), "reinit", dry_run, makes_missing=True)
        return Listing(done)

    def reinit(self, *, subscriber: Root | None = None, publication: str | None = None) -> tuple[str, ...]:
        """Begin subscriptions again from a new snapshot. Returns the subscribers.

        The rows of each table are replaced in one commit; the position is moved after the last one. `reinit` or `apply`
        restarts a run that died; until then no command is applied.
        """
        from mergerepl.transactional.snapshot import initialise

        store = required(self.path)
        reader = LogReader(store.root, self.spark, max(LOCK_WAIT_S, self.lock_wait_s))
        done = []
        for name, row in subscriptions_of(store, subscriber=subscriber, publication=publication):
            at = Location.of(row.subscriber)
            # Edits that were not sent would be overwritten.
            agents.read_queue(store, name, row, self._session, lock_wait_s=max(LOCK_WAIT_S, self.lock_wait_s))
            with plain_errors("a subscription was reinitialized"), ends_held(store.root, at, "reinit"):
                # As in `_repaired`: rows of a subscription that ended would not be those of the one that followed.
                now = store.subscription(row.subscription_guid)
                if now is None:
                    continue
                initialise(store, reader, now, name, replaces=True)
            done.append(row.subscriber)
        return tuple(done)

    def resume(self, table: str) -> bool:
        """Resume the paused source of an article: its unread commits get new LSNs. Returns False if it was not paused.

        Raises: TransactionalUsageError if Change Data Capture reads its table, too; TransactionalError if the source
            still cannot be read; LogReaderBusyError (18752).
        """
        store = required(self.path)
        return resume_source(LogReader(store.root, self.spark, self.lock_wait_s), store, table)

    def cleanup(self, *, dry_run: bool = False) -> CleanupResult:
        """Remove commands that all active subscriptions have, and those above the longest retention. Starts no JVM.

        It also counts the subscriptions that become `inactive`; `dry_run` only counts.
        """
        from mergerepl.transactional.cleaning import cleanup

        return cleanup(self.path, dry_run=dry_run)


@methods_of_caller
class Subscriber(Caller):
    """A folder that receives articles of a transactional publication."""

    def __init__(self, path: Root, *, spark: SparkSession | None = None) -> None:
        super().__init__(spark, 0.0)
        self.path = path

    def read(self, table: str, *, publication: str | None = None) -> DataFrame:
        """Return an article as of the last complete batch: several are consistent with each other.

        Raises: TransactionalUsageError if the folder is not a subscriber, or does not have the article.
        """
        from mergerepl.delta.tables import read_version

        subscriber = SubscriberStore(folder_of(self.path))
        positions = subscriber.positions()
        for position in positions:
            if publication not in (None, position.publication) or table not in position.table_versions:
                continue
            store = DistributionStore(Location.of(position.publisher))
            row = store.subscription(position.subscription_guid)
            if row is None:
                # It ended while this folder was out of reach.
                continue
            article = next(each for each in store.articles(row.publication_id) if each.article == table)
            version = position.table_versions[table]
            return read_version(spark_of(self.spark)(), subscriber.table(row, article), version)
        known = ", ".join(name for each in positions for name in each.table_versions) or "none"
        raise TransactionalUsageError(
            f"'{subscriber.root}' receives no article '{table}'. The articles here are: {known}."
        )

    def first_rows(self, table: str, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        """Return the first rows of `read`, with values as text."""
        from mergerepl.rows.images import with_readable

        rows = self.read(table)
        return tuple(row.asDict() for row in with_readable(rows, rows.columns).limit(limit).collect())

"""What `mergerepl transactional` and Python call: agents, scripts, monitoring, validation, cleanup."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import roots
from mergerepl.delta import appended
from mergerepl.delta.log import is_delta_table
from mergerepl.delta.versions import read_version
from mergerepl.engine.errors import told_plainly
from mergerepl.errors import OutOfReachError
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.transactional import DistributionResult
from mergerepl.rows.images import with_readable
from mergerepl.store.lease import lease
from mergerepl.store.subscriber_files import has_folder, remove_batch
from mergerepl.systables.transactional import (
    ACTIVE,
    ERRORS,
    HISTORY,
    INACTIVE,
    TRANSACTIONS,
    ArticleRow,
    SubscriptionRow,
    TransactionRow,
)
from mergerepl.transactional.catalog import Distributor, Subscriber, distributor_at, shape_of
from mergerepl.transactional.command_texts import BrowsedCommand, command_texts
from mergerepl.transactional.comparison import differing
from mergerepl.transactional.distribution import distribute_one
from mergerepl.transactional.log_reader import held, log_reader
from mergerepl.transactional.procedures import OPERATIONS, custom_operations, load, skeleton
from mergerepl.transactional.publish import initialise, rows_at
from mergerepl.transactional.refusals import TransactionalUsageError
from mergerepl.transactional.scripts import batch_text, procedure_text

Root = str | os.PathLike[str]


def spark_of(given: SparkSession | None) -> Callable[[], SparkSession]:
    """Return what gives the Spark session: the one that is given, the running one or an embedded one."""

    def session() -> SparkSession:
        from mergerepl.engine import session as engine

        return given if given is not None else engine.session()

    return session


def _required(root: Root) -> Distributor:
    distributor = distributor_at(root)
    distributor.require()
    return distributor


def subscriptions_of(
    distributor: Distributor, *, subscriber: Root | None = None, publication: str | None = None
) -> list[tuple[str, SubscriptionRow]]:
    """Return publications' names with their subscriptions.

    Raises: TransactionalUsageError if one is named that is not there.
    """
    names = {row.publication_id: row.publication for row in distributor.publications()}
    wanted = None if subscriber is None else roots.parse(os.fspath(subscriber))
    found = [
        (names[row.publication_id], row)
        for row in distributor.subscriptions()
        if wanted in (None, row.subscriber) and publication in (None, names[row.publication_id])
    ]
    if not found and (subscriber is not None or publication is not None):
        known = ", ".join(row.subscriber for row in distributor.subscriptions()) or "none"
        raise TransactionalUsageError(
            f"'{distributor.root}' has no subscription of {publication or 'a publication'} for {wanted or 'anybody'}. "
            f"Subscribers known: {known}. Name one of them, or add it to the file and run `mergerepl apply FILE`."
        )
    return found


def distribute(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    skip_errors: Sequence[int] | None = None,
    procedures: Sequence[str] = (),
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> tuple[DistributionResult, ...]:
    """Run the distribution agents of a publisher: each subscription gets what the log reader has read.

    `procedures` are modules that register procedures; those that this process has registered need none.

    Raises: TransactionalError where a command cannot be applied (20598, 2627), a subscription is too old (21074) or columns
        changed (21076); OutOfReachError if a subscriber is not there; LeaseError (run again).
    """
    distributor = _required(root)
    load(procedures)
    found = []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        found.append(
            run_agent(
                distributor, name, row, spark_of(spark), skip_errors=skip_errors, lock_wait_s=lock_wait_s
            )
        )
    return tuple(found)


def run_agent(
    distributor: Distributor,
    publication: str,
    row: SubscriptionRow,
    spark: Callable[[], SparkSession],
    **options: Any,
) -> DistributionResult:
    """Run one distribution agent."""
    if not has_folder(Path(row.subscriber)):
        raise OutOfReachError(
            f"Subscriber '{row.subscriber}' of '{publication}' is not there: is it mounted? Run again when it is.",
            subscriber=row.subscriber,
        )
    with told_plainly("commands were distributed"):
        return distribute_one(distributor, row, publication, spark, **options)


def script(
    root: Root,
    *,
    article: str | None = None,
    operation: Literal["insert", "update", "delete"] | None = None,
    batch: bool = False,
    custom: bool = False,
    subscriber: Root | None = None,
) -> str:
    """Return the generated procedures of the articles as Spark SQL; `batch`: the one MERGE that stands for all three.

    `custom`: Python text to begin procedures of one's own with. The tables are those of the first subscriber, or of the one
    that is named. Starts no JVM.

    Raises: TransactionalUsageError if there is no such article.
    """
    distributor = _required(root)
    found = subscriptions_of(distributor, subscriber=subscriber)
    row = found[0][1] if found else None
    texts = []
    for each in _articles(distributor, article):
        at = Subscriber(Path(row.subscriber)) if row else Subscriber(Path("SUBSCRIBER"))
        destination = row.destination.get(each.article) if row else None
        shape = shape_of(each, destination)
        table = str(at.root / shape.destination)
        if batch:
            texts.append(batch_text(shape, table) + ";")
            continue
        for name, each_operation in OPERATIONS.items():
            command = shape.command(each_operation)
            if operation not in (None, name) or command.method == "NONE":
                continue
            if custom:
                texts.append(skeleton(shape, each_operation))
            elif each_operation not in custom_operations(shape):
                texts.append(procedure_text(shape, each_operation, table))
    return "\n\n".join(texts)


def _articles(distributor: Distributor, name: str | None) -> list[ArticleRow]:
    rows = distributor.articles()
    chosen = [row for row in rows if name in (None, row.article)]
    if not chosen:
        known = ", ".join(row.article for row in rows) or "none"
        raise TransactionalUsageError(f"There is no article '{name}'. The articles are: {known}.")
    return chosen


def browse(
    root: Root,
    *,
    article: str | None = None,
    from_seqno: str | None = None,
    through_seqno: str | None = None,
    limit: int = 20,
    spark: SparkSession | None = None,
) -> list[BrowsedCommand]:
    """Return waiting and delivered commands as text, in the form of the original; the first `limit` by their order."""
    distributor = _required(root)
    low = bytes(Lsn.parse(from_seqno)) if from_seqno else bytes(10)
    high = bytes(Lsn.parse(through_seqno)) if through_seqno else b"\xff" * 10
    wanted = {row.article_id for row in _articles(distributor, article)}
    found: list[BrowsedCommand] = []
    for shape in distributor.shapes():
        table = distributor.commands_table(shape)
        if shape.article_id in wanted and is_delta_table(table):
            rows = appended.read(spark_of(spark)(), table)
            rows = rows.where((F.col("xact_seqno") >= F.lit(low)) & (F.col("xact_seqno") <= F.lit(high)))
            found += command_texts(rows, shape, limit=limit)
    return sorted(found, key=lambda each: (each.xact_seqno, each.command_id))[:limit]


@dataclass(frozen=True)
class Pending:
    """What a subscription has not got yet. `seconds` is estimated by the last deliveries; None if there were none."""

    publication: str
    subscriber: str
    transactions: int
    commands: int
    seconds: float | None
    unread_commits: int


def pending(root: Root) -> tuple[Pending, ...]:
    """Return the undistributed commands of each subscription, by the gate, and the commits that are not read. No JVM."""
    from mergerepl.delta.log import head_version

    distributor = _required(root)
    state = read_state(distributor.log)
    unread = {
        number: head_version(distributor.root / row.source_path) - row.position
        for number, row in state.sources.items()
        if is_delta_table(distributor.root / row.source_path)
    }
    found = []
    for name, row in subscriptions_of(distributor):
        articles = distributor.articles(row.publication_id)
        mine = {each.article_id for each in articles}
        waiting = _waiting(distributor, row, mine)
        commands = sum(n for each in waiting for article, n in each.commands.items() if article in mine)
        rate = _rate(distributor, row)
        found.append(
            Pending(
                name,
                row.subscriber,
                len(waiting),
                commands,
                round(commands / rate, 1) if rate else None,
                sum(unread.get(each.source_object_id, 0) for each in articles),
            )
        )
    return tuple(found)


def position_of(row: SubscriptionRow) -> bytes:
    """Return how far a subscription is: by the subscriber itself, else what is known of it."""
    found = (
        Subscriber(Path(row.subscriber)).position(row.subscription_guid)
        if has_folder(Path(row.subscriber))
        else None
    )
    return found.transaction_timestamp if found else row.last_xact_seqno or bytes(10)


def _waiting(distributor: Distributor, row: SubscriptionRow, mine: set[int]) -> list[TransactionRow]:
    after = distributor.transactions_after(position_of(row))
    return [each for each in after if each.kind == "schema" or mine & set(each.commands)]


def _rate(distributor: Distributor, row: SubscriptionRow) -> float | None:
    rows = distributor.control.rows(
        HISTORY, where=f"agent_id = {row.agent_id}", order_limit="order by time desc limit 10"
    )
    seconds = sum(each.duration for each in rows)
    return sum(each.delivered_commands for each in rows) / seconds if seconds else None


def history(root: Root, *, limit: int = 20) -> list[Mapping[str, Any]]:
    """Return the last batches of all distribution agents, newest first. Starts no JVM."""
    distributor = _required(root)
    agents = {row.agent_id: row.subscriber for row in distributor.subscriptions()}
    rows = distributor.control.rows(HISTORY, order_limit=f"order by time desc limit {int(limit)}")
    return [
        {
            "subscriber": agents.get(row.agent_id, f"agent {row.agent_id}"),
            "time": row.time,
            "transactions": row.delivered_transactions,
            "commands": row.delivered_commands,
            "inserts": row.inserts,
            "updates": row.updates,
            "deletes": row.deletes,
            "skipped": row.skipped,
            "seconds": row.duration,
            "latency_ms": row.delivery_latency,
            "xact_seqno": str(Lsn(row.xact_seqno)),
        }
        for row in rows
    ]


def errors(root: Root, *, limit: int = 20) -> list[Mapping[str, Any]]:
    """Return the last commands that could not be applied, newest first. Starts no JVM."""
    distributor = _required(root)
    agents = {row.subscription_guid: row.subscriber for row in distributor.subscriptions()}
    rows = distributor.control.rows(
        ERRORS, order_limit=f"order by time desc, xact_seqno desc limit {int(limit)}"
    )
    return [
        {
            "time": row.time,
            "number": row.error_code,
            "text": row.error_text,
            "xact_seqno": str(Lsn(row.xact_seqno)),
            "command_id": row.command_id,
            "subscriber": agents.get(row.subscription_guid, row.subscription_guid),
            "skipped": row.is_skipped,
        }
        for row in rows
    ]


def status(root: Root) -> Mapping[str, Any]:
    """Return what a publisher publishes transactionally, and how far its subscriptions are. Starts no JVM."""
    distributor = _required(root)
    waiting = {(each.publication, each.subscriber): each for each in pending(root)}
    statuses = {INACTIVE: "inactive", ACTIVE: "active"}
    return {
        "root": str(distributor.root),
        "publications": [
            {
                "publication": row.publication,
                "articles": [
                    {
                        "article": each.article,
                        "table": each.source_object,
                        "columns": list(each.columns),
                        "filter": each.filter_clause,
                        "ins_cmd": each.ins_cmd,
                        "upd_cmd": each.upd_cmd,
                        "del_cmd": each.del_cmd,
                        "schema_version": each.schema_version,
                    }
                    for each in distributor.articles(row.publication_id)
                ],
                "subscriptions": [
                    {
                        "subscriber": each.subscriber,
                        "status": statuses.get(each.status, "subscribed"),
                        "xact_seqno": str(Lsn(position_of(each))),
                        "transactions_waiting": waiting[row.publication, each.subscriber].transactions,
                        "commands_waiting": waiting[row.publication, each.subscriber].commands,
                        "unread_commits": waiting[row.publication, each.subscriber].unread_commits,
                        "is_known_to_be_equal": each.is_equal,
                    }
                    for each in distributor.subscriptions(row.publication_id)
                ],
            }
            for row in distributor.publications()
        ],
    }


@dataclass(frozen=True)
class Validation:
    """One article at one subscriber, at the publisher's version of its last batch. `keys` are some that differ."""

    publication: str
    subscriber: str
    article: str
    publisher_rows: int
    subscriber_rows: int
    differing: int
    keys: tuple[str, ...]


def validate(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    spark: SparkSession | None = None,
) -> tuple[Validation, ...]:
    """Compare subscribers with the publisher, each at its last batch: writers need not stop.

    Raises: StoreError if the versions of that moment are gone.
    """
    distributor = _required(root)
    found = []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        at = Subscriber(Path(row.subscriber))
        position = at.position(row.subscription_guid)
        if position is None:
            continue
        session = spark_of(spark)()
        of_row = []
        with told_plainly("a subscription was validated"), lease(at.root, purpose="validate"):
            for article in distributor.articles(row.publication_id):
                shape = distributor.shape_at(article.article_id, position.transaction_timestamp)
                version = _version_at(distributor, article, position.transaction_timestamp)
                table = at.table(row, article)
                compared = differing(
                    rows_at(session, distributor.root / article.source_object, version, shape),
                    read_version(session, table, position.table_versions[article.article]),
                    shape,
                )
                of_row.append(
                    Validation(
                        name,
                        row.subscriber,
                        article.article,
                        compared.publisher_rows,
                        compared.subscriber_rows,
                        compared.count,
                        compared.keys,
                    )
                )
        found += of_row
        if not row.is_equal and not any(each.differing for each in of_row):
            distributor.save_subscription(replace(row, is_equal=True))
    return tuple(found)


def _version_at(distributor: Distributor, article: ArticleRow, seqno: bytes) -> int:
    """Return the publisher's version of an article at an LSN: that of the last transaction before, or where it begins."""
    rows = distributor.control.rows(TRANSACTIONS, where=f"scan_cycle <= {Lsn(seqno).scan_cycle}")
    commits: list[int] = [
        commit["version"]
        for row in rows
        if row.xact_seqno <= seqno
        for commit in row.commits
        if commit["source_object_id"] == article.source_object_id
    ]
    source = read_state(distributor.log).sources[article.source_object_id]
    later: list[int] = [
        commit["from_version"]
        for row in distributor.transactions_after(seqno)
        for commit in row.commits
        if commit["source_object_id"] == article.source_object_id
    ]
    if later:
        return min(later) - 1
    return max([source.position, *commits])


def reinit(
    root: Root,
    *,
    subscriber: Root | None = None,
    publication: str | None = None,
    spark: SparkSession | None = None,
) -> tuple[str, ...]:
    """Begin subscriptions again from a new snapshot. Returns the subscribers.

    The tables of a subscriber are replaced one by one; its position is moved when all are there.
    """
    distributor = _required(root)
    reader = log_reader(distributor, spark=spark, wait_s=60.0)
    done = []
    for name, row in subscriptions_of(distributor, subscriber=subscriber, publication=publication):
        with told_plainly("a subscription was reinitialized"), lease(Path(row.subscriber), purpose="reinit"):
            remove_batch(Path(row.subscriber), row.subscription_guid)
            initialise(distributor, reader, row, name)
        done.append(row.subscriber)
    return tuple(done)


def cleanup(root: Root, *, spark: SparkSession | None = None) -> Mapping[str, int]:
    """Remove commands that all active subscriptions have, and those above the longest retention.

    A subscription that lacks such commands becomes inactive first (21074). Returns how many commands and transactions went,
    and how many subscriptions became inactive. Times are those of the newest transaction, not of this machine.
    """
    distributor = _required(root)
    with held(log_reader(distributor), "transactional cleanup"):
        newest = distributor.control.rows(TRANSACTIONS, order_limit="order by xact_seqno desc limit 1")
        if not newest:
            return {"commands": 0, "transactions": 0, "inactive": 0}
        inactive = transactions = commands = 0
        bounds: list[bytes] = []
        for publication in distributor.publications():
            oldest = newest[0].commit_time - timedelta(hours=publication.max_distretention)
            delivered = newest[0].commit_time - timedelta(hours=publication.min_distretention)
            forced = _through(distributor, oldest)
            mine = {each.article_id for each in distributor.articles(publication.publication_id)}
            active = []
            for row in distributor.subscriptions(publication.publication_id):
                if row.status != ACTIVE:
                    continue
                position = position_of(row)
                lacking = [
                    each
                    for each in distributor.transactions_after(position)
                    if each.xact_seqno <= forced and (each.kind == "schema" or mine & set(each.commands))
                ]
                if lacking:
                    distributor.save_subscription(replace(row, status=INACTIVE))
                    inactive += 1
                else:
                    active.append(position)
            through = max(forced, min([*active, _through(distributor, delivered)]))
            bounds.append(through)
            for shape in distributor.shapes():
                if shape.article_id in mine:
                    commands += _removed(distributor, shape, through, spark_of(spark))
        keep = min(bounds)
        gone = [
            row
            for row in distributor.control.rows(TRANSACTIONS)
            if row.xact_seqno <= keep and row.xact_seqno < newest[0].xact_seqno
        ]
        if gone:
            transactions = len(gone)
            with distributor.writing():
                distributor.control.delete(
                    TRANSACTIONS, where=f"xact_seqno <= X'{max(r.xact_seqno for r in gone).hex()}'"
                )
    return {"commands": commands, "transactions": transactions, "inactive": inactive}


def _through(distributor: Distributor, moment: datetime) -> bytes:
    """Return the highest LSN whose transaction is older than a time."""
    rows = distributor.control.rows(TRANSACTIONS)
    return max((row.xact_seqno for row in rows if row.commit_time < moment), default=bytes(10))


def _removed(
    distributor: Distributor, shape: ArticleRow, through: bytes, spark: Callable[[], SparkSession]
) -> int:
    table = distributor.commands_table(shape)
    if not is_delta_table(table) or through == bytes(10):
        return 0
    condition = F.col("xact_seqno") <= F.lit(through)
    count = appended.read(spark(), table).where(condition).count()
    if count:
        appended.delete_where(spark(), table, condition)
    return count


def read(
    root: Root, article: str, *, spark: SparkSession | None = None, publication: str | None = None
) -> DataFrame:
    """Return an article at a subscriber as of its last complete batch: several are consistent with each other.

    Raises: TransactionalUsageError if `root` is no subscriber, or has no such article.
    """
    subscriber = Subscriber(Path(roots.existing(os.fspath(root))))
    for position in subscriber.positions():
        if publication not in (None, position.publication) or article not in position.table_versions:
            continue
        distributor = Distributor(Path(position.publisher))
        row = next(
            each
            for each in distributor.subscriptions()
            if each.subscription_guid == position.subscription_guid
        )
        of_article = next(
            each for each in distributor.articles(row.publication_id) if each.article == article
        )
        table = subscriber.table(row, of_article)
        return read_version(spark_of(spark)(), table, position.table_versions[article])
    known = ", ".join(name for each in subscriber.positions() for name in each.table_versions) or "none"
    raise TransactionalUsageError(
        f"'{subscriber.root}' receives no article '{article}'. The articles here are: {known}."
    )


def shown(root: Root, article: str, *, limit: int) -> list[Mapping[str, Any]]:
    """Return the first rows of `read`, with values as text."""
    rows = read(root, article)
    texts = with_readable(rows, rows.columns).limit(limit).collect()
    return [row.asDict() for row in texts]

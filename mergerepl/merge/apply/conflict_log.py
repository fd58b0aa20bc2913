"""Log the losers: MSmerge_conflicts_info and the conflict table of each article.

Every conflict of a staged changeset gets one row of conflicts_info and, unless the loser is a delete, its full losing
row in the article's conflict table, each once: the ids are derived from the session, the round and the row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta import appended
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import Transaction, next_transaction
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflicts_by_arrow import Conflicts, article_hash, conflict_id, holds_rowguid
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import ConflictLogging
from mergerepl.replica.application_ids import REPAIR_APP_ID, log_app_id, round_number
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.staged_rows import read_staged, staged_fields
from mergerepl.rows.images import image_type, no_names, readable
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.store.changeset import Changeset, Manifest, SideWork, staged_changesets
from mergerepl.store.location import Location
from mergerepl.systables import catalog, conflicts_info
from mergerepl.systables.conflicts_info import REASONS, ConflictType

if TYPE_CHECKING:
    import pyarrow as pa

Works = Mapping[str, SideWork]


class LoggedEnd(Protocol):
    """An end of a subscription that a logged conflict names."""

    @property
    def root(self) -> str:
        """Its folder."""
        ...

    @property
    def replid(self) -> str:
        """Its replica id."""
        ...


@dataclass(frozen=True)
class NamedEnd:
    """An end of a subscription that a logged row names."""

    root: str
    replid: str


def _side_of(manifest: Manifest) -> str:
    """Return the side that names a changeset: the side of a late round, else the publisher."""
    return PUBLISHER if manifest.publisher else SUBSCRIBER


@dataclass(frozen=True)
class ConflictLog:
    """Where the conflicts of a session and of its late rounds are logged: `replicas` are those that we hold, by side."""

    session: Changeset
    replicas: Mapping[str, Replica]
    choice: EngineChoice

    @property
    def sides(self) -> list[str]:
        """The sides that keep the publication's conflicts."""
        return {
            ConflictLogging.PUBLISHER: [PUBLISHER],
            ConflictLogging.SUBSCRIBER: [SUBSCRIBER],
            ConflictLogging.BOTH: [PUBLISHER, SUBSCRIBER],
        }[ConflictLogging(self.session.manifest.conflict_logging)]

    @property
    def late_rounds(self) -> list[Changeset]:
        """The late rounds that were staged, by number: in the order in which their conflicts are logged."""
        return sorted(staged_changesets(self.session.folder), key=lambda late: late.manifest.round)

    def log_round(self, changeset: Changeset, side: str) -> None:
        """Log the conflicts of the session, or of a late round, that one side carries out; at held replicas only.

        Each side logs the session's own conflicts; only the side of a late round logs the conflicts of that round.
        """
        is_late = changeset.manifest.round > 0
        chosen = [name for name in self.sides if name in self.replicas and (is_late or name == side)]
        self.log(changeset, chosen)

    def log(self, changeset: Changeset, sides: Iterable[str]) -> None:
        """Log the conflicts of the session, or of a late round, at these sides."""
        if not _has_conflicts(changeset):
            return
        for name in sides:
            log_conflicts(changeset, self.replicas[name], self.session.works, self.choice)


def log_given_up(spark_of: Callable[[], SparkSession], session: Changeset, publisher: Replica) -> None:
    """Log the subscriber's conflicts at the publisher, since the subscriber's side of the session is given up.

    The publisher has done its own side. The side of a late round logs that round's conflicts, also where the publisher
    keeps the conflicts.
    """
    log = _unfinished(spark_of, session, {PUBLISHER: publisher})
    rounds = [*([] if PUBLISHER in log.sides else [session]), *log.late_rounds]
    for changeset in rounds:
        log.log(changeset, [PUBLISHER])


def log_everywhere(
    spark_of: Callable[[], SparkSession], session: Changeset, replicas: Mapping[str, Replica]
) -> None:
    """Log the conflicts of a session that is given up, and of its late rounds, at the replicas that keep them.

    If none of them is in reach, log at the publisher: a copy of overwritten rows must remain.
    """
    log = _unfinished(spark_of, session, replicas)
    chosen = [name for name in log.sides if name in replicas] or [PUBLISHER]
    for changeset in (session, *log.late_rounds):
        log.log(changeset, chosen)


def _unfinished(
    spark_of: Callable[[], SparkSession], session: Changeset, replicas: Mapping[str, Replica]
) -> ConflictLog:
    spark_of = recording_jvm(spark_of, replicas.values())
    return ConflictLog(session, replicas, EngineChoice(uses_arrow=False, spark_of=spark_of))


def _has_conflicts(changeset: Changeset) -> bool:
    return any(changeset.manifest.conflicts.values())


def log_conflicts(changeset: Changeset, replica: Replica, works: Works, choice: EngineChoice) -> None:
    """Append the conflicts of a changeset that has some to the tables of one replica.

    `works` is the session's work at `publisher` and `subscriber`, to name winner and loser.
    """
    articles = {article.nickname: article for article in replica.articles}
    if changeset.manifest.round > 1:
        # From the second late round on both changes are this replica's: the places give their order, not their owner.
        works = dict.fromkeys((PUBLISHER, SUBSCRIBER), works[_side_of(changeset.manifest)])
    found = [
        _conflicts(changeset, _as_staged(replica, articles[n], changeset), works)
        for n, count in changeset.manifest.conflicts.items()
        if count
    ]
    by_arrow = choice.uses_arrow and all(conflicts.are_for_arrow() for conflicts in found)
    # The rows first: a conflict without its losing row means that the loser was a delete.
    for conflicts in found:
        failpoint("conflicts.before_rows")
        _append(
            conflicts.losing_rows() if by_arrow else None,
            partial(_losing_rows, choice, conflicts),
            replica.folder / conflicts.article.conflict_table,
            _transaction(changeset, conflicts.article.name),
            choice,
        )
        failpoint("conflicts.after_rows")
    failpoint("conflicts.before_info")
    _append(
        chain.from_iterable(conflicts.info_rows() for conflicts in found) if by_arrow else None,
        lambda: appended.union_all([_info_rows(choice, conflicts) for conflicts in found]),
        replica.folder / conflicts_info.NAME,
        _transaction(changeset, "info"),
        choice,
    )
    failpoint("conflicts.after_info")


def _as_staged(replica: Replica, article: PublishedArticle, changeset: Changeset) -> PublishedArticle:
    """Return an article with the columns of the staged rows: its own may have changed since."""
    staged = staged_fields(changeset.rows(article.nickname))
    if staged is None or staged == article.fields:
        return article
    row = next(each for each in replica.control.rows(catalog.ARTICLES) if each.nickname == article.nickname)
    version = max(n for n, each in row.definitions.items() if each.image_column.fields == staged)
    return row.published(article.publication, version)


def _append(
    of_arrow: "Iterator[pa.Table] | None",
    of_spark: Callable[[], DataFrame],
    table: Location,
    transaction: Transaction,
    choice: EngineChoice,
) -> None:
    """Append the Arrow rows, or the Spark rows if Arrow cannot make them."""
    try:
        appended.append(of_spark() if of_arrow is None else of_arrow, table, transaction)
    except NeedsSparkError as error:
        choice.fall_back(table, error)
        appended.append(of_spark(), table, transaction)


def _conflicts(changeset: Changeset, article: PublishedArticle, works: Works) -> Conflicts:
    manifest = changeset.manifest
    hash_ = article_hash(manifest.session, _side_of(manifest), manifest.round, article.nickname)
    return Conflicts(changeset, article, works, hash_, microseconds(datetime.fromisoformat(manifest.started)))


def microseconds(moment: datetime) -> int:
    """Return the time at which conflicts are resolved, in microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _transaction(changeset: Changeset, what: str) -> Transaction:
    manifest = changeset.manifest
    side = _side_of(manifest)
    app_id = log_app_id(manifest.subid, side, is_late=manifest.round > 0)
    mark = CommitMark(manifest.session, f"conflicts:{what}:{side}:{manifest.round}")
    return Transaction(app_id, round_number(manifest.number, manifest.round), mark)


def _conflicting(spark: SparkSession, of: Conflicts) -> DataFrame:
    staged = read_staged(spark, of.changeset.rows(of.article.nickname))
    of_row = conflict_id(F.col(changes.CONFLICT_HASH), query_parameter(of.article_hash, "bigint"))
    return staged.where(F.col(changes.CONFLICT_TYPE).isNotNull()).withColumn(
        conflicts_info.CONFLICT_ID, of_row
    )


def _is_failed_change() -> Column:
    return F.col(changes.CONFLICT_TYPE).isin(*conflicts_info.FAILED_CHANGES)


def _refused_by() -> Column:
    """Return the reason_code of a refused change, by the beginning of the rule in its note."""
    note = F.col(changes.NOTE)
    kinds = {"CHECK": 1, "invariant": 1, "NOT NULL": 2, "type": 3, "rule of partition": 3, "append-only": 6}
    return F.coalesce(*(F.when(note.startswith(text), code) for text, code in kinds.items()))


def losing_rows(
    rows: DataFrame, article: PublishedArticle, works: Mapping[str, LoggedEnd], resolved_at_us: int
) -> DataFrame:
    """Return the rows for an article's conflict table, from rows of `_conflicting`."""
    fields = zip(article.columns, article.fields, strict=True)
    loser_id = _by_outcome(works[SUBSCRIBER].replid, works[PUBLISHER].replid)
    return rows.where(~F.col(f"{changes.LOSER}.{changes.DELETED}")).select(
        *(F.col(f"{changes.LOSER}.{changes.ROW}.{field}").alias(name) for name, field in fields),
        *([] if holds_rowguid(article) else [F.col(changes.ROWGUID)]),
        _resolved_at(resolved_at_us).alias(conflicts_info.MODIFIED_DATE),
        loser_id.alias(conflicts_info.ORIGIN_DATASOURCE_ID),
        conflicts_info.CONFLICT_ID,
    )


def _losing_rows(choice: EngineChoice, of: Conflicts) -> DataFrame:
    return losing_rows(_conflicting(choice.spark, of), of.article, of.works, of.resolved_at_us)


def _info_rows(choice: EngineChoice, of: Conflicts) -> DataFrame:
    rows, session = _conflicting(choice.spark, of), of.changeset.manifest.session
    return info_rows(rows, of.article, of.works, of.resolved_at_us, session)


def _by_outcome(if_publisher_wins: str, if_subscriber_wins: str) -> Column:
    return F.when(F.col(changes.PUBLISHER_WINS), F.lit(if_publisher_wins)).otherwise(
        F.lit(if_subscriber_wins)
    )


def _resolved_at(resolved_at_us: int) -> Column:
    return F.timestamp_micros(query_parameter(resolved_at_us, "bigint"))


def info_rows(
    rows: DataFrame,
    article: PublishedArticle,
    works: Mapping[str, LoggedEnd],
    resolved_at_us: int,
    session: str,
) -> DataFrame:
    """Return the rows for MSmerge_conflicts_info, from rows of `_conflicting`."""
    image = image_type(rows, changes.ROW)
    reason = F.element_at(
        F.create_map(*(F.lit(part) for kind, text in REASONS.items() for part in (int(kind), text))),
        F.col(changes.CONFLICT_TYPE),
    )
    is_rejected = F.col(changes.CONFLICT_TYPE) == int(ConflictType.RESOLUTION)
    is_undone = F.col(changes.RESOLVER) == conflicts_info.COMPENSATION
    undone = F.when(is_undone, ". The row goes back to what the publisher has.").otherwise("")
    reason = (
        F.when(_is_failed_change(), F.concat(reason, F.lit(" "), F.col(changes.NOTE), undone))
        .when(is_rejected, F.coalesce(changes.NOTE, reason))
        .otherwise(reason)
    )
    key: Sequence[Column] = [
        part
        for name, field in zip(article.identity, article.identity_fields, strict=True)
        for part in (F.lit(name), readable(F.col(f"{changes.ROW}.{field}"), image[field].dataType))
    ]
    values = {
        "tablenick": F.lit(article.nickname),
        "rowguid": F.col(changes.ROWGUID),
        "origin_datasource": _by_outcome(works[SUBSCRIBER].root, works[PUBLISHER].root),
        "conflict_type": F.col(changes.CONFLICT_TYPE),
        "reason_code": F.when(_is_failed_change(), _refused_by()).otherwise(F.col(changes.CONFLICT_TYPE)),
        "reason_text": reason,
        "pubid": F.lit(article.pubid),
        "MSrepl_create_time": _resolved_at(resolved_at_us),
        "origin_datasource_id": _by_outcome(works[SUBSCRIBER].replid, works[PUBLISHER].replid),
        "conflict_id": F.col(conflicts_info.CONFLICT_ID),
        "winner_datasource_id": _by_outcome(works[PUBLISHER].replid, works[SUBSCRIBER].replid),
        "winner_datasource": _by_outcome(works[PUBLISHER].root, works[SUBSCRIBER].root),
        "losing_lineage": F.col(f"{changes.LOSER}.{changes.LINEAGE}"),
        "winning_lineage": F.col(f"{changes.WINNER}.{changes.LINEAGE}"),
        "losing_priority": F.col(f"{changes.LOSER}.{changes.PRIORITY}"),
        "winning_priority": F.col(f"{changes.WINNER}.{changes.PRIORITY}"),
        "columns": F.col(changes.CONFLICT_COLUMNS),
        "session_id": F.lit(session),
        "rowkey": F.create_map(*key),
        "resolver": F.col(changes.RESOLVER),
        "made_columns": F.col(changes.MADE_COLUMNS),
        "note": F.col(changes.NOTE),
        "article_version": F.lit(article.version),
        "unknown": F.col(f"{changes.LOSER}.{changes.UNKNOWN}"),
    }
    types = {column.name: column.type for column in conflicts_info.TABLE.columns}
    return rows.select(*(value.cast(types[name]).alias(name) for name, value in values.items()))


def rejected(
    rows: DataFrame,
    *,
    row: str,
    loser: Column,
    winner: Column,
    names: Column,
    publisher_wins: bool,
    resolver: str,
    note: Column,
    seed: str,
) -> DataFrame:
    """Return rows that lost to a rule, not to another change (type 11), as `losing_rows` and `info_rows` read them.

    `row` is the column of the whole row, `names` are the columns that lost. The ids follow from `seed` and the rowguid.
    """
    values = {
        changes.ROWGUID: F.col(changes.ROWGUID),
        changes.ROW: F.col(row),
        changes.CONFLICT_TYPE: F.lit(int(ConflictType.RESOLUTION)),
        changes.PUBLISHER_WINS: F.lit(publisher_wins),
        changes.LOSER: loser,
        changes.WINNER: winner,
        changes.CONFLICT_COLUMNS: F.coalesce(names, no_names()),
        changes.RESOLVER: F.lit(resolver),
        changes.MADE_COLUMNS: F.lit(None).cast("array<string>"),
        changes.NOTE: note,
        conflicts_info.CONFLICT_ID: F.lower(F.lpad(F.hex(F.xxhash64(F.lit(seed), changes.ROWGUID)), 16, "0")),
    }
    return rows.select(*(value.alias(name) for name, value in values.items()))


def append_conflicts(spark: SparkSession, table: Location, rows: DataFrame, mark: CommitMark) -> None:
    """Append the rows that a table lacks, by their conflict ids: a run that died may have appended some."""
    known = appended.read(spark, table, columns=[conflicts_info.CONFLICT_ID]).select(
        conflicts_info.CONFLICT_ID
    )
    new = rows.join(known, on=conflicts_info.CONFLICT_ID, how="left_anti").select(*rows.columns)
    transaction = next_transaction(table, REPAIR_APP_ID, mark)
    appended.append(new, table, transaction, even_if_empty=False)

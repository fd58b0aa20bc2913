"""Compare the rows of subscribers with the publisher's rows at their positions; writers need not stop.

A table is compared with its expected rows: the publisher's, in the form that the article sends.

| the subscriber lacks | has additionally | has with other values | |
|---|---|---|---|
| `missing` | `extra` | `different` | `twice`: a key has several rows |

Some rows are unknown, since no command describes their changes. These kinds are counted separately and never differ.

| operation | without commands (NONE), or by a procedure that did not call `call.default()` |
|---|---|
| insert | `missing` |
| update | `different`; where updates of keys are sent as updates, `missing` and `extra`, too |
| delete | `extra` |
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.batch_end import left_at
from mergerepl.delta.tables import TableState, head_version, is_delta_table, open_table, read_version
from mergerepl.errors import StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.results import ArticleValidation, KeyDifference
from mergerepl.model.tracking_options import SYSTEM_PREFIX
from mergerepl.model.words import key_text
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, KEY_PREFIX, MISSING, TWICE, compared_rows
from mergerepl.rows.images import readable
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.systables.transactional import TRANSACTIONS, PositionRow, SubscriptionRow, TransactionRow
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import KEYS, Method, Operation
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.followed_columns import CannotFollowError, following
from mergerepl.transactional.position import begun_plan, refuse_copy, with_tables_at
from mergerepl.transactional.refusals import to_run
from mergerepl.transactional.row_rules import misfits, narrower_columns
from mergerepl.transactional.snapshot import rows_at


@dataclass(frozen=True)
class Expected:
    """What a subscriber's table of an article should hold: rows of a version of its source, in one shape."""

    article: Shape
    source: Location
    version: int
    table: Location
    unknown: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None
    is_unfinished: bool = False
    """A batch that died wrote this table before the position was saved."""

    @property
    def can_be_compared(self) -> bool:
        """Whether there is a table, with the article's columns."""
        return is_delta_table(self.table) and not lacking_columns(self.article, open_table(self.table))

    def compared(self, spark: SparkSession, head: int) -> DataFrame:
        """Return every key of both sides once, of the subscriber's table at a version."""
        return compared(
            rows_at(spark, self.source, self.version, self.article),
            read_version(spark, self.table, head),
            self.article,
            open_table(self.table, head),
        )

    def gone(self, error: StoreError) -> str | None:
        """Return why the publisher's version cannot be read any more, if an error means that; else None."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = gone_reason(cause)
        if reason is None or str(self.table) in str(cause):
            return None
        return (
            f"Version {self.version} of '{self.source}', which the subscriber has, is gone: {reason}. Run "
            "the log reader and the distribution agent: after the next batch a newer version is compared."
        )


def expected_of(
    distributor: DistributionStore, row: SubscriptionRow, position: PositionRow
) -> list[Expected]:
    """Return the expected contents of a subscription's tables. The caller holds the subscriber."""
    at = distributor.subscriber(row)
    plan = begun_plan(distributor, row, position)
    # In this order: later commands of the log reader lie after the positions.
    sources = read_state(distributor.log).sources
    gate = distributor.control.rows(TRANSACTIONS)
    found = []
    for newest in distributor.articles(row.publication_id):
        table = at.table(row, newest)
        seqno, is_unfinished = position.transaction_timestamp, False
        if plan is not None and plan.is_written(row.subscription_guid, newest.article_id, table):
            seqno, is_unfinished = plan.through_seqno, True
        article = distributor.shape_at(newest.article_id, seqno)
        source = sources[article.source_object_id]
        by_procedure = [each.partition(":") for each in position.by_procedure]
        replaced = {
            operation for article_id, _, operation in by_procedure if article_id == str(article.article_id)
        }
        found.append(
            Expected(
                article,
                distributor.root / article.source_object,
                _version_at(gate, article, seqno, source.position),
                table,
                unknown_kinds(article, replaced),
                _refused(
                    distributor, row, article, table, source.reason if source.status != "active" else None
                ),
                is_unfinished,
            )
        )
    return found


def _refused(
    distributor: DistributionStore, row: SubscriptionRow, article: Shape, table: Location, paused: str | None
) -> str | None:
    """Return why an article gets no more commands; None if it does."""
    if paused is not None:
        return f"The log of its table is not read: {paused}"
    reinit = to_run("reinit", distributor.root, at=row.subscriber)
    if not is_delta_table(table):
        return f"'{table}' is no Delta table. Begin again with {reinit}."
    state = open_table(table)
    if lacking := lacking_columns(article, state):
        return (
            f"'{table}' has no column '{lacking[0]}' any more: every batch fails. Add it (its values are written by "
            f"{to_run('repair', distributor.root, at=row.subscriber)}), or begin again with {reinit}."
        )
    for name, has in narrower_columns(state, article).items():
        return (
            f"Column '{name}' of '{table}' is {has.upper()} and cannot hold every value: every batch fails. Give it the "
            f"publisher's type, or begin again with {reinit}."
        )
    later = [
        each
        for each in distributor.shapes()
        if each.article_id == article.article_id and each.first_seqno > article.first_seqno
    ]
    if not later:
        return None
    first = min(each.first_seqno for each in later)
    shape = max((each for each in later if each.first_seqno == first), key=lambda each: each.schema_version)
    try:
        following(state, *distributor.changed_at(shape))
    except CannotFollowError as error:
        return (
            f"The publisher's columns changed ({shape.schema_text}), and no sync goes past transaction "
            f"{Lsn(shape.first_seqno)} (21076): {error.why}. Begin again with {reinit}."
        )
    return None


def validate_one(
    distributor: DistributionStore,
    publication: str,
    row: SubscriptionRow,
    spark: SparkSession,
    tables: Collection[str] = (),
) -> list[ArticleValidation]:
    """Compare one subscription (`tables`: these articles alone). The caller holds the subscriber.

    A difference is recorded at the subscription. Equality is recorded only if all its articles were compared.
    """
    at = distributor.subscriber(row)
    position = at.position(row.subscription_guid)
    assert position is not None
    # The marks that a copy would leave hide other writers' changes from the publisher.
    refuse_copy(distributor, row, position)
    found, left = [], {}
    expected = expected_of(distributor, row, position)
    chosen = [each for each in expected if not tables or each.article.article in tables]
    for each in chosen:
        head = head_version(each.table) if is_delta_table(each.table) else -1
        one = _validation(publication, row, each, spark, head)
        found.append(one)
        if one.ok and not each.is_unfinished:
            # Other writers' changes are explained: the table is as a batch would have left it.
            left[each.article.article] = left_at(each.table, head)
    if (now := with_tables_at(position, left)) != position:
        at.save(now)
    is_equal = all(each.ok for each in found)
    if not is_equal or len(chosen) == len(expected):
        distributor.change_subscription(row.subscription_guid, is_equal=is_equal)
    return found


def _validation(
    publication: str, row: SubscriptionRow, expected: Expected, spark: SparkSession, head: int
) -> ArticleValidation:
    article, found, not_compared, error = expected.article, Difference(0, 0), [], expected.refused
    if head >= 0 and not lacking_columns(article, state := open_table(expected.table, head)):
        try:
            with plain_errors("a subscription was validated"):
                found = differing(expected.compared(spark, head), article, expected.unknown)
        except StoreError as raised:
            if (error := expected.gone(raised)) is None:
                raise
        not_compared = [
            f"{_SHORT[kind]} rows: {why}"
            + (f" (now {found.unknown[kind]:,})" if kind in found.unknown else "")
            for kind, why in expected.unknown.items()
        ]
        not_compared += [f"column {name}: it is the subscriber's own" for name in own_columns(article, state)]
    return ArticleValidation(
        article.article,
        "checksum",
        found.publisher_rows,
        found.subscriber_rows,
        found.count,
        found.examples,
        publication=publication,
        error=None if error is None else {"message": error, "transient": False},
        subscriber=row.subscriber,
        not_compared=tuple(not_compared),
    )


def _version_at(gate: Sequence[TransactionRow], article: Shape, seqno: bytes, position: int) -> int:
    """Return the publisher's version of an article at an LSN: that before the next transaction, else the last one read."""
    before: list[int] = []
    later: list[int] = []
    for row in gate:
        of_article = [each for each in row.commits if each["source_object_id"] == article.source_object_id]
        if row.xact_seqno <= seqno:
            before += [each["version"] for each in of_article]
        else:
            later += [each["from_version"] for each in of_article]
    return min(later) - 1 if later else max([position, *before])


SHOWN = 20

_SHORT = {MISSING: "missing", EXTRA: "extra", DIFFERENT: "different", TWICE: "twice"}
_NAMES = {**_SHORT, MISSING: "missing_at_subscriber", EXTRA: "missing_at_publisher"}
"""The kinds as results name them."""
_CHAR = re.compile(r"char\((\d+)\)")


@dataclass(frozen=True)
class Difference:
    """The numbers of differing keys by kind, and some of the keys; `unknown`: rows that cannot be known."""

    publisher_rows: int
    subscriber_rows: int
    counts: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[KeyDifference, ...] = ()

    @property
    def count(self) -> int:
        """The number of keys that differ."""
        return sum(self.counts.values())

    @property
    def shown(self) -> str:
        """Some keys with their kind."""
        return "; ".join(
            f"{key_text(each.key)} ({each.kind.replace('_', ' ')})" for each in self.examples[:3]
        )


def unknown_kinds(article: Shape, by_procedure: Collection[str] = ()) -> dict[str, str]:
    """Return the kinds of differences that commands cannot rule out, each with the reason.

    `by_procedure` are the operations whose rows custom procedures made differently from the generated ones.
    """
    found: dict[str, str] = {}
    for operation in Operation:
        command = article.command(operation)
        if command.method is Method.NONE:
            why = f"{KEYS[operation]} is NONE"
        elif operation in by_procedure:
            why = f"a procedure wrote other rows than {KEYS[operation]} {command.method} sends"
        else:
            continue
        moves = (MISSING, EXTRA) if article.singleton_key_updates else ()
        kinds = {
            Operation.INSERT: (MISSING,),
            Operation.UPDATE: (DIFFERENT, *moves),
            Operation.DELETE: (EXTRA,),
        }
        for kind in kinds[operation]:
            found.setdefault(kind, why)
    return found


def lacking_columns(article: Shape, table: TableState) -> list[str]:
    """Return the columns of an article that a subscriber's table lacks."""
    return [name for name, has in misfits(table, article).items() if not has]


def own_columns(article: Shape, table: TableState) -> list[str]:
    """Return the columns of a subscriber's table that the article does not have: they are never compared."""
    known = {name.lower() for name in article.columns}
    names = (each["name"] for each in table.fields)
    return [
        name for name in names if name.lower() not in known and not name.lower().startswith(SYSTEM_PREFIX)
    ]


def compared(publisher: DataFrame, subscriber: DataFrame, article: Shape, table: TableState) -> DataFrame:
    """Return every key of both sides once (`compared_rows`), the publisher's values as the table stores them."""
    types = {each.name.lower(): each.dataType.simpleString() for each in subscriber.schema}

    def stored(name: str) -> Column:
        value = F.col(quote(name))
        if publisher.schema[name].dataType.simpleString() != types[name.lower()]:
            value = value.try_cast(types[name.lower()])
        if padded := _CHAR.fullmatch(table.declared_lengths(name)):
            value = F.when(F.length(value) < int(padded[1]), F.rpad(value, int(padded[1]), " ")).otherwise(
                value
            )
        return F.nullif(value, F.lit("")) if table.keeps_empty_as_null(name) else value

    rows = publisher.select(*(stored(name).alias(name) for name in article.columns))
    return compared_rows(rows, subscriber, article.columns, article.key_columns)


def differing(rows: DataFrame, article: Shape, unknown: Collection[str] = ()) -> Difference:
    """Return the differences among the rows of `compared`."""
    is_of = {kind: F.col("kind") == kind for kind in _NAMES}
    counted = (
        rows.agg(
            F.count("ours").alias("p"),
            F.sum("times").alias("s"),
            *(F.count_if(each).alias(kind) for kind, each in is_of.items()),
        )
        .collect()[0]
        .asDict()
    )
    by_kind = {kind: counted[kind] for kind in is_of if counted[kind]}
    counts = {kind: n for kind, n in by_kind.items() if kind not in unknown}
    examples = tuple(shown_keys(rows, article, list(counts))) if counts else ()
    left = {kind: n for kind, n in by_kind.items() if kind in unknown}
    return Difference(counted["p"], counted["s"] or 0, counts, left, examples)


def shown_keys(rows: DataFrame, article: Shape, kinds: Collection[str]) -> list[KeyDifference]:
    """Return the first SHOWN keys of these kinds, by key."""
    names = [f"{KEY_PREFIX}{i}" for i, _ in enumerate(article.key_columns)]
    chosen = rows.where(F.col("kind").isin(list(kinds)))
    texts = [readable(F.col(name), rows.schema[name].dataType).alias(f"t{i}") for i, name in enumerate(names)]
    found = chosen.orderBy(*names).limit(SHOWN).select(*texts, "kind").collect()
    return [
        KeyDifference(
            {column: row[f"t{i}"] for i, column in enumerate(article.key_columns)}, _NAMES[row["kind"]]
        )
        for row in found
    ]

"""Classify each change by the other side's metadata of the same row: verdict and action (sp_MSgetmetadata).

Merge session step: after enum_changes of both sides, before conflict detection. Decision table: merge_replication.md 2.8.

A change that the other side has received is part of the sender's own version of the row. So for unfiltered articles the
two enumerations are enough (decisions/0004). With filters, the destination may change a row outside of its partition, so
its metadata of each sent row is compared as well.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql.types import StructType

from mergerepl import changes
from mergerepl.changes import (
    ARTICLE,
    BORN_GENERATION,
    DELETED,
    FLOOR,
    FRESH_AFTER_OF,
    GENERATION,
    KEYS,
    LINEAGE,
    OTHER_SIDE,
    PRIORITY,
    PUBLISHER,
    SENT,
    STATE_COLUMNS,
    SUBSCRIBER,
    TABLENICK,
    UPLOADED_PRIORITY,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import no_names
from mergerepl.spark.expression_cost import parameter_column, query_parameter

_KNOWS = {PUBLISHER: "publisher_knows", SUBSCRIBER: "subscriber_knows"}
_BROUGHT_BY = {PUBLISHER: Verdict.DOWNLOAD, SUBSCRIBER: Verdict.UPLOAD}


def get_metadata(
    at_publisher: DataFrame | None,
    at_subscriber: DataFrame | None,
    articles: Collection[ArticleTerms],
    terms: SessionTerms,
    *,
    is_written_out: bool = False,
    sends_rows: bool = False,
) -> DataFrame:
    """Return PAIRS: each row with both sides' changes (or NULL), its verdict, and the actions of both sides.

    A side that knows the other's version (its lineage covers it) is sent; equal lineages are known; neither covering the
    other is a conflict candidate.

    The other columns are the content of a row: its encoded fields where all articles are decided together, the typed row
    for a single article, or if only one side changed it.

    Args:
        at_publisher: Changes the subscriber has not seen, with tablenick, or None.
        at_subscriber: Changes the publisher has not seen, with tablenick, or None.
        articles: All articles of the rows.
        terms: Directions, starts and numbers of the session.
        is_written_out: Whether lineages are compared by compiled code (`rows.nested.Fields`), for large numbers of rows.
        sends_rows: Whether `sent` has the typed row; elsewhere `conflict` chooses the values of a row.

    Returns: tablenick, rowguid, publisher, subscriber, verdict, sent, uploaded_priority, the actions and generations of
        both sides, article.
    """
    at = {PUBLISHER: at_publisher, SUBSCRIBER: at_subscriber}
    there = [side for side in (PUBLISHER, SUBSCRIBER) if at[side] is not None]
    if not there:
        raise ValueError("nothing to classify")
    pairs = _paired(at)
    pairs = pairs.withColumn(ARTICLE, article_terms(articles, TABLENICK))
    if len(there) == 1:
        pairs = pairs.withColumn(VERDICT, F.lit(_BROUGHT_BY[there[0]].value))
    else:
        knows, verdict = _comparison(is_written_out)
        # As columns they are computed once.
        pairs = pairs.withColumns(knows).withColumn(VERDICT, verdict).drop(*knows)
    return _with_actions(pairs, terms, content=[changes.ROW] if sends_rows else [])


def _paired(at: Mapping[str, DataFrame | None]) -> DataFrame:
    """Return the changes of both sides joined."""
    frames = {side: _as_struct(rows, side) for side, rows in at.items() if rows is not None}
    if len(frames) == 2:
        return frames[PUBLISHER].join(frames[SUBSCRIBER], on=list(KEYS), how="full_outer")
    ((side, pairs),) = frames.items()
    return pairs.withColumn(OTHER_SIDE[side], F.lit(None).cast(pairs.schema[side].dataType))


def _as_struct(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(*KEYS, F.struct(*(each for each in rows.columns if each not in KEYS)).alias(name))


@cached
def _comparison(is_written_out: bool) -> tuple[dict[str, Column], Column]:
    """Return by side whether it knows the other's version; and the verdict."""

    def floor_of(side: str) -> Column:
        terms = (parameter_column(f"{ARTICLE}.{name}") for name in (FRESH_AFTER_OF[side], FLOOR))
        return lineage.known_floor(F.col(f"{side}.{BORN_GENERATION}"), *terms)

    def covers(side: str) -> Column:
        own, other = F.col(f"{side}.{LINEAGE}"), F.col(f"{OTHER_SIDE[side]}.{LINEAGE}")
        return lineage.covers(own, other, floor=floor_of(side), is_written_out=is_written_out)

    def knows(side: str) -> Column:
        return F.col(_KNOWS[side])

    def is_another(side: str) -> Column:
        born, fresh_after = (
            F.col(f"{side}.{BORN_GENERATION}"),
            parameter_column(f"{ARTICLE}.{FRESH_AFTER_OF[side]}"),
        )
        return lineage.is_another_row(
            born, fresh_after, *(F.col(f"{each}.{DELETED}") for each in (side, OTHER_SIDE[side]))
        )

    verdict = (
        F.when(F.col(PUBLISHER).isNull(), Verdict.UPLOAD.value)
        .when(F.col(SUBSCRIBER).isNull(), Verdict.DOWNLOAD.value)
        .when(knows(PUBLISHER) & knows(SUBSCRIBER), Verdict.KNOWN.value)
        .when(knows(PUBLISHER) & ~is_another(PUBLISHER), Verdict.DOWNLOAD.value)
        .when(knows(SUBSCRIBER) & ~is_another(SUBSCRIBER), Verdict.UPLOAD.value)
        .otherwise(Verdict.CANDIDATE.value)
    )
    return {_KNOWS[side]: covers(side) for side in OTHER_SIDE}, verdict


def _with_actions(pairs: DataFrame, terms: SessionTerms, *, content: Sequence[str]) -> DataFrame:
    is_upload, is_download = (F.col(VERDICT) == each.value for each in (Verdict.UPLOAD, Verdict.DOWNLOAD))
    to_publisher, to_subscriber = is_upload & F.lit(terms.upload), is_download & F.lit(terms.download)
    numbers = terms.publisher_generations, terms.subscriber_generations
    values = _sent(terms.client_subscription and terms.upload, tuple(content)) | {
        changes.PUBLISHER_ACTION: F.when(to_publisher, _action(SUBSCRIBER, start=terms.upload_start)),
        changes.PUBLISHER_GENERATION: F.when(to_publisher, _received(SUBSCRIBER, numbers[0])),
        changes.SUBSCRIBER_ACTION: F.when(to_subscriber, _action(PUBLISHER, start=terms.download_start)),
        changes.SUBSCRIBER_GENERATION: F.when(to_subscriber, _received(PUBLISHER, numbers[1])),
    }
    return pairs.withColumns(values)


@cached
def _sent(is_clients_upload: bool, content: tuple[str, ...]) -> dict[str, Column]:
    is_upload, is_download = (F.col(VERDICT) == each.value for each in (Verdict.UPLOAD, Verdict.DOWNLOAD))
    uploaded_priority = _uploaded_priority(is_clients_upload)

    def state(side: str, priority: Column) -> Column:
        values = {name: F.col(f"{side}.{name}") for name in (*STATE_COLUMNS, *content)} | {PRIORITY: priority}
        return F.struct(*(value.alias(name) for name, value in values.items()))

    sent = F.when(is_upload, state(SUBSCRIBER, uploaded_priority)).when(
        is_download, state(PUBLISHER, F.col(f"{PUBLISHER}.{PRIORITY}"))
    )
    return {SENT: sent, UPLOADED_PRIORITY: uploaded_priority}


def one_sided(pairs: DataFrame) -> DataFrame:
    """Return RESOLVED of the typed rows that are sent unchanged, in the directions that the session runs.

    Reads: PAIRS with `row`.
    """
    state = pairs.schema[SENT].dataType
    assert isinstance(state, StructType)
    sent = pairs.where(F.coalesce(changes.PUBLISHER_ACTION, changes.SUBSCRIBER_ACTION).isNotNull())
    flat = sent.select(*KEYS, VERDICT, f"{SENT}.*", *changes.ACTION_COLUMNS)
    return flat.withColumns(no_conflict(state)).select(*changes.RESOLVED_COLUMNS)


def no_conflict(state: StructType) -> dict[str, Column]:
    """Return RESOLVED's conflict columns for a row without a conflict. `state` has the types of metadata and `row`."""
    nothing = F.lit(None)
    winner = StructType([state[name] for name in changes.WINNER_COLUMNS])
    loser = StructType([state[name] for name in (*changes.LOSER_COLUMNS, changes.ROW)])
    return {
        changes.CONFLICT_TYPE: nothing.cast("int"),
        changes.CONFLICT_COLUMNS: no_names(),
        changes.PUBLISHER_WINS: nothing.cast("boolean"),
        changes.RESOLVER: nothing.cast("string"),
        changes.MADE_COLUMNS: nothing.cast("array<string>"),
        changes.NOTE: nothing.cast("string"),
        changes.LOSER: nothing.cast(loser),
        changes.WINNER: nothing.cast(winner),
    }


def _uploaded_priority(is_clients_upload: bool) -> Column:
    """Return the priority of the subscriber's change once the publisher holds it.

    A client's own change (0.0) then has the publisher's priority. A change of another replica that a client holds keeps
    its priority, if that is above 0.
    """
    priority = F.col(f"{SUBSCRIBER}.{PRIORITY}")
    if is_clients_upload:
        return F.when(priority > 0, priority).when(priority.isNotNull(), F.lit(PUBLISHER_PRIORITY))
    return priority


def _action(source: str, *, start: int) -> Column:
    """Return the action of a change at a side that has nothing newer: an insert if that side cannot have the row."""
    born_after_start = F.col(f"{source}.{BORN_GENERATION}") > query_parameter(start, "bigint")
    was_deleted = F.coalesce(F.col(f"{OTHER_SIDE[source]}.{DELETED}"), F.lit(False))
    return (
        F.when(F.col(f"{source}.{DELETED}"), Action.DELETE.value)
        .when(F.coalesce(born_after_start, F.lit(False)) | was_deleted, Action.INSERT.value)
        .otherwise(Action.UPDATE.value)
    )


def _received(source: str, numbers: Mapping[int, int]) -> Column:
    """Return the destination's number of a change's generation, or NULL."""
    if not numbers:
        return F.lit(None).cast("bigint")
    keys = F.array(*(F.lit(number).cast("bigint") for number in numbers))
    values = F.array(*(F.lit(number).cast("bigint") for number in numbers.values()))
    return F.try_element_at(F.map_from_arrays(keys, values), F.col(f"{source}.{GENERATION}"))


def article_terms(articles: Iterable[ArticleTerms], tablenick: str) -> Column:
    """Return the terms of the article that a column names, as a struct with the fields of ArticleTerms but `rejects`.

    The caller chooses the articles of a query by `rejects`. The struct is looked up in a small table of constants. For a
    single article the terms are constants: Spark then removes unneeded parts of the query.
    """
    articles = list(articles)
    if len(articles) == 1:
        return _terms_struct(articles[0])
    rows = [part for each in articles for part in (F.lit(each.tablenick), _terms_struct(each))]
    return F.try_element_at(F.create_map(*rows), F.col(tablenick))


def _terms_struct(article: ArticleTerms) -> Column:
    numbers = {
        "floor": article.floor,
        "clock": article.clock,
        "resolved_at_publisher": article.resolved_at_publisher,
        "resolved_at_subscriber": article.resolved_at_subscriber,
        "publisher_fresh_after": article.publisher_fresh_after,
        "subscriber_fresh_after": article.subscriber_fresh_after,
    }
    return F.struct(
        *_properties(article.column_tracking, article.by_columns, article.whole_rows),
        *_rules(article.resolver, article.update_delete, article.made_columns, article.clashing_columns),
        _names(article.names),
        _named_fields(article.named_fields),
        *(F.lit(number).cast("bigint").alias(name) for name, number in numbers.items()),
    )


@cached
def _properties(column_tracking: bool, by_columns: bool, whole_rows: bool) -> tuple[Column, ...]:
    return (
        F.lit(column_tracking).alias("column_tracking"),
        F.lit(by_columns).alias("by_columns"),
        F.lit(whole_rows).alias("whole_rows"),
    )


@cached
def _rules(
    resolver: str, update_delete: str, made_columns: tuple[str, ...], clashing_columns: tuple[str, ...]
) -> tuple[Column, ...]:
    return (
        F.lit(resolver).alias("resolver"),
        F.lit(update_delete).alias("update_delete"),
        _texts(made_columns).alias("made_columns"),
        _texts(clashing_columns).alias("clashing_columns"),
    )


@cached
def _names(names: tuple[str | None, ...]) -> Column:
    return _texts(names).alias("names")


@cached
def _named_fields(fields: tuple[str, ...]) -> Column:
    return _texts(fields).alias("named_fields")


def _texts(texts: Iterable[str | None]) -> Column:
    return F.array(*(F.lit(text) for text in texts)).cast("array<string>")

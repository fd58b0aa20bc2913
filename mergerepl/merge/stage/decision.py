"""The decision of a session: the changes of both sides, classified, detected and resolved in one plan.

Rows of all articles enter as arrays of encoded fields, with the article's number as a column; staging joins the outcome
to the typed rows (decisions/0010). An article of many rows has a plan of its own, which carries the typed rows
(decisions/0024).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from conflict.ancestor import ANCESTOR, ancestors
from conflict.detect import detect
from conflict.merge_columns import PUBLISHER_ROW, SUBSCRIBER_ROW, resolved_rows
from conflict.resolve import acted_on, resolve, with_rejected, without_equal
from conflict.resolvers.registry import resolver_of
from enumeration.get_metadata import get_metadata, one_sided
from mergerepl.changes import (
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    ENCODED_COLUMNS,
    FIELDS,
    GENERATION,
    LINEAGE,
    OTHER_SIDE,
    PUBLISHER,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TABLENICK,
    TOMBSTONE_TYPE,
    UNKNOWN,
    ancestor_column,
    values_column,
)
from mergerepl.frames import DataFrame, F
from mergerepl.merge.stage.article import Enumerated, side_versions
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, resolver_info
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.encodings import encoded_fields
from mergerepl.rows.images import image_type, no_fields
from mergerepl.rows.nested import INTERPRETED, Fields
from mergerepl.spark.in_memory import Kept, in_one_task, is_for_one_task
from mergerepl.systables.tombstone import TombstoneType

Answered = Callable[[DataFrame, Sequence[PublishedArticle]], DataFrame]
"""Gives detected rows with the answers to the conflicts of some articles (`conflict.resolvers.custom.with_answers`)."""


@dataclass(frozen=True)
class Changed:
    """The changes of one article on both sides.

    CHANGES (None without changes), and the ancestors of rows that both send. They are at most `rows` rows; None if
    unknown but few. `ancestors` is from `conflict.ancestor.ancestors`; None if the resolver needs none, or in a late round.
    """

    article: PublishedArticle
    terms: ArticleTerms
    at_publisher: DataFrame | None
    at_subscriber: DataFrame | None
    rows: int | None
    ancestors: DataFrame | None = None

    @property
    def has_any(self) -> bool:
        """True if a side sends changes."""
        return self.at_publisher is not None or self.at_subscriber is not None

    @property
    def has_many(self) -> bool:
        """True if the rows are known to be more than one task compares."""
        return self.rows is not None and not is_for_one_task(self.rows)

    @property
    def is_contested(self) -> bool:
        """True if both sides send changes, so that each row needs a decision."""
        return self.at_publisher is not None and self.at_subscriber is not None


@dataclass(frozen=True)
class Decision:
    """DECIDED of contested articles: one frame for all with few rows, and one with typed rows for each other article."""

    of_few: DataFrame | None
    of_many: Mapping[int, DataFrame]


def decided(
    changed: Sequence[Changed], terms: SessionTerms, kept: Kept, *, answered: Answered | None = None
) -> Decision:
    """Decide the contested articles.

    `kept` holds the decision, which each article reads. `answered` adds the answers of the agent's own resolvers.

    Raises: UnknownResolverError.
    """
    contested = [each for each in changed if each.is_contested]
    few = [each for each in contested if not each.has_many]
    return Decision(
        _decided(few, terms, kept, answered) if few else None,
        {
            each.article.nickname: _decided([each], terms, kept, answered, with_rows=True)
            for each in contested
            if each.has_many
        },
    )


def _decided(
    contested: Sequence[Changed],
    terms: SessionTerms,
    kept: Kept,
    answered: Answered | None,
    *,
    with_rows: bool = False,
) -> DataFrame:
    decide = resolver_of((each.article, each.terms) for each in contested)
    rows = rows_of(contested)
    fields = _written_out(contested[0]) if with_rows else INTERPRETED
    content = partial(encoded, fields=fields, with_rows=with_rows)
    sides = (
        [content(each.at_publisher, each.article) for each in contested],
        [_with_ancestors(content(each.at_subscriber, each.article), each, rows) for each in contested],
    )
    # An article whose resolver reads values has a column of its own for them.
    together = partial(DataFrame.unionByName, allowMissingColumns=True)
    at_publisher, at_subscriber = (in_one_task(reduce(together, side), rows) for side in sides)
    is_any_unknown = any(each.article.may_lack_fields for each in contested)
    articles = [each.terms for each in contested]
    pairs = get_metadata(at_publisher, at_subscriber, articles, terms, is_written_out=fields.is_written_out)
    one_way = [each for each in articles if each.rejects is not None]
    if one_way:
        pairs = with_rejected(pairs, one_way, terms)
    detected = detect(pairs, fields, is_any_unknown=is_any_unknown)
    if one_way:
        detected = without_equal(detected)
    asking = [each.article for each in contested if each.terms.resolver == CUSTOM]
    if asking:
        assert answered is not None
        detected = answered(kept.keep(detected), asking)
    decision = resolve(acted_on(detected), decide, terms, fields, is_any_unknown=is_any_unknown)
    # Many rows are read once, with their article.
    return decision if with_rows else kept.keep(decision)


def rows_of(changed: Iterable[Changed]) -> int | None:
    """Return the maximum of rows of some articles together; None if it is unknown for one."""
    counts = [each.rows for each in changed]
    known = [rows for rows in counts if rows is not None]
    return sum(known) if len(known) == len(counts) else None


def with_ancestors(spark: SparkSession, changed: Changed, sides: tuple[Enumerated, Enumerated]) -> Changed:
    """Add the ancestors of rows that both sides send, if the article's resolver needs them."""
    if not changed.article.needs_base or not changed.is_contested:
        return changed
    assert changed.at_publisher is not None
    assert changed.at_subscriber is not None
    found = ancestors(
        changed.at_publisher,
        changed.at_subscriber,
        *(side_versions(spark, side) for side in sides),
        floor=changed.terms.floor,
    )
    return replace(changed, ancestors=found)


def _with_ancestors(rows: DataFrame, changed: Changed, most: int | None) -> DataFrame:
    """Return ENCODED of the subscriber's changes with their ancestors' fields that the resolver reads."""
    if changed.ancestors is None:
        return rows
    ancestor = F.struct(
        F.col(f"{ANCESTOR}.{DELETED}"),
        *(F.col(f"{ANCESTOR}.{ROW}.{name}") for name in read_fields(changed.article)),
    )
    known = changed.ancestors.select(
        ROWGUID,
        F.when(F.col(ANCESTOR).isNotNull(), ancestor).alias(ancestor_column(changed.article.nickname)),
    )
    return (
        in_one_task(rows, most)
        .join(in_one_task(known, most), on=ROWGUID, how="left")
        .select(*rows.columns, ancestor_column(changed.article.nickname))
    )


def read_fields(article: PublishedArticle) -> list[str]:
    """Return the image fields of the columns that an article names for its resolver."""
    if article.resolver == CUSTOM:
        return list(article.fields)
    named = resolver_info(article.resolver_info).columns
    return [field for name, field in zip(article.columns, article.fields, strict=True) if name in named]


def _written_out(changed: Changed) -> Fields:
    assert changed.at_publisher is not None
    image = image_type(changed.at_publisher, ROW)
    return Fields.of_many(StructType([image[name] for name in changed.article.written_fields]))


def encoded(
    rows: DataFrame | None,
    article: PublishedArticle,
    *,
    fields: Fields = INTERPRETED,
    with_rows: bool = False,
) -> DataFrame:
    """Return ENCODED of one article's CHANGES, with a column of the typed fields that its resolver reads, if any.

    `with_rows` adds the typed rows; they replace the encoded fields if the fields are written out.
    """
    assert rows is not None
    compared = []
    if not fields.is_written_out:
        compared = [encoded_fields(ROW, image_type(rows, ROW), article.written_fields).alias(FIELDS)]
    read = [f"{ROW}.{field}" for field in read_fields(article)]
    values = [F.struct(*read).alias(values_column(article.nickname))] if read else []
    typed = [ROW] if with_rows else []
    metadata = ENCODED_COLUMNS[1:-1]
    return rows.select(F.lit(article.nickname).alias(TABLENICK), *metadata, *compared, *values, *typed)


def resolved(changed: Changed, decision: Decision, terms: SessionTerms) -> DataFrame:
    """Return RESOLVED of one article: the decision with its typed rows, or the rows of the only sending side."""
    article, rows = changed.article, changed.rows
    if not changed.is_contested:
        at_publisher, at_subscriber = (
            None if side is None else side.select(F.lit(article.nickname).alias(TABLENICK), "*")
            for side in (changed.at_publisher, changed.at_subscriber)
        )
        pairs = get_metadata(at_publisher, at_subscriber, [changed.terms], terms, sends_rows=True)
        return one_sided(pairs)
    if changed.has_many:
        return resolved_rows(decision.of_many[article.nickname], article)
    assert decision.of_few is not None
    chosen = in_one_task(decision.of_few.where(F.col(TABLENICK) == article.nickname), rows)
    for side, name in ((changed.at_publisher, PUBLISHER_ROW), (changed.at_subscriber, SUBSCRIBER_ROW)):
        assert side is not None
        typed = in_one_task(side.select(ROWGUID, F.col(ROW).alias(name)), rows)
        chosen = in_one_task(chosen.join(typed, on=ROWGUID, how="left"), rows)
    return resolved_rows(chosen, article)


def with_held(
    spark: SparkSession,
    changed: Changed,
    sides: Mapping[str, Enumerated],
    versions: Mapping[str, int],
    kept: Kept,
    *,
    rejects: str | None,
) -> Changed:
    """Return both sides' changes, with the deciding side's version of each row that the other one sends.

    The version replaces a change. `rejects` is the side whose changes are not taken, or None; `versions` are the
    captured versions of both sides' tables.
    """
    at = {PUBLISHER: changed.at_publisher, SUBSCRIBER: changed.at_subscriber}
    sent = at.get(rejects) if rejects is not None else None
    if rejects is None or sent is None:
        return changed
    from mergerepl.merge.partitions.versions import table_rows, versions_of

    side = OTHER_SIDE[rejects]
    holder, own = sides[side], at[side]
    table = table_rows(spark, holder.replica.table(holder.article), versions[side], holder.article)
    known = versions_of(holder.runs(spark), table, sent, rows=sides[rejects].rows, kept=kept)
    if own is not None:
        # Its sent changes are newer than its runs.
        others = known.join(own.select(ROWGUID), on=ROWGUID, how="left_anti")
        known = own.select(*CHANGE_COLUMNS).unionByName(others)
    never_there = {
        DELETED: F.lit(True),
        TOMBSTONE_TYPE: F.lit(int(TombstoneType.USER_DELETE)),
        GENERATION: F.lit(0).cast("bigint"),
        LINEAGE: lineage.empty_lineage(),
        COLV1: lineage.no_colv(),
        UNKNOWN: no_fields(),
    }
    absent = sent.join(known.select(ROWGUID), on=ROWGUID, how="left_anti").withColumns(never_there)
    held = kept.keep(known.unionByName(absent.select(*CHANGE_COLUMNS)))
    return replace(
        changed,
        at_publisher=held if side == PUBLISHER else sent,
        at_subscriber=held if side == SUBSCRIBER else sent,
    )

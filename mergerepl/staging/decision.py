"""The decision of a session: the changes of both sides, classified, detected and resolved in one plan.

Rows of all articles enter as arrays of encoded fields, with the article's number as a column; the outcome comes back to the
typed rows where these are staged. (decisions/0010)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conflict.ancestor import ANCESTOR, ancestors
from conflict.detect import detect
from conflict.merge_columns import PUBLISHER_ROW, SUBSCRIBER_ROW, resolved_rows
from conflict.one_way import with_rejected, without_equal
from conflict.resolve import resolve
from conflict.resolvers.registry import resolver_of
from enumeration.get_metadata import get_metadata, one_sided
from mergerepl.changes import (
    DELETED,
    ENCODED_COLUMNS,
    FIELDS,
    ROW,
    ROWGUID,
    TABLENICK,
    ancestor_column,
    values_column,
)
from mergerepl.engine.in_memory import Kept, in_one_task
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, resolver_info
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.rows.encodings import encoded_fields
from mergerepl.rows.images import image_type
from mergerepl.staging.article import Enumerated, side_versions

Answered = Callable[[DataFrame, Sequence[PublishedArticle]], DataFrame]
"""Gives detected rows with the answers to the conflicts of some articles (`conflict.resolvers.custom.with_answers`)."""


@dataclass(frozen=True)
class Changed:
    """The changes that both sides send of one article: CHANGES (None: nothing), and the ancestors of rows that both send.

    `ancestors` is what `conflict.ancestor.ancestors` returns; None if the resolver needs none, or in a late round.
    """

    article: PublishedArticle
    terms: ArticleTerms
    at_publisher: DataFrame | None
    at_subscriber: DataFrame | None
    ancestors: DataFrame | None = None

    @property
    def has_any(self) -> bool:
        """Whether any side sends something."""
        return self.at_publisher is not None or self.at_subscriber is not None

    @property
    def is_contested(self) -> bool:
        """Whether both sides send something: then each row needs a decision."""
        return self.at_publisher is not None and self.at_subscriber is not None


def decided(
    changed: Sequence[Changed],
    terms: SessionTerms,
    kept: Kept,
    *,
    rows: int | None,
    answered: Answered | None = None,
) -> DataFrame | None:
    """Return DECIDED of the contested articles, None if there are none.

    Args:
        changed: The articles of the session.
        terms: What the session has agreed on.
        kept: Holds the decision, which each article reads.
        rows: At most so many rows are compared; None: unknown.
        answered: Adds the answers of the agent's own resolvers, which the articles with such a one need.

    Raises: UnknownResolverError.
    """
    contested = [each for each in changed if each.is_contested]
    if not contested:
        return None
    decide = resolver_of((each.article, each.terms) for each in contested)
    sides = (
        [encoded(each.at_publisher, each.article) for each in contested],
        [_with_ancestors(encoded(each.at_subscriber, each.article), each, rows) for each in contested],
    )
    # An article whose resolver reads values has a column of its own for them.
    together = partial(DataFrame.unionByName, allowMissingColumns=True)
    at_publisher, at_subscriber = (in_one_task(reduce(together, side), rows) for side in sides)
    pairs = get_metadata(at_publisher, at_subscriber, [each.terms for each in contested], terms)
    one_way = [each.terms for each in contested if each.terms.rejects is not None]
    if one_way:
        pairs = with_rejected(pairs, one_way, terms)
    detected = detect(pairs)
    if one_way:
        detected = without_equal(detected)
    asking = [each.article for each in contested if each.terms.resolver == CUSTOM]
    if asking:
        assert answered is not None
        detected = answered(kept.keep(detected), asking)
    return kept.keep(resolve(detected, decide, terms))


def with_ancestors(spark: SparkSession, changed: Changed, sides: tuple[Enumerated, Enumerated]) -> Changed:
    """Return the changes of both sides, with the ancestors of rows that both send if the article's resolver needs them."""
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
    """Return ENCODED of the subscriber's changes with the fields of their ancestors that the resolver reads."""
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
    """Return the image fields of the columns that an article states for its resolver."""
    if article.resolver == CUSTOM:
        return list(article.fields)
    named = resolver_info(article.resolver_info).columns
    return [field for name, field in zip(article.columns, article.fields, strict=True) if name in named]


def encoded(rows: DataFrame | None, article: PublishedArticle) -> DataFrame:
    """Return ENCODED of one article's CHANGES, with a column of the typed fields that its resolver reads, if any."""
    assert rows is not None
    fields = encoded_fields(ROW, image_type(rows, ROW), article.written_fields)
    read = [f"{ROW}.{field}" for field in read_fields(article)]
    values = [F.struct(*read).alias(values_column(article.nickname))] if read else []
    return rows.select(
        F.lit(article.nickname).alias(TABLENICK), *ENCODED_COLUMNS[1:-1], fields.alias(FIELDS), *values
    )


def resolved(
    changed: Changed, decision: DataFrame | None, terms: SessionTerms, *, rows: int | None
) -> DataFrame:
    """Return RESOLVED of one article: the decision joined with its typed rows, or the rows that one side alone sends."""
    article = changed.article
    if not changed.is_contested:
        at_publisher, at_subscriber = (
            None if side is None else side.select(F.lit(article.nickname).alias(TABLENICK), "*")
            for side in (changed.at_publisher, changed.at_subscriber)
        )
        return one_sided(get_metadata(at_publisher, at_subscriber, [changed.terms], terms))
    assert decision is not None
    chosen = in_one_task(decision.where(F.col(TABLENICK) == article.nickname), rows)
    for side, name in ((changed.at_publisher, PUBLISHER_ROW), (changed.at_subscriber, SUBSCRIBER_ROW)):
        assert side is not None
        typed = in_one_task(side.select(ROWGUID, F.col(ROW).alias(name)), rows)
        chosen = in_one_task(chosen.join(typed, on=ROWGUID, how="left"), rows)
    return resolved_rows(chosen, article)

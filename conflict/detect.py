"""Tell real conflicts from changes that merge.

Merge session step: after get_metadata, before resolve, for the rows changed at both sides (verdict
candidate). Pure. Rules: design section 5, merge_replication.md 2.4, 3.2.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conflict.resolvers.registry import resolver
from mergerepl.changes import (
    COLV1,
    CONFLICT_COLUMNS,
    DELETED,
    LINEAGE,
    PUBLISHER,
    PUBLISHER_WINS,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    VERDICT,
    Verdict,
)
from mergerepl.lineage import columns as lineage
from mergerepl.lineage.value import PUBLICATION
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import image_type, same_value

SIDES = "sides"
"""Per value column (struct field = its image field): did the publisher, did the subscriber change it, do they differ?"""

PUBLISHER_CHANGED = "publisher_changed"
SUBSCRIBER_CHANGED = "subscriber_changed"
DIFFERENT = "different"


def value_fields(article: PublishedArticle) -> dict[str, str]:
    """Return value column -> image field, in column order."""
    field_of = dict(zip(article.columns, article.fields, strict=True))
    return {name: field_of[name] for name in article.value_columns}


def compared(candidates: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the candidates with `sides`: by value column, which side changed it and whether the values differ.

    A side changed a column if the column's last change there is not part of the other side's lineage. A
    row-tracked article has one answer for the whole row: both sides did.

    Reads: PAIRS. Returns: PAIRS, sides.
    """
    image = image_type(candidates, f"{PUBLISHER}.{ROW}")

    def changed(side: str, other: str, column: str) -> Column:
        if not article.column_tracking:
            return F.lit(True)
        # Whoever has the publication's row has its columns, too, until they are changed.
        published = F.when(
            lineage.version_of(F.col(f"{side}.{LINEAGE}"), F.lit(PUBLICATION)) > 0,
            F.struct(F.lit(PUBLICATION).alias("nickname"), F.lit(1).cast("bigint").alias("version")),
        )
        version = F.coalesce(F.try_element_at(F.col(f"{side}.{COLV1}"), F.lit(column)), published)
        known = F.col(f"{other}.{LINEAGE}")
        return ~lineage.is_covered(version, known, floor=article.maxversion_at_cleanup)

    told = [
        F.struct(
            changed(PUBLISHER, SUBSCRIBER, name).alias(PUBLISHER_CHANGED),
            changed(SUBSCRIBER, PUBLISHER, name).alias(SUBSCRIBER_CHANGED),
            (
                ~same_value(
                    F.col(f"{PUBLISHER}.{ROW}.{field}"),
                    F.col(f"{SUBSCRIBER}.{ROW}.{field}"),
                    image[field].dataType,
                )
            ).alias(DIFFERENT),
        ).alias(field)
        for name, field in value_fields(article).items()
    ]
    sides = F.struct(*told) if told else F.struct(F.lit(None).alias("none"))
    return candidates.withColumn(SIDES, sides)


def detect(
    compared_candidates: DataFrame, article: PublishedArticle, *, whole_rows: bool = False
) -> DataFrame:
    """Return the candidates decided: verdict merge or conflict, conflict_columns, and for a conflict who
    wins.

    Two deletes and two equal rows are no conflict. An update against a delete is one. Two updates conflict,
    row-tracked or with `whole_rows`, if the rows differ; column-tracked, if one column was changed at both sides to
    different values.

    Reads: `compared`. Returns: rowguid, publisher, subscriber, verdict, sides, conflict_columns,
    publisher_wins.

    Raises: UnknownResolverError if the article names a resolver this agent does not have.
    """
    publisher_deleted = F.col(f"{PUBLISHER}.{DELETED}")
    subscriber_deleted = F.col(f"{SUBSCRIBER}.{DELETED}")
    one_deleted = publisher_deleted != subscriber_deleted
    both_live = ~publisher_deleted & ~subscriber_deleted

    def clashes_in(field: str) -> Column:
        side = F.col(f"{SIDES}.{field}")
        changed_by_both = F.lit(True) if whole_rows else side[PUBLISHER_CHANGED] & side[SUBSCRIBER_CHANGED]
        return changed_by_both & side[DIFFERENT]

    clashing = [F.when(clashes_in(field), F.lit(name)) for name, field in value_fields(article).items()]
    no_columns = F.expr("cast(array() as array<string>)")
    clashes = F.array_compact(F.array(*clashing)) if clashing else no_columns
    is_conflict = one_deleted | (both_live & (F.size(clashes) > 0))
    publisher_wins = resolver(article.resolver, article=article.name)()
    return compared_candidates.select(
        ROWGUID,
        PUBLISHER,
        SUBSCRIBER,
        F.when(is_conflict, Verdict.CONFLICT.value).otherwise(Verdict.MERGE.value).alias(VERDICT),
        SIDES,
        F.when(both_live, clashes).otherwise(no_columns).alias(CONFLICT_COLUMNS),
        F.when(is_conflict, publisher_wins).alias(PUBLISHER_WINS),
    )

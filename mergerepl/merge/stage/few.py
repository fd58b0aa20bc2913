"""Decide and stage few rows: all articles in one query; Arrow joins the outcome with the values (decision 0021).

The rules are those of `decision`; the staged rows and counts are those of `stage_article`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from conflict.detect import detect
from conflict.resolve import resolve
from conflict.resolvers.registry import resolver_of
from enumeration.get_metadata import get_metadata
from mergerepl import changes
from mergerepl.changes import (
    OF_SUBSCRIBER,
    PUBLISHER,
    PUBLISHER_WINS,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TABLENICK,
    VERDICT,
)
from mergerepl.frames import DataFrame
from mergerepl.merge.stage.article import Enumerated, StagedArticle, staged_article
from mergerepl.merge.stage.decision import Changed, encoded, read_fields, rows_of
from mergerepl.model.article import BOUNDED_TYPES, PublishedArticle
from mergerepl.model.session_terms import SessionTerms
from mergerepl.replica.staged_rows import row_kinds, with_conflict_hash, write_few
from mergerepl.rows.arrow_values import python_values
from mergerepl.spark.in_memory import collected, in_one_task
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa


def few_sent(changed: Changed, sides: Mapping[str, Enumerated]) -> dict[str, "pa.Table | None"] | None:
    """Return each side's CHANGES of an article, or None for a side without any; None if they cannot be decided here.

    They must be in memory, no resolver may read or make their values, and Delta may not compute any.
    """
    terms, article = changed.terms, changed.article
    if article.generated or terms.rejects is not None or terms.made_columns or read_fields(article):
        return None
    found: dict[str, pa.Table | None] = {}
    for name, side in sides.items():
        few = side.captured.few if side.captured is not None and side.is_complete_in_memory else None
        if few is None and side.sent.generations:
            return None
        found[name] = few if side.sent.generations else None
    return found


def decided_few(changed: Sequence[Changed], terms: SessionTerms) -> "pa.Table":
    """Return DECIDED of all these articles, with conflict_hash, including rows that one side alone sends."""
    rows = rows_of(changed)
    at = {
        side: [
            encoded(sent, each.article)
            for each, sent in zip(changed, frames, strict=True)
            if sent is not None
        ]
        for side, frames in (
            (PUBLISHER, [each.at_publisher for each in changed]),
            (SUBSCRIBER, [each.at_subscriber for each in changed]),
        )
    }
    together = {
        side: in_one_task(reduce(DataFrame.unionByName, frames), rows) if frames else None
        for side, frames in at.items()
    }
    pairs = get_metadata(together[PUBLISHER], together[SUBSCRIBER], [each.terms for each in changed], terms)
    decide = resolver_of((each.article, each.terms) for each in changed)
    return _acted_on(collected(with_conflict_hash(resolve(detect(pairs), decide, terms))))


def _acted_on(decided: "pa.Table") -> "pa.Table":
    """Return the rows with an action, as `conflict.resolve.acted_on`: here Spark need not plan the filter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_of_two = pc.is_in(decided[VERDICT], pa.array(changes.OF_TWO))
    has_action = pc.is_valid(
        pc.coalesce(decided[changes.PUBLISHER_ACTION], decided[changes.SUBSCRIBER_ACTION])
    )
    return decided.filter(pc.or_(is_of_two, has_action))


def stage_few(
    decided: "pa.Table",
    sent: Mapping[str, "pa.Table | None"],
    folder: Location,
    article: PublishedArticle,
    *,
    from_versions: Mapping[str, int],
) -> StagedArticle:
    """Write the RESOLVED rows of one article, from `decided` and both sides' CHANGES; return their counts.

    Raises: as `stage_article`.
    """
    from pyarrow.dataset import dataset

    rows = resolved_few(decided, sent, article)
    write_few(rows, folder)
    return staged_article(
        row_kinds(dataset(rows)), _key_bounds(rows, article), article, from_versions=from_versions
    )


def resolved_few(
    decided: "pa.Table", sent: Mapping[str, "pa.Table | None"], article: PublishedArticle
) -> "pa.Table":
    """Return RESOLVED of one article with conflict_hash: the decision with its values (`merge_columns.resolved_rows`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    decided = decided.filter(pc.equal(decided[TABLENICK], article.nickname))
    there = {side: rows for side, rows in sent.items() if rows is not None}
    images = pa.concat_arrays([chunk for rows in there.values() for chunk in rows[ROW].chunks])
    place: dict[str, pa.Array[Any]] = {}
    before = 0
    for side in (PUBLISHER, SUBSCRIBER):
        found = pa.nulls(decided.num_rows, pa.int32())
        if side in there:
            found = pc.index_in(decided[ROWGUID].combine_chunks(), there[side][ROWGUID].combine_chunks())
            found = pc.add(found, pa.scalar(before, pa.int32()))
            before += there[side].num_rows
        place[side] = found
    masks = decided[OF_SUBSCRIBER].combine_chunks()
    is_upload = pc.equal(decided[VERDICT].combine_chunks(), changes.Verdict.UPLOAD.value)

    def value(number: int) -> "pa.Array[Any]":
        is_subscribers = pc.coalesce(pc.list_element(masks, number), is_upload)
        return images.field(number).take(pc.if_else(is_subscribers, place[SUBSCRIBER], place[PUBLISHER]))

    def loser() -> "pa.Array[Any]":
        stated = decided[changes.LOSER].combine_chunks()
        wins = decided[PUBLISHER_WINS].combine_chunks()
        row = images.take(pc.if_else(wins, place[SUBSCRIBER], place[PUBLISHER]))
        parts = [stated.field(each) for each in changes.LOSER_COLUMNS]
        return pa.StructArray.from_arrays(
            [*parts, row], names=[*changes.LOSER_COLUMNS, ROW], mask=pc.is_null(stated)
        )

    names = [field.name for field in images.type]
    made = {
        ROW: pa.StructArray.from_arrays([value(i) for i, _ in enumerate(names)], names=names),
        changes.LOSER: loser(),
    }
    columns = (*changes.RESOLVED_COLUMNS, changes.CONFLICT_HASH)
    return pa.table({name: made[name] if name in made else decided[name] for name in columns})


def _key_bounds(rows: "pa.Table", article: PublishedArticle) -> dict[str, Any]:
    """Return the values of `article._key_bounds`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, Any] = {}
    types = dict(zip(article.fields, article.types, strict=True))
    for side, action in changes.ACTION_OF.items():
        written = rows.filter(pc.is_in(rows[action], pa.array([each.value for each in changes.DATA_ACTIONS])))
        for field in article.identity_fields:
            if types[field] in BOUNDED_TYPES:
                ends = pc.min_max(written[ROW].combine_chunks().field(field))
                least, most = (
                    python_values(pa.chunked_array([pa.repeat(ends[end], 1)]))[0] for end in ("min", "max")
                )
                found |= {f"{side}_min_{field}": least, f"{side}_max_{field}": most}
    return found

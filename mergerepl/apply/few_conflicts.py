"""The rows of few conflicts, made of staged rows by Arrow: those that `conflict_log` lets Spark make.

Conflicts of changes that a table or a rule refuses, and keys of other types than those below, are left to Spark.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.model.article import PublishedArticle
from mergerepl.store.changeset import Changeset, SideWork
from mergerepl.store.staged_rows import few_conflicts
from mergerepl.systables.conflicts_info import (
    CONFLICT_ID,
    MODIFIED_DATE,
    ORIGIN_DATASOURCE_ID,
    REASONS,
    ConflictType,
)

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date"})
"""Types of keys whose texts Arrow and Spark write alike."""

_LENGTH_OF_DATE = len("yyyy-mm-dd")


def info_and_losing_rows(
    changeset: Changeset,
    article: PublishedArticle,
    works: Mapping[str, SideWork],
    *,
    identity: tuple[str, ...],
    resolved_at_us: int,
) -> "tuple[pa.Table, pa.Table] | None":
    """Return what MSmerge_conflicts_info and the conflict table get of one article; None if Spark is to make it.

    `identity` names the article in the session: with the rowguid it makes the conflict's id.

    Raises: StoreError if the staged rows cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = few_conflicts(changeset.rows(article.nickname))
    if rows is None or pc.max(rows[changes.CONFLICT_TYPE]).as_py() > ConflictType.UPDATE_WINS_DELETE:
        return None
    keys = _key_texts(rows, article)
    if keys is None:
        return None
    count = rows.num_rows
    wins = pc.fill_null(rows[changes.PUBLISHER_WINS], False)
    at_publisher, at_subscriber = works[PUBLISHER], works[SUBSCRIBER]
    loser, winner = (rows[name].combine_chunks() for name in (changes.LOSER, changes.WINNER))
    texts = ("|".join([*identity, guid]) for guid in rows[changes.ROWGUID].to_pylist())
    ids = pa.array([sha256(text.encode()).hexdigest()[:16] for text in texts], pa.string())
    loser_id = pc.if_else(wins, at_subscriber.replid, at_publisher.replid)
    resolved_at = pa.repeat(pa.scalar(resolved_at_us, pa.timestamp("us", "UTC")), count)
    kinds = pa.array([int(kind) for kind in REASONS], pa.int32())
    reasons = pa.array(list(REASONS.values())).take(pc.index_in(rows[changes.CONFLICT_TYPE], kinds))
    info = {
        "tablenick": pa.repeat(article.nickname, count),
        "rowguid": rows[changes.ROWGUID],
        "origin_datasource": pc.if_else(wins, at_subscriber.root, at_publisher.root),
        "conflict_type": rows[changes.CONFLICT_TYPE],
        "reason_code": rows[changes.CONFLICT_TYPE],
        "reason_text": reasons,
        "pubid": pa.repeat(article.pubid, count),
        "MSrepl_create_time": resolved_at,
        "origin_datasource_id": loser_id,
        "conflict_id": ids,
        "winner_datasource_id": pc.if_else(wins, at_publisher.replid, at_subscriber.replid),
        "winner_datasource": pc.if_else(wins, at_publisher.root, at_subscriber.root),
        "losing_lineage": pc.struct_field(loser, changes.LINEAGE),
        "winning_lineage": pc.struct_field(winner, changes.LINEAGE),
        "losing_priority": pc.struct_field(loser, changes.PRIORITY),
        "winning_priority": pc.struct_field(winner, changes.PRIORITY),
        "columns": rows[changes.CONFLICT_COLUMNS],
        "session_id": pa.repeat(changeset.manifest.session, count),
        "rowkey": keys,
        "resolver": rows[changes.RESOLVER],
        "made_columns": rows[changes.MADE_COLUMNS],
        "note": rows[changes.NOTE],
    }
    image = pc.struct_field(loser, changes.ROW)
    fields = zip(article.columns, article.fields, strict=True)
    losing = {
        **{name: pc.struct_field(image, field) for name, field in fields},
        **({} if holds_rowguid(article) else {changes.ROWGUID: rows[changes.ROWGUID]}),
        MODIFIED_DATE: resolved_at,
        ORIGIN_DATASOURCE_ID: loser_id,
        CONFLICT_ID: ids,
    }
    is_row = pc.invert(pc.struct_field(loser, changes.DELETED))
    return pa.table(info), pa.table(losing).filter(is_row)


def holds_rowguid(article: PublishedArticle) -> bool:
    """Return whether the column `rowguid` of an article's conflict table is the article's own."""
    # As the conflict table was made, and as Delta compares names: `RowGuid` is the same column.
    return changes.ROWGUID in (name.lower() for name in article.columns)


def _key_texts(rows: "pa.Table", article: PublishedArticle) -> "pa.MapArray[Any, Any, Any] | None":
    """Return by row the key columns with their values as text; None if Arrow might write one otherwise than Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = dict(zip(article.fields, article.types, strict=True))
    image = rows[changes.ROW].combine_chunks()
    texts = []
    for field in article.identity_fields:
        if types[field] not in _KEYS:
            return None
        texts.append(pc.cast(image.field(field), pa.string()))
        if (
            types[field] == "date"
            and pc.any(pc.not_equal(pc.utf8_length(texts[-1]), _LENGTH_OF_DATE)).as_py()
        ):
            # Spark writes years above 9999 with a sign.
            return None
    width, count = len(texts), rows.num_rows
    # Row by row: the first key column of the first row, its second one, ...
    order = pa.array([column * count + row for row in range(count) for column in range(width)], pa.int64())
    values = pa.concat_arrays(texts).take(order)
    names = pa.array([*article.identity] * count, pa.string())
    return pa.MapArray.from_arrays(pa.array(range(0, count * width + 1, width), pa.int32()), names, values)

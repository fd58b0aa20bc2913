"""Arrow makes the rows of conflicts from staged rows, batch by batch: the same rows that Spark makes in `conflict_log`.

Spark makes those of changes that a table or a rule refuses, and those with keys of other types than below. The id of a
conflict is 16 hexadecimal digits: its row's hash in article and changeset (`changes.CONFLICT_HASH`) XOR their hash.
Spark and Arrow make the same ids, so that one may finish the other's work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.staged_rows import are_for_arrow, conflicts_in_batches
from mergerepl.store.changeset import Changeset, SideWork
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

_OF_LOSING = (
    changes.ROWGUID,
    changes.CONFLICT_TYPE,
    changes.CONFLICT_HASH,
    changes.PUBLISHER_WINS,
    changes.LOSER,
)
_OF_INFO = (
    *_OF_LOSING,
    changes.WINNER,
    changes.ROW,
    changes.CONFLICT_COLUMNS,
    changes.RESOLVER,
    changes.MADE_COLUMNS,
    changes.NOTE,
)

_LENGTH_OF_DATE = len("yyyy-mm-dd")
_BYTES = 8


@dataclass(frozen=True)
class Conflicts:
    """The conflicts of one article in a changeset, their resolver and time.

    `works` are the session's work at both sides.
    """

    changeset: Changeset
    article: PublishedArticle
    works: Mapping[str, SideWork]
    article_hash: int
    resolved_at_us: int

    def are_for_arrow(self) -> bool:
        """True if Arrow writes the types of keys and columns as Spark does."""
        type_of = dict(zip(self.article.fields, self.article.types, strict=True))
        are_keys = all(type_of[field] in _KEYS for field in self.article.identity_fields)
        return are_keys and are_for_arrow(self.changeset.rows(self.article.nickname))

    def info_rows(self) -> "Iterator[pa.Table]":
        """Yield the rows for MSmerge_conflicts_info.

        Raises: as `conflicts_in_batches`.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        article, at_publisher, at_subscriber = self.article, self.works[PUBLISHER], self.works[SUBSCRIBER]
        kinds, texts = pa.array([int(kind) for kind in REASONS], pa.int32()), pa.array(list(REASONS.values()))
        for rows in self._in_batches(_OF_INFO):
            count = rows.num_rows
            wins = pc.fill_null(rows[changes.PUBLISHER_WINS], False)
            loser, winner = (rows[name].combine_chunks() for name in (changes.LOSER, changes.WINNER))
            info = {
                "tablenick": pa.repeat(article.nickname, count),
                "rowguid": rows[changes.ROWGUID],
                "origin_datasource": pc.if_else(wins, at_subscriber.root, at_publisher.root),
                "conflict_type": rows[changes.CONFLICT_TYPE],
                "reason_code": rows[changes.CONFLICT_TYPE],
                "reason_text": texts.take(pc.index_in(rows[changes.CONFLICT_TYPE], kinds)),
                "pubid": pa.repeat(article.pubid, count),
                "MSrepl_create_time": self._resolved_at(count),
                "origin_datasource_id": self._loser_id(wins),
                "conflict_id": self._ids(rows),
                "winner_datasource_id": pc.if_else(wins, at_publisher.replid, at_subscriber.replid),
                "winner_datasource": pc.if_else(wins, at_publisher.root, at_subscriber.root),
                "losing_lineage": pc.struct_field(loser, changes.LINEAGE),
                "winning_lineage": pc.struct_field(winner, changes.LINEAGE),
                "losing_priority": pc.struct_field(loser, changes.PRIORITY),
                "winning_priority": pc.struct_field(winner, changes.PRIORITY),
                "columns": rows[changes.CONFLICT_COLUMNS],
                "session_id": pa.repeat(self.changeset.manifest.session, count),
                "rowkey": _key_texts(rows, article),
                "resolver": rows[changes.RESOLVER],
                "made_columns": rows[changes.MADE_COLUMNS],
                "note": rows[changes.NOTE],
                "article_version": pa.repeat(pa.scalar(article.version, pa.int32()), count),
                "unknown": pc.struct_field(loser, changes.UNKNOWN),
            }
            yield pa.table(info)

    def losing_rows(self) -> "Iterator[pa.Table]":
        """Yield the rows for the article's conflict table.

        Raises: as `conflicts_in_batches`.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        article = self.article
        fields = dict(zip(article.columns, article.fields, strict=True))
        for rows in self._in_batches(_OF_LOSING):
            loser = rows[changes.LOSER].combine_chunks()
            image = pc.struct_field(loser, changes.ROW)
            losing = {
                **{name: pc.struct_field(image, field) for name, field in fields.items()},
                **({} if holds_rowguid(article) else {changes.ROWGUID: rows[changes.ROWGUID]}),
                MODIFIED_DATE: self._resolved_at(rows.num_rows),
                ORIGIN_DATASOURCE_ID: self._loser_id(pc.fill_null(rows[changes.PUBLISHER_WINS], False)),
                CONFLICT_ID: self._ids(rows),
            }
            yield pa.table(losing).filter(pc.invert(pc.struct_field(loser, changes.DELETED)))

    def _in_batches(self, columns: Sequence[str]) -> "Iterator[pa.Table]":
        import pyarrow.compute as pc

        for rows in conflicts_in_batches(self.changeset.rows(self.article.nickname), columns):
            if pc.max(rows[changes.CONFLICT_TYPE]).as_py() > ConflictType.UPDATE_WINS_DELETE:
                raise NeedsSparkError("changes that were refused")
            yield rows

    def _ids(self, rows: "pa.Table") -> "pa.Array[Any]":
        return conflict_ids(rows[changes.CONFLICT_HASH], self.article_hash)

    def _resolved_at(self, count: int) -> "pa.Array[Any]":
        import pyarrow as pa

        return pa.repeat(pa.scalar(self.resolved_at_us, pa.timestamp("us", "UTC")), count)

    def _loser_id(self, publisher_wins: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
        import pyarrow.compute as pc

        return pc.if_else(publisher_wins, self.works[SUBSCRIBER].replid, self.works[PUBLISHER].replid)


def article_hash(session: str, side: str, round_: int, tablenick: int) -> int:
    """Return the hash (bigint) of one article in the changeset of a session, or of a late round of a side."""
    text = f"{session}|{side}|{round_}|{tablenick}"
    return int.from_bytes(sha256(text.encode()).digest()[:_BYTES], signed=True)


def conflict_id(row: Column, article: Column) -> Column:
    """Return the id of a row's conflict, from `changes.CONFLICT_HASH` and `article_hash`."""
    return F.lower(F.lpad(F.hex(row.bitwiseXOR(article)), 2 * _BYTES, "0"))


def conflict_ids(rows: "pa.ChunkedArray[Any]", article: int) -> "pa.StringArray":
    """Arrow version of `conflict_id`, by row; expects no NULL hash."""
    import numpy as np
    import pyarrow as pa

    made = rows.to_numpy() ^ np.int64(article)
    digits = made.astype(">i8").tobytes().hex().encode()
    ends = np.arange(0, len(digits) + 1, 2 * _BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(len(made), pa.py_buffer(ends), pa.py_buffer(digits))


def holds_rowguid(article: PublishedArticle) -> bool:
    """True if the column `rowguid` of an article's conflict table is the article's own."""
    # As when the conflict table was created, and as Delta compares names: `RowGuid` is the same column.
    return changes.ROWGUID in (name.lower() for name in article.columns)


def _key_texts(rows: "pa.Table", article: PublishedArticle) -> "pa.MapArray[Any, Any, Any]":
    """Return by row the key columns with their values as text.

    Raises: NeedsSparkError if Arrow might write a value otherwise than Spark.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    types = dict(zip(article.fields, article.types, strict=True))
    image = rows[changes.ROW].combine_chunks()
    texts = []
    for field in article.identity_fields:
        texts.append(pc.cast(image.field(field), pa.string()))
        if (
            types[field] == "date"
            and pc.any(pc.not_equal(pc.utf8_length(texts[-1]), _LENGTH_OF_DATE)).as_py()
        ):
            # Spark writes years above 9999 with a sign.
            raise NeedsSparkError("a date above the year 9999")
    width, count = len(texts), rows.num_rows
    # Row by row: the first key column of the first row, its second one, ...
    order = np.arange(width * count).reshape(width, count).T.ravel()
    names = pa.array([*article.identity]).take(pa.array(np.tile(np.arange(width), count)))
    ends = pa.array(np.arange(0, count * width + 1, width), pa.int32())
    return pa.MapArray.from_arrays(ends, names, pa.concat_arrays(texts).take(pa.array(order)))

"""`mergerepl conflicts`: what was lost, when and to whom (merge_replication.md 3.5).

MSmerge_conflicts_info has a row for each conflict; the losing row is in the conflict table (a losing
delete has none), the winning one is an image in MSmerge_contents, chosen by its lineage.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl.errors import ConfigurationError
from mergerepl.lineage.value import covers
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ConflictRecord
from mergerepl.monitoring.parties import article_named, publication_name
from mergerepl.store.control import Row, read_rows
from mergerepl.store.replica import Replica
from mergerepl.systables import conflicts_info, contents
from mergerepl.systables.conflicts_info import CONFLICT_COLUMNS, CONFLICT_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ID = re.compile(r"[0-9a-f]+\Z")
_NAMES = (
    "tablenick",
    "rowguid",
    "origin_datasource",
    "conflict_type",
    "reason_code",
    "reason_text",
    "pubid",
    "MSrepl_create_time",
    "conflict_id",
    "winner_datasource",
    "session_id",
    "rowkey",
    "losing_lineage",
    "winning_lineage",
)


def read_conflicts(
    root: Path,
    *,
    publication: str | None = None,
    article: str | None = None,
    conflict_id: str | None = None,
    limit: int | None = None,
) -> tuple[ConflictRecord, ...]:
    """Return the conflicts logged at a replica, newest first; with (the beginning of) an id also the rows.

    Raises: ConfigurationError if the folder is no replica, a name is unknown or several ids begin so;
        StoreError.
    """
    replica = Replica(root).require()
    conditions = _conditions(replica, publication, article, conflict_id)
    if conditions is None:
        return ()
    rows = read_rows(
        replica.folder / conflicts_info.NAME,
        _NAMES,
        where=" and ".join(conditions) or None,
        order_limit='order by "MSrepl_create_time" desc, conflict_id' + (f" limit {limit}" if limit else ""),
        required=conflicts_info.TABLE.required,
    )
    if conflict_id is None:
        return tuple(_record(replica, row) for row in rows)
    if len({row[CONFLICT_ID] for row in rows}) > 1:
        raise ConfigurationError(
            f"Several conflicts at '{replica.root}' begin with '{conflict_id}': "
            f"{', '.join(sorted(row[CONFLICT_ID] for row in rows))}. Give more of the id.",
            replica=str(replica.root),
        )
    return tuple(_with_rows(replica, row) for row in rows)


def _conditions(
    replica: Replica, publication: str | None, article: str | None, conflict_id: str | None
) -> list[str] | None:
    """Return the SQL conditions of what is asked for; None if no conflict can have such an id."""
    conditions = []
    if publication is not None:
        conditions.append(f"pubid = '{replica.publication(publication)['pubid']}'")
    if article is not None:
        conditions.append(f"tablenick = {article_named(replica, article, publication).nickname}")
    if conflict_id is not None:
        wanted = conflict_id.strip().lower()
        if not _ID.match(wanted):
            return None
        conditions.append(f"conflict_id like '{wanted}%'")
    return conditions


def _record(replica: Replica, row: Row) -> ConflictRecord:
    article = _article(replica, row["tablenick"])
    return ConflictRecord(
        row["conflict_id"],
        publication_name(replica, row["pubid"]),
        article.name if article is not None else f"article {row['tablenick']}",
        row["rowguid"],
        dict(row["rowkey"] or {}),
        row["conflict_type"],
        row["reason_code"],
        row["reason_text"] or "",
        row["origin_datasource"] or "",
        row["winner_datasource"] or "",
        row["MSrepl_create_time"],
    )


def _article(replica: Replica, nickname: int) -> PublishedArticle | None:
    """Return an article by its nickname; None if it is not published any more."""
    return next((article for article in replica.articles if article.nickname == nickname), None)


def _with_rows(replica: Replica, row: Row) -> ConflictRecord:
    record, article = _record(replica, row), _article(replica, row["tablenick"])
    if article is None:
        return record
    return replace(
        record,
        losing_row=_losing_row(replica, article, row["conflict_id"]),
        winning_row=_winning_row(replica, article, row),
    )


def _losing_row(replica: Replica, article: PublishedArticle, conflict_id: str) -> dict[str, object] | None:
    found = read_rows(
        replica.folder / article.conflict_table,
        article.columns,
        where=f"{CONFLICT_ID} = '{conflict_id}'",
        order_limit="limit 1",
    )
    return dict(found[0]) if found else None


def _winning_row(replica: Replica, article: PublishedArticle, row: Row) -> dict[str, object] | None:
    """Return the row as it won, by the oldest version here that includes the winning change; None: a delete won.

    The resolving session records the outcome, which includes the losing change too. A session of one direction
    records nothing at the replica that won: there the winner's own version is the oldest one.
    """
    winning, losing = (dict(row[f"{which}_lineage"] or {}) for which in ("winning", "losing"))
    versions = [
        each for each in _versions(replica, article, row["rowguid"]) if covers(each["lineage"], winning)
    ]

    def order(version: Row) -> tuple[bool, int]:
        is_outcome = version[contents.MARKER] == row["session_id"] and covers(version["lineage"], losing)
        return not is_outcome, version[contents.SEQ]

    image = min(versions, key=order)["image"] if versions else None
    if image is None:
        return None
    return {name: image.get(field) for name, field in zip(article.columns, article.fields, strict=True)}


def _versions(replica: Replica, article: PublishedArticle, rowguid: str) -> list[Row]:
    """Return all recorded versions of one row, a delete without an image."""
    where = (
        f"{contents.TABLENICK} = {article.nickname} and {contents.ROWGUID} = '{rowguid}' "
        f"and {contents.SEQ} <= {replica.info().last_seq}"
    )
    names, column = (contents.LINEAGE, contents.MARKER, contents.SEQ), contents.row_column(article.nickname)
    live = read_rows(replica.contents, [*names, column], where=where)
    deleted = read_rows(replica.tombstone, names, where=where)
    return [
        {**row, "lineage": dict(row["lineage"] or {}), "image": row.get(column)} for row in (*live, *deleted)
    ]


def conflict_frame(
    spark: "SparkSession", root: Path, *, publication: str | None = None, article: str
) -> "DataFrame":
    """Return one article's conflicts: the losing row's columns, then those of MSmerge_conflicts_info.

    A losing delete has NULL in the columns of the row. A column of MSmerge_conflicts_info that is named like
    one of the article's is called `info_<name>`.

    Raises: ConfigurationError if the folder is no replica or has no such article.
    """
    from pyspark.sql import functions as F

    from mergerepl.store.sql import quote

    replica = Replica(root).require()
    chosen = article_named(replica, article, publication)
    infos = spark.read.format("delta").load(str(replica.folder / conflicts_info.NAME))
    infos = infos.where(F.col("tablenick") == chosen.nickname)
    own = {column.name for column in CONFLICT_COLUMNS} - {CONFLICT_ID} - set(chosen.columns)
    losers = spark.read.format("delta").load(str(replica.folder / chosen.conflict_table)).drop(*own)
    taken = {name.lower() for name in chosen.columns}
    told = [
        F.col(f"i.{quote(name)}").alias(f"info_{name}" if name.lower() in taken else name)
        for name in infos.columns
    ]
    joined = infos.alias("i").join(
        losers.alias("l"), on=F.col(f"i.{CONFLICT_ID}") == F.col(f"l.{CONFLICT_ID}"), how="left"
    )
    return joined.select(*(F.col(f"l.{quote(name)}") for name in chosen.columns), *told)

"""`mergerepl conflicts`: the losing changes, with time and winner (merge_replication.md 3.5).

MSmerge_conflicts_info has a row for each conflict; the losing row is in the conflict table (a losing
delete has none), the winning one is an image in MSmerge_contents, chosen by its lineage.
"""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from itertools import chain
from typing import TYPE_CHECKING

from mergerepl.changes import PUBLISHER
from mergerepl.conflicts.kept_columns import KeptColumns
from mergerepl.delta.sql_text import text_literal, text_literals, timestamp_literal
from mergerepl.delta.tables import Row, column_names, count_rows, read_rows
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.conflict_filter import ConflictFilter, ConflictStatus
from mergerepl.model.conflicts import ConflictCount, ConflictRecord, ConflictResolution
from mergerepl.monitoring.parties import article_named, in_reach, publication_name
from mergerepl.replica.replica import Replica
from mergerepl.rows.lineage_value import covers
from mergerepl.store.location import Location
from mergerepl.systables import conflict_resolutions, conflicts_info, contents
from mergerepl.systables.conflicts_info import CONFLICT_COLUMNS, CONFLICT_ID, ConflictRow, ConflictType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ID = re.compile(r"[0-9a-f]+\Z")
_SHOWN_IDS = 10
_MOST_NAMED = 10_000
"""So many ids are part of a query; of more all rows are read."""


def read_conflicts(
    root: Location,
    chosen: ConflictFilter,
    *,
    limit: int | None = None,
    with_rows: bool = False,
    is_one: bool = False,
) -> tuple[ConflictRecord, ...]:
    """Return the chosen conflicts of a replica, newest first; `is_one`: the one whose id begins as the chosen one.

    The rows cost one read of each of their tables, for any number of conflicts.

    Raises: ConfigurationError if the folder is not a replica, a name is unknown or several ids match; StoreError.
    """
    replica = Replica(root).require()
    conditions = conditions_of(replica, chosen)
    if conditions is None:
        return ()
    if is_one:
        limit = _SHOWN_IDS + 1
    rows = replica.control.rows(
        conflicts_info.TABLE,
        where=" and ".join(conditions) or None,
        order_limit='order by "MSrepl_create_time" desc, conflict_id'
        + (f" limit {limit}" if limit is not None else ""),
    )
    ids = sorted({row.conflict_id for row in rows})
    if is_one and len(ids) > 1:
        raise ConfigurationError(
            f"Several conflicts at '{replica.root}' begin with '{chosen.ids[0]}': "
            f"{', '.join(ids[:_SHOWN_IDS])}{', …' * (len(ids) > _SHOWN_IDS)}. Give more of the id.",
            replica=str(replica.root),
        )
    records = _with_rows(replica, rows) if with_rows else _records(replica, rows)
    settled = _resolutions(replica, ids) if ids else {}
    gone = _gone(replica, rows)
    return tuple(
        replace(each, status=ConflictStatus.SETTLED.value, resolution=settled.get(each.conflict_id))
        if each.conflict_id in settled or each.conflict_id in gone
        else each
        for each in records
    )


def _resolutions(replica: Replica, ids: Sequence[str]) -> dict[str, ConflictResolution]:
    """Return the last settlement of each conflict, by id."""
    where = f"{CONFLICT_ID} in ({text_literals(ids)})" if len(ids) <= _MOST_NAMED else None
    rows = [
        row
        for each in _settling(replica)
        if each.control.exists(conflict_resolutions.TABLE)
        for row in each.control.rows(conflict_resolutions.TABLE, where=where)
    ]
    return {
        row.conflict_id: ConflictResolution(row.choice, row.by, row.resolved_at, row.message)
        for row in sorted(rows, key=lambda row: row.resolved_at)
    }


def _settling(replica: Replica) -> list[Replica]:
    """Return the replicas in reach that may have settled a conflict logged at this one.

    Where subscribers log conflicts too, these have the same ids.
    """
    return (
        in_reach(replica) if any(row.decentralized_conflicts for row in replica.publications) else [replica]
    )


def _gone(replica: Replica, rows: Sequence[ConflictRow]) -> set[str]:
    ids = [row.conflict_id for row in rows if row.is_undecided]
    if not ids:
        return set()
    where = refused_and_gone(in_reach(replica))
    if len(ids) <= _MOST_NAMED:
        where += f" and {CONFLICT_ID} in ({text_literals(ids)})"
    return {
        row[CONFLICT_ID]
        for row in read_rows(replica.folder / conflicts_info.NAME, (CONFLICT_ID,), where=where)
    }


def refused_and_gone(sources: Iterable[Replica]) -> str:
    """SQL condition of a refused change that was not undone, and that no longer waits at any of these replicas.

    A change of another replica counts as waiting.
    """
    places = []
    for source in sources:
        gone = f"origin_datasource_id = {text_literal(source.info().replid)}"
        waiting = source.waiting_generations()
        if sum(row.changecount for row in waiting) > _MOST_NAMED:
            gone += f" and tablenick not in ({', '.join(sorted({str(row.art_nick) for row in waiting}))})"
        elif waiting:
            of_waiting = f"{contents.GENERATION} in ({', '.join(str(row.generation) for row in waiting)})"
            tables = source.contents, source.tombstone
            guids = {
                row[contents.ROWGUID]
                for table in tables
                for row in read_rows(table, (contents.ROWGUID,), where=of_waiting)
            }
            gone += f" and rowguid not in ({text_literals(sorted(guids))})" if guids else ""
        places.append(f"({gone})")
    refused = ", ".join(map(str, conflicts_info.FAILED_CHANGES))
    return f"(conflict_type in ({refused}) and resolver is null and ({' or '.join(places)}))"


def no_conflict(root: Location, ids: Sequence[str] = ()) -> str:
    """Return the message for ids without a logged conflict, or for an empty choice."""
    named = ", ".join(map(repr, ids))
    what = f"There is no conflict {named}" if named else "No conflict meets these conditions"
    return (
        f"{what} at '{root}': see `mergerepl conflicts list -f {shlex.quote(str(root))}`. Conflicts are logged at the "
        "publisher, unless `conflict_logging` in the file says otherwise."
    )


def require_ids(root: Location, chosen: ConflictFilter) -> None:
    """Check that each id, or beginning of one, names a logged conflict.

    Raises: ConfigurationError.
    """
    if not chosen.ids:
        return
    replica = Replica(root).require()
    conditions = conditions_of(replica, ConflictFilter(ids=chosen.ids))
    found: list[str] = []
    if conditions is not None:
        path = replica.folder / conflicts_info.NAME
        found = [row[CONFLICT_ID] for row in read_rows(path, (CONFLICT_ID,), where=" and ".join(conditions))]
    if missing := chosen.ids_without(found):
        raise ConfigurationError(no_conflict(root, missing), replica=str(root))


def settled_ids(*replicas: Replica) -> set[str]:
    """The ids of the conflicts that were resolved by hand at these replicas."""
    return {
        row[CONFLICT_ID]
        for replica in replicas
        if replica.control.exists(conflict_resolutions.TABLE)
        for row in read_rows(replica.control.path(conflict_resolutions.NAME), (CONFLICT_ID,))
    }


def count_conflicts(root: Location, chosen: ConflictFilter) -> int:
    """Count the conflicts logged at a replica.

    Raises: ConfigurationError if the folder is not a replica or a name is unknown; StoreError.
    """
    replica = Replica(root).require()
    conditions = conditions_of(replica, chosen)
    if conditions is None:
        return 0
    return count_rows(replica.folder / conflicts_info.NAME, where=" and ".join(conditions) or None)


def conditions_of(replica: Replica, chosen: ConflictFilter) -> list[str] | None:
    """Return the SQL conditions of the choice; None if no conflict can have such an id.

    Raises: ConfigurationError if a name is unknown.
    """
    conditions = []
    if chosen.publication is not None:
        conditions.append(f"pubid = '{replica.publication(chosen.publication).pubid}'")
    if chosen.article is not None:
        conditions.append(
            f"tablenick = {article_named(replica, chosen.article, chosen.publication).nickname}"
        )
    if chosen.ids:
        wanted = [each.strip().lower() for each in chosen.ids if _ID.match(each.strip().lower())]
        if not wanted:
            return None
        beginnings = " or ".join(f"conflict_id like '{each}%'" for each in wanted)
        conditions.append(f"({beginnings})")
    conditions += conditions_of_rows(chosen, created='"MSrepl_create_time"')
    if chosen.resolver is not None:
        conditions.append(f"resolver = {text_literal(chosen.resolver)}")
    if chosen.status is not None:
        settled = settled_ids(*_settling(replica))
        is_settled = refused_and_gone(in_reach(replica))
        if settled:
            is_settled += f" or {CONFLICT_ID} in ({text_literals(sorted(settled))})"
        is_open = chosen.status is ConflictStatus.OPEN
        # NULL where the source of a conflict is not noted.
        conditions.append(f"{'not ' * is_open}coalesce({is_settled}, false)")
    return conditions


def conditions_of_rows(chosen: ConflictFilter, *, created: str) -> Iterator[str]:
    """Yield the SQL conditions of the choice by type, time and column; `created` is the column with the time."""
    if chosen.types:
        yield f"conflict_type in ({', '.join(str(int(each)) for each in chosen.types)})"
    for moment, sign in ((chosen.since, ">="), (chosen.until, "<")):
        if moment is not None:
            yield f"{created} {sign} {timestamp_literal(moment)}"
    if chosen.column is not None:
        yield f"array_has(columns, {text_literal(chosen.column)})"


def _records(replica: Replica, rows: Sequence[ConflictRow]) -> tuple[ConflictRecord, ...]:
    kept = {each.nickname: KeptColumns.of(replica, each) for each in replica.articles} if rows else {}
    return tuple(_record(replica, row, kept.get(row.tablenick)) for row in rows)


def _record(replica: Replica, row: ConflictRow, kept: KeptColumns | None) -> ConflictRecord:
    article = kept.article if kept is not None else None
    return ConflictRecord(
        row.conflict_id,
        publication_name(replica, row.pubid),
        article.name if article is not None else f"article {row.tablenick}",
        row.rowguid,
        dict(row.rowkey),
        row.conflict_type,
        row.reason_code,
        row.reason_text,
        row.origin_datasource,
        row.winner_datasource,
        row.MSrepl_create_time,
        is_published=article is not None,
        conflict_columns=row.columns
        if kept is None
        else kept.present_names(row.article_version, row.columns),
        resolver=row.resolver,
        made_columns=tuple(row.made_columns or ()),
        note=row.note,
    )


def _with_rows(replica: Replica, rows: Sequence[ConflictRow]) -> tuple[ConflictRecord, ...]:
    """Add the rows to conflicts; an article that is no longer published has only losing rows."""
    articles = {article.nickname: article for article in replica.articles}
    known = [row for row in rows if row.tablenick in articles]
    losing, versions = _losing_rows(replica, articles, known), _versions(replica, articles, known)
    former = [row.conflict_id for row in rows if row.tablenick not in articles]
    kept = _kept_rows(replica, former) if former else {}
    records = []
    for row, record in zip(rows, _records(replica, rows), strict=True):
        article = articles.get(row.tablenick)
        if article is None:
            record = replace(record, losing_row=kept.get(row.conflict_id))
        else:
            of_row = versions[article.nickname, row.rowguid]
            record = replace(
                record, losing_row=losing.get(row.conflict_id), winning_row=_winning_row(article, row, of_row)
            )
        records.append(record)
    return tuple(records)


def _losing_rows(
    replica: Replica, articles: Mapping[int, PublishedArticle], rows: Iterable[ConflictRow]
) -> dict[str, dict[str, object]]:
    """Return conflict id -> losing row, for conflicts that have one."""
    wanted: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in rows:
        wanted[row.tablenick][row.conflict_id] = row.article_version
    found: dict[str, dict[str, object]] = {}
    for nickname, versions in wanted.items():
        article = articles[nickname]
        columns = KeptColumns.of(replica, article)
        kept = _kept_in(replica.folder / article.conflict_table, columns.all_names, versions)
        found |= {each: columns.losing_row(versions[each], row) for each, row in kept.items()}
    return found


def _kept_rows(replica: Replica, ids: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return conflict id -> losing row from all conflict tables: losing rows stay when their article is removed."""
    about = {column.name for column in CONFLICT_COLUMNS}
    found: dict[str, dict[str, object]] = {}
    for table in replica.conflict_tables():
        found |= _kept_in(table, [name for name in column_names(table) if name not in about], ids)
    return found


def _kept_in(table: Location, columns: Sequence[str], ids: Iterable[str]) -> dict[str, dict[str, object]]:
    lost = read_rows(table, (CONFLICT_ID, *columns), where=f"{CONFLICT_ID} in ({text_literals(ids)})")
    return {row[CONFLICT_ID]: {name: row[name] for name in columns} for row in lost}


def _winning_row(
    article: PublishedArticle, row: ConflictRow, versions: Iterable[Row]
) -> dict[str, object] | None:
    """Return the winning row: the oldest version here that includes the winning change; None if a delete won.

    The resolving session records the outcome, which includes the losing change too. A session of one direction records
    nothing at the winner's replica: there the winner's own version is the oldest one.
    """
    kind = ConflictType(row.conflict_type)
    if (
        row.is_undecided
        or not row.winning_lineage
        or (kind is ConflictType.RESOLUTION and article.rejects == PUBLISHER)
    ):
        # A change that was not taken lost to the row in the table, in any later version.
        return None
    versions = [each for each in versions if covers(each["lineage"], row.winning_lineage)]

    def order(version: Row) -> tuple[bool, int]:
        is_outcome = version[contents.MARKER] == row.session_id and covers(
            version["lineage"], row.losing_lineage
        )
        return not is_outcome, version[contents.SEQ]

    image = min(versions, key=order)["image"] if versions else None
    if image is None:
        return None
    return {name: image.get(field) for name, field in zip(article.columns, article.fields, strict=True)}


def _versions(
    replica: Replica, articles: Mapping[int, PublishedArticle], rows: Iterable[ConflictRow]
) -> defaultdict[tuple[int, str], list[Row]]:
    """Return article and rowguid -> all recorded versions of that row; a delete has no image."""
    guids = defaultdict(set)
    for row in rows:
        guids[row.tablenick].add(row.rowguid)
    found: defaultdict[tuple[int, str], list[Row]] = defaultdict(list)
    if not guids:
        return found
    either = " or ".join(
        f"({contents.TABLENICK} = {nickname} and {contents.ROWGUID} in ({text_literals(sorted(wanted))}))"
        for nickname, wanted in guids.items()
    )
    where = f"({either}) and {contents.SEQ} <= {replica.info().last_seq}"
    names = (contents.TABLENICK, contents.ROWGUID, contents.LINEAGE, contents.MARKER, contents.SEQ)
    images = {
        nickname: [contents.row_column(nickname, each.version) for each in articles[nickname].image_columns]
        for nickname in guids
    }
    live = read_rows(replica.contents, [*names, *chain(*images.values())], where=where)
    deleted = read_rows(replica.tombstone, names, where=where)
    for version in (*live, *deleted):
        nickname = version[contents.TABLENICK]
        held = {
            **version,
            "lineage": dict(version["lineage"] or {}),
            "image": next(
                (version[each] for each in images[nickname] if version.get(each) is not None), None
            ),
        }
        found[nickname, version[contents.ROWGUID]].append(held)
    return found


def conflict_frame(
    spark: "SparkSession", root: Location, *, publication: str | None = None, article: str
) -> "DataFrame":
    """Return one article's conflicts: the losing row's columns, then those of MSmerge_conflicts_info.

    A losing delete has NULL in the columns of the row. If a column of MSmerge_conflicts_info has the name of an
    article's column, it is renamed to `info_<name>`.

    Raises: ConfigurationError if the folder is not a replica or has no such article; StoreError if a table is gone or
    damaged.
    """
    from pyspark.sql import functions as F

    from mergerepl.delta import appended
    from mergerepl.rows.sql import quote
    from mergerepl.spark.plain import plain_errors

    replica = Replica(root).require()
    chosen = article_named(replica, article, publication)
    with plain_errors(f"reading the conflicts of article '{article}' at '{root}'"):
        infos = appended.read(spark, replica.folder / conflicts_info.NAME)
        losers = appended.read(spark, replica.folder / chosen.conflict_table)
    infos = infos.where(F.col("tablenick") == chosen.nickname)
    taken = {name.lower() for name in chosen.columns}
    own = {column.name for column in CONFLICT_COLUMNS if column.name.lower() not in taken} - {CONFLICT_ID}
    losers = losers.drop(*own)
    fields = [
        F.col(f"i.{quote(name)}").alias(f"info_{name}" if name.lower() in taken else name)
        for name in infos.columns
    ]
    joined = infos.alias("i").join(
        losers.alias("l"), on=F.col(f"i.{CONFLICT_ID}") == F.col(f"l.{CONFLICT_ID}"), how="left"
    )
    columns, version = KeptColumns.of(replica, chosen), F.col("i.article_version")
    losing = (columns.losing_field(f, version, table="l.").alias(name) for f, name in columns.now.items())
    return joined.select(*losing, *fields)


_COLUMNS = ("tablenick", "conflict_type", "resolver", "MSrepl_create_time", "columns")


def conflict_summary(root: Location, chosen: ConflictFilter) -> tuple[ConflictCount, ...]:
    """Count the conflicts by day, newest first. Starts no engine.

    Raises: ConfigurationError if the folder is not a replica or a name is unknown; StoreError.
    """
    replica = Replica(root).require()
    conditions = conditions_of(replica, chosen)
    if conditions is None:
        return ()
    path = replica.folder / conflicts_info.NAME
    names = {article.nickname: article.name for article in replica.articles}
    counts: Counter[tuple[str, int, str | None, str]] = Counter()
    columns: defaultdict[tuple[str, int, str | None, str], Counter[str]] = defaultdict(Counter)
    for row in read_rows(path, _COLUMNS, where=" and ".join(conditions) or None):
        name = names.get(row["tablenick"], f"article {row['tablenick']}")
        day = row["MSrepl_create_time"].astimezone(UTC).date().isoformat()
        group = (name, row["conflict_type"], row["resolver"], day)
        counts[group] += 1
        columns[group].update(row["columns"] or ())
    newest_first = sorted(counts, key=lambda group: (group[3], counts[group]), reverse=True)
    return tuple(
        ConflictCount(*group, conflicts=counts[group], columns=dict(columns[group].most_common()))
        for group in newest_first
    )

"""`mergerepl row`: one row's lineage, colv1 and values at every replica (sp_showrowreplicainfo)."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

from mergerepl.delta.sql_text import quoted, text_literal, timestamp_literal
from mergerepl.delta.tables import Row, column_names, head_version, open_table, read_rows
from mergerepl.errors import ConfigurationError, MergeReplError, SchemaMismatchError, StoreError
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.model.article import PublishedArticle
from mergerepl.model.replica_status import ColumnVersion, RowInfo, RowPartition, RowReplicaInfo
from mergerepl.model.words import text_of
from mergerepl.monitoring.parties import article_named, members
from mergerepl.monitoring.waiting import head_or_problem
from mergerepl.replica.replica import Replica
from mergerepl.rows.arrow_values import python_values
from mergerepl.rows.lineage_value import covers, merge
from mergerepl.rows.rowguid import KeyValue, base_type, key_value, rowguid_of
from mergerepl.store.location import Location
from mergerepl.systables import contents, partitions
from mergerepl.systables.partitions import EVERYBODY, Reason, addressed_to
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.schema_checks import require_columns

log = logging.getLogger(__name__)

CONTENTS = "contents"
TOMBSTONE = "tombstone"
NONE = "none"

_ROUNDED = ("decimal", "timestamp", "timestamp_ntz")
"""Types whose bounds in a log are rounded: deltalake states those of decimals as doubles, Spark times in milliseconds."""

_CHAR = re.compile(r"char\((\d+)\)")


def row_info(
    root: Location, *, article: str, key: Mapping[str, str], publication: str | None = None
) -> RowInfo:
    """Return every replica's metadata and values of one row; names the replicas out of reach.

    Any replica of the publication can be the `root`: a subscriber reaches the others through its publisher. `key` maps
    each identifying column to its value as text. `publication` is needed if several have such an article.

    Raises: ConfigurationError if a name is unknown or the key does not fit; StoreError.
    """
    asked = Replica(root).require()
    chosen = article_named(asked, article, publication)
    typed = _key_values(chosen, key)
    reached, out_of_reach = members(asked, chosen.pubid)
    alike: list[tuple[Replica, PublishedArticle]] = []
    damaged: list[RowReplicaInfo] = []
    for replica in reached:
        try:
            alike += [(replica, same) for same in replica.articles if same.artid == chosen.artid]
        except StoreError as error:
            damaged.append(_unknown(replica, error))
    stored = (_as_stored(replica.table(same), same, typed) for replica, same in alike)
    values = next((each for each in stored if each is not None), typed)
    rowguid = _rowguid(chosen, values)
    found: list[RowReplicaInfo] = []
    for replica, same in alike:
        try:
            found.append(_at_replica(replica, same, values, rowguid))
        except StoreError as error:
            if replica.root == asked.root:
                raise
            damaged.append(_unknown(replica, error))
    newest: dict[int, int] = {}
    for each in found:
        newest = merge(newest, each.lineage)
    floor = asked.settled(chosen.pubid)
    # A damaged replica may or may not be up to date.
    publisher = next((each for each in alike if each[0].publishes(chosen.pubid)), None)
    partitions = row_partitions(*publisher, rowguid) if publisher is not None else ()
    sent_to = sent_partitions(*publisher) if publisher is not None else {}
    shown = [*(_compared(each, newest, floor, sent_to, partitions) for each in found), *damaged]
    order = [str(replica.root) for replica in reached]
    replicas = tuple(sorted(shown, key=lambda each: order.index(each.replica)))
    return RowInfo(
        chosen.publication, chosen.name, dict(key), rowguid, replicas, tuple(out_of_reach), partitions
    )


def _compared(
    each: RowReplicaInfo,
    newest: Mapping[int, int],
    floor: int,
    sent_to: Mapping[int, Collection[int]],
    partitions: Sequence[RowPartition],
) -> RowReplicaInfo:
    """Set whether a replica's row is up to date.

    `newest` is the union of the lineages at the replicas in reach. Versions up to `floor` count as known. `sent_to`
    has each subscriber's partitions by its nickname, except subscribers of all rows. `partitions` are those of the row.
    """
    is_current = covers(each.lineage, newest, floor)
    sent = sent_to.get(each.nickname, frozenset())
    # Moves that one subscriber alone got say nothing about the others.
    known = [row for row in partitions if row.partition_id >= EVERYBODY or row.partition_id in sent]
    members = {row.partition_id for row in known if row.reason is None}
    is_outside = each.nickname in sent_to and members.isdisjoint(sent)
    is_outside = is_outside and each.row is None and each.problem is None
    # A row without a partition was deleted, or is as published: a replica that has its metadata is up to date.
    has_moved = any(row.partition_id < EVERYBODY for row in known)
    is_outside = is_outside and not (is_current and not members and not has_moved)
    return replace(each, current=is_current or is_outside, outside=is_outside)


def _key_values(article: PublishedArticle, key: Mapping[str, str]) -> list[KeyValue]:
    if set(key) != set(article.identity):
        raise ConfigurationError(
            f"Article '{article.name}' is identified by {', '.join(article.identity)}; the key given names "
            f"{', '.join(sorted(key)) or 'no column'}. Give each of them once, as COLUMN=VALUE.",
            article=article.name,
        )
    values = []
    for name, type_ in zip(article.identity, _identity_types(article), strict=True):
        try:
            values.append(key_value(key[name], type_))
        except ValueError as error:
            raise ConfigurationError(
                f"Key column '{name}' of article '{article.name}' is of type {type_}: {error}. Correct the "
                f"value after `{name}=`.",
                article=article.name,
            ) from error
    return values


def _as_stored(
    table: Location, article: PublishedArticle, values: Sequence[KeyValue]
) -> list[KeyValue] | None:
    """Return key values as a table stores them: it pads char(n) columns. None if unknown."""
    try:
        state = open_table(table)
    except StoreError as error:
        # Another replica's table may declare them; the problem of this one is reported with the row.
        log.info("%s: its declared types are not known: %s", table, error)
        return None
    declared = {name: _CHAR.fullmatch(state.declared_lengths(name)) for name in article.identity}
    return [
        value.ljust(int(char[1])) if (char := declared.get(name)) and isinstance(value, str) else value
        for name, value in zip(article.identity, values, strict=True)
    ]


def _identity_types(article: PublishedArticle) -> list[str]:
    types = dict(zip(article.columns, article.types, strict=True))
    return [types[name] for name in article.identity]


def _rowguid(article: PublishedArticle, values: Sequence[KeyValue]) -> str:
    if article.rowguid_column is not None:
        return str(values[0]).lower()
    return rowguid_of(values, _identity_types(article))


def _unknown(replica: Replica, error: StoreError) -> RowReplicaInfo:
    """Return the entry of a replica whose system tables cannot be read."""
    nickname = replica.info().nickname
    return RowReplicaInfo(
        str(replica.root), nickname, NONE, None, {}, (), None, current=False, problem=error.message
    )


def _at_replica(
    replica: Replica, article: PublishedArticle, values: Sequence[KeyValue], rowguid: str
) -> RowReplicaInfo:
    info = replica.info()
    source, known = _metadata(replica, info, article, rowguid)
    row, problem = _row(replica, article, values)
    colv = known.get("colv1") or {}
    versions = [
        ColumnVersion(name, colv[field]["nickname"], colv[field]["version"])
        for name, field in zip(article.columns, article.fields, strict=True)
        if field in colv
    ]
    return RowReplicaInfo(
        str(replica.root),
        info.nickname,
        source,
        known.get("generation"),
        dict(known.get("lineage") or {}),
        tuple(versions),
        row,
        current=False,
        problem=problem,
    )


def _metadata(
    replica: Replica, info: ReplicaInfo, article: PublishedArticle, rowguid: str
) -> tuple[str, Row]:
    """Return a row's metadata and its table: the higher seq of contents and tombstone counts."""
    names = [contents.GENERATION, contents.LINEAGE, contents.SEQ]
    text = _literal(rowguid, "string")
    where = f"tablenick = {article.nickname} and rowguid = {text} and {contents.SEQ} <= {info.last_seq}"
    where += f" and {contents.GENERATION} > {info.cleaned.get(article.nickname, -1)}"
    latest = f"order by {contents.SEQ} desc limit 1"
    live = read_rows(replica.contents, [*names, contents.COLV1], where=where, order_limit=latest)
    deleted = read_rows(replica.tombstone, names, where=where, order_limit=latest)
    candidates = [(CONTENTS, row) for row in live] + [(TOMBSTONE, row) for row in deleted]
    return max(candidates, key=lambda each: int(each[1][contents.SEQ]), default=(NONE, {}))


def _row(
    replica: Replica, article: PublishedArticle, values: Sequence[KeyValue]
) -> tuple[dict[str, str | None] | None, str | None]:
    """Return the published columns of the row as text, None if the table lacks the row; or the read error."""
    table = replica.table(article)
    try:
        require_columns(article, table, column_names(table))
        found = _row_by_delta_rs(table, article, values)
    except SchemaMismatchError as error:
        return None, error.message
    except MergeReplError:
        # A replica without its table is reported with the others; this needs no engine.
        _, problem = head_or_problem(article, table)
        if problem is not None:
            return None, problem
        # Spark reads tables that delta-rs cannot (deletion vectors, column mapping, newer types).
        from mergerepl.spark.plain import plain_errors

        try:
            with plain_errors(f"reading a row of '{table}'"):
                found = _row_by_spark(table, article, values)
        except SchemaMismatchError as error:
            return None, error.message
    return {name: text_of(value) for name, value in found.items()} if found is not None else None, None


def _row_by_delta_rs(table: Location, article: PublishedArticle, values: Sequence[KeyValue]) -> Row | None:
    """Raises: StoreError if delta-rs cannot read the table."""
    conditions = []
    for name, value, type_ in zip(article.identity, values, _identity_types(article), strict=True):
        column = quoted(name)
        if article.rowguid_column is not None:
            column, value = f"lower({column})", str(value).lower()
        elif base_type(type_) in _ROUNDED:
            # Otherwise these bounds would skip a file, or treat all its rows as having the key.
            column = f"nullif({column}, null)"
        conditions.append(f"{column} = {_literal(value, type_)}")
    rows = read_rows(table, article.columns, where=" and ".join(conditions), order_limit="limit 1")
    return rows[0] if rows else None


def _literal(value: KeyValue, type_: str) -> str:
    match base_type(type_), value:
        case "binary", bytes():
            return f"X'{value.hex()}'"
        case "boolean", bool():
            return str(value).lower()
        case "date", date():
            return f"cast('{value}' as date)"
        case "timestamp" | "timestamp_ntz", datetime():
            return timestamp_literal(value)
        case "decimal", Decimal():
            return f"cast('{value:f}' as {type_})"
        case "string", str():
            return text_literal(value)
    return str(value)


def _row_by_spark(table: Location, article: PublishedArticle, values: Sequence[KeyValue]) -> Row | None:
    """Raises: SchemaMismatchError if the table lacks a published column."""
    from pyspark.sql import functions as F

    from mergerepl.delta.tables import read_version
    from mergerepl.rows.images import comparable
    from mergerepl.rows.sql import quote
    from mergerepl.spark import session as engine

    rows = read_version(engine.session(), table, head_version(table))
    require_columns(article, table, rows.columns)
    types = {field.name: field.dataType for field in rows.schema}
    for name, value in zip(article.identity, values, strict=True):
        column = F.col(quote(name))
        if article.rowguid_column is not None:
            rows = rows.where(F.lower(column) == str(value).lower())
            continue
        # As text: Spark would read a time without a zone in the zone of this process.
        wanted = F.lit(bytearray(value) if isinstance(value, bytes) else text_of(value)).cast(types[name])
        # In an array they are not compared with the bounds of files: see `_ROUNDED`.
        one, other = (F.array(comparable(each, types[name])) for each in (column, wanted))
        rows = rows.where(one == other)
    found = rows.select(*(quote(name) for name in article.columns)).limit(1).toArrow()
    values_of = {name: python_values(found.column(name)) for name in found.column_names}
    return {name: each[0] for name, each in values_of.items()} if found.num_rows else None


def row_partitions(publisher: Replica, article: PublishedArticle, rowguid: str) -> tuple[RowPartition, ...]:
    """Return the partitions that a row is in and those that it left, by id; empty if the article is not filtered.

    Reads: MSmerge_current_partition_mappings, MSmerge_past_partition_mappings, netted; MSmerge_partition_groups.
    """
    if not any(row.filters for row in publisher.published if row.pubid == article.pubid):
        return ()
    where = (
        f"tablenick = {article.nickname} and rowguid = {text_literal(rowguid)} "
        f"and {contents.SEQ} <= {publisher.info().last_seq}"
    )
    names = [partitions.PARTITION_ID, contents.GENERATION, contents.SEQ]
    current = read_rows(publisher.folder / partitions.CURRENT.name, names, where=where)
    past = read_rows(publisher.folder / partitions.PAST.name, [*names, partitions.REASON], where=where)
    newest: dict[int, Row] = {}
    for row in sorted([*current, *past], key=lambda row: int(row[contents.SEQ])):
        newest[row[partitions.PARTITION_ID]] = row
    movers = {addressed_to(row.replnickname): row for row in publisher.relations(article.pubid)}
    for number in [each for each in newest if each < EVERYBODY]:
        mover = movers.get(number)
        later = (EVERYBODY, None if mover is None else mover.partition_id)
        seq = int(newest[number][contents.SEQ])
        if mover is None or any(each in newest and int(newest[each][contents.SEQ]) > seq for each in later):
            # The row has moved since.
            del newest[number]
    groups = {group.partition_id: group for group in publisher.control.rows(partitions.PARTITION_GROUPS)}
    return tuple(
        RowPartition(
            number,
            groups[number].HOST_NAME_FN if number in groups else None,
            groups[number].SUSER_SNAME_FN if number in groups else None,
            row[contents.GENERATION],
            Reason(row[partitions.REASON]).name.lower() if row.get(partitions.REASON) is not None else None,
            movers[number].subscriber_server if number in movers else "",
        )
        for number, row in sorted(newest.items(), key=lambda each: (each[0] < EVERYBODY, each[0]))
    )


def sent_partitions(publisher: Replica, article: PublishedArticle) -> dict[int, frozenset[int]]:
    """Return the partitions and moves that each subscriber gets, by its nickname; empty if the article is not filtered."""
    publication = filtered_publication(publisher, article.pubid)
    if publication is None or article.nickname not in publication.tablenicks:
        return {}
    return {
        row.replnickname: frozenset({EVERYBODY, row.partition_id, addressed_to(row.replnickname)})
        for row in publisher.relations(article.pubid)
        if row.partition_id is not None and not row.is_ended
    }

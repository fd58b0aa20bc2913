"""The partitions of one row, as a publisher's mapping tables say. No engine."""

from mergerepl.delta.sql_text import text_literal
from mergerepl.delta.tables import Row, read_rows
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import RowPartition
from mergerepl.replica.replica import Replica
from mergerepl.systables import contents, partitions
from mergerepl.systables.partitions import EVERYBODY, Reason


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
    groups = {group.partition_id: group for group in publisher.control.rows(partitions.PARTITION_GROUPS)}
    return tuple(
        RowPartition(
            number,
            groups[number].HOST_NAME_FN if number in groups else None,
            groups[number].SUSER_SNAME_FN if number in groups else None,
            row[contents.GENERATION],
            Reason(row[partitions.REASON]).name.lower() if row.get(partitions.REASON) is not None else None,
        )
        for number, row in sorted(newest.items())
    )


def sent_partitions(publisher: Replica, article: PublishedArticle) -> dict[int, frozenset[int]]:
    """Return the partitions that each subscriber gets, by its nickname; empty if the article is not filtered."""
    publication = filtered_publication(publisher, article.pubid)
    if publication is None or article.nickname not in publication.tablenicks:
        return {}
    return {
        row.replnickname: frozenset({EVERYBODY, row.partition_id})
        for row in publisher.relations(article.pubid)
        if row.partition_id is not None and not row.is_ended
    }

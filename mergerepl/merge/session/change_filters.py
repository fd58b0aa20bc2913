"""Another row filter, or other joins, of articles that subscribers have: the rows whose partitions change move.

`apply` captures the publisher under the old filters. One commit of MSmerge_replinfo then moves the definitions of the
changed articles, with a run of mapping rows: a leave and an enter for each row that is in other partitions by the new
filters. Each subscriber's next session sends them like any other move of rows, after the changes of the subscriber.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from enumeration.partition_actions import is_seen
from mergerepl.changes import ROW, ROWGUID
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.tables import open_table
from mergerepl.failpoints import failpoint
from mergerepl.filters.columns import spark_operation
from mergerepl.filters.publication_filters import PublicationFilters, with_next
from mergerepl.frames import Column, DataFrame, F
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication
from mergerepl.merge.partitions.join_bounds import equal_columns
from mergerepl.merge.partitions.membership import (
    AFTER,
    BEFORE,
    IS,
    WAS,
    WRITTEN,
    Base,
    MembershipPass,
    base_rows,
    group_rows,
    with_rowguid,
)
from mergerepl.merge.schema.follow import article_row, enter_changed_filter
from mergerepl.merge.session.moved_rows import MovedRows, commit_moves
from mergerepl.model.progress import Progress
from mergerepl.publish.filters import FilterChange
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.systables import catalog
from mergerepl.systables.partitions import REASON, Reason
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.partition_mappings import KIND, Kind, is_touched, partition_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def change_filters(
    publisher: Replica,
    pubid: str,
    change: FilterChange,
    *,
    spark_of: "Callable[[], SparkSession]",
    in_process: bool,
    progress: Progress,
) -> None:
    """Give a publication of a held publisher, which was captured under the old filters, other filters.

    Raises: as a capture; nothing counts.
    """
    progress.step("filter")
    old = filtered_publication(publisher, pubid)
    assert old is not None
    info = publisher.info()
    versions = dict(info.article_versions)
    first = None
    for name, said in change.articles.items():
        row = article_row(publisher, old.articles[name].nickname)
        failpoint("filter.before_definition")
        after = enter_changed_filter(publisher, row, said)
        versions[row.nickname] = after.version
        first = first or (row.nickname, after.filter_number)
    failpoint("filter.after_definitions")
    assert first is not None
    stored = with_next(old.filters.to_json(), change.filters, tablenick=first[0], number=first[1])
    publisher.control.change_where(catalog.PUBLICATIONS, {"filters": stored}, pubid=pubid)
    failpoint("filter.after_next")
    new = _changed(publisher, old, change)
    after_info = replace(info, article_versions=versions)
    with plain_errors(f"changing the row filters of '{publisher.root}'"):
        _move(publisher, old, new, list(change.articles), after_info, spark_of, in_process=in_process)
    failpoint("filter.after_move")
    publisher.control.change_where(catalog.PUBLICATIONS, dict(change.columns), pubid=pubid)


def planned_moves(
    publisher: Replica, pubid: str, change: FilterChange, partitions: Collection[int]
) -> dict[str, dict[int, tuple[int, int]]] | None:
    """Return by article how many rows enter and leave each of some partitions, as the tables are now; None if only Spark
    can count them, or there are many.

    Nothing is locked or written.
    """
    old = filtered_publication(publisher, pubid)
    if old is None:
        return None
    new = _changed(publisher, old, change)
    if not all(_is_plain(each) for each in (old, new)):
        return None
    heads = {each.nickname: open_table(publisher.table(each)).version for each in new.articles.values()}
    choice = EngineChoice(uses_arrow=True, in_process=True)
    spark, kept = choice.for_rules, Kept()
    wanted, found = tuple(partitions), {}
    try:
        with choice.rules():
            base = base_rows(spark, publisher, new.articles, heads)
            passes = [MembershipPass(each, group_rows(spark, each.groups), base, kept) for each in (old, new)]
            for name in affected_articles(old.filters, new.filters, change.articles):
                counts = _counts(wanted)
                row = _moved(passes, name, base, kept).agg(*counts).collect()[0].asDict() if counts else {}
                found[name] = {each: (row[f"in{each}"], row[f"out{each}"]) for each in wanted}
    except NeedsSparkError:
        return None
    finally:
        kept.release()
    return found


def _counts(partitions: Iterable[int]) -> list[Column]:
    """Return the numbers of rows that enter (`in<partition>`) and leave each partition; rows for everybody are in all."""
    sides = ((WAS, IS, "in"), (IS, WAS, "out"))
    return [
        F.count_if(is_seen(after, each) & ~is_seen(before, each)).alias(f"{name}{each}")
        for each in partitions
        for before, after, name in sides
    ]


def _changed(publisher: Replica, old: FilteredPublication, change: FilterChange) -> FilteredPublication:
    """Return a publication with the filters of a change."""
    by_name = {article.name: article for article in publisher.articles_of(old.pubid)}
    return replace(
        old, filters=change.filters, articles={name: by_name[name] for name in change.filters.order}
    )


def _move(
    publisher: Replica,
    old: FilteredPublication,
    new: FilteredPublication,
    changed: Iterable[str],
    info: ReplicaInfo,
    spark_of: "Callable[[], SparkSession]",
    *,
    in_process: bool,
) -> None:
    """Commit the run of the rows that move, and the definitions with it."""
    if in_process and all(_is_plain(each) for each in (old, new)):
        choice = EngineChoice(uses_arrow=True, in_process=True, spark_of=spark_of)
        try:
            with choice.rules():
                return _commit(publisher, old, new, changed, info, choice)
        except NeedsSparkError:
            # Nothing was committed.
            pass
    return _commit(publisher, old, new, changed, info, EngineChoice(uses_arrow=False, spark_of=spark_of))


def _is_plain(publication: FilteredPublication) -> bool:
    """Whether this process can evaluate the filters."""
    filters = publication.filters
    return spark_operation(filters) is None and all(
        equal_columns(each, each.article, publication.articles) for each in filters.joins
    )


def _commit(
    publisher: Replica,
    old: FilteredPublication,
    new: FilteredPublication,
    changed: Iterable[str],
    info: ReplicaInfo,
    choice: EngineChoice,
) -> None:
    spark, kept, found = choice.for_rules, Kept(), {}
    try:
        base = base_rows(spark, publisher, new.articles, info.captured)
        passes = [MembershipPass(each, group_rows(spark, each.groups), base, kept) for each in (old, new)]
        for name in affected_articles(old.filters, new.filters, changed):
            moved = kept.keep(_moved(passes, name, base, kept))
            count = moved.count()
            if count:
                rows = moved.select(ROWGUID, F.col(AFTER).alias(ROW))
                found[name] = MovedRows(rows, count, partial(_events, moved))
        failpoint("filter.before_run")
        commit_moves(spark, publisher, new, found, info, kept)
    finally:
        kept.release()


def affected_articles(old: PublicationFilters, new: PublicationFilters, changed: Iterable[str]) -> list[str]:
    """Return the changed articles, and those whose rows follow theirs by the old or the new joins, parents first."""
    found: set[str] = set()
    following = set(changed)
    while following:
        found |= following
        joins = (join for filters in (old, new) for join in filters.joins)
        following = {join.article for join in joins if join.parent in found} - found
    return [name for name in new.order if name in found and old.is_filtered(name) and new.is_filtered(name)]


def _moved(passes: Iterable[MembershipPass], name: str, base: Base, kept: Kept) -> DataFrame:
    """Return the MEMBERSHIPS of an article's rows that are in other partitions by the second pass."""
    old, new = passes
    rows = kept.keep(with_rowguid(base(name, None), new.publication.articles[name]))
    was, is_ = old.of_table(name, rows).withColumnRenamed(IS, WAS), new.of_table(name, rows)
    both = rows.join(was, on=ROWGUID, how="left").join(is_, on=ROWGUID, how="left")
    nowhere = F.array().cast("array<int>")
    return both.select(
        ROWGUID,
        F.col(ROW).alias(BEFORE),
        F.col(ROW).alias(AFTER),
        F.lit(False).alias(WRITTEN),
        F.coalesce(WAS, nowhere).alias(WAS),
        F.coalesce(IS, nowhere).alias(IS),
    ).where(is_touched())


def _events(moved: DataFrame, generation: int) -> DataFrame:
    """Return the EVENTS of rows that move."""
    events = partition_events(moved, generation=generation)
    return events.withColumn(REASON, F.when(F.col(KIND) == Kind.LEAVE.value, F.lit(int(Reason.FILTER))))

"""The partitions of rows before and after a change. No other module computes them.

A row is in a partition by its article's own filter, or because it follows a row in the partition through a join filter.
Memberships are computed only for rows that a change may move: the changed rows, and the unchanged rows that follow a
row whose join columns or membership changed. Parents come first. Unchanged rows are read from one version of each
table. All partitions are computed at once, without a loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
from pyspark.sql import SparkSession

from enumeration.partition_actions import is_seen
from mergerepl.changes import ROW, ROWGUID
from mergerepl.delta.commit_files import few_rows, frame_here, rows_having
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import open_table, read_columns
from mergerepl.filters.clause import Column as ClauseColumn
from mergerepl.filters.clause import SessionFunction
from mergerepl.filters.columns import column_of, holds
from mergerepl.filters.publication_filters import JoinFilter, Part, parts_of
from mergerepl.filters.stated import ONE_SUBSCRIPTION
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.merge.partitions.filtered import FilteredPublication, function_column
from mergerepl.merge.partitions.join_bounds import Sought, Values, looked_for
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.rows.images import image_type, rowguid_of_image, stored_image
from mergerepl.spark.in_memory import Kept, broadcast_if_few, frame_of, in_one_task, is_for_one_task
from mergerepl.systables.partitions import EVERYBODY, PARTITION_ID, PartitionGroup

BEFORE = "before"
AFTER = "after"
WAS = "was"
IS = "is"
WRITTEN = "written"
"""Columns of CHANGED: rowguid, before and after (images, NULL: no row), written (false: it is only looked at).
Of MEMBERSHIPS: CHANGED, was and is (arrays of partition ids in order)."""

_SIDE = "side"
_AT = "at"
_OLD, _NEW = 0, 1
_PARENT_ROW = "parent_row"
_MEMBERS = "members"
_MOVES = "moves"

_FILES_READ_WHOLE = 100
"""More files than these are chosen by their bounds, by Delta."""

_GROUPS = pa.schema(
    {PARTITION_ID: pa.int32(), **{function_column(each): pa.string() for each in SessionFunction}}
)


def group_rows(spark: SparkSession, groups: Iterable[PartitionGroup]) -> DataFrame:
    """Return the partitions with their values: partition_id, HOST_NAME_FN, SUSER_SNAME_FN."""
    rows = [{name: getattr(each, name) for name in _GROUPS.names} for each in groups]
    # Spark would read rows of Python objects through a Python worker each time.
    return frame_of(spark, pa.Table.from_pylist(rows, schema=_GROUPS))


Base = Callable[[str, Sought | None], DataFrame]
"""Gives the rows of an article by its name, as one column `row`: those that did not change and meet what is sought (None:
all)."""


def base_rows(
    spark: SparkSession,
    replica: Replica,
    articles: Mapping[str, PublishedArticle],
    versions: Mapping[int, int],
) -> Base:
    """Return a reader of the articles' tables at these versions (by tablenick)."""

    def rows(name: str, sought: Sought | None) -> DataFrame:
        article = articles[name]
        path, version = replica.table(article), versions[article.nickname]
        if isinstance(sought, Values):
            state = open_table(path, version)
            if (problem := article_problem(state, article)) is not None:
                raise NeedsSparkError(problem, path)
            table = frame_here(rows_having(state, article.columns, {sought.column: sought.values}), state)
        elif is_in_process():
            if sought is not None:
                raise NeedsSparkError("a row filter that selects rows by an expression", path)
            state = open_table(path, version)
            table = frame_here(few_rows(state, article.columns, is_key=False), state)
        else:
            table = read_columns(spark, path, version, article.columns, files_at_most=_FILES_READ_WHOLE)
            if sought is not None:
                table = table.where(sought)
        return table.select(stored_image(article).alias(ROW))

    return rows


@dataclass(frozen=True)
class Changed:
    """CHANGED of one article, and an upper bound of its row count."""

    rows: DataFrame
    count: int


@dataclass
class MembershipPass:
    """Computes memberships of one publication, article by article, parents first.

    Attributes:
        publication: The filters, the partitions and the articles.
        groups: The partitions (`group_rows`).
        base: The unchanged rows.
        kept: Holds the results until their reader is done.
        found: Article name -> MEMBERSHIPS, for articles that have any.
        counts: The row counts of `found`.
        bound: Rows (rowguid) by article name that stay as they were unless they end up in one of the partitions `bound_to`.
        bound_to: Partitions.
        outside: The rows (rowguid) of `bound` that stayed as they were, for articles that have any.
        moved: By join, what followers of moved rows meet; a join is absent if no parent moved.
    """

    publication: FilteredPublication
    groups: DataFrame
    base: Base
    kept: Kept
    found: dict[str, DataFrame] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    bound: Mapping[str, DataFrame] = field(default_factory=dict)
    bound_to: Sequence[int] = ()
    outside: dict[str, DataFrame] = field(default_factory=dict)
    moved: dict[JoinFilter, Sought] = field(default_factory=dict)

    def run(self, changed: Mapping[str, Changed]) -> dict[str, DataFrame]:
        """Return MEMBERSHIPS by article name.

        Reads: CHANGED by article name; an article without changes is left out.
        """
        for name in self.publication.articles:
            affected = self._affected(name, changed.get(name))
            if affected is None:
                continue
            self._evaluate(name, affected)
            if name in self.bound and (put_back := self._put_back(name, affected)) is not None:
                self._evaluate(name, put_back)
            self._look_for_children(name)
        return {name: self._read(name, rows) for name, rows in self.found.items()}

    def _read(self, name: str, rows: DataFrame) -> DataFrame:
        """Return the MEMBERSHIPS of an article of which mappings are written.

        With ONE_SUBSCRIPTION only those in a partition that a subscription has: nobody reads the others.
        """
        read = self._with_readers(name)
        return rows if read is None else rows.withColumns({e: F.array_intersect(e, read) for e in (WAS, IS)})

    def _with_readers(self, name: str) -> Column | None:
        """Return the partitions of which mappings of an article are written; None for all."""
        if self.publication.articles[name].partition_options < ONE_SUBSCRIPTION:
            return None
        return F.array(*(F.lit(each) for each in (EVERYBODY, *sorted(self.publication.subscribed))))

    def of_table(self, name: str, rows: DataFrame) -> DataFrame:
        """Return the partitions (rowguid, is) of all rows (rowguid, row) of an article, but for those in none."""
        images = rows.select(ROWGUID, F.lit(_NEW).alias(_AT), ROW)
        count, sought = self._sought(name, images, None)
        members = self.members(name, images, (ROWGUID,), sought, count=count)
        by_row = members.groupBy(ROWGUID).agg(F.sort_array(F.collect_set(PARTITION_ID)).alias(IS))
        read = self._with_readers(name)
        return by_row if read is None else by_row.withColumn(IS, F.array_intersect(IS, read))

    def _put_back(self, name: str, affected: Changed) -> Changed | None:
        """Return CHANGED with the bound rows that lie outside as they were; None if all lie inside."""
        count = self.counts[name]
        outside = self.found[name].where(~is_seen(IS, *self.bound_to)).select(ROWGUID)
        outside = in_one_task(outside, count)
        outside = self.kept.keep(outside.join(in_one_task(self.bound[name], count), on=ROWGUID))
        if not outside.count():
            return None
        self.outside[name] = outside
        marked = in_one_task(outside, count).withColumn("is_outside", F.lit(True))
        rows = in_one_task(affected.rows, count).join(marked, on=ROWGUID, how="left")
        after = F.when(F.col("is_outside"), F.col(BEFORE)).otherwise(F.col(AFTER))
        whole = rows.withColumn(AFTER, after).select(*affected.rows.columns)
        return Changed(self.kept.keep(whole), affected.count)

    def _evaluate(self, name: str, changed: Changed) -> None:
        affected, count = changed.rows, changed.count
        sides = [
            affected.where(F.col(image).isNotNull()).select(
                ROWGUID, F.lit(side).alias(_SIDE), F.lit(side).alias(_AT), F.col(image).alias(ROW)
            )
            for side, image in ((_OLD, BEFORE), (_NEW, AFTER))
        ]
        images = sides[0].unionByName(sides[1])
        sought = self._sought(name, images, 2 * count)[1] if self.publication.filters.joins_of(name) else {}
        members = self.members(name, images, (ROWGUID, _SIDE), sought, count=2 * count)

        def of(side: int) -> Column:
            return F.sort_array(F.collect_set(F.when(F.col(_SIDE) == side, F.col(PARTITION_ID))))

        by_row = in_one_task(members, count).groupBy(ROWGUID).agg(of(_OLD).alias(WAS), of(_NEW).alias(IS))
        rows = in_one_task(affected, count).join(in_one_task(by_row, count), on=ROWGUID, how="left")
        rows = rows.withColumns({each: F.coalesce(each, F.array().cast("array<int>")) for each in (WAS, IS)})
        self.found[name] = self.kept.keep(rows.withColumn(_MOVES, self._moves(name)))
        self.counts[name] = count

    def _look_for_children(self, name: str) -> None:
        """Note the conditions that followers of an article's moved rows meet."""
        joins = self.publication.filters.joins_to(name)
        if joins:
            images, most = self._moved_images(name), 2 * self.counts[name]
            number, following = looked_for(images, name, joins, self.publication.articles, most=most)
            if number:
                self.moved |= following

    def _moved_images(self, name: str) -> DataFrame:
        """Return the images (`row`), before and after, of the rows that others may follow into another partition."""
        moved = self.found[name].where(_MOVES)
        images = [
            moved.where(F.col(image).isNotNull()).select(F.col(image).alias(ROW)) for image in (BEFORE, AFTER)
        ]
        return images[0].unionByName(images[1])

    def _sought(self, name: str, rows: DataFrame, most: int | None) -> tuple[int, dict[JoinFilter, Sought]]:
        """Count an article's rows (`row`) and return, by join, what their parents meet."""
        joins = self.publication.filters.joins_of(name)
        return looked_for(rows, name, joins, self.publication.articles, most=most)

    def _moves(self, name: str) -> Column:
        """True if followers of this row may move: its membership or a join column changed."""
        columns = dict.fromkeys(
            column for join in self.publication.filters.joins_to(name) for column in join.columns_of(name)
        )
        fields = [_field(self.publication.articles[name], column) for column in columns]

        def contribution(image: str, members: str) -> Column:
            values = [F.col(f"{image}.{each}").alias(each) for each in fields]
            return F.when(F.col(image).isNotNull(), F.struct(*values, F.col(members).alias(_MEMBERS)))

        return ~contribution(BEFORE, WAS).eqNullSafe(contribution(AFTER, IS))

    def _affected(self, name: str, changed: Changed | None) -> Changed | None:
        """Return CHANGED with the unchanged rows that follow a moved one; None if it is empty."""
        joins = [join for join in self.publication.filters.joins_of(name) if join in self.moved]
        if not joins:
            return changed
        article = self.publication.articles[name]
        following = []
        for join in joins:
            images = self._moved_images(join.parent)
            parents = images.select(self._slim(join.parent, ROW, join).alias(_PARENT_ROW))
            parents = broadcast_if_few(parents, 2 * self.counts[join.parent])
            base = self.base(name, self.moved[join])
            following.append(base.join(parents, on=self._on(join), how="left_semi"))
        touched = with_rowguid(reduce(DataFrame.unionByName, following), article)
        if len(joins) > 1:
            touched = touched.dropDuplicates([ROWGUID])
        if changed is not None:
            known = broadcast_if_few(changed.rows.select(ROWGUID), changed.count)
            touched = touched.join(known, on=ROWGUID, how="left_anti")
        touched = self.kept.keep(touched)
        count = touched.count()
        if not count:
            return changed
        affected = touched.select(
            ROWGUID, F.col(ROW).alias(BEFORE), F.col(ROW).alias(AFTER), F.lit(False).alias(WRITTEN)
        )
        if changed is None:
            return Changed(affected, count)
        return Changed(affected.unionByName(changed.rows), count + changed.count)

    def members(
        self,
        name: str,
        rows: DataFrame,
        key: Sequence[str],
        sought: Mapping[JoinFilter, Sought],
        *,
        count: int,
    ) -> DataFrame:
        """Return the partitions of rows: the columns of `key` and partition_id; may have duplicates.

        Reads: `key`, at (the side to look its parents up on), row; at most `count` rows. `sought` is from `_sought`.
        """
        filters = self.publication.filters
        everybody = rows.select(*key, F.lit(EVERYBODY).alias(PARTITION_ID))
        if not filters.is_filtered(name):
            return everybody
        # A child row without a parent belongs to no partition.
        found = [everybody.where(F.lit(False))]
        if name in filters.own:
            found += [self._of_part(name, part, rows, key, count) for part in parts_of(filters.own[name])]
        for join in filters.joins_of(name):
            found += self._of_parents(name, join, rows, key, sought[join], count)
        return reduce(DataFrame.unionByName, found)

    def _of_part(
        self, name: str, part: Part, rows: DataFrame, key: Sequence[str], count: int | None = None
    ) -> DataFrame:
        article = self.publication.articles[name]

        def of_row(column: ClauseColumn) -> Column:
            return F.col(f"{ROW}.{_field(article, column.name)}")

        def value(function: SessionFunction) -> Column:
            return F.col(function_column(function))

        condition: Column = F.lit(True)
        if part.residual is not None:
            condition = holds(part.residual, column=of_row, function=value)
        if part.is_static:
            return rows.where(condition).select(*key, F.lit(EVERYBODY).alias(PARTITION_ID))
        for equality in part.equalities:
            one = column_of(equality.of_row, column=of_row, function=value)
            condition = condition & (one == column_of(equality.of_other, column=of_row, function=value))
        groups = broadcast_if_few(self.groups, len(self.publication.groups))
        if part.equalities and is_for_one_task(count):
            rows, groups = in_one_task(rows, count), in_one_task(self.groups, count)
        return rows.join(groups, on=condition).select(*key, PARTITION_ID)

    def _of_parents(
        self, name: str, join: JoinFilter, rows: DataFrame, key: Sequence[str], sought: Sought, count: int
    ) -> list[DataFrame]:
        known = self.found.get(join.parent)
        slim = rows.select(*key, _AT, self._slim(name, ROW, join).alias(ROW))
        found = []
        if known is not None:
            sides = [
                known.where(F.col(image).isNotNull()).select(
                    F.lit(side).alias("parent_side"),
                    self._slim(join.parent, image, join).alias(_PARENT_ROW),
                    F.col(members).alias(_MEMBERS),
                )
                for side, image, members in ((_OLD, BEFORE, WAS), (_NEW, AFTER, IS))
            ]
            most = max(count, 2 * self.counts[join.parent])
            parents = in_one_task(sides[0].unionByName(sides[1]), most)
            on = (F.col(_AT) == F.col("parent_side")) & self._on(join)
            matched = in_one_task(slim, most).join(parents, on=on)
            found.append(matched.select(*key, F.explode(_MEMBERS).alias(PARTITION_ID)))
        # Unchanged parents are the same on both sides.
        parent = self.publication.articles[join.parent]
        base = self.base(join.parent, sought).select(F.col(ROW).alias(_PARENT_ROW))
        matched = base.join(broadcast_if_few(slim, count), on=self._on(join))
        looked_up = with_rowguid(
            matched.select(*(F.col(each).alias(f"of_{each}") for each in key), F.col(_PARENT_ROW).alias(ROW)),
            parent,
        )
        # Spark plans each level above on its own: in one plan, the tables read twice would double with each level.
        looked_up = self.kept.keep(looked_up)
        looked_up_count, above = self._sought(join.parent, looked_up, None)
        if not looked_up_count:
            return found
        if known is not None:
            most = max(looked_up_count, self.counts[join.parent])
            looked_up = in_one_task(looked_up, most).join(
                in_one_task(known.select(ROWGUID), most), on=ROWGUID, how="left_anti"
            )
        looked_up = looked_up.select(
            *(F.col(f"of_{each}").alias(each) for each in key), F.lit(_NEW).alias(_AT), ROW
        )
        found.append(self.members(join.parent, looked_up, key, above, count=looked_up_count))
        return found

    def _slim(self, name: str, image: str, join: JoinFilter) -> Column:
        """Keep only those columns of an image that occur in `on`."""
        article = self.publication.articles[name]
        fields = [_field(article, column) for column in dict.fromkeys(join.columns_of(name))]
        return F.struct(*(F.col(f"{image}.{each}").alias(each) for each in fields))

    def _on(self, join: JoinFilter) -> Column:
        """True if a child (`row`) matches a parent (`parent_row`)."""

        def value(column: ClauseColumn) -> Column:
            assert column.article is not None
            image = ROW if column.article == join.article else _PARENT_ROW
            return F.col(f"{image}.{_field(self.publication.articles[column.article], column.name)}")

        return column_of(join.on, column=value)


def with_rowguid(rows: DataFrame, article: PublishedArticle) -> DataFrame:
    """Add the rowguids to rows (`row`)."""
    guid = rowguid_of_image(
        ROW, image_type(rows, ROW), article.identity_fields, existing=article.rowguid_column is not None
    )
    return rows.withColumn(ROWGUID, guid)


def _field(article: PublishedArticle, column: str) -> str:
    return article.fields[article.columns.index(column)]


def subscribed_rows(
    spark: SparkSession,
    publication: FilteredPublication,
    partition_id: int | None,
    base: Base,
    name: str,
    kept: Kept,
) -> DataFrame:
    """Return the rows (`row`) of an article that a subscriber of a partition should have."""
    groups = [group for group in publication.groups if group.partition_id == partition_id]
    return partition_rows(publication, group_rows(spark, groups), base, kept, [name])[name]


def partition_rows(
    publication: FilteredPublication, groups: DataFrame, base: Base, kept: Kept, names: Iterable[str]
) -> dict[str, DataFrame]:
    """Return the articles' rows (`row`) that are in one of the partitions or everybody's; evaluates whole tables.

    A row that follows another is in the partitions of that row, so parents come first.
    """
    names = set(names)
    filters = publication.filters
    pass_ = MembershipPass(publication, groups, base, kept)
    found: dict[str, DataFrame] = {}
    for name in publication.articles:
        rows = base(name, None)
        if not filters.is_filtered(name):
            found[name] = rows
            continue
        ways = []
        if name in filters.own:
            at = rows.withColumn(_AT, F.lit(_NEW))
            ways += [
                pass_._of_part(name, part, at, (ROW,)).select(ROW) for part in parts_of(filters.own[name])
            ]
        for join in filters.joins_of(name):
            parents = found[join.parent].select(F.col(ROW).alias(_PARENT_ROW))
            ways.append(rows.join(parents, on=pass_._on(join), how="left_semi"))
        together = with_rowguid(reduce(DataFrame.unionByName, ways), publication.articles[name])
        found[name] = kept.keep(together.dropDuplicates([ROWGUID]).select(ROW))
    return {name: rows for name, rows in found.items() if name in names}

"""Few changed rows that move no other row: Arrow reads the rows that they follow, and one query computes all.

This saves the jobs that count and search for each article and join while memberships are computed.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from mergerepl.changes import ROW, ROWGUID
from mergerepl.delta.commit_files import as_images, differing, image_of, rows_with_values
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import TableState, open_table
from mergerepl.frames import Column, DataFrame, F
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.join_bounds import equal_columns
from mergerepl.merge.partitions.membership import AFTER, BEFORE, IS, WAS
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import collected, frame_of_images, in_one_task, is_for_one_task

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Followed:
    """The unchanged rows (`row`) that changed rows may follow, by article name; each frame has at most `count` rows."""

    rows: Mapping[str, DataFrame]
    count: int

    def base(self, name: str, condition: Column | None) -> DataFrame:
        """Return the rows of an article (`membership.Base`)."""
        return self.rows[name]


def followed_rows(
    spark: SparkSession,
    replica: Replica,
    publication: FilteredPublication,
    versions: Mapping[int, int],
    images: Mapping[str, "pa.Table"],
    choice: EngineChoice,
) -> Followed | None:
    """Return the rows that few changed rows may follow, at these versions of the tables (by tablenick).

    `images` are `before` and `after` of the changed rows, by article name.

    Returns: None if other rows may follow a changed one into another partition, or Arrow must not read the rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, image in images.items():
        if publication.filters.joins_to(name) and _may_move(publication, name, image):
            return None
    rows: dict[str, list[pa.Array[Any]]] = defaultdict(list)
    for name, changed in images.items():
        rows[name] += [changed[each].combine_chunks() for each in (BEFORE, AFTER)]
    found: dict[str, list[pa.Table]] = defaultdict(list)
    tables: dict[str, TableState] = {}
    # Children first: then all rows of an article are known before their parents are read.
    for name in reversed(list(publication.articles)):
        for join in publication.filters.joins_of(name) if rows[name] else ():
            equal = equal_columns(join, name, publication.articles)
            if not equal:
                return None
            field, column, _ = equal[0]
            values = pa.concat_arrays([pc.struct_field(each, int(field[1:])) for each in rows[name]])
            parent = publication.articles[join.parent]
            table = open_table(replica.table(parent), versions[parent.nickname])
            try:
                if (problem := article_problem(table, parent)) is not None:
                    raise NeedsSparkError(problem)
                followed = rows_with_values(table, parent.columns, column, values.unique())
            except NeedsSparkError as error:
                choice.fall_back(table.path, error)
                return None
            read = as_images(followed, parent.columns)
            rows[join.parent].append(read[ROW].combine_chunks())
            found[join.parent].append(read)
            tables[join.parent] = table
    count = 2 * sum(len(each) for arrays in rows.values() for each in arrays)
    if not is_for_one_task(count):
        return None
    frames = {
        name: frame_of_images(
            spark, pa.concat_tables(read), image_of(tables[name], publication.articles[name].columns)
        )
        for name, read in found.items()
    }
    return Followed(frames, count)


def _may_move(publication: FilteredPublication, name: str, rows: "pa.Table") -> bool:
    """True if a changed row was added or removed, or differs in a column that decides about partitions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    before, after = (rows[each].combine_chunks() for each in (BEFORE, AFTER))
    if before.null_count or after.null_count:
        return True
    article = publication.articles[name]
    for column in publication.filters.columns_used(name):
        place = article.columns.index(column)
        one, other = (pa.chunked_array([each.field(place)]) for each in (before, after))
        if pa.types.is_nested(one.type) or pc.any(differing(one, other)).as_py():
            return True
    return False


def collected_memberships(
    found: Mapping[str, DataFrame], changed: Mapping[str, "pa.Table"], most: int | None
) -> "dict[str, pa.Table]":
    """Return MEMBERSHIPS by article name in memory, all computed in one job.

    `found` are the same as frames, and `changed` CHANGED of these articles; each has at most `most` rows.
    """
    import pyarrow.compute as pc

    frames = [
        in_one_task(rows, most).select(F.lit(name).alias("name"), ROWGUID, WAS, IS)
        for name, rows in found.items()
    ]
    rows = collected(reduce(DataFrame.unionByName, frames).coalesce(1))
    memberships = {}
    for name, table in changed.items():
        mine = rows.filter(pc.equal(rows["name"], name))
        place = pc.index_in(table[ROWGUID].combine_chunks(), mine[ROWGUID].combine_chunks())
        for side in (WAS, IS):
            table = table.append_column(side, mine[side].combine_chunks().take(place))
        memberships[name] = table
    return memberships

"""The ranges of the keys of many changed rows: files of a large table between two of them need not be read.

Often old and new rows change, and none between. The lowest and the highest key do not show that.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.delta.table import TableState
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import KeyBounds, numbered_key

MOST_RANGES = 32

_BUCKETS = 1024

_ROWS_PER_CHANGE, _ROWS = 4, 100_000
"""With fewer rows or keys between the bounds than these, per change and in all, reading them costs less than a query."""


def key_ranges(
    rows: Callable[[], DataFrame],
    table: TableState,
    article: PublishedArticle,
    bounds: KeyBounds,
    changed: int,
) -> list[KeyBounds]:
    """Return up to MOST_RANGES bounds of the first key column; empty if the bounds of all keys serve as well.

    `rows` gives the changed rows (image fields), and is called only if ranges may help. `bounds` are those of all their
    keys, `changed` is their number.
    """
    field, column = article.identity_fields[0], article.identity[0]
    number = numbered_key(article, field)
    if number is None or field not in bounds or not _has_rows_between(table, column, *bounds[field], changed):
        return []
    lowest, highest = (F.lit(end).cast(article.types[article.fields.index(field)]) for end in bounds[field])
    found = (
        rows()
        .groupBy(_bucket(number(F.col(field)), number(lowest), number(highest)))
        .agg(
            F.min(number(F.col(field))),
            F.max(number(F.col(field))),
            F.min(field).cast("string"),
            F.max(field).cast("string"),
        )
    )
    buckets = sorted((row[1], row[2], row[3], row[4]) for row in found.collect() if row[1] is not None)
    ranges = joined(buckets)
    return [{field: each} for each in ranges] if len(ranges) > 1 else []


def joined(buckets: Sequence[tuple[int, int, str, str]], most: int = MOST_RANGES) -> list[tuple[str, str]]:
    """Join sorted buckets into ranges, split at the widest gaps.

    A bucket is its lowest and highest key, as numbers and as texts; a range is its lowest and highest key as texts.
    """
    gaps = sorted(
        (one[1] - other[0], place)
        for place, (one, other) in enumerate(pairwise(buckets), 1)
        if other[0] - one[1] > 1
    )
    starts = [0, *sorted(place for _, place in gaps[: most - 1])] if buckets else []
    return [(buckets[start][2], buckets[end - 1][3]) for start, end in pairwise([*starts, len(buckets)])]


def _bucket(number: Column, lowest: Column, highest: Column) -> Column:
    """Return the bucket of a number, among about _BUCKETS equal parts from the lowest to the highest."""
    from_lowest, length = (end.cast("double") - lowest.cast("double") for end in (number, highest))
    return F.floor(from_lowest / F.greatest(length, F.lit(1.0)) * _BUCKETS)


def _has_rows_between(table: TableState, column: str, lowest: str, highest: str, changed: int) -> bool:
    """Whether many more keys than changes, and enough rows in files, lie between two keys.

    False as well if Arrow does not know the bounds of the files, or for a day such as -0044-03-15.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        files = table.files().select([f"min.{column}", f"max.{column}", "num_records"])
        type_ = files.schema[0].type
        least, most = (pa.scalar(end).cast(type_) for end in (lowest, highest))
        number = pa.int32() if pa.types.is_date32(type_) else pa.int64()
        keys: int = most.cast(number).as_py() - least.cast(number).as_py()
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    between = files.filter(pc.and_(pc.less_equal(files[0], most), pc.greater_equal(files[1], least)))
    rows: int = pc.sum(between["num_records"]).as_py() or 0
    return between.num_rows > 1 and rows >= _ROWS and min(keys, rows) >= _ROWS_PER_CHANGE * changed

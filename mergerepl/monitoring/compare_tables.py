"""Compare an article's two tables by bits: bucket sums of row hashes, and keys only where the sums differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Row
from pyspark.sql import types as T

from mergerepl.delta.tables import head_version, open_table
from mergerepl.errors import StoreError
from mergerepl.frames import Column, DataFrame, F, NeedsSparkError, bits_of
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleValidation, KeyDifference
from mergerepl.rows.images import comparable, readable
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location

BUCKETS = 64
SHOWN = 20
"""Differing keys that are named; all are counted."""

CHECKSUM = "checksum"

_AT_PUBLISHER = "at_publisher"
_BUCKET = "bucket"
_SIDE = "side"
HASH = "hash"
HALVES = ("high", "low")
_SUMS = ("rows", *HALVES)


@dataclass(frozen=True)
class Compared:
    """Both sides' rows of an article, with the columns of their tables."""

    publisher: PublishedArticle
    subscriber: PublishedArticle
    publisher_rows: DataFrame
    subscriber_rows: DataFrame


def compare_tables(compared: Compared) -> ArticleValidation:
    """Compare the rows of both sides: return their counts, and the keys that differ."""
    hashed = _hashed(compared.publisher_rows, compared.publisher, at_publisher=True).unionByName(
        _hashed(compared.subscriber_rows, compared.subscriber, at_publisher=False)
    )
    buckets = _bucket_sums(hashed)
    differing = [row[_BUCKET] for row in buckets if not _is_equal(row)]
    rows = {name: sum(row[f"{name}_rows"] for row in buckets) for name in ("publisher", "subscriber")}
    count, examples = _differing_keys(compared, differing) if differing else (0, ())
    return ArticleValidation(
        compared.publisher.name, CHECKSUM, rows["publisher"], rows["subscriber"], count, examples
    )


def compare_here(compared: Compared) -> ArticleValidation:
    """Compare the rows of both sides in process, by all bits, as `compare_tables` does by hashes.

    Raises: NeedsSparkError if a column has another type at the other side.
    """
    sides = (compared.publisher, compared.publisher_rows), (compared.subscriber, compared.subscriber_rows)
    types = [[rows.schema[name].dataType for name in article.columns] for article, rows in sides]
    if types[0] != types[1]:
        raise NeedsSparkError("the type of a column is another at the other side")
    keys = [f"k{i}" for i, _ in enumerate(compared.publisher.identity)]
    texts = [f"t{i}" for i, _ in enumerate(keys)]
    with_keys = [
        rows.select(
            F.lit(place).alias(_SIDE),
            *_key_columns(article, rows.schema),
            bits_of(F.struct(*(F.col(quote(name)) for name in article.columns))).alias(HASH),
        ).withColumn(_BUCKET, bits_of(F.struct(*keys)))
        for place, (article, rows) in enumerate(sides)
    ]
    found: dict[bytes, tuple[dict[str, str], tuple[list[bytes], list[bytes]]]] = {}
    ordered = with_keys[0].unionByName(with_keys[1]).orderBy(*keys)
    for row in ordered.select(_BUCKET, _SIDE, HASH, *texts).collect():
        named = dict(zip(compared.publisher.identity, (row[text] for text in texts), strict=True))
        found.setdefault(bytes(row[_BUCKET]), (named, ([], [])))[1][row[_SIDE]].append(bytes(row[HASH]))
    different = [
        KeyDifference(
            key, "missing_at_subscriber" if not there else "different" if here else "missing_at_publisher"
        )
        for key, (here, there) in found.values()
        if sorted(here) != sorted(there)
    ]
    at_publisher, at_subscriber = (rows.count() for _, rows in sides)
    examples = tuple(different[:SHOWN])
    return ArticleValidation(
        compared.publisher.name, CHECKSUM, at_publisher, at_subscriber, len(different), examples
    )


def _hashed(rows: DataFrame, article: PublishedArticle, *, at_publisher: bool) -> DataFrame:
    return rows.select(
        F.lit(at_publisher).alias(_AT_PUBLISHER),
        _bucket(article, rows.schema).alias(_BUCKET),
        row_hash(article.columns, rows.schema).alias(HASH),
    )


def _bucket(article: PublishedArticle, schema: T.StructType) -> Column:
    return F.pmod(key_hash(article.identity, schema), F.lit(BUCKETS)).cast("int")


def _bucket_sums(hashed: DataFrame) -> list[Row]:
    """Return each bucket's row count and hash sums at both sides. At most `BUCKETS` rows."""
    return hashed.groupBy(_BUCKET).agg(*_sums()).collect()


def _sums() -> list[Column]:
    """Return a group's aggregates: rows and sums of the halves of their hashes, at both sides."""
    measures = []
    for name, here in (("publisher", F.col(_AT_PUBLISHER)), ("subscriber", ~F.col(_AT_PUBLISHER))):
        measures.append(F.count_if(here).alias(f"{name}_rows"))
        measures += [
            F.sum(F.when(here, half_of_hash(half)).otherwise(F.lit(0))).alias(f"{name}_{half}")
            for half in HALVES
        ]
    return measures


def half_of_hash(half: str) -> Column:
    """Return half of the hash as a number whose sum does not overflow before two thousand million rows."""
    value = F.col(HASH)
    return F.shiftrightunsigned(value, 32) if half == "high" else value.bitwiseAND(F.lit(0xFFFFFFFF))


def _is_equal(row: Row) -> bool:
    return all(row[f"publisher_{what}"] == row[f"subscriber_{what}"] for what in _SUMS)


def _differing_keys(compared: Compared, buckets: Sequence[int]) -> tuple[int, tuple[KeyDifference, ...]]:
    """Count the keys that differ in these buckets, and return the first ones by key."""
    article = compared.publisher
    sides = _keyed(compared.publisher_rows, compared.publisher, buckets, at_publisher=True).unionByName(
        _keyed(compared.subscriber_rows, compared.subscriber, buckets, at_publisher=False)
    )
    keys = [f"k{i}" for i, _ in enumerate(article.identity)]
    texts = [f"t{i}" for i, _ in enumerate(article.identity)]
    # Grouped, not joined: a key may be NULL, or have several rows, until capture refuses it.
    by_key = sides.groupBy(*keys).agg(*(F.min(text).alias(text) for text in texts), *_sums())
    is_equal = F.lit(True)
    for what in _SUMS:
        is_equal = is_equal & (F.col(f"publisher_{what}") == F.col(f"subscriber_{what}"))
    different = by_key.where(~is_equal).select(*keys, *texts, _kind().alias("kind")).persist()
    try:
        count = different.count()
        named = different.orderBy(*keys).limit(SHOWN).select(*texts, "kind").collect()
    finally:
        different.unpersist()
    return count, tuple(
        KeyDifference(
            {name: row[text] for name, text in zip(article.identity, texts, strict=True)}, row["kind"]
        )
        for row in named
    )


def _keyed(
    rows: DataFrame, article: PublishedArticle, buckets: Sequence[int], *, at_publisher: bool
) -> DataFrame:
    """Return the rows of some buckets: their key as compared (k0, k1, …), as text (t0, …) and their hash."""
    return rows.where(_bucket(article, rows.schema).isin(list(buckets))).select(
        F.lit(at_publisher).alias(_AT_PUBLISHER),
        *_key_columns(article, rows.schema),
        row_hash(article.columns, rows.schema).alias(HASH),
    )


def _key_columns(article: PublishedArticle, schema: T.StructType) -> list[Column]:
    """Return the columns of a row's key as compared (k0, k1, …) and as text (t0, …)."""
    types = {name: schema[name].dataType for name in article.identity}
    keys = [comparable(F.col(quote(name)), data_type) for name, data_type in types.items()]
    if article.rowguid_column is not None:
        keys = [F.lower(key) for key in keys]
    texts = [readable(F.col(quote(name)), data_type) for name, data_type in types.items()]
    return [
        *(key.alias(f"k{i}") for i, key in enumerate(keys)),
        *(text.alias(f"t{i}") for i, text in enumerate(texts)),
    ]


def _kind() -> Column:
    return (
        F.when(F.col("subscriber_rows") == 0, "missing_at_subscriber")
        .when(F.col("publisher_rows") == 0, "missing_at_publisher")
        .otherwise("different")
    )


def row_count(table: Location, version: int | None = None) -> int:
    """Return the number of rows of a version of a table, by default the latest.

    Starts an engine only if the log lacks the counts.

    Raises: StoreError if it is not a Delta table.
    """
    of = head_version(table) if version is None else version
    known = _count_in_log(table, of)
    return known if known is not None else _count_by_spark(table, of)


def _count_in_log(table: Location, version: int) -> int | None:
    """Return the sum of the files' record counts; None if one is missing or the table may have deletion vectors."""
    from deltalake.exceptions import DeltaError

    try:
        opened = open_table(table, version)
        if "deletionVectors" in opened.features:
            return None
        counts = opened.files()["num_records"].to_pylist()
    except (StoreError, DeltaError, KeyError, OSError):
        return None
    return None if None in counts else sum(counts)


def _count_by_spark(table: Location, version: int) -> int:
    from mergerepl.delta.tables import read_version
    from mergerepl.spark import session as engine
    from mergerepl.spark.plain import plain_errors

    with plain_errors(f"counting the rows of '{table}'"):
        return read_version(engine.session(), table, version).count()


_MICROSECONDS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NULLS_AT_ONCE = 62
"""Columns whose NULLs fit into one bit mask."""


def row_hash(columns: Sequence[str], schema: T.StructType) -> Column:
    """Return the 64-bit hash of a row's columns, in the given order.

    xxhash64 skips NULLs (NULL, 'a' and 'a', NULL would hash alike) and takes -0.0 for 0.0, so extra terms distinguish both.
    """
    terms: list[Column] = []
    for name in columns:
        terms += _terms(F.col(quote(name)), schema[name].dataType)
    return F.xxhash64(*terms, *_nulls(columns))


def key_hash(columns: Sequence[str], schema: T.StructType) -> Column:
    """Return the 64-bit hash of a row's key, which selects its bucket."""
    return F.xxhash64(*(comparable(F.col(quote(name)), schema[name].dataType) for name in columns))


def _terms(value: Column, data_type: T.DataType) -> Iterable[Column]:
    if isinstance(data_type, T.FloatType | T.DoubleType):
        is_negative_zero = F.when(value == 0, value.cast("string") == "-0.0")
        return value, is_negative_zero
    if isinstance(data_type, T.StructType | T.ArrayType | T.MapType):
        # NULLs inside these values count too; JSON keeps their place.
        return (F.to_json(F.struct(comparable(value, data_type)), _MICROSECONDS),)
    return (comparable(value, data_type),)


def _nulls(columns: Sequence[str]) -> list[Column]:
    """Return bit masks of the NULL columns, including NOT NULL columns: the other side may lack that constraint."""
    masks = []
    for first in range(0, len(columns), _NULLS_AT_ONCE):
        bits = [
            F.when(F.col(quote(name)).isNull(), F.lit(1 << i)).otherwise(F.lit(0)).cast("bigint")
            for i, name in enumerate(columns[first : first + _NULLS_AT_ONCE])
        ]
        mask = bits[0]
        for bit in bits[1:]:
            mask = mask.bitwiseOR(bit)
        masks.append(mask)
    return masks

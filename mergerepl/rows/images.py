"""Row images: the struct c0..cN of a row, its bit-exact comparison and its rowguid.

All expressions are pure Columns. A rowguid must be the same on every replica, in every session time zone and Spark
version, so its computation uses no formatting that depends on a conf.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql import types as T

from mergerepl.frames import Column, DataFrame, F, NeedsSparkError, bits_of, cached, in_utc, is_in_process
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.sql import quote, struct_type


def row_image(columns: Sequence[str], fields: Sequence[str] = ()) -> Column:
    """Return the image of the current row, under these field names; else field `c<i>` is the i-th column."""
    names = fields or [f"c{i}" for i, _ in enumerate(columns)]
    return F.struct(*(F.col(quote(name)).alias(field) for name, field in zip(columns, names, strict=True)))


def stored_type(article: PublishedArticle) -> str:
    """Return the DDL type of an article's images as they are stored now."""
    return struct_type(dict(zip(article.fields, article.types, strict=True)))


def stored_image(article: PublishedArticle) -> Column:
    """Return the image of the current row of an article's table, as it is stored."""
    return row_image(article.columns, article.fields).cast(stored_type(article))


def comparable(value: Column, data_type: T.DataType) -> Column:
    """Return an expression whose null-safe equality is equality of the stored bits.

    Spark's own equality lacks maps and variants, takes 0.0 for -0.0, and follows a string's collation.
    """
    if is_in_process():
        return bits_of(value) if _is_odd(data_type) else value
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return value.cast("string")
    if isinstance(data_type, T.StringType):
        return value.cast("binary") if _is_collated(data_type) else value
    if isinstance(data_type, T.StructType):
        fields = [
            comparable(value.getField(f.name), f.dataType).alias(f"c{i}") for i, f in enumerate(data_type)
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(data_type, T.ArrayType):
        return (
            F.transform(value, lambda item: comparable(item, data_type.elementType))
            if _is_odd(data_type)
            else value
        )
    if isinstance(data_type, T.MapType):
        pairs = F.transform(
            F.map_entries(value),
            lambda entry: F.struct(
                comparable(entry["key"], data_type.keyType).alias("key"),
                comparable(entry["value"], data_type.valueType).alias("value"),
            ),
        )
        return F.array_sort(pairs)
    if isinstance(data_type, T.VariantType):
        return F.to_json(value)
    return value


def _is_collated(data_type: T.StringType) -> bool:
    return "collate" in data_type.simpleString()


def _is_odd(data_type: T.DataType) -> bool:
    if isinstance(data_type, T.ArrayType):
        return _is_odd(data_type.elementType)
    if isinstance(data_type, T.StructType):
        return any(_is_odd(field.dataType) for field in data_type)
    is_collated = isinstance(data_type, T.StringType) and _is_collated(data_type)
    return is_collated or isinstance(data_type, T.FloatType | T.DoubleType | T.MapType | T.VariantType)


def same_value(one: Column, other: Column, data_type: T.DataType) -> Column:
    """Return whether two values have the same bits (NULL equals NULL)."""
    if isinstance(data_type, T.FloatType | T.DoubleType) and not is_in_process():
        # Writing each out as text takes longer than all other work on a row.
        return one.eqNullSafe(other) & _is_negative_zero(one).eqNullSafe(_is_negative_zero(other))
    if not _is_odd(data_type):
        return one.eqNullSafe(other)
    return comparable(one, data_type).eqNullSafe(comparable(other, data_type))


def _is_negative_zero(value: Column) -> Column:
    return (value == 0) & value.cast("string").startswith("-")


def image_type(frame: DataFrame, column: str) -> T.StructType:
    """Return the type of an image column (dotted for a nested one) of a frame."""
    data_type: T.DataType = frame.schema
    for name in column.split("."):
        assert isinstance(data_type, T.StructType)
        data_type = data_type[name].dataType
    assert isinstance(data_type, T.StructType)
    return data_type


def same_image(one: str, other: str, data_type: T.StructType) -> Column:
    """Return whether two images (columns of one frame) hold the same bits."""
    terms = [same_value(F.col(f"{one}.{f.name}"), F.col(f"{other}.{f.name}"), f.dataType) for f in data_type]
    return all_true(terms)


def all_true(terms: Sequence[Column]) -> Column:
    """Return whether all terms are true, as a tree: a table may have more columns than Spark's stack is deep."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return all_true(terms[:middle]) & all_true(terms[middle:])


def image_hash(image: str, data_type: T.StructType) -> Column:
    """Return a 64-bit number that almost certainly differs between images with different bits.

    Only for use within a session; not a format to store.
    """
    if is_in_process():
        return F.xxhash64(*(F.col(f"{image}.{field.name}") for field in data_type))
    parts = []
    for field in data_type:
        value = F.col(f"{image}.{field.name}")
        if isinstance(field.dataType, T.FloatType | T.DoubleType):
            parts += [value, value.isNull(), _is_negative_zero(value)]
            continue
        value = comparable(value, field.dataType)
        # Spark's hash skips NULLs: without these, (NULL, 1) and (1, NULL) would collide, at any depth.
        is_nested = isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType)
        parts += [value, value.isNull(), *([value.cast("string")] if is_nested else [])]
    return F.xxhash64(*parts)


def no_names() -> Column:
    """Return an empty array of column names."""
    return F.array().cast("array<string>")


def no_fields() -> Column:
    """Return NULL as an array of image fields: a row says something of all its fields."""
    return F.lit(None).cast("array<string>")


def differing_columns(
    one: str, other: str, data_type: T.StructType, names: Iterable[tuple[str, str]]
) -> Column:
    """Return the array of column names whose fields differ between two images of one type.

    `names`: (column name, image field) pairs to compare.
    """
    flags = [
        F.when(~same_value(F.col(f"{one}.{f}"), F.col(f"{other}.{f}"), data_type[f].dataType), F.lit(name))
        for name, f in names
    ]
    return F.array_compact(F.array(*flags)) if flags else no_names()


def key_text(value: Column, data_type: T.DataType) -> Column:
    """Return the canonical text of a key value, the same in every session."""
    if isinstance(data_type, T.DateType):
        return F.unix_date(value).cast("string")
    if isinstance(data_type, T.TimestampType):
        return F.unix_micros(value).cast("string")
    if isinstance(data_type, T.BinaryType):
        return F.hex(value)
    # A cast to string writes small decimals with or without an exponent, depending on the session's ANSI mode.
    return value.try_cast("string")


def readable(value: Column, data_type: T.DataType) -> Column:
    """Return a value as readable text, including values that Python lacks and bytes that are not UTF-8.

    Raises: NeedsSparkError in process for floats, whose texts depend on the version of Java.
    """
    if isinstance(data_type, T.BinaryType):
        return F.concat(F.lit("0x"), F.hex(value))
    if is_in_process() and isinstance(data_type, T.FloatType | T.DoubleType):
        raise NeedsSparkError(f"a text of type {data_type.simpleString()}")
    if is_in_process() and isinstance(data_type, T.TimestampType):
        value = in_utc(value)
    text = value.cast("string")
    return F.make_valid_utf8(text) if isinstance(data_type, T.StringType) else text


def with_readable(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """Return rows with these columns as readable text."""
    return rows.select(
        *(
            readable(F.col(quote(each.name)), each.dataType).alias(each.name)
            if each.name in names
            else quote(each.name)
            for each in rows.schema
        )
    )


def differs_from_expression(generated: Mapping[str, str]) -> dict[str, Column]:
    """Return for each generated column (name -> expression) whether a row's value differs from this session's result."""
    return {
        name: ~F.col(quote(name)).eqNullSafe(F.expr(expression)) for name, expression in generated.items()
    }


def _type_tag(data_type: T.DataType) -> str:
    if isinstance(data_type, T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        return "i"  # one tag for all integers: widening a key does not change its rows' identity
    tags = {
        T.StringType: "s",
        T.DateType: "d",
        T.TimestampType: "t",
        T.TimestampNTZType: "n",
        T.DecimalType: "m",
        T.BooleanType: "b",
        T.BinaryType: "x",
    }
    return next(tag for kind, tag in tags.items() if isinstance(data_type, kind))


def key_hash(keys: Sequence[tuple[Column, T.DataType]]) -> Column:
    """Return the SHA-256 (hexadecimal) of key values as rowguids encode them; a NULL has a code of its own."""
    parts = []
    for value, data_type in keys:
        text = key_text(value, data_type)
        tag = _type_tag(data_type)
        framed = F.concat(F.lit(tag), F.octet_length(text).cast("string"), F.lit(":"), text, F.lit(";"))
        parts.append(F.coalesce(framed, F.lit(f"{tag}-;")))
    return F.sha2(F.concat(*parts), 256)


def derived_rowguid(keys: Sequence[tuple[Column, T.DataType]]) -> Column:
    """Return the rowguid of key values: SHA-256 over `tag length:text;` of each, its first 128 bits as a UUID."""
    parts = []
    for value, data_type in keys:
        text = key_text(value, data_type)
        parts += [
            F.lit(_type_tag(data_type)),
            F.octet_length(text).cast("string"),
            F.lit(":"),
            text,
            F.lit(";"),
        ]
    digest = F.sha2(F.concat(*parts), 256)
    cuts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return F.concat_ws("-", *(F.substring(digest, start, length) for start, length in cuts))


def identity_value(value: Column, *, existing: bool) -> Column:
    """Return the identity of a row: an existing GUID in lower case, or the value of a key column."""
    return F.lower(value) if existing else value


def rowguid_of_image(
    image: str, data_type: T.StructType, identity_fields: Sequence[str], *, existing: bool
) -> Column:
    """Return the rowguid of a row image: an existing GUID column in lower case, or derived from the key."""
    return _rowguid_of_image(
        image, tuple((name, data_type[name].dataType) for name in identity_fields), existing
    )


@cached
def _rowguid_of_image(image: str, identity: tuple[tuple[str, T.DataType], ...], existing: bool) -> Column:
    if existing:
        return identity_value(F.col(f"{image}.{identity[0][0]}"), existing=True)
    return derived_rowguid([(F.col(f"{image}.{name}"), type_) for name, type_ in identity])

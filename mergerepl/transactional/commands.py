"""Commands: made from the changes of commits (transactional.md 3 and 4), shown as by `sp_browsereplcmds`. Pure."""

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, NumericType, StructType
from pyspark.sql.window import Window

from mergerepl.delta.feed.commit_changes import VERSION
from mergerepl.delta.feed.net_changes import AFTER, BEFORE
from mergerepl.filters.columns import holds
from mergerepl.filters.parse import parse_stored
from mergerepl.logreader.consumer import ReadRows
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.delivery import Command
from mergerepl.rows.encodings import encoded
from mergerepl.rows.images import all_true, image_type, key_hash, readable, same_value
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import frame_of
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import (
    PHASES,
    VERSIONS,
    Arguments,
    Method,
    Operation,
    call_text,
    mask_text,
    statement_text,
)

PHASE_BITS = 60
_HASH_DIGITS = PHASE_BITS // 4


def row_type(shape: Shape) -> str:
    """Return the type of `old` and `new`, as Spark DDL."""
    return "struct<" + ",".join(f"c{k}:{type_}" for k, type_ in enumerate(shape.types, 1)) + ">"


def key_type(shape: Shape) -> str:
    """Return the type of `pk`, as Spark DDL."""
    return "struct<" + ",".join(f"pkc{i}:{type_}" for i, type_ in enumerate(shape.key_types, 1)) + ">"


def commands_of(
    spark: SparkSession,
    read: ReadRows,
    lsns: Mapping[int, Lsn],
    article: Shape,
    updates: Collection[int] = (),
) -> DataFrame:
    """Return the commands for the changes that were read of an article's source. `updates`: versions that an UPDATE made.

    Reads: version, before, after. Returns: the columns of MSrepl_commands.
    """
    image = image_type(read.rows, AFTER)
    at = {name: f"c{i}" for i, name in enumerate(read.columns)}
    changes = read.rows.select(
        *(VERSION, BEFORE, AFTER),
        _side(BEFORE, at, article).alias("old"),
        _side(AFTER, at, article).alias("new"),
    )
    types: list[DataType] = [image[at[name]].dataType for name in article.columns]
    old, new = ([F.col(f"{side}.c{k}") for k in range(1, len(types) + 1)] for side in ("old", "new"))
    same = [same_value(one, other, type_) for one, other, type_ in zip(old, new, types, strict=True)]
    # A whole row is set or deleted where subscribers write.
    if article.singleton_key_updates and updates and not article.has_writers:
        changes = _with_singletons(changes, updates)
    else:
        changes = changes.withColumn("key_change", F.lit(False))
    is_update = F.col("old").isNotNull() & F.col("new").isNotNull()
    is_there = F.col("old").isNotNull() | F.col("new").isNotNull()
    changes = changes.where(is_there & ~(is_update & all_true(same)))
    changes = _with_lsn(spark, changes, lsns)
    operation = (
        F.when(F.col("old").isNull(), Operation.INSERT.value)
        .when(F.col("new").isNull(), Operation.DELETE.value)
        .otherwise(Operation.UPDATE.value)
    )
    places = article.key_places
    key = F.coalesce("old", "new")
    digest = key_hash([(key.getField(f"c{k}"), types[k - 1]) for k in places])
    changes = changes.select("*", operation.alias("operation"), digest.alias("digest"))
    return _filled(changes, article, same).select(
        "xact_seqno",
        _command_id().alias("command_id"),
        F.lit(article.article_id).alias("article_id"),
        F.conv(F.substring("digest", 1, 8), 16, 10)
        .cast("bigint")
        .bitwiseAND(0x7FFFFFFF)
        .cast("int")
        .alias("hashkey"),
        *("operation", "key_change", "old", "new", "pk", "bitmap"),
        *(VERSIONS if article.has_writers else ()),
        F.lit(next(iter(lsns.values())).scan_cycle).cast("bigint").alias("scan_cycle"),
    )


def row_version(image: Column, data_type: StructType) -> Column:
    """Return the version of a row (`msrepl_tran_version`): 8 bytes of a hash of its values; NULL without a row."""
    return F.substring(F.unhex(F.sha2(encoded(image, data_type), 256)), 1, 8)


def _side(side: str, at: Mapping[str, str], article: Shape) -> Column:
    """Return the article's columns of a row; NULL if the row does not exist or does not fulfil the filter."""
    fields = [F.col(f"{side}.{at[name]}").alias(f"c{k}") for k, name in enumerate(article.columns, 1)]
    is_in = F.col(side).isNotNull()
    if article.filter_clause is not None:
        clause = parse_stored(article.filter_clause)
        is_in = is_in & holds(clause, column=lambda column: F.col(f"{side}.{at[column.name]}"))
    return F.when(is_in, F.struct(*fields))


def _with_singletons(changes: DataFrame, updates: Collection[int]) -> DataFrame:
    """Make one update of the key that an UPDATE changed, if its commit changed no other row (trace flag 8207).

    Rows that a filter leaves out count: the row before and the row after must be the same one.
    """
    commit = Window.partitionBy(VERSION)
    is_gone = F.col(AFTER).isNull() & F.col("old").isNotNull()
    is_new = F.col(BEFORE).isNull() & F.col("new").isNotNull()
    counted = changes.select(
        *(VERSION, "old", "new"),
        F.count(F.lit(1)).over(commit).alias("rows"),
        F.count_if(is_gone).over(commit).alias("old_rows"),
        F.count_if(is_new).over(commit).alias("new_rows"),
        F.first("new", ignorenulls=True).over(commit).alias("moved"),
    )
    has_two = (F.col("rows") == 2) & (F.col("old_rows") == 1) & (F.col("new_rows") == 1)
    is_single = has_two & F.col(VERSION).isin(list(updates))
    return counted.where(~(is_single & F.col("old").isNull())).select(
        VERSION,
        "old",
        F.when(is_single, F.col("moved")).otherwise(F.col("new")).alias("new"),
        is_single.alias("key_change"),
    )


def _with_lsn(spark: SparkSession, rows: DataFrame, lsns: Mapping[int, Lsn]) -> DataFrame:
    import pyarrow as pa

    known = pa.table(
        {VERSION: pa.array(lsns, pa.int64()), "xact_seqno": pa.array(map(bytes, lsns.values()), pa.binary())}
    )
    return rows.join(F.broadcast(frame_of(spark, known)), on=VERSION, how="inner")


def _command_id() -> Column:
    phase = F.coalesce(*(F.when(F.col("operation") == each.value, rank) for each, rank in PHASES.items()))
    hashed = F.conv(F.substring("digest", 1, _HASH_DIGITS), 16, 10).cast("bigint")
    return phase.cast("bigint") * (1 << PHASE_BITS) + hashed


def _filled(changes: DataFrame, shape: Shape, same: list[Column]) -> DataFrame:
    """Return commands with only the values that their methods send; commands that are not sent are left out."""
    commands = {each: shape.command(each) for each in Operation}
    sent = [each.value for each, command in commands.items() if command.method is not Method.NONE]

    def of(flag: str) -> Column:
        wanted = [
            each.value
            for each, command in commands.items()
            if getattr(command, flag) or (flag == "passes_bitmap" and shape.has_kept_bitmap(each))
        ]
        return F.col("operation").isin(wanted) if wanted else F.lit(False)

    count = len(shape.columns)
    changed = [~each for each in same]
    flags = {f"__changed{k}": each for k, each in enumerate(changed, 1)}
    marked = changes.where(F.col("operation").isin(sent) if sent else F.lit(False)).select(
        "*", *(each.alias(name) for name, each in flags.items())
    )
    has_gaps = (F.col("operation") == Operation.UPDATE.value) & F.lit(
        commands[Operation.UPDATE].method is Method.SCALL
    )
    new = F.struct(
        *(
            F.when(~has_gaps | F.col(f"__changed{k}"), F.col(f"new.c{k}")).alias(f"c{k}")
            for k in range(1, count + 1)
        )
    )
    old = F.struct(
        *(
            (
                F.when(F.lit(False), F.col(f"old.c{k}")) if name in shape.text_columns else F.col(f"old.c{k}")
            ).alias(f"c{k}")
            for k, name in enumerate(shape.columns, 1)
        )
    )
    pk = F.struct(*(F.col(f"old.c{k}").alias(f"pkc{i}") for i, k in enumerate(shape.key_places, 1)))
    return marked.select(
        *("xact_seqno", "digest", "operation", "key_change"),
        F.when(of("passes_old"), old).alias("old"),
        F.when(of("passes_new") & F.col("new").isNotNull(), new).alias("new"),
        F.when(of("passes_key"), pk).alias("pk"),
        F.when(of("passes_bitmap"), F.expr(mask_text(list(flags)))).alias("bitmap"),
        *(
            row_version(F.col(side), image_type(changes, side)).alias(name)
            for name, side in zip(VERSIONS, ("old", "new"), strict=True)
            if shape.has_writers
        ),
    )


def command_texts(commands: DataFrame, article: Shape, *, limit: int) -> list[Command]:
    """Return the first commands of a table of commands in their order, as text."""
    sides = ("old", "new", "pk")
    shown = commands.orderBy("xact_seqno", "command_id").limit(limit)
    types: dict[str, StructType] = {side: commands.schema[side].dataType for side in sides}  # type: ignore[misc]
    rows = shown.select(
        *("xact_seqno", "command_id", "operation", "bitmap"),
        *(VERSIONS if article.has_writers else ()),
        *(
            F.array(*(_literal(F.col(f"{side}.{f.name}"), f.dataType) for f in types[side])).alias(side)
            for side in sides
        ),
    ).collect()
    found = []
    for row in sorted(rows, key=lambda row: (bytes(row["xact_seqno"]), row["command_id"])):
        operation = Operation(row["operation"])
        command = article.command(operation)
        given = Arguments(
            old=_texts(row["old"]),
            new=_texts(row["new"]),
            pk=_texts(row["pk"]),
            bitmap=None if row["bitmap"] is None else bytes(row["bitmap"]),
            versions=[row[name] and bytes(row[name]) for name in VERSIONS] if article.has_writers else (),
        )
        if command.method is Method.SQL:
            columns, key = (
                [quote(name) for name in article.columns],
                [quote(name) for name in article.key_columns],
            )
            text = statement_text(operation, article.destination_object, columns, key, given)
        else:
            text = call_text(command, command.named(article.procedure(operation)), given)
        seqno = str(Lsn(bytes(row["xact_seqno"])))
        found.append(Command(seqno, row["command_id"], article.article, operation.value, text))
    return found


def _literal(value: Column, data_type: DataType) -> Column:
    """Return a value as SQL has it: numbers, booleans and bytes bare, all else between quotes."""
    text = readable(value, data_type)
    if isinstance(data_type, NumericType | BooleanType | BinaryType):
        return text
    return F.concat(F.lit("'"), F.replace(text, F.lit("'"), F.lit("''")), F.lit("'"))


def _texts(values: Sequence[str | None]) -> list[str]:
    return ["NULL" if value is None else value for value in values]

"""A batch of commands as a set, equal to row by row (transactional.md 7).

Step by step: look-up of the keys in the subscriber's table, a window over each key's commands, threads of rows whose keys
change, the failing commands, one row of effect for each row of the table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from mergerepl.delta.small_writer import SmallRows
from mergerepl.delta.tables import Bounds
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.rows.images import key_hash, readable
from mergerepl.rows.key_bounds import is_unbounded
from mergerepl.rows.sql import literal, quote
from mergerepl.spark.in_memory import Kept, broadcast_if_few, broadcast_if_small, frame_of, in_one_task
from mergerepl.transactional.article_procedures import Shape, error_text
from mergerepl.transactional.call_syntax import Method, Operation
from mergerepl.transactional.refusals import DUPLICATE, NOT_FOUND, RULES_BROKEN, TransactionalError
from mergerepl.transactional.row_rules import HELD, RULE, SHOWN, RowRules, broken_text, with_broken_rules

LOGGED = 10_000
"""Failing commands of a batch that are recorded one by one."""

_BOUNDED = ("tinyint", "smallint", "int", "bigint", "date")
"""Types of keys whose bounds are written into a MERGE."""

_INSERT, _UPDATE, _DELETE = (each.value for each in Operation)
_LAST = b"\xff" * 19
_OF_KEY, _NEWEST = "of_key", "newest"


@dataclass(frozen=True)
class Failure:
    """A command that cannot be applied; `text` names the row by its key."""

    number: int
    xact_seqno: bytes
    command_id: int
    text: str

    @property
    def order(self) -> tuple[bytes, int]:
        """Its place among the commands."""
        return self.xact_seqno, self.command_id


@dataclass(frozen=True)
class Effect:
    """The effect of a batch on one table. `rows` is the view `commands` of `scripts.batch_text`; `counts` are by operation.

    `failures` are at most LOGGED, by their order; `failed` counts all of them. `bounds` are conditions on the table's key.
    `few`, in process, are the same rows for delta-rs.
    """

    rows: DataFrame
    counts: Mapping[str, int]
    failures: tuple[Failure, ...]
    failed: int
    commands: int
    bounds: str
    few: SmallRows | None = None


def judge(
    spark: SparkSession,
    commands: DataFrame,
    shape: Shape,
    table_keys: Callable[[Bounds, DataFrame], DataFrame],
    kept: Kept,
    *,
    on_duplicates: Callable[[int], TransactionalError],
    rules: RowRules | None = None,
    expected: int | None = None,
    is_one_transaction: bool = False,
) -> Effect:
    """Return the effect of one article's commands on the subscriber's table.

    Reads: commands (MSrepl_commands), `expected` is their number, if known; `table_keys` gives the key columns of the
    table and those that `rules` hold, at least of rows within bounds, in process of rows with some keys (k1…);
    `on_duplicates` makes the error. In one transaction each key has one command.

    Raises: TransactionalError if the table has two rows of one key that a command names.
    """
    named = _named(commands, shape)
    if shape.has_writers:
        named = _last_of_key(named)
    named = kept.keep(in_one_task(named, expected))
    count = F.sum(_OF_KEY) if shape.has_writers else F.count(F.lit(1))
    measures = {"commands": count, "keys": F.count(F.lit(1)), "moves": F.count_if("key_change")}
    for i in () if is_in_process() else bounded_keys(shape):
        measures[f"lowest{i}"] = F.min(F.least(f"k{i}", f"n{i}")).cast("string")
        measures[f"highest{i}"] = F.max(F.greatest(f"k{i}", f"n{i}")).cast("string")
    measured = named.agg(*(each.alias(name) for name, each in measures.items())).collect()[0].asDict()
    bounds = "" if is_in_process() else bounds_text(shape, measured)
    measured["commands"] = measured["commands"] or 0
    has_moves = bool(measured["moves"])
    is_once = (is_one_transaction or shape.has_writers) and not has_moves
    held = rules.held if rules else ()
    there = _there(
        named, shape, table_keys, measured, bounds, kept, on_duplicates, held=held, is_once=is_once
    )
    judged = _judged(named, broadcast_if_few(there, measured["commands"]), is_once=is_once)
    if shape.has_writers:
        judged = judged.withColumn("number", F.lit(None).cast("int"))
    if has_moves:
        judged = _with_moves(spark, judged, there, kept)
    else:
        judged = judged.withColumns({"row_key": F.col("kh"), "born": F.lit(None).cast("binary")})
    if rules:
        if has_moves and held:
            of_row = there.select(F.col("kh").alias("row_key"), HELD)
            judged = judged.drop(HELD).join(of_row, on="row_key", how="left")
        judged = with_broken_rules(judged, rules, shape, _sets, is_once=is_once)
    judged = judged.withColumn("is_failing", _is_failing(shape))
    rows = kept.keep(_effects(judged, shape, is_once=is_once))
    found = rows.groupBy("operation").agg(F.count(F.lit(1)).alias("rows"), F.sum("failed").alias("failed"))
    by_operation = {row["operation"]: row for row in found.collect()}
    if is_once and sum(row["rows"] for row in by_operation.values()) > measured["keys"]:
        counted = there.groupBy("kh").agg(F.count(F.lit(1)).alias("rows"))
        raise on_duplicates(counted.where(F.col("rows") > 1).count())
    failed = sum(row["failed"] for row in by_operation.values())
    counts = {name: row["rows"] for name, row in by_operation.items() if name is not None}
    return Effect(
        broadcast_if_small(rows).where(F.col("operation").isNotNull()).drop("failed"),
        counts,
        _failures(judged, shape, str(rules.table.path) if rules else "") if failed else (),
        failed,
        measured["commands"],
        bounds,
    )


def _last_of_key(named: DataFrame) -> DataFrame:
    """Return the last command of each key, with the number of its commands: whole rows are set, or deleted."""
    of_key = Window.partitionBy("kh")
    with_last = named.withColumns(
        {_OF_KEY: F.count(F.lit(1)).over(of_key), _NEWEST: F.max("ord").over(of_key)}
    )
    last = with_last.where(F.col("ord") == F.col(_NEWEST)).drop(_NEWEST)
    return last.withColumn("bitmap", F.lit(None).cast("binary"))


def _named(commands: DataFrame, shape: Shape) -> DataFrame:
    """Return the commands with `ord` (their order as bytes), keys before and after (k1…, n1…) and hashes of both."""
    places = shape.key_places
    key = [
        F.coalesce(
            F.col(f"pk.pkc{i}"),
            F.when(F.col("operation") == _INSERT, F.col(f"new.c{k}")).otherwise(F.col(f"old.c{k}")),
        )
        for i, k in enumerate(places, 1)
    ]
    with_keys = commands.select(
        *("xact_seqno", "command_id", "hashkey", "operation", "key_change", "new"),
        # XCALL sets all columns: a bitmask that is kept for procedures does not count.
        (F.lit(None).cast("binary") if shape.has_kept_bitmap(Operation.UPDATE) else F.col("bitmap")).alias(
            "bitmap"
        ),
        F.concat("xact_seqno", F.unhex(F.lpad(F.hex("command_id"), 16, "0"))).alias("ord"),
        *(each.alias(f"k{i}") for i, each in enumerate(key, 1)),
    )
    changed = [
        F.when(F.col("key_change") & (F.col("bitmap").isNull() | has_bit(k)), F.col(f"new.c{k}")).otherwise(
            F.col(f"k{i}")
        )
        for i, k in enumerate(places, 1)
    ]
    with_new = with_keys.select("*", *(each.alias(f"n{i}") for i, each in enumerate(changed, 1)))
    hashed = with_new.withColumn("kh", _hash(with_new, "k", shape))
    new_hash = F.when(F.col("key_change"), _hash(with_new, "n", shape)).otherwise(F.col("kh"))
    return hashed.withColumn("new_kh", new_hash)


def has_bit(k: int) -> Column:
    """True if a column, counted from 1, has its bit in `bitmap` (`call_syntax.bit_text`)."""
    byte, value = (k - 1) // 8 + 1, 1 << ((k - 1) % 8)
    digits = F.conv(F.hex(F.substring("bitmap", byte, 1)), 16, 10)
    number = digits.cast("decimal(3,0)").cast("int")
    return number.bitwiseXOR(value) < number


def _hash(frame: DataFrame, prefix: str, shape: Shape) -> Column:
    names = [f"{prefix}{i}" for i in range(1, len(shape.key_columns) + 1)]
    return key_hash([(F.col(name), frame.schema[name].dataType) for name in names])


def bounded_keys(shape: Shape) -> list[int]:
    """Return the places of the key columns whose bounds are written into a MERGE."""
    return [i for i, type_ in enumerate(shape.key_types, 1) if type_ in _BOUNDED]


def bounds_text(shape: Shape, measured: Mapping[str, object]) -> str:
    """Return conditions on the table's key (`t.`) for file skipping; each ends in AND."""
    found = ""
    for i in bounded_keys(shape):
        low, high = measured[f"lowest{i}"], measured[f"highest{i}"]
        if low is not None and high is not None and not is_unbounded(str(low), shape.key_types[i - 1]):
            column, type_ = f"t.{quote(shape.key_columns[i - 1])}", shape.key_types[i - 1].upper()
            found += f"{column} BETWEEN CAST({literal(str(low))} AS {type_}) AND CAST({literal(str(high))} AS {type_}) AND "
    return found


def _there(
    named: DataFrame,
    shape: Shape,
    table_keys: Callable[[Bounds, DataFrame], DataFrame],
    measured: Mapping[str, Any],
    bounds: str,
    kept: Kept,
    on_duplicates: Callable[[int], TransactionalError],
    *,
    held: Sequence[str],
    is_once: bool,
) -> DataFrame:
    """Return the hashes of those keys of the batch that the table has (`kh`), each once, and values of columns (`held`).

    Where a key has one command, the table's rows are not counted by key: two rows of it make two effects.

    Raises: TransactionalError if the table has a key twice.
    """
    names = [f"k{i}" for i in range(1, len(shape.key_columns) + 1)]
    keys = named.select("kh", *names)
    if measured["moves"]:
        moved = named.where("key_change").select(
            F.col("new_kh").alias("kh"), *(F.col(f"n{i}").alias(f"k{i}") for i in range(1, len(names) + 1))
        )
        keys = keys.unionByName(moved)
    if not is_once:
        keys = keys.dropDuplicates(["kh"])
    file_bounds = {
        shape.key_columns[i - 1]: (int(measured[f"lowest{i}"]) - 1, int(measured[f"highest{i}"]))
        for i in bounded_keys(shape)
        if shape.key_types[i - 1] != "date" and measured.get(f"lowest{i}") is not None
    }
    rows = table_keys(file_bounds, keys).alias("t")
    if bounds:
        rows = rows.where(F.expr(bounds.removesuffix(" AND ")))
    values = [F.struct(*(F.col(f"t.{quote(column)}") for column in held)).alias(HELD)] if held else []
    keys_there = (F.col(f"t.{quote(column)}").alias(f"t{i}") for i, column in enumerate(shape.key_columns, 1))
    rows = rows.select(*keys_there, *values)
    on = reduce(and_, (F.col(f"t{i}") == F.col(f"k{i}") for i in range(1, len(names) + 1)))
    found = rows.join(broadcast_if_few(keys, measured["commands"]), on=on, how="inner")
    if is_once:
        return found.select("kh", F.lit(True).alias("in_table"), *([HELD] if held else []))
    first = [F.first(HELD).alias(HELD)] if held else []
    counted = kept.keep(found.groupBy("kh").agg(F.count(F.lit(1)).alias("rows"), *first))
    twice = counted.agg(F.count_if(F.col("rows") > 1).alias("twice")).collect()[0]["twice"]
    if twice:
        raise on_duplicates(twice)
    return counted.select("kh", F.lit(True).alias("in_table"), *([HELD] if held else []))


def _judged(named: DataFrame, there: DataFrame, *, is_once: bool) -> DataFrame:
    """Return the commands with `is_there` (the table had the row) and `number` (of the error; NULL)."""
    joined = named.join(there, on="kh", how="left").withColumn(
        "is_there", F.coalesce("in_table", F.lit(False))
    )
    present = F.col("is_there")
    if not is_once:
        changes = F.when(F.col("operation") == _INSERT, True).when(F.col("operation") == _DELETE, False)
        if is_in_process():
            change = F.struct(F.col("ord").alias("at"), changes.alias("is_there_then"))
            of_key = (
                joined.where(changes.isNotNull()).groupBy("kh").agg(F.collect_list(change).alias("changes"))
            )
            joined = joined.join(of_key, on="kh", how="left")
            earlier = F.filter("changes", lambda each: each["at"] < F.col("ord"))
            last = F.array_max(earlier)["is_there_then"]
        else:
            before = Window.partitionBy("kh").orderBy("ord").rowsBetween(Window.unboundedPreceding, -1)
            last = F.last(changes, ignorenulls=True).over(before)
        present = F.coalesce(last, present)
    is_insert = F.col("operation") == _INSERT
    number = F.when(is_insert & present, DUPLICATE).when(~is_insert & ~present, NOT_FOUND)
    return joined.withColumn("number", number).drop("in_table", "changes")


def _with_moves(spark: SparkSession, judged: DataFrame, there: DataFrame, kept: Kept) -> DataFrame:
    """Follow the rows of the keys that key changes name; other keys keep their judgement."""
    import pyarrow as pa

    judged = kept.keep(judged)
    moves = judged.where("key_change").select("kh", "new_kh").collect()
    keys = sorted({key for row in moves for key in (row["kh"], row["new_kh"])})
    texts, orders = pa.string(), pa.binary()
    named = frame_of(spark, pa.table({"kh": pa.array(keys, texts)}))
    of_keys = judged.join(F.broadcast(named), on="kh", how="left_semi")
    walked = of_keys.where((F.col("operation") != _UPDATE) | F.col("key_change"))
    found = {row["kh"] for row in there.join(F.broadcast(named), on="kh", how="left_semi").collect()}
    new_key = F.when(F.col("key_change"), F.col("new_kh"))
    steps = [
        Step(bytes(row[0]), Operation(row[1]), row[2], row[3])
        for row in walked.select("ord", "operation", "kh", new_key).collect()
    ]
    steps.sort(key=lambda step: step.order)
    turns, failed = walk_moves(steps, {key: key in found for key in keys})
    following: dict[str, bytes] = {}
    schema = pa.schema(
        {"of": texts, "from_ord": orders, "to_ord": orders, "thread": texts, "thread_born": orders}
    )
    rows = []
    for turn in reversed(turns):
        row_meant = (turn.thread.key, turn.thread.born) if turn.thread else (None, None)
        values = (turn.key, turn.order, following.get(turn.key, _LAST), *row_meant)
        rows.append(dict(zip(schema.names, values, strict=True)))
        following[turn.key] = turn.order
    turned = frame_of(spark, pa.Table.from_pylist(rows, schema=schema))
    numbers = pa.array(list(failed.values()), pa.int32())
    bad = frame_of(spark, pa.table({"bad_ord": pa.array(list(failed), orders), "bad": numbers}))
    is_insert = F.col("operation") == _INSERT
    after = F.when(is_insert, F.col("ord") >= F.col("from_ord")).otherwise(F.col("ord") > F.col("from_ord"))
    until = F.when(is_insert, F.col("ord") < F.col("to_ord")).otherwise(F.col("ord") <= F.col("to_ord"))
    joined = judged.join(F.broadcast(turned), on=(F.col("kh") == F.col("of")) & after & until, how="left")
    joined = joined.join(F.broadcast(bad), on=F.col("ord") == F.col("bad_ord"), how="left")
    is_walked = F.col("of").isNotNull()
    number = F.when(
        is_walked, F.coalesce(F.col("bad"), F.when(F.col("thread").isNull(), NOT_FOUND))
    ).otherwise(F.col("number"))
    return joined.select(
        *(name for name in judged.columns if name not in ("number", "is_there")),
        number.alias("number"),
        F.when(is_walked, F.col("thread")).otherwise(F.col("kh")).alias("row_key"),
        F.when(is_walked, F.col("thread_born")).alias("born"),
        F.when(is_walked, F.col("thread").isNotNull() & F.col("thread_born").isNull())
        .otherwise(F.col("is_there"))
        .alias("is_there"),
    )


def _is_failing(shape: Shape) -> Column:
    """True if a command is an error; a statement does not require its row."""
    silent = [each.value for each in Operation if shape.command(each).method is Method.SQL]
    return F.col("number").isNotNull() & ~((F.col("number") == NOT_FOUND) & F.col("operation").isin(silent))


def _failures(judged: DataFrame, shape: Shape, table: str) -> tuple[Failure, ...]:
    failing = judged.where("is_failing")
    names = [f"k{i}" for i in range(1, len(shape.key_columns) + 1)]
    shown = failing.select(
        *("number", "xact_seqno", "command_id", "operation", "ord"),
        *((RULE, SHOWN) if RULE in judged.columns else ()),
        *(readable(F.col(name), judged.schema[name].dataType).alias(name) for name in names),
    )
    found = shown.orderBy("ord").limit(LOGGED).collect()
    failures = []
    for row in found:
        number, title = row["number"], Operation(row["operation"]).name
        if number in RULES_BROKEN:
            said = broken_text(shape, table, number, title, row[RULE], row[SHOWN])
        else:
            said = error_text(shape.article, number, title)
        key = ", ".join(
            f"{column} = {row[name]}" for column, name in zip(shape.key_columns, names, strict=True)
        )
        failures.append(Failure(number, bytes(row["xact_seqno"]), row["command_id"], f"{said}{key}."))
    return tuple(failures)


def _sets(k: int) -> Column:
    is_set = F.col("bitmap").isNull() | has_bit(k)
    return (F.col("operation") == _INSERT) | ((F.col("operation") == _UPDATE) & is_set)


def _effects(judged: DataFrame, shape: Shape, *, is_once: bool) -> DataFrame:
    """Return one row for each row that commands name: operation (NULL: nothing changes), pkc1…, c1…, set1…, failed."""
    count = len(shape.columns)
    keys = [f"k{i}" for i in range(1, len(shape.key_columns) + 1)]
    new = judged.schema["new"].dataType
    assert isinstance(new, StructType)
    is_applied = F.col("number").isNull()
    flagged = judged.select(
        *("row_key", "born", "is_there", "operation", "is_failing"),
        is_applied.alias("is_applied"),
        F.when(is_applied, F.col("ord")).alias("ord"),
        *keys,
        *(F.col(f"new.c{k}").alias(f"c{k}") for k in range(1, count + 1)),
        *((is_applied & _sets(k)).alias(f"set{k}") for k in range(1, count + 1)),
    )
    born_or_gone = F.when(F.col("operation") != _UPDATE, F.col("operation"))
    if is_once:
        of_row = flagged.withColumns(
            {"last": born_or_gone, "failed": F.col("is_failing").cast("int")}
            | {f"c{k}": F.when(F.col(f"set{k}"), F.col(f"c{k}")) for k in range(1, count + 1)}
        )
    else:
        of_row = flagged.groupBy("row_key", "born").agg(
            F.max_by("operation", F.when(born_or_gone.isNotNull(), F.col("ord"))).alias("last"),
            F.count_if("is_failing").alias("failed"),
            F.max("is_applied").alias("is_applied"),
            *(F.min_by(name, "ord").alias(name) for name in ("is_there", *keys)),
            *(
                F.max_by(f"c{k}", F.when(F.col(f"set{k}"), F.col("ord"))).alias(f"c{k}")
                for k in range(1, count + 1)
            ),
            *(F.max(f"set{k}").alias(f"set{k}") for k in range(1, count + 1)),
        )
    is_gone = F.coalesce(F.col("last") == _DELETE, F.lit(False))
    was_there = F.col("is_there") & F.col("born").isNull()
    operation = (
        F.when(is_gone & was_there, _DELETE)
        .when(~is_gone & was_there, _UPDATE)
        .when(~is_gone & ~was_there, _INSERT)
    )
    return of_row.select(
        F.when(F.col("is_applied"), operation).alias("operation"),
        *(F.when(was_there, F.col(name)).alias(f"pkc{i}") for i, name in enumerate(keys, 1)),
        *(f"c{k}" for k in range(1, count + 1)),
        *(f"set{k}" for k in range(1, count + 1)),
        "failed",
    )


FIRST = b""
"""Sorts before every order of a command."""


@dataclass(frozen=True)
class Step:
    """An insert, a delete or a key change: `order` sorts as the commands are applied. `new_key` is that of a key change."""

    order: bytes
    operation: Operation
    key: str
    new_key: str | None = None


@dataclass(frozen=True)
class Thread:
    """A row, named by the key that it began with; `born` is the order of its insert, None if it existed before."""

    key: str
    born: bytes | None = None


@dataclass(frozen=True)
class Turn:
    """The first command (exclusive; its insert itself included) from which on a key means a row; None: a missing row."""

    key: str
    order: bytes
    thread: Thread | None


def walk_moves(steps: Iterable[Step], is_there: Mapping[str, bool]) -> tuple[list[Turn], dict[bytes, int]]:
    """Return the turns of each key, in order, and the failing steps with their numbers.

    `steps` are in order; `is_there` maps each key to whether the table has its row.
    """
    row_at: dict[str, Thread | None] = {
        key: Thread(key) if there else None for key, there in is_there.items()
    }
    turns = [Turn(key, FIRST, thread) for key, thread in row_at.items()]
    failed: dict[bytes, int] = {}

    def turn(key: str, order: bytes, thread: Thread | None) -> None:
        row_at[key] = thread
        turns.append(Turn(key, order, thread))

    for step in steps:
        thread = row_at[step.key]
        if step.operation is Operation.INSERT:
            if thread is not None:
                failed[step.order] = DUPLICATE
            else:
                turn(step.key, step.order, Thread(step.key, step.order))
        elif thread is None:
            failed[step.order] = NOT_FOUND
        elif step.new_key is None:
            turn(step.key, step.order, None)
        elif row_at[step.new_key] is not None:
            failed[step.order] = DUPLICATE
        else:
            turn(step.new_key, step.order, thread)
            turn(step.key, step.order, None)
    return turns, failed

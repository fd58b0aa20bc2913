"""The engine equals the reference: drawn transactions of many subscribers at once, judged as one batch each."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.engine_choice import NO_SESSION, NeedsSparkError
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.small_writer import merge_by_delta_rs
from mergerepl.delta.tables import Transaction, open_table
from mergerepl.frames import in_process
from mergerepl.frames.dataframe import collected as collected_here
from mergerepl.spark.in_memory import Kept, frame_of, frame_of_tuples
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import Shape, batch_text, statements
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.commands import key_type, row_type
from mergerepl.transactional.few_commands import article_of, require_values, rows_to_merge
from mergerepl.transactional.judge import judge
from mergerepl.transactional.refusals import TransactionalError
from tests.executors import struct_of
from tests.properties import transactional_model as model
from tests.transactional import publications

pytestmark = pytest.mark.spark

HISTORIES = 150
ROOM = 100
"""Keys of a history: history h has the keys h * ROOM + 1 to h * ROOM + 7, so that all are judged as one batch."""

COLUMNS = ("c", "v2", "v3", "v4")


Rows = dict[int, tuple]


@dataclass(frozen=True)
class Hard:
    """A hard case of transactional.md 16: what the publisher and subscriber have, and the publisher's transactions.

    A transaction is (rows before, rows after) of what it changed. `left` are the subscriber's rows afterwards, `errors`
    (transaction, number).
    """

    start: Rows
    transactions: Sequence[tuple[Rows, Rows]]
    left: Rows
    errors: frozenset[tuple[int, int]] = frozenset()
    subscriber: Rows | None = None
    is_singleton: bool = True
    without: str = ""
    """An operation that is not sent (NONE)."""


def row(key: int, v2: int | None = 0, v3: int | None = None, v4: int = 1) -> Rows:
    return {key: (key, v2, v3, v4)}


def moved(key: int, to: int) -> tuple[Rows, Rows]:
    return row(key), row(to)


NONE: Rows = {}
MISSING, THERE = model.NOT_FOUND, model.DUPLICATE
HARD = {
    "1 ten updates of a row": Hard(row(1), [(row(1, i), row(1, i + 1)) for i in range(10)], row(1, 10)),
    "2 c2, then c3": Hard(row(1), [(row(1), row(1, 5)), (row(1, 5), row(1, 5, 6))], row(1, 5, 6)),
    "3 insert, update, delete": Hard(NONE, [(NONE, row(1)), (row(1), row(1, 5)), (row(1, 5), NONE)], NONE),
    "4 delete, then insert": Hard(row(1, 1, 1, 1), [(row(1, 1, 1, 1), NONE), (NONE, row(1, 2))], row(1, 2)),
    "5 update of a missing row": Hard(
        row(1), [(NONE, row(2)), (row(1), row(1, 5)), (NONE, row(3))], row(2) | row(3), {(2, MISSING)}, NONE
    ),
    "7 insert of a key that is there": Hard(NONE, [(NONE, row(1))], row(1, 9), {(1, THERE)}, row(1, 9)),
    "8 update after a failed insert": Hard(
        NONE, [(NONE, row(1)), (row(1), row(1, 5))], row(1, 5, 7, 7), {(1, THERE)}, row(1, 9, 7, 7)
    ),
    "9 insert after a failed delete": Hard(
        row(1), [(row(1), NONE), (NONE, row(1, 2))], row(1, 2), {(1, MISSING)}, NONE
    ),
    "10 the seed: update 1 to 2, then 2 to 3": Hard(row(1), [moved(1, 2), moved(2, 3)], row(3)),
    "11 swap": Hard(
        row(1, 1) | row(2, 2),
        [(row(1, 1), row(9, 1)), (row(2, 2), row(1, 2)), (row(9, 1), row(2, 1))],
        row(1, 2, 7, 7) | row(2, 1, 8, 8),
        frozenset(),
        row(1, 1, 8, 8) | row(2, 2, 7, 7),
    ),
    "12 pk + 1 over 1 to 5": Hard(
        {k: (k, k, None, 1) for k in range(1, 6)},
        [({k: (k, k, None, 1) for k in range(1, 6)}, {k + 1: (k + 1, k, None, 1) for k in range(1, 6)})],
        {k + 1: (k + 1, k, None, 1) for k in range(1, 6)},
    ),
    "13 to a key deleted before": Hard(row(1) | row(2), [(row(2), NONE), moved(1, 2)], row(2)),
    "13 to a key that is there": Hard(
        row(1), [moved(1, 2)], row(1) | row(2, 9), {(1, THERE)}, row(1) | row(2, 9)
    ),
    "14 a row that was inserted": Hard(NONE, [(NONE, row(1)), moved(1, 2)], row(2)),
    "15 key change, update, delete": Hard(
        row(1), [moved(1, 2), (row(2), row(2, 5)), (row(2, 5), NONE)], NONE
    ),
    "16 insert after a delete that is not sent": Hard(
        row(1), [(row(1), NONE), (NONE, row(1, 5))], row(1), {(2, THERE)}, without="del"
    ),
    "17 a key change that is not sent": Hard(row(1), [moved(1, 2)], row(1), without="upd"),
    "17 a deferred one goes out": Hard(row(1), [moved(1, 2)], row(2), is_singleton=False, without="upd"),
    "18 a bit with NULL, and none": Hard(
        row(1, 5, 6), [(row(1, 5, 6), row(1, 5, None))], row(1, 8, None, 7), frozenset(), row(1, 8, 8, 7)
    ),
}
"""Each with its number in transactional.md 16. All errors are skipped; what SCALL sends."""


def drawn(
    method: dict[str, str], *, tampered: bool = True, is_one_transaction: bool = False
) -> tuple[Rows, list[tuple[int, model.Command]], Rows, set]:
    """Return the subscriber's rows, the commands of all histories, the rows afterwards and the errors, by the reference."""
    before: dict[int, tuple] = {}
    after: dict[int, tuple] = {}
    errors, commands = set(), []
    for number in range(HISTORIES):
        rng = random.Random(number)
        start = {k: (k, rng.randint(0, 2), None, 1) for k in rng.sample(range(1, 8), rng.randint(0, 6))}
        own = []
        commits = model.drawn_commits(rng, start, 1 if is_one_transaction else rng.randint(1, 8))
        for xact, (pre, post) in enumerate(commits, 1):
            own += model.commands_of(xact, pre, post, method, singleton=not is_one_transaction)
        subscriber = model.tampered(rng, start, rng.choice([0, 1, 2]) if tampered else 0)
        left, found = model.row_by_row(subscriber, own, {model.NOT_FOUND, model.DUPLICATE})
        base = number * ROOM
        before |= {base + k: (base + k, *row[1:]) for k, row in subscriber.items()}
        after |= {base + k: (base + k, *row[1:]) for k, row in left.items()}
        errors |= {(number, *order, error) for error, order in found}
        commands += [(number, command) for command in own]
    return before, commands, after, errors


def add_hard_cases(before: Rows, commands: list[tuple[int, model.Command]], after: Rows, errors: set) -> None:
    """Add the hard cases as histories of their own, after the drawn ones."""
    for number, case in enumerate(HARD.values(), HISTORIES):
        method = {"ins": "CALL", "upd": "SCALL", "del": "CALL"} | (
            {case.without: "NONE"} if case.without else {}
        )
        base = number * ROOM
        subscriber = case.start if case.subscriber is None else case.subscriber
        before |= {base + k: (base + k, *row[1:]) for k, row in subscriber.items()}
        after |= {base + k: (base + k, *row[1:]) for k, row in case.left.items()}
        for xact, (pre, post) in enumerate(case.transactions, 1):
            own = model.commands_of(xact, pre, post, method, singleton=case.is_singleton)
            commands += [(number, command) for command in own]
            errors |= {
                (number, xact, command.command_id, error)
                for failed, error in case.errors
                if failed == xact
                for command in own
            }


def shape_of(method: dict[str, str]) -> Shape:
    commands = {f"{operation}_cmd": text for operation, text in method.items()}
    return publications.shape(COLUMNS, ("int",) * 4, ("c",), **commands)


def stored(number: int, command: model.Command) -> dict[str, Any]:
    """Return a command as MSrepl_commands has it; command_id says which history it is of."""
    base = number * ROOM

    def row(values: tuple | None) -> dict[str, Any] | None:
        if values is None:
            return None
        key = None if values[0] is None else base + values[0]
        return {f"c{k}": value for k, value in enumerate((key, *values[1:]), 1)}

    has_key = command.op != "ins" and command.old is None
    return {
        "xact_seqno": command.xact.to_bytes(10, "big"),
        "command_id": number * 1_000 + command.command_id,
        "hashkey": 0,
        "operation": command.op,
        "key_change": command.op == "upd" and command.new_key != command.pk,
        "old": row(command.old),
        "new": row(command.new),
        "pk": {"pkc1": base + command.pk} if has_key else None,
        "bitmap": command.bits,
    }


@pytest.mark.parametrize(
    "is_here", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["spark", "here"]
)
@pytest.mark.parametrize(
    "is_one_transaction", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["several", "one"]
)
@pytest.mark.parametrize(
    "method",
    [
        {"ins": "CALL", "upd": "SCALL", "del": "CALL"},
        pytest.param({"ins": "CALL", "upd": "XCALL", "del": "XCALL"}, marks=pytest.mark.slow),
        pytest.param({"ins": "CALL", "upd": "MCALL", "del": "CALL"}, marks=pytest.mark.slow),
        pytest.param({"ins": "CALL", "upd": "CALL", "del": "XCALL"}, marks=pytest.mark.slow),
    ],
    ids=lambda method: method["upd"],
)
def test_a_batch_as_one_merge_is_row_by_row(
    spark: SparkSession, replica_dir: Path, method: dict[str, str], is_one_transaction: bool, is_here: bool
) -> None:
    require_row_by_row(spark, replica_dir, method, is_one_transaction=is_one_transaction, is_here=is_here)


def test_a_small_batch_in_process_is_row_by_row(replica_dir: Path) -> None:
    method = {"ins": "CALL", "upd": "SCALL", "del": "CALL"}
    require_row_by_row(None, replica_dir, method, is_one_transaction=True, is_here=True)


@pytest.mark.parametrize("is_one_transaction", [False, True])
def test_a_key_twice_is_found_in_process(is_one_transaction: bool) -> None:
    shape = shape_of({"ins": "CALL", "upd": "MCALL", "del": "CALL"})
    command = model.Command(xact=1, command_id=1, op="upd", pk=1, new=(1, 2, 3, 4), bits=b"\x0e")
    with in_process(), pytest.raises(TransactionalError, match="1 keys twice"):
        judge(
            NO_SESSION,
            frame_of_tuples(None, [_row(stored(0, command))], struct_of(commands_ddl(shape))),
            shape,
            lambda *_: frame_of(None, pa.table({"c": pa.array([1, 1], pa.int32())})),
            Kept(),
            on_duplicates=lambda keys: TransactionalError(2627, f"{keys} keys twice"),
            is_one_transaction=is_one_transaction,
        )


def commands_ddl(shape: Shape) -> str:
    """Return the columns of the commands that are judged."""
    return (
        "xact_seqno binary, command_id bigint, hashkey int, operation string, key_change boolean, "
        f"old {row_type(shape)}, new {row_type(shape)}, pk {key_type(shape)}, bitmap binary"
    )


def test_a_null_for_a_column_that_is_not_null_is_left_to_spark(replica_dir: Path) -> None:
    fields = [pa.field(name, pa.int32(), nullable=name != "v2") for name in COLUMNS]
    write_deltalake(str(replica_dir / "t"), pa.schema(fields).empty_table())
    state = open_table(Location.of(replica_dir / "t"))
    shape = shape_of({"ins": "CALL", "upd": "SCALL", "del": "CALL"})
    ddl = f"operation string, new {row_type(shape)}, bitmap binary"
    cases = {
        ("ins", 5, None): True,
        ("ins", None, None): False,
        ("upd", None, b"\x04"): True,
        ("upd", None, b"\x02"): False,
        ("del", None, None): True,
    }
    with in_process():
        for (operation, value, bits), is_fit in cases.items():
            commands = frame_of_tuples(None, [(operation, (1, value, None, 1), bits)], struct_of(ddl))
            with nullcontext() if is_fit else pytest.raises(NeedsSparkError, match="'v2', which is NOT NULL"):
                require_values(commands, shape, state)


def require_row_by_row(
    spark: SparkSession | None,
    replica_dir: Path,
    method: dict[str, str],
    *,
    is_one_transaction: bool,
    is_here: bool,
) -> None:
    """Check that all histories, judged as one batch and merged once, leave the rows of the reference, and its errors.

    In process delta-rs merges, unless keys change.
    """
    before, commands, after, errors = drawn(method, is_one_transaction=is_one_transaction)
    if method["upd"] == "SCALL" and not is_one_transaction:
        add_hard_cases(before, commands, after, errors)
    shape = shape_of(method)
    table = replica_dir / "t"
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in before.values()]
    schema = pa.schema([(name, pa.int32()) for name in COLUMNS])
    write_deltalake(str(table), pa.Table.from_pylist(rows, schema=schema))
    kept = Kept()
    with in_process() if is_here else nullcontext():
        given = frame_of_tuples(
            None if is_here else spark,
            [_row(stored(*each)) for each in commands],
            struct_of(commands_ddl(shape)),
        )
        effect = judge(
            NO_SESSION if spark is None else spark,
            given,
            shape,
            lambda *_: frame_of(
                None if is_here else spark, DeltaTable(str(table)).to_pyarrow_table(columns=["c"])
            ),
            kept,
            on_duplicates=lambda keys: TransactionalError(2627, f"{keys} keys twice"),
            is_one_transaction=is_one_transaction,
        )
    assert effect.commands == len(commands)
    found = {
        (
            each.command_id // 1_000,
            int.from_bytes(each.xact_seqno, "big"),
            each.command_id % 1_000,
            each.number,
        )
        for each in effect.failures
    }
    assert found == errors
    assert effect.failed == len(errors)
    assert len(errors) > (20 if is_one_transaction else 50)
    moves = [command for _, command in commands if command.op == "upd" and command.new_key != command.pk]
    assert bool(moves) != is_one_transaction
    at, merged = Location.of(table), None
    if is_here:
        with (
            in_process(),
            nullcontext() if is_one_transaction else pytest.raises(NeedsSparkError, match="key"),
        ):
            merged = rows_to_merge(effect.rows, shape, open_table(at))
    if merged is not None:
        article = article_of(shape, "t")
        terms = {"actions": {"update": merged.rows.num_rows}, "bounds": merged.bounds(article)}
        done = Transaction("app", 1, CommitMark("s", "batch"))
        merge_by_delta_rs(lambda: merged, at, article, transaction=done, **terms)
    else:
        assert spark is not None
        changed = frame_of(spark, collected_here(effect.rows)) if is_here else effect.rows
        changed.createOrReplaceTempView("commands")
        spark.sql(batch_text(shape, str(table), bounds=effect.bounds))
    left = {row["c"]: tuple(row.values()) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}
    assert left == after
    kept.release()


@pytest.mark.slow
@pytest.mark.parametrize("update", ["SCALL", "MCALL", "CALL", "XCALL"])
def test_the_printed_procedures_one_command_at_a_time_are_the_batch(
    spark: SparkSession, replica_dir: Path, update: str
) -> None:
    """Round by round, each history has its next command executed; the batch of the reference leaves the same rows."""
    method = {"ins": "CALL", "upd": update, "del": "XCALL" if update == "XCALL" else "CALL"}
    before, commands, after, errors = drawn(method, tampered=False)
    assert not errors
    shape = shape_of(method)
    of_history: dict[int, list[model.Command]] = {}
    for number, command in commands:
        of_history.setdefault(number, []).append(command)
    few = {number: own for number, own in of_history.items() if len(own) <= 6}
    assert len(few) > 20
    table = replica_dir / "t"
    rows = [dict(zip(COLUMNS, row, strict=True)) for key, row in before.items() if key // ROOM in few]
    schema = pa.schema([(name, pa.int32()) for name in COLUMNS])
    spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema)).write.format("delta").save(str(table))
    for turn in range(6):
        for operation in Operation:
            given = [
                stored(number, own[turn])
                for number, own in few.items()
                if len(own) > turn and own[turn].op == operation
            ]
            ddl = f"old {row_type(shape)}, new {row_type(shape)}, pk {key_type(shape)}, bitmap binary"
            listed = [{name: each[name] for name in ("old", "new", "pk", "bitmap")} for each in given]
            spark.createDataFrame([_row(each) for each in listed], ddl).selectExpr(
                *(f"old.c{k} AS old_c{k}" for k in range(1, 5)),
                *(f"new.c{k} AS c{k}" for k in range(1, 5)),
                *("coalesce(pk.pkc1, old.c1) AS pkc1", "bitmap"),
            ).createOrReplaceTempView("commands")
            for statement in statements(shape, operation, str(table)) if given else ():
                spark.sql(statement).collect()
    left = {row["c"]: tuple(row) for row in spark.read.format("delta").load(str(table)).collect()}
    assert left == {key: row for key, row in after.items() if key // ROOM in few}


def _row(values: dict[str, Any]) -> tuple:
    return tuple(
        tuple(value.values())
        if isinstance(value, dict)
        else bytearray(value)
        if isinstance(value, bytes)
        else value
        for value in values.values()
    )


@pytest.mark.slow
def test_the_three_printed_procedures_do_what_the_agent_does(spark: SparkSession, replica_dir: Path) -> None:
    shape = publications.shape(("a`b", "v.2"), ("int", "string"), ("a`b",))
    table = replica_dir / "t"
    start = spark.createDataFrame([(1, "a"), (2, "b"), (3, None)], "`a``b` int, `v.2` string")
    start.write.format("delta").save(str(table))

    def run(operation: Operation, rows: Sequence[tuple], ddl: str) -> None:
        spark.createDataFrame(rows, ddl).createOrReplaceTempView("commands")
        for statement in statements(shape, operation, str(table)):
            spark.sql(statement).collect()

    # A bit with a NULL sets NULL; without its bit a column is kept. A key change has the key's bit.
    run(
        Operation.UPDATE,
        [(None, "x", 1, b"\x02"), (20, None, 2, b"\x01"), (None, None, 3, b"\x00")],
        "c1 int, c2 string, pkc1 int, bitmap binary",
    )
    run(Operation.DELETE, [(3,)], "pkc1 int")
    run(Operation.INSERT, [(4, "d")], "c1 int, c2 string")
    left = sorted(tuple(row) for row in spark.read.format("delta").load(str(table)).collect())
    assert left == [(1, "x"), (4, "d"), (20, "b")]
    for operation, row, ddl, number in [
        (Operation.UPDATE, (None, "x", 99, b"\x02"), "c1 int, c2 string, pkc1 int, bitmap binary", "20598"),
        (Operation.DELETE, (99,), "pkc1 int", "20598"),
        (Operation.INSERT, (4, "d"), "c1 int, c2 string", "2627"),
    ]:
        with pytest.raises(Exception, match=number):
            run(operation, [row], ddl)
    assert spark.read.format("delta").load(str(table)).where(F.lit(True)).count() == 3

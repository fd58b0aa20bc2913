"""Drawn histories of a star whose publisher changes columns and replaces its table: engine and model have the same rows."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.failpoints import FailpointError
from tests.faults.deaths import armed
from tests.properties import schema_histories
from tests.properties.schema_model import World
from tests.schema_changes import MAPPED

KEYS = {"x": 1, "y": 2}
FOLDERS = {"R": "hq", "A": "north", "B": "south"}
POINTS = {
    "alter0": "schema.after_alter",
    "schema": "stage.before_pointer",
    "staged": "stage.after_manifest",
    "sub": "watermarks.before_subscriber",
    "subwm": "watermarks.before_publisher",
}
"""Where a session of the model dies, and where one of the engine does."""
ID, TEXT = pa.int64(), pa.string()
Rows = dict[int, dict[str, str | None]]


class Kept(World):
    """A World that knows what a DROP logged where."""

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self.lost: set[tuple[str, str]] = set()

    def pass_drop(self, replica: Any, f: int, cells: Any) -> None:
        known = {*self.logged}
        super().pass_drop(replica, f, cells)
        self.lost |= {(replica.name, str(token)) for token, _ in self.logged - known}

    def check_false(self, pub: Any, s: Any, p: Any) -> None:
        """A change that nobody sees may conflict."""


class SubscriberWins(Kept):
    """A World whose subscribers win each conflict."""

    def resolve(self, pub: Any, s: Any, p: Any, nick: int) -> Any:
        return super().resolve(pub, replace(s, prio=p.prio + 1), p, nick)


class Engine:
    """The same star, in folders; users write by deltalake."""

    text, type_ = TEXT, "STRING"

    def __init__(self, root: Path, *, column: bool, resolver: str, subscribers: Sequence[str]) -> None:
        self.root = root
        first = pa.table({"id": pa.array([1], ID), **{n: pa.array([None], self.text) for n in "ab"}})
        write_deltalake(str(root / "hq" / "t"), first)
        tracking = "column" if column else "row"
        lines = [
            *("publication: p", "publisher: ./hq", "retention: 14 days", "articles:"),
            f"  - {{name: t, key: [id], tracking: {tracking}, resolver: {{name: {resolver}}}}}",
            "subscriptions:",
            *(f"  - {{subscriber: ./{FOLDERS[name]}, type: server, priority: 50.0}}" for name in subscribers),
        ]
        (root / "mergerepl.yml").write_text("\n".join(lines), encoding="utf-8")
        self.project.apply()

    @property
    def project(self) -> mergerepl.Project:
        return mergerepl.Project.load(self.root / "mergerepl.yml")

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.root / FOLDERS[name] / "t"))

    def rows(self, name: str) -> Rows:
        return {row.pop("id"): row for row in self.table(name).to_pyarrow_table().to_pylist()}

    def logged(self, name: str) -> set[str | None]:
        """Return the values of the losing rows that a replica has logged."""
        table = DeltaTable(
            str(self.root / FOLDERS[name] / "_mergerepl/MSmerge_conflict_p_t")
        ).to_pyarrow_table()
        return {value for row in table.to_pylist() for value in row.values() if isinstance(value, str)}

    def write(
        self, name: str, before: Rows, after: Rows, columns: Sequence[str], *, is_replaced: bool
    ) -> None:
        """Do what a user of the model did."""
        path = str(self.root / FOLDERS[name] / "t")
        there = [field.name for field in self.table(name).schema().fields]
        schema = pa.schema([("id", ID), *((each, TEXT) for each in columns)])
        if is_replaced:
            rows = pa.Table.from_pylist([{"id": key, **row} for key, row in after.items()], schema=schema)
            write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
            return
        for each in columns:
            if each not in there:
                self.table(name).alter.add_columns([Field(each, PrimitiveType("string"), True)])
        for key in {*before, *after}:
            if key not in after:
                self.table(name).delete(f"id = {key}")
            elif key not in before:
                write_deltalake(
                    path, pa.Table.from_pylist([{"id": key, **after[key]}], schema=schema), mode="append"
                )
            else:
                changed = {n: value for n, value in after[key].items() if value != before[key].get(n)}
                values = {n: "NULL" if value is None else f"'{value}'" for n, value in changed.items()}
                if values:
                    self.table(name).update(values, predicate=f"id = {key}")

    def track(self, *, column: bool) -> None:
        """Give the article another tracking."""
        file = self.root / "mergerepl.yml"
        before, after = ("row", "column") if column else ("column", "row")
        text = file.read_text(encoding="utf-8").replace(f"tracking: {before}", f"tracking: {after}")
        file.write_text(text, encoding="utf-8")
        self.project.apply()

    def session(self, name: str, stop: str | None = None) -> None:
        if stop == "captured":
            for each in ("R", name):
                self.project.capture(FOLDERS[each])
            return
        if stop is None:
            (result,) = self.project.sync(FOLDERS[name]).sessions
            assert result.error is None, result.error
            return
        with armed(POINTS[stop], "stop"):
            try:
                self.project.sync(FOLDERS[name])
            except FailpointError:
                return


class ListedEngine(Engine):
    """The star whose file lists the columns: a DROP of the model leaves one out, an ADD publishes one."""

    def __init__(self, root: Path, **terms: Any) -> None:
        super().__init__(root, **terms)
        self.is_by_row = not terms["column"]
        self.listed = ["a", "b"]
        self.publish()

    def publish(self) -> None:
        file = self.root / "mergerepl.yml"
        head, _, tail = file.read_text(encoding="utf-8").partition("key: [id]")
        text = f"{head}key: [id], columns: [{', '.join(self.listed)}]{tail[tail.index(', tracking') :]}"
        file.write_text(text, encoding="utf-8")
        self.project.apply()

    def write(
        self, name: str, before: Rows, after: Rows, columns: Sequence[str], *, is_replaced: bool
    ) -> None:
        own = [each.name for each in self.table(name).schema().fields if each.name not in ("id", *columns)]
        filled = {key: {**dict.fromkeys(own), **row} for key, row in after.items()}
        super().write(name, before, filled, [*columns, *own], is_replaced=is_replaced)

    def change(self, what: str, column: str) -> None:
        if what == "drop":
            self.listed.remove(column)
        else:
            self.table("R").alter.add_columns([Field(column, PrimitiveType("string"), True)])
            self.listed.append(column)
        self.publish()


class MappedEngine(Engine):
    """The star with column mapping at every replica; users write by Spark."""

    def __init__(self, spark: SparkSession, root: Path, **terms: Any) -> None:
        super().__init__(root, **terms)
        self.spark = spark
        for name in ("R", *terms["subscribers"]):
            self.alter(name, f"SET TBLPROPERTIES ({MAPPED})")

    def literal(self, value: str) -> str:
        return f"'{value}'" if self.type_ == "STRING" else value

    def path(self, name: str) -> str:
        return f"delta.`{self.root / FOLDERS[name] / 't'}`"

    def alter(self, name: str, *changes: str) -> None:
        for each in changes:
            self.spark.sql(f"ALTER TABLE {self.path(name)} {each}")

    def rows(self, name: str) -> Rows:
        found = self.spark.sql(f"SELECT * FROM {self.path(name)}").collect()
        return {row["id"]: {n: value for n, value in row.asDict().items() if n != "id"} for row in found}

    def ddl(self, what: str, *names: str) -> None:
        """Do what the root's user did to columns."""
        (first, *_), last = names, names[-1]
        if what == "undone":
            at = self.spark.sql(f"DESCRIBE HISTORY {self.path('R')} LIMIT 1").collect()[0]["version"]
            self.alter("R", f"DROP COLUMN {first}")
            self.spark.sql(f"RESTORE TABLE {self.path('R')} TO VERSION AS OF {at}")
            return
        changes = {
            "add": [f"ADD COLUMN {first} {self.type_}"],
            "drop": [f"DROP COLUMN {first}"],
            "again": [f"DROP COLUMN {first}", f"ADD COLUMN {first} STRING"],
            "rename": [f"RENAME COLUMN {first} TO {last}"],
            "swap": [
                f"RENAME COLUMN {before} TO {after}"
                for before, after in ((first, "tmp"), (last, first), ("tmp", last))
            ],
        }
        self.alter("R", *changes[what])

    def write(
        self, name: str, before: Rows, after: Rows, columns: Sequence[str], *, is_replaced: bool
    ) -> None:
        """Do what a user of the model did to rows."""
        for key in {*before, *after}:
            row, known = after.get(key), before.get(key)
            if row is None:
                self.spark.sql(f"DELETE FROM {self.path(name)} WHERE id = {key}")
                continue
            changed = {n: value for n, value in row.items() if known is None or value != known.get(n)}
            stated = {
                n: f"CAST(NULL AS {self.type_})" if v is None else self.literal(v) for n, v in changed.items()
            }
            if known is None:
                named, given = ", ".join(("id", *stated)), ", ".join((str(key), *stated.values()))
                self.spark.sql(f"INSERT INTO {self.path(name)} ({named}) VALUES ({given})")
            elif stated:
                pairs = ", ".join(f"{n} = {value}" for n, value in stated.items())
                self.spark.sql(f"UPDATE {self.path(name)} SET {pairs} WHERE id = {key}")


class TypedEngine(MappedEngine):
    """The star with column mapping and type widening; its columns are numbers, so that large ones need a wider type."""

    text, type_ = pa.int16(), "SMALLINT"

    def __init__(self, spark: SparkSession, root: Path, **terms: Any) -> None:
        super().__init__(spark, root, **terms)
        for name in ("R", *terms["subscribers"]):
            self.alter(name, "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")

    def rows(self, name: str) -> Rows:
        found = super().rows(name)
        return {
            key: {n: None if value is None else str(value) for n, value in row.items()}
            for key, row in found.items()
        }

    def logged(self, name: str) -> set[str | None]:
        path = self.root / FOLDERS[name] / "_mergerepl/MSmerge_conflict_p_t"
        found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        return {str(value) for row in found for value in row.values() if isinstance(value, int)}

    def ddl(self, what: str, *names: str) -> None:
        if what == "widen":
            self.alter("R", f"ALTER COLUMN {names[0]} TYPE BIGINT")
        else:
            super().ddl(what, *names)


def values(world: World, name: str) -> Rows:
    table = world.r[name].table
    return {
        KEYS[key]: {
            column.name: None if row[at].value is None else str(row[at].value)
            for at, column in table.cols.items()
        }
        for key, row in table.rows.items()
    }


def steps(
    rng: random.Random, world: World, subscribers: Sequence[str], *, own: bool = False, tracked: bool = False
) -> Iterator[tuple[Any, ...]]:
    """Draw the steps of a history; `own`: subscribers add columns of their own, and the publisher drops none.

    `tracked`: the publisher's file changes the tracking, too.
    """
    used: set[str] = set()
    for _ in range(rng.randint(7, 13)):
        kinds = {"write": 9, "session": 6, "stopped": 3, "ddl": 1 if tracked else 3, "tracking": 3 * tracked}
        kind = rng.choices([*kinds], [*kinds.values()])[0]
        if kind == "tracking":
            yield "ddl", "R", "tracking"
            yield "capture", "R"
            continue
        if kind == "write":
            what = rng.choice(("a", "b", "c", "d", "a", "b", "-", "c0", "b0"))
            yield "write", rng.choice([*world.r]), rng.choice("xy"), what
        elif kind == "ddl":
            if own:
                what = rng.choice(("add", "more", "replace", "delete", "more"))
                if rng.random() < 0.5:
                    yield "ddl", rng.choice(subscribers), "add", "c"
                    continue
                if what in ("add", "more") and len(world.r["R"].table.cols) > 3:
                    what = "replace"
                yield "ddl", "R", what, rng.choice("xy" if what in ("replace", "delete") else "cd")
                continue
            what = rng.choice(("add", "more", "replace", "delete", "more", "less"))
            names = [column.name for column in world.r["R"].table.cols.values()]
            if what in ("add", "more"):
                # Without column mapping, the name of a dropped column does not come back.
                free = [name for name in "cdefgh" if name not in used]
                used.add(free[0])
                yield "ddl", "R", what, free[0]
            else:
                yield "ddl", "R", what, rng.choice(names if what == "less" else "xy")
        else:
            yield (
                "session",
                rng.choice(subscribers),
                None if kind == "session" else rng.choice(["captured", *POINTS]),
            )


def mapped_steps(rng: random.Random, world: World, subscribers: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for _ in range(rng.randint(6, 9)):
        kind = rng.choices(("write", "session", "stopped", "ddl"), (8, 3, 2, 5))[0]
        names = [column.name for column in world.r["R"].table.cols.values()]
        if kind == "write":
            what = rng.choice((*names, *names, "-", f"{names[0]}0"))
            yield "write", rng.choice([*world.r]), rng.choice("xy"), what
        elif kind == "ddl":
            what = rng.choice(("add", "drop", "again", "undone", "rename", "rename", "swap"))
            what = what if len(names) > 1 else "add"
            new = next(name for name in "abcdefgh" if name not in names)
            others = {
                "add": [new],
                "rename": [rng.choice(names), new],
                "swap": rng.sample(names, min(2, len(names))),
            }
            yield "ddl", "R", what, *others.get(what, [rng.choice(names)])
        else:
            yield (
                "session",
                rng.choice(subscribers),
                None if kind == "session" else rng.choice(["captured", *POINTS]),
            )


def typed_steps(rng: random.Random, world: World, subscribers: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Draw the steps of a history with wider types; a name is used once, because the conflict table keeps its type."""
    unused = iter("cdefghijklm")
    for _ in range(rng.randint(6, 9)):
        kind = rng.choices(("write", "session", "stopped", "ddl"), (8, 3, 3, 6))[0]
        names = [column.name for column in world.r["R"].table.cols.values()]
        if kind == "write":
            yield (
                "write",
                rng.choice([*world.r]),
                rng.choice("xy"),
                rng.choice((*names, *[f"{n}!" for n in names] * 3, "-")),
            )
        elif kind == "ddl":
            last = "drop" if len(names) > 1 else "add"
            what = rng.choice((*["widen"] * 6, "add", "rename", last))
            old = [] if what == "add" else [rng.choice(names)]
            new = [next(unused)] if what in ("add", "rename") else []
            yield "ddl", "R", what, *old, *new
        else:
            stop = None if kind == "session" else rng.choice(["captured", *POINTS])
            yield "session", rng.choice(subscribers), stop


def listed_steps(rng: random.Random, world: World, subscribers: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Draw the steps of a history whose file lists other columns; a name that was left out does not come back."""
    unused = iter("cdefghijklm")
    for _ in range(rng.randint(7, 10)):
        kind = rng.choices(("write", "session", "stopped", "columns"), (9, 3, 3, 4))[0]
        names = [column.name for column in world.r["R"].table.cols.values()]
        if kind == "write":
            what = rng.choice((*names, *names, "-", f"{names[0]}0"))
            yield "write", rng.choice([*world.r]), rng.choice("xy"), what
        elif kind == "columns":
            what = rng.choice(("add", "drop" if len(names) > 1 else "add"))
            yield "columns", "R", what, next(unused) if what == "add" else rng.choice(names)
        else:
            stop = None if kind == "session" else rng.choice(["captured", *POINTS])
            yield "session", rng.choice(subscribers), stop


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500, 512))
def test_a_drawn_history_with_listed_columns(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tree, column, is_subscribers = rng.choice(("pair", "star")), rng.random() < 0.5, rng.random() < 0.5
    kind = SubscriberWins if is_subscribers else Kept
    world = kind(tree, column=column, mapping="R", prios=(100, 100, 50, 50))
    subscribers = [name for name in world.r if name != "R"]
    resolver = "subscriber_wins" if is_subscribers else "priority"
    engine = ListedEngine(tmp_path, column=column, resolver=resolver, subscribers=subscribers)
    play(world, engine, subscribers, listed_steps(rng, world, subscribers))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", [403, 417, 422, 423, 425, 428, 430, 440, 450, 455, 456, 458])
def test_a_drawn_history_with_wider_types(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    play_mapped(TypedEngine, typed_steps, seed, tmp_path, spark)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 212))
def test_a_drawn_history_with_column_mapping(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    play_mapped(MappedEngine, mapped_steps, seed, tmp_path, spark)


@pytest.mark.parametrize(
    "seed",
    [
        *(3, 302),
        *(
            pytest.param(seed, marks=pytest.mark.slow)
            for seed in (*range(100, 140), *range(200, 220), *range(300, 302), *range(303, 340))
        ),
    ],
)
def test_a_drawn_history(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tree, column, is_subscribers = rng.choice(("pair", "star")), rng.random() < 0.5, rng.random() < 0.5
    kind = SubscriberWins if is_subscribers else Kept
    world = kind(tree, column=column, mapping="", prios=(100, 100, 50, 50))
    subscribers = [name for name in world.r if name != "R"]
    resolver = "subscriber_wins" if is_subscribers else "priority"
    engine = Engine(tmp_path, column=column, resolver=resolver, subscribers=subscribers)
    play(
        world, engine, subscribers, steps(rng, world, subscribers, own=200 <= seed < 300, tracked=seed >= 300)
    )


def play_mapped(
    engine_of: type[MappedEngine],
    drawn: Callable[[random.Random, World, Sequence[str]], Iterator[tuple[Any, ...]]],
    seed: int,
    root: Path,
    spark: SparkSession,
) -> None:
    rng = random.Random(seed)
    column, is_subscribers = rng.random() < 0.5, rng.random() < 0.5
    kind = SubscriberWins if is_subscribers else Kept
    world = kind("star", column=column, mapping="RAB", prios=(100, 100, 50, 50))
    subscribers = [name for name in world.r if name != "R"]
    resolver = "subscriber_wins" if is_subscribers else "priority"
    engine = engine_of(spark, root, column=column, resolver=resolver, subscribers=subscribers)
    play(world, engine, subscribers, drawn(rng, world, subscribers))


def play(world: Kept, engine: Engine, subscribers: Sequence[str], drawn: Iterator[tuple[Any, ...]]) -> None:
    """Play a history on model and engine, bring both to rest, and compare them."""
    played, seen = [], set[str | None]()
    for step in drawn:
        played.append(step)
        what, name, *rest = step
        if what == "session":
            world.session(name, rest[0])
            engine.session(name, rest[0])
            continue
        if isinstance(engine, ListedEngine) and what == "columns":
            if rest[0] == "add" and engine.is_by_row:
                for each in subscribers:
                    schema_histories.do(world, ("session", each))
            schema_histories.do(world, ("ddl", "R", *rest))
            schema_histories.do(world, ("capture", "R"))
            engine.change(*rest)
            continue
        if what == "capture" or rest[0] == "tracking":
            schema_histories.do(world, step)
            if what == "capture":
                engine.track(column=world.r["R"].is_column)
            continue
        table = world.r[name].table
        before, commits = values(world, name), len(table.log)
        schema_histories.do(world, step)
        columns = [each.name for each in table.cols.values()]
        if isinstance(engine, MappedEngine) and what == "ddl":
            if len(table.log) > commits:
                engine.ddl(*rest)
            continue
        is_replaced = any(commit.op == "replace" for commit in table.log[commits:])
        engine.write(name, before, values(world, name), columns, is_replaced=is_replaced)
        seen |= {value for row in values(world, name).values() for value in row.values()}
    schema_histories.finish(world)
    for _ in range(2):
        for name in [*reversed(subscribers), *subscribers]:
            engine.session(name)
    expected = values(world, "R")
    columns = {column.name for column in world.r["R"].table.cols.values()}

    def published(rows: Rows) -> Rows:
        """Leave out the columns that a DROP left to a subscriber, or that are its own."""
        return {key: {n: v for n, v in row.items() if n in columns} for key, row in rows.items()}

    found = {name: published(engine.rows(name)) for name in world.r}
    assert found == dict.fromkeys(world.r, expected), played
    for name, value in world.lost:
        assert value in engine.logged(name) or value not in seen, (name, value, played)

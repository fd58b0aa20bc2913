"""Users commit while a session applies: between its capture and its MERGE (I6, I9, I25, I31; design section 7.5).

The session is paused right before its MERGE; the commits then land on a table the session thinks it knows. Writes of every
kind at every step, by chance, are in `test_writers.py`.
"""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import CommitConflictError
from mergerepl.merge.apply.side import Side
from mergerepl.merge.session import carry_out
from tests.calls import conflicts_of
from tests.faults.sessions import NORTH, paused, row
from tests.networks import Pair, Site
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tracking", ["row", "column"])
@pytest.mark.parametrize("side", ["publisher", "subscriber"])
def test_inv_25_commits_that_slip_in_before_the_merge_survive_or_are_logged(
    spark: SparkSession, replica_dir: Path, side: str, tracking: str
) -> None:
    snapshot = {f"k{n}": row("a", "b") for n in range(10)}
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH,), tracking), snapshot)
    here, there = ("hub", "north") if side == "publisher" else ("north", "hub")
    # What the session brings: updates, a delete, an insert, and a conflict of its own.
    incoming = {f"k{n}": row(f"in{n}", "b") for n in range(5)} | {"k5": None, "new": row("in", "in")}
    engine.write(there, incoming)
    engine.write(here, {"k4": row("own4", "b")})
    with paused(lambda: engine.sync("north"), f"{side}.before_merge", replica_dir / "gate") as outcome:
        late = {
            "k0": row("late0", "b"),  # the column that comes in
            "k1": row("a", "late1"),  # another column
            "k2": None,  # deleted here, updated there
            "k4": row("own4", "late4"),  # a row that is in conflict already
            "k5": row("a", "late5"),  # updated here, deleted there
            "new": row("late-new", "x"),  # inserted at both
            "k8": row("late8", "b"),  # nothing to do with the session
            "fresh": row("late-fresh", "x"),
        }
        engine.write(here, {key: late[key] for key in ("k0", "k1", "k8")})
        engine.write(here, {key: value for key, value in late.items() if key not in ("k0", "k1", "k8")})
    assert outcome[0].late_changes == len(late)
    for _ in range(2):
        engine.sync("north")
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    logged = engine.conflicts()
    assert len(logged) == len(set(logged)), logged
    lost = {(key, values) for key, _, _, _, values in logged}

    def kept(key: str, column: int, token: str) -> bool:
        in_row = key in rows and rows[key][column] == token
        return in_row or any(
            k == key and values is not None and values[column] == token for k, values in lost
        )

    tokens = [
        ("k0", 0, "late0"),
        ("k1", 1, "late1"),
        ("k4", 1, "late4"),
        ("k5", 1, "late5"),
        ("new", 0, "late-new"),
    ]
    tokens += [("k8", 0, "late8"), ("fresh", 0, "late-fresh"), ("new", 0, "in"), ("k4", 0, "own4")]
    tokens += [(f"k{n}", 0, f"in{n}") for n in range(5)]
    assert [token for token in tokens if not kept(*token)] == []
    # A losing delete has no row: it is logged as an update that won.
    assert "k2" not in rows or any(key == "k2" and kind == 4 for key, kind, *_ in logged)
    assert "k5" not in rows or any(key == "k5" and kind == 4 for key, kind, *_ in logged)
    if tracking == "column":
        assert rows["k1"][:2] == ["in1", "late1"]
    assert engine.sync("north").status == "nothing_to_do"


def test_inv_25_second_rows_of_a_key_that_slip_in_are_reported_and_no_row_is_lost_with_one_of_them(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(spark, replica_dir, ["orders"])
    table = site.table("hq", "orders")
    spark.sql(f"update {site.table('north', 'orders')} set a = 'in' where id in (0, 1)")
    with caplog.at_level(logging.WARNING), paused(site.sync, "publisher.before_merge", replica_dir / "gate"):
        # 1 meets a change that comes in; of 8, both rows are new, in one commit.
        spark.sql(f"insert into {table} select id, 'late', 0.5d from range(1, 6)")
        spark.sql(f"insert into {table} values (8, 'one', 8.0), (8, 'two', 8.5), (null, 'no key', 0.0)")
        spark.sql(f"update {table} set id = null where id = 6")
    warnings = [message for message in caplog.messages if "Remove the others" in message]
    assert warnings
    assert any("NULL in their key" in message for message in caplog.messages)
    assert not any("comparing versions" in message for message in caplog.messages)
    # One of two rows goes: the one that was there, the one that came, or both, in turn.
    spark.sql(f"delete from {table} where id = 2 and a = 'late' or id = 3 and a <> 'late' or id = 4")
    spark.sql(f"update {table} set id = 50 where id = 5 and a <> 'late'")
    spark.sql(f"delete from {table} where id = 8 and a = 'one' or id is null")
    site.sync()
    hq, north = site.rows("hq", "orders"), site.rows("north", "orders")
    assert hq == north
    assert {(2, "a2", 2.0), (3, "late", 0.5), (5, "late", 0.5), (50, "a5", 5.0), (8, "two", 8.5)} < hq
    assert not {4, 6} & {row[0] for row in hq}
    assert site.sync().status == "nothing_to_do"


HALVES = {
    "ranges": ("lo int, hi int, note string", "(1, 1, 10, 'n1'), (2, 1, 10, 'n2')", "lo <= hi"),
    "limits": ("x int, y int", "(1, 1, 1), (2, 1, 1)", "x * y < 1000000"),
    "products": ("x int, y int, product int generated always as (x * y)", "(1, 1, 1), (2, 1, 1)", None),
    "sums": ("a int, b int, c int", "(1, 1, 1, 90)", "a + b + c <= 100"),
}
"""Columns after the key, rows and a CHECK: also of columns of one side alone, and of products that are no integer."""


def test_inv_31_44_late_halves_that_their_table_does_not_take_together(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Each half stood in its table. The publisher's late change wins as a whole; the other one is logged."""
    for name, (columns, rows, check) in HALVES.items():
        table = f"delta.`{replica_dir / 'hq' / name}`"
        spark.sql(f"create table {table} (id int, {columns}) using delta")
        given = "(id, x, y) " if name == "products" else ""
        spark.sql(f"insert into {table} {given}values {rows}")
        if check is not None:
            spark.sql(f"alter table {table} add constraint fits check ({check})")
    settings: dict[str, object] = {"key": ["id"], "tracking": "column"}
    parts = {"ranges": ["id", "lo", "hi"], "sums": ["id", "a", "b"]}
    articles = {name: settings | ({"columns": parts[name]} if name in parts else {}) for name in HALVES}
    pair = Pair(spark, replica_dir, {name: (None, stated) for name, stated in articles.items()})
    pair.edit("update north.ranges set hi = 5 where id = 1", "delete from north.ranges where id = 2")
    for name in ("limits", "products"):
        pair.sql(f"update north.{name} set x = 50000 where id in (1, 2)")
    pair.edit("update north.sums set a = 8 where id = 1")
    # Before any MERGE: articles are merged beside each other.
    with paused(pair.sync, "stage.after_manifest", replica_dir / "gate"):
        pair.sql("update hq.ranges set lo = 8")
        for name in ("limits", "products"):
            pair.sql(f"update hq.{name} set y = 50000 where id = 1")
        pair.edit("update hq.sums set b = 9 where id = 1")
    pair.sync()
    # What comes back from a delete comes back whole.
    assert pair.rows("hq", "ranges") == [(1, 8, 10, "n1"), (2, 8, 10, "n2")]
    assert pair.rows("north", "ranges") == [(1, 8, 10), (2, 8, 10)]
    for name in ("limits", "products"):
        assert [row[:3] for row in pair.same_rows(name)] == [(1, 1, 50000), (2, 50000, 1)]
    assert (pair.rows("hq", "sums"), pair.rows("north", "sums")) == ([(1, 1, 9, 90)], [(1, 1, 9)])
    logged = conflicts_of(replica_dir / "hq").list(with_rows=True)
    assert {each.article: each.losing_row for each in logged if each.losing_row} == {
        "ranges": {"id": 1, "lo": 1, "hi": 5},
        "limits": {"id": 1, "x": 50000, "y": 1},
        "products": {"id": 1, "x": 50000, "y": 1, "product": 50000},
        "sums": {"id": 1, "a": 8, "b": 1},
    }
    assert pair.sync().status == "nothing_to_do"


def test_inv_31_a_merge_that_loses_its_commit_to_a_user_is_done_again(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = {f"k{n}": row("a", "b") for n in range(10)}
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH,), "row"), snapshot)
    engine.write("north", {"k0": row("north", "b"), "k9": row("north", "b")})
    table = DeltaTable(str(engine.path("hub") / "t"))
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(engine.sync("north"))
        except BaseException as error:
            outcome.append(error)

    session = threading.Thread(target=run)
    with caplog.at_level(logging.INFO, "mergerepl"):
        session.start()
        written = 0
        # Every file is rewritten again and again until a MERGE that has read one comes to commit.
        while session.is_alive() and not any("commit conflict" in message for message in caplog.messages):
            table.update_incremental()
            table.update(updates={"a": f"'late{written}'"}, predicate="id >= 'k5'")
            written += 1
        session.join(600)
    assert isinstance(outcome[0], mergerepl.SessionResult), outcome
    assert any("commit conflict" in message for message in caplog.messages)
    engine.sync("north")
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    last = f"late{written - 1}"
    assert {key: values[0] for key, values in rows.items()} == {
        **{f"k{n}": "a" for n in range(1, 5)},
        **{f"k{n}": last for n in range(5, 10)},
        "k0": "north",
    }
    # A user's commit, of k9 too, came before the MERGE that went well: whenever that was, north did not know of it.
    assert {values for key, *_, values in engine.conflicts() if key == "k9"} == {("north", "b", None)}
    assert engine.sync("north").status == "nothing_to_do"


def test_inv_09_a_late_write_to_a_row_that_won_there_follows_the_session(
    spark: SparkSession, replica_dir: Path
) -> None:
    """The row that won is as users left it there; competing with itself, a write to it would lose."""
    east = Subscriber("east", "server", 50.0)
    engine = EngineNetwork(
        spark, replica_dir, Setting((NORTH, east)), {f"k{n}": row("a", "b") for n in range(3)}
    )
    engine.write("east", {"k1": row("east", "b")})
    engine.sync("east")
    engine.write("north", {"k1": row("north", "b")})
    engine.write("hub", {"k2": row("hub", "b")})
    with paused(lambda: engine.sync("north"), "subscriber.before_merge", replica_dir / "gate"):
        engine.write("north", {"k1": row("late", "b")})
    # It knows of all that the row won against, east's change too.
    assert engine.lineages("hub")["k1"] <= engine.lineages("north")["k1"]
    for name in ("north", "east"):
        engine.sync(name)
    assert [engine.rows(name)["k1"][0] for name in ("hub", "north", "east")] == ["late"] * 3
    assert [(key, lost) for key, _, _, _, lost in engine.conflicts()] == [("k1", ("east", "b", None))]


def write_before_each_merge(
    engine: EngineNetwork, side: str, replica: str, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a user of a side's replica write the next of these to k0 before each MERGE there, until none is left."""
    merged = carry_out.merge_article

    def merging(choice: EngineChoice, at: Side, *args: Any) -> Any:
        if at.name == side and late:
            engine.write(replica, {"k0": row(late.pop(0), "b")})
        return merged(choice, at, *args)

    monkeypatch.setattr(carry_out, "merge_article", merging)


def losers(engine: EngineNetwork) -> list[str]:
    return sorted(str(values and values[0]) for *_, values in engine.conflicts())


def test_inv_31_a_session_that_users_outrun_stays_staged_and_the_next_run_finishes_it(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH,)), {"k0": row("a", "b")})
    engine.write("north", {"k0": row("north", "b")})
    late = ["late0", "late1", "late2"]
    write_before_each_merge(engine, "publisher", "hub", late, monkeypatch)
    monkeypatch.setattr(carry_out, "LATE_ROUNDS", 2)
    with pytest.raises(CommitConflictError, match=r"\(2 rounds\).*run again"):
        engine.sync("north")
    assert late == []
    # It goes on with the rounds that are staged: these do not count again.
    assert engine.sync("north").recovered
    engine.sync("north")
    assert engine.rows("hub") == engine.rows("north") == {"k0": ["late2", "b", None]}
    assert losers(engine) == ["late0", "late1", "north"]
    assert engine.sync("north").status == "nothing_to_do"


@pytest.mark.parametrize("side", ["subscriber", "publisher"])
def test_inv_09_of_two_late_writes_of_one_replica_the_later_one_wins(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """What comes in loses to the first; the second is by who saw what came in, and meets the first coming back."""
    south = Subscriber("south", "server", 50.0)
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH, south)), {"k0": row("a", "b")})
    engine.write("south", {"k0": row("south", "b")})
    here, session = "hub", "south"
    if side == "subscriber":
        engine.sync("south")
        here, session = "north", "north"
    late = ["first", "second"]
    write_before_each_merge(engine, side, here, late, monkeypatch)
    engine.sync(session)
    assert late == []
    for name in ("north", "south", "north"):
        engine.sync(name)
    assert [engine.rows(name)["k0"][0] for name in engine.names] == ["second"] * 3
    assert losers(engine) == ["first", "south"]
    # Both late writes were this replica's.
    assert [(won, lost) for _, _, won, lost, row_ in engine.conflicts() if row_ and row_[0] == "first"] == [
        (here, here)
    ]

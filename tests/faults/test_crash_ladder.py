"""Every durable step has a failpoint, and a session that dies at each of them in turn ends as if it had not (I26 to I29).

One set of changes climbs the whole ladder: the session dies at the first point, the next run at the second, and so on,
so that every recovery is interrupted, too.
"""

import ast
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.systables.partitions import MAPPINGS
from tests.calls import merge_capture
from tests.faults.ladder import (
    CAPTURED_BEFORE,
    CLEANED,
    COLUMNS_CHANGED,
    ENDED,
    FILTERS_CHANGED,
    GIVEN_UP,
    LADDER,
    LATE,
    MAPPED,
    PARTITION_CHANGED,
    QUIET,
    REINITIALISED,
    REPAIRED,
    ROOT,
    SOME,
    points_in,
)
from tests.faults.sessions import NORTH, row, stop_at, stopped_at
from tests.properties.engine_network import EngineNetwork, Rows, Setting
from tests.properties.side_by_side import OPERATIONS, START, Slot, Together, new_model

SIDES = ("publisher", "subscriber")
TABLES = tuple(table.name for table in MAPPINGS)
ROOMS = (
    *("merge/session", "merge/apply", "merge/partitions", "merge/stage", "merge/capture"),
    *("merge/schema", "merge/reinit", "merge/repair"),
)
"""Those that a session, a repair and a reinitialisation write from."""


def named_points() -> set[str]:
    """Return every failpoint a session passes."""
    rooms = [room for room in ROOMS if room != "merge/partitions"]
    return points_in(*rooms, "replica", "store", named=SIDES) | points_in("merge/partitions", named=TABLES)


DURABLE = {
    *("save_info", "append_generations", "close_generations", "drop_uncounted_generations", "append_run"),
    *("merge_rows", "update_subscription", "delete_runs_after", "write_durably", "commit", "drop", "unlink"),
    *("rmtree", "write_text", "write_files", "join_small_files", "compact"),
    *("drop_pointer", "write_pointer", "drop_rows", "new_folder", "set_aside", "mark_done"),
    *("drop_half_written_pointers", "new_session_folder"),
}
"""Calls with which agent and apply change what outlives the process, on any object."""

DURABLE_OF = {"append": {"control", "appended", "delta"}, "replace": {"control"}}
"""Those that mean it of these only: a list is appended to as well."""

NOT_A_STEP = {
    # A read-only replica's bookkeeping, nothing of a session hangs on it: repeated, it does the same again.
    "windows.move_versions",
    # Clean up what a crash left; they are repeated until it is done.
    "recovery.recover",
    "recovery._drop_stale_pointers",
    "capture.remove_leftovers",
    # Is `recover`, then takes away what is left; `apply` repeats it as long as the session is staged.
    "recovery.finish_session",
    # One step: a folder whose plan cannot be read is moved.
    "recovery.give_up_session",
    # Their callers stop before and after them.
    "give_up._own_resolutions",
    "side.append_side_run",
    "conflict_log._append",
    "conflict_log.append_conflicts",
    "moved_rows.commit_moves",
    # Nothing of it counts before the manifest.
    "article.stage_article",
    "stage_partitioned.stage_partitioned",
    "late._stage_moves",
    "stage_session.stage_articles",
    "stage_session.refused_alone",
    # Notes of a session that failed or found nothing to do: the next session makes them again.
    "session_history._append_session",
    "session_history.record_failure",
    "session_history.record_success",
    "session_history.note_presence",
    # One commit, where a window has no rows.
    "record.record",
    # One commit, which the next capture makes again.
    "follow._take_table_id",
    # Their callers stop after them.
    "follow.record_change",
    "kept_rows.export",
    # Results of validations: nothing of a session hangs on them.
    "certificate.record_validation",
    "certificate._mark",
    "certificate.forget_divergence",
    # It drops a column of a frame.
    "differing.without_equal",
    # A folder for temporary files.
    "preview._preview",
}


UNDONE_TOGETHER = {
    # What is half there is made again: empty system tables of a replica without a name.
    "system_tables.create_replica",
    # It removes its folder at one of two ends: nothing is left to send, or an error.
    "stage_session.staged_changeset",
}
"""Functions with two durable steps in turn that come to the same wherever they stop."""


def test_the_ladder_names_every_failpoint() -> None:
    assert [point for point in LADDER if point in SOME] == [*SOME]
    apart = {
        *CAPTURED_BEFORE,
        *COLUMNS_CHANGED,
        *REPAIRED,
        *LATE,
        *MAPPED,
        *GIVEN_UP,
        *QUIET,
        *CLEANED,
        *ENDED,
        *REINITIALISED,
        *PARTITION_CHANGED,
        *FILTERS_CHANGED,
    }
    assert {*LADDER} | apart == named_points()


UNTRIED = "after_queue", "after_removed_through"
"""The failpoints of transactional replication at which no test lets anything die."""


def test_every_failpoint_is_named_by_a_test() -> None:
    def texts(folder: Path) -> Iterator[str]:
        return (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))

    named = "".join(texts(ROOT.parent / "tests"))
    passed = {name for text in texts(ROOT) for name in re.findall(r'failpoint\("([\w.]+)"\)', text)}
    assert len(passed) > 150
    assert [name for name in sorted(passed) if f'"{name}"' not in named and f'"{name}:' not in named] == [
        f"transactional.{each}" for each in UNTRIED
    ]


def functions(*folders: str) -> dict[str, list[str]]:
    """Return the steps of every function that has any: `module.function` -> durable calls and failpoints."""
    return {
        f"{path.stem}.{function.name}": steps
        for folder in folders
        for path in sorted((ROOT / folder).glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        if set(steps := steps_of(function)) - {"failpoint"}
    }


def test_no_durable_step_is_without_a_failpoint() -> None:
    """A function of these rooms that writes must pass a failpoint, itself or right around its call."""
    found = {name for name, steps in functions(*ROOMS).items() if "failpoint" not in steps}
    assert found == NOT_A_STEP


def test_no_two_durable_steps_are_without_a_failpoint_between_them() -> None:
    found = {
        name: steps
        for name, steps in functions(*ROOMS, "publish", "publish/snapshot").items()
        if any("failpoint" not in pair for pair in itertools.pairwise(steps))
    }
    assert found.keys() - NOT_A_STEP == UNDONE_TOGETHER


def steps_of(function: ast.FunctionDef) -> list[str]:
    """Return the calls of a function that are durable steps, and the failpoints it passes, as they are written."""
    found = []
    for call in ast.walk(function):
        if isinstance(call, ast.Call):
            name, owner = called(call.func)
            if name in {*DURABLE, "failpoint"} or owner in DURABLE_OF.get(name, ()):
                found.append((call.lineno, call.col_offset, name))
    # A plan is staged between failpoints of its own.
    return [
        step
        for _, _, name in sorted(found)
        for step in (("failpoint", name, "failpoint") if name == "commit" else (name,))
    ]


def called(function: ast.expr) -> tuple[str, str]:
    """Return the name of what is called, and the last name of what it is called of."""
    if isinstance(function, ast.Name):
        return function.id, ""
    if not isinstance(function, ast.Attribute):
        return "", ""
    owner = function.value
    while isinstance(owner, ast.Call):
        # path(...).unlink()
        owner = owner.func.value if isinstance(owner.func, ast.Attribute) else owner.func
    return function.attr, owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ladder", "captured_before"),
    [
        # By default the steps die in process (test_without_engine.py), and one by kill -9 (test_kill.py).
        pytest.param(SOME, (), id="some", marks=pytest.mark.slow),
        pytest.param(LADDER, CAPTURED_BEFORE, id="all", marks=pytest.mark.slow),
    ],
)
def test_inv_27_28_29_a_session_that_dies_at_every_step_in_turn_ends_as_if_it_had_not(
    spark: SparkSession, replica_dir: Path, ladder: tuple[str, ...], captured_before: tuple[str, ...]
) -> None:
    drawn = random.Random(27)
    # What one writer began, the other one finishes.
    setting = Setting((NORTH,), "column", engines=("auto", "spark"))
    keys = [f"k{number:04d}" for number in range(400 if ladder == SOME else 1000)]
    snapshot = dict.fromkeys(keys[: len(keys) * 7 // 10], START)
    engine = EngineNetwork(spark, replica_dir, setting, snapshot)
    together = Together(new_model(setting, snapshot), engine)

    def edit(number: int) -> None:
        for replica in engine.names:
            together.slot(Slot(replica, number), {key: drawn.choice(OPERATIONS) for key in keys})

    def read() -> dict[str, Rows]:
        return {name: {key: tuple(row) for key, row in engine.rows(name).items()} for name in engine.names}

    # A first round, so that tombstones and earlier metadata take part in the next.
    edit(0)
    together.sync("north")
    remaining = list(ladder)
    for number in range(1, 9):
        edit(number)
        states = [read()]
        # The sides run beside each other: while one dies the other may get past points of its own. Then the session
        # ends, and new changes start at the first point that is left.
        while remaining and stopped_at(remaining[0], engine):
            remaining.pop(0)
            states.append(read())
        together.sync("north")
        # A reader met each row as it was before or as it is afterwards (I29).
        for name, after in read().items():
            for key in {*states[0][name], *after}:
                assert {state[name].get(key) for state in states} <= {
                    states[0][name].get(key),
                    after.get(key),
                }
        if not remaining:
            break
    assert remaining == []
    if captured_before:
        edit(9)
        for name in engine.names:
            merge_capture(engine.path(name))
        for point in captured_before:
            stop_at(point, engine)
        # One side comes to its end, the other one has done nothing.
        stop_at("publisher.before_merge", engine, action="raise")
        together.sync("north")
    assert together.differing() == {}
    assert engine.rows("hub") == engine.rows("north")
    assert engine.sync("north").status == "nothing_to_do"
    assert not list((replica_dir / "hub" / "_mergerepl" / "staging").glob("*"))
    assert not list((replica_dir / "north" / "_mergerepl" / "staging").glob("*"))


LATE_POINTS = (
    *LATE,
    "conflicts.after_rows",
    "conflicts.after_info",
    # The second time is the late round's.
    "subscriber.after_merge:2",
    "run.before_contents:2",
    "run.after_contents:2",
    "bookkeeping.before_replinfo",
)


@pytest.mark.slow
def test_inv_31_stopped_while_late_commits_are_taken_in(spark: SparkSession, replica_dir: Path) -> None:
    snapshot = {key: row("a", "b") for key in ("k00", "k01", "k10")}
    setting = Setting((NORTH,), "column")
    engine = EngineNetwork(spark, replica_dir, setting, snapshot)
    engine.write("hub", {"k00": row("h1", "b"), "k01": row("h1", "h1")})
    engine.write("north", {"k01": row("n1", "n1")})
    # The publisher's side comes to its end, so that what follows is the subscriber's alone.
    stop_at("subscriber.before_merge", engine, action="raise")
    # One row that nobody else changed, one that merges with the session's change, one that loses to it.
    engine.write("north", {"k10": row("late", "late"), "k00": row("a", "late"), "k01": row("late", "n1")})
    staging = engine.path("north") / "_mergerepl" / "staging"
    (staging / "cut short.json.tmp").write_text("{")
    for point in LATE_POINTS:
        stop_at(point, engine)
    for _ in range(2):
        engine.sync("north")
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    assert tuple(rows["k10"][:2]) == ("late", "late")
    # The session's change of one column of k00 and the late one of the other are both there.
    assert tuple(rows["k00"][:2]) == ("h1", "late")
    assert tuple(rows["k01"][:2]) == ("h1", "h1")
    logged = [(key, *lost[:2]) for key, _, _, _, lost in engine.conflicts() if lost is not None]
    assert sorted(logged) == [("k01", "late", "n1"), ("k01", "n1", "n1")]
    assert engine.sync("north").status == "nothing_to_do"
    assert list(staging.iterdir()) == []

"""Stop a session at every failpoint, then run it again: the same end, the same conflicts (I20, I23, I26, I28).

The stop is an exception here, so that one warm session serves all points; `test_kill.py` kills real processes.
"""

import ast
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import failpoints
from mergerepl.failpoints import FailpointError
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

ROOT = Path(__file__).parents[2]
SIDES = ("publisher", "subscriber")


def named_points() -> list[str]:
    """Return every failpoint a session passes, read from the code, so that a new one cannot be forgotten."""
    names: set[str] = set()
    for folder in ("agent", "apply"):
        for path in sorted((ROOT / "mergerepl" / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
                    names |= _names_of(node.args[0])
    return sorted(names)


def _names_of(argument: ast.expr) -> set[str]:
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    assert isinstance(argument, ast.JoinedStr)
    parts = [part.value if isinstance(part, ast.Constant) else None for part in argument.values]
    return {"".join(side if part is None else str(part) for part in parts) for side in SIDES}


POINTS = [point for point in named_points() if not point.startswith("late.")]
"""Without those of late commits, which have a test of their own in `test_crash_ladder.py`."""


class Crashing:
    """Two replicas; each round every kind of change is made at both sides, in rows of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        snapshot = {f"k{n:02d}": {"a": "a", "b": "b", "c": None} for n in range(30)}
        setting = Setting((Subscriber("north", "server", 75.0),), "column")
        self.engine = EngineNetwork(spark, folder, setting, snapshot)
        self.conflicts = 0
        self.number = 0

    def edit(self) -> None:
        """Make changes that merge, conflict, insert and delete; count the conflicts they must lead to."""
        self.number += 1
        n = self.number
        hub = {"k00": row(f"h{n}", "b"), "k01": row(f"h{n}", f"h{n}"), f"h{n:03d}": row("new", "h")}
        north = {"k01": row(f"n{n}", f"n{n}"), "k03": row(f"n{n}", "b"), f"n{n:03d}": row("new", "n")}
        if n > 1:
            hub[f"n{n - 1:03d}"] = None
            north[f"h{n - 1:03d}"] = None
        hub_rows, north_rows = self.engine.rows("hub"), self.engine.rows("north")
        hub["k02"] = row(hub_rows["k02"][0], f"h{n}")
        north["k02"] = row(f"n{n}", north_rows["k02"][1])
        self.engine.write("hub", hub)
        self.engine.write("north", north)
        self.conflicts += 1  # k01: both columns changed at both sides; k02 merges

    def check(self) -> None:
        """Compare the replicas and count the losers."""
        assert self.engine.rows("hub") == self.engine.rows("north")
        rows = self.engine.rows("hub")
        n = self.number
        assert list(rows["k00"]) == [f"h{n}", "b", None]
        assert list(rows["k01"]) == [f"h{n}", f"h{n}", None]
        assert list(rows["k02"]) == [f"n{n}", f"h{n}", None]
        assert list(rows["k03"]) == [f"n{n}", "b", None]
        assert {key for key in rows if key[0] in "hn"} == {f"h{n:03d}", f"n{n:03d}"}
        logged = self.engine.conflicts()
        assert len(logged) == self.conflicts, logged
        assert len(set(logged)) == self.conflicts
        assert logged_last(logged, n)


def row(a: str | None, b: str | None) -> dict[str, str | None]:
    return {"a": a, "b": b, "c": None}


def logged_last(logged: list[tuple[str, int, str, str, tuple[str | None, ...] | None]], n: int) -> bool:
    """Return whether the loser of this round is there with its full row."""
    return ("k01", 2, "hub", "north", (f"n{n}", f"n{n}", None)) in logged


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_inv_26_a_session_stopped_at_any_point_ends_as_if_it_had_not(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = Crashing(spark, replica_dir)
    passed = []
    for point in (name for name in POINTS if not name.startswith("generations.")):
        crashing.edit()
        failpoints._passed.clear()
        monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
        stopped = False
        try:
            crashing.engine.sync("north")
        except FailpointError:
            stopped = True
        monkeypatch.delenv("MERGEREPL_FAILPOINT")
        if stopped:
            passed.append(point)
            crashing.engine.sync("north")
        crashing.check()
        assert mergerepl.sync(replica_dir / "hub").sessions[0].status == "nothing_to_do", point
        assert not list((replica_dir / "hub" / "_mergerepl" / "staging").glob("*")), point
    never = {name for name in POINTS if not name.startswith("generations.")} - set(passed)
    assert never == set(), "these points were never passed"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_inv_26_users_edit_between_the_stop_and_the_next_run(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = Crashing(spark, replica_dir)
    for point in (
        "publisher.before_merge",
        "publisher.after_merge",
        "subscriber.before_merge",
        "run.after_contents",
    ):
        crashing.edit()
        failpoints._passed.clear()
        monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
        with pytest.raises(FailpointError):
            crashing.engine.sync("north")
        monkeypatch.delenv("MERGEREPL_FAILPOINT")
        # Rows the staged session is about to write, and one it is not: every one of these writes must survive or be logged.
        token = f"late-{point}"
        n = crashing.number
        # Where the session had brought it already, the user sees what is replaced.
        is_replaced = crashing.engine.rows("hub")["k03"][0] == f"n{n}"
        crashing.engine.write("hub", {"k03": row(token, "b"), "k10": row(token, token)})
        crashing.engine.write("north", {"k00": row("a", token), "k11": row(token, token)})
        for _ in range(3):
            crashing.engine.sync("north")
        rows = crashing.engine.rows("hub")
        assert rows == crashing.engine.rows("north")
        logged = crashing.engine.conflicts()
        assert tuple(rows["k10"][:2]) == (token, token)
        assert tuple(rows["k11"][:2]) == (token, token)
        assert rows["k00"][1] == token or any(item[4] and item[4][1] == token for item in logged)
        assert rows["k03"][0] == token or any(item[4] and item[4][0] == token for item in logged)
        is_logged = any(item[0] == "k03" and item[4] and item[4][0] == f"n{n}" for item in logged)
        assert is_replaced or is_logged or rows["k03"][0] == f"n{n}"
        assert len(set(logged)) == len(logged)
        # Back to where `check` expects the rows that were edited in between.
        crashing.engine.write("hub", {"k00": row(f"h{n}", "b"), "k03": row(f"n{n}", "b")})
        crashing.engine.sync("north")
        crashing.conflicts = len(crashing.engine.conflicts())

"""Every durable step has a failpoint, and a session that dies at each of them in turn ends as if it had not (I26, I27).

One set of changes climbs the whole ladder: the session dies at the first point, the next run at the second, and so on,
so that every recovery is interrupted, too.
"""

import ast
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import failpoints
from mergerepl.failpoints import FailpointError
from tests.faults.test_crash_everywhere import POINTS, ROOT, Crashing, named_points, row

LADDER = (
    "capture.before_genhistory",
    "capture.before_contents",
    "run.before_contents",
    "run.after_contents",
    "run.before_tombstone",
    "run.after_tombstone",
    "capture.before_replinfo",
    "capture.after_replinfo",
    "stage.before_manifest",
    "stage.after_manifest",
    "publisher.before_merge",
    "publisher.after_merge",
    "conflicts.before_rows",
    "conflicts.after_rows",
    "conflicts.before_info",
    "conflicts.after_info",
    "bookkeeping.before_genhistory",
    "bookkeeping.before_replinfo",
    "bookkeeping.after_replinfo",
    "publisher.after_done",
    "subscriber.before_merge",
    "subscriber.after_merge",
    "subscriber.after_done",
    "watermarks.before_subscriber",
    "watermarks.after_subscriber",
    "watermarks.before_publisher",
    "watermarks.after_publisher",
    "session.before_drop",
    "session.after_drop",
)
"""In the order in which a session passes them, the publisher's side first: the sides run beside each other."""

DURABLE = re.compile(
    r"\b(save_info|save_genhistory|append|merge_rows|write_durably|replace_rows|drop|commit|update_subscription)\("
)
"""How agent and apply change what outlives the process."""

NOT_A_STEP = {
    # A read-only replica's bookkeeping, nothing of a session hangs on it: repeated, it does the same again.
    "move_versions",
    # Cleans up what a crash left; it is repeated until it is done.
    "recover",
    "_drop_stale_pointers",
    # Is `recover`, then takes away what is left; `apply` repeats it as long as the session is staged.
    "finish_session",
    "_note",
}


def test_the_ladder_names_every_failpoint() -> None:
    assert sorted({*LADDER, "generations.before_close", "generations.after_close"}) == POINTS
    assert [point for point in named_points() if point not in POINTS] == [
        "late.after_manifest",
        "late.before_manifest",
    ]


def test_no_durable_step_is_without_a_failpoint() -> None:
    """A function of agent or apply that writes must pass a failpoint, itself or right around its call."""
    bare = []
    for folder in ("agent", "apply"):
        for path in sorted((ROOT / "mergerepl" / folder).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    body = ast.get_source_segment(text, node) or ""
                    body = body.split("\n", 1)[1] if "\n" in body else ""
                    writes = [call for call in DURABLE.findall(body) if not _is_of_a_list(body, call)]
                    if writes and "failpoint(" not in body and node.name not in NOT_A_STEP:
                        bare.append(f"{path.name}:{node.name} {sorted(set(writes))}")
    assert bare == []


def _is_of_a_list(body: str, call: str) -> bool:
    """Return whether every use of `append` and the like is that of a Python list."""
    owners = set(re.findall(rf"(\w*)\.?{call}\(", body))
    return call == "append" and "appended" not in owners


@pytest.mark.timeout(1200)
def test_inv_27_a_session_that_dies_at_every_step_in_turn_ends_as_if_it_had_not(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = Crashing(spark, replica_dir)
    # A first round, so that tombstones and earlier metadata take part in the next.
    crashing.edit()
    crashing.engine.sync("north")
    remaining = list(LADDER)
    for _ in range(8):
        crashing.edit()
        # The sides run beside each other: while one dies the other may get past points of its own. Then the session
        # ends, and new changes start at the first point that is left.
        while remaining and stopped_at(remaining[0], crashing, monkeypatch):
            remaining.pop(0)
        crashing.engine.sync("north")
        crashing.check()
        if not remaining:
            break
    assert remaining == []
    assert crashing.engine.sync("north").status == "nothing_to_do"
    assert not list((replica_dir / "hub" / "_mergerepl" / "staging").glob("*"))
    assert not list((replica_dir / "north" / "_mergerepl" / "staging").glob("*"))


@pytest.mark.timeout(600)
def test_inv_26_stopped_while_generations_that_were_captured_before_are_closed(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = Crashing(spark, replica_dir)
    crashing.edit()
    for name in ("hub", "north"):
        mergerepl.capture(replica_dir / name)
    for point in ("generations.before_close", "generations.after_close"):
        stop_at(point, crashing, monkeypatch)
    crashing.engine.sync("north")
    crashing.check()


@pytest.mark.timeout(600)
def test_inv_31_stopped_while_late_commits_are_taken_in(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = Crashing(spark, replica_dir)
    crashing.edit()
    stop_at("subscriber.before_merge", crashing, monkeypatch)
    crashing.engine.write("north", {"k10": row("late", "late"), "k00": row("a", "late")})
    for point in (
        "late.before_manifest",
        "late.after_manifest",
        "subscriber.after_merge",
        "bookkeeping.before_replinfo",
    ):
        stop_at(point, crashing, monkeypatch)
    for _ in range(2):
        crashing.engine.sync("north")
    rows = crashing.engine.rows("hub")
    assert rows == crashing.engine.rows("north")
    assert tuple(rows["k10"][:2]) == ("late", "late")
    # The session's change of one column of k00 and the late one of the other are both there.
    assert tuple(rows["k00"][:2]) == ("h1", "late")


def stop_at(point: str, crashing: Crashing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a session that dies at a failpoint."""
    assert stopped_at(point, crashing, monkeypatch), point


def stopped_at(point: str, crashing: Crashing, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a session with a failpoint; return whether it died there."""
    failpoints._passed.clear()
    with monkeypatch.context() as context:
        context.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
        try:
            crashing.engine.sync("north")
        except FailpointError:
            return True
    return False

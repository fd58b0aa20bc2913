"""Sessions that are never finished: their folder was removed, the publisher was put back to a copy, a subscriber left.

What one side did of such a session is in its tables for good. It must be nobody's loss (I6, I20, I21; design section 7.4).
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.log import head_version
from mergerepl.errors import EnumerationError
from mergerepl.failpoints import FailpointError
from mergerepl.merge.session import carry_out
from mergerepl.replica.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo
from tests.calls import merge_capture
from tests.faults.deaths import dies
from tests.faults.sessions import NORTH, apply_without_north, die, edit, edit_file, row
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber


@pytest.fixture
def engine(spark: SparkSession, replica_dir: Path) -> EngineNetwork:
    """Two replicas of six rows."""
    return EngineNetwork(spark, replica_dir, Setting((NORTH,)), {f"k{n}": row("a", "b") for n in range(6)})


def give_up(engine: EngineNetwork) -> None:
    (staged,) = (engine.path("hub") / "_mergerepl" / "staging").iterdir()
    shutil.rmtree(staged)


def write_before_merge(
    monkeypatch: pytest.MonkeyPatch, engine: EngineNetwork, name: str, changed: dict[str, Any]
) -> None:
    """Let users of a replica commit right before the next session's first MERGE there."""
    merge_article = carry_out.merge_article
    side_name = "publisher" if name == "hub" else "subscriber"

    def merge_after_a_commit(*args: Any, **keywords: Any) -> Any:
        if args[2].name == side_name:
            monkeypatch.setattr(carry_out, "merge_article", merge_article)
            engine.write(name, changed)
        return merge_article(*args, **keywords)

    monkeypatch.setattr(carry_out, "merge_article", merge_after_a_commit)


def no_bookkeeping(*_: object) -> None:
    raise FailpointError("no bookkeeping")


def at(point: str) -> Callable[[EngineNetwork, pytest.MonkeyPatch], None]:
    return lambda engine, monkeypatch: die(engine, point)


def without_replinfo(*names: str) -> Callable[[EngineNetwork, pytest.MonkeyPatch], None]:
    """Let these replicas enter their generations, and die before their commit point; another one comes to its end."""

    def died(engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
        save_bookkeeping, save_info = carry_out._save_bookkeeping, Replica.save_info

        def dying(replica: Replica, info: ReplicaInfo) -> None:
            if replica.root.name in names:
                raise FailpointError("no replinfo")
            save_info(replica, info)

        def bookkeeping(*args: Any) -> None:
            context.setattr(Replica, "save_info", dying)
            save_bookkeeping(*args)

        with monkeypatch.context() as context:
            context.setattr(carry_out, "_save_bookkeeping", bookkeeping)
            with pytest.raises(FailpointError):
                engine.sync("north")

    return died


def before_any_bookkeeping(engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both MERGEs are done, and neither side has recorded anything; the subscriber's overwrote a late write.

    That write then is in the past of what overwrote it.
    """
    with monkeypatch.context() as context:
        context.setattr(carry_out, "_save_bookkeeping", no_bookkeeping)
        context.setattr(carry_out, "late_windows", lambda *_: [])
        write_before_merge(context, engine, "north", {"k0": row("late", "b")})
        with pytest.raises(FailpointError):
            engine.sync("north")


@pytest.mark.slow
@pytest.mark.parametrize(
    "died",
    [
        pytest.param(at("subscriber.before_merge"), id="the publisher has done its part"),
        pytest.param(without_replinfo("north"), id="the subscriber has entered its generations"),
        pytest.param(without_replinfo("hub", "north"), id="both sides have entered their generations"),
        pytest.param(before_any_bookkeeping, id="no side has recorded its part"),
    ],
)
def test_inv_06_what_a_session_did_that_was_given_up_reaches_everybody(
    engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch, died: Callable[..., None]
) -> None:
    edit(engine)
    died(engine, monkeypatch)
    give_up(engine)
    for _ in range(2):
        engine.sync("north")
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    assert "k3" not in rows
    kept = {(key, values[0]) for key, values in rows.items()}
    kept |= {(key, lost[0]) for key, *_, lost in engine.conflicts() if lost is not None}
    assert {("k0", "hub"), ("k1", "hub"), ("k1", "north"), ("k2", "north"), ("k4", "hub")} <= kept
    assert engine.sync("north").status == "nothing_to_do"


@pytest.mark.slow
def test_inv_06_what_a_lost_subscriber_had_uploaded_reaches_the_others(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in the publisher's table, by a MERGE that the publisher had not recorded; nobody sends them again."""
    south = Subscriber("south", "server", 80.0)
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH, south)), {"k0": row("a", "b")})
    engine.write("north", {"k0": row("north", "b"), "k1": row("north", "b")})
    with monkeypatch.context() as context:
        context.setattr(carry_out, "_save_bookkeeping", no_bookkeeping)
        with pytest.raises(FailpointError):
            engine.sync("north")
    give_up(engine)
    shutil.rmtree(engine.path("north"))
    edit_file(engine, subscriptions=[{"subscriber": "./south", "type": "server", "priority": 80.0}])
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    engine.sync("south")
    assert engine.rows("south") == engine.rows("hub") == {key: ["north", "b", None] for key in ("k0", "k1")}


@pytest.mark.slow
def test_inv_21_a_publisher_put_back_to_before_a_session_that_its_subscriber_did_is_refused(
    engine: EngineNetwork,
) -> None:
    engine.write("north", {"k5": row("first", "b")})
    engine.sync("north")
    shutil.copytree(engine.path("hub"), engine.folder / "copy")
    edit(engine)
    die(engine, "watermarks.before_subscriber")
    shutil.rmtree(engine.path("hub"))
    shutil.move(engine.folder / "copy", engine.path("hub"))
    before = engine.rows("north")
    for write in ({}, {"k0": row("hub again", "b")}):
        engine.write("hub", write)
        with pytest.raises(EnumerationError, match=r"that its publisher '.*hub' does not know of"):
            engine.sync("north")
    assert engine.rows("north") == before


def test_inv_21_only_the_subscriber_has_carried_out_a_session(
    engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks the same where the publisher was put back: nothing distinguishes the two."""
    edit(engine)
    without_replinfo("hub")(engine, monkeypatch)
    give_up(engine)
    before = engine.rows("hub"), engine.rows("north")
    with pytest.raises(EnumerationError, match=r"that its publisher '.*hub' does not know of"):
        engine.sync("north")
    assert (engine.rows("hub"), engine.rows("north")) == before


@pytest.mark.slow
def test_inv_21_what_a_capture_entered_that_died_is_not_taken_for_a_generation(engine: EngineNetwork) -> None:
    """The change was taken back before anybody captured it: a generation without changes would have travelled."""
    engine.write("hub", {"k0": row("hub", "b")})
    with dies("capture.before_replinfo"):
        merge_capture(engine.path("hub"))
    engine.write("hub", {"k0": row("a", "b")})
    engine.sync("north", "download")
    engine.write("north", {"k1": row("north", "b")})
    engine.sync("north")
    assert engine.rows("hub")["k1"] == ["north", "b", None]
    assert engine.sync("north").status == "nothing_to_do"


@pytest.mark.slow
def test_inv_20_a_staged_session_that_outlives_the_log_says_so(engine: EngineNetwork) -> None:
    edit(engine)
    die(engine, "stage.after_manifest")
    for text in ("later", "last"):
        engine.write("hub", {"k5": row(text, "b")})
    table = engine.path("hub") / "t"
    DeltaTable(str(table)).create_checkpoint()
    for log in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    before = engine.rows("hub")
    with pytest.raises(
        EnumerationError, match=r"(?s)'.*north' was interrupted.*cannot be finished.*--give-up"
    ):
        engine.sync("north")
    assert engine.rows("hub") == before


@pytest.mark.slow
def test_inv_06_a_late_loser_of_a_subscriber_that_left_is_logged(
    engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.write("hub", {"k0": row("hub", "b")})
    with monkeypatch.context() as context:
        write_before_merge(context, engine, "north", {"k0": row("late", "b")})
        die(engine, "late.after_manifest")
    shutil.move(engine.path("north"), engine.folder / "away")
    apply_without_north(engine)
    assert [(key, lost) for key, *_, lost in engine.conflicts()] == [("k0", ("late", "b", None))]


@pytest.mark.slow
def test_inv_21_older_bookkeeping_beside_newer_tables_is_refused(engine: EngineNetwork) -> None:
    tables = {name: engine.path(name) / "_mergerepl" / "MSmerge_replinfo" for name in ("hub", "north")}
    before = {name: head_version(table) for name, table in tables.items()}
    edit(engine)
    engine.sync("north")
    for name, table in tables.items():
        head = head_version(table)
        DeltaTable(str(table)).restore(before[name])
        engine.write(name, {"k5": row("later", "b")})
        for command in (
            lambda: engine.sync("north"),
            lambda replica=name: merge_capture(engine.path(replica)),
            lambda: mergerepl.Project.load(engine.folder / "network.yml").apply(),
        ):
            with pytest.raises(
                EnumerationError, match=rf"'MSmerge_replinfo' of '.*{name}' is older than its other"
            ):
                command()
        DeltaTable(str(table)).restore(head)
    engine.sync("north")
    assert engine.rows("hub") == engine.rows("north")


@pytest.mark.slow
def test_inv_09_what_was_merged_late_at_a_subscriber_has_its_priority(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the publisher that it was merged with lend it none: it has not been there."""
    south = Subscriber("south", "server", 80.0)
    engine = EngineNetwork(spark, replica_dir, Setting((NORTH, south), "column"), {"k0": row("a", "b")})
    engine.write("hub", {"k0": row("a", "hub")})
    engine.sync("south")
    engine.write("south", {"k0": row("south", "hub")})
    write_before_merge(monkeypatch, engine, "north", {"k0": row("late", "b")})
    engine.sync("north")
    assert engine.rows("north")["k0"] == ["late", "hub", None]
    engine.sync("south")
    engine.sync("north")
    assert engine.rows("hub")["k0"] == engine.rows("north")["k0"] == ["south", "hub", None]
    assert [(key, lost) for key, *_, lost in engine.conflicts()] == [("k0", ("late", "hub", None))]

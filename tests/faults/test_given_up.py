"""Sessions that died, and what people do before the next one: they put back, copy, lose and move replicas, or leave.

Some of these sessions are never finished: their folder was removed, the publisher was put back, a subscriber left.
What one side did of such a session is in its tables for good. It must be nobody's loss (I6, I20, I21; design section 7.4).
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.errors import EnumerationError, PublicationError, SchemaMismatchError
from mergerepl.failpoints import FailpointError
from mergerepl.merge.session import carry_out
from mergerepl.replica.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo
from tests.calls import merge_capture
from tests.faults.deaths import dies
from tests.faults.sessions import (
    NORTH,
    apply_without_north,
    check_all_there,
    die,
    edit,
    edit_file,
    paused,
    row,
)
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

pytestmark = pytest.mark.slow


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
        if args[1].name == side_name:
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
    check_all_there(engine)


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


def stop(engine: EngineNetwork, point: str) -> None:
    """Edit both sides, with one conflict, and let the session die at a failpoint."""
    engine.write("hub", {"k0": row("hub", "b"), "k1": row("hub", "b")})
    engine.write("north", {"k1": row("north", "b"), "k2": row("north", "b")})
    die(engine, point)


def check(engine: EngineNetwork) -> None:
    """Both sides hold both sides' edits, and the loser is logged."""
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    assert [rows[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    assert [item[4] for item in engine.conflicts() if item[0] == "k1"] == [("north", "b", None)]


def test_a_restored_subscriber_is_filled_again_as_the_message_says(engine: EngineNetwork) -> None:
    shutil.copytree(engine.path("north"), engine.path("backup"))
    stop(engine, "subscriber.before_merge")
    shutil.rmtree(engine.path("north"))
    shutil.move(engine.path("backup"), engine.path("north"))
    with pytest.raises(EnumerationError, match=r"mergerepl abort (\S+) -f.*mergerepl reinit north") as raised:
        engine.sync("north")
    # The publisher's side is finished.
    assert [engine.rows("hub")[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    assert [item[4] for item in engine.conflicts() if item[0] == "k1"] == [("north", "b", None)]
    hub = mergerepl.Project.load(engine.path("hub"))
    hub.abort(str(raised.value.facts["session"]))
    hub.reinit("north", upload_first=True)
    assert engine.rows("north") == engine.rows("hub")
    engine.write("north", {"k5": row("again", "b")})
    engine.sync("north")
    assert engine.rows("hub")["k5"][0] == "again"


def test_inv_06_losers_that_only_a_lost_subscriber_would_keep_are_kept_by_the_publisher(
    engine: EngineNetwork,
) -> None:
    edit_file(engine, conflict_logging="subscriber")
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    stop(engine, "publisher.before_merge")
    assert engine.conflicts() == []
    shutil.rmtree(engine.path("north"))
    apply_without_north(engine)
    assert engine.rows("hub")["k1"][0] == "hub"
    assert [item[4] for item in engine.conflicts()] == [("north", "b", None)]


def test_a_subscriber_that_lost_a_table_can_leave_and_its_publisher_goes_on(engine: EngineNetwork) -> None:
    stop(engine, "subscriber.before_merge")
    (table,) = (each.parent for each in engine.path("north").glob("*/_delta_log"))
    shutil.rmtree(table)
    with pytest.raises(EnumerationError, match=r"'t', .* is gone\..*The publisher's side is finished"):
        engine.sync("north")
    assert [engine.rows("hub")[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    apply_without_north(engine)
    assert not list((engine.path("hub") / "_mergerepl" / "staging").glob("*"))
    assert [item[4] for item in engine.conflicts()] == [("north", "b", None)]


def test_an_article_that_one_side_lacks_is_named(engine: EngineNetwork) -> None:
    control = engine.path("north") / "_mergerepl" / "sysmergearticles"
    shutil.move(control, engine.path("north") / "kept")
    shutil.copytree(engine.path("hub") / "_mergerepl" / "sysmergearticles", control)
    from deltalake import DeltaTable

    DeltaTable(str(control)).delete()
    engine.write("hub", {"k0": row("hub", "b")})
    with pytest.raises(PublicationError, match=r"Article 't' is not there at .*mergerepl apply"):
        engine.sync("north")


@pytest.mark.parametrize("tracking", ["row", "column"])
def test_inv_09_a_late_write_to_a_row_that_only_its_metadata_concerned(
    spark: SparkSession, replica_dir: Path, tracking: str
) -> None:
    """The session leaves rows alone that both sides changed alike, and those of the winner; then users there write them."""
    engine = EngineNetwork(
        spark, replica_dir, Setting((NORTH,), tracking), {f"k{n}": row("a", "b") for n in range(6)}
    )
    engine.write("hub", {"k1": row("same", "b"), "k2": row("hub", "b"), "k3": None, "k4": row("hub", "b")})
    engine.write(
        "north", {"k1": row("same", "b"), "k3": None, "k4": row("north", "b"), "k5": row("north", "b")}
    )
    # Before either MERGE: beside the publisher's, a write to the hub might lose its commit.
    with paused(lambda: engine.sync("north"), "stage.after_manifest", replica_dir / "gate"):
        engine.write("north", {"k1": row("late", "b"), "k3": row("late", "b")})
        engine.write("hub", {"k4": row("late", "b")})
    for _ in range(2):
        engine.sync("north")
    rows = engine.rows("hub")
    assert rows == engine.rows("north")
    logged = [(key, lost) for key, _, _, _, lost in engine.conflicts()]
    # What the write followed had been in no conflict, and nothing of it was overwritten.
    assert {key: rows.get(key, [None])[0] for key in ("k1", "k3", "k4")} == dict.fromkeys(
        ("k1", "k3", "k4"), "late"
    )
    assert logged == [("k4", ("north", "b", None))]


def test_tables_that_users_break_during_a_session_are_refused_by_the_next_one(engine: EngineNetwork) -> None:
    """A staged session must come to its end: its window of late commits cannot be mended any more."""
    stop(engine, "publisher.before_merge")
    table = f"delta.`{engine.path('hub')}/t`"
    engine.spark.sql(f"insert into {table} values (null, 'no key', 'b', null)")
    engine.spark.sql(f"alter table {table} add columns (extra int)")
    engine.write("hub", {"k4": row("late", "b")})
    assert engine.sync("north").recovered == 1
    assert engine.rows("hub")["k4"][0] == engine.rows("north")["k4"][0] == "late"
    engine.write("hub", {"k5": row("hub", "b")})
    with pytest.raises(SchemaMismatchError, match="column 'extra' was added"):
        engine.sync("north")


def test_inv_06_losers_are_logged_though_a_session_that_was_given_up_had_logged_its_own(
    engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had come to its conflicts and to no MERGE, so nothing but the conflict tables knows its number."""

    def edit(number: int) -> None:
        engine.write("hub", {"k0": row(f"hub{number}", "b")})
        engine.write("north", {"k0": row(f"north{number}", "b"), "k3": row(f"new{number}", "b")})

    def fail(*_: object, **__: object) -> None:
        raise FailpointError("no MERGE")

    edit(1)
    with monkeypatch.context() as context:
        context.setattr(carry_out, "merge_article", fail)
        with pytest.raises(FailpointError):
            engine.sync("north")
    assert len(engine.conflicts()) == 1
    (staged,) = (engine.path("hub") / "_mergerepl" / "staging").iterdir()
    shutil.rmtree(staged)
    edit(2)
    engine.sync("north")
    assert engine.rows("hub") == engine.rows("north")
    assert {lost for *_, lost in engine.conflicts()} == {("north1", "b", None), ("north2", "b", None)}

"""Sessions that died after their manifest, and what people do before the next one (I20, I26 to I28; design section 7.4)."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.errors import EnumerationError, PublicationError, SchemaMismatchError
from mergerepl.failpoints import FailpointError
from mergerepl.merge.session import carry_out
from mergerepl.replica.replica import Replica
from mergerepl.systables.catalog import SubscriptionRow
from tests.calls import merge_capture, merge_history
from tests.faults.sessions import NORTH, apply_without_north, die, edit_file, paused_sync, row
from tests.properties.engine_network import EngineNetwork, Setting


@pytest.fixture
def engine(spark: SparkSession, replica_dir: Path) -> EngineNetwork:
    """Two replicas of six rows."""
    return EngineNetwork(spark, replica_dir, Setting((NORTH,)), {f"k{n}": row("a", "b") for n in range(6)})


@pytest.fixture
def stop(engine: EngineNetwork) -> object:
    """Edit both sides, with one conflict, and let the session die at a failpoint."""

    def stopped(point: str) -> None:
        engine.write("hub", {"k0": row("hub", "b"), "k1": row("hub", "b")})
        engine.write("north", {"k1": row("north", "b"), "k2": row("north", "b")})
        die(engine, point)

    return stopped


def check(engine: EngineNetwork, north: str = "north") -> None:
    """Both sides hold both sides' edits, and the loser is logged."""
    rows = engine.rows("hub")
    assert rows == engine.rows(north)
    assert [rows[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    assert [item[4] for item in engine.conflicts() if item[0] == "k1"] == [("north", "b", None)]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["stage.after_manifest", "subscriber.after_merge", "publisher.after_done"])
def test_a_subscriber_that_was_moved_finishes_its_own_session(
    engine: EngineNetwork, stop: object, point: str
) -> None:
    stop(point)  # type: ignore[operator]
    (engine.folder / "elsewhere").mkdir()
    shutil.move(engine.path("north"), engine.path("elsewhere/north"))
    done = mergerepl.Project.load(engine.path("elsewhere/north")).sync().sessions[0]
    assert done.recovered == 1
    check(engine, "elsewhere/north")
    assert not list((engine.path("hub") / "_mergerepl" / "staging").iterdir())
    assert not list((engine.path("elsewhere/north") / "_mergerepl" / "staging").iterdir())


@pytest.mark.slow
def test_a_publisher_that_was_moved_finishes_its_sessions(engine: EngineNetwork, stop: object) -> None:
    stop("publisher.before_merge")  # type: ignore[operator]
    shutil.move(engine.path("hub"), engine.path("head"))
    assert mergerepl.Project.load(engine.path("head")).sync("north").sessions[0].recovered == 1
    assert not engine.path("hub").exists()
    shutil.move(engine.path("head"), engine.path("hub"))
    check(engine)


def stop_and_restore_north(engine: EngineNetwork, stop: object) -> None:
    """Let a session die before it writes to the subscriber, then put that back to the state before it."""
    shutil.copytree(engine.path("north"), engine.path("backup"))
    stop("subscriber.before_merge")  # type: ignore[operator]
    shutil.rmtree(engine.path("north"))
    shutil.move(engine.path("backup"), engine.path("north"))


@pytest.mark.slow
def test_a_subscriber_that_was_restored_is_refused_and_the_publisher_is_finished(
    engine: EngineNetwork, stop: object
) -> None:
    stop_and_restore_north(engine, stop)
    with pytest.raises(EnumerationError, match="put back to an older state"):
        engine.sync("north")
    assert [engine.rows("hub")[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    assert [item[4] for item in engine.conflicts() if item[0] == "k1"] == [("north", "b", None)]


@pytest.mark.slow
def test_a_restored_subscriber_is_initialised_again_as_the_message_says(
    engine: EngineNetwork, stop: object
) -> None:
    stop_and_restore_north(engine, stop)
    with pytest.raises(EnumerationError, match="move its folder away, take its subscription out of the file"):
        engine.sync("north")
    shutil.move(engine.path("north"), engine.path("restored"))
    apply_without_north(engine)
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    assert engine.rows("north") == engine.rows("hub")
    engine.write("north", {"k5": row("again", "b")})
    engine.sync("north")
    assert engine.rows("hub")["k5"][0] == "again"


@pytest.mark.slow
def test_inv_20_a_restored_subscriber_that_went_on_by_itself_is_no_part_of_the_session(
    engine: EngineNetwork, stop: object
) -> None:
    """It has the run and the versions that the session was staged against, with other changes in them."""
    stop_and_restore_north(engine, stop)
    edited = {"k2": row("mine", "b"), "k4": row("mine", "b")}
    engine.write("north", edited)
    merge_capture(engine.path("north"))
    with pytest.raises(
        EnumerationError, match="put back to an older state: 't' has another commit as version"
    ):
        engine.sync("north")
    assert [engine.rows("north")[key][0] for key in ("k2", "k4")] == ["mine", "mine"]


@pytest.mark.slow
def test_inv_20_a_run_that_a_restored_subscriber_captured_by_itself_is_not_taken_for_the_sessions(
    engine: EngineNetwork,
) -> None:
    engine.write("hub", {"k0": row("hub", "b")})
    stop_and_restore_north(engine, lambda point: die(engine, point))
    engine.write("north", {"k0": row("mine", "b")})
    merge_capture(engine.path("north"))
    with pytest.raises(EnumerationError, match="captured changes by itself, in run 1"):
        engine.sync("north")
    assert engine.rows("north")["k0"][0] == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "captures"),
    [
        pytest.param("watermarks.before_subscriber", False, id="as it was, before the watermarks"),
        pytest.param("session.before_drop", True, id="went on, after the watermarks"),
    ],
)
def test_inv_20_21_a_subscriber_restored_after_its_side_was_done_is_refused(
    engine: EngineNetwork, point: str, captures: bool
) -> None:
    """The file that says so is the publisher's. The rows that came are gone, and would never be sent again."""
    engine.write("north", {"k2": row("north", "b")})
    engine.sync("north")
    shutil.copytree(engine.path("north"), engine.path("backup"))
    engine.write("hub", {"k0": row("hub", "b")})
    die(engine, point, direction="download")
    shutil.rmtree(engine.path("north"))
    shutil.move(engine.path("backup"), engine.path("north"))
    if captures:
        # As many runs as the session made.
        engine.write("north", {"k4": row("mine", "b")})
        merge_capture(engine.path("north"))
    before = subscription_of_north(engine)
    for _ in range(2):
        with pytest.raises(
            EnumerationError, match=r"put back to an older state: session 2 was .*To initialise"
        ):
            engine.sync("north")
    assert subscription_of_north(engine) == before, "its watermarks name nothing that it does not have"
    assert engine.rows("north")["k0"][0] == "a"
    shutil.move(engine.path("north"), engine.path("restored"))
    apply_without_north(engine)
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    assert engine.rows("north") == engine.rows("hub")
    assert not list((engine.path("hub") / "_mergerepl" / "staging").iterdir())


def subscription_of_north(engine: EngineNetwork) -> list[SubscriptionRow]:
    """Return what the subscriber knows of its subscriptions."""
    return Replica(engine.path("north")).subscriptions()


@pytest.mark.slow
def test_inv_21_a_publisher_restored_with_a_staged_session_does_not_finish_it_again(
    engine: EngineNetwork, stop: object
) -> None:
    stop("subscriber.before_merge")  # type: ignore[operator]
    shutil.copytree(engine.path("hub"), engine.path("backup"))
    engine.sync("north")
    engine.write("north", {"k4": row("later", "b")})
    engine.sync("north")
    shutil.rmtree(engine.path("hub"))
    shutil.move(engine.path("backup"), engine.path("hub"))
    before = engine.rows("north")
    with pytest.raises(
        EnumerationError, match="put back to an older state: the subscriber has completed session 2"
    ):
        engine.sync("north")
    assert engine.rows("north") == before
    shutil.rmtree(engine.path("hub") / "_mergerepl" / "staging")
    with pytest.raises(EnumerationError, match="restored from an older copy"):
        engine.sync("north")


@pytest.mark.slow
def test_inv_06_losers_that_only_a_lost_subscriber_would_keep_are_kept_by_the_publisher(
    engine: EngineNetwork, stop: object
) -> None:
    edit_file(engine, conflict_logging="subscriber")
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    stop("publisher.before_merge")  # type: ignore[operator]
    assert engine.conflicts() == []
    shutil.rmtree(engine.path("north"))
    apply_without_north(engine)
    assert engine.rows("hub")["k1"][0] == "hub"
    assert [item[4] for item in engine.conflicts()] == [("north", "b", None)]


@pytest.mark.slow
def test_a_subscriber_that_lost_a_table_can_leave_and_its_publisher_goes_on(
    engine: EngineNetwork, stop: object
) -> None:
    stop("subscriber.before_merge")  # type: ignore[operator]
    (table,) = (each.parent for each in engine.path("north").glob("*/_delta_log"))
    shutil.rmtree(table)
    with pytest.raises(EnumerationError, match=r"'t', .* is gone\..*The publisher's side is finished"):
        engine.sync("north")
    assert [engine.rows("hub")[key][0] for key in ("k0", "k1", "k2")] == ["hub", "hub", "north"]
    apply_without_north(engine)
    assert not list((engine.path("hub") / "_mergerepl" / "staging").glob("*"))
    assert [item[4] for item in engine.conflicts()] == [("north", "b", None)]


@pytest.mark.slow
def test_inv_10_a_dry_run_says_that_a_session_was_interrupted_and_all_that_it_did_is_counted(
    engine: EngineNetwork, stop: object
) -> None:
    stop("watermarks.before_publisher")  # type: ignore[operator]
    with pytest.raises(EnumerationError, match="Run `mergerepl sync`, which finishes it first"):
        mergerepl.Project.load(engine.path("hub")).sync(dry_run=True)
    # The history has it now; the run that finishes it has nothing more to do than to drop it.
    die(engine, "session.before_drop")
    engine.sync("north")
    check(engine)
    assert mergerepl.Project.load(engine.path("hub")).sync(dry_run=True).sessions[0].status == "nothing_to_do"
    session = merge_history(engine.path("hub"))[0]
    assert (session.upload.updates, session.upload.conflicts, session.download.updates) == (1, 1, 2)


def test_an_article_that_one_side_lacks_is_named(engine: EngineNetwork) -> None:
    control = engine.path("north") / "_mergerepl" / "sysmergearticles"
    shutil.move(control, engine.path("north") / "kept")
    shutil.copytree(engine.path("hub") / "_mergerepl" / "sysmergearticles", control)
    from deltalake import DeltaTable

    DeltaTable(str(control)).delete()
    engine.write("hub", {"k0": row("hub", "b")})
    with pytest.raises(PublicationError, match=r"Article 't' is not there at .*mergerepl apply"):
        engine.sync("north")


@pytest.mark.slow
@pytest.mark.parametrize("tracking", ["row", "column"])
def test_inv_09_a_late_write_to_a_row_that_only_its_metadata_concerned(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch, tracking: str
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
    thread, outcome = paused_sync(
        lambda: engine.sync("north"), "stage.after_manifest", replica_dir / "gate", monkeypatch
    )
    engine.write("north", {"k1": row("late", "b"), "k3": row("late", "b")})
    engine.write("hub", {"k4": row("late", "b")})
    (replica_dir / "gate").touch()
    thread.join(300)
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    assert isinstance(outcome[0], mergerepl.SessionResult), outcome
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


@pytest.mark.slow
def test_what_users_break_meanwhile_is_refused_by_the_next_session_not_by_this_one(
    engine: EngineNetwork, stop: object
) -> None:
    """A staged session must come to its end: its window of late commits cannot be mended any more."""
    stop("publisher.before_merge")  # type: ignore[operator]
    table = f"delta.`{engine.path('hub')}/t`"
    engine.spark.sql(f"insert into {table} values (null, 'no key', 'b', null)")
    engine.spark.sql(f"alter table {table} add columns (extra int)")
    engine.write("hub", {"k4": row("late", "b")})
    assert engine.sync("north").recovered == 1
    assert engine.rows("hub")["k4"][0] == engine.rows("north")["k4"][0] == "late"
    engine.write("hub", {"k5": row("hub", "b")})
    with pytest.raises(SchemaMismatchError, match="column 'extra' was added"):
        engine.sync("north")


@pytest.mark.slow
@pytest.mark.parametrize("copied", ["north", "hub"])
def test_inv_21_a_copy_does_not_finish_the_session_of_the_original(
    engine: EngineNetwork, stop: object, copied: str
) -> None:
    stop("stage.after_manifest")  # type: ignore[operator]
    shutil.copytree(engine.path(copied), engine.path("copy"))
    before = {name: engine.rows(name) for name in ("hub", "north", "copy")}
    for dry_run in (True, False):
        with pytest.raises(PublicationError, match=r"copy' is a copy of the replica .*Nothing was changed"):
            mergerepl.Project.load(engine.path("copy")).sync(dry_run=dry_run)
    assert {name: engine.rows(name) for name in before} == before
    assert engine.sync("north").recovered == 1
    check(engine)


@pytest.mark.slow
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

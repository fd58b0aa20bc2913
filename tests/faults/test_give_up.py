"""A staged session that cannot be finished: it is named, ended by a command, and what it did and kept is nobody's loss."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.errors import ConfigurationError, EnumerationError, StoreError, UnfinishedSessionError
from tests.faults.deaths import dies
from tests.faults.ladder import GIVEN_UP
from tests.faults.sessions import NORTH, check_all_there, die, edit, row
from tests.networks import restate
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

pytestmark = pytest.mark.slow

SOUTH = Subscriber("south", "server", 80.0)
CHECK = "delta.constraints.refuses"


@pytest.fixture
def engine(spark: SparkSession, replica_dir: Path) -> EngineNetwork:
    """Three replicas of six rows."""
    return EngineNetwork(
        spark, replica_dir, Setting((NORTH, SOUTH)), {f"k{n}": row("a", "b") for n in range(6)}
    )


def set_check(table: Path, check: str | None) -> None:
    """Give a table a CHECK constraint, as another engine may at any time, or take it away."""

    def change(body: dict[str, Any]) -> None:
        body["configuration"].pop(CHECK, None)
        body["configuration"] |= {CHECK: check} if check else {}

    restate(table, change, protocol=(1, 4))


def stick(engine: EngineNetwork, replica: str) -> str:
    """Stage a session that one side's table takes no more. Returns its id; the other side has done its part after a try."""
    edit(engine)
    die(engine, "stage.after_manifest")
    set_check(engine.path(replica) / "t", "a <> 'north'" if replica == "hub" else "a <> 'hub'")
    (staged,) = (engine.path("hub") / "_mergerepl" / "staging").iterdir()
    with pytest.raises(UnfinishedSessionError, match=rf"--give-up {staged.name}") as refused:
        engine.sync("north")
    assert refused.value.details()["session"] == staged.name
    return staged.name


def give_up(engine: EngineNetwork, session: str) -> mergerepl.SessionResult:
    return mergerepl.Project.load(engine.path("hub")).abort(session)


def check_kept(engine: EngineNetwork, session: str) -> None:
    """All that the session had staged is there, and no session is."""
    kept = engine.path("hub") / "_mergerepl" / "unsent" / session
    rows = [
        each for folder in kept.iterdir() if folder.is_dir() for each in pq.read_table(folder).to_pylist()
    ]
    lost = {each["loser"]["row"]["c1"] for each in rows if each["loser"] is not None and each["loser"]["row"]}
    assert "north" in lost
    for name in engine.names:
        staging = engine.path(name) / "_mergerepl" / "staging"
        assert not staging.exists() or not list(staging.iterdir())


@pytest.mark.parametrize("replica", ["hub", "north"])
def test_inv_06_a_session_that_one_side_does_not_take_is_given_up_and_the_next_one_brings_all(
    engine: EngineNetwork, replica: str
) -> None:
    """The other side has carried it out: where that is the subscriber, it holds resolutions that are the publisher's."""
    session = stick(engine, replica)
    done = give_up(engine, session[:8])
    assert (done.status, done.is_failed) == ("given_up", False)
    assert done.given_up is not None
    assert (done.given_up.session, Path(done.given_up.kept).name) == (session, session)
    assert "refuses" in done.given_up.reason
    assert "mergerepl sync" in done.given_up.next_step
    check_kept(engine, session)
    # The next session brings all but what that side still refuses.
    assert engine.sync("north").waiting > 0
    assert not list((engine.path("hub") / "_mergerepl" / "staging").iterdir())
    set_check(engine.path(replica) / "t", None)
    check_all_there(engine)


@pytest.mark.parametrize("away", [False, True])
def test_a_session_that_the_publisher_does_not_take_keeps_nobody_else_from_it(
    engine: EngineNetwork, away: bool
) -> None:
    session = stick(engine, "hub")
    if away:
        shutil.move(engine.path("north"), engine.folder / "away")
    engine.write("south", {"k5": row("south", "b")})
    result = engine.sync("south")
    assert (result.status, result.upload.updates) == ("succeeded", 1)
    if away:
        shutil.move(engine.folder / "away", engine.path("north"))
    set_check(engine.path("hub") / "t", None)
    check_all_there(engine)
    check_kept(engine, session)
    assert engine.rows("north")["k5"][0] == "south"


def test_a_session_that_its_subscriber_does_not_take_keeps_nobody_else_from_the_publisher(
    engine: EngineNetwork,
) -> None:
    stick(engine, "north")
    engine.write("south", {"k5": row("south", "b")})
    result = mergerepl.Project.load(engine.path("hub")).sync()
    assert {Path(each.subscriber).name: each.status for each in result.sessions} == {
        "north": "failed",
        "south": "succeeded",
    }
    assert engine.rows("south")["k2"] == engine.rows("hub")["k2"] == ["north", "b", None]
    set_check(engine.path("north") / "t", None)
    check_all_there(engine)


def lost_manifest(engine: EngineNetwork, session: str) -> None:
    (engine.path("hub") / "_mergerepl" / "staging" / session / "manifest.json").write_text(
        "{", encoding="utf-8"
    )


def lost_log(engine: EngineNetwork, session: str) -> None:
    for text in ("later", "last"):
        engine.write("hub", {"k5": row(text, "b")})
    table = engine.path("hub") / "t"
    DeltaTable(str(table)).create_checkpoint()
    for log in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()


def lost_rows(engine: EngineNetwork, session: str) -> None:
    for file in (engine.path("hub") / "_mergerepl" / "staging" / session).rglob("*.parquet"):
        file.unlink()


@pytest.mark.parametrize(
    ("lose", "error"),
    [(lost_manifest, StoreError), (lost_log, EnumerationError), (lost_rows, UnfinishedSessionError)],
)
def test_a_session_that_lost_what_it_needs_is_given_up(
    engine: EngineNetwork, lose: Callable[[EngineNetwork, str], None], error: type[mergerepl.MergeReplError]
) -> None:
    edit(engine)
    die(engine, "stage.after_manifest")
    (staged,) = (engine.path("hub") / "_mergerepl" / "staging").iterdir()
    lose(engine, staged.name)
    with pytest.raises(error, match=rf"--give-up {staged.name}"):
        engine.sync("north")
    assert give_up(engine, staged.name).status == "given_up"
    check_all_there(engine)


def test_a_session_that_can_be_finished_is_finished(engine: EngineNetwork) -> None:
    edit(engine)
    die(engine, "publisher.after_merge")
    (staged,) = (engine.path("hub") / "_mergerepl" / "staging").iterdir()
    with pytest.raises(ConfigurationError, match=f"Sessions staged there: {staged.name}"):
        give_up(engine, "0-0")
    done = give_up(engine, staged.name)
    assert (done.status, done.recovered, done.given_up) == ("succeeded", 1, None)
    assert not (engine.path("hub") / "_mergerepl" / "unsent").exists()
    check_all_there(engine)


@pytest.mark.parametrize("point", GIVEN_UP)
def test_a_give_up_that_dies_is_done_by_the_next(engine: EngineNetwork, point: str) -> None:
    session = stick(engine, "hub")
    with dies(point, error=Exception, match=point):
        give_up(engine, session)
    if point == "give_up.before_move":
        give_up(engine, session)
    set_check(engine.path("hub") / "t", None)
    check_all_there(engine)
    check_kept(engine, session)

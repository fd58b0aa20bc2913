"""The engine does what the reference model does, history by history (invariants I1, I2, I4, I6 to I10, I12 to
I18).

Exhaustive small scope: two replicas, three slots, five operations, a row that is there at the start and one
that is not: 2 x 5^6 = 31,250 histories for each tracking. Random deep histories: several subscribers, several
schedules. By default those of `test_regress.py` are the histories of more than two replicas.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta import commit_files, engine_choice, small_writer
from mergerepl.merge.session import choice
from mergerepl.replica import runs
from mergerepl.spark import in_memory
from mergerepl.spark import session as engine_session
from tests.properties.engine_network import EngineNetwork, Engines, Setting
from tests.properties.reference import Row, Subscriber
from tests.properties.regress_cases import assert_equal
from tests.properties.side_by_side import (
    DEEP_OPERATIONS,
    OPERATIONS,
    START,
    History,
    NewEngine,
    Schedule,
    Session,
    Slot,
    play,
)


@pytest.fixture(autouse=True)
def _as_a_million(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the few rows of a test be looked up and joined as a million are."""
    monkeypatch.setattr(runs, "_READ_AT_ONCE", 1)
    monkeypatch.setattr(in_memory, "_FEW_ROWS", 10_000)


@pytest.fixture
def new_engine(spark: SparkSession, replica_dir: Path) -> NewEngine:
    """Makes engines, each in a folder of its own."""
    numbers = itertools.count()

    def new(setting: Setting, snapshot: Mapping[str, Row]) -> EngineNetwork:
        folder = replica_dir / f"run{next(numbers)}"
        folder.mkdir()
        return EngineNetwork(spark, folder, setting, snapshot)

    return new


@pytest.fixture
def layout(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """How rows lie in files and tasks: as usual, or split finely and never joined again, in MERGEs too."""
    confs = {"spark.sql.shuffle.partitions": "7", "spark.sql.adaptive.enabled": "false"}
    confs |= {"spark.sql.files.maxRecordsPerFile": "200", "spark.databricks.delta.snapshotPartitions": "3"}
    confs = confs if request.param == "fine" else {}
    before = {name: spark.conf.get(name, None) for name in confs}
    new_session = engine_session.new_session

    def alike(of: SparkSession) -> SparkSession:
        session = new_session(of)
        for name, value in confs.items():
            session.conf.set(name, value)
        return session

    monkeypatch.setattr(engine_session, "new_session", alike)
    for name, value in confs.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("tracking", "rounds", "layout", "engines"),
    [
        pytest.param("row", 2, "fine", ("spark",), id="row-2", marks=pytest.mark.slow),
        pytest.param("row", 3, "usual", ("spark",), id="row-3", marks=pytest.mark.slow),
        # The smaller scope of what follows; scripts/mutants asks it first.
        pytest.param("column", 2, "usual", ("auto", "spark"), id="column-2"),
        pytest.param("column", 2, "fine", ("auto", "spark"), id="column-2-fine", marks=pytest.mark.slow),
        pytest.param("column", 3, "usual", ("auto", "spark"), id="column-3", marks=pytest.mark.slow),
        pytest.param("column", 2, "usual", ("auto",), id="column-2-auto", marks=pytest.mark.slow),
        pytest.param("row", 3, "usual", ("auto",), id="row-3-auto", marks=pytest.mark.slow),
        pytest.param("column", 3, "usual", ("spark",), id="column-3-spark", marks=pytest.mark.slow),
    ],
    indirect=["layout"],
)
@pytest.mark.usefixtures("layout")
def test_inv_04_every_history_of_two_replicas(
    new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch, tracking: str, rounds: int, engines: Engines
) -> None:
    # They are few to nobody else.
    for room in (commit_files, small_writer):
        monkeypatch.setattr(room, "MOST_ROWS", 10**6)
    for module in (choice, engine_choice):
        monkeypatch.setattr(module, "MOST_IN_PROCESS", 10**6)
    monkeypatch.setattr(engine_choice, "MOST_VALUES", 10**9)
    setting = Setting((Subscriber("north", "server", 75.0),), tracking, engines=engines)
    slots = [Slot(replica, number) for number in range(rounds) for replica in ("hub", "north")]
    sync = Session("north")
    rounds_of_slots = zip(slots[::2], slots[1::2], strict=True)
    schedule: Schedule = tuple(moment for pair in rounds_of_slots for moment in (*pair, sync))
    histories = {
        f"{letter}{number:05d}": History(row, dict(zip(slots, operations, strict=True)))
        for letter, row in (("p", START), ("n", None))
        for number, operations in enumerate(itertools.product(OPERATIONS, repeat=len(slots)))
    }
    together = play(new_engine, setting, schedule, histories)
    note = f"Of two replicas and {rounds} slots, all there are"
    assert_equal(setting, schedule, histories, together.differing(), note=note)
    assert together.miscounted == []
    assert together.engine.sync("north").status == "nothing_to_do"
    assert together.engine.rows("hub") == together.engine.rows("north")


DEEP: dict[str, tuple[int, str, str, dict[str, float | None]]] = {
    # Its schedule lets the client upload while the server subscriber holds changes of its own.
    "row-server-client": (51, "row", "row", {"north": 75.0, "south": None}),
    "column-two-servers": (12, "column", "row", {"north": 20.0, "south": 80.0}),
    "column-resolution-columns": (13, "column", "columns", {"north": None, "south": 50.0, "west": None}),
    "row-equal": (14, "row", "row", {"north": 50.0, "south": 50.0}),
    "column-two-replicas": (17, "column", "columns", {"north": None}),
    "column-five-replicas": (16, "column", "row", {"north": 75.0, "south": 25.0, "east": None, "west": None}),
}
"""Seed, tracking, resolution and subscribers with their priorities; None is a client."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "tracking", "resolution", "priorities"), DEEP.values(), ids=DEEP)
def test_random_deep_histories(
    new_engine: NewEngine, seed: int, tracking: str, resolution: str, priorities: dict[str, float | None]
) -> None:
    subscribers = (
        Subscriber(name, "client") if priority is None else Subscriber(name, "server", priority)
        for name, priority in priorities.items()
    )
    setting = Setting(tuple(subscribers), tracking, resolution)
    drawn = random.Random(seed)
    keys = [f"k{number:04d}" for number in range(2500)]
    rows = {key: START if drawn.random() < 0.7 else None for key in keys}
    operations: dict[str, dict[Slot, str]] = {key: {} for key in keys}
    names = [s.name for s in setting.subscribers]
    moments: list[Slot | Session] = []
    for number in range(8):
        slot = Slot(drawn.choice(("hub", *names)), number)
        moments.append(slot)
        for key in keys:
            if drawn.random() < 0.6:
                operations[key][slot] = drawn.choice(DEEP_OPERATIONS)
        if drawn.random() < 0.7:
            moments.append(Session(drawn.choice(names), drawn.choice(("both", "both", "upload", "download"))))
    schedule = (*moments, *map(Session, names * 2))
    histories = {key: History(rows[key], operations[key]) for key in keys}
    together = play(new_engine, setting, schedule, histories)
    assert_equal(setting, schedule, histories, together.differing(), note=f"Seed {seed}")
    assert together.miscounted == []
    assert all(together.engine.rows(name) == together.engine.rows("hub") for name in names)

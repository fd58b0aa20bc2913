"""Cleanup and expiry on the engine, against the model: golden histories and drawn ones."""

import random
from copy import copy, deepcopy
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import failpoints
from mergerepl.failpoints import FailpointError
from mergerepl.systables import partitions
from tests.faults.ladder import CLEANED, QUIET
from tests.networks import copy_replicas
from tests.properties.operations_engine import Both, Step
from tests.properties.operations_histories import GOLDEN, do

KEYS = tuple(f"k{number:02d}" for number in range(24))
SA, SB = ("session", "A"), ("session", "B")

HISTORIES: dict[str, tuple[bool, list[Step]]] = {
    **{
        name: (bool(GOLDEN[name][2].get("column")), list(GOLDEN[name][3]))
        for name in (
            "a column's entry is cleaned where another replica has not seen the change",
            "KB309400",
            "a refused change of an ended subscription",
            "an expired relation comes back, what it refused was cleaned",
            "a refused row at a reinitialised subscriber",
            "upload-first after cleanup",
        )
    },
    "an expired relation comes back, nothing is cleaned": (
        False,
        [("write", "A", "x", "a"), ("expire", "A"), ("write", "B", "y", "a"), SB, SB, ("revive", "A"), SA],
    ),
    "an expired relation comes back after a cleanup": (
        True,
        [("write", "R", "x", "a"), ("expire", "A"), *[SB] * 4, ("cleanup", "R"), ("revive", "A"), SA],
    ),
    **{
        f"reinitialised, {'upload first' if upload else 'discarded'}": (
            upload,
            [
                *(("write", "A", "x", "a"), ("write", "R", "y", "b"), SA, SB, ("expire", "A")),
                *(("write", "B", "x", "b"), ("write", "A", "x", "b"), ("write", "A", "y", "a")),
                *(SB, SB, SB, ("cleanup", "R"), ("reinit", "A", upload), SA, SB, SA),
            ],
        )
        for upload in (True, False)
    },
}
"""Whether columns are tracked, and the steps. Histories of three tiers have no republisher here to run on."""

DEFAULT = ("an expired relation comes back after a cleanup",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DEFAULT else [pytest.mark.slow]) for name in HISTORIES]
)
def test_golden_histories_on_the_engine(spark: SparkSession, replica_dir: Path, name: str) -> None:
    column, steps = HISTORIES[name]
    both = Both.of(spark, replica_dir, ("x", "y"), column=column)
    for step in steps:
        both.step(step)
    if name.startswith("an expired relation"):
        assert both.model.stats["refused"] == 1
    if "reinit" in name:
        assert both.replica("A").settled(both.replica("A").publications[0].pubid) > 0


def test_a_cleanup_or_a_quiet_session_that_dies_is_finished_by_the_next_one(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each point, on a copy of one network; the model knows of no death."""
    work = replica_dir / "work"
    work.mkdir()
    both = Both.of(spark, work, ("x", "y"), column=True)
    for step in [("write", "A", "x", "d"), ("write", "R", "y", "a"), SA, SB, SA]:
        both.step(step)
    at_quiet = deepcopy(both.model), _copied(both, replica_dir / "before")
    for step in (SB, SA, SB, SA, SB):
        both.step(step)
    at_cleanup = both.model, work
    for point, nth in [
        *((point, 1) for point in CLEANED),
        *((point, nth) for point in QUIET for nth in (1, 2)),
    ]:
        step = SB if point in QUIET else ("cleanup", "R")
        model, folder = at_quiet if point in QUIET else at_cleanup
        again = Both(deepcopy(model), both.engine)
        again.engine = copy(both.engine)
        again.engine.folder = _copied(folder, replica_dir / f"{point}-{nth}")
        failpoints._passed.clear()
        monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}:{nth}=raise")
        with pytest.raises(FailpointError):
            again.on_engine(step)
        monkeypatch.delenv("MERGEREPL_FAILPOINT")
        if point == "cleanup.after_cleaned":  # it was that commit, though all rows are still there
            do(again.model, step)
            for following in (("write", "R", "y", "b"), SA):
                again.step(following)
        for following in (step, SB):
            again.step(following)
    assert at_cleanup[0].stats["cleaned rows"] == 0


def _copied(of: Both | Path, to: Path) -> Path:
    to.mkdir()
    copy_replicas(of if isinstance(of, Path) else of.engine.folder, to)
    return to


def drawn(rng: random.Random, what: str = "aabbd", *, reinits: float = 0) -> Step:
    """Return a step: users write to about a quarter of the keys at once; `what` they do with one."""
    name = rng.choice("RAB")
    kinds = {"write": 9, "session": 9, "cleanup": 3, "expire": 0.4, "revive": 0.6, "reinit": reinits}
    kind = rng.choices([*kinds], kinds.values())[0]
    if kind == "reinit":
        return kind, rng.choice("AB"), rng.random() < 0.7
    if kind == "write":
        return kind, name, {key: rng.choice(what) for key in KEYS if rng.random() < 0.25}
    return (kind, name) if kind == "cleanup" else (kind, rng.choice("AB"))


@pytest.mark.slow
def test_inv_36_a_history_with_row_filters_on_the_engine(spark: SparkSession, replica_dir: Path) -> None:
    """A golden one, while users write to other keys, too; then what is known to all is cleaned up."""
    _, _, options, steps = GOLDEN["new rows of a key that another partition had"]
    rng = random.Random(0)
    both = Both.of(spark, replica_dir, (*options["keys"], *KEYS), column=True, filtered=True)
    for step in [*joined(steps, rng), SB, SA, SB, *(("cleanup", name) for name in "RAB")]:
        both.step(step)
    assert both.model.stats["cleaned rows"] > 10
    cleaned = both.replica("R").info().cleaned[1]
    for table in partitions.MAPPINGS:
        rows = DeltaTable(str(both.engine.path("hub") / "_mergerepl" / table.name)).to_pyarrow_table()
        assert all(generation > cleaned for generation in rows["generation"].to_pylist())


def joined(steps: list[Step], rng: random.Random) -> list[Step]:
    """Return the steps with the writes of each replica between two sessions in one step, with drawn ones of KEYS."""
    found: list[Step] = []
    for step in steps:
        if step[0] != "write":
            found.append(step)
            continue
        if not found or found[-1][:2] != step[:2]:
            found.append((*step[:2], {key: rng.choice("aabbdpp") for key in KEYS if rng.random() < 0.25}))
        found[-1][2][step[2]] = step[3]
    return found


@pytest.mark.parametrize(
    ("seed", "column", "steps"),
    [
        pytest.param(1, True, 16, id="column", marks=pytest.mark.slow),
        *(
            pytest.param(seed, seed % 2, 40, id=f"long-{seed}", marks=pytest.mark.slow)
            for seed in range(2, 12)
        ),
    ],
)
def test_inv_36_drawn_histories_with_cleanups(
    spark: SparkSession, replica_dir: Path, seed: int, column: bool, steps: int
) -> None:
    """After each step rows, lineages, clocks and what is settled and known are equal in engine and model."""
    rng = random.Random(seed)
    both = Both.of(spark, replica_dir, KEYS, column=column)
    for _ in range(steps):
        both.step(drawn(rng, reinits=0 if steps < 40 else 1))
    for step in [("cleanup", "R"), *[SA, SB] * 3, *(("cleanup", name) for name in "RAB")]:
        both.step(step)
    assert both.model.stats["cleaned rows"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_inv_36_drawn_histories_with_row_filters_and_cleanups(
    spark: SparkSession, replica_dir: Path, seed: int
) -> None:
    rng = random.Random(seed)
    both = Both.of(spark, replica_dir, KEYS, column=bool(seed % 2), filtered=True)
    for _ in range(30):
        both.step(drawn(rng, "aabbdpp"))
    for step in [("cleanup", "R"), *[SA, SB] * 3, *(("cleanup", name) for name in "RAB")]:
        both.step(step)
    assert both.model.stats["cleaned rows"] > 0

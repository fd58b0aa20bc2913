"""Histories that once were wrong, or easily could be, on the engine and the model: one file each in tests/regress.

`tests/properties/regress_cases.py` adds a file for each difference it is handed. All files of one setting and one
schedule ride one run.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Row, Subscriber
from tests.properties.regress_cases import REGRESS, Case, assert_equal, read_case, save_case
from tests.properties.side_by_side import START, History, Schedule, Session, Slot, play

RUNS: dict[tuple[Setting, Schedule], list[Path]] = {}
for regress_file in sorted(REGRESS.glob("*.json")):
    known = read_case(regress_file)
    RUNS.setdefault((known.setting, known.schedule), []).append(regress_file)


@pytest.mark.parametrize(
    ("run", "files"),
    [
        pytest.param(
            run, files, id="+".join(file.stem for file in files), marks=[pytest.mark.slow] * (number != 1)
        )
        for number, (run, files) in enumerate(RUNS.items())
    ],
)
def test_histories_that_were_wrong_stay_right(
    spark: SparkSession, replica_dir: Path, run: tuple[Setting, Schedule], files: list[Path]
) -> None:
    def new_engine(setting: Setting, snapshot: Mapping[str, Row]) -> EngineNetwork:
        return EngineNetwork(spark, replica_dir, setting, snapshot)

    histories = {file.stem: read_case(file).history for file in files}
    setting, schedule = run
    if os.environ.get("MERGEREPL_TEST_PROFILE") != "long":
        setting = replace(setting, engines=("auto",))
    assert play(new_engine, setting, schedule, histories).differing() == {}


SETTING = Setting((Subscriber("north", "server", 75.0), Subscriber("south", "client")), "row")
HUB, NORTH = (Slot(replica, 0) for replica in ("hub", "north"))
SCHEDULE = (HUB, NORTH, Slot("hub", 1), Session("north"))


def test_the_shortest_of_the_histories_that_differ_is_saved_and_reads_back(tmp_path: Path) -> None:
    histories = {
        "equal": History(START, {}),
        "long": History(START, {HUB: "delete or insert", NORTH: "delete or insert"}),
        "short": History(START, {HUB: "none", NORTH: "delete or insert"}),
    }
    assert_equal(SETTING, SCHEDULE, histories, {}, note="seed 1", folder=tmp_path)
    differing = {"long": ["its rows differ"], "short": ["a row differs"]}
    with pytest.raises(AssertionError, match=r"2 histories differ\. seed 1\.[\s\S]*a row differs"):
        assert_equal(SETTING, SCHEDULE, histories, differing, note="seed 1", folder=tmp_path)
    (file,) = tmp_path.iterdir()
    short = Case(SETTING, (NORTH, Session("north")), History(START, {NORTH: "delete or insert"}), "seed 1")
    assert read_case(file) == short
    assert save_case(short, tmp_path) == file

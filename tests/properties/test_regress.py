"""Histories that once were wrong, or easily could be, on the engine and the model: one file each in tests/regress.

`tests/properties/shrinking.py` adds a file for each difference it is handed. All files of one setting and one
schedule ride one run.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Row
from tests.properties.shrinking import REGRESS, read_case
from tests.properties.side_by_side import Schedule, play

RUNS: dict[tuple[Setting, Schedule], list[Path]] = {}
for regress_file in sorted(REGRESS.glob("*.json")):
    known = read_case(regress_file)
    RUNS.setdefault((known.setting, known.schedule), []).append(regress_file)


@pytest.mark.parametrize(
    ("run", "files"), RUNS.items(), ids=["+".join(file.stem for file in files) for files in RUNS.values()]
)
def test_histories_that_were_wrong_stay_right(
    spark: SparkSession, replica_dir: Path, run: tuple[Setting, Schedule], files: list[Path]
) -> None:
    def new_engine(setting: Setting, snapshot: Mapping[str, Row]) -> EngineNetwork:
        return EngineNetwork(spark, replica_dir, setting, snapshot)

    histories = {file.stem: read_case(file).history for file in files}
    assert play(new_engine, *run, histories).differing() == {}

"""`mergerepl tracking` from the command line: refusals, and that most of it starts no Java (outputs: tests/golden)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mergerepl import ChangeTracking
from mergerepl.cli.main import main
from mergerepl.tracking.errors import TrackingError
from tests.tracking.databases import new_table

pytestmark = pytest.mark.spark


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def run_json(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code))


def test_what_commands_refuse(spark: SparkSession, replica_dir: Path, tmp_path: Path) -> None:
    at, window = ("-f", replica_dir), tmp_path / "w"
    new_table(replica_dir, "orders", {1: "old"})
    assert "nothing of type tracking" in run("status", "--type", "tracking", *at, code=2)
    run("tracking", "enable", "orders", *at, "--key", "id")
    assert (
        run_json("tracking", "enumerate", "hq", *at, "--output", window)["tables"]["orders"]["inserts"] == 0
    )
    for taken in (window, window / "window.json", "-"):
        assert "no empty folder" in run("tracking", "enumerate", "hq", *at, "--output", taken, code=2)
    acknowledge = ("tracking", "acknowledge")
    file = window / "window.json"
    assert "window of consumer 'hq'" in run(*acknowledge, "hk", *at, "--window", file, code=2)
    assert "no window" in run(*acknowledge, "hq", *at, "--window", tmp_path / "no.json", code=2)
    assert "no consumer 'hqq'. Did you mean 'hq'?" in run("tracking", "enumerate", "hqq", *at, code=2)
    rehearsal = run("tracking", "enumerate", "hqq", *at, "--start", "now", "--dry-run")
    assert "would be registered" in rehearsal
    assert "'hk' is not registered" in run("tracking", "forget", "hk", *at, "--yes", code=1)
    with pytest.raises(TrackingError, match="'x' is no bigint"):
        ChangeTracking(replica_dir).pack_key("orders", ["x"])
    assert "only of a table with column mapping" in run("tracking", "disable", "orders", *at, "--yes", code=1)


@pytest.mark.parametrize(
    "words",
    [
        ("enable", "orders"),
        ("enable", "orders", "--key", "a", "--rowguid", "b"),
        ("enable", "orders", "--key", "a", "--track", "insert,none"),
        ("purge",),
        ("purge", "--to", "-1"),
        ("purge", "--to", "1", "--older-than", "1d"),
    ],
)
def test_wrong_usage_touches_nothing(words: tuple[str, ...]) -> None:
    run("tracking", *words, "-f", ".", code=2)


def test_the_queries_quote_the_name_of_a_table() -> None:
    assert "FROM `a b` t" in ChangeTracking.sql("a b").exact


def test_looking_starts_no_java(spark: SparkSession, replica_dir: Path) -> None:
    new_table(replica_dir, "orders", {1: "old"})
    tracking = ChangeTracking(replica_dir)
    tracking.enable("orders", key="id")
    tracking.consumer("hq")
    # A JDK is found in many places: only PySpark's gateway tells. One process runs all.
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom mergerepl.cli.main import main\n"
        "for line in sys.argv[1:]:\n    done = CliRunner().invoke(main, line.split('|'))\n"
        "    assert done.exit_code == 0, (line, done.output)\n"
        "    pyspark = sys.modules.get('pyspark')\n"
        "    assert pyspark is None or pyspark.SparkContext._gateway is None, line\n"
    )
    looks = (("status",), ("history",), ("tracking", "purge", "--to", "1", "--yes"))
    lines = ["|".join((*words, "-f", str(replica_dir))) for words in looks]
    done = subprocess.run([sys.executable, "-c", script, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

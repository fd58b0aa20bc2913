"""The control plane alone answers what it can: no JVM is started (design section 2)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.networks import Network

HEAVY = ("pyspark", "delta", "pyarrow", "pandas", "numpy", "deltalake", "obstore")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["sync", "--help"], ["conflicts", "--help"]]
)
def test_help_loads_no_engine(arguments: list[str], tmp_path: Path) -> None:
    run_all([tuple(arguments)], tmp_path, holds=f"not [name for name in {HEAVY!r} if name in sys.modules]")


def test_a_session_with_nothing_to_do_and_what_looks_at_replicas_start_no_jvm(tmp_path: Path) -> None:
    Network(tmp_path)
    first = "'pandas' not in sys.modules and sys.modules['pyspark'].SparkContext._gateway is None"
    shown = run_all([("sync", "-f", "hq")], tmp_path, holds=first)
    looks = [("status",), ("pending",), ("history",), ("conflicts", "list")]
    commands = [
        ("sync", "-f", "hq"),
        ("sync", "-f", "hq", "--json"),
        ("capture", "-f", "north"),
        ("tune", "-f", "hq"),
        *((*words, "-f", "hq") for words in looks),
    ]
    shown += run_all(commands, tmp_path, holds="'pyspark' not in sys.modules")
    assert shown.count("nothing to do") == 4, shown


def test_code_of_users_gives_pandas_to_arrow() -> None:
    script = (
        "from mergerepl.rows.arrow_values import ArrowAlone\nArrowAlone.begin()\n"
        "import sys, pyarrow\nassert 'pandas' not in sys.modules\nimport pandas\nArrowAlone.end()\n"
        "frame = pandas.DataFrame({'n': [1, None], 't': pandas.to_datetime(['2026-01-01', None])})\n"
        "assert pyarrow.array(frame['n']).null_count == 1\n"
        "assert pyarrow.Table.from_pandas(frame).to_pandas().equals(frame)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def run_all(commands: list[tuple[str, ...]], folder: Path, *, holds: str) -> str:
    """Run commands in a process of its own; return what they print. After each an expression must hold."""
    script = (
        "import sys; from mergerepl.cli.main import main\n"
        f"for words in {commands!r}:\n"
        "    sys.argv = ['mergerepl', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as done:\n        assert not done.code, words\n"
        f"    assert {holds}, words\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_PROCESS = """
import sys
from pyspark import SparkContext
from pyspark.sql.types import StringType, LongType, TimestampType
from mergerepl.delta.feed.net_changes import RowShape, net_changes
from mergerepl.frames import in_process
from mergerepl.frames.dataframe import DataFrame
from mergerepl.frames.trees import Field
from mergerepl.spark.in_memory import collected, frame_of, in_one_task

types = {"id": StringType(), "at": TimestampType(), "_change_type": StringType(), "_commit_version": LongType()}
rows = [("k", 1, "update_preimage", 3), ("k", 2, "update_postimage", 3)]
with in_process():
    feed = frame_of(None, collected(DataFrame([Field(*each) for each in types.items()], rows)))
    net = collected(in_one_task(net_changes(feed, RowShape(("id", "at"), ("id",))), 2))
assert net.num_rows == 1, net
assert SparkContext._gateway is None
assert "pandas" not in sys.modules
"""


def test_rules_in_process_start_no_jvm_and_load_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", IN_PROCESS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_room_of_columns_loads_no_engine() -> None:
    script = f"import sys, mergerepl.frames; assert not [each for each in {HEAVY!r} if each in sys.modules]"
    subprocess.run([sys.executable, "-c", script], check=True)

"""`mergerepl tracking` from the command line: what it prints, what it refuses, and that most of it starts no Java."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from tests.tracking.databases import new_table

pytestmark = pytest.mark.spark


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def run_json(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code))


def test_a_round_from_the_command_line(spark: SparkSession, replica_dir: Path, tmp_path: Path) -> None:
    import mergerepl

    root = replica_dir
    new_table(root, "orders", {1: "old", 2: "old"})
    assert "nothing of type tracking" in run("status", "--type", "tracking", "-f", root, code=2)
    assert run("tracking", "enable", "orders", "-f", root, "--key", "id") == "Table orders is tracked.\n"
    tracking = mergerepl.ChangeTracking(root)
    run("tracking", "enumerate", "hq", "-f", root)
    with tracking.transaction() as tx:
        tx.update("orders", {"note": "'new'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
    open_ = tracking.begin()
    found = run_json("status", "--type", "tracking", "-f", root)["status"][0]["details"]
    assert (found["last_bsn"], found["last_csn"], found["tables"][0]["options"]) == (2, 1, 7)
    assert "hq" in run("status", "--type", "tracking", "-f", root)
    listed = [each["details"] for each in run_json("history", "--type", "tracking", "-f", root)["runs"]]
    assert [(each["csn"], each["changes"]) for each in listed] == [(1, {"orders": 2})]
    assert (
        run_json("tracking", "abort", open_.current_transaction_bsn, "-f", root, "--yes")["state"]
        == "aborted"
    )
    assert "2" in run("tracking", "recover", "-f", root)
    window = run_json(
        "tracking", "enumerate", "hq", "-f", root, "--output", tmp_path / "w", "--table", "orders"
    )
    assert window["tables"] == {"orders": {"deletes": 1, "inserts": 0, "updates": 1}}
    assert list((tmp_path / "w" / "orders" / "updates").glob("*.parquet"))
    assert "is not empty" in run(
        "tracking", "enumerate", "hq", "-f", root, "--output", tmp_path / "w", code=2
    )
    file = tmp_path / "w" / "window.json"
    assert "window of consumer 'hq'" in run(
        "tracking", "acknowledge", "hk", "-f", root, "--window", file, code=2
    )
    assert "no consumer 'hqq'. Did you mean 'hq'?" in run("tracking", "enumerate", "hqq", "-f", root, code=2)
    rehearsal = run("tracking", "enumerate", "hqq", "-f", root, "--start", "now", "--dry-run")
    assert "would be registered" in rehearsal
    assert "'hk' is not registered" in run("tracking", "forget", "hk", "-f", root, "--yes", code=1)
    assert "no window" in run(
        "tracking", "acknowledge", "hq", "-f", root, "--window", root / "no.json", code=2
    )
    assert run_json("tracking", "acknowledge", "hq", "-f", root, "--window", file)["lcsn"] == 2
    key = ("tracking", "key", "orders", "-f", root)
    assert run_json(*key, "--key", "id=1")["packed"] == "01000000080000000100000000000000"
    assert run_json(*key, "--unpack", "01000000080000000100000000000000")["values"] == [1]
    assert run_json(*key, "--key", "id=-1")["packed"] == "0100000008000000ffffffffffffffff"
    assert "'x' is no bigint" in run(*key, "--key", "id=x", code=1)
    purged = run_json("tracking", "purge", "orders", "-f", root, "--to", 9, "--yes")
    assert (purged["removed"], purged["held_back"]) == (1, 0)
    assert run_json("tracking", "forget", "hq", "-f", root, "--yes") == {
        "consumer": "hq",
        "registered": False,
    }
    assert run_json("status", "--type", "tracking", "-f", root)["status"][0]["details"]["consumers"] == []
    assert run_json("tracking", "adopt", "-f", root) == {"adopted": 0}
    assert run_json("upgrade", "-f", root, "--yes") == {"upgraded": True}
    assert "would rewrite the whole table" in run(
        "tracking", "disable", "orders", "-f", root, "--yes", code=1
    )
    assert run_json("tracking", "disable", "orders", "-f", root, "--keep-columns", "--yes") == {
        "table": "orders",
        "tracked": False,
    }


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


def test_the_queries_are_printed_for_a_table() -> None:
    found = run_json("tracking", "sql", "orders")
    assert set(found) == {"exact", "documented_inserts", "documented_updates", "documented_deletes"}
    assert "ut0.__sysTName = 'orders'" in found["documented_deletes"]
    printed = run("tracking", "sql", "orders")
    assert all(text in printed for text in found.values())
    assert "FROM `a b` t" in run_json("tracking", "sql", "a b")["exact"]


def test_looking_starts_no_java(spark: SparkSession, replica_dir: Path) -> None:
    import mergerepl

    new_table(replica_dir, "orders", {1: "old"})
    tracking = mergerepl.ChangeTracking(replica_dir)
    tracking.enable("orders", key="id")
    tracking.consumer("hq")
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    for words in (
        ("status",),
        ("history",),
        ("tracking", "purge", "--to", "1", "--yes"),
        ("tracking", "key", "orders", "--key", "id=1"),
    ):
        command = [sys.executable, "-m", "mergerepl", *words, "-f", str(replica_dir)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)

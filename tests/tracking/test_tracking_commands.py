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
    done = CliRunner().invoke(main, ["tracking", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def run_json(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code))


def test_a_round_from_the_command_line(spark: SparkSession, replica_dir: Path, tmp_path: Path) -> None:
    import mergerepl

    root = replica_dir
    new_table(root, "orders", {1: "old", 2: "old"})
    assert "has no tracked tables" in run("status", root, code=1)
    assert run("enable", root, "orders", "--key", "id") == "Table orders is tracked.\n"
    tracking = mergerepl.ChangeTracking(root)
    run("enumerate", root, "--consumer", "hq")
    with tracking.transaction() as tx:
        tx.update("orders", {"note": "'new'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
    open_ = tracking.begin()
    found = run_json("status", root)
    assert (found["last_bsn"], found["last_csn"], found["tables"][0]["options"]) == (2, 1, 7)
    assert "hq" in run("status", root)
    listed = run_json("transactions", root)["transactions"]
    assert [(each["csn"], each["changes"]) for each in listed] == [(1, {"orders": 2})]
    assert "open" in run("transactions", root, "--open")
    assert run_json("abort", root, open_.current_transaction_bsn)["state"] == "aborted"
    assert "2" in run("recover", root)
    window = run_json("enumerate", root, "orders", "--consumer", "hq", "--output", tmp_path / "w")
    assert window["tables"] == {"orders": {"deletes": 1, "inserts": 0, "updates": 1}}
    assert list((tmp_path / "w" / "orders" / "updates").glob("*.parquet"))
    assert "is not empty" in run("enumerate", root, "--consumer", "hq", "--output", tmp_path / "w", code=2)
    file = tmp_path / "w" / "window.json"
    assert "window of consumer 'hq'" in run("acknowledge", root, file, "--consumer", "hk", code=2)
    assert "'hk' is not registered" in run("forget", root, "--consumer", "hk", code=1)
    assert "no window" in run("acknowledge", root, root / "no.json", "--consumer", "hq", code=2)
    assert run_json("acknowledge", root, file, "--consumer", "hq")["lcsn"] == 2
    assert run_json("key", "pack", root, "orders", 1)["packed"] == "01000000080000000100000000000000"
    assert run_json("key", "unpack", root, "orders", "01000000080000000100000000000000")["values"] == [1]
    assert run_json("key", "pack", root, "orders", -1)["packed"] == "0100000008000000ffffffffffffffff"
    assert "'x' is no bigint" in run("key", "pack", root, "orders", "x", code=1)
    purged = run_json("purge", root, "tombstones", "--table", "orders", "--csn", 9)
    assert (purged["removed"], purged["held_back"]) == (1, 0)
    assert run_json("forget", root, "--consumer", "hq") == {"consumer": "hq", "registered": False}
    assert run_json("status", root)["consumers"] == []
    assert run_json("adopt", root) == {"adopted": 0}
    assert run_json("upgrade", root) == {"upgraded": True}
    assert "would rewrite the whole table" in run("disable", root, "orders", code=1)
    assert run_json("disable", root, "orders", "--keep-columns") == {"table": "orders", "tracked": False}


@pytest.mark.parametrize(
    "words",
    [
        ("enable", ".", "orders"),
        ("enable", ".", "orders", "--key", "a", "--guid", "b"),
        ("enable", ".", "orders", "--key", "a", "--options", "insert,none"),
        ("purge", ".", "tombstones", "--csn", "1"),
        ("purge", ".", "sequence", "--table", "orders", "--csn", "1"),
        ("purge", ".", "sequence"),
        ("purge", ".", "sequence", "--csn", "-1"),
    ],
)
def test_wrong_usage_touches_nothing(words: tuple[str, ...]) -> None:
    run(*words, code=2)


def test_the_queries_are_printed_for_a_table() -> None:
    found = run_json("sql", "orders")
    assert set(found) == {"exact", "documented_inserts", "documented_updates", "documented_deletes"}
    assert "ut0.__sysTName = 'orders'" in found["documented_deletes"]
    printed = run("sql", "orders")
    assert all(text in printed for text in found.values())
    assert "FROM `a b` t" in run_json("sql", "a b")["exact"]


def test_looking_starts_no_java(spark: SparkSession, replica_dir: Path) -> None:
    import mergerepl

    new_table(replica_dir, "orders", {1: "old"})
    tracking = mergerepl.ChangeTracking(replica_dir)
    tracking.enable("orders", key="id")
    tracking.consumer("hq")
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    for words in (
        ("status",),
        ("transactions",),
        ("purge", "sequence", "--csn", "1"),
        ("key", "pack", "orders", "1"),
    ):
        head, rest = (words[:2], words[2:]) if words[0] == "key" else (words[:1], words[1:])
        command = [sys.executable, "-m", "mergerepl", "tracking", *head, str(replica_dir), *rest]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)

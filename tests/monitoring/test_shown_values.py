"""Values that are hard to show: one wording in every report, cut for people, whole for programs."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.delta.small_tables import read_rows
from mergerepl.model.publication import Article
from mergerepl.model.words import LONGEST_SHOWN
from tests.publish.publishing import Hub

pytestmark = pytest.mark.spark

LARGE = Decimal(2**53 + 1)
LONG = "x" * 100_000
DEEP = pa.struct([("bytes", pa.binary()), ("at", pa.timestamp("us", "UTC"))])
BY_STRUCT = pa.map_(pa.struct([("a", pa.int32())]), pa.string())


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_values_are_worded_alike_in_every_report(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(replica_dir)
    for k, name in ((LARGE - 1, "smaller"), (LARGE, "larger")):
        rows = {
            "k": pa.array([k], pa.decimal128(38, 0)),
            "b": pa.array([b"\x1bA"], pa.binary()),
            "name": [name],
            "by_struct": pa.array([[({"a": 1}, "one"), ({"a": None}, None)]], BY_STRUCT),
            "deep": pa.array([{"bytes": b"\xff", "at": None}], DEEP),
            "note": ["as it was"],
        }
        hub.table("t", rows, mode="append")
    hub.articles(Article("t", "t", key=("k", "b")))
    hub.subscribe("north")
    hub.apply()
    for replica, note in (("hq", "short"), ("north", LONG)):
        DeltaTable(str(hub.root(replica) / "t")).update(
            updates={"note": f"'{note}'"}, predicate="name = 'larger'"
        )
    monkeypatch.chdir(replica_dir)
    key = ("--key", f"k={LARGE}", "--key", "b=0x1B41")
    reports = {"dry run": shown("sync", "-f", "hq", "--dry-run", "--quiet")}
    shown("sync", "-f", "hq", "--quiet")
    reports["conflicts"] = shown("conflicts", "show", "-f", "hq", "--table", "t")
    reports["row"] = shown("row", "t", "-f", "hq", *key)
    for report in reports.values():
        assert "k=9007199254740993, b=0x1B41" in report
        for words in ("{{a: 1}: one, {a: NULL}: NULL}", "{bytes: 0xFF, at: NULL}", "larger"):
            assert words in report, report
        assert "smaller" not in report
    for name in ("dry run", "conflicts"):
        assert (
            f"{'x' * LONGEST_SHOWN}… (100,000 characters in all; see it whole with --json)" in reports[name]
        )
        assert len(reports[name]) < 20 * LONGEST_SHOWN

    [conflict] = json.loads(shown("conflicts", "show", "-f", "hq", "--table", "t", "--json"))["conflicts"]
    losing: dict[str, Any] = conflict["losing_row"]
    assert losing["note"] == LONG
    assert (losing["b"], losing["by_struct"]) == ("0x1B41", [[{"a": 1}, "one"], [{"a": None}, None]])
    assert conflict["key"] == {"k": str(LARGE), "b": "0x1B41"}
    report = json.loads(shown("row", "t", "-f", "hq", *key, "--json"))
    assert [(each["row"]["k"], each["row"]["note"]) for each in report["replicas"]] == [
        (str(LARGE), "short")
    ] * 2
    for replica in ("hq", "north"):
        there = read_rows(hub.root(replica) / "t", ["k", "note"])
        assert sorted((row["k"], row["note"]) for row in there) == [
            (LARGE - 1, "as it was"),
            (LARGE, "short"),
        ], "no row was inserted again"

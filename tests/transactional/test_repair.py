"""Edits of others at a subscriber: `validate` names them, `status` warns of them, `repair` brings the rows back."""

import re
import shlex
import shutil
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import transactional as tr
from mergerepl.cli.main import main
from mergerepl.delta.commits import read_commit
from mergerepl.delta.log import head_version
from mergerepl.store.location import Location
from mergerepl.transactional import monitoring
from mergerepl.transactional.catalog import DistributionStore
from tests.cdc.databases import add, arrow, delete, update
from tests.transactional import publications
from tests.transactional.publications import dies, new_table, publication_file, rows, run, runs

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "LATENCY", timedelta(days=1))


def warnings(file: Path, code: int) -> list[str]:
    return [each["text"] for each in publications.warnings(file, code=code)]


def keys(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that a result names, each with its kind."""
    return {", ".join(each["key"].values()): each["kind"] for each in found["examples"]}


@pytest.mark.slow
def test_edits_of_others_are_named_and_repaired_and_the_warning_is_gone(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {key: ("a", key) for key in range(1, 7)})
    other = new_table(hq, "other", {1: ("a", 1)})
    file = publication_file(replica_dir, [{"name": "items", "key": ["id"]}, {"name": "other", "key": ["id"]}])
    run("apply", "-f", file)
    assert warnings(file, 0) == []
    update(north / "items", "id = 1", qty="100")
    delete(north / "items", "id = 2")
    add(north / "items", {9: ("x", 9), 4: ("twice", 4)})
    update(north / "other", "id = 1", note="'z'")
    (text, _) = warnings(file, 1)
    assert "Others changed rows of article 'items' since the last batch (versions 2, 3, 4 of" in text
    assert not publications.state(hq)["subscriptions"][0]["is_known_to_be_equal"]
    # What is not distributed yet, and rows that change beside the comparison, are no difference.
    add(items, {7: ("g", 7)})
    delete(items, "id = 6")
    found, of_other = run("validate", "-f", file, code=1)
    assert keys(found) == {
        "1": "different",
        "2": "missing_at_subscriber",
        "4": "twice",
        "9": "missing_at_publisher",
    }
    assert (found["differing_rows"], keys(of_other)) == (4, {"1": "different"})
    (alone,) = run("validate", "-f", file, "--table", "other", code=1)
    assert alone["article"] == "other"
    shown = CliRunner().invoke(main, ["validate", "-f", str(file)]).output
    assert "items id=2: missing at subscriber" in shown
    before = head_version(north / "items")
    planned, _ = run("repair", north.name, "-f", hq, "--dry-run")["articles"]
    assert (planned["inserts"], planned["updates"], planned["deletes"], planned["differing"]) == (
        1,
        2,
        1,
        None,
    )
    assert head_version(north / "items") == before
    there = DeltaTable(str(north / "items"))
    there.alter.add_constraint({"others": "id <> 2"})
    refused = CliRunner().invoke(
        main, ["repair", "-f", str(file), "--table", "items", "--key", "id=2", "--yes"]
    )
    assert refused.exit_code == 1
    assert (
        "refuses a row of article 'items' that the publisher has: CHECK constraint others" in refused.output
    )
    there.alter.drop_constraint("others")
    (one,) = run("repair", "-f", file, "--table", "items", "--key", "id=2", "--yes")["articles"]
    assert (one["inserts"], one["updates"], one["deletes"], one["differing"]) == (1, 0, 0, 3)
    (some,) = run("repair", "-f", hq, "--table", "items", "--where", "qty > 50 or note = 'x'", "--yes")[
        "articles"
    ]
    assert (list(keys(some)), some["differing"]) == (["1", "9"], 1)
    # A repair that dies between its commits is run again.
    dies("repair.after_article", "repair", "-f", hq, "--yes")
    mark = read_commit(north / "items", head_version(north / "items")).mark
    assert mark is not None
    assert mark.kind == "repair"
    (alone,) = run("validate", "-f", file, "--table", "items")
    assert (alone["article"], alone["differing_rows"]) == ("items", 0)
    # Other articles were not compared.
    assert not DistributionStore(Location.of(hq)).subscriptions()[0].is_equal
    done = run("repair", "-f", hq, "--yes")["articles"]
    assert [(each["updates"], each["differing"]) for each in done] == [(0, 0), (1, 0)]
    assert warnings(file, 0) == []
    assert [each["differing_rows"] for each in run("validate", "-f", file)] == [0, 0]
    heads = [head_version(north / name) for name in ("items", "other")]
    run("repair", "-f", hq, "--yes")
    assert [head_version(north / name) for name in ("items", "other")] == heads
    run("sync", "-f", file)
    assert rows(north / "items") == rows(items)
    assert rows(north / "other") == rows(other)


@pytest.mark.slow
def test_a_replaced_table_is_refused_until_it_is_repaired(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    there = north / "items"
    file = publication_file(replica_dir)
    run("apply", "-f", file)
    update(items, "id = 1", qty="10")
    run("sync", "-f", file)

    def restore() -> None:
        spark.sql(f"restore delta.`{there}` to version as of 1")

    def overwrite() -> None:
        write_deltalake(str(there), arrow({5: ("e", 5)}), mode="overwrite")

    def insert_overwrite() -> None:
        spark.sql(f"insert overwrite delta.`{there}` select * from delta.`{there}` where id = 1")

    def replace() -> None:
        shutil.rmtree(there)
        new_table(north, "items", {1: ("other", 0), 3: ("c", 3)})

    for turn, change in enumerate((restore, overwrite, insert_overwrite, replace)):
        spark.sql(f"optimize delta.`{there}`")
        assert run("sync", "-f", file)["sessions"][0]["status"] == "nothing_to_do", change
        change()
        # Also where nothing is new.
        refused = run("sync", "-f", file, code=1)["error"]
        assert refused["number"] == "21074", change
        command = re.search(r"`mergerepl (repair [^`]*)`", refused["message"])
        assert command is not None, refused
        assert "is not as the last batch left it" in warnings(file, 2)[0]
        update(items, "id = 2", qty=str(100 + turn))
        run("capture", "-f", hq)
        assert run("sync", "-f", hq, code=1)["error"]["number"] == "21074"
        run(*shlex.split(command[1]), "--yes")
        assert warnings(file, 0) == []
        run("sync", "-f", file)
        assert rows(there) == rows(items), change
        assert warnings(file, 0) == []
    # The table itself is gone: rows alone do not bring it back.
    shutil.rmtree(there)
    assert "no Delta table" in run("sync", "-f", file, code=1)["error"]["message"]
    assert run("validate", "-f", file, code=1)[0]["error"] is not None
    assert "reinit" in run("repair", "-f", hq, "--yes", code=1)["error"]["message"]
    run("reinit", "-f", hq, "--all", "--yes")
    assert rows(there) == rows(items)
    # What others wrote before a batch stays in doubt after it.
    update(there, "id = 1", qty="0")
    update(items, "id = 2", qty="7")
    run("sync", "-f", file)
    assert "not known to be equal" in warnings(file, 1)[0]
    run("repair", "-f", hq, "--yes")
    assert warnings(file, 0) == []


@tr.procedure("keep_deleted", operation="delete", call="CALL")
def keep_deleted(call: tr.Call) -> None:
    call.append(call.commands.selectExpr("pkc1 AS id"), "deleted")


@tr.procedure("audit", operation="update", call="XCALL")
def audit(call: tr.Call) -> None:
    call.append(call.commands.selectExpr("c1 AS id", "c3 AS qty"), "audited")
    call.default()


@pytest.mark.slow
def test_what_cannot_be_known_is_named_and_left_alone(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    names = ("kept", "audited_items", "soft", "own")
    tables = {name: new_table(hq, name, {key: ("a", key) for key in range(1, 5)}) for name in names}
    new_table(north, "own", {key: ("a", key) for key in range(1, 5)})
    spark.sql(f"alter table delta.`{north / 'own'}` add columns (mine string)")
    articles = [
        {"name": "kept", "key": ["id"], "del_cmd": "NONE"},
        {"name": "audited_items", "key": ["id"], "upd_cmd": "XCALL audit"},
        {"name": "soft", "key": ["id"], "del_cmd": "CALL keep_deleted"},
    ]
    one = publication_file(replica_dir, articles, publication="one").rename(replica_dir / "one.yml")
    run("apply", "-f", one)
    two = publication_file(
        replica_dir,
        [{"name": "own", "key": ["id"], "filter": "qty > 0"}],
        subscribers=[{"subscriber": "./north", "sync_type": "none"}],
        publication="two",
    )
    run("apply", "-f", two)
    for name in names:
        delete(tables[name], "id = 1")
        update(tables[name], "id = 2", qty="20")
    update(tables["own"], "id = 3", qty="-1")
    run("sync", "-f", one)
    run("sync", "-f", two)
    found = {each["article"]: each for each in (*run("validate", "-f", one), *run("validate", "-f", two))}
    assert {name: each["differing_rows"] for name, each in found.items()} == dict.fromkeys(found, 0)
    assert found["kept"]["not_compared"] == ["extra rows: del_cmd is NONE (now 1)"]
    assert found["audited_items"]["not_compared"] == []
    assert "extra rows: a procedure wrote" in found["soft"]["not_compared"][0]
    assert found["own"]["not_compared"] == ["column mine: it is the subscriber's own"]
    # Others change what can be known, and what cannot.
    update(north / "own", "id = 4", qty="0", mine="'m'")
    for name in names[:3]:
        update(north / name, "id = 2", qty="0")
    found = {
        each["article"]: each
        for each in (*run("validate", "-f", one, code=1), *run("validate", "-f", two, code=1))
    }
    assert [list(keys(found[name])) for name in names] == [["2"], ["2"], ["2"], ["4"]]
    run("repair", "-f", one, "--yes")
    run("repair", "-f", two, "--yes")
    assert rows(north / "kept") == [(1, "a", 1), (2, "a", 20), (3, "a", 3), (4, "a", 4)]
    assert rows(north / "own") == [(2, "a", 20, None), (4, "a", 4, "m")]
    assert warnings(one, 0) == []
    # No batch gets past a rename that a table cannot follow: rows that are equal so far are not "equal".
    spark.sql(f"alter table delta.`{tables['own']}` set tblproperties ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"alter table delta.`{tables['own']}` rename column note to text")
    assert run("sync", "-f", two, code=1)["error"]["number"] == "21076"
    (refused,) = run("validate", "-f", two, code=1)
    assert refused["differing_rows"] == 0
    assert "21076" in refused["error"]["message"]
    # The publisher's version is gone.
    add(tables["kept"], {9: ("i", 9)})
    write_deltalake(str(tables["kept"]), arrow({1: ("a", 1)}), mode="overwrite")
    DeltaTable(str(tables["kept"])).vacuum(0, dry_run=False, enforce_retention_duration=False)
    (gone, *_) = run("validate", "-f", one, code=1)
    assert "is gone" in gone["error"]["message"]


@pytest.mark.slow
def test_marks_that_expire_are_not_needed_to_recover(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    short = {"delta.setTransactionRetentionDuration": "interval 1 seconds"}
    items = new_table(hq, "items", {key: ("a", key) for key in range(1, 5)}, **short)
    new_table(north, "audited", {}, **short)
    file = publication_file(replica_dir, [{"name": "items", "key": ["id"], "upd_cmd": "XCALL audit"}])
    run("apply", "-f", file)
    there = DeltaTable(str(north / "items"))
    assert not set(short) & set(there.metadata().configuration)
    there.alter.set_table_properties(short)
    for turn, point in enumerate(
        ("distribute.after_article", "distribute.after_write", "distribute.before_position")
    ):
        add(items, {10 + turn: ("new", turn)})
        update(items, "id = 1", qty=str(100 + turn))
        dies(point, "sync", "-f", file)
        time.sleep(2)
        run("sync", "-f", file)
        assert rows(north / "items") == rows(items), point
        assert [row[2] for row in rows(north / "audited")] == [100 + each for each in range(turn + 1)], point
    # No command failed; the deaths are recorded as stops.
    assert {each["number"] for each in runs(hq, "--failed")} == {None}
    assert warnings(file, 0) == []

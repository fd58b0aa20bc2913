"""One article of a transactional subscriber is filled again: the others and the position stay."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta.log import head_version
from mergerepl.delta.tables import is_delta_table
from tests.cdc.databases import add, delete, update
from tests.transactional.publications import dies, new_table, publication_file, rows, run, works

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ARTICLES = [{"name": "items", "key": ["id"]}, {"name": "other", "key": ["id"]}]


def test_one_article_is_filled_again_also_if_its_table_is_gone(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {key: ("a", key) for key in range(1, 5)})
    other = new_table(hq, "other", {1: ("a", 1)})
    file = publication_file(replica_dir, ARTICLES)
    run("apply", "-f", file)
    update(items, "id = 1", qty="100")
    run("sync", "-f", file)
    shutil.rmtree(north / "items")
    # These two are not distributed yet.
    add(items, {7: ("new", 7)})
    delete(items, "id = 2")
    update(other, "id = 1", qty="50")
    run("sync", "-f", file, code=1)
    words = ("reinit", "north", "-f", hq, "--table", "items", "--yes")
    assert "is transactional" in run(*words, "--upload-first", code=2)["error"]["message"]
    assert "no article 'lines'" in run(*words[:4], "--table", "lines", "--yes", code=2)["error"]["message"]
    before = head_version(north / "other")
    (planned,) = run(*words, "--dry-run")["articles"]
    assert (planned["article"], planned["inserts"]) == ("items", 4)
    assert not is_delta_table(north / "items")
    for point in ("repair.after_create", "repair.after_article"):
        dies(point, *words)
        if point == "repair.after_create":
            # No command is applied to the empty table.
            run("sync", "-f", file, code=1)
            assert rows(north / "items") == []
    assert head_version(north / "other") == before
    done = run(*words, "--discard-local")
    assert done["subscribers"] == [str(north)]
    assert [(each["article"], each["inserts"]) for each in done["articles"]] == [("items", 0)]
    run("sync", "-f", file)
    assert rows(north / "items") == rows(items)
    assert rows(north / "other") == rows(other)
    works(hq)


def test_rows_of_others_leave_one_article_alone(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    for name in ("items", "other"):
        new_table(hq, name, {key: ("a", key) for key in range(1, 5)})
    file = publication_file(replica_dir, ARTICLES)
    run("apply", "-f", file)
    for name in ("items", "other"):
        add(north / name, {9: ("x", 9)})
        update(north / name, "id = 1", qty="100")
        delete(north / name, "id = 2")
    (done,) = run("reinit", "north", "-f", hq, "--table", "items", "--yes")["articles"]
    assert (done["inserts"], done["updates"], done["deletes"]) == (1, 1, 1)
    assert rows(north / "items") == rows(hq / "items")
    assert rows(north / "other") != rows(hq / "other")

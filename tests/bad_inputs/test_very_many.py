"""Very many columns and very many conflicts: they work, or are refused before anything is written."""

import json
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.bad_inputs.conftest import run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFLICTS = 200_000


def published(folder: Path, **article: object) -> None:
    """Publish `hq/t` to `north`."""
    publication = {
        "publication": "many",
        "publisher": "./hq",
        "articles": [{"name": "t", "key": ["id"], **article}],
    }
    (folder / "many.yml").write_text(
        yaml.safe_dump({**publication, "subscriptions": [{"subscriber": "./north"}]})
    )
    went_well("apply", "-f", "many.yml")


def went_well(*arguments: str) -> str:
    shown = run(*arguments)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    return shown.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tracking", ["row", "column"])
def test_62_two_thousand_columns(spark: SparkSession, folder: Path, tracking: str) -> None:
    columns = [f"c{n}" for n in range(1999)]
    query = f"SELECT id, {', '.join(f'{n} AS {name}' for n, name in enumerate(columns))} FROM range(5)"
    spark.sql(query).write.format("delta").save(str(folder / "hq" / "t"))
    published(folder, tracking=tracking)
    spark.sql(f"UPDATE delta.`{folder}/hq/t` SET c7 = -1, c8 = -1 WHERE id = 1")
    spark.sql(f"UPDATE delta.`{folder}/north/t` SET c8 = -2, c1998 = -2 WHERE id = 1")
    went_well("sync", "-f", "many.yml", "--validate", "checksum")
    assert json.loads(went_well("conflicts", "list", "-f", "hq", "--json"))["total"] == 1
    assert "c1998" in went_well("conflicts", "show", "-f", "hq", "--table", "t")
    assert "c1998" in went_well("row", "t", "-f", "hq", "--key", "id=1")


@pytest.mark.timeout(1800)
def test_101_very_many_conflicts_in_one_session(spark: SparkSession, folder: Path) -> None:
    query = f"SELECT id, id AS n, concat('text ', id) AS v FROM range({CONFLICTS})"
    spark.sql(query).write.format("delta").save(str(folder / "hq" / "t"))
    published(folder)
    for name in ("hq", "north"):
        spark.sql(f"UPDATE delta.`{folder}/{name}/t` SET v = concat('{name} ', id)")
    went_well("sync", "-f", "many.yml", "--validate", "checksum")
    listed = json.loads(went_well("conflicts", "list", "-f", "hq", "--limit", "3", "--json"))
    assert (listed["total"], len(listed["conflicts"])) == (CONFLICTS, 3)
    [shown] = json.loads(
        went_well("conflicts", "show", "-f", "hq", "--table", "t", "--limit", "1", "--json")
    )["conflicts"]
    key = shown["key"]["id"]
    assert (shown["losing_row"]["v"], shown["winning_row"]["v"]) == (f"north {key}", f"hq {key}")
    assert (
        json.loads(went_well("sync", "-f", "many.yml", "--json"))["sessions"][0]["status"] == "nothing_to_do"
    )

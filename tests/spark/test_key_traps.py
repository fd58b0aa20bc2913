"""What users do to the keys of a published table: two rows of one key for a while, GUIDs in another case, odd names."""

from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

import mergerepl
from tests.spark.test_capture_traps import Site, versions
from triggers.errors import DuplicateKeyError


class Pair:
    """A publisher `hq` and a subscriber `north` with one article each of any table, initialised and in step."""

    def __init__(self, spark: SparkSession, folder: Path, articles: dict[str, tuple[str, dict[str, object]]]):
        self.spark, self.folder = spark, folder
        for name, (query, _) in articles.items():
            spark.sql(query).write.format("delta").save(str(folder / "hq" / name))
        file = folder / "pair.yml"
        publication = {
            "publication": "pair",
            "publisher": "./hq",
            "articles": [{"name": name, **settings} for name, (_, settings) in articles.items()],
            "subscriptions": [{"subscriber": "./north"}],
        }
        file.write_text(yaml.safe_dump(publication))
        mergerepl.load(file).apply()

    def sql(self, statement: str) -> None:
        """Run SQL in which `hq.orders` means that replica's table."""
        for replica in ("hq", "north"):
            for table in (self.folder / replica).iterdir():
                statement = statement.replace(f"{replica}.{table.name} ", f"delta.`{table}` ")
        self.spark.sql(statement)

    def sync(self) -> mergerepl.SessionResult:
        return mergerepl.sync(self.folder / "hq", long_running=True).sessions[0]

    def rows(self, replica: str, article: str) -> list[tuple[object, ...]]:
        frame = self.spark.read.format("delta").load(str(self.folder / replica / article))
        return sorted(tuple(row) for row in frame.collect())

    def same_rows(self, article: str) -> list[tuple[object, ...]]:
        """Return the rows of both sides, which must be the same."""
        assert self.rows("hq", article) == self.rows("north", article)
        return self.rows("hq", article)


def without_feed(site: Site, table: str, statement: str) -> None:
    """Change a table while its feed is off."""
    site.spark.sql(f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'false')")
    site.spark.sql(statement)
    site.spark.sql(f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'true')")


def held_in_memory(spark: SparkSession) -> int:
    """Return how many frames Spark keeps."""
    return int(spark.sparkContext._jsc.getPersistentRDDs().size())


@pytest.mark.timeout(900)
def test_inv_24_a_second_row_of_a_key_made_without_the_feed_is_refused_by_name(
    spark: SparkSession, replica_dir: Path
) -> None:
    site = Site(spark, replica_dir, ["orders"])
    table = site.table("hq", "orders")
    without_feed(site, table, f"insert into {table} values (1, 'twice', 0.0), (9, 'new', 9.0)")
    before = versions(replica_dir)
    with pytest.raises(DuplicateKeyError, match=r"id=1\."):
        site.sync()
    assert versions(replica_dir) == before
    spark.sql(f"delete from {table} where id = 1 and a = 'a1'")
    site.sync()
    assert (1, "twice", 0.0) in site.rows("north", "orders")
    assert site.rows("hq", "orders") == site.rows("north", "orders")


@pytest.mark.timeout(900)
def test_inv_24_a_key_that_had_two_rows_for_a_while_is_captured_as_it_ends(
    spark: SparkSession, replica_dir: Path
) -> None:
    site = Site(spark, replica_dir, ["orders"])
    table = site.table("hq", "orders")
    spark.sql(f"insert into {table} select id, concat('a', id), cast(id as double) from range(6, 20)")
    # A row (NULL, 0.0) and one ('', NULL) hash alike to a hash that passes over NULLs.
    spark.sql(f"insert into {table} values (20, null, 0.0)")
    site.sync()
    steps = [
        "insert into {0} select id, 'new', 0.0d from range(10)",
        "insert into {0} values (10, 'a10', 10.0), (11, 'a11', 11.0), (12, 'twin', 12.0), (13, 'new', 0.0)",
        "insert into {0} values (20, '', null), (50, 'x', 0.0), (51, 'x', 0.0)",
        # The rows that were there go, the new ones stay, as the message of DuplicateKeyError says.
        "delete from {0} where id in (0, 1, 2) and a <> 'new' or id = 20 and a is null",
        "update {0} set a = 'newer' where id in (1, 51)",
        "delete from {0} where id = 2",
        # The new ones go again.
        "delete from {0} where id = 3 and a = 'new'",
        # Both are changed, then one goes.
        "update {0} set b = b + 1 where id in (4, 5, 6)",
        "delete from {0} where id = 4 and a = 'new'",
        "delete from {0} where id = 5 and a <> 'new'",
        # Both go.
        "delete from {0} where id in (6, 7, 8, 10, 11, 50)",
        "insert into {0} values (7, 'a7', 7.0), (8, 'again', 8.0), (11, 'a11', 11.0)",
        # One takes another key.
        "update {0} set id = 60 where id = 9 and a = 'new'",
        "update {0} set id = 61 where id = 12 and a <> 'twin'",
        "update {0} set a = 'a13', b = 13.0 where id = 13",
        "delete from {0} where id = 13",
        "insert into {0} values (13, 'a13', 13.0)",
    ]
    for step in steps:
        spark.sql(step.format(table))
    [captured] = mergerepl.capture(replica_dir / "hq").articles
    changed = {"inserts": {51, 60, 61}, "updates": {0, 1, 4, 5, 8, 12, 20}, "deletes": {2, 6, 10}}
    told = {kind: getattr(captured, kind) for kind in changed}
    assert told == {kind: len(keys) for kind, keys in changed.items()}
    site.sync()
    rows = site.rows("north", "orders")
    assert rows == site.rows("hq", "orders")
    assert {(0, "new", 0.0), (1, "newer", 0.0), (20, "", None), (12, "twin", 12.0)} < rows
    assert site.sync().status == "nothing_to_do"


@pytest.mark.timeout(900)
def test_inv_24_removing_the_row_that_was_there_ends_the_refusal_of_a_duplicate(
    spark: SparkSession, replica_dir: Path
) -> None:
    site = Site(spark, replica_dir, ["orders"])
    table = site.table("hq", "orders")
    # Two commits, so that the feed tells more rows than the key can have: the versions have the last word.
    spark.sql(f"insert into {table} values (1, 'other', 0.0)")
    spark.sql(f"insert into {table} values (1, 'third', 0.0)")
    in_memory = held_in_memory(spark)
    with pytest.raises(DuplicateKeyError, match=r"id=1\..*Remove the duplicates"):
        site.sync()
    assert held_in_memory(spark) == in_memory
    spark.sql(f"delete from {table} where id = 1 and a <> 'third'")
    site.sync()
    assert (1, "third", 0.0) in site.rows("north", "orders")
    assert site.rows("hq", "orders") == site.rows("north", "orders")

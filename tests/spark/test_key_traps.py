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

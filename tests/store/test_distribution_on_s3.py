"""Transactional publications with ends in buckets (decision 0169): an agent that dies or is displaced is made up for.

A command that came twice would be error 2627 or 20598: the subscriber does not overwrite in silence.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from mergerepl.delta.create import NewTable, create_table, features_of
from mergerepl.delta.fences import FENCE_APP_ID
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import DEFAULT_EXPRESSION, DEFAULTS_FEATURE
from mergerepl.delta.tables import transaction_version
from mergerepl.delta.types import field
from mergerepl.errors import LeaseError, MergeReplError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.model.progress import NoProgress
from mergerepl.model.transactional import Publication
from mergerepl.project import Project
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import register_of, state_of
from mergerepl.store.storage import files_in, storage
from mergerepl.systables.transactional import ACTIVE, SubscriptionRow
from mergerepl.transactional.agents import ends_held
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.cleaning import _remove_unused
from mergerepl.transactional.monitoring import has_foreign_commits
from mergerepl.transactional.position import (
    BatchPlan,
    app_id,
    delivered_through,
    fence_article,
    is_unfinished,
    redo_log,
)
from mergerepl.transactional.publish import ApplyRun, _unsubscribe
from mergerepl.transactional.refusals import TransactionalUsageError
from mergerepl.transactional.snapshot import is_ours, subscriber_table
from tests.store.processes import Agent
from tests.store.proxy import Fault, Proxy, Request
from tests.store.served import Served
from tests.transactional.publications import publication_file, run, shape, state
from tests.waiting import waited

NAMES = ("orders", "lines")
DRAWN = 10

HQ, NORTH, BOTH = "hq", "north", "both"
"""The ends that are in a bucket; the others are in folders."""


class Feed:
    """Two published tables and a subscriber."""

    def __init__(self, folder: Path, hq: Location, north: Location, names: Sequence[str] = NAMES) -> None:
        self.hq, self.north, self.names, self.number = hq, north, names, 0
        for name in names:
            rows = pa.table({"id": pa.array([0, 1], pa.int64()), "note": ["a", "b"]})
            # delta-rs sets properties without letting this process' other threads, such as the proxy's, work.
            feed = {"delta.enableChangeDataFeed": "true"}
            options = storage_options(hq) or None
            write_deltalake(str(hq / name), rows, configuration=feed, storage_options=options)
        self.file = publication_file(
            folder,
            [{"name": name, "key": ["id"]} for name in names],
            publisher=str(hq),
            subscribers=[{"subscriber": str(north)}],
        )

    def opened(self, root: Location, name: str) -> DeltaTable:
        return DeltaTable(str(root / name), storage_options=storage_options(root) or None)

    def rows(self, root: Location) -> list[list[tuple[Any, ...]]]:
        found = (self.opened(root, name).to_pyarrow_table().to_pylist() for name in self.names)
        return [sorted(tuple(row.values()) for row in rows) for rows in found]

    def change(self) -> None:
        """Insert a row and update another one of each table."""
        self.number += 1
        for name in self.names:
            table = self.opened(self.hq, name)
            row = pa.table({"id": pa.array([100 + self.number], pa.int64()), "note": ["new"]})
            write_deltalake(table, row, mode="append")
            table.update(updates={"note": f"'n{self.number}'"}, predicate="id = 1")

    def sync(self) -> None:
        """As a run of the agents."""
        Project.load(str(self.file)).sync()

    def heads(self) -> list[int]:
        """Return the versions of all tables."""
        at = [
            table
            for root in (self.hq, self.north)
            for table in (*(root / name for name in self.names), *files_in(root / "_transactional"))
        ]
        return [
            sum(name.endswith(".json") for name in storage(each).list_from(each / "_delta_log"))
            for each in at
        ]

    def is_equal(self) -> bool:
        return self.rows(self.hq) == self.rows(self.north)


def placed(where: str, bucket: str, folder: Path, names: Sequence[str] = NAMES) -> Feed:
    def place(name: str) -> Location:
        if where in (name, BOTH):
            return Location.of(f"s3://{bucket}/{name}")
        (folder / name).mkdir()
        return Location.of(str(folder / name))

    return Feed(folder, place("hq"), place("north"), names)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@pytest.fixture
def other_bucket(served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of a store in a process of its own, which answers while delta-rs makes a query here."""
    settings = {
        "AWS_ENDPOINT_URL": served.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "MERGEREPL_LEASE_S": "0.5",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return served.new_bucket()


@pytest.fixture
def bucket_elsewhere(other_bucket: str, spark: SparkSession) -> str:
    """Such a bucket, for the worker's session."""
    return other_bucket


@pytest.mark.slow
@pytest.mark.spark
def test_a_sync_sends_a_bounded_number_of_requests(
    bucket_elsewhere: str, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is renewed in this time.
    monkeypatch.setenv("MERGEREPL_LEASE_S", "600")
    feed = placed(BOTH, bucket_elsewhere, tmp_path, NAMES[:1])

    def requests() -> int:
        begun = served.ask("count")
        feed.sync()
        return int(served.ask("count")) - begun

    run("apply", "-f", feed.file)
    feed.change()
    assert requests() <= 180
    assert feed.is_equal()
    assert requests() <= 20


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("where", [HQ, NORTH, BOTH])
def test_a_sync_that_dies_at_a_request_is_made_up_for(
    where: str, bucket_elsewhere: str, served: Served, tmp_path: Path
) -> None:
    feed = placed(where, bucket_elsewhere, tmp_path)
    run("apply", "-f", feed.file)
    assert feed.is_equal()
    feed.change()
    deaths = 0
    for number, is_stored in served.drawn_points(feed.sync, DRAWN):
        assert feed.is_equal()
        feed.change()
        deaths += served.died(feed.sync, number, is_stored=is_stored)
        feed.sync()
        assert feed.is_equal(), f"died at request {number}, stored: {is_stored}"
    assert 2 * deaths > DRAWN
    assert run("sync", "-f", feed.file)["sessions"][0]["status"] == "nothing_to_do"
    assert state(feed.hq)["subscriptions"][0]["is_known_to_be_equal"]
    for root in (feed.hq, feed.north):
        if not root.is_local:
            assert (state_of(root).scan, state_of(root).batches) == (None, {})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("words", [("sync",), ("reinit", "north", "--yes")])
def test_an_agent_that_was_displaced_between_two_tables_writes_nothing_more(
    words: tuple[str, ...], bucket: str, tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "2")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    feed = placed(BOTH, bucket, tmp_path)
    file = str(feed.file)
    Agent(tmp_path, "apply", "-f", file).end(0)
    feed.change()
    first, goes_on = Agent(tmp_path, *words, "-f", file), threading.Event()
    written: set[str] = set()

    def is_second(request: Request) -> bool:
        """Rows of what Spark writes to the second table: the table is open by then, and the commit has not been sent."""
        found = re.search("/north/(orders|lines)/part-", request.key)
        if found is None or request.method != "PUT":
            return False
        written.add(found[1])
        return len(written) == 2

    with proxy.breaking(Fault(hold=goes_on), is_second) as broken:
        while not broken and first.process.poll() is None:
            time.sleep(0.05)
        first.stop()
    assert broken, first.end(0)
    assert bool(state_of(feed.north).batches) == (words == ("sync",))
    feed.change()
    Agent(tmp_path, *words, "-f", file).end(0)
    if not feed.is_equal():
        # A snapshot may be older than the last commits.
        Agent(tmp_path, "sync", "-f", file).end(0)
    assert feed.is_equal()
    before = feed.heads()
    # What the engine had sent comes first, then its process goes on.
    goes_on.set()
    os.kill(first.process.pid, signal.SIGCONT)
    assert "was taken over by another agent" in first.end(3)
    assert feed.heads() == before
    for name in NAMES:
        assert feed.opened(feed.north, name).transaction_version(FENCE_APP_ID) == state_of(feed.north).fence
    assert state_of(feed.north).batches == {}


LOST_ANSWERS = (
    "/north/.mergerepl.lock",
    "/plans/",
    "/north/orders/_delta_log/",
    "/north/_transactional/MSreplication_subscriptions/_delta_log/",
    "/hq/_transactional/MSrepl_transactions/_delta_log/",
    "/hq/_transactional/MSrepl_commands_",
)


@pytest.mark.slow
@pytest.mark.spark
def test_a_lost_answer_changes_nothing(bucket_elsewhere: str, served: Served, tmp_path: Path) -> None:
    feed = placed(BOTH, bucket_elsewhere, tmp_path)
    run("apply", "-f", feed.file)
    for key in LOST_ANSWERS:
        feed.change()
        served.ask("lose", key, 1)
        feed.sync()
        assert served.ask("clear") == 1, key
        assert feed.is_equal(), key
    assert run("sync", "-f", feed.file)["sessions"][0]["status"] == "nothing_to_do"


def test_what_is_not_built_for_buckets_is_refused(bucket: str, tmp_path: Path) -> None:
    feed = placed(BOTH, bucket, tmp_path)
    text = feed.file.read_text(encoding="utf-8")
    north = f"subscriber: {feed.north}"
    for change, words in (
        ((north, f"{north}\n  updatable: queued"), "`updatable: queued` with an end in a bucket"),
        (
            (north, f"{north}\n  procedures: {{sp_MSupd_dboorders: mine}}"),
            "A procedure of your own for a subscriber",
        ),
        ((str(feed.north), "az://lake/north"), "is in Azure's store"),
    ):
        feed.file.write_text(text.replace(*change), encoding="utf-8")
        with pytest.raises(MergeReplError, match=words):
            Project.load(str(feed.file)).apply()
    assert not storage(feed.hq).is_folder(feed.hq / "_transactional")
    assert state_of(feed.hq).holder is None


def test_a_batch_is_what_the_register_names_and_a_takeover_fences_what_it_writes(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.1")
    root, guid = Location.of(f"s3://{bucket}/north"), "5f0c"
    table = root / "sales" / "orders"
    write_deltalake(str(table), pa.table({"id": [1]}), storage_options=storage_options(root))
    redo = redo_log(root, guid)
    plans = [BatchPlan(1, bytes(10), bytes([n] * 10), {1: 0}) for n in (1, 2)]
    with lease(root, purpose="first"):
        register = register_of(root)
        assert register.state_writers({app_id(guid): ["sales/orders"]})
        assert not register.state_writers({app_id(guid): ["sales/orders"]})
        fence_article(table, guid)
        redo.stage(plans[0])
        redo.stage(plans[1])
        register.is_in_flight = True
    assert redo.is_pending
    assert is_unfinished(root)
    # A late PUT of the first plan, which nobody names.
    at = root.join("_transactional", f"batches-{guid}", "plans", "1-late.json")
    storage(at).put(at, b"{}")
    with lease(root, purpose="second"):
        assert redo.pending() == plans[1]
        opened = DeltaTable(str(table), storage_options=storage_options(root))
        assert opened.transaction_version(FENCE_APP_ID) == state_of(root).fence == 2
        assert opened.transaction_version(app_id(guid)) == 2 << 32
        # No snapshot, although the application has a transaction there.
        assert transaction_version(table, app_id(guid)) == 0
        assert not is_ours(table, guid)
        with pytest.raises(LeaseError, match="was taken over"):
            register.plan_batch(guid, None)
        redo.remove_left()
        assert len(files_in(at.parent)) == 1
        redo.finish()
        register_of(root).state_writers({app_id(guid): ()})
    assert not is_unfinished(root)
    assert (state_of(root).batches, state_of(root).writers) == ({}, {})
    # A table whose fences would be forgotten is not written.
    forgets = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    table = root / "lines"
    rows = pa.table({"id": [1]})
    write_deltalake(str(table), rows, configuration=forgets, storage_options=storage_options(root))
    with (
        lease(root, purpose="third"),
        pytest.raises(TransactionalUsageError, match="Unset it with ALTER TABLE"),
    ):
        fence_article(table, guid)
    # One that is made for a publisher in a folder has no default values, whose feature keeps fences away.
    source, columns = Location.of(tmp_path / "lines"), [field("id", "long"), field("note", "string")]
    columns[1]["metadata"][DEFAULT_EXPRESSION] = "'x'"
    create_table(source, NewTable(columns), CommitMark("setup", "lines"))
    lines = shape(("id", "note"), ("bigint", "string"), ("id",))
    assert [*features_of(subscriber_table(source, 0, lines, source))] == [DEFAULTS_FEATURE]
    assert [*features_of(subscriber_table(source, 0, lines, table))] == []


def test_a_write_of_the_distributor_goes_on_under_its_register(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.1")
    hq, north = (Location.of(f"s3://{bucket}/{name}") for name in ("hq", "north"))
    store = DistributionStore(hq)
    with ends_held(hq, north, "test"), store.writing():
        store.create()
        held = state_of(hq).fence
    assert store.is_there
    with store.writing():
        assert state_of(hq).fence == held + 1
        with pytest.raises(LeaseError, match="is in use"), ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: lease(hq, purpose="other", wait_s=0.0).__enter__()).result()


def test_a_subscriber_whose_bucket_is_gone_ends_and_leaves_the_others_alone(
    bucket: str, tmp_path: Path
) -> None:
    store, gone = DistributionStore(Location.of(tmp_path)), f"s3://{bucket}-gone/north"
    store.create()
    row = SubscriptionRow(
        publication_id=1,
        agent_id=1,
        subscriber=gone,
        subscription_guid="5f0c",
        status=ACTIVE,
        last_xact_seqno=bytes([7] * 10),
    )
    store.add_subscription(row)
    # For cleanup and `status`: what the publisher knows.
    assert delivered_through(store, row) == row.last_xact_seqno
    assert has_foreign_commits(store, row)
    _remove_unused(store.subscriber(row), store)
    published = Publication("feed", str(store.root), ())
    _unsubscribe(row, ApplyRun(published, store, LogReader(store.root), NoProgress()))
    assert store.subscriptions() == []


def the_error(feed: Feed) -> dict[str, Any]:
    """Return the error with which a sync fails."""
    return dict(run("sync", "-f", feed.file, code=1)["error"])


@pytest.mark.slow
@pytest.mark.spark
def test_a_subscription_that_stops_goes_on_as_its_message_says(
    bucket_elsewhere: str, served: Served, spark: SparkSession, tmp_path: Path
) -> None:
    feed = placed(BOTH, bucket_elsewhere, tmp_path)
    run("apply", "-f", feed.file)
    # Rows that another writer removed: the agent stops, and nothing of it makes the next one write fences.
    feed.opened(feed.north, "orders").delete("id = 1")
    feed.change()
    stopped = the_error(feed)
    assert stopped["number"] == "20598"
    before = feed.heads()
    assert the_error(feed)["message"] == stopped["message"]
    assert feed.heads() == before
    assert not state_of(feed.hq).in_flight
    assert not state_of(feed.north).in_flight
    run("transactional", "skip", stopped["xact_seqno"], "-f", feed.hq, "--at", "north")
    feed.change()
    assert the_error(feed)["number"] == "20598"
    run("repair", "north", "-f", feed.hq, "--yes")
    feed.sync()
    assert feed.is_equal()
    assert [each["differing_rows"] for each in run("validate", "-f", feed.file)] == [0, 0]
    # A repair that dies leaves nothing that stops the next one.
    for number, is_stored in ((20, False), (40, True), (60, False)):
        feed.opened(feed.north, "lines").delete("id = 1")
        served.died(lambda: run("repair", "north", "-f", feed.hq, "--yes"), number, is_stored=is_stored)
        run("repair", "north", "-f", feed.hq, "--yes")
        assert feed.is_equal()
    # New columns: by hand, or with all rows.
    for column, is_by_hand in (("size", True), ("colour", False)):
        feed.opened(feed.hq, "orders").alter.add_columns([Field(column, PrimitiveType("string"))])
        row = pa.table({"id": pa.array([9], pa.int64()), "note": ["wide"], column: ["XL"]})
        write_deltalake(feed.opened(feed.hq, "orders"), row, mode="append", schema_mode="merge")
        stopped = the_error(feed)
        assert stopped["number"] == "21076"
        assert "where an agent does not change columns" in stopped["message"]
        if is_by_hand:
            spark.sql(re.findall("Run `(ALTER .*)`, then sync", stopped["message"])[0])
        else:
            served.died(lambda: run("reinit", "north", "-f", feed.hq, "--yes"), 50, is_stored=True)
            run("reinit", "north", "-f", feed.hq, "--yes")
        feed.sync()
        assert feed.is_equal()
        feed.opened(feed.hq, "orders").delete("id = 9")
        feed.sync()
        assert feed.is_equal()
    for words in (
        ("cleanup",),
        ("status", "--check"),
        ("pending",),
        ("history",),
        ("doctor",),
        ("transactional", "browse"),
        ("transactional", "script"),
    ):
        run(*words, "-f", feed.hq)


@pytest.mark.slow
@pytest.mark.spark
def test_a_merge_session_and_a_distribution_fence_each_other(
    bucket_elsewhere: str, served: Served, tmp_path: Path
) -> None:
    feed = placed(BOTH, bucket_elsewhere, tmp_path)
    rows = pa.table({"id": pa.array(range(9), pa.int64()), "note": ["a"] * 9})
    write_deltalake(str(feed.hq / "shared"), rows, storage_options=storage_options(feed.hq))
    both = tmp_path / "both.yml"
    both.write_text(
        f"publication: shared\npublisher: {feed.hq}\narticles: [{{name: shared, key: [id]}}]\n"
        f"subscriptions: [{{subscriber: {feed.north}, name: north}}]\n"
    )
    for file in (both, feed.file):
        run("apply", "-f", file)

    def merged() -> list[list[dict[str, Any]]]:
        found = (feed.opened(root, "shared").to_pyarrow_table() for root in (feed.hq, feed.north))
        return [each.select(["id", "note"]).sort_by("id").to_pylist() for each in found]

    for turn, (number, is_stored) in enumerate([(30, False), (60, True), (90, False), (120, True)]):
        feed.change()
        feed.opened(feed.hq, "shared").update({"note": f"'hq {turn}'"}, predicate=f"id = {turn}")
        feed.opened(feed.north, "shared").update({"note": f"'north {turn}'"}, predicate=f"id = {turn + 4}")
        dying, other = (feed.file, both) if turn % 2 else (both, feed.file)
        served.died(lambda file=dying: Project.load(str(file)).sync(), number, is_stored=is_stored)  # type: ignore[misc]
        run("sync", "-f", other)
        run("sync", "-f", dying)
        here, there = merged()
        assert here == there
        assert (here[turn]["note"], here[turn + 4]["note"]) == (f"hq {turn}", f"north {turn}")
        assert feed.is_equal()


@pytest.mark.slow
def test_an_agent_distributes_and_another_one_takes_over(
    other_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "2")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    feed = placed(BOTH, other_bucket, tmp_path)
    Agent(tmp_path, "apply", "-f", str(feed.file)).end(0)
    words = ("agent", "run", "-f", str(feed.file), "--interval", "1s")
    agents = [Agent(tmp_path, *words)]

    def is_brought() -> None:
        feed.change()
        waited(feed.is_equal, every_s=1, seconds=300, what=lambda: agents[-1].killed())

    try:
        is_brought()
        feed.change()
        time.sleep(3)
        first = agents[0]
        first.stop()
        agents.append(Agent(tmp_path, *words))
        is_brought()
        os.kill(first.process.pid, signal.SIGCONT)
        assert "was taken over by another agent" in first.end(3)
        is_brought()
        agents[1].process.terminate()
        agents[1].end(0)
    finally:
        for each in agents:
            each.process.kill()

"""Recover, carry out and watermarks without an engine: a staged session that dies at every step, and replicas put back.

Replicas, control planes, logs and the staged changeset are real (I20, I21, I26 to I29). What Spark writes in between, a
MERGE, a run and conflict rows, is a commit without files that happens once, as the real ones do
(`tests/replica/test_appended.py`, `tests/spark/test_engine.py`).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import mergerepl
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.commits import Commit, commits, find_own_commit
from mergerepl.delta.log import commit_text, head_version
from mergerepl.delta.transactions import transaction_version
from mergerepl.errors import EnumerationError, OutOfReachError, PublicationError
from mergerepl.failpoints import FailpointError, failpoint
from mergerepl.merge.apply import conflict_log
from mergerepl.merge.apply.side import Side, data_transaction
from mergerepl.merge.session import carry_out, merge_session
from mergerepl.merge.session.merge_session import SessionRequest
from mergerepl.merge.session.recovery import recover
from mergerepl.model.progress import NoProgress
from mergerepl.replica.application_ids import RUN_APP_ID
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import write_pointer
from mergerepl.spark import session as engine
from mergerepl.store.changeset import ArticleWork, Changeset, Manifest, Mark, SideWork
from mergerepl.systables import catalog, conflicts_info, genhistory, replinfo, sessions
from mergerepl.systables.catalog import SubscriptionState
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from tests.calls import merge_capture, merge_history
from tests.faults.deaths import armed, dies
from tests.faults.ladder import LADDER
from tests.networks import FILE, Network, commit, generation

CARRIED_OUT = LADDER[LADDER.index("publisher.before_merge") :]


def once(table: Path, app_id: str, version: int) -> None:
    if transaction_version(table, app_id) < version:
        commit(table, {"txn": {"appId": app_id, "version": version, "lastUpdated": 0}})


def merge(_: object, side: Side, work: ArticleWork) -> Commit:
    table, transaction = side.replica.table(side.articles[1]), data_transaction(side, 1)
    failpoint(f"{side.name}.before_merge")
    if find_own_commit(table, transaction.mark, from_version_exclusive=work.from_version) is None:
        info = {"operation": "MERGE", "operationMetrics": {"numTargetRowsUpdated": "1"}}
        info["userMetadata"] = transaction.mark.to_user_metadata()
        commit(table, {"commitInfo": info})
    failpoint(f"{side.name}.after_merge")
    done = find_own_commit(table, transaction.mark, from_version_exclusive=work.from_version)
    assert done is not None
    return done


def append_run(_: object, side: Side) -> None:
    once(side.replica.contents, RUN_APP_ID, side.work.seq)


def log_conflicts(changeset: Changeset, replica: Replica, *_: object) -> None:
    failpoint("conflicts.before_rows")
    failpoint("conflicts.after_rows")
    failpoint("conflicts.before_info")
    once(replica.folder / conflicts_info.NAME, changeset.manifest.session, 1)
    failpoint("conflicts.after_info")


@dataclass
class Staged:
    """A network without an engine, and the session that was staged last between hq and north."""

    network: Network
    changeset: Changeset | None = None

    def replica(self, name: str) -> Replica:
        return Replica(self.network.root(name))

    def stage(self) -> Changeset:
        """Stage a session in which each side updates a row, and one of them is a conflict."""
        hq, north = self.replica("hq"), self.replica("north")
        (about,) = (row for row in hq.subscriptions() if row.replid == north.info().replid)
        number = hq.info().session_number + 1
        up, down = self._captured(north), self._captured(hq)
        works = self._work(hq, north, up), self._work(north, hq, down)
        manifest = Manifest(
            session=f"session-{number}",
            number=number,
            publication="sales",
            pubid=about.pubid,
            subid=about.subid,
            upload=True,
            download=True,
            started="2026-01-01T00:00:00+00:00",
            conflict_logging="publisher",
            conflicts={1: 1},
            publisher=works[0],
            subscriber=works[1],
            # Both have what they received.
            upload_watermark=Mark(generation=works[1].last_generation, guid=down.guid),
            download_watermark=Mark(generation=works[0].last_generation, guid=up.guid),
            replicastate=f"state {number}",
        )
        self.changeset = Changeset(hq.staging / manifest.session, manifest)
        Path(self.changeset.folder).mkdir(parents=True)
        Path(north.staging).mkdir(exist_ok=True)
        write_pointer(hq, north, manifest.session)
        self.changeset.commit()
        return self.changeset

    def _captured(self, replica: Replica) -> Mark:
        """Enter a closed generation of a replica's own, as its capture does."""
        info = replica.info()
        generation = self._generation(info, genhistory.new_guid(), GenStatus.CLOSED)
        replica.append_generations([generation], seq=info.last_seq)
        replica.save_info(replace(info, last_generation=generation.generation))
        return Mark(generation=generation.generation, guid=generation.guidsrc)

    def _generation(self, info: ReplicaInfo, guid: str, status: GenStatus) -> Generation:
        stated = {"pubid": "sales", "nicknames": (info.nickname,), "genstatus": status}
        return generation(info.last_generation + 1, guidsrc=guid, **stated)

    def _work(self, replica: Replica, other: Replica, received: Mark) -> SideWork:
        info, table = replica.info(), replica.root / "orders"
        generation = self._generation(info, str(received.guid), GenStatus.CLOSED_ELSEWHERE)
        return SideWork(
            root=str(replica.root),
            replid=info.replid,
            peer=other.info().replid,
            nickname=info.nickname,
            base_seq=info.last_seq,
            seq=info.last_seq + 1,
            last_generation=info.last_generation + 1,
            clock=info.clock,
            generations=[generation],
            articles=[ArticleWork(nickname=1, from_version=info.captured[1], actions={"update": 1}, live=1)],
            commits={1: commit_text(table, info.captured[1]) or ""},
        )

    def recover(self, north: Path | None = None) -> int:
        return recover(self.replica("hq"), Replica(north) if north else self.replica("north"), lambda: None)  # type: ignore[arg-type,return-value]

    def sync(self, **settings: bool) -> mergerepl.SessionResult:
        hq, north = (self.network.root(name) for name in ("hq", "north"))
        return mergerepl.Project.load(hq).sync(Path(north).name, **settings).sessions[0]  # type: ignore[arg-type]

    def stopped_at(self, point: str) -> None:
        with dies(point, action="stop"):
            self.recover()

    def is_stopped_at(self, point: str) -> bool:
        """Finish the session, or die at a step that it has still to do; True if it died."""
        with armed(point, "stop"):
            try:
                self.recover()
            except FailpointError:
                return True
        return False

    def check_side(self, side: str, replica: Replica, *, is_over: bool = True) -> None:
        """Check that one side was carried out once, whatever was done twice."""
        assert self.changeset is not None
        manifest, work, info = self.changeset.manifest, self.changeset.work_of(side), replica.info()
        assert (info.last_seq, info.last_generation) == (work.seq, work.last_generation)
        assert info.session_number == manifest.number
        assert info.captured == {1: work.articles[0].from_version + 1}
        assert head_version(replica.root / "orders") == info.captured[1]
        last = replica.genhistory()[-1]
        assert (last.guidsrc, last.seq) == (work.generations[0].guidsrc, work.seq)
        (other,) = (
            row for row in replica.relations() if (row.subid, row.replid) == (manifest.subid, work.peer)
        )
        sent, received = manifest.download_watermark, manifest.upload_watermark
        if side == SUBSCRIBER:
            sent, received = received, sent
        found = (other.sentguid, other.recguid, other.session_number, other.replicastate)
        expected = (sent.guid, received.guid, manifest.number, manifest.replicastate)  # type: ignore[union-attr]
        assert (found == expected) is is_over
        runs = [version for each in every(replica.contents) for version in each.txns.values()]
        assert runs == [*range(1, work.seq + 1)], "each run once"
        assert is_over is any(
            row.session_id == manifest.session for row in replica.control.rows(sessions.SESSIONS)
        )

    def check(self, north: Replica | None = None) -> None:
        """Check that the session is over at both sides."""
        assert self.changeset is not None
        hq, north = self.replica("hq"), north or self.replica("north")
        self.check_side(PUBLISHER, hq)
        self.check_side(SUBSCRIBER, north)
        logged = [app for each in every(hq.folder / conflicts_info.NAME) for app in each.txns]
        assert logged == [f"session-{n}" for n in range(1, self.changeset.manifest.number + 1)]
        assert [*Path(hq.staging).iterdir(), *Path(north.staging).iterdir()] == []


def every(table: Path) -> list[Commit]:
    head = head_version(table)
    return [*commits(table, from_version_exclusive=0, through_version_inclusive=head)]


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staged:
    monkeypatch.setattr(carry_out, "merge_article", merge)
    monkeypatch.setattr(carry_out, "append_side_run", append_run)
    monkeypatch.setattr(conflict_log, "log_conflicts", log_conflicts)
    monkeypatch.setattr(engine, "session", lambda **_: None)
    return Staged(Network(tmp_path))


def test_inv_26_27_28_29_a_session_that_dies_at_every_step_and_again_is_carried_out_once(
    staged: Staged,
) -> None:
    """A session dies at one step, the run that finishes it at the next, and so on.

    The sides run beside each other. Where the other side was past the next step already, a new session begins with it.
    """
    remaining, sessions = [*CARRIED_OUT], 0
    while remaining:
        staged.stage()
        sessions += 1
        staged.stopped_at(remaining.pop(0))
        while remaining and staged.is_stopped_at(remaining[0]):
            remaining.pop(0)
        staged.recover()
        staged.check()
        assert staged.recover() == 0
    assert sessions < len(CARRIED_OUT) / 2


def test_a_session_without_a_manifest_has_not_happened(staged: Staged) -> None:
    changeset = staged.stage()
    (Path(changeset.folder) / "manifest.json").unlink()
    before = staged.replica("hq").info(), staged.replica("hq").subscriptions()
    assert staged.recover() == 0
    assert (staged.replica("hq").info(), staged.replica("hq").subscriptions()) == before
    assert [
        *Path(staged.replica("hq").staging).iterdir(),
        *Path(staged.replica("north").staging).iterdir(),
    ] == []


def test_a_subscriber_that_was_moved_is_known_by_its_id(staged: Staged) -> None:
    staged.stage()
    staged.stopped_at("subscriber.after_merge")
    moved = staged.network.folder / "elsewhere" / "north"
    moved.parent.mkdir()
    shutil.move(staged.network.root("north"), moved)
    assert staged.recover(moved) == 1
    staged.check(Replica(moved))


def test_a_publisher_that_was_moved_finishes_its_sessions(staged: Staged) -> None:
    staged.stage()
    staged.stopped_at("publisher.before_merge")
    hq, moved = staged.network.root("hq"), staged.network.folder / "head"
    shutil.move(hq, moved)
    assert mergerepl.Project.load(moved).sync("north").sessions[0].recovered == 1
    assert not hq.exists()
    shutil.move(moved, hq)
    staged.check()


def test_a_session_with_another_publisher_finishes_the_subscribers_side_first(staged: Staged) -> None:
    staged.stage()
    staged.stopped_at("publisher.after_done")
    south, north = staged.replica("south"), staged.replica("north")
    (about,) = (row for row in south.relations() if not row.is_own)
    request = SessionRequest(south, north, about, "other", lambda: None, NoProgress())  # type: ignore[arg-type,return-value]
    merge_session.finish_elsewhere(north, request)
    staged.check()
    merge_session.refuse_pending_elsewhere(request)


@pytest.mark.parametrize("copied", ["north", "hq"])
def test_inv_21_a_copy_does_not_finish_the_session_of_the_original(staged: Staged, copied: str) -> None:
    staged.stage()
    staged.stopped_at("publisher.before_merge")
    copy, asked = staged.network.folder / "copy", ["north"] if copied == "hq" else []
    shutil.copytree(staged.network.root(copied), copy)
    before = {name: staged.replica(name).info() for name in ("hq", "north", "copy")}
    for dry_run in (True, False):
        with pytest.raises(PublicationError, match=r"copy' is a copy of the replica .*Nothing was changed"):
            mergerepl.Project.load(copy).sync(*asked, dry_run=dry_run)
    assert {name: staged.replica(name).info() for name in before} == before
    assert staged.recover() == 1
    staged.check()


def test_another_subscribers_session_is_finished_at_the_publisher_only(staged: Staged) -> None:
    changeset = staged.stage()
    before = staged.replica("north").info()
    assert staged.recover(staged.network.root("south")) == 1
    staged.check_side(PUBLISHER, staged.replica("hq"), is_over=False)
    assert staged.replica("north").info() == before
    assert (Path(changeset.folder) / "publisher.done").exists()
    assert staged.recover(staged.network.root("south")) == 0
    assert staged.recover() == 1
    staged.check()


def test_where_the_subscription_has_ended_the_publishers_side_is_all(staged: Staged) -> None:
    changeset = staged.stage()
    hq = staged.replica("hq")
    gone = changeset.work_of(SUBSCRIBER).replid
    rows = [
        replace(row, status=SubscriptionState.DELETED) if row.replid == gone else row
        for row in hq.subscriptions()
    ]
    hq.control.replace(catalog.SUBSCRIPTIONS, rows)
    assert staged.recover(staged.network.root("south")) == 1
    assert hq.info().session_number == changeset.manifest.number
    assert [*Path(hq.staging).iterdir()] == []


def restore(staged: Staged, name: str) -> None:
    root = staged.network.root(name)
    shutil.rmtree(root)
    shutil.copytree(root.with_name(f"copy of {name}"), root)


def captured_alone(staged: Staged) -> None:
    """A subscriber that was put back captures by itself: as many runs as the session makes."""
    restore(staged, "north")
    north = staged.replica("north")
    north.control.replace(replinfo.TABLE, [replace(north.info(), last_seq=north.info().last_seq + 1)])


def another_commit(staged: Staged) -> None:
    """A subscriber that was put back has another commit as the version that the session was staged against."""
    restore(staged, "north")
    log = staged.network.root("north") / "orders" / "_delta_log"
    (*_, last) = sorted(log.glob("*.json"))
    last.write_text(last.read_text() + json.dumps({"txn": {"appId": "other", "version": 1}}))


def went_on(staged: Staged) -> None:
    """The publisher is put back to where it held the session staged; both have completed another one since."""
    staged.recover()
    staged.stage()
    staged.recover()
    restore(staged, "hq")


PUT_BACK: list[Any] = [
    # Where it died, what is done then, and what the error says.
    ("subscriber.after_merge", captured_alone, "captured changes by itself, in run 2"),
    ("subscriber.before_merge", another_commit, "'orders' has another commit as version"),
    (
        "watermarks.before_subscriber",
        lambda staged: restore(staged, "north"),
        "session 2 was carried out there",
    ),
    ("session.before_drop", captured_alone, "session 2 was carried out there"),
    ("watermarks.after_subscriber", went_on, "the subscriber has completed session 3 since"),
]


@pytest.mark.parametrize(("point", "put_back", "says"), PUT_BACK)
def test_inv_20_21_a_replica_that_was_put_back_is_refused(
    staged: Staged, point: str, put_back: Callable[[Staged], None], says: str
) -> None:
    staged.stage()
    staged.recover()
    staged.stage()
    for name in ("hq", "north"):
        shutil.copytree(staged.network.root(name), staged.network.folder / f"copy of {name}")
    staged.stopped_at(point)
    put_back(staged)
    before = staged.replica("north").info(), staged.replica("north").subscriptions()
    for _ in range(2):
        with pytest.raises(EnumerationError, match=f"put back to an older state: .*{says}"):
            staged.recover()
    assert (staged.replica("north").info(), staged.replica("north").subscriptions()) == before


def test_inv_21_a_publisher_that_was_put_back_to_before_a_session_is_refused(staged: Staged) -> None:
    shutil.copytree(staged.network.root("hq"), staged.network.folder / "copy of hq")
    staged.stage()
    staged.recover()
    restore(staged, "hq")
    with pytest.raises(EnumerationError, match="restored from an older copy"):
        staged.sync()


def test_inv_21_older_bookkeeping_beside_newer_tables_is_refused_by_every_command(staged: Staged) -> None:
    tables = {name: staged.network.system_table(name, replinfo.NAME) for name in ("hq", "north")}
    before = {name: head_version(table) for name, table in tables.items()}
    staged.stage()
    staged.recover()
    for name, table in tables.items():
        head = head_version(table)
        DeltaTable(str(table)).restore(before[name])
        staged.network.add_rows(name, 9)
        for command in (
            staged.sync,
            lambda name=name: merge_capture(staged.network.root(name)),
            lambda: mergerepl.Project.load(staged.network.folder / FILE).apply(),
        ):
            with pytest.raises(
                EnumerationError, match=rf"'MSmerge_replinfo' of '.*{name}' is older than its"
            ):
                command()
        DeltaTable(str(table)).restore(head)


def test_inv_10_a_dry_run_says_that_a_session_was_interrupted_and_all_that_it_did_is_recorded_once(
    staged: Staged,
) -> None:
    staged.stage()
    staged.stopped_at("watermarks.before_publisher")
    with pytest.raises(EnumerationError, match="Run `mergerepl sync`, which finishes it first"):
        staged.sync(dry_run=True)
    # The history has it now; the run that finishes it has nothing more to do than to drop it.
    staged.stopped_at("session.before_drop")
    assert staged.sync().recovered == 1
    staged.check()
    assert staged.sync(dry_run=True).status == "nothing_to_do"
    (session,) = merge_history(staged.network.root("hq"))
    assert (session.upload.updates, session.upload.conflicts, session.download.updates) == (1, 1, 1)


def test_a_capture_waits_for_the_publisher_of_a_session_that_is_not_finished(staged: Staged) -> None:
    staged.stage()
    hq, north = staged.network.root("hq"), staged.network.root("north")
    shutil.move(hq, staged.network.folder / "away")
    before = staged.replica("north").info()
    with pytest.raises(OutOfReachError, match="must be finished first"):
        merge_capture(north)
    # Another replica lies where it was.
    shutil.copytree(north, hq)
    with pytest.raises(OutOfReachError, match="must be finished first"):
        merge_capture(north)
    assert staged.replica("north").info() == before


def test_few_changes_are_captured_without_a_session_and_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(tmp_path)
    network.add_rows("north", 4, 5)
    DeltaTable(str(network.root("north") / "orders")).delete("id = 1")
    monkeypatch.setattr(engine, "session", lambda **_: pytest.fail("few rows need no engine"))
    (done,) = merge_capture(network.root("north")).articles
    assert (done.inserts, done.updates, done.deletes) == (2, 0, 1)
    (done,) = merge_capture(network.root("north")).articles
    assert (done.inserts, done.updates, done.deletes) == (0, 0, 0)

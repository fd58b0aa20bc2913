"""The lock of a replica: which file it is, who holds it, and what is left of it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mergerepl
from mergerepl.errors import ApplyError, EngineLostError, LeaseError, StoreError
from mergerepl.model.publication import Article, Publication, Subscription
from mergerepl.publish.apply import check_places
from mergerepl.store import lease as leases
from mergerepl.store.lease import LOCK_FILE, holder, lease, record_jvm, replica_root
from tests.faults.deaths import small_disk


@pytest.fixture
def hq(tmp_path: Path) -> Path:
    """A replica with one table."""
    root = tmp_path / "hq"
    (root / "_mergerepl").mkdir(parents=True)
    (root / "orders").mkdir()
    return root


def can_lock(path: Path) -> bool:
    """Return whether a user's job can lock a path; an agent holds what it cannot."""
    try:
        with mergerepl.lock(path, wait_s=0):
            return True
    except LeaseError:
        return False


def fail_with_a_jvm(root: Path) -> None:
    record_jvm(root, os.getpid())
    raise RuntimeError


def test_a_table_is_locked_with_its_replica(hq: Path) -> None:
    assert replica_root(hq / "orders") == hq
    with lease(hq, purpose="an agent"):
        assert not can_lock(hq / "orders")


def test_a_lock_file_left_in_a_table_does_not_stand_for_its_replica(hq: Path) -> None:
    (hq / "orders" / LOCK_FILE).touch()
    assert replica_root(hq / "orders") == hq
    with lease(hq, purpose="an agent"):
        assert not can_lock(hq / "orders")


def test_an_agent_locks_the_root_it_is_given(tmp_path: Path) -> None:
    # A first `apply` makes the replica while it holds it: the lock may not become another file on the way.
    (tmp_path / LOCK_FILE).touch()
    root = tmp_path / "hq"
    root.mkdir()
    with lease(root, purpose="mergerepl apply"):
        (root / "_mergerepl").mkdir()
        record_jvm(root, os.getpid())
        assert json.loads((root / LOCK_FILE).read_text())["jvm"] == os.getpid()


def test_a_first_apply_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    with lease(tmp_path, purpose="an agent"):
        assert not can_lock(tmp_path / "orders")


def test_where_no_replica_came_to_be_no_lock_file_stays(tmp_path: Path) -> None:
    with mergerepl.lock(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()
    assert not (tmp_path / LOCK_FILE).exists()
    with pytest.raises(RuntimeError), lease(tmp_path, purpose="a test"):
        raise RuntimeError
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_full_disk_takes_no_lock_and_keeps_no_lock_file(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match=r"cannot be locked: File too large\. Make room there"),
        small_disk(0),
        lease(tmp_path, purpose="a test"),
    ):
        pass
    assert not (tmp_path / LOCK_FILE).exists()
    assert can_lock(tmp_path)


def test_a_subscriber_may_lie_below_a_folder_that_was_once_locked(tmp_path: Path) -> None:
    (tmp_path / "hq" / "orders").mkdir(parents=True)
    with mergerepl.lock(tmp_path, tmp_path / "hq" / "orders"):
        pass
    article = Article("orders", "orders", ("id",))
    subscription = Subscription(str(tmp_path / "north"))
    check_places(Publication("sales", str(tmp_path / "hq"), (article,), (subscription,)))


def test_who_waited_for_a_removed_lock_file_locks_the_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = leases._opened

    def opened_too_early(file: Path) -> int:
        """Open the file and let its holder remove it before it is locked."""
        monkeypatch.setattr(leases, "_opened", opened)
        descriptor = opened(file)
        file.unlink()
        return descriptor

    monkeypatch.setattr(leases, "_opened", opened_too_early)
    with lease(tmp_path, purpose="an agent"):
        assert not can_lock(tmp_path)


def test_the_holder_is_named(hq: Path) -> None:
    assert holder(hq) is None
    with lease(hq, purpose="a test"):
        found = holder(hq)
        assert found is not None
        assert (found["pid"], found["purpose"]) == (os.getpid(), "a test")
    assert holder(hq) is None
    with pytest.raises(RuntimeError), lease(hq, purpose="a test"):
        fail_with_a_jvm(hq)
    assert json.loads((hq / LOCK_FILE).read_text())["jvm"] == os.getpid()
    assert holder(hq) is None


@pytest.mark.parametrize(
    ("raised", "is_noted"), [(ApplyError("a rule"), False), (EngineLostError("gone"), True)]
)
def test_after_an_error_of_ours_a_living_jvm_keeps_nobody_out(
    hq: Path, raised: Exception, is_noted: bool
) -> None:
    """An agent in a notebook, or of several subscriptions, lives on; a lost engine may still commit."""

    def fail() -> None:
        record_jvm(hq, os.getpid())
        raise raised

    with pytest.raises(type(raised)), lease(hq, purpose="a test"):
        fail()
    assert ("jvm" in (hq / LOCK_FILE).read_text()) is is_noted


def test_a_killed_holder_holds_nothing(hq: Path) -> None:
    script = (
        "import os; from pathlib import Path; from mergerepl.store.lease import lease\n"
        f"with lease(Path({str(hq)!r}), purpose='a test'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert (hq / LOCK_FILE).read_text()
    assert holder(hq) is None


def test_inv_30_a_holder_that_is_paused_keeps_others_out_until_it_is_gone(hq: Path) -> None:
    """The lock has no end in time that a paused holder could sleep through, and then commit beside another."""
    script = (
        "import time; from pathlib import Path; from mergerepl.store.lease import lease\n"
        f"with lease(Path({str(hq)!r}), purpose='a test'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(LeaseError), lease(hq, purpose="another"):
                pass
            assert (holder(hq) or {})["pid"] == process.pid
        finally:
            process.kill()
    with lease(hq, purpose="another"):
        assert (holder(hq) or {})["pid"] == os.getpid()


def test_asking_for_the_holder_locks_nothing(hq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hq / LOCK_FILE).touch()
    locked: list[object] = []
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: locked.append(arguments))
    assert holder(hq) is None
    assert locked == []


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(hq: Path) -> None:
    reading, writing = os.pipe()
    with mergerepl.lock(hq / "orders"):
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    try:
        # Another process: this one's locks do not exclude each other in all implementations.
        script = f"import mergerepl\nwith mergerepl.lock({str(hq)!r}, wait_s=0): print('held')"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "held\n", done.stderr
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)


def test_a_child_that_leaves_the_block_does_not_give_its_parents_lock_back(hq: Path) -> None:
    parent = os.getpid()
    try:
        with mergerepl.lock(hq):
            if (child := os.fork()) == 0:
                raise SystemExit
            assert os.waitpid(child, 0)[1] == 0
            script = f"import mergerepl\nwith mergerepl.lock({str(hq)!r}, wait_s=0): print('held')"
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            assert "LeaseError" in done.stderr
    finally:
        if os.getpid() != parent:
            os._exit(0)


def test_a_user_who_may_write_to_the_folder_may_lock_it(hq: Path) -> None:
    before = os.umask(0o002)
    try:
        with mergerepl.lock(hq):
            assert (hq / LOCK_FILE).stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)

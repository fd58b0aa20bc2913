"""Numbers are given once, in order, to all processes; what ended has a CSN; whose owner is dead has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from mergerepl.failpoints import FailpointError
from mergerepl.store.location import Location
from mergerepl.systables.tracking import FOLDER
from mergerepl.tracking import counters
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.sweep import sweep_root

BEGINS = """
import sys
from pathlib import Path
from mergerepl.tracking.counters import begin
held = [begin(Path(sys.argv[1])) for _ in range(int(sys.argv[2]))]
print(*(each.bsn for each in held))
sys.stdout.flush()
sys.stdin.read()
"""


def begun_elsewhere(root: Path, count: int) -> subprocess.Popen[str]:
    """Begin transactions in another process, which keeps them open until its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", BEGINS, str(root), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    counters.create_database(tmp_path)
    return tmp_path


def state(root: Path) -> tuple[int, int]:
    found = counters.read_counters(root)
    return found.last_bsn, found.last_csn


def test_a_hundred_begins_by_several_processes_are_a_hundred_numbers(root: Path) -> None:
    processes = [begun_elsewhere(root, 25) for _ in range(4)]
    numbers = [int(word) for each in processes for word in each.stdout.readline().split()]
    assert sorted(numbers) == list(range(1, 101))
    assert counters.lowest_open_bsn(root) == 1
    for each in processes:
        each.communicate("")
    assert {each.state for each in counters.open_transactions(root)} == {"dead"}


def test_a_killed_owner_is_dead_and_the_others_stay_open(root: Path) -> None:
    process = begun_elsewhere(root, 1)
    assert process.stdout.readline().split() == ["1"]
    mine = counters.begin(root)
    assert {each.bsn: each.state for each in counters.open_transactions(root)} == {1: "open", 2: "open"}
    process.kill()
    process.communicate()
    assert counters.is_dead(counters.transaction_folder(root, 1))
    assert not counters.is_dead(mine.folder)
    mine.let_go()


def test_the_lowest_number_that_may_still_commit(root: Path) -> None:
    assert counters.lowest_open_bsn(root) == 1
    one, two = counters.begin(root), counters.begin(root)
    assert counters.lowest_open_bsn(root) == 1
    counters.mark_aborted(one.folder)
    assert counters.lowest_open_bsn(root) == 2
    counters.mark_aborted(two.folder)
    assert counters.lowest_open_bsn(root) == 3
    one.let_go()
    two.let_go()


def test_a_number_whose_process_died_before_its_folder_is_not_given_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "tracking.after_begin=raise")
    monkeypatch.setattr("mergerepl.failpoints._passed", {})
    with pytest.raises(FailpointError):
        counters.begin(root)
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    assert state(root) == (1, 0)
    begun = counters.begin(root)
    assert begun.bsn == 2
    begun.let_go()


def test_several_numbers_are_taken_at_once(root: Path) -> None:
    begun = counters.begin(root, count=3)
    assert (begun.bsn, counters.take_bsns(root, 2), counters.begin(root).bsn) == (1, [4, 5], 6)
    begun.let_go()


@pytest.mark.parametrize(
    ("damage", "message"),
    [(Path.unlink, "is missing"), (lambda file: file.write_text("{"), "is damaged")],
    ids=["missing", "damaged"],
)
def test_without_its_counters_nothing_goes_on(root: Path, damage, message: str) -> None:
    damage(root / FOLDER / "counters.json")
    with pytest.raises(TrackingError, match=message):
        counters.begin(root)


def test_counters_of_another_version_are_refused(root: Path) -> None:
    file = root / FOLDER / "counters.json"
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(TrackingError, match="Use the mergerepl that wrote them"):
        counters.read_counters(root)


def test_a_folder_without_tracking_is_left_alone(tmp_path: Path) -> None:
    sweep_root(Location.of(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrackingError, match="has no tracked tables"):
        counters.begin(tmp_path)

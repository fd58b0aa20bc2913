"""MSmerge_genhistory as runs: what counts of it, and what a session reads and writes of a long one."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mergerepl
from mergerepl.delta.log import head_version
from mergerepl.monitoring.quiet import remember_quiet
from mergerepl.replica import replica as store
from mergerepl.replica.replica import Replica
from mergerepl.systables import genhistory, replinfo
from mergerepl.systables.genhistory import Generation, GenStatus, new_guid
from tests.networks import PUBID, add_history, generation, make_pair


@pytest.fixture
def hq(tmp_path: Path) -> Replica:
    return make_pair(tmp_path)[0]


def commit(replica: Replica, *rows: Generation, counts: bool = True) -> None:
    """Append a run, and let it count."""
    info = replica.info()
    replica.append_generations(rows, seq=info.last_seq + 1)
    if counts:
        replica.control.replace(replinfo.TABLE, [replace(info, last_seq=info.last_seq + 1)])


def test_the_last_run_of_a_generation_counts(hq: Replica) -> None:
    commit(hq, generation(2, genstatus=GenStatus.OPEN), generation(1))
    commit(hq, generation(2, changecount=5))
    assert hq.genhistory() == [generation(1, seq=1), generation(2, changecount=5, seq=2)]
    assert hq.genhistory(from_generation_exclusive=1) == [generation(2, changecount=5, seq=2)]
    assert hq.last_generation(PUBID) == generation(2, changecount=5, seq=2)
    assert hq.last_generation("another") is None


def test_a_run_that_a_crash_left_does_not_count_and_goes_before_its_number_is_passed(hq: Replica) -> None:
    commit(hq, generation(1))
    commit(hq, generation(2, guidsrc="left"), counts=False)
    assert hq.genhistory() == [generation(1, seq=1)]
    assert hq.held(["guid-1", "left"]) == {"guid-1"}
    assert hq.last_generation(PUBID) == generation(1, seq=1)
    hq.drop_uncounted_generations()
    commit(hq, generation(2, guidsrc="made"))
    assert [row.guidsrc for row in hq.genhistory()] == ["guid-1", "made"]
    assert hq.held(["left", "made"]) == {"made"}


def test_nothing_is_dropped_where_nothing_was_left(hq: Replica) -> None:
    commit(hq, generation(1))
    before = head_version(hq.control.path(genhistory.NAME))
    hq.drop_uncounted_generations()
    assert head_version(hq.control.path(genhistory.NAME)) == before


@pytest.mark.parametrize("named", [2, 1000])
def test_what_is_held_is_asked_by_names_or_by_their_bounds(
    hq: Replica, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(store, "_NAMED_AT_MOST", named)
    commit(hq, *(generation(number) for number in range(1, 8)))
    assert hq.held(["guid-2", "guid-4", "guid-6", "it's another"]) == {"guid-2", "guid-4", "guid-6"}
    assert hq.held([]) == set()


def test_open_generations_are_closed_where_they_stand(hq: Replica) -> None:
    commit(hq, generation(1, genstatus=GenStatus.OPEN), generation(2, genstatus=GenStatus.OPEN))
    commit(hq, generation(1, genstatus=GenStatus.OPEN, changecount=2))
    hq.close_generations(["guid-1"])
    assert [(row.genstatus, row.changecount) for row in hq.genhistory()] == [(1, 2), (0, 1)]


def test_of_articles_that_are_forgotten_the_closed_generations_stay(hq: Replica) -> None:
    commit(hq, generation(1), generation(2, genstatus=GenStatus.OPEN), generation(3, art_nick=2))
    hq.forget_generations([1])
    assert [(row.generation, row.changecount) for row in hq.genhistory()] == [(1, 0), (3, 1)]


def test_guids_rise_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    guids = []
    for moment in range(1_700_000_000, 1_700_000_100):
        monkeypatch.setattr("time.time_ns", lambda at=moment: at * 1_000_000_000)
        guids.append(new_guid())
    assert guids == sorted(guids)
    assert {guid[14] for guid in guids} == {"7"}
    assert {guid[19] for guid in guids} <= set("89ab")


def io_of(work: Callable[[], object], folder: Path) -> dict[str, int]:
    """Return the reads of this process during some work, their bytes, and the files and bytes that come into a folder."""

    def counters() -> dict[str, int]:
        lines = Path("/proc/self/io").read_text().splitlines()
        known = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
        # What is written is counted there with the wake-ups of delta-rs' threads.
        sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
        return {name: known[name] for name in ("syscr", "rchar")} | {"files": len(sizes), "bytes": sum(sizes)}

    def once() -> dict[str, int]:
        before = counters()
        work()
        return {name: value - before[name] for name, value in counters().items()}

    # What is read once and kept is read now. Wake-ups of delta-rs' threads count as reads: on a busy machine they add to
    # most runs, and hardly to all ten.
    work()
    runs = [once() for _ in range(10)]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def costs(hq: Replica, north: Replica) -> list[dict[str, int]]:
    """Return what a session does with MSmerge_genhistory, `pending` and the full check before a quick answer cost."""

    def session() -> None:
        for here, there in ((hq, north), (north, hq)):
            (about,) = here.relations()
            new = here.genhistory(from_generation_exclusive=about.sentgen - 1)
            there.held([row.guidsrc for row in new])
            here.drop_uncounted_generations()
            here.append_generations([replace(new[-1], guidsrc=new_guid())], seq=here.info().last_seq)

    def quiet() -> None:
        remember_quiet(hq, north, "sales")

    works = session, lambda: mergerepl.Replica(hq.root).pending(), quiet
    return [io_of(work, hq.root.parent) for work in works]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by the kernel's counters")
def test_10_000_generations_more_cost_no_more(tmp_path: Path) -> None:
    """`tests/agent/test_budget.py` counts the commits of a session."""
    found = []
    for count in (1_000, 11_000):
        hq, north = make_pair(tmp_path / str(count))
        add_history(hq, north, count, pubid=PUBID)
        assert [each.changes for each in mergerepl.Replica(hq.root).pending()] == [0, 0]
        found.append(costs(hq, north))
    for few, many in zip(*found, strict=True):
        assert all(many[name] <= few[name] * 1.1 for name in few), (few, many)

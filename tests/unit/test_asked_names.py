"""Names that `history` and `conflicts` are asked for, and what they say of those that they do not know. No Spark."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl import Project
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflict_filter import ConflictFilter, ConflictStatus
from mergerepl.replica.replica import Replica
from mergerepl.sessions.targets import merge_targets
from mergerepl.systables import catalog, conflict_resolutions, conflicts_info, sessions
from mergerepl.systables.sessions import SessionRow
from tests.calls import conflicts_of, merge_history
from tests.networks import make_replica


@pytest.fixture
def hq(tmp_path: Path) -> Replica:
    """A publisher with one subscriber."""
    make_replica(tmp_path, "north")
    return make_replica(tmp_path, "hq")


@pytest.mark.parametrize("asked", ["hq", "north"])
def test_only_names_of_the_place_are_known(hq: Replica, asked: str) -> None:
    project = Project.load(hq.root.parent / asked)
    with pytest.raises(ConfigurationError, match=r"no replica 'west' here\. Known: hq, north\."):
        project.history("west")
    assert project.history("north") == project.history("hq") == ()


@pytest.mark.parametrize("asked", ["hq", "north"])
def test_a_moved_subscriber_keeps_its_history(hq: Replica, asked: str) -> None:
    """`subscriber` is where it was in those days; a subscription that has ended had another id."""
    folder = Path(hq.root.parent)
    times = {name: datetime(2026, 1, 1, tzinfo=UTC) for name in ("start_time", "end_time")}
    ran = [("moved", "sub-1", "old"), ("ended", "sub-0", "north"), ("another", "sub-2", "west")]
    rows = [
        SessionRow(
            session_id=name, agent_id=subid, publication="sales", subscriber=str(folder / root), **times
        )
        for name, subid, root in ran
    ]
    Replica(folder / asked).control.replace(sessions.SESSIONS, rows)
    expected = {"moved", "ended"} if asked == "hq" else {"moved", "ended", "another"}
    assert {each.id for each in Project.load(folder / asked).history("north")} == expected


@pytest.mark.parametrize("asked", ["hq", "north"])
def test_a_subscriber_is_known_by_the_link_that_it_left_behind(hq: Replica, asked: str) -> None:
    folder = Path(hq.root.parent)
    times = {name: datetime(2026, 1, 1, tzinfo=UTC) for name in ("start_time", "end_time")}
    ran = SessionRow(
        session_id="ran", agent_id="sub-1", publication="sales", subscriber=str(folder / "north"), **times
    )
    Replica(folder / asked).control.replace(sessions.SESSIONS, [ran])
    (folder / "north").rename(folder / "elsewhere")
    (folder / "north").symlink_to(folder / "elsewhere")
    place, name = ("hq", "north") if asked == "hq" else ("elsewhere", "elsewhere")
    assert [each.id for each in Project.load(folder / place).history(name)] == ["ran"]
    assert [Path(each.subscriber) for each in merge_targets([hq.root])] == [folder / "north"]


def write_conflicts(hq: Replica) -> None:
    lineage = pa.array([[(1, 1)]] * 2, pa.map_(pa.int32(), pa.int64()))
    values = {
        "tablenick": pa.array([1, 1], pa.int32()),
        "conflict_type": pa.array([2, 3], pa.int32()),
        "reason_code": pa.array([2, 3], pa.int32()),
        "pubid": ["pub-1"] * 2,
        "MSrepl_create_time": [datetime(2026, 1, day, tzinfo=UTC) for day in (2, 1)],
        "conflict_id": ["c1", "c2"],
        "losing_lineage": lineage,
        "winning_lineage": lineage,
        "losing_priority": [0.0, 0.0],
        "winning_priority": [100.0, 100.0],
        "columns": pa.array([["note"], []], pa.list_(pa.string())),
        "made_columns": pa.array([None, ["note"]], pa.list_(pa.string())),
        "rowkey": pa.array([[("id", "1")]] * 2, pa.map_(pa.string(), pa.string())),
    }
    names = [column.name for column in conflicts_info.TABLE.columns]
    rows = pa.table({name: values.get(name, ["x", "x"]) for name in names})
    write_deltalake(str(hq.folder / conflicts_info.NAME), rows)


def test_a_conflict_names_its_columns(hq: Replica) -> None:
    write_conflicts(hq)
    found = conflicts_of(hq.root, article="orders").list()
    assert [(each.conflict_id, each.conflict_columns) for each in found] == [("c1", ("note",)), ("c2", ())]
    with pytest.raises(ConfigurationError, match="no conflict"):
        conflicts_of(hq.root).get("d")


def test_an_id_that_other_conditions_leave_out_is_named(hq: Replica) -> None:
    write_conflicts(hq)
    chosen = conflicts_of(hq.root, ConflictFilter(ids=("c1",)))
    assert [each.conflict_id for each in chosen.list()] == ["c1"]
    with pytest.raises(ConfigurationError, match=r"Conflict 'c1' at .* leave them out"):
        chosen.where(conflict_type=3).list(limit=20)


@pytest.mark.parametrize(("both_log", "expected"), [(True, ["settled", "open"]), (False, ["open", "open"])])
def test_a_conflict_that_both_ends_log_is_settled_at_both(
    hq: Replica, both_log: bool, expected: list[str]
) -> None:
    write_conflicts(hq)
    stated = [replace(row, decentralized_conflicts=int(both_log)) for row in hq.publications]
    hq.control.replace(catalog.PUBLICATIONS, stated)
    north = hq.root.parent / "north"
    resolution = conflict_resolutions.ResolutionRow(
        resolution_id="r1",
        conflict_id="c1",
        choice="loser",
        root=str(north),
        by="ann@north",
        resolved_at=datetime(2026, 1, 3, tzinfo=UTC),
    )
    Replica(north).control.append(conflict_resolutions.TABLE, [resolution])
    found = conflicts_of(hq.root).list()
    assert [each.status for each in found] == expected
    assert [each.resolution.by for each in found if each.resolution is not None] == ["ann@north"] * both_log
    for status in ConflictStatus:
        chosen = ConflictFilter(status=status)
        named = [each.conflict_id for each in conflicts_of(hq.root, chosen).list()]
        assert named == [each.conflict_id for each in found if each.status == status.value]


@pytest.mark.parametrize("limit", [-1, 2**62, 10**20])
@pytest.mark.parametrize("looks", [merge_history, lambda root, limit: conflicts_of(root).list(limit=limit)])
def test_a_limit_out_of_range_is_no_damaged_table(
    hq: Replica, looks: Callable[..., object], limit: int
) -> None:
    with pytest.raises(ConfigurationError, match=r"limit is out of range: give one from 0 to 1,000,000,000"):
        looks(hq.root, limit=limit)


def test_the_ends_of_the_range_are_limits(hq: Replica) -> None:
    write_conflicts(hq)
    assert len(conflicts_of(hq.root).list(limit=10**9)) == 2
    assert conflicts_of(hq.root).list(limit=0) == ()
    assert merge_history(hq.root, limit=10**9) == merge_history(hq.root, limit=0) == ()

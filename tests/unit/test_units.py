"""Commits of several tables that get one LSN: which are read, which are kept together, and the mark of a user's job."""

import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

import mergerepl
from mergerepl.delta.marks import CommitMark, CommitUnit
from mergerepl.delta.tables import read_commit
from mergerepl.logreader.plan import Placed
from mergerepl.logreader.units import MOST, grouped, is_unfinished, readable
from mergerepl.store.lease import lock_for_life
from mergerepl.store.location import Location


def order(text: str) -> list[Placed]:
    """Return commits as letters of their tables, each with the name of its unit: `a1 b c1`."""
    versions: dict[str, int] = {}
    found = []
    for at, word in enumerate(text.split()):
        versions[word[0]] = versions.get(word[0], 0) + 1
        found.append(Placed(at, ord(word[0]), versions[word[0]], word[1:]))
    return found


def shown(placed: list[Placed]) -> str:
    return " ".join(f"{chr(each.object_id)}{each.unit}" for each in placed)


@pytest.mark.parametrize(
    ("name", "commits", "together", "split"),
    [
        ("the place of a unit is that of its last commit", "a1 c b1 c", ["c", "a1 b1", "c"], set()),
        (
            "another commit of the later table lies between: the earlier place",
            "a1 b b1",
            ["b", "a1 b1"],
            set(),
        ),
        ("another commit of the earlier table lies between: its place", "a1 a b1", ["a1 b1", "a"], set()),
        ("commits of both lie between: an LSN each", "a1 a b b1", ["a1", "a", "b", "b1"], {"1"}),
        ("of several commits of a table the last one takes part", "a1 a1 b1", ["a1", "a1 b1"], set()),
        ("three tables", "a1 b1 d c1", ["d", "a1 b1 c1"], set()),
        ("two units that cross keep the order of each table", "a1 b2 a2 b1", ["a1", "b2 a2", "b1"], {"1"}),
        ("two units after each other", "a1 b1 a2 b2", ["a1 b1", "a2 b2"], set()),
        ("one table is no unit", "a1 b", ["a1", "b"], set()),
    ],
)
def test_commits_of_a_unit_get_one_lsn(name: str, commits: str, together: list[str], split: set[str]) -> None:
    groups, apart = grouped(order(commits))
    assert ([shown(group) for group in groups], apart) == (together, split), name
    for table in {each.object_id for each in order(commits)}:
        versions = [each.version for group in groups for each in group if each.object_id == table]
        assert versions == sorted(versions), name


def test_a_unit_of_too_many_tables_is_not_kept_together() -> None:
    commits = [Placed(at, at, 1, "u") for at in range(MOST + 1)]
    assert [len(grouped(commits[:most])[0]) for most in (MOST, MOST + 1)] == [1, MOST + 1]


@pytest.mark.parametrize(
    ("name", "commits", "needs", "read"),
    [
        ("a whole unit is read", "a1 b1 c", {"1": "ab"}, "a1 b1 c"),
        ("a unit waits, and what another table has goes on", "a1 c d", {"1": "ab"}, "c d"),
        (
            "what its writers may have seen waits: all behind the table's next commit",
            "a1 c a d",
            {"1": "ab"},
            "c",
        ),
        ("a unit that such a commit belongs to waits, too", "d2 a1 c a2", {"1": "ab", "2": "ad"}, "c"),
        ("without needs it is read", "a1 c", {}, "a1 c"),
    ],
)
def test_a_unit_is_read_whole_or_not_at_all(
    name: str, commits: str, needs: dict[str, str], read: str
) -> None:
    found = readable(order(commits), {unit: frozenset(map(ord, tables)) for unit, tables in needs.items()})
    assert shown(found) == read, name


def table(root: Path, name: str) -> Path:
    write_deltalake(str(root / name), pa.table({"id": [1]}))
    return root / name


def test_a_users_commits_name_their_unit(tmp_path: Path) -> None:
    tables = [table(tmp_path, name) for name in ("orders", "lines")]
    with mergerepl.unit(tmp_path, ["orders", "lines"], id="nightly") as unit:
        for each in tables:
            properties = CommitProperties(custom_metadata=unit.options)
            write_deltalake(str(each), pa.table({"id": [2]}), mode="append", commit_properties=properties)
    assert DeltaTable(str(tables[0])).version() == 1
    for each in tables:
        commit = read_commit(Location.of(each), 1)
        assert (commit.unit, commit.mark) == (CommitUnit("user:nightly", ("orders", "lines")), None)
    of_ours = CommitMark("s", "track:1", unit=CommitUnit("x", ("orders",)))
    assert CommitUnit.of_user_metadata(of_ours.to_user_metadata()) == of_ours.unit
    for text in (None, "", '{"mergerepl_unit":7}', '{"mergerepl_unit":', '{"other":1}'):
        assert CommitUnit.of_user_metadata(text) is None


def test_the_log_reader_knows_that_a_job_is_at_work(tmp_path: Path) -> None:
    root = Location.of(tmp_path)
    table(tmp_path, "orders")
    (tmp_path / "_logreader").mkdir()
    with suppress(KeyError), mergerepl.unit(tmp_path, ["orders"]):
        assert is_unfinished(root)
        raise KeyError
    assert not is_unfinished(root)
    assert list((tmp_path / "_logreader" / "units").iterdir()) == []
    left = root / "_logreader" / "units" / "died"
    os.close(lock_for_life(left, "a job that died"))
    assert not is_unfinished(root)
    for tables, name, why in (
        (["orders", "stock"], None, "'stock' is no Delta table"),
        ([], None, "it has no tables"),
        (["orders"], "../x", "cannot be named"),
    ):
        with (
            pytest.raises(mergerepl.ConfigurationError, match=why),
            mergerepl.unit(tmp_path, tables, id=name),
        ):
            pass

"""System tables of a replica that lives for years: checkpoints do not grow, and what no version needs is removed."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl import Project
from mergerepl.delta.own_checkpoints import COMMITS_BETWEEN
from mergerepl.delta.tables import FEW, KEPT, KEPT_ROWS, remove_unused
from mergerepl.errors import ConfigurationError, StoreError
from mergerepl.merge.session.clean_up import clean_up_files
from mergerepl.replica.control import ControlPlane
from mergerepl.store.location import Location
from mergerepl.systables import genhistory
from tests.faults.deaths import dies
from tests.networks import generation, make_pair

NAME = genhistory.TABLE.name
NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMITS = 5 * COMMITS_BETWEEN + 3


def kept(name: str) -> timedelta:
    return KEPT if name == NAME else KEPT_ROWS


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that so many commits replaced."""
    folder = tmp_path_factory.mktemp("replica")
    add(folder, range(COMMITS))
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "_mergerepl"))


def add(folder: Path, numbers: range) -> None:
    plane = ControlPlane(Location.of(folder))
    for number in numbers:
        plane.replace(genhistory.TABLE, [generation(number)])


def rows(folder: Path, version: int | None = None) -> list[int]:
    found = DeltaTable(str(folder / NAME), version=version).to_pyarrow_table()
    return [row["generation"] for row in found.to_pylist()]


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / NAME).rglob("*") if path.is_file()}


def swept(folder: Path, after: timedelta, *, dry_run: bool = False) -> int:
    return remove_unused(Location.of(folder), kept, now=NOW + after, dry_run=dry_run)


def test_checkpoints_list_no_removed_files_so_they_do_not_grow(filled: Path) -> None:
    found = sorted((filled / NAME / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(each.name[:20]) for each in found] == list(range(9, COMMITS, COMMITS_BETWEEN))
    states = [pq.read_table(each) for each in found]
    assert {each.num_rows for each in states} == {3}, "protocol, metadata, one file"
    sizes = [each.stat().st_size for each in found]
    assert max(sizes) < 1.05 * min(sizes)
    assert rows(filled) == [COMMITS - 1]


def test_what_two_cleanups_an_hour_apart_find_unused_is_removed(folder: Path) -> None:
    before = files(folder)
    assert (
        swept(folder, timedelta(0), dry_run=True)
        == swept(folder, timedelta(0))
        == swept(folder, KEPT / 2)
        == 0
    )
    assert files(folder) == before, "each file stays for an hour after a cleanup saw that it is unused"
    add(folder, range(COMMITS, COMMITS + 12))
    late = DeltaTable(str(folder / NAME))
    add(folder, range(COMMITS + 12, COMMITS + 13))
    unused = swept(folder, KEPT, dry_run=True)
    assert swept(folder, KEPT) == unused > COMMITS
    # A reader that opened the last version finds its file. So does one of each version since the first cleanup.
    assert late.to_pyarrow_table().num_rows == 1
    assert [rows(folder, version) for version in range(COMMITS, COMMITS + 13)] == [
        [each] for each in range(COMMITS, COMMITS + 13)
    ]
    assert swept(folder, KEPT + KEPT / 2) == 0
    assert swept(folder, 2 * KEPT) > 12
    assert rows(folder) == [COMMITS + 12]
    assert len(files(folder)) < COMMITS_BETWEEN + 4


def test_tables_of_rows_keep_their_files_for_a_day(folder: Path) -> None:
    (folder / NAME).rename(folder / "MSmerge_contents")
    assert swept(folder, timedelta(0)) == swept(folder, timedelta(hours=23)) == 0
    assert swept(folder, KEPT_ROWS) > COMMITS


def test_removed_rows_do_not_stay_in_the_files_of_a_small_table(tmp_path: Path) -> None:
    add(tmp_path, range(3))
    half = tmp_path / NAME / "part-00000-x-c000.snappy.parquet.17.4.tmp"
    half.write_bytes(b"PAR1")
    before = files(tmp_path)
    for after in (timedelta(0), KEPT_ROWS):
        assert remove_unused(Location.of(tmp_path), few=FEW, now=NOW + after) == 0
    for after in (timedelta(0), KEPT_ROWS / 2):
        assert remove_unused(Location.of(tmp_path), now=NOW + after) == 0
    assert files(tmp_path) == before
    assert remove_unused(Location.of(tmp_path), now=NOW + KEPT_ROWS) == 3, (
        "two versions, and one of a killed process"
    )
    assert rows(tmp_path) == [2]


def test_a_file_that_is_used_again_stays(folder: Path) -> None:
    swept(folder, timedelta(0))
    DeltaTable(str(folder / NAME)).restore(COMMITS - 5)
    assert swept(folder, KEPT) > 0
    assert rows(folder) == [COMMITS - 5]


def test_the_log_stays_where_its_checkpoint_cannot_be_read(folder: Path) -> None:
    swept(folder, timedelta(0))
    log = folder / NAME / "_delta_log"
    last = sorted(log.glob("*.checkpoint.parquet"))[-1]
    last.write_bytes(b"")
    (log / "_last_checkpoint").unlink()
    swept(folder, KEPT)
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    assert rows(folder) == [COMMITS - 1], "all commits are there"


def test_a_note_of_another_time_or_of_nobody_removes_nothing(folder: Path) -> None:
    swept(folder, timedelta(days=3650))
    assert swept(folder, timedelta(0)) == 0, "a clock that was years ahead"
    (folder / "quiet" / "unused-files.json").write_text('{"x": 1}')
    assert swept(folder, KEPT) == 0
    assert swept(folder, 2 * KEPT) > COMMITS


@pytest.mark.parametrize("point", ["files.before_removed", "files.after_removed"])
def test_a_cleanup_that_died_is_completed_by_the_next(folder: Path, point: str) -> None:
    swept(folder, timedelta(0))
    with dies(point):
        swept(folder, KEPT)
    assert rows(folder) == [COMMITS - 1]
    swept(folder, KEPT)
    swept(folder, 2 * KEPT)
    assert rows(folder) == [COMMITS - 1]
    assert len(files(folder)) < COMMITS_BETWEEN + 4


def test_files_have_no_age_of_their_own(tmp_path: Path) -> None:
    hq, _ = make_pair(tmp_path)
    with pytest.raises(ConfigurationError, match="an hour or a day after a cleanup found them"):
        Project.load(hq.root).cleanup(only=["files"], older_than=KEPT)


def test_an_edited_table_keeps_the_version_that_it_goes_back_to(tmp_path: Path) -> None:
    hq, _ = make_pair(tmp_path)
    contents = DeltaTable(str(hq.contents))
    write_deltalake(contents, contents.to_pyarrow_table(), mode="overwrite")
    with pytest.raises(StoreError, match=r"'MSmerge_contents' .* was edited"):
        clean_up_files(hq.root)

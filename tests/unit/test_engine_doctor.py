"""`mergerepl.monitoring.doctor`: a healthy machine is all ok, and each fault is found and has a remedy."""

import errno
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergerepl import roots
from mergerepl.errors import ConfigurationError, LeaseError
from mergerepl.monitoring import doctor
from mergerepl.monitoring.doctor import Check, CheckStatus
from mergerepl.spark import artifacts, jars
from mergerepl.spark import session as engine
from mergerepl.store import lease
from tests.networks import Network, commit


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "cache"))


def check(name: str, found: list[Check]) -> Check:
    """Return the one check of that name."""
    [one] = [check for check in found if check.name.startswith(name)]
    return one


def test_nothing_fails_here(tmp_path: Path) -> None:
    found = doctor.checks([str(tmp_path)])
    assert [check for check in found if check.status is CheckStatus.FAIL] == []
    assert check("storage", found).status is CheckStatus.OK
    assert check("lock", found) == Check(f"lock {tmp_path}", CheckStatus.OK, "free")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"], "it leaves nothing in the replica"


def test_everything_that_is_not_ok_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEREPL_MEMORY", "lots")
    found = doctor.checks([str(tmp_path / "new"), "s3://bucket/replica"])
    assert [check.name for check in found if check.status is not CheckStatus.OK and not check.remedy] == []
    assert check("memory", found).status is CheckStatus.FAIL


def test_folder_that_does_not_exist_yet_is_no_failure(tmp_path: Path) -> None:
    storage = check("storage", doctor.checks([str(tmp_path / "new")]))
    assert storage.status is CheckStatus.WARN
    assert "nothing was checked" in storage.detail
    assert storage.remedy.startswith("Check the path")


def test_file_system_without_exclusive_links_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    storage = check("storage", doctor.checks([str(tmp_path)]))
    assert storage.status is CheckStatus.FAIL
    assert "no exclusive hard link" in storage.detail


def test_held_lock_names_its_holder(tmp_path: Path) -> None:
    with lease.lease(tmp_path, purpose="sync"):
        lock = check("lock", doctor.checks([str(tmp_path)]))
    assert lock.status is CheckStatus.WARN
    assert str(os.getpid()) in lock.detail


def test_damaged_jar_in_the_cache_is_found() -> None:
    jar = jars.cached_jar(artifacts.DELTA[0])
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"half")
    damaged = check(f"jar {artifacts.DELTA[0].name}", doctor.checks())
    assert (damaged.status, "checksum wrong" in damaged.detail) == (CheckStatus.WARN, True)


def test_cache_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "file" / "cache"))
    assert check("cache", doctor.checks()).status is CheckStatus.FAIL


def test_an_engine_that_the_disk_keeps_from_starting_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/mergerepl-1")

    monkeypatch.setattr(engine, "session", full)
    found = doctor.checks(start_engine=True)
    failed = check("engine", found)
    assert (failed.status, len(found) > 5) == (CheckStatus.FAIL, True)
    assert "No space left on device" in failed.detail


def test_names_of_files_that_are_not_in_utf8_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    encoding = check("encoding", doctor.checks())
    assert encoding.status is CheckStatus.FAIL
    assert "PYTHONUTF8=1" in encoding.remedy
    with pytest.raises(ConfigurationError, match="names of files in iso8859-1"):
        roots.parse(str(tmp_path))


def test_files_that_other_libraries_read_or_remove_wrongly_are_reported(tmp_path: Path) -> None:
    network = Network(tmp_path)
    hq = network.root("hq")
    assert check("files", doctor.checks([str(hq)])).status is CheckStatus.OK
    table = hq / "orders"
    times = pa.table({"at": pa.array([0], pa.timestamp("us")), "region": ["N"]})
    pq.write_table(times, table / "a.parquet", use_deprecated_int96_timestamps=True)
    (table / "région=Île").mkdir()
    pq.write_table(times, table / "région=Île" / "a.parquet")
    for name in ("a.parquet", "région=Île/a.parquet"):
        file = {"path": name, "size": 1, "modificationTime": 1, "partitionValues": {}, "dataChange": True}
        commit(table, {"add": file})
    found = {each.name: each for each in doctor.checks([str(hq)]) if each.name.startswith("files")}
    assert found.pop(f"files {hq}").detail.startswith("1 of ")
    (faulty,) = found.values()
    assert (faulty.name, faulty.status) == (f"files {table}", CheckStatus.WARN)
    assert "1 of 3 hold times as INT96" in faulty.detail
    assert "1 of 3 have names that are not ASCII" in faulty.detail
    assert f"`mergerepl doctor -f {hq} --fix`" in faulty.remedy
    (table / "a.parquet").unlink()
    found = {each.name: each for each in doctor.checks([str(hq)]) if each.name.startswith("files")}
    assert "could not be checked" in found[f"files {table}"].detail


def test_a_replica_in_use_is_not_mended(tmp_path: Path) -> None:
    hq = Network(tmp_path).root("hq")
    table = hq / "orders"
    pq.write_table(pa.table({"a": [1]}), table / "é.parquet")
    file = {"path": "é.parquet", "size": 1, "modificationTime": 1, "partitionValues": {}, "dataChange": True}
    commit(table, {"add": file})
    with lease.lease(hq, purpose="a nightly job"), pytest.raises(LeaseError, match="a nightly job"):
        doctor.checks([str(hq)], mend=True)


def test_a_damaged_replica_is_no_failure_of_doctor(tmp_path: Path) -> None:
    (tmp_path / "_mergerepl").mkdir()
    files = check("files", doctor.checks([str(tmp_path)]))
    assert (files.status, bool(files.remedy)) == (CheckStatus.WARN, True)
    assert "is no complete replica" in files.detail

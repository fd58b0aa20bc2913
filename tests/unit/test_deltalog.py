"""What a commit says of files outside the table's folder, and what is reported of one that cannot be read."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.commits import Commit, read_commit
from mergerepl.delta.log import log_path
from mergerepl.errors import StoreError
from mergerepl.store.storage import FolderStorage


def commit_of(table: Path, *actions: dict[str, Any]) -> Commit:
    log_path(table, 0).parent.mkdir(parents=True, exist_ok=True)
    log_path(table, 0).write_text("\n".join(json.dumps(action) for action in actions))
    return read_commit(table, 0)


@pytest.mark.parametrize(
    "name",
    [
        "part-0.parquet",
        "day=2026-01-01 00%253A00%253A00/p.parquet",
        "a..b/p.parquet",
        "x/../p.parquet",
        "it%27s",
        "a:b",
    ],
)
def test_a_file_of_the_table_is_not_foreign(tmp_path: Path, name: str) -> None:
    assert commit_of(tmp_path / "t", {"add": {"path": name}}).foreign_added == ()


@pytest.mark.parametrize("form", ["{}/p.parquet", "file:{}/p.parquet", "file://{}/p.parquet"])
def test_a_whole_path_into_the_table_is_not_foreign(tmp_path: Path, form: str) -> None:
    table = tmp_path / "a b"
    name = form.format(str(table).replace(" ", "%20"))
    assert commit_of(table, {"add": {"path": name}}).foreign_added == ()


@pytest.mark.parametrize("name", ["{}2/p.parquet", "../t2/p.parquet", "file:{}/../p.parquet", "hdfs://h{}/p"])
def test_a_path_out_of_the_table_is_foreign(tmp_path: Path, name: str) -> None:
    named = name.format(tmp_path / "t")
    found = commit_of(tmp_path / "t", {"remove": {"path": "../old"}}, {"add": {"path": named}})
    assert (found.foreign_added, found.foreign_removed) == ((named,), ("../old",))


def test_a_deletion_vector_elsewhere_is_foreign(tmp_path: Path) -> None:
    vector = {"storageType": "p", "pathOrInlineDv": "file:///elsewhere/dv.bin"}
    found = commit_of(tmp_path / "t", {"add": {"path": "p.parquet", "deletionVector": vector}})
    assert found.foreign_added == ("file:///elsewhere/dv.bin",)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EIO])
def test_a_commit_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*args: object, **options: object) -> str:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(FolderStorage, "read", fail)
    with pytest.raises(StoreError) as refused:
        read_commit(tmp_path, 0)
    assert refused.value.message == (
        f"Version 0 of '{tmp_path}' cannot be read: 00000000000000000000.json: {os.strerror(code)}. Check its permissions "
        "and the disk, then run again."
    )


def test_a_commit_that_is_no_json_is_damaged(tmp_path: Path) -> None:
    log_path(tmp_path, 0).parent.mkdir()
    log_path(tmp_path, 0).write_bytes(b'{"add":\xff')
    with pytest.raises(StoreError, match=r"00000000000000000000\.json is damaged .* from a copy"):
        read_commit(tmp_path, 0)


@pytest.mark.parametrize(
    ("writer", "operation", "is_computed_again"),
    [
        ({"engineInfo": "delta-rs:py-1.6.6", "clientVersion": "delta-rs.py-1.6.6"}, "UPDATE", True),
        ({"engineInfo": "delta-rs:py-1.6.6", "clientVersion": "delta-rs.py-1.6.6"}, "MERGE", False),
        ({"engineInfo": "delta-rs:py-1.6.6", "clientVersion": "delta-rs.py-1.6.6"}, "DELETE", False),
        ({"clientVersion": "delta-rs.py-0.25.5"}, "UPDATE", True),
        ({"clientVersion": "delta-rs.0.19.1"}, "MERGE", True),
        ({"clientVersion": "delta-rs.0.19.1"}, "WRITE", False),
        # What its caller called so.
        ({"clientVersion": "delta-rs.py-0.25.5", "engineInfo": "airflow"}, "UPDATE", True),
        ({"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}, "UPDATE", False),
        ({}, "UPDATE", False),
    ],
)
def test_whose_change_files_may_say_something_else(
    tmp_path: Path, writer: dict[str, Any], operation: str, is_computed_again: bool
) -> None:
    commit = commit_of(tmp_path / "t", {"commitInfo": {"operation": operation, **writer}})
    assert commit.has_untrue_feed == is_computed_again


def test_what_a_caller_of_delta_rs_names_as_delta_rs_does_is_not_taken_for_it(tmp_path: Path) -> None:
    """Before 1.6 both stand in the log, and the caller's come last."""
    log_path(tmp_path, 0).parent.mkdir()
    own = '"operation":"UPDATE","engineInfo":"delta-rs:py-1.4.2","clientVersion":"delta-rs.py-1.4.2"'
    text = f'{{"commitInfo":{{{own},"operation":"nightly","engineInfo":"airflow"}}}}'
    log_path(tmp_path, 0).write_text(text)
    commit = read_commit(tmp_path, 0)
    assert (commit.operation, commit.engine, commit.has_untrue_feed) == ("UPDATE", "delta-rs:py-1.4.2", True)


def test_metadata_of_a_user_may_be_any_json(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "t", {"commitInfo": {"userMetadata": {"mergerepl": 1}}}).mark is None


def test_a_protocol_names_deletion_vectors(tmp_path: Path) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    removed = {"remove": {"path": "p", "dataChange": True, "deletionVector": vector}}
    for features, drops in (([], True), (["deletionVectors"], False)):
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
        found = commit_of(tmp_path / "t", {"protocol": protocol}, removed)
        assert (found.has_vectors, found.drops_vectors) == (True, drops)
    assert not commit_of(tmp_path / "t", removed).drops_vectors


@pytest.mark.parametrize(
    ("operation", "metrics", "rows"),
    [
        ("MERGE", {"numTargetRowsInserted": "1", "numTargetRowsUpdated": "2", "numTargetRowsDeleted": "3"}, 6),
        ("MERGE", {"numTargetRowsUpdated": "2", "numTargetRowsCopied": "90", "numOutputRows": "92"}, 2),
        ("MERGE", {"num_target_rows_updated": 2, "num_target_rows_copied": 90, "num_output_rows": 92}, 2),
        ("UPDATE", {"numUpdatedRows": "2", "numCopiedRows": "90", "numRemovedFiles": "1"}, 2),
        ("DELETE", {"num_deleted_rows": 3, "num_copied_rows": 9, "num_removed_files": 1}, 3),
        ("WRITE", {"numFiles": "1", "numOutputRows": "7"}, 7),
        ("WRITE", {"num_added_rows": 7, "num_removed_files": 0}, 7),
        # An overwrite, which does not say how many rows went.
        ("WRITE", {"numOutputRows": "7", "numRemovedFiles": "1"}, None),
        ("WRITE", {"num_added_rows": 7, "num_removed_files": 1}, None),
        # A count of what is in files, changed or not.
        ("OPTIMIZE", {"numOutputRows": "7"}, None),
        ("DELETE", {"numRemovedFiles": "1"}, None),
        ("UPDATE", {"numUpdatedRows": "many"}, None),
        ("UPDATE", {}, None),
    ],
)  # fmt: skip
def test_how_many_rows_a_writer_says_it_changed(
    tmp_path: Path, operation: str, metrics: dict[str, Any], rows: int | None
) -> None:
    commit = commit_of(tmp_path / "t", {"commitInfo": {"operation": operation, "operationMetrics": metrics}})
    assert commit.changed_rows == rows

"""What pauses a source: a log that is damaged or closed to this user; not an error of this machine that may pass."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.delta import log
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from mergerepl.logreader.sources import SourceLook, begun, look_at
from mergerepl.systables.logreader import LogReaderRow


@pytest.fixture
def row(tmp_path: Path) -> LogReaderRow:
    for number in range(2):
        write_deltalake(str(tmp_path / "orders"), pa.table({"id": [number]}), mode="append")
    known = LogReaderRow(source_object_id=1, source_path="orders")
    return begun(known, open_table(tmp_path / "orders", 0))


def looked_at(root: Path, row: LogReaderRow) -> SourceLook:
    return look_at(root, row, began_ns=2**63, most=10, on_gap="compare")


@pytest.mark.parametrize(
    ("number", "is_paused"), [(errno.EMFILE, False), (errno.ESTALE, False), (errno.EACCES, True)]
)
def test_a_log_that_cannot_be_listed(
    tmp_path: Path, row: LogReaderRow, monkeypatch: pytest.MonkeyPatch, number: int, is_paused: bool
) -> None:
    listdir = os.listdir

    def refused(path: object = ".") -> list[str]:
        if str(path).endswith("_delta_log"):
            raise OSError(number, os.strerror(number))
        return listdir(path)  # type: ignore[call-overload, no-any-return]

    assert looked_at(tmp_path, row).head == 1
    monkeypatch.setattr(log.os, "listdir", refused)
    if is_paused:
        assert looked_at(tmp_path, row).paused is not None
    else:
        with pytest.raises(StoreError, match="cannot be read"):
            looked_at(tmp_path, row)


def test_a_log_with_a_gap_pauses(tmp_path: Path, row: LogReaderRow) -> None:
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": [3]}), mode="append")
    (tmp_path / "orders" / "_delta_log" / f"{1:020d}.json").unlink()
    paused = looked_at(tmp_path, row).paused
    assert paused is not None
    assert "its log has a gap" in paused.reason
    assert "`mergerepl resume`" in paused.reason

"""Properties that are set without Spark: in one marked commit, and only where the protocol comes out as Spark's would."""

from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta import properties as module
from mergerepl.delta.commits import read_commit
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import set_properties
from mergerepl.delta.table import open_table

MARK = CommitMark("test", "setup:publish")
ID = {"name": "id", "type": "long", "nullable": False, "metadata": {"comment": "é"}}
WANTED = {CDF_PROPERTY: "true", "delta.logRetentionDuration": "interval 30 days"}


def _table(path: Path, *fields: dict[str, Any], **properties: str) -> Path:
    create_table(path, NewTable([ID, *fields], (), properties), CommitMark("test", "setup:create"))
    return path


def test_a_table_of_a_numbered_protocol_is_marked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_set_by_spark", None)
    before = open_table(_table(tmp_path / "t", owner="sales"))
    assert set_properties(None, before, WANTED, MARK) == 1  # type: ignore[arg-type]
    after = open_table(before.path)
    assert after.properties == {**WANTED, "owner": "sales"}
    assert (after.reader_version, after.writer_version, after.features) == (1, 4, frozenset())
    assert (after.metadata.table_id, after.fields) == (before.metadata.table_id, before.fields)
    assert read_commit(before.path, 1).mark == MARK


@pytest.mark.parametrize(
    ("name", "type_"),
    [("_Change_Type", "string"), ("at", "timestamp_ntz")],
    ids=["a column of the feed", "features"],
)
def test_other_tables_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, type_: str
) -> None:
    asked = []
    monkeypatch.setattr(module, "_set_by_spark", lambda *given: asked.append(given))
    field = {"name": name, "type": type_, "nullable": True, "metadata": {}}
    table = open_table(_table(tmp_path / "t", field))
    with pytest.raises(module.PublicationError, match="is not in its log"):
        set_properties(lambda: None, table, WANTED, MARK)  # type: ignore[arg-type,return-value]
    assert len(asked) == 1
    assert open_table(table.path).version == 0

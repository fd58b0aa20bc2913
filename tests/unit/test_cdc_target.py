"""The position that a consumer of `cdc load` keeps in its target's folder."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.cdc.target import Position, Target, after_cycle
from mergerepl.delta.batch_end import left_at
from mergerepl.systables.cdc import CONSUMERS_FOLDER


def test_a_position_is_read_as_it_was_saved_and_a_damaged_one_names_the_way_on(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "lake", pa.table({"id": [1]}))
    command = "mergerepl cdc load orders -f shop --into lake --consumer lake"
    target = Target(tmp_path / "lake", "db", "lake", command, source=1)
    assert target.position() is None
    left = left_at(target.path, 0)
    for position in (Position(None, left), Position(after_cycle(7), left, is_shared=True)):
        target.save(position)
        assert target.position() == position
    with pytest.raises(CdcUsageError, match="has a cursor of consumer 'lake' for another source"):
        replace(target, source=2).position()
    (file,) = (target.path / CONSUMERS_FOLDER).iterdir()
    text = file.read_text()
    for damaged in (
        "",
        "{}",
        "[]",
        text[:-9],
        text.replace('"left": "0', '"left": "x'),
        text.replace("0x", "y"),
    ):
        file.write_text(damaged)
        with pytest.raises(CdcError, match=r"is damaged.*`mergerepl cdc load .* --restart`") as error:
            target.position()
        assert error.value.number == 22859

"""Columns that cannot be part of a row key are refused when a table is enabled, with the reason and nothing changed."""

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from mergerepl.tracking import ChangeTracking, TrackingError


@pytest.mark.parametrize(
    ("type_", "declared", "rowguid", "said"),
    [
        ("float", None, False, "several bit patterns"),
        ("double", None, False, "several bit patterns"),
        ("decimal(38,0)", None, False, "a decimal of more than 18 digits"),
        ("string", "char(5)", False, "a key would have two forms"),
        ("binary", None, True, "Or name it as `key`: its bytes are the key then"),
        ("integer", None, True, "GUID column 'k' has the type int"),
    ],
)
def test_a_type_that_has_no_one_form_is_refused(
    tmp_path: Path, type_: str, declared: str | None, rowguid: bool, said: str
) -> None:
    metadata = {} if declared is None else {"__CHAR_VARCHAR_TYPE_STRING": declared}
    fields = [Field("k", PrimitiveType(type_), True, metadata), Field("v", PrimitiveType("integer"), True)]
    table = DeltaTable.create(str(tmp_path / "t"), Schema(fields))
    tracking = ChangeTracking(tmp_path)
    with pytest.raises(TrackingError) as refused:
        tracking.enable("t", **{"rowguid" if rowguid else "key": "k"})
    assert said in str(refused.value)
    assert "Nothing was changed" in str(refused.value)
    table.update_incremental()
    assert table.version() == 0
    assert [each.name for each in tmp_path.iterdir()] == ["t"]

"""The effect of a source's column changes on its capture instances (cdc.md 7). Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mergerepl.delta.types import fits, json_of
from mergerepl.logreader.column_changes import ADD, DROP, RENAME, TYPE
from mergerepl.logreader.plan import ColumnChange
from mergerepl.model.cdc import CapturedColumn


def columns_after(
    captured: Sequence[CapturedColumn], changes: Iterable[ColumnChange], *, is_mapped: bool
) -> list[CapturedColumn]:
    """Return the captured columns after some changes of the source's columns.

    A dropped column stays and has NULLs. Where columns are not mapped, one of the same name that comes back fills it
    again. So does one that was not there yet when the instance began.
    """
    found = list(captured)
    for change in changes:
        for place, column in enumerate(found):
            if change.kind == RENAME and column.source_name == change.column:
                found[place] = replace(column, source_name=change.new_name)
            elif change.kind == DROP and column.source_name == change.column:
                found[place] = replace(column, source_name=None)
            elif change.kind == TYPE and column.source_name == change.new_name:
                found[place] = replace(column, column_type=change.new_type)
            elif change.kind == ADD and column.source_name is None and _is_of(column, change, is_mapped):
                found[place] = replace(column, source_name=change.new_name, column_type=change.new_type)
            else:
                continue
            break
    return found


def _is_of(column: CapturedColumn, change: ColumnChange, is_mapped: bool) -> bool:
    """Return whether a column that is added to the source is this one of the change table."""
    if is_mapped:
        return column.column_id == change.column_id
    return column.column_name.lower() == change.new_name.lower()


def retyped(before: Sequence[CapturedColumn], after: Sequence[CapturedColumn]) -> dict[str, tuple[str, str]]:
    """Return the columns of a change table whose type changes: name -> type before and after."""
    return {
        one.column_name: (one.column_type, other.column_type)
        for one, other in zip(before, after, strict=True)
        if one.column_type != other.column_type
    }


def is_wider(old: str, new: str) -> bool:
    """Return whether every value of a type is one of another type; False for nested types."""
    return "<" not in old + new and fits(json_of(old), json_of(new))

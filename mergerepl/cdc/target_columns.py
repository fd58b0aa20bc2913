"""Whether a target holds every value of the captured columns. A column that can be widened is; nothing is cut."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from mergerepl.cdc.database import Database
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.types import Field, ddl_of, fits
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.sources import metadata_of
from mergerepl.rows.sql import quote
from mergerepl.systables.cdc import ChangeTable

_WIDENING = "delta.enableTypeWidening"


@dataclass(frozen=True)
class Misfit:
    """A column of a target that cannot hold every value. `change` is the ALTER COLUMN that helps, None if none does."""

    column: str
    present: str
    wanted: str
    change: str | None
    is_type: bool = True


def fit_columns(
    database: Database,
    instance: ChangeTable,
    target: Path,
    spark: Callable[[], SparkSession],
    command: str,
) -> None:
    """Check that a target can hold every value of the captured columns; widen columns where its type widening is on.

    Raises: CdcUsageError 22930 if it lacks a column, 22990 naming columns, their types and the statements that help.
    """
    state = open_table(target)
    misfits = list(_misfits(database, instance, state))
    if not misfits:
        return
    can_widen = state.properties.get(_WIDENING, "").lower() == "true"
    if not can_widen or any(each.change is None or not each.is_type for each in misfits):
        raise CdcUsageError.narrow_columns(
            target,
            instance.capture_instance,
            [f"'{each.column}' is {each.present}, and the captured one is {each.wanted}" for each in misfits],
            _statements(state, misfits),
            command,
        )
    for statement in _statements(state, misfits):
        spark().sql(statement)


def misfits_of(database: Database, instance: ChangeTable, target: Path) -> bool:
    """Return whether a target has a column that cannot hold every value of a captured one.

    Raises: CdcUsageError 22930 if it lacks a column.
    """
    return any(_misfits(database, instance, open_table(target)))


def _misfits(database: Database, instance: ChangeTable, state: TableState) -> Iterator[Misfit]:
    """Yield the columns that cannot hold every value: types, declared lengths, NOT NULL."""
    known = {each["name"].lower(): each for each in state.fields}
    stored = {each["name"]: each for each in open_table(database.change_table(instance)).fields}
    row = read_state(database.log).sources[instance.source_object_id]
    source = {each["name"]: each for each in metadata_of(row).fields}
    keys = {each.column_name for each in database.key(instance.object_id)}
    for captured in database.captured(instance.object_id):
        column = known.get(captured.column_name.lower())
        if column is None:
            raise CdcUsageError.unknown_column(
                str(state.path), captured.column_name, [each["name"] for each in state.fields]
            )
        wanted = stored[captured.column_name]["type"]
        own = source.get(captured.source_name or "")
        alter = f"ALTER COLUMN {quote(column['name'])}"
        if not fits(wanted, column["type"]):
            change = None
            if isinstance(wanted, str) and fits(column["type"], wanted):
                change = f"{alter} TYPE {ddl_of(wanted)}"
            yield Misfit(column["name"], ddl_of(column["type"]), ddl_of(wanted), change)
        elif (declared := _declared(column)) and (own is None or declared != _declared(own)):
            change = f"{alter} TYPE {ddl_of(wanted)}"
            wanted_text = (own and _declared(own)) or ddl_of(wanted)
            yield Misfit(column["name"], declared, wanted_text, change, is_type=False)
        elif not column["nullable"] and captured.column_name not in keys and (own is None or own["nullable"]):
            change = f"{alter} DROP NOT NULL"
            yield Misfit(column["name"], "NOT NULL", "nullable", change, is_type=False)


def _declared(column: Field) -> str:
    return str(column["metadata"].get(CHAR_VARCHAR, ""))


def _statements(state: TableState, misfits: list[Misfit]) -> list[str]:
    """Return the statements that let a target hold every value; none if there is a column that no statement helps."""
    if any(each.change is None for each in misfits):
        return []
    table = f"ALTER TABLE delta.{quote(str(state.path))}"
    properties = {}
    if any(each.is_type for each in misfits) and state.properties.get(_WIDENING, "").lower() != "true":
        properties[_WIDENING] = "true"
    if any(each.wanted == "timestamp_ntz" for each in misfits) and "timestampNtz" not in state.features:
        properties["delta.feature.timestampNtz"] = "supported"
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    first = [f"{table} SET TBLPROPERTIES ({pairs})"] if pairs else []
    return [*first, *(f"{table} {each.change}" for each in misfits)]

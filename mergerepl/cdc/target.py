"""A table that `Instance.load` keeps, and its consumer's position: a file next to the table, without retention.

A position is the first LSN whose changes are not applied yet, and the commit of the last batch. It is saved after the
commit of a batch, whose mark names the scan cycle: a run that died in between finds the commit by its mark.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from mergerepl.cdc.refusals import NOTHING, CdcError, CdcUsageError
from mergerepl.cdc.tables import CdcTables
from mergerepl.delta.batch_end import LeftAt, Since, changes_since, left_at
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CHAR_VARCHAR, WIDENING_PROPERTY
from mergerepl.delta.tables import TableState, Transaction, is_delta_table, open_table
from mergerepl.delta.types import Field, ddl_of, fits
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.sources import metadata_of
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import put_text, read_text
from mergerepl.systables.cdc import CONSUMERS_FOLDER, ChangeTable

_END_OF_CYCLE = (1 << 16) - 1
"""A slot above all that a cycle gives out."""


@dataclass(frozen=True)
class Position:
    """`from_lsn` is None until a snapshot fills the table. `is_shared`: other writers have changed its rows."""

    from_lsn: Lsn | None
    left: LeftAt
    is_shared: bool = False


def after_cycle(scan_cycle: int) -> Lsn:
    """Return the first LSN whose changes are new after a scan cycle is applied."""
    return Lsn.of(scan_cycle, _END_OF_CYCLE)


@dataclass(frozen=True)
class Target:
    """A table that changes of one source are applied to, by one consumer; `command` runs it again."""

    path: Location
    database_id: str
    consumer: str
    command: str
    source: int

    @property
    def _step(self) -> str:
        return f"consume:{self.consumer}:"

    @property
    def _file(self) -> Location:
        """The position's file moves with the table; VACUUM skips folders whose names begin with `_`."""
        return Location.of(self.path).join(CONSUMERS_FOLDER, f"{self.database_id}-{self.consumer}.json")

    def is_own(self, mark: CommitMark) -> bool:
        """True if this consumer wrote a commit."""
        return mark.session == self.database_id and mark.step.startswith(self._step)

    def transaction(self, scan_cycle: int, *, begins: bool = False) -> Transaction:
        """Return the commit of a batch. The first has a separate application id: an older table may hold the other one."""
        app_id = f"mergerepl-consume-{self.database_id}-{self.consumer}"
        return Transaction(
            f"{app_id}-{uuid.uuid4().hex[:8]}" if begins else app_id,
            scan_cycle,
            CommitMark(self.database_id, f"{self._step}{scan_cycle}"),
        )

    def position(self) -> Position | None:
        """Return the consumer's position, None before it begins.

        Raises: CdcError 22859 if the position's file is damaged; CdcUsageError 22990 if it is of another source.
        """
        text = read_text(self._file) if is_delta_table(self.path) else None
        if text is None:
            return None
        try:
            stated = json.loads(text)
            source, lsn = stated["source"], stated["from_lsn"]
            from_lsn = None if lsn is None else Lsn.parse(lsn)
            found = Position(from_lsn, LeftAt.of_text(stated["left"]), stated["is_shared"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"'{CONSUMERS_FOLDER}/{self._file.name}', the consumer's position, is damaged"
            raise CdcError.target_replaced(self.path, self.consumer, why, self.command) from error
        if source != self.source:
            raise CdcUsageError(
                22990,
                f"Target '{self.path}' has a cursor of consumer '{self.consumer}' for another source: another table, "
                "or this one before its capture was disabled. Nothing was changed. Name the instance of that table, "
                f"or another target; or replace the target's rows by a snapshot: `{self.command} --restart`.",
                table=str(self.path),
                consumer=self.consumer,
            )
        return found

    def save(self, position: Position) -> None:
        """Make a position durable: last of all."""
        lsn = None if position.from_lsn is None else str(position.from_lsn)
        stated = {
            "consumer": self.consumer,
            "source": self.source,
            "from_lsn": lsn,
            "left": position.left.text,
            "is_shared": position.is_shared,
        }
        put_text(self._file, json.dumps(stated))

    def since(self, left: LeftAt) -> Since:
        """Return the changes of the table since a batch left it. Raises: CdcError 22859 if its rows were replaced."""
        found = changes_since(self.path, left, self.is_own)
        if found.reason is not None:
            raise CdcError.target_replaced(self.path, self.consumer, found.reason, self.command)
        return found

    def caught_up(self, position: Position) -> tuple[Position, Since]:
        """Return the position after committed but unsaved batches, and other writers' changes since then.

        Raises: as `since`.
        """
        found = self.since(position.left)
        if found.own:
            cycle = int(found.own[-1].mark.step.rpartition(":")[2]) if found.own[-1].mark else 0
            position = replace(position, from_lsn=after_cycle(cycle))
        is_shared = position.is_shared or bool(found.foreign)
        return replace(position, left=found.through, is_shared=is_shared), found

    def arrived(self, scan_cycle: int, before: Position) -> None:
        """Note that a cycle was applied in a commit after `before`.

        Raises: as `since`, if another writer replaced the rows since then.
        """
        found = self.since(before.left)
        left = left_at(self.path, found.own[-1].version) if found.own else before.left
        self.save(Position(after_cycle(scan_cycle), left, before.is_shared or bool(found.foreign)))


@dataclass(frozen=True)
class Misfit:
    """A column of a target that cannot hold every value. `change` is the ALTER COLUMN that helps, or None."""

    column: str
    present: str
    wanted: str
    change: str | None
    is_type: bool = True


def fit_columns(
    database: CdcTables,
    instance: ChangeTable,
    target: Location,
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
    if not state.widens_types or any(each.change is None or not each.is_type for each in misfits):
        named = (
            f"'{each.column}' is {each.present}, and the captured one is {each.wanted}" for each in misfits
        )
        helping = " and ".join(f"`{each}`" for each in _statements(state, misfits))
        way = f"Run {helping} in Spark, then run again. Or replace" if helping else "Replace"
        raise CdcUsageError(
            22990,
            f"Target '{target}' cannot hold every value of '{instance.capture_instance}': column "
            f"{'; column '.join(named)}. {NOTHING} {way} its rows, and its columns if it has only captured ones, by a "
            f"snapshot: `{command} --restart`; or name a new table.",
            table=str(target),
            capture_instance=instance.capture_instance,
        )
    before_write()
    for statement in _statements(state, misfits):
        spark().sql(statement)


def misfits_of(database: CdcTables, instance: ChangeTable, target: Location) -> bool:
    """True if a target has a column that cannot hold every value of a captured one.

    Raises: CdcUsageError 22930 if it lacks a column.
    """
    return any(_misfits(database, instance, open_table(target)))


def _misfits(database: CdcTables, instance: ChangeTable, state: TableState) -> Iterator[Misfit]:
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
    """Return the statements that let a target hold every value; empty if statements cannot help for some column."""
    if any(each.change is None for each in misfits):
        return []
    table = f"ALTER TABLE delta.{quote(str(state.path))}"
    properties = {}
    if any(each.is_type for each in misfits) and not state.widens_types:
        properties[WIDENING_PROPERTY] = "true"
    if any(each.wanted == "timestamp_ntz" for each in misfits) and "timestampNtz" not in state.features:
        properties["delta.feature.timestampNtz"] = "supported"
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    first = [f"{table} SET TBLPROPERTIES ({pairs})"] if pairs else []
    return [*first, *(f"{table} {each.change}" for each in misfits)]

"""Change Data Capture as a consumer of the log reader: change tables, `ddl_history`, and the gate `lsn_time_mapping`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from mergerepl.cdc.change_rows import change_rows
from mergerepl.cdc.jobs import fitting_jobs
from mergerepl.cdc.refusals import CdcError
from mergerepl.cdc.tables import NAME, CdcTables, is_shared
from mergerepl.delta import appended
from mergerepl.delta.feed.column_changes import ADD, DROP, RENAME, TYPE, ColumnChange, is_mapped, statement
from mergerepl.delta.feed.commit_changes import changes_by
from mergerepl.delta.feed.net_changes import RowShape
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.properties import KEPT_A_DAY
from mergerepl.delta.tables import (
    NewTable,
    create_table,
    is_delta_table,
    read_commit,
    read_version,
    retype_columns,
)
from mergerepl.delta.types import field, fits, json_of, nested_names, nullable
from mergerepl.failpoints import failpoint
from mergerepl.logreader.consumer import COMPARE, UNUSABLE, Cycle, PauseSource, ReadRows, Wanted, pausing
from mergerepl.logreader.plan import Entry, Plan, SourcePlan
from mergerepl.logreader.positions import LogState
from mergerepl.logreader.sources import metadata_of
from mergerepl.model.cdc import CapturedColumn, DdlEntry
from mergerepl.replica.control import CHECKPOINT_INTERVAL
from mergerepl.rows.images import same_value
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, remove_table
from mergerepl.systables.cdc import (
    APP_ID,
    CAPTURED_COLUMNS,
    CDC_JOBS,
    CHANGE_TABLES,
    COLUMNS_APP_ID,
    DDL_HISTORY,
    INDEX_COLUMNS,
    LEADING,
    LSN_TIME_MAPPING,
    SCAN_CYCLE,
    TRAILING,
    ChangeTable,
    IndexColumn,
    LsnTime,
)


def consumer_at(root: Location) -> "Capture":
    """Return the consumer of a folder."""
    return Capture(CdcTables(root))


class Capture:
    """The consumer `cdc`."""

    name, app_id, cycle_column, is_in_process = NAME, APP_ID, SCAN_CYCLE, True

    def __init__(self, database: CdcTables) -> None:
        self.database = database

    # -- wanted sources ------------------------------------------------------------------------------------------------

    def at_work(self) -> AbstractContextManager[None]:
        """Record nothing: `cdc status` looks at the log itself."""
        return nullcontext()

    def served(self, state: LogState) -> None:
        """Choose the job that reads the log: the log reader's if a publication reads it, too, else the capture job."""
        if not self.database.is_enabled or not self.database.control.exists(CDC_JOBS):
            return
        fitting = partial(fitting_jobs, state.database.database_id, is_shared=is_shared(state))
        self.database.control.edit(CDC_JOBS, fitting)

    def wanted(self) -> Mapping[int, Wanted]:
        """Return the sources of all instances; an instance that stops at a gap stops its source.

        The rows of a table are read by one key: that of an article, else of the first instance. An instance with another
        one pairs them again.
        """
        if not self.database.is_enabled:
            return {}
        found: dict[int, Wanted] = {}
        for instance in self.database.instances():
            sources = {row.column_name: row.source_name for row in self.database.captured(instance.object_id)}
            key = (row.column_name for row in self.database.key(instance.object_id))
            other = found.get(instance.source_object_id)
            on_gap = instance.on_gap if other is None or other.on_gap == COMPARE else other.on_gap
            names = tuple(sources.get(name) or name for name in key)
            found[instance.source_object_id] = Wanted(
                names if other is None else other.key, on_gap, pairs=True
            )
        return found

    def gate_cycle(self) -> int:
        """Return the scan cycle that readers may see; -1 for none."""
        return self.database.gate_cycle if self.database.is_enabled else -1

    def tables(self) -> list[tuple[int, Location]]:
        """Return the change tables, each with its source."""
        instances = self.database.instances() if self.database.is_enabled else ()
        return [(each.source_object_id, self.database.change_table(each)) for each in instances]

    # -- before it is decided ------------------------------------------------------------------------------------------

    def check(self, source: SourcePlan, rows: Sequence[ReadRows], spark: Callable[[], SparkSession]) -> None:
        """Check that a changed type loses no value that is stored, or about to be. Raises: PauseSource 22976."""
        mapped = bool(rows) and is_mapped(rows[-1].reading.fields)
        for instance, captured in self._of_source(source.object_id):
            after = columns_after(captured, source.columns, is_mapped=mapped)
            self._check_key(source, instance, after, has_rows=bool(rows))
            for name, (old, new) in retyped(captured, after).items():
                if is_wider(old, new):
                    continue
                place = next(i for i, each in enumerate(captured) if each.column_name == name)
                frames = [(appended.read(spark(), self.database.change_table(instance)), name)]
                for read in rows:
                    if read.reading.compared is not None and captured[place].source_name is not None:
                        version = read.reading.from_version_inclusive - 1
                        before = read_version(spark(), self.database.root / source.path, version)
                        then = source.name_at(str(captured[place].source_name), version)
                        if then in before.columns:
                            frames.append((before, then))
                if any(_loses(frame, column, new) for frame, column in frames):
                    error = CdcError(
                        22976,
                        f"Table '{source.path}': column '{name}' changed from {old} to {new}, and values that "
                        f"'{instance.capture_instance}' keeps are none of the new type. Capture of this table is "
                        "paused; others go on. Begin the instance again, after which consumers take a snapshot "
                        f"(`mergerepl resume {instance.capture_instance} --restart`), or disable it.",
                        source=source.path,
                        capture_instance=instance.capture_instance,
                    )
                    raise PauseSource(error.number, error.message)

    def _check_key(
        self, source: SourcePlan, instance: ChangeTable, captured: Sequence[CapturedColumn], *, has_rows: bool
    ) -> None:
        """Check that a source with changes has the key of an instance. Raises: PauseSource."""
        there = {each.column_name: each.source_name for each in captured}
        lost = [
            row.column_name for row in self.database.key(instance.object_id) if not there[row.column_name]
        ]
        if has_rows and lost:
            raise PauseSource(
                UNUSABLE,
                f"Table '{source.path}': column '{lost[0]}' of the key of '{instance.capture_instance}' was dropped. "
                f"Capture of this table is paused; others go on. Run `mergerepl cdc disable {source.path} --name "
                f"{instance.capture_instance}`, then `mergerepl resume {source.path}`.",
            )

    def _of_source(self, object_id: int) -> list[tuple[ChangeTable, list[CapturedColumn]]]:
        return [
            (instance, self.database.captured(instance.object_id))
            for instance in self.database.instances()
            if instance.source_object_id == object_id
        ]

    def decide(self, plan: Plan) -> Any:
        """Return the shape of each instance at each reading, and the effect of column changes on it."""
        steps: dict[str, Any] = {"instances": {}, "ddl": []}
        if not self.database.is_enabled:
            return None
        for source in plan.sources:
            mapped = is_mapped(metadata_of(plan.after.sources[source.object_id]).fields)
            versions = plan.lsns_of(source.object_id)
            for instance, captured in self._of_source(source.object_id):
                after = columns_after(captured, source.columns, is_mapped=mapped)
                ends = [reading.through_version_inclusive for reading in source.readings]
                changed = [[c for c in source.columns if c.version <= end] for end in ends]
                at = [columns_after(captured, each, is_mapped=mapped) for each in changed]
                steps["instances"][str(instance.object_id)] = {
                    "shapes": [[column.source_name for column in each] for each in at],
                    "columns": [asdict(column) for column in after],
                }
                for change in source.columns:
                    # A gap has one LSN: changes of columns inside of it have that one.
                    now = columns_after(captured, [change], is_mapped=mapped)
                    steps["ddl"].append(
                        {
                            "source_object_id": source.object_id,
                            "object_id": instance.object_id,
                            "required_column_update": change.kind == TYPE and now != captured,
                            "ddl_command": statement(change, str(self.database.root / source.path)),
                            "version": min(v for v in versions if v >= change.version),
                        }
                    )
        for number in (entry.gone for entry in plan.entries if entry.gone):
            path = self.database.root / plan.after.sources[number].source_path
            steps["ddl"] += [
                {
                    "source_object_id": number,
                    "object_id": instance.object_id,
                    "required_column_update": False,
                    "ddl_command": f"DROP TABLE delta.{quote(str(path))}",
                    "version": -1,
                }
                for instance, _ in self._of_source(number)
            ]
        return steps

    # -- after the decision --------------------------------------------------------------------------------------------

    def write(self, cycle: Cycle) -> None:
        """Make the change tables of instances that begin, bring changed columns over, append the rows."""
        steps = cycle.plan.steps.get(NAME) or {}
        if "begin" in steps:
            self._begin(cycle.plan, steps["begin"])
        self._end_paused(cycle.plan)
        for instance in self.database.instances():
            step = steps.get("instances", {}).get(str(instance.object_id))
            source = next((s for s in cycle.plan.sources if s.object_id == instance.source_object_id), None)
            if step is None or source is None:
                continue
            columns = [CapturedColumn(**each) for each in step["columns"]]
            with pausing(source):
                self._change_columns(cycle, instance, columns)
                if source.readings:
                    self._append(cycle, instance, columns, step["shapes"])
            failpoint("cdc.after_change_table")

    def _append(
        self,
        cycle: Cycle,
        instance: ChangeTable,
        columns: Sequence[CapturedColumn],
        shapes: Sequence[Sequence[str | None]],
    ) -> None:
        table = self.database.change_table(instance)
        if cycle.is_written(table, APP_ID):
            return
        lsns = cycle.plan.lsns_of(instance.source_object_id)
        places = cycle.plan.places_of(instance.source_object_id)
        frames, count = [], 0
        for read, shape in zip(cycle.changes(instance.source_object_id), shapes, strict=True):
            captured = [(c.column_name, name, c.column_type) for c, name in zip(columns, shape, strict=True)]
            read = self._by_own_key(cycle, instance, read, {name: now for name, now, _ in captured})
            of_reading = {version: lsns[version] for version in read.reading.versions}
            frames.append(change_rows(cycle.spark(), read, of_reading, captured, places))
            count += read.count
        cycle.append(frames, table, cycle.transaction(APP_ID, "capture"), count)

    def _by_own_key(
        self, cycle: Cycle, instance: ChangeTable, read: ReadRows, names: Mapping[str, str | None]
    ) -> ReadRows:
        """Return a reading with its images paired by the key of an instance; `names`: captured column -> its source's."""
        source = next(each for each in cycle.plan.sources if each.object_id == instance.source_object_id)
        of_source = tuple(source.name_at(name, read.reading.through_version_inclusive) for name in source.key)
        own = tuple(names[row.column_name] for row in self.database.key(instance.object_id))
        key = tuple(name for name in own if name is not None)
        if not own or len(key) < len(own) or key == of_source:
            return read
        return replace(read, rows=changes_by(read.rows, RowShape(read.columns, key)))

    def _change_columns(self, cycle: Cycle, instance: ChangeTable, columns: Sequence[CapturedColumn]) -> None:
        """Rewrite the change table with the new types, then state them: rows of the new type come afterwards."""
        before = self.database.captured(instance.object_id)
        if before == columns:
            return
        failpoint("cdc.before_columns")
        if types := {name: new for name, (_, new) in retyped(before, columns).items()}:
            transaction = cycle.transaction(COLUMNS_APP_ID, "columns")
            retype_columns(cycle.spark(), self.database.change_table(instance), types, transaction)
            failpoint("cdc.after_types")
        self.database.control.replace_where(CAPTURED_COLUMNS, columns, object_id=instance.object_id)

    def _begin(self, plan: Plan, begin: Mapping[str, Any]) -> None:
        """Create change tables, replacing existing ones, and state their instances, `change_tables` last."""
        created = CommitMark(plan.after.database.database_id, f"cdc:create:{plan.scan_cycle}")
        control = self.database.control
        instances = [_instance(each) for each in begin["instances"]]
        numbers = {each.object_id for each in instances}
        for instance in instances:
            table = self.database.change_table(instance)
            if not is_delta_table(table) or read_commit(table, 0).mark != created:
                columns = [CapturedColumn(**each) for each in begin["captured"]]
                types = begin["types"][str(instance.object_id)]
                _create(
                    table, [each for each in columns if each.object_id == instance.object_id], types, created
                )
        failpoint("cdc.after_create")
        captured = [CapturedColumn(**each) for each in begin["captured"]]
        control.replace_where(CAPTURED_COLUMNS, captured, object_id=numbers)
        index = [IndexColumn(**each) for each in begin["index"]]
        control.replace_where(INDEX_COLUMNS, index, object_id=numbers)
        control.replace_where(CHANGE_TABLES, instances, object_id=numbers)
        failpoint("cdc.after_change_tables")

    def _end_paused(self, plan: Plan) -> None:
        """Record the ends of instances of paused sources, and clear those of sources in this cycle."""
        paused = {each.object_id: each.is_gone for each in plan.paused}
        read = {source.object_id for source in plan.sources}
        before = self.database.instances()
        after = []
        for row in before:
            if row.source_object_id in paused:
                end = row.end_lsn or plan.previous_lsn
                row = replace(row, end_lsn=end, has_drop_pending=paused[row.source_object_id])
            elif row.source_object_id in read and (row.end_lsn is not None or row.has_drop_pending):
                row = replace(row, end_lsn=None, has_drop_pending=False)
            after.append(row)
        if after != before:
            self.database.control.replace(CHANGE_TABLES, after)
            failpoint("cdc.after_end_lsn")

    def show(self, cycle: Cycle) -> None:
        """Append `ddl_history`, then the gate: all entries of the cycle in one commit."""
        plan, control = cycle.plan, self.database.control
        once = (APP_ID, plan.scan_cycle)
        # A source may have left the cycle after it was decided.
        self._end_paused(plan)
        entries = {(c.source_object_id, c.version): each for each in plan.entries for c in each.members}
        entries |= {(each.gone, -1): each for each in plan.entries if each.gone}
        history = []
        for step in (plan.steps.get(NAME) or {}).get("ddl", ()):
            entry = entries.get((step["source_object_id"], step["version"]))
            if entry is not None:
                facts = {name: value for name, value in step.items() if name != "version"}
                history.append(DdlEntry(**facts, ddl_lsn=plan.lsn(entry), ddl_time=entry.end_time))
        control.append(DDL_HISTORY, history, once=once)
        failpoint("cdc.before_gate")
        control.append(LSN_TIME_MAPPING, [_time(plan, each) for each in plan.entries], once=once)


def _time(plan: Plan, entry: Entry) -> LsnTime:
    lsn = plan.lsn(entry)
    return LsnTime(
        start_lsn=lsn,
        tran_begin_time=entry.begin_time,
        tran_end_time=entry.end_time,
        tran_id=entry.transaction_id,
        tran_begin_lsn=lsn,
        scan_cycle=plan.scan_cycle,
        kind=entry.kind,
        commits=entry.commits,
    )


def _loses(frame: DataFrame, column: str, type_: str) -> bool:
    """True if a value of a column does not fit another type, or if a cast cannot decide it: a struct has other fields."""
    old = frame.schema[column].dataType
    inside, wanted = (list(nested_names(each.jsonValue())) for each in (old, DataType.fromDDL(type_)))
    if inside != wanted:
        # A cast matches fields by position, and would mix them up.
        return True
    value = F.col(quote(column))
    back = value.try_cast(type_).try_cast(old)
    try:
        lost = frame.where(value.isNotNull() & ~same_value(value, back, old))
    except AnalysisException:
        return True
    return not lost.isEmpty()


def begin_step(
    instances: Iterable[ChangeTable],
    captured: Iterable[CapturedColumn],
    index: Iterable[IndexColumn],
    types: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the step of a plan in which instances begin, as JSON; `types`: object_id -> captured column -> type."""
    stated = [
        {
            **asdict(each),
            "start_lsn": bytes(each.start_lsn).hex(),
            "create_date": each.create_date.isoformat(),
        }
        for each in instances
    ]
    return {
        "begin": {
            "instances": stated,
            "captured": [asdict(each) for each in captured],
            "index": [asdict(each) for each in index],
            "types": {str(object_id): each for object_id, each in types.items()},
        }
    }


def _instance(stated: Mapping[str, Any]) -> ChangeTable:
    lsn, created = bytes.fromhex(stated["start_lsn"]), datetime.fromisoformat(stated["create_date"])
    return ChangeTable(**{**stated, "start_lsn": lsn, "create_date": created})


def _create(
    table: Location, captured: Sequence[CapturedColumn], types: Mapping[str, Any], mark: CommitMark
) -> None:
    """Create an empty change table, replacing an existing one; in a store its place is new."""
    if is_local(table):
        remove_table(table)
    leading, trailing = (
        [field(each.name, json_of(each.type)) for each in part] for part in (LEADING, TRAILING)
    )
    values = [field(each.column_name, nullable(types[each.column_name])) for each in captured]
    properties = {
        "delta.checkpointInterval": CHECKPOINT_INTERVAL,
        STATS_PROPERTY: quote(SCAN_CYCLE),
        **KEPT_A_DAY,
    }
    create_table(table, NewTable([*leading, *values, *trailing], (), properties), mark)


def columns_after(
    captured: Sequence[CapturedColumn], changes: Iterable[ColumnChange], *, is_mapped: bool
) -> list[CapturedColumn]:
    """Return the captured columns after some changes of the source's columns.

    A dropped column stays and has NULLs. Where columns are not mapped, one of the same name that comes back fills it
    again. So does one that was not there yet when the instance began.
    """
    found = list(captured)
    for _, of_commit in groupby(changes, key=attrgetter("version")):
        # One commit may exchange names.
        places = {column.source_name: place for place, column in enumerate(found) if column.source_name}
        for change in of_commit:
            place = places.get(change.column)
            if change.kind == ADD:
                place = next((i for i, each in enumerate(found) if _is_of(each, change, is_mapped)), None)
            if place is None:
                continue
            if change.kind in (RENAME, ADD):
                found[place] = replace(found[place], source_name=change.new_name)
            elif change.kind == DROP:
                found[place] = replace(found[place], source_name=None)
            if change.kind in (TYPE, ADD):
                found[place] = replace(found[place], column_type=change.new_type)
    return found


def _is_of(column: CapturedColumn, change: ColumnChange, is_mapped: bool) -> bool:
    """True if a column added to the source is this column of the change table, which has none."""
    if column.source_name is not None:
        return False
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
    """True if every value of a type fits another type; False for nested types."""
    return "<" not in old + new and fits(json_of(old), json_of(new))

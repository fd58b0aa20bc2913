"""`mergerepl apply` of a document with `type: tracking`: tables are tracked, changed, and tracked no longer."""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from mergerepl import roots
from mergerepl.delta.properties import describe, missing_properties, set_properties
from mergerepl.delta.tables import TableState, is_delta_table, open_table
from mergerepl.model.folders import FolderTracking, TableTracking
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult
from mergerepl.model.tracking import TrackedTable, TrackingKeyType
from mergerepl.publish.steps import Step, carry_out, check_steps
from mergerepl.spark.errors import plain_errors
from mergerepl.store.location import Location
from mergerepl.tracking import counters, tracked_tables
from mergerepl.tracking.database import Database, Session
from mergerepl.tracking.database import tracked_tables as read_tracked
from mergerepl.tracking.errors import TrackingError


@dataclass(frozen=True)
class ApplyRun:
    """One run of `apply` for a tracked folder."""

    folder: FolderTracking
    session: Session


@dataclass(frozen=True)
class Stored:
    """The stored state of a folder: the tracked tables by name, and the states of those that exist."""

    tracked: Mapping[str, TrackedTable] = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)


def apply_tracking(
    folder: FolderTracking, *, dry_run: bool = False, progress: Progress | None = None
) -> ApplyResult:
    """Make the tracked tables of a folder match a document; repeating it does nothing.

    Steps with `removes_rows` end the tracking of a table: its stamps and its tombstones go.

    Raises: TrackingError, ForeignCommitError (nothing was changed); LeaseError (run again).
    """
    started = time.monotonic()
    session = Session(Database(Location.of(roots.existing(folder.root))))
    run = ApplyRun(folder, session)
    with plain_errors("a tracked folder was applied"):
        steps = difference(folder, _read_stored(session.database))
        check_steps(steps, run)
        if not dry_run:
            carry_out(steps, run, progress or NoProgress(), errors=lambda _: nullcontext())
    took = round(time.monotonic() - started, 3)
    return ApplyResult(session.database.root.name, tuple(step.plan for step in steps), dry_run, took)


def _read_stored(database: Database) -> Stored:
    if not counters.is_database(database.root):
        return Stored()
    tracked = read_tracked(database)
    there = {name: database.path(name) for name in tracked}
    return Stored(tracked, {name: open_table(path) for name, path in there.items() if is_delta_table(path)})


# ---- the difference: nothing is read here


def difference(stated: FolderTracking, stored: Stored) -> list[Step[ApplyRun]]:
    """Return the steps, in order: tables that leave, new ones, changes.

    Raises: TrackingError for another key of a tracked table.
    """
    named = {each.table for each in stated.tables}
    steps = [_end(name, stored.tables.get(name)) for name in stored.tracked if name not in named]
    steps += [_begin(each) for each in stated.tables if each.table not in stored.tracked]
    for each in stated.tables:
        if (known := stored.tracked.get(each.table)) is not None:
            steps += _changes(stated, each, known, stored.tables.get(each.table))
    return steps


def _key_type(stated: TableTracking) -> TrackingKeyType:
    return TrackingKeyType.GUID if stated.is_guid else TrackingKeyType.PRIMARY_KEY


def _begin(stated: TableTracking) -> Step[ApplyRun]:
    detail = f"three columns are added; rows are identified by {', '.join(stated.key)}"
    return Step("track", stated.table, detail, partial(_enable, stated), partial(_check, stated))


def _end(name: str, table: TableState | None) -> Step[ApplyRun]:
    # Dropping a column of a table without column mapping would rewrite the table.
    is_mapped = table is not None and table.properties.get("delta.columnMapping.mode", "none") != "none"
    detail = f"end its tracking; its tombstones go, {'its' if is_mapped else 'not its'} three columns"
    return Step(
        "untrack", name, detail, partial(_disable, name, keep_columns=not is_mapped), removes_rows=True
    )


def _changes(
    stated: FolderTracking, each: TableTracking, known: TrackedTable, table: TableState | None
) -> Iterator[Step[ApplyRun]]:
    if (known.key_type, known.key) != (_key_type(each), each.key):
        raise TrackingError.other_key(each.table, known.key)
    changed = [
        f"{name} {before} → {now}"
        for name, before, now in (
            ("track", known.options.name, each.options.name),
            ("foreign", known.foreign.value, stated.foreign.value),
        )
        if before != now
    ]
    if changed:
        yield Step("change", each.table, ", ".join(changed), partial(_enable, each))
    if table is not None and (missing := missing_properties(table, stated.retention)):
        yield Step("change", each.table, describe(missing), partial(_set_properties, table, missing))


# ---- the work of the steps


def _check(stated: TableTracking, run: ApplyRun) -> None:
    tracked_tables.check(run.session, stated.table, _key_type(stated), stated.key)


def _enable(stated: TableTracking, run: ApplyRun) -> None:
    tracked_tables.enable(
        run.session,
        stated.table,
        _key_type(stated),
        stated.options,
        stated.key,
        foreign=run.folder.foreign,
        retention=run.folder.retention,
    )


def _disable(name: str, run: ApplyRun, *, keep_columns: bool) -> None:
    tracked_tables.disable(run.session, name, keep_columns=keep_columns)


def _set_properties(table: TableState, missing: Mapping[str, str], run: ApplyRun) -> None:
    with run.session.held("apply"):
        mark = run.session.database.setup_mark("enable")
        set_properties(run.session.spark, table, missing, mark)

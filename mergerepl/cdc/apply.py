"""`mergerepl apply` of a document with `type: cdc`: instances begin and end, jobs get the stated parameters."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from mergerepl.cdc.instances import FILES_KEPT, check_stated, disable, enable, enable_empty, instances_of
from mergerepl.cdc.jobs import CAPTURE, LOG_READER, STARTED, changed_job, new_job
from mergerepl.cdc.new_instance import NewInstance, check_key
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.cdc.tables import NAME, CdcTables, held, is_shared, tables_at
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.properties import FILE_RETENTION, interval_text, retention_properties, set_properties
from mergerepl.delta.tables import open_table
from mergerepl.logreader.log_reader import LogReader, refuse_copy
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import LogState, has_log_reader, read_state, save_state
from mergerepl.logreader.scan import checked_state
from mergerepl.model.cdc import CaptureInstance, Job
from mergerepl.model.folders import Capture, TableCapture
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult
from mergerepl.publish.steps import Step, carry_out, check_steps
from mergerepl.spark.errors import plain_errors
from mergerepl.store.lease import APPLY_LOCK, lease
from mergerepl.systables.cdc import CDC_JOBS


@dataclass(frozen=True)
class ApplyRun:
    """One run of `apply` for a captured folder."""

    database: CdcTables
    reader: LogReader


@dataclass(frozen=True)
class StoredInstance:
    """A capture instance as it is: its table's path below the root, its settings, and how gaps are handled."""

    path: str
    instance: CaptureInstance
    on_gap: str


@dataclass(frozen=True)
class Stored:
    """The stored state of a folder: whether it is enabled, instances, jobs, and how long removed files are kept."""

    is_enabled: bool = False
    instances: Sequence[StoredInstance] = ()
    jobs: Sequence[Job] = ()
    is_shared: bool = False
    log_retention: timedelta | None = None


def apply_capture(
    capture: Capture, *, dry_run: bool = False, progress: Progress | None = None
) -> ApplyResult:
    """Make a folder's capture instances and jobs match a document; repeating it does nothing.

    Settings that the document does not state stay as they are. Steps with `removes_rows` end an instance with its rows.

    Raises: CdcUsageError, CdcError, LogReaderError (nothing was changed); ScanInProgressError, LeaseError (run again).
    """
    started = time.monotonic()
    database = tables_at(capture.root, lock_wait_s=60.0)
    with ExitStack() as stack:
        if not dry_run:
            # Another run would begin the instances that this one plans to begin.
            stack.enter_context(lease(database.root, purpose="apply", wait_s=60.0, file=APPLY_LOCK))
        steps = _applied(capture, database, dry_run=dry_run, progress=progress)
    took = round(time.monotonic() - started, 3)
    return ApplyResult(database.root.name, tuple(step.plan for step in steps), dry_run, took)


def _applied(
    capture: Capture, database: CdcTables, *, dry_run: bool, progress: Progress | None
) -> list[Step[ApplyRun]]:
    reader = LogReader(database.root, None, database.lock_wait_s)
    state = read_state(database.log) if has_log_reader(database.log) else None
    if state is not None:
        refuse_copy(database.root, state)
        if not dry_run and redo_log(database.root).is_pending:
            # An instance that a run began which died is there, and is not begun again.
            with plain_errors("a captured folder was applied"), held(reader, "apply"):
                state = checked_state(reader)
    run = ApplyRun(database, reader)
    steps = difference(capture, _read_stored(database, state))
    check_steps(steps, run)
    if not dry_run:
        carry_out(steps, run, progress or NoProgress(), errors=lambda _: nullcontext())
    return steps


def _read_stored(database: CdcTables, state: LogState | None) -> Stored:
    if state is None or not database.is_enabled:
        return Stored()
    kept = state.database.file_retention
    return Stored(
        True,
        [
            StoredInstance(state.sources[each.source_object_id].source_path, instance, each.on_gap)
            for each, instance in zip(database.instances(), instances_of(database), strict=True)
        ],
        database.control.rows(CDC_JOBS),
        is_shared(state),
        None if kept is None else timedelta(seconds=kept),
    )


# ---- the difference: nothing is read here


def difference(stated: Capture, stored: Stored) -> list[Step[ApplyRun]]:
    """Return the steps, in order: the folder, instances that make room, new ones, other ends, jobs.

    Raises: CdcUsageError for a changed setting of an instance, or a wrong parameter of a job.
    """
    known = {each.instance.capture_instance.lower(): each for each in stored.instances}
    named = {each.instance.lower() for each in stated.tables}
    for each in stated.tables:
        if (found := known.get(each.instance.lower())) is not None:
            _check_unchanged(each, found)
    new = [each for each in stated.tables if each.instance.lower() not in known]
    leaving = [each for name, each in known.items() if name not in named]
    # A table's second instance begins before the first one ends, so that no change is left out; it has two at most.
    count = Counter(each.path for each in stored.instances)
    crowded = {each.table for each in new if count[each.table] >= 2}
    steps: list[Step[ApplyRun]] = []
    if not stored.is_enabled:
        steps.append(
            Step(
                "enable", stated.root, "capture changes of its tables", partial(_enable, stated.log_retention)
            )
        )
    elif stated.log_retention is not None and stated.log_retention != stored.log_retention:
        steps.append(_retention(stated.root, stored.log_retention, stated.log_retention))
    steps += [_end(each) for each in leaving if each.path in crowded]
    ending = {each.instance.capture_instance for each in leaving if each.path in crowded}
    steps += [_begin(each, ending) for each in new]
    steps += [_end(each) for each in leaving if each.path not in crowded]
    return [*steps, *_jobs(stated, stored)]


def _check_unchanged(stated: TableCapture, stored: StoredInstance) -> None:
    instance = stored.instance
    names = sorted(name.lower() for name in instance.captured_column_list)
    wanted = {
        "table": (stored.path, stated.table),
        "key": (instance.index_column_list, stated.key),
        "columns": (names, None if stated.columns is None else sorted(map(str.lower, stated.columns))),
        "net": (instance.supports_net_changes, stated.net),
        "on_gap": (stored.on_gap, stated.on_gap),
    }
    for setting, (before, now) in wanted.items():
        if now is not None and before != now:
            raise CdcUsageError(
                22990,
                f"Instance '{instance.capture_instance}': its `{setting}` differs from the file (it is {before}). It "
                "cannot change while the instance lasts. Put it back; or state a second instance of the table with "
                "another `name`, move its consumers, and then take this one out.",
                capture_instance=instance.capture_instance,
            )


def _retention(root: str, before: timedelta | None, now: timedelta) -> Step[ApplyRun]:
    was = "none" if before is None else interval_text(before)
    return Step(
        "change", root, f"log_retention {was} → {interval_text(now)}", partial(_change_retention, now)
    )


def _begin(stated: TableCapture, ending: Collection[str]) -> Step[ApplyRun]:
    key = f", by ({', '.join(stated.key)})" if stated.key else ""
    detail = (
        f"capture {', '.join(stated.columns) if stated.columns else 'all columns'} of {stated.table}{key}"
    )
    return Step(
        "capture",
        stated.instance,
        detail,
        partial(_enable_table, stated),
        partial(_check_rows, stated, ending),
    )


def _end(stored: StoredInstance) -> Step[ApplyRun]:
    name = stored.instance.capture_instance
    detail = f"end the capture of {stored.path}; its change rows go"
    return Step("disable", name, detail, partial(_disable_table, stored.path, name), removes_rows=True)


def _jobs(stated: Capture, stored: Stored) -> Iterator[Step[ApplyRun]]:
    known = {each.job_type: each for each in stored.jobs}
    for stated_type, given in stated.jobs.items():
        job_type = LOG_READER if stated_type == CAPTURE and stored.is_shared else stated_type
        before = known.get(job_type) or new_job("", job_type, {})
        after = changed_job(before, given)
        changed = [
            f"{name} {getattr(before, name)} → {getattr(after, name)}"
            for name in given
            if getattr(before, name) != getattr(after, name)
        ]
        if changed or (job_type not in known and stored.instances):
            detail = ", ".join(changed) or "add it"
            yield Step("change", f"{job_type} job", detail, partial(_change_job, job_type, given))


# ---- the work of the steps


def _enable(log_retention: timedelta | None, run: ApplyRun) -> None:
    enable_empty(run.database, FILES_KEPT if log_retention is None else log_retention)


def _change_retention(kept: timedelta, run: ApplyRun) -> None:
    """Keep removed files of captured tables longer from now on; a shorter time lowers no table."""
    with held(run.reader, "apply"):
        state = read_state(run.reader.control)
        for source in state.sources.values():
            if NAME in source.consumers:
                table = open_table(run.database.root / source.source_path)
                missing = retention_properties(table.properties, kept)
                if FILE_RETENTION in missing:
                    set_properties(
                        run.reader.spark(),
                        table,
                        missing,
                        CommitMark(state.database.database_id, "cdc:enable"),
                    )
        database = replace(state.database, file_retention=int(kept.total_seconds()))
        save_state(run.reader.control, replace(state, database=database))


def check_table(
    database: CdcTables, stated: TableCapture, ending: Collection[str] = ()
) -> tuple[NewInstance, bool]:
    """Check a table by its log; return its instance as it would be, and whether its capture begins.

    `ending` are the names of instances that end before.

    Raises: CdcUsageError, CdcError, LogReaderError.
    """
    reader = LogReader(database.root)
    state = read_state(reader.control) if has_log_reader(reader.control) else None
    return check_stated(
        *(database, reader, state, stated.table),
        key=stated.key,
        columns=stated.columns,
        name=stated.name,
        net=stated.net,
        ending=ending,
    )


def _check_rows(stated: TableCapture, ending: Collection[str], run: ApplyRun) -> None:
    wanted, is_new = check_table(run.database, stated, ending)
    if wanted.key and is_new:
        check_key(run.reader.spark(), wanted)


def _enable_table(stated: TableCapture, run: ApplyRun) -> None:
    enable(
        run.database,
        stated.table,
        name=stated.name,
        net=stated.net,
        key=stated.key,
        columns=stated.columns,
        on_gap=stated.on_gap,
    )


def _disable_table(path: str, name: str, run: ApplyRun) -> None:
    disable(run.database, path, name, keeps_root=True)


def _change_job(job_type: str, given: Mapping[str, object], run: ApplyRun) -> None:
    def changed(jobs: Sequence[Job]) -> list[Job]:
        known = next((job for job in jobs if job.job_type == job_type), None)
        if known is None:
            database_id = read_state(run.reader.control).database.database_id
            return [*jobs, new_job(database_id, job_type, given)]
        after = changed_job(known, given)
        # An agent that runs the job takes the parameters with a new start.
        after = replace(after, starts=after.starts + (after.requested == STARTED))
        return [after if job is known else job for job in jobs]

    with held(run.reader, "apply"):
        run.database.control.edit(CDC_JOBS, changed)

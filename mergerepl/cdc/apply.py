"""`mergerepl apply` of a document with `type: cdc`: instances begin and end, jobs get the stated parameters."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from mergerepl.cdc.instances import FILES_KEPT, disable, enable, enable_empty
from mergerepl.cdc.jobs import CAPTURE, LOG_READER, STARTED, changed_job, new_job
from mergerepl.cdc.new_instance import check_key, checked
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.cdc.tables import NAME, CdcTables, is_shared, require_place, tables_at
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.properties import FILE_RETENTION, interval_text, retention_properties, set_properties
from mergerepl.delta.tables import open_table
from mergerepl.logreader.log_reader import refuse_copy
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import LogState, has_log_reader, read_state, save_state
from mergerepl.logreader.scan import checked_state
from mergerepl.model.cdc import Job
from mergerepl.model.folders import Capture, TableCapture
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult, PlanStep
from mergerepl.publish.steps import Step, carry_out, check_steps
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import APPLY_LOCK, lease
from mergerepl.systables.cdc import CDC_JOBS


@dataclass(frozen=True)
class Stored:
    """The stored state of a folder: instances as a document would state them, jobs, how long removed files are kept.

    `instances` is None where nothing is enabled.
    """

    instances: Sequence[TableCapture] | None = None
    jobs: Sequence[Job] = ()
    is_shared: bool = False
    log_retention: timedelta | None = None


def apply_capture(
    capture: Capture,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    planned: Collection[PlanStep] | None = None,
) -> ApplyResult:
    """Make a folder's capture instances and jobs match a document; repeating it does nothing.

    Settings that the document does not state stay as they are. Steps with `removes_rows` end an instance with its rows;
    they must be `planned`, if a plan was made before.

    Raises: CdcUsageError, CdcError, LogReaderError (nothing was changed); ScanInProgressError, LeaseError (run again).
    """
    started = time.monotonic()
    database = tables_at(capture.root, lock_wait_s=60.0)
    with ExitStack() as stack:
        require_place(database.root, with_proof=not dry_run)
        if not dry_run:
            # Another run would begin the instances that this one plans to begin.
            stack.enter_context(lease(database.root, purpose="apply", wait_s=60.0, file=APPLY_LOCK))
        steps = _applied(capture, database, dry_run=dry_run, progress=progress, planned=planned)
    took = round(time.monotonic() - started, 3)
    return ApplyResult(database.root.name, tuple(step.plan for step in steps), dry_run, took)


def _applied(
    capture: Capture,
    database: CdcTables,
    *,
    dry_run: bool,
    progress: Progress | None,
    planned: Collection[PlanStep] | None,
) -> list[Step[CdcTables]]:
    state = read_state(database.log) if has_log_reader(database.log) else None
    if state is not None:
        refuse_copy(database.root, state)
        if not dry_run and redo_log(database.root).is_pending:
            # An instance that a run began which died is there, and is not begun again.
            with plain_errors("a captured folder was applied"), database.held("apply") as reader:
                state = checked_state(reader)
    steps = difference(capture, _read_stored(database, state))
    check_steps(steps, database)
    if not dry_run:
        carry_out(steps, database, progress or NoProgress(), planned=planned)
    return steps


def _read_stored(database: CdcTables, state: LogState | None) -> Stored:
    if state is None or not database.is_enabled:
        return Stored()
    kept = state.database.file_retention
    return Stored(
        [
            TableCapture(
                state.sources[each.source_object_id].source_path,
                tuple(row.column_name for row in database.key(each.object_id)),
                tuple(row.column_name for row in database.captured(each.object_id)),
                each.capture_instance,
                each.supports_net_changes,
                each.on_gap,
            )
            for each in database.instances()
        ],
        database.control.rows(CDC_JOBS),
        is_shared(state),
        None if kept is None else timedelta(seconds=kept),
    )


# ---- the difference: nothing is read here


def difference(stated: Capture, stored: Stored) -> list[Step[CdcTables]]:
    """Return the steps, in order: the folder, instances that make room, new ones, other ends, jobs.

    Raises: CdcUsageError for a changed setting of an instance, or a wrong parameter of a job.
    """
    known = {each.instance.lower(): each for each in stored.instances or ()}
    named = {each.instance.lower() for each in stated.tables}
    for each in stated.tables:
        if (found := known.get(each.instance.lower())) is not None:
            _check_unchanged(each, found)
    new = [each for each in stated.tables if each.instance.lower() not in known]
    leaving = [each for name, each in known.items() if name not in named]
    # A table's second instance begins before the first one ends, so that no change is left out; it has two at most.
    count = Counter(each.table for each in known.values())
    crowded = {each.table for each in new if count[each.table] >= 2}
    kept = stated.log_retention
    steps: list[Step[CdcTables]] = []
    if stored.instances is None:
        enabled = partial(enable_empty, log_retention=FILES_KEPT if kept is None else kept)
        steps.append(Step("enable", stated.root, "capture changes of its tables", enabled))
    elif kept is not None and kept != stored.log_retention:
        was = "none" if stored.log_retention is None else interval_text(stored.log_retention)
        detail = f"log_retention {was} → {interval_text(kept)}"
        steps.append(Step("change", stated.root, detail, partial(_change_retention, kept)))
    steps += [_end(each) for each in leaving if each.table in crowded]
    ending = {each.instance for each in leaving if each.table in crowded}
    steps += [_begin(each, ending) for each in new]
    steps += [_end(each) for each in leaving if each.table not in crowded]
    return [*steps, *_jobs(stated, stored)]


def _check_unchanged(stated: TableCapture, stored: TableCapture) -> None:
    for setting in ("table", "key", "columns", "net", "on_gap"):
        before, now = getattr(stored, setting), getattr(stated, setting)
        if setting == "columns" and now is not None:
            before, now = (sorted(map(str.lower, names)) for names in (before, now))
        if now is not None and before != now:
            raise CdcUsageError(
                22990,
                f"Instance '{stored.instance}': its `{setting}` differs from the file (it is {before}). It "
                "cannot change while the instance lasts. Put it back; or state a second instance of the table with "
                "another `name`, move its consumers, and then take this one out.",
                capture_instance=stored.instance,
            )


def _begin(stated: TableCapture, ending: Collection[str]) -> Step[CdcTables]:
    columns = ", ".join(stated.columns) if stated.columns else "all columns"
    key = f", by ({', '.join(stated.key)})" if stated.key else ""

    def check(database: CdcTables) -> None:
        wanted = checked(database, stated, ending)
        if wanted.key and wanted.is_new:
            check_key(lambda: database.spark, wanted)

    detail = f"capture {columns} of {stated.table}{key}"
    return Step("capture", stated.instance, detail, partial(enable, stated=stated), check)


def _end(stored: TableCapture) -> Step[CdcTables]:
    detail = f"end the capture of {stored.table}; its change rows go"
    ended = partial(disable, table=stored.table, name=stored.instance, keeps_root=True)
    return Step("disable", stored.instance, detail, ended, removes_rows=True)


def _jobs(stated: Capture, stored: Stored) -> Iterator[Step[CdcTables]]:
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


def _change_retention(kept: timedelta, database: CdcTables) -> None:
    """Keep removed files of captured tables longer from now on; a shorter time lowers no table."""
    with database.held("apply") as reader:
        state = read_state(reader.control)
        mark = CommitMark(state.database.database_id, "cdc:enable")
        for source in state.sources.values():
            if NAME in source.consumers:
                table = open_table(database.root / source.source_path)
                missing = retention_properties(table.properties, kept)
                if FILE_RETENTION in missing:
                    set_properties(reader.spark, table, missing, mark)
        row = replace(state.database, file_retention=int(kept.total_seconds()))
        save_state(reader.control, replace(state, database=row))


def _change_job(job_type: str, given: Mapping[str, object], database: CdcTables) -> None:
    def changed(jobs: Sequence[Job]) -> list[Job]:
        known = next((job for job in jobs if job.job_type == job_type), None)
        if known is None:
            return [*jobs, new_job(read_state(database.log).database.database_id, job_type, given)]
        after = changed_job(known, given)
        # An agent that runs the job takes the parameters with a new start.
        after = replace(after, starts=after.starts + (after.requested == STARTED))
        return [after if job is known else job for job in jobs]

    with database.held("apply"):
        database.control.edit(CDC_JOBS, changed)

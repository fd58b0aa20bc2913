"""Commands that make a project's replicas equal: `mergerepl apply`, `sync`, `capture`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.grammar import DESTROYS, WRITES, command
from mergerepl.cli.invocation import FAILED, Invocation, exit_code
from mergerepl.cli.main import run_command
from mergerepl.cli.report import merge
from mergerepl.cli.report.table import Report
from mergerepl.cli.standard_output import say_error
from mergerepl.model.products import MERGE
from mergerepl.model.progress import NoProgress
from mergerepl.model.words import counted
from mergerepl.places import FILE_NAME, types_at
from mergerepl.settings import agent_file

if TYPE_CHECKING:
    from mergerepl.model.results import SessionResult, SyncResult
    from mergerepl.model.tasks import Captured


@command(WRITES, "Project.init [ROOT]... --type --output --print-schema")
def init(
    run: Invocation, roots: tuple[str, ...], type: str | None, output: str | None, print_schema: bool
) -> None:
    """Write mergerepl.yml from folders of tables.

    The first ROOT is the publisher, the others are subscribers; of --type cdc and tracking each is a document of its own.
    The key of a table is the one that an instance there states, else rowguid, id or <table>_id. A table that cannot take
    part is a comment with the reason. An existing file is never overwritten.

    Example:
      mergerepl init ./hq ./north
      mergerepl init ./shop --type cdc --dry-run
    """
    from mergerepl.project import Project

    if print_schema:
        from mergerepl.config.schema import json_schema

        run.output.out.write(json.dumps(json_schema(), indent=2) + "\n")
        return
    if not roots:
        raise click.UsageError("Name the folders of tables: the publisher's first.")
    is_shown = run.dry_run or output == "-"
    done = Project.init(*roots, type=type or "merge", output=output or FILE_NAME, dry_run=is_shown)
    stated = sum(each.reason is None for each in done.tables)
    parts = [*done.text.splitlines()] if is_shown else []
    if output != "-":
        would = "would state" if run.dry_run else "states"
        parts.append(f"{done.file} {would} {counted(stated, 'table')}. Next: `mergerepl apply --dry-run`.")
    run.report(done, *parts)


@command(DESTROYS, "Project.apply")
def apply(run: Invocation) -> None:
    """Make the replicas match mergerepl.yml.

    It publishes tables, and creates and fills subscribers. Run it again after every change of the file; what matches
    already is left alone. It asks only if a step removes rows, such as those of a change table.

    Example:
      mergerepl apply --dry-run
      mergerepl apply -f sales.yml
    """
    from mergerepl.model.results import ApplyResult

    project = run.project
    # A new document removes nothing, and neither does a merge publication.
    has_rows_to_remove = any(
        each.type not in (MERGE, "") and each.type in types_at(each.root) for each in project.replicas()
    )
    # Without a question no step may remove rows.
    planned = None if run.dry_run or run.yes else ApplyResult("", ())
    if has_rows_to_remove and planned is not None:
        planned = project.apply(dry_run=True)
        if steps := [each for each in planned.steps if each.removes_rows]:
            listed = ", ".join(f"{each.action} {each.object}" for each in steps)
            run.confirm(f"Remove rows at {', '.join(project.own_roots())} ({listed})?")
    with run.progress as progress:
        result = project.apply(dry_run=run.dry_run, planned=planned, progress=progress)
    run.report(*merge.applied(result))


@command(
    WRITES,
    "Project.sync [REPLICA]... --direction --validate --validate-interval --retries --interval --engine "
    "--no-agent --procedures --streams --skip-errors --metrics-file",
    several_places=True,
)
def sync(
    run: Invocation,
    replicas: tuple[str, ...],
    interval: timedelta | None,
    agent: bool | None,
    procedures: tuple[str, ...],
    skip_errors: tuple[int, ...] | None,
    metrics_file: str | None,
    **options: Any,
) -> int:
    """Exchange changes with the subscribers.

    All subscribers without a REPLICA: each has a session, upload and then download. In a subscriber's folder (-f) its own.

    With --interval one process stays warm and reports one line a round. It goes on after a transient error (such as
    a replica that is not mounted any more), and as long as one session of several goes well; it ends when all fail
    for another reason. On SIGTERM or Ctrl-C it stops after the current round; a second signal ends it at once,
    which is safe too.

    An article that cannot go on, such as one with a row that a table does not take, is named, and the others go on; the
    exit code is 1. A session that was interrupted is finished first. If that fails for good, the message says how
    `mergerepl abort` ends it.

    A process with --interval, and `mergerepl agent run`, listen in the publisher's folder. They run the syncs of the same
    user, installation and environment, one at a time, which saves these the start of Java. Ctrl-C ends the command then,
    and the agent finishes the sync.

    With --metrics-file it then writes metrics for Prometheus, also of sessions that failed; with --interval after each
    round. Totals go on from the file that is there. A sync that ends with an error leaves the file as it is.

    Example:
      mergerepl sync
      mergerepl sync north --dry-run
      mergerepl sync -f sales.yml --interval 60s
    """
    from mergerepl.dashboard.metrics import read_metrics

    options |= {"dry_run": run.dry_run, "procedures": procedures, "skip_errors": skip_errors or ()}
    is_handed_over = run.given_progress is not None
    progress = run.progress
    if metrics_file is not None and run.dry_run:
        raise click.UsageError("A dry run writes no --metrics-file.")
    # The process that handed the command over writes the file.
    metrics = None if metrics_file is None or is_handed_over else read_metrics(metrics_file)

    def write_metrics() -> None:
        if metrics is not None:
            metrics.measure(run.project, metrics_file)

    def once() -> SyncResult:
        with progress:
            project = run.project
            project.is_long_running = interval is not None or is_handed_over
            return project.sync(*replicas, progress=progress, **options)

    def measured_round() -> SyncResult:
        result = once()
        write_metrics()
        return result

    if interval is not None:
        from mergerepl.agents.client import agent_roots
        from mergerepl.agents.loop import repeat
        from mergerepl.agents.server import CommandServer, warm_up

        progress = NoProgress()  # One line a round, and no others.
        # Procedures that were loaded for this command would be there for others, too.
        with CommandServer(
            [] if agent is False or procedures else agent_roots(run.paths), run_command, warm_up
        ) as server:
            shown, seconds = merge.Rounds(run.output), int(interval.total_seconds())
            is_well = repeat(measured_round, shown, interval_s=seconds, pause=server.serve)
            return 0 if is_well else FAILED
    # Functions of users, which may be other ones in the agent, stay here.
    is_for_agent = not (agent is False or procedures or is_handed_over or agent_file()[0].exists())
    if is_for_agent:
        from mergerepl.agents.client import agent_roots, hand_over

        code = hand_over(agent_roots(run.paths), run.arguments, progress)
        if code is not None:
            write_metrics()
            return code
    result = once()
    run.report(*merge.synced(result))
    # Several sessions may meet one fault: it is said once.
    for message in dict.fromkeys(session.reason for session in result.sessions if session.is_failed):
        if not run.as_json:
            say_error(message)
    write_metrics()
    return exit_code(result)


@command(WRITES, "Project.capture() [REPLICA]...", would="New changes would be recorded.")
def capture(run: Invocation, found: Sequence[Captured]) -> Report:
    """Record new changes without sending them.

    A sync does it first. Worth running by itself before the change feed's files are vacuumed. One reading serves all types:
    merge metadata, commands and change tables. Without a REPLICA: the publisher. Exit code 1: a table is paused, or one of
    several products cannot read its changes; the others are captured.

    Example:
      mergerepl capture
      mergerepl capture north
    """
    from mergerepl.cli.report import tasks

    return {"captured": found}, *tasks.captured(found)


@command(
    DESTROYS,
    "Project.abort() SESSION",
    hidden=True,
    asks="End session {session} at {run.root}? Its rows that have not arrived are set aside.",
    would="Session {session} would end.",
)
def abort(run: Invocation, ended: SessionResult) -> Report:
    """End a staged session that cannot be finished; its rows are kept.

    SESSION is its id, as messages and `mergerepl status` name it; its beginning will do. A session that can be finished is
    finished. Its writes count as users' changes from then on, its rows are kept below _mergerepl/unsent at the publisher,
    and the next session sends again the changes that had not arrived.

    Example:
      mergerepl abort 4f0c
    """
    from mergerepl.model.results import SyncResult

    return merge.synced(SyncResult(ended.publication, (ended,)))

"""Commands that look at replicas: `mergerepl status`, `pending`, `history`, `row`, and the partitions of a publisher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, command, group
from mergerepl.cli.invocation import Invocation
from mergerepl.cli.report import tasks
from mergerepl.cli.report.columns import listing, listing_or
from mergerepl.cli.report.table import Report
from mergerepl.errors import MergeReplError
from mergerepl.model.words import short
from mergerepl.places import types_at

if TYPE_CHECKING:
    from mergerepl.dashboard.page import Page
    from mergerepl.model.listing import Listing
    from mergerepl.model.replica_status import PartitionInfo, RowInfo
    from mergerepl.model.schema_changes import AlterResult, SchemaChange, SkippedChange
    from mergerepl.model.tasks import Run


@command(READS, "Project.status [REPLICA]... --type --check --metrics-file")
def status(
    run: Invocation, replicas: tuple[str, ...], type: str | None, check: bool, metrics_file: str | None
) -> int:
    """Show replicas, subscriptions and problems.

    Without a REPLICA: the publisher. A value that cannot be read, as of a subscriber that is out of reach, is unknown.

    With --check only problems are printed, one line each with the command to run, and the exit code is that of a monitor: 0
    if all is well, 1 for a warning (changes that wait, files that VACUUM may soon remove, a subscriber that is not there,
    not initialised or not known to be equal, a session that failed), 2 if it is critical (a paused table, a table that
    cannot be captured, an agent that stopped at a command, a subscriber that is inactive or expired, no time left), 3 if it
    is not known. `alerts:` in the file states the thresholds.

    With --metrics-file it also writes metrics for Prometheus. Totals go on from the file that is there.

    Example:
      mergerepl status
      mergerepl status north
      mergerepl status --check
    """
    from mergerepl.dashboard.metrics import read_metrics
    from mergerepl.model.tasks import UNKNOWN, Status, StatusWarning, check_code

    roots = [str(run.project.at(name).root) for name in replicas] or run.project.own_roots()
    found: Sequence[Status]
    metrics = None if metrics_file is None else read_metrics(metrics_file)
    try:
        # The metrics have the state of all: nothing is read twice.
        measured = None if metrics is None else metrics.measure(run.project, metrics_file)
        if measured is None or replicas or type:
            found = run.project.status(*replicas, type=type)
        else:
            found = measured.statuses
    except MergeReplError as error:
        types = [each for root in roots for each in types_at(root)]
        if not check or not types or (type and type not in types):
            raise
        warning = StatusWarning(roots[0], UNKNOWN, error.message)
        found = [Status(type or types[0], roots[0], "", (warning,))]
    run.report({"status": found}, *tasks.status(found, check=check))
    return check_code(found) if check else 0


@command(READS, "Project.pending [REPLICA]... --list --limit")
def pending(run: Invocation, replicas: tuple[str, ...], is_list: bool, limit: int) -> None:
    """Count the changes that wait for the next sync.

    Without a REPLICA: those at the publisher, and those that wait for it. --list shows the captured rows of merge
    publications, the oldest generations first.

    Example:
      mergerepl pending
      mergerepl pending north --list --limit 100
    """
    if is_list:
        rows = run.project.pending_rows(*replicas, limit=limit)
        run.report({"rows": rows}, *tasks.pending_rows(rows))
        return
    found = run.project.pending(*replicas)
    run.report({"pending": found}, *tasks.pending(found))


@command(READS, "Project.history() [REPLICA]... --failed --type --limit")
def history(run: Invocation, found: Listing[Run]) -> Report:
    """List sessions, batches and scans; --failed shows errors.

    Newest first, of the subscribers that are named, or of all. A sync that had nothing to do is not listed. The
    message names the reason of a failure, or of articles left out. A failure that repeats is listed once.

    Example:
      mergerepl history --limit 5
      mergerepl history north --failed
    """
    value = {"runs": found, "total": found.total}
    return value, *tasks.history(found, failed=run.given["failed"], total=found.total)


@command(
    READS, "Project.dashboard() --output! --with-values", several_places=True, also=lambda _: {"output": None}
)
def dashboard(run: Invocation, page: Page) -> Report:
    """Write one HTML page about the project.

    It shows problems with the command that mends each, replicas and subscriptions as a graph, sessions of seven days,
    conflicts, what holds metadata back, and tables. It needs no network and no server, and has no values of rows; with
    --with-values the conflict reports, which have some, are written beside it. `mergerepl agent run --dashboard` writes it
    again and again.

    Example:
      mergerepl dashboard -o status.html
    """
    output = run.given["output"]
    if output == "-":
        run.output.out.write(page.html)
        return ()
    page.write(output)
    files = [output, *page.reports]
    return {"files": files}, *(f"{each} is written." for each in files)


@command(READS, "Replica.row() TABLE --key:row! --at --publication")
def row(run: Invocation, found: RowInfo) -> Report:
    """Show one row at every replica, with its versions.

    Its lineage, colv and values, as sp_showrowreplicainfo does.

    Example:
      mergerepl row orders --key order_id=7
      mergerepl row lines --key order_id=7 --key line=1
    """
    from mergerepl.cli.report.merge import row as report

    return report(found)


partitions = group(
    "partitions",
    """List, add, drop partitions of filtered publications.

    A partition is one combination of the values of HOST_NAME() and SUSER_SNAME(). The first subscription with new values
    adds one by itself; one that is added before has its memberships computed from then on.

    Example:
      mergerepl partitions list
    """,
    is_at=True,
)


@partitions.add(READS, "Replica.partitions.list() --publication", name="list")
def list_partitions(run: Invocation, found: Sequence[PartitionInfo]) -> Report:
    """List the partitions, with the subscribers of each.

    Example:
      mergerepl partitions list
    """
    return {"partitions": found}, *listing_or("There is no partition.", found)


@partitions.add(
    WRITES,
    "Replica.partitions.add() --host-name --suser-sname --publication",
    name="add",
    would="A partition would be added.",
)
def add_partition(run: Invocation, added: PartitionInfo) -> Report:
    """Add a partition before its first subscription.

    One that is there stays as it is.

    Example:
      mergerepl partitions add --host-name North
    """
    return added, listing([added])


@partitions.add(
    DESTROYS,
    "Replica.partitions.drop() PARTITION",
    name="drop",
    asks="Drop partition {partition} of {run.root}?",
    would="Partition {partition} would be dropped.",
)
def drop_partition(run: Invocation, dropped: PartitionInfo) -> Report:
    """Drop a partition that no subscription has.

    Its id is not used again.

    Example:
      mergerepl partitions drop 3
    """
    return dropped, listing([dropped])


schema = group(
    "schema",
    """List and skip schema changes; change a published column.

    A column that is added at the publisher, also by a job that replaces the table, reaches every subscriber with its next
    sync, before rows.

    Example:
      mergerepl schema list
      mergerepl schema alter orders --ddl "ADD COLUMN note STRING"
    """,
    is_at=True,
)


@schema.add(READS, "Replica.schema.list() --publication", name="list")
def list_schema(run: Invocation, found: Sequence[SchemaChange]) -> Report:
    """List the schema changes, with the subscribers that have them.

    Newest first. A subscriber that is pending gets the change with its next sync.

    Example:
      mergerepl schema list
      mergerepl schema list --at north
    """
    none = "No schema change is recorded; `mergerepl capture` at the publisher records new ones."
    return {"schema": found}, *listing_or(none, found)


def _dropped(run: Invocation, planned: AlterResult) -> str:
    return f"Run {planned.statement} on {planned.table}?" if planned.is_drop else ""


@schema.add(
    DESTROYS,
    "Replica.schema.alter() TABLE --ddl! --publication --no-ask",
    name="alter",
    is_at=False,
    asks=_dropped,
)
def alter_table(run: Invocation, done: AlterResult) -> Report:
    """Change a column of a published table.

    One of ADD COLUMN name type [COMMENT 'text'], DROP COLUMN name, RENAME COLUMN name TO name, ALTER COLUMN name TYPE type.
    Every subscriber in reach is asked first if its table can follow; with --no-ask the table is altered all the same. The
    next sync carries the change. The same statement in any engine does the same, without the question. It asks before a
    column is dropped.

    Example:
      mergerepl schema alter orders --ddl "ADD COLUMN note STRING"
      mergerepl schema alter orders --ddl "RENAME COLUMN note TO remark"
    """
    said = "Nothing was changed (--dry-run)." if done.dry_run else "The next sync carries it."
    return done, listing(done.answers), f"{done.table}: {done.statement}. {said}"


@schema.add(
    WRITES,
    "Replica.schema.skip() CHANGE --undo --publication",
    name="skip",
    would="Schema change {change} would be skipped or taken again.",
)
def skip_schema(run: Invocation, done: SkippedChange) -> Report:
    """Let a subscriber leave out a schema change.

    CHANGE is the number that `schema list` shows; the subscriber, named by --at, must not have the change yet. A column
    that is dropped stays there as the subscriber's own, and comments and defaults stay as they are. Other changes cannot be
    skipped. --undo takes the change again, or prints the statement to run there if sessions have passed it.

    Example:
      mergerepl schema skip 3 --at north
      mergerepl schema skip 3 --at north --undo
    """
    what = "takes again" if run.given["undo"] else "skips"
    said = (
        f"{short(done.subscriber)} {what} change {done.version} of {done.table}: {', '.join(done.changes)}."
    )
    return done, said, *(f"Run it there: {each}" for each in done.statements)

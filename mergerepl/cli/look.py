"""Commands that look at replicas: `mergerepl status`, `pending`, `history`, `row`, and the partitions of a publisher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, Invocation, command, group
from mergerepl.cli.options import option, row_key
from mergerepl.cli.report import merge
from mergerepl.cli.report import products as report
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, listing, listing_or
from mergerepl.errors import MergeReplError
from mergerepl.model.cdc import StatusWarning
from mergerepl.places import types_at
from mergerepl.store.rehearsal import REHEARSED, rehearsed

if TYPE_CHECKING:
    from mergerepl.model.results import PartitionInfo
    from mergerepl.replicas import Partitions

UNKNOWN = 3
LEVELS = {"warning": 1, "critical": 2}
"""Exit codes of `status --check`; 0 if all is well."""
Report = tuple[Any, list[Part], list[StatusWarning]]


@command(effect=READS, call="Project.status", takes="[REPLICA]...", options=("--type", "--check"))
def status(run: Invocation, replicas: tuple[str, ...], type: str | None, check: bool) -> int:
    """Show replicas, subscriptions and problems.

    Without a REPLICA: the publisher. With --check the exit code is that of a monitor: 0 if all is well, 1 for a warning
    (changes that wait for more than 30 seconds, files that VACUUM may soon remove, a subscriber that is not there, not
    initialised or not known to be equal, a table with a problem), 2 if it is critical (a paused table, an agent that
    stopped at a command, a subscriber that is inactive, no time left), 3 if it is not known.

    Example:
      mergerepl status
      mergerepl status north
      mergerepl status --check
    """
    roots = run.place.roots(replicas)
    try:
        found = [_status(root, run.place.type_at(root, type), is_check=check) for root in roots]
    except MergeReplError as error:
        if not check or not any(map(types_at, roots)):
            raise
        run.output.reported({"check": "unknown", "error": error.details()}, [f"Unknown: {error.message}"])
        return UNKNOWN
    values = [value for value, _, _ in found]
    value = values[0] if len(values) == 1 else {"replicas": values}
    if not check:
        run.output.reported(value, [part for _, parts, _ in found for part in parts])
        return 0
    # A paused table is met by both products that read it.
    warnings = list(dict.fromkeys(each for _, _, warnings in found for each in warnings))
    run.output.reported(
        {"status": value, "warnings": warnings}, report.warning_lines(warnings) or ["All is well."]
    )
    return max((LEVELS[each.level] for each in warnings), default=0)


def _status(root: str, type_: str, *, is_check: bool) -> Report:
    """Return the state of a folder, how it is shown, and what is wrong with it."""
    now = datetime.now(UTC)
    if type_ == "cdc":
        from mergerepl.cdc import Database

        database = Database(root).status()
        parts = [*report.captured_tables(database), *report.warning_lines(database.warnings)]
        return database, parts, [*database.warnings]
    if type_ == "tracking":
        import mergerepl

        tracked = mergerepl.ChangeTracking(root).status()
        warnings = [StatusWarning(name, "warning", text) for name, text in tracked.problems.items()]
        return tracked, report.tracked_tables(tracked), warnings
    if type_ == "transactional":
        from mergerepl.cdc import Database
        from mergerepl.transactional import Distributor

        distributor = Distributor(root)
        published, warnings = distributor.status(), [*distributor.warnings(now)]
        captured = Database(root).status().warnings if "cdc" in types_at(root) else []
        if is_check:
            return published, [], [*warnings, *captured]
        problems = [f"Change Data Capture of '{each.source}': {each.text}" for each in captured]
        parts = [
            *report.publisher(published),
            *(f"Problem: {each}" for each in problems),
            *report.warning_lines(warnings),
        ]
        return {**published, "problems": problems, "warnings": warnings}, parts, warnings
    from mergerepl import api

    state = api.status(root)
    value, parts = merge.status(state)
    return value, parts, [*state.warnings]


@command(effect=READS, call="Project.pending", takes="[REPLICA]...")
def pending(run: Invocation, replicas: tuple[str, ...]) -> None:
    """Count the changes that wait for the next sync.

    Without a REPLICA: those at the publisher, and those that wait for it.

    Example:
      mergerepl pending
      mergerepl pending north
    """
    roots = run.place.roots(replicas)
    if len(roots) > 1:
        waiting = [asdict(each) for each in run.place.project.pending(*replicas)]
        run.output.reported({"pending": waiting}, listing_or("Nothing is pending.", waiting))
    elif run.place.type_at(roots[0]) == "transactional":
        from mergerepl.transactional import Distributor

        rows = [asdict(each) for each in Distributor(roots[0]).pending()]
        run.output.reported({"subscriptions": rows}, listing_or("No subscriptions.", rows))
    else:
        from mergerepl import api

        run.output.reported(*merge.pending(roots[0], api.pending(roots[0])))


@command(
    effect=READS, call="Project.history", takes="[REPLICA]...", options=("--failed", "--type", "--limit")
)
def history(run: Invocation, replicas: tuple[str, ...], failed: bool, type: str | None, limit: int) -> None:
    """List sessions, batches and scans; --failed shows errors.

    Newest first, of the subscribers that are named, or of all. A sync that had nothing to do is not listed. Of one that
    failed, or left articles out, the message says why. A failure that repeats is listed once.

    Example:
      mergerepl history --limit 5
      mergerepl history north --failed
    """
    if len(run.place.project.own_roots()) > 1:
        runs = run.place.project.history(*replicas, failed=failed, type=type, limit=limit)
        shown_runs = [{**vars(each), "details": None} for each in runs]
        columns: Columns = {name: name for name in shown_runs[0] if name != "details"} if runs else {}
        run.output.reported({"runs": runs}, [listing(shown_runs, columns) if runs else "No runs."])
        return
    root = run.place.root()
    type_ = run.place.type_at(root, type)
    if type_ == "transactional":
        from mergerepl.transactional import Distributor

        only, distributor = run.place.subscriber(replicas), Distributor(root)
        listed = distributor.errors(limit=limit) if failed else distributor.history(limit=limit)
        rows = [row for row in listed if only in (None, row["subscriber"])]
        if failed:
            run.output.reported({"errors": rows}, listing_or("No errors.", rows, wrapped="text"))
        else:
            run.output.reported({"batches": rows}, listing_or("No batches.", rows, wrapped="comments"))
    elif type_ == "cdc":
        from mergerepl.cdc import Database

        if failed:
            found = Database(root).history(failed=True, limit=limit)
            run.output.reported(
                {"errors": found}, [listing(found, report.SCAN_ERRORS) if found else "No errors."]
            )
        else:
            scans = Database(root).history(limit=limit)
            run.output.reported(
                {"scan_sessions": scans},
                [listing(scans, report.SCANS) if scans else "No scan has found anything yet."],
            )
    elif type_ == "tracking":
        import mergerepl

        done = [] if failed else mergerepl.ChangeTracking(root).transactions(limit)
        run.output.reported({"transactions": done}, [listing(done, report.COMMITTED)])
    else:
        from mergerepl import api

        only = run.place.subscriber(replicas)
        sessions = api.history(root, limit=limit, subscriber=only)
        shown = [each for each in sessions if not failed or each.status == "failed"]
        run.output.reported(*merge.history(root, shown, subscriber=only))


@command(
    effect=READS,
    call="Replica.row",
    takes="TABLE",
    options=(option("--key", required=True), "--at", "--publication"),
)
def row(run: Invocation, table: str, key: tuple[str, ...], at: str | None, publication: str | None) -> None:
    """Show one row at every replica, with its versions.

    Its lineage, colv and values, as sp_showrowreplicainfo does.

    Example:
      mergerepl row orders --key order_id=7
      mergerepl row lines --key order_id=7 --key line=1
    """
    found = run.place.project.at(at).row(table, key=row_key(key), publication=publication)
    run.output.reported(*merge.row(found))


partitions = group(
    "partitions",
    """List, add, drop partitions of filtered publications.

    A partition is one combination of the values of HOST_NAME() and SUSER_SNAME(). The first subscription with new values
    adds one by itself; one that is added before has its memberships computed from then on.

    Example:
      mergerepl partitions list
    """,
)
_PARTITIONS: Columns = {
    ">id": "partition_id",
    "publication": "publication",
    "HOST_NAME()": "host_name",
    "SUSER_SNAME()": "suser_sname",
    "subscribers": "subscribers",
    ">added at generation": "added_at_generation",
}


@partitions.add(name="list", effect=READS, call="Replica.partitions.list", options=("--publication",))
def list_partitions(run: Invocation, publication: str | None) -> None:
    """List the partitions, with the subscribers of each.

    Example:
      mergerepl partitions list
    """
    found = _partitions(run).list(publication=publication)
    _report(run.output, {"partitions": found}, found)


@partitions.add(
    name="add",
    effect=WRITES,
    call="Replica.partitions.add",
    options=("--host-name", "--suser-sname", "--publication"),
)
def add_partition(
    run: Invocation, host_name: str | None, suser_sname: str | None, publication: str | None, dry_run: bool
) -> None:
    """Add a partition before its first subscription.

    One that is there stays as it is.

    Example:
      mergerepl partitions add --host-name North
    """
    partitions_ = _partitions(run)
    added = rehearsed(
        dry_run,
        lambda: partitions_.add(host_name=host_name, suser_sname=suser_sname, publication=publication),
    )
    if added is REHEARSED:
        run.output.reported({}, ["A partition would be added. Nothing was changed (--dry-run)."])
        return
    _report(run.output, added, (added,))


@partitions.add(name="drop", effect=DESTROYS, call="Replica.partitions.drop", takes="ID")
def drop_partition(run: Invocation, id: str, dry_run: bool, yes: bool) -> None:
    """Drop a partition that no subscription has.

    Its id is not used again.

    Example:
      mergerepl partitions drop 3
    """
    partitions_ = _partitions(run)
    if not id.isdigit():
        raise click.BadParameter(f"{id!r} is no number of a partition.")
    if not dry_run:
        run.confirm(f"Drop partition {id} of {run.place.root()}?", yes=yes)
    dropped = rehearsed(dry_run, lambda: partitions_.drop(int(id)))
    if dropped is REHEARSED:
        run.output.reported({}, [f"Partition {id} would be dropped. Nothing was changed (--dry-run)."])
        return
    _report(run.output, dropped, (dropped,))


def _partitions(run: Invocation) -> Partitions:
    run.place.of_type("merge", "partitions")
    return run.place.project.at().partitions


def _report(output: Output, value: object, found: Sequence[PartitionInfo]) -> None:
    output.reported(value, [listing(found, _PARTITIONS) if found else "There is no partition."])

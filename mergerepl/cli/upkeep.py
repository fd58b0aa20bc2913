"""Commands that check replicas, repair them and keep their files in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, Invocation, command
from mergerepl.cli.main import FAILED, TRANSIENT
from mergerepl.cli.options import row_key
from mergerepl.cli.report import merge
from mergerepl.cli.report.columns import listing
from mergerepl.model.words import counted, key_text, short

if TYPE_CHECKING:
    from mergerepl.model.tasks import CleanupResult, ReinitResult, RepairResult
    from mergerepl.monitoring.doctor import Check


@command(READS, "Project.validate [REPLICA]... --level --table", several_places=True)
def validate(
    run: Invocation, replicas: tuple[str, ...], level: Literal["rowcount", "checksum"], table: str | None
) -> int:
    """Compare subscribers with the publisher.

    Differing keys are named; nothing is changed. Rows with changes that wait for a sync are left out, so writers may go on.
    Exit code 1 if rows differ. A subscriber that cannot be compared is reported beside the others; exit code 3 if that is
    the only fault and may be gone next time.

    Example:
      mergerepl validate
      mergerepl validate north --level rowcount
    """
    found = run.place.project.validate(*replicas, level=level, table=table.split(",") if table else ())
    run.report(*merge.validated(found))
    return 0 if found.ok else TRANSIENT if found.is_transient else FAILED


@command(WRITES, "Replica.tune [TABLE]... --at --file-size")
def tune(run: Invocation, tables: tuple[str, ...], file_size: int) -> None:
    """Rewrite tables with too large files.

    No row changes. A changed row is written again with all rows of its file, and a file without bounds of the key is read
    in each sync; `doctor` and `status` name the tables with such files. A table is written in one commit without data
    change, in the order of its key (of its clustering columns, if it has some). Many small files are not joined: Delta's
    OPTIMIZE does that.

    Example:
      mergerepl tune --dry-run
      mergerepl tune orders --at north --file-size 64MB
    """
    with run.progress as progress:
        result = run.replica.tune(*tables, file_size=file_size, dry_run=run.dry_run, progress=progress)
    lines = []
    for each in result.articles:
        if each.status != "tuned":
            lines += [f"{each.article}: {reason}." for reason in each.reasons]
        if each.status == "unchanged":
            lines.append(f"{each.article}: Delta found nothing to write again.")
        lines += [f"{each.article}: {name} = {value}." for name, value in each.properties.items()]
    if run.dry_run:
        lines.append("Nothing was changed (--dry-run).")
    run.report(result, listing(result.articles), *lines)


@command(WRITES, "Project.doctor [REPLICA]... --start-engine --fix", several_places=True)
def doctor(run: Invocation, replicas: tuple[str, ...], start_engine: bool, fix: bool) -> int:
    """Check Java, storage, locks and the files of tables.

    Without a REPLICA: the publisher and all subscribers; outside a project: this machine. Exit code 1 if something has
    to be repaired. Changes nothing without --fix; with it, the rows of all tables stay as they are.

    Example:
      mergerepl doctor
      mergerepl doctor north --start-engine
    """
    terms = {"start_engine": start_engine, "fix": fix and not run.dry_run}
    checks: Sequence[Check]
    if replicas or run.has_place:
        checks = run.place.project.doctor(*replicas, **terms)
    else:
        # A folder need not exist yet.
        from mergerepl.project import examined

        checks = examined(run.files, **terms)
    run.report(*merge.checked(checks))
    return FAILED if any(check.status == "fail" for check in checks) else 0


@command(DESTROYS, "Project.repair [REPLICA]... --publication --table --key --where --source --procedures")
def repair(run: Invocation, replicas: tuple[str, ...], key: tuple[str, ...], **terms: Any) -> None:
    """Make differing rows equal.

    In a merge publication the rows of the right side get new versions, which the next sync carries like any change;
    the other side's rows are logged as conflicts, and rows with waiting changes are left out. In a transactional one the
    publisher's rows come back to the subscriber's tables, as of its last batch. Without --key and --where whole tables.

    Example:
      mergerepl repair north --dry-run
      mergerepl repair north --table orders --key order_id=7 --yes
      mergerepl repair north --table orders --where "region='N'" --source subscriber
    """

    def question(planned: RepairResult) -> str:
        rows = sum(each.inserts + each.updates + each.deletes for each in planned.articles)
        if not rows:
            return ""
        if terms["source"] == "subscriber":
            inserts = sum(each.inserts for each in planned.articles)
            return f"Overwrite, remove or bring back ({inserts}) {counted(rows, 'row')} at the publisher?"
        at = ", ".join(dict.fromkeys(each.subscriber for each in planned.articles))
        return f"Overwrite or remove {counted(rows, 'row')} at {at}?"

    # A question is answered, or --yes is said.
    make_equal = partial(
        run.place.project.repair, *replicas, key=row_key(key) or None, may_insert=True, **terms
    )
    done = run.carry_out(make_equal, asks=question)
    lines = [
        f"  {each.article} at {short(each.subscriber)} {key_text(one.key)}: {one.kind.replace('_', ' ')}"
        for each in done.articles
        for one in each.examples
    ]
    lines += [
        f"  {each.article}: {counted(each.unsent, 'change')} left out: not sent yet."
        for each in done.articles
        if each.unsent
    ]
    lines += [
        f"  {each.article}: {counted(each.uncaptured, 'commit')} not compared: not captured yet."
        for each in done.articles
        if each.uncaptured
    ]
    run.report(done, listing(done.articles), *lines)


@command(WRITES, "Replica.touch TABLE --key --where --all --without-metadata --publication --at", hidden=True)
def touch(run: Invocation, table: str, key: tuple[str, ...], is_all: bool, **terms: Any) -> None:
    """Send rows again as if they had been updated.

    They get a new version at this replica (sp_mergedummyupdate); no row of the table is written. --without-metadata chooses
    rows that were never captured, such as those that were loaded while the change feed was off (sp_addtabletocontents).

    Example:
      mergerepl touch orders --key order_id=7
      mergerepl touch orders --at north --all --without-metadata
    """
    done = run.carry_out(
        partial(run.replica.touch, table, key=row_key(key) or None, all=is_all, **terms),
        would=f"Rows of {table} would get a new version.",
    )
    run.report(done, f"{counted(done.rows, 'row')} of {done.article}: the next sync sends them.")


@command(DESTROYS, "Project.reinit [REPLICA]... --all --upload-first --discard-local --table")
def reinit(
    run: Invocation, replicas: tuple[str, ...], is_all: bool, table: str | None, **terms: bool
) -> None:
    """Fill a subscriber again from the publisher.

    In a merge publication only rows that differ are written, and readers never meet an empty table. A subscriber goes on
    that has expired, or was restored from an older copy. Its changes that were not sent are compared with the publisher's
    rows (--upload-first) or given up (--discard-local); rows that are taken away are exported to _mergerepl/unsent first.
    In a transactional publication a new snapshot replaces all rows; with --table one article gets the rows of the
    subscriber's position.

    Example:
      mergerepl reinit north --upload-first --dry-run
      mergerepl reinit north --upload-first
      mergerepl reinit --all --discard-local --yes
    """
    if bool(replicas) == is_all:
        raise click.UsageError("Name the subscribers, or say --all.")
    project = run.place.project
    named = ", ".join(replicas) or "all subscribers"

    def question(planned: ReinitResult) -> str:
        if not planned.articles:
            return f"Replace all rows of {named} of {', '.join(project.own_roots())}?"
        rows = sum(each.inserts + each.updates + each.deletes for each in planned.articles)
        lost = 0 if terms["upload_first"] else sum(each.unsent for each in planned.articles)
        given_up = f", and give up {counted(lost, 'change')} that it has not sent" if lost else ""
        roots = ", ".join(project.own_roots())
        # The columns of these are followed first: their rows were not compared.
        later = ", ".join(dict.fromkeys(each.article for each in planned.articles if each.follows_columns))
        if later:
            what = f"what differs in {later}, which was not compared yet,"
            what = f"{counted(rows, 'row')}, and {what}" if rows else what
            given_up = "" if terms["upload_first"] else ", and give up all that it has not sent"
            return f"Write {what} of {named} as {roots} has it{given_up}?"
        if not rows:
            return f"No row of {named} differs from {roots}. Reinitialise its metadata{given_up}?"
        return f"Write {counted(rows, 'row')} of {named} as {roots} has them{given_up}?"

    with run.progress as progress:
        fill = partial(
            project.reinit,
            *replicas,
            all=is_all,
            table=table.split(",") if table else (),
            progress=progress,
            **terms,
        )
        done: ReinitResult = run.carry_out(fill, asks=question)
    lines = [
        f"  {each.article} {key_text(one.key)}: not sent, {one.kind.replace('_', ' ')}"
        for each in done.articles
        for one in each.examples
    ]
    lines += [
        f"  {each.article}: {counted(each.kept, 'row')} kept in {each.kept_at}."
        for each in done.articles
        if each.kept_at is not None
    ]
    lines += [
        f"  {each.article}: its columns would be followed first; its rows were not compared."
        for each in done.articles
        if each.follows_columns
    ]
    if done.dry_run:
        lines.append("Nothing was changed (--dry-run).")
    else:
        lines += [f"{each} begins again." for each in done.subscribers]
    run.report(done, listing(done.articles), *lines)


@command(DESTROYS, "Replica.resume TABLE|INSTANCE --at --compare --restart")
def resume(run: Invocation, table: str, compare: bool, restart: bool) -> None:
    """Continue with a paused table.

    A table is paused if its log cannot be read on, such as after a dropped key column; `status` says why. Unread changes
    become commands, or get new LSNs. With --restart consumers of its changes take a snapshot.

    Example:
      mergerepl resume orders
      mergerepl resume orders --compare
    """
    replica = run.replica
    was_paused = run.carry_out(
        partial(replica.resume, table, compare=compare, restart=restart),
        asks=f"Leave out the unread changes of {table} in {replica.root}?" if restart else "",
        would=f"{table} would be read again.",
    )
    text = "is read again." if was_paused else "was not paused."
    run.report({"table": table, "changed": was_paused}, f"{table} {text}")


@command(DESTROYS, "Project.cleanup --only --older-than")
def cleanup(run: Invocation, only: tuple[str, ...] | None, older_than: timedelta | None) -> int:
    """Remove metadata, conflicts and changes past their retention.

    --only metadata, history, files (merge), conflicts (merge, transactional), commands (transactional), changes (cdc) or
    tombstones (tracking).

    Metadata goes only if all replicas know the change. Files are those of system tables that a cleanup found unused an hour
    or a day ago. A subscription that lacks removed commands becomes inactive and must be filled again (`reinit`). It asks
    only with --older-than, which removes rows that the retention keeps, such as open conflicts. Exit code 1 if something
    could not be cleaned; the rest is.

    Example:
      mergerepl cleanup --dry-run
      mergerepl cleanup --only conflicts --older-than 30d
    """
    remove = partial(run.place.project.cleanup, only=only or (), older_than=older_than)

    def question(planned: CleanupResult) -> str:
        going = (f"{each.rows:,} {each.kind} at {each.replica}" for each in planned.removed if each.rows)
        listed = ", ".join(going)
        return listed and f"Remove {listed}?"

    done = run.carry_out(remove, asks=question if older_than is not None else "")
    files = sum(each.rows for each in done.removed if each.kind == "files")
    rows = sum(each.rows for each in done.removed) - files
    and_files = f" and {counted(files, 'unused file')}" if files else ""
    lines = [
        f"{counted(rows, 'row')}{and_files} "
        + ("would be removed. Nothing was changed (--dry-run)." if run.dry_run else "removed.")
    ]
    if done.inactive:
        lines.append(
            f"{counted(done.inactive, 'subscription')} without removed commands: fill again (`mergerepl reinit`)."
        )
    lines += [
        f"{each.what or each.replica} could not be cleaned up: {each.error}"
        for each in done.removed
        if each.error
    ]
    lines += [f"{each.what}: {each.note}." for each in done.removed if each.note]
    run.report(done, listing(done.removed), *lines)
    return 0 if done.ok else FAILED


@command(WRITES, "Replica.vacuum [TABLE]... --at")
def vacuum(run: Invocation, tables: tuple[str, ...]) -> None:
    """Remove old files that no reader of changes needs.

    It is Delta's VACUUM, for the tables of a merge replica and for captured tables; without a TABLE all of them. A merge
    replica is captured first. Files stay for the table's retention, and until the log reader has read them, too.

    Example:
      mergerepl vacuum
      mergerepl vacuum orders
    """
    named = ", ".join(tables) or "all tables"
    found = run.carry_out(
        partial(run.replica.vacuum, *tables), would=f"Old files of {named} would be removed."
    )
    lines = []
    for each in found:
        kept = f"Files of the last {each.retention_hours:,} hours are kept."
        read = each.read_through
        why = f" Version {read + 1:,} has still to be read." if read is not None else ""
        lines.append(f"{each.source}: old files are removed. {kept}{why}")
    run.report({"tables": found}, *lines)

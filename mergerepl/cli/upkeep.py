"""Commands that check replicas, repair them and keep their files in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mergerepl.cli.grammar import DESTROYS, READS, WRITES, command
from mergerepl.cli.invocation import Invocation, exit_code
from mergerepl.cli.report import merge
from mergerepl.cli.report.columns import listing
from mergerepl.cli.report.table import Report
from mergerepl.errors import ConfigurationError
from mergerepl.model.words import counted, key_text, short

if TYPE_CHECKING:
    from mergerepl.model.results import TouchResult, TuneResult
    from mergerepl.model.tasks import CleanupResult, ReinitResult, RepairResult, Vacuumed, ValidationResult


@command(READS, "Project.validate() [REPLICA]... --level --table:names", several_places=True)
def validate(run: Invocation, found: ValidationResult) -> Report:
    """Compare subscribers with the publisher.

    Differing keys are named; nothing is changed. Rows with changes that wait for a sync are left out, so writers may go on.
    Exit code 1 if rows differ. A subscriber that cannot be compared is reported beside the others; exit code 3 if that is
    the only fault and may be gone next time.

    Example:
      mergerepl validate
      mergerepl validate north --level rowcount
    """
    return merge.validated(found)


@command(WRITES, "Replica.tune() [TABLE]... --at --file-size")
def tune(run: Invocation, done: TuneResult) -> Report:
    """Rewrite tables with too large files.

    No row changes. A changed row is written again with all rows of its file, and a file without bounds of the key is read
    in each sync; `doctor` and `status` name the tables with such files. A table is written in one commit without data
    change, in the order of its key (of its clustering columns, if it has some). Many small files are not joined: Delta's
    OPTIMIZE does that.

    Example:
      mergerepl tune --dry-run
      mergerepl tune orders --at north --file-size 64MB
    """
    lines = []
    for each in done.articles:
        if each.status != "tuned":
            lines += [f"{each.article}: {reason}." for reason in each.reasons]
        if each.status == "unchanged":
            lines.append(f"{each.article}: Delta found nothing to write again.")
        lines += [f"{each.article}: {name} = {value}." for name, value in each.properties.items()]
    return done, listing(done.articles), *lines, *run.unchanged


@command(WRITES, "Project.doctor [REPLICA]... --start-engine --fix", several_places=True)
def doctor(run: Invocation, replicas: tuple[str, ...], start_engine: bool, fix: bool) -> int:
    """Check Java, storage, locks and the files of tables.

    Without a REPLICA: the publisher and all subscribers; outside a project: this machine. Exit code 1 if something has
    to be repaired. Changes nothing without --fix; with it, the rows of all tables stay as they are.

    Example:
      mergerepl doctor
      mergerepl doctor north --start-engine
    """
    from mergerepl.project import examined

    terms = {"start_engine": start_engine, "fix": fix and not run.dry_run}
    try:
        is_project = bool(run.places)
    except ConfigurationError:
        # A folder need not exist yet.
        is_project = bool(replicas)
    found = run.project.doctor(*replicas, **terms) if is_project else examined(run.files, **terms)
    remedies = [f"{each.name}: {each.remedy}" for each in found if each.remedy]
    run.report({"checks": found}, listing(found), *remedies)
    return exit_code(found)


def _overwritten(run: Invocation, planned: RepairResult) -> str:
    rows = sum(each.inserts + each.updates + each.deletes for each in planned.articles)
    if not rows:
        return ""
    if run.given["source"] == "subscriber":
        inserts = sum(each.inserts for each in planned.articles)
        return f"Overwrite, remove or bring back ({inserts}) {counted(rows, 'row')} at the publisher?"
    at = ", ".join(dict.fromkeys(each.subscriber for each in planned.articles))
    return f"Overwrite or remove {counted(rows, 'row')} at {at}?"


@command(
    DESTROYS,
    "Project.repair() [REPLICA]... --publication --table --key:row --where --source --procedures",
    asks=_overwritten,
    # A question is answered, or --yes is said.
    also=lambda run: {"may_insert": True},
)
def repair(run: Invocation, done: RepairResult) -> Report:
    """Make differing rows equal.

    In a merge publication the rows of the right side get new versions, which the next sync carries like any change;
    the other side's rows are logged as conflicts, and rows with waiting changes are left out. In a transactional one the
    publisher's rows come back to the subscriber's tables, as of its last batch. Without --key and --where whole tables.

    Example:
      mergerepl repair north --dry-run
      mergerepl repair north --table orders --key order_id=7 --yes
      mergerepl repair north --table orders --where "region='N'" --source subscriber
    """
    lines = [
        f"  {each.article} at {short(each.subscriber)} {key_text(one.key)}: {one.kind.replace('_', ' ')}"
        for each in done.articles
        for one in each.examples
    ]
    for each in done.articles:
        if each.unsent:
            lines.append(f"  {each.article}: {counted(each.unsent, 'change')} left out: not sent yet.")
        if each.uncaptured:
            lines.append(
                f"  {each.article}: {counted(each.uncaptured, 'commit')} not compared: not captured yet."
            )
    return done, listing(done.articles), *lines


@command(
    WRITES,
    "Replica.touch() TABLE --key:row --where --all --without-metadata --publication --at",
    hidden=True,
    would="Rows of {table} would get a new version.",
)
def touch(run: Invocation, done: TouchResult) -> Report:
    """Send rows again as if they had been updated.

    They get a new version at this replica (sp_mergedummyupdate); no row of the table is written. --without-metadata chooses
    rows that were never captured, such as those that were loaded while the change feed was off (sp_addtabletocontents).

    Example:
      mergerepl touch orders --key order_id=7
      mergerepl touch orders --at north --all --without-metadata
    """
    return done, f"{counted(done.rows, 'row')} of {done.article}: the next sync sends them."


def _refilled(run: Invocation, planned: ReinitResult) -> str:
    named = ", ".join(run.given["replicas"]) or "all subscribers"
    roots = ", ".join(run.project.own_roots())
    if not planned.articles:
        return f"Replace all rows of {named} of {roots}?"
    rows = sum(each.inserts + each.updates + each.deletes for each in planned.articles)
    goes_up = run.given["upload_first"]
    lost = 0 if goes_up else sum(each.unsent for each in planned.articles)
    given_up = f", and give up {counted(lost, 'change')} that it has not sent" if lost else ""
    # The columns of these are followed first: their rows were not compared.
    later = ", ".join(dict.fromkeys(each.article for each in planned.articles if each.follows_columns))
    if later:
        what = f"what differs in {later}, which was not compared yet,"
        what = f"{counted(rows, 'row')}, and {what}" if rows else what
        given_up = "" if goes_up else ", and give up all that it has not sent"
        return f"Write {what} of {named} as {roots} has it{given_up}?"
    if not rows:
        return f"No row of {named} differs from {roots}. Reinitialise its metadata{given_up}?"
    return f"Write {counted(rows, 'row')} of {named} as {roots} has them{given_up}?"


@command(
    DESTROYS,
    "Project.reinit() [REPLICA]... --all --upload-first --discard-local --table:names",
    asks=_refilled,
)
def reinit(run: Invocation, done: ReinitResult) -> Report:
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
    lines = [
        f"  {each.article} {key_text(one.key)}: not sent, {one.kind.replace('_', ' ')}"
        for each in done.articles
        for one in each.examples
    ]
    for each in done.articles:
        if each.kept_at is not None:
            lines.append(f"  {each.article}: {counted(each.kept, 'row')} kept in {each.kept_at}.")
        if each.follows_columns:
            lines.append(
                f"  {each.article}: its columns would be followed first; its rows were not compared."
            )
    begun = [] if done.dry_run else [f"{each} begins again." for each in done.subscribers]
    return done, listing(done.articles), *lines, *begun, *run.unchanged


@command(
    DESTROYS,
    "Replica.resume() TABLE|INSTANCE --at --compare --restart",
    asks="Leave out the unread changes of {table} in {run.root}?",
    asks_with="restart",
    would="{table} would be read again.",
)
def resume(run: Invocation, was_paused: bool) -> Report:
    """Continue with a paused table.

    A table is paused if its log cannot be read on, such as after a dropped key column; `status` says why. Unread changes
    become commands, or get new LSNs. With --restart consumers of its changes take a snapshot.

    Example:
      mergerepl resume orders
      mergerepl resume orders --compare
    """
    table = run.given["table"]
    text = "is read again." if was_paused else "was not paused."
    return {"table": table, "changed": was_paused}, f"{table} {text}"


def _removed(run: Invocation, planned: CleanupResult) -> str:
    listed = ", ".join(
        f"{each.rows:,} {each.kind} at {each.replica}" for each in planned.removed if each.rows
    )
    return listed and f"Remove {listed}?"


@command(DESTROYS, "Project.cleanup() --only --older-than", asks=_removed, asks_with="older_than")
def cleanup(run: Invocation, done: CleanupResult) -> Report:
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
    files = sum(each.rows for each in done.removed if each.kind == "files")
    rows = sum(each.rows for each in done.removed) - files
    and_files = f" and {counted(files, 'unused file')}" if files else ""
    did = "would be removed. Nothing was changed (--dry-run)." if run.dry_run else "removed."
    lines = [f"{counted(rows, 'row')}{and_files} {did}"]
    if done.inactive:
        lines.append(
            f"{counted(done.inactive, 'subscription')} without removed commands: fill again (`mergerepl reinit`)."
        )
    for each in done.removed:
        if each.error:
            lines.append(f"{each.what or each.replica} could not be cleaned up: {each.error}")
        if each.note:
            lines.append(f"{each.what}: {each.note}.")
    return done, listing(done.removed), *lines


@command(WRITES, "Replica.vacuum() [TABLE]... --at", would="Old files would be removed.")
def vacuum(run: Invocation, found: Iterable[Vacuumed]) -> Report:
    """Remove old files that no reader of changes needs.

    It is Delta's VACUUM, for the tables of a merge replica and for captured tables; without a TABLE all of them. A merge
    replica is captured first. Files stay for the table's retention, and until the log reader has read them, too.

    Example:
      mergerepl vacuum
      mergerepl vacuum orders
    """
    lines = []
    for each in found:
        kept = f"Files of the last {each.retention_hours:,} hours are kept."
        read = each.read_through
        why = f" Version {read + 1:,} has still to be read." if read is not None else ""
        lines.append(f"{each.source}: old files are removed. {kept}{why}")
    return {"tables": found}, *lines

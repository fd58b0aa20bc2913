"""What sets replicas up and keeps their files in order: `mergerepl apply`, `tune` and `doctor`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from mergerepl.cli.help import Command
from mergerepl.cli.main import FAILED
from mergerepl.cli.options import publication_roots, replica_argument, replica_root, reporting, working
from mergerepl.cli.report.merge import applied, checked
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, listing
from mergerepl.model.progress import Progress

if TYPE_CHECKING:
    from mergerepl.monitoring.doctor import Check

_SIZE = re.compile(r"(\d{1,6})\s*MB", re.IGNORECASE)
_MIB = 1024**2


def file_size(text: str) -> int:
    """Return the bytes of a size such as `64MB`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(
            f"{text!r} is no size of files: give whole MB from 1MB to 999999MB, such as 64MB or 1024MB."
        )
    return int(found[1]) * _MIB


_TUNED: Columns = {
    "article": "article",
    "result": "status",
    ">files": "files_before",
    ">largest (MiB)": lambda each: f"{each.largest_bytes_before / _MIB:.1f}",
    ">files after": lambda each: each.files_after if each.status == "tuned" else None,
    ">largest after (MiB)": lambda each: (
        f"{each.largest_bytes_after / _MIB:.1f}" if each.status == "tuned" else None
    ),
}


@click.command(cls=Command)
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Show the steps; change nothing.")
@working
def apply(file: str, dry_run: bool, output: Output, progress: Progress) -> None:
    """Make the replicas match FILE: publish tables, create and initialize subscribers.

    Run it again after every change of FILE; what matches already is left alone.

    Example:
      mergerepl apply sales.yml --dry-run
    """
    from mergerepl import api

    project = api.load(file)
    with progress:
        result = project.apply(dry_run=dry_run, progress=progress)
    output.reported(*applied(result))


@click.command(cls=Command)
@replica_argument
@click.argument("articles", metavar="[ARTICLE]...", nargs=-1)
@click.option(
    "--file-size",
    "file_bytes",
    metavar="SIZE",
    type=file_size,
    default="128MB",
    show_default=True,
    help="Size of the new files, about; files of up to twice that are left alone.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written again; change nothing.")
@working
def tune(
    replica: str,
    articles: tuple[str, ...],
    file_bytes: int,
    dry_run: bool,
    output: Output,
    progress: Progress,
) -> None:
    """Write tables with too large files again, in smaller files. No row changes.

    A changed row is written again with all rows of its file, and a file without bounds of the key is read in each sync.
    `doctor` and `status` name the tables with such files. A table is written in one commit without data change, in the
    order of its key (of its clustering columns, if it has some). Many small files are not joined: Delta's OPTIMIZE does
    that. FILE stands for its publisher; a subscriber is named by its folder.

    Example:
      mergerepl tune ./hq orders --file-size 64MB --dry-run
    """
    from mergerepl import api

    with progress:
        result = api.tune(
            replica_root(replica),
            articles=articles,
            file_bytes=file_bytes,
            dry_run=dry_run,
            progress=progress,
        )
    lines = []
    for each in result.articles:
        if each.status != "tuned":
            lines += [f"{each.article}: {reason}." for reason in each.reasons]
        if each.status == "unchanged":
            lines.append(f"{each.article}: Delta found nothing to write again.")
        lines += [f"{each.article}: {name} = {value}." for name, value in each.properties.items()]
    if dry_run:
        lines.append("Nothing was changed (--dry-run).")
    output.reported(result, [listing(result.articles, _TUNED), *lines])


def _captured(root: str) -> list[Check]:
    """Return whether Change Data Capture of a folder keeps up; nothing where it is not enabled."""
    from mergerepl import cdc
    from mergerepl.errors import MergeReplError

    try:
        if not cdc.Database(root).is_enabled():
            return []
    except MergeReplError:
        # The storage check says what is wrong with the folder.
        return []
    from mergerepl.monitoring.doctor import Check, Status

    see = f"See `mergerepl cdc status {root}`."
    try:
        warnings = cdc.Database(root).status().warnings
    except MergeReplError as error:
        return [Check(f"cdc {root}", Status.WARN, error.message, see)]
    found = [Check(f"cdc {root}", Status.WARN, f"{each.source}: {each.text}", see) for each in warnings]
    return found or [Check(f"cdc {root}", Status.OK, "captured tables are read in time")]


@click.command(cls=Command)
@click.argument("replicas", metavar="[FILE|REPLICA]...", nargs=-1)
@click.option("--engine", is_flag=True, help="Also start the Spark engine (about ten seconds).")
@click.option("--mend", is_flag=True, help="Write files again that other libraries read or remove wrongly.")
@reporting
def doctor(replicas: tuple[str, ...], engine: bool, mend: bool, output: Output) -> int:
    """Check Java, JARs, versions, storage, locks and the files of tables.

    FILE stands for its publisher and all its subscribers. Exit code 1 if something has to be mended. Changes nothing
    without --mend; with it, the rows of all tables stay as they are.

    Example:
      mergerepl doctor ./hq
    """
    from mergerepl.monitoring import doctor as examination

    roots = list(dict.fromkeys(root for each in replicas for root in publication_roots(each)))
    checks = examination.checks(roots, start_engine=engine, mend=mend)
    checks += [check for root in roots for check in _captured(root)]
    output.reported(*checked(checks))
    return FAILED if any(check.status == "fail" for check in checks) else 0

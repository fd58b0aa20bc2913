"""`mergerepl tune`."""

from __future__ import annotations

import re

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import replica_argument, replica_root, working
from mergerepl.cli.report.output import Output
from mergerepl.model.progress import Progress

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
    from mergerepl.cli.report.table import Table

    with progress:
        result = api.tune(
            replica_root(replica),
            articles=articles,
            file_bytes=file_bytes,
            dry_run=dry_run,
            progress=progress,
        )
    table = Table(("article", "result", ">files", ">largest (MiB)", ">files after", ">largest after (MiB)"))
    lines = []
    for each in result.articles:
        sizes = (f"{size / _MIB:.1f}" for size in (each.largest_bytes_before, each.largest_bytes_after))
        largest_before, largest_after = sizes
        after = (each.files_after, largest_after) if each.status == "tuned" else (None, None)
        table.add(each.article, each.status, each.files_before, largest_before, *after)
        if each.status != "tuned":
            lines += [f"{each.article}: {reason}." for reason in each.reasons]
        if each.status == "unchanged":
            lines.append(f"{each.article}: Delta found nothing to write again.")
        lines += [f"{each.article}: {name} = {value}." for name, value in each.properties.items()]
    if dry_run:
        lines.append("Nothing was changed (--dry-run).")
    output.reported(result, [table, *lines])

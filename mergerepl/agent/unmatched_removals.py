"""Removals that removed nothing: a commit names a file otherwise than the log does, so that the file stays in the table.

Delta compares the paths of a log letter by letter. Spark writes `region=Île/…` where a file lies so; deltalake reads it as
that file and removes `region=%C3%8Ele/…`. What it updated is there twice then, and what it deleted is still there.
"""

import logging
from collections.abc import Sequence
from urllib.parse import unquote

from mergerepl.delta.log import Commit, is_coded
from mergerepl.delta.table import file_names
from mergerepl.errors import CaptureError
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.sql import quote
from mergerepl.store.replica import Replica

log = logging.getLogger(__name__)


def unmatched_removal_gap(
    replica: Replica, article: PublishedArticle, found: Sequence[Commit], captured: int, *, is_late: bool
) -> str | None:
    """Refuse removals of a window that removed nothing; return why the feed is a gap if they were undone, else None.

    The files of the captured version are listed only where a library other than Spark removed one of which a log may have
    two names. A late window is a gap: its versions are compared, and rows that are there twice are refused by their keys.

    Raises: CaptureError.
    """
    if not any(commit.removes_by_own_names for commit in found):
        return None
    try:
        active = {name for name in file_names(replica.table(article), captured) if is_coded(name)}
    except Exception as error:
        log.info("%s: its files at version %s are not known: %s", article.name, captured, error)
        return f"whether the files that were removed were in it is not known (version {captured} is gone from its log)"
    standing: dict[str, Commit] = {}
    has_some = False
    for commit in found:
        if (version := commit.restored_version) is not None:
            standing = {name: each for name, each in standing.items() if each.version <= version}
        unmatched = set(commit.coded_removed) - active
        has_some = has_some or bool(unmatched)
        standing |= dict.fromkeys(sorted(unmatched), commit)
        active = (active - set(commit.coded_removed)) | set(commit.coded_added)
    if not has_some:
        return None
    name_of = {unquote(name): name for name in active}
    for removed, commit in standing.items():
        if not is_late and (meant := name_of.get(unquote(removed))) is not None:
            raise _removed_nothing(replica, article, commit, removed, meant)
    return "files were removed that were not in it, and that was undone"


def _removed_nothing(
    replica: Replica, article: PublishedArticle, commit: Commit, removed: str, meant: str
) -> CaptureError:
    table, root = replica.table(article), replica.root
    return CaptureError(
        f"Article '{article.name}': version {commit.version} of table '{table}' ({commit.operation}, by "
        f"{commit.engine or 'an unknown writer'}) removes the file '{removed}', which its log names '{meant}'. So the file "
        "is still in the table: rows that were updated are there twice, and rows that were deleted are still there. "
        f"Nothing was changed. Go back with RESTORE TABLE delta.{quote(str(table))} TO VERSION AS OF "
        f"{commit.version - 1} (it takes back all later changes of the table, too), run `mergerepl doctor {root} --mend`, "
        "then write again.",
        replica=str(root),
        article=article.name,
        table=str(table),
        version=commit.version,
    )

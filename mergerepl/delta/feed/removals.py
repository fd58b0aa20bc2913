"""Removals that removed nothing: a commit writes a file's name in another way than the log, so the file stays in the table.

Delta compares the paths of a log letter by letter. Spark writes `region=Île/…` where a file lies so; deltalake reads it as
that file and removes `region=%C3%8Ele/…`. Rows that it updated are there twice then, and deleted rows are still there.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from mergerepl.delta.log import Commit, is_coded
from mergerepl.delta.table import file_names
from mergerepl.errors import StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnmatchedRemoval:
    """A removal that removed nothing: the path that the commit states, and the path by which the log knows the file."""

    commit: Commit
    removed: str
    meant: str


@dataclass(frozen=True)
class UnmatchedRemovals:
    """The removals of a window that removed nothing.

    `standing` are removals whose file is still in the table. `gap` is why the feed cannot be used, even if `standing` is
    empty; None if every removal of the window removed its file.
    """

    standing: tuple[UnmatchedRemoval, ...] = ()
    gap: str | None = None


def unmatched_removals(table: Path, version: int, commits: Sequence[Commit]) -> UnmatchedRemovals:
    """Return the removals of commits after a version that removed nothing.

    The version's files are listed only where a library other than Spark removed a file whose name a log may spell in
    two ways.
    """
    if not any(commit.removes_by_own_names for commit in commits):
        return UnmatchedRemovals()
    from deltalake.exceptions import DeltaError

    try:
        active = {name for name in file_names(table, version) if is_coded(name)}
    except (StoreError, DeltaError, OSError) as error:
        log.info("%s: its files at version %s are not known: %s", table, version, error)
        return UnmatchedRemovals(
            gap=f"whether the files that were removed were in it is not known (version {version} is gone from its log)"
        )
    found: dict[str, Commit] = {}
    has_some = False
    for commit in commits:
        if (restored := commit.restored_version) is not None:
            found = {name: each for name, each in found.items() if each.version <= restored}
        unmatched = set(commit.coded_removed) - active
        has_some = has_some or bool(unmatched)
        found |= dict.fromkeys(sorted(unmatched), commit)
        active = (active - set(commit.coded_removed)) | set(commit.coded_added)
    name_of = {unquote(name): name for name in active}
    standing = (
        UnmatchedRemoval(commit, removed, name_of[unquote(removed)])
        for removed, commit in found.items()
        if unquote(removed) in name_of
    )
    gap = "files were removed that were not in it, and that was undone" if has_some else None
    return UnmatchedRemovals(tuple(standing), gap)

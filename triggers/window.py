"""The window of an article's table for merge capture: the facts of a feed window that merge replication uses.

Merge session step: before capture. Tables are not read.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mergerepl.delta.feed.column_changes import NULLABILITY, STATEMENTS
from mergerepl.delta.marks import APPLY, SchemaStep, is_own_of_merge
from mergerepl.model.article import PublishedArticle
from mergerepl.store.location import Location
from triggers.schema_checks import (
    ArticleTable,
    changed_columns,
    check_captured_table,
    check_columns,
    check_files,
    check_removals,
    columns_gap,
    files_gap,
)

if TYPE_CHECKING:
    from mergerepl.delta.feed.window import FeedWindow, Segment
    from mergerepl.delta.tables import Commit, TableState


log = logging.getLogger(__name__)

SMALL_ROWS, SMALL_BYTES = 10_000, 4 * 1024 * 1024
"""For a window up to this size, interpreting the queries is faster than compiling them."""


@dataclass(frozen=True)
class Followed:
    """What is known of a window whose end was chosen by the commits that changed the columns.

    `gap` is why whole versions are compared, `former` and `ended` as in CaptureWindow.
    """

    gap: str | None = None
    former: Mapping[str, str | None] = field(default_factory=dict)
    ended: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaptureWindow:
    """The versions of one article's table that are not captured yet.

    `gap` is the reason why the feed cannot be used, `is_gap_meant` where columns were followed. `generated_columns` are the
    published columns that Delta computes, with their expressions. Only a session in UTC may read `timestamp_partitions`. A
    late window lies before a finished MERGE of ours.
    """

    article: PublishedArticle
    table: Location
    from_version_exclusive: int
    through_version_inclusive: int
    user_commits: "tuple[Commit, ...]" = ()
    segments: "tuple[Segment, ...]" = ()
    gap: str | None = None
    is_late: bool = False
    generated_columns: Mapping[str, str] = field(default_factory=dict)
    timestamp_partitions: tuple[str, ...] = ()
    state: "TableState | None" = field(default=None, compare=False, repr=False)
    """The table at the window's end, if that is its head or the window was cut there."""
    former: Mapping[str, str | None] = field(default_factory=dict)
    """By published column its name before the window, where it was another one; None: the table lacked it."""
    is_gap_meant: bool = False
    ended: tuple[str, ...] = ()
    """The published columns that a user dropped since: a row that changed in these alone is no change."""

    def names_at(self, version: int) -> dict[str, str | None]:
        """Return by published column the name that it had at a version; None: the table lacked it."""
        former = self.former if version <= self.from_version_exclusive else {}
        return {name: former.get(name, name) for name in self.article.columns}

    @property
    def has_changes(self) -> bool:
        """True if users changed rows in these versions."""
        return bool(self.user_commits) or self.gap is not None

    @property
    def changed_rows(self) -> int | None:
        """The approximate maximum of rows in the feed; None without the commits' counts, or if whole files are read."""
        return None if any(segment.by_files for segment in self.segments) else self.counted_rows

    @property
    def is_small(self) -> bool:
        """True if few rows of the feed, and few bytes of whole files, are read."""
        by_files = {version for segment in self.segments for version in segment.by_files}
        whole = sum(commit.file_bytes for commit in self.user_commits if commit.version in by_files)
        rows = self.counted_rows
        return rows is not None and rows <= SMALL_ROWS and whole <= SMALL_BYTES

    @property
    def counted_rows(self) -> int | None:
        """The rows counted by the commits' writers; None if a count is missing, or there is a gap."""
        counts = [commit.changed_rows for commit in self.user_commits]
        if self.gap is not None or None in counts:
            return None
        return sum(count or 0 for count in counts)

    @property
    def first_change(self) -> int:
        """The version of the first commit that changed rows; the first one at all where commits are not known."""
        return self.user_commits[0].version if self.user_commits else self.from_version_exclusive + 1


def capture_window(
    at: ArticleTable, window: "FeedWindow", *, is_late: bool = False, followed: Followed | None = None
) -> CaptureWindow:
    """Return the window to capture of an article's table.

    The columns of a `followed` window are those of the article: it was cut where they changed.

    The users' commits of a late window cannot be refused any more. Changed columns are refused by the next ordinary
    window; for bad keys, capture logs a warning.

    Raises: CaptureError if the table was restored, re-created or is gone, or has files elsewhere; SchemaMismatchError if
        its published columns are others at the window's end; StoreError if a commit of the window is damaged.
    """
    check_captured_table(at, window, is_late=is_late, is_followed=followed is not None)
    if is_late and at.is_publisher:
        _warn_of_statements(at, window)
    article, through = at.article, window.through_version_inclusive
    whole = CaptureWindow(article, at.path, window.from_version_exclusive, through)
    if through == window.from_version_exclusive and (is_late or window.is_unchanged):
        return whole
    if window.unreadable is not None and not window.is_truncated:
        raise window.unreadable
    if not is_late and followed is None:
        _refuse_own_steps(at, window)
        check_columns(at, window)
    end = window.end if followed is not None else window.table
    metadata = end.metadata
    changes = [] if window.is_truncated else user_changes(window, at, is_late=is_late)
    gap = None
    if not window.is_truncated:
        if not is_late:
            check_files(at, window)
            check_removals(at, window)
        versions = {commit.version for commit in changes}
        gap = followed.gap if followed is not None else None
        gap = gap or columns_gap(
            article, window, versions, has_own=not at.is_publisher, is_followed=followed is not None
        )
        gap = gap or (None if is_late else files_gap(window)) or window.unmatched_removals.gap
    gap = gap or window.gap(changes)
    return CaptureWindow(
        article,
        at.path,
        window.from_version_exclusive,
        through,
        tuple(changes),
        () if gap is not None else window.segments(changes, article.identity),
        gap,
        is_late,
        {name: text for name, text in metadata.generated_columns.items() if name in article.columns},
        metadata.timestamp_partitions,
        end if followed is not None or through == window.head_version else None,
        followed.former if followed is not None else {},
        is_gap_meant=followed is not None and followed.gap is not None,
        ended=followed.ended if followed is not None else (),
    )


def _warn_of_statements(at: ArticleTable, window: "FeedWindow") -> None:
    """Name what a user stated of columns while a session wrote: the next session begins after these commits."""
    for each in window.schema.changes:
        if each.kind in (NULLABILITY, *STATEMENTS) and each.column in at.article.columns:
            log.warning(
                "Article '%s' at '%s': version %d changed the %s of column '%s' while a session wrote, and subscribers do "
                "not have it. Give the column another comment, then run `mergerepl sync`: they get all that the table says "
                "of it",
                *(at.article.name, at.root, each.version, each.kind, each.column),
            )


def _refuse_own_steps(at: ArticleTable, window: "FeedWindow") -> None:
    """Check that no commit of the agent's own changed the columns: a session that died left it.

    A mark that says that a user's wider type is the publisher's changes none: the definition was moved at the user's ALTER.

    Raises: SchemaMismatchError.
    """
    changed = {each.version for each in window.schema.changes}
    for commit in window.commits:
        mark = commit.mark
        step = SchemaStep.of(mark.step) if mark is not None and mark.replid == at.replid else None
        if step is not None and (step.what != SchemaStep.TYPE or commit.version in changed):
            raise changed_columns(at, "its columns are being changed", commit)


def user_changes(window: "FeedWindow", at: ArticleTable, *, is_late: bool) -> "list[Commit]":
    """Return the commits that count as changes by users for an article, including those marked by another product.

    A commit of a session for an article of another publication is a change.

    A session that finishes a replica moves the captured version past its own MERGEs. MERGEs of a session that was
    abandoned before that are missing from metadata: they count as user changes.
    """
    is_own = partial(is_own_of_merge, replid=at.replid, nickname=at.article.nickname)

    def is_left_out(commit: "Commit") -> bool:
        return is_own(commit.mark) and (is_late or commit.kind != APPLY)

    changed = (each for each in window.commits if each.data_change and not each.is_repetition)
    return [commit for commit in changed if not is_left_out(commit)]

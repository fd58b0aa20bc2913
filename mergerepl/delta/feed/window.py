"""The changes of a table after a position, as its log records them: facts only, read without an engine.

Every product that reads a feed starts here, and refuses unusable facts itself.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mergerepl.delta.commits import Commit, TruncatedLogError, commits, is_coded
from mergerepl.delta.feed.repetitions import is_repetition
from mergerepl.delta.feed.schema_walk import PHYSICAL_NAME, SchemaWalk, walk
from mergerepl.delta.log import head_if_any, is_another_commit
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.table import TableState, file_names, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.errors import StoreError
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.delta.commits import Commit
    from mergerepl.delta.metadata import TableMetadata

log = logging.getLogger(__name__)

IsOwn = Callable[[CommitMark | None], bool]
"""Whether the reader itself wrote the commit with this mark, so that it does not count as a change."""


@dataclass(frozen=True)
class FeedPosition:
    """The last version of a table whose changes were read.

    `commit` is `delta.log.commit_text` of that version, None if unknown. A restored folder may have another commit with
    the same number.
    """

    table_id: str
    version: int
    commit: str | None = None


@dataclass(frozen=True)
class Segment:
    """Versions of a table that one schema describes: they are read as one frame.

    `left_out` are versions whose rows do not count. `by_files` are versions read from added and removed data files
    instead of change files. `by_keys` are such versions too, but only rows with a changed `key` are read.
    `is_one_metadata`: the metadata is the same from first to last version.
    """

    from_version_inclusive: int
    through_version_inclusive: int
    left_out: tuple[int, ...] = ()
    by_files: tuple[int, ...] = ()
    is_one_metadata: bool = True
    by_keys: tuple[int, ...] = ()
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnmatchedRemoval:
    """A removal that removed nothing: the path stated in the commit, and the file's path in the log.

    Delta compares the paths of a log letter by letter. Spark writes `region=Île/…` unencoded; deltalake finds that file
    but removes `region=%C3%8Ele/…`. Rows that it updated then exist twice, and deleted rows still exist.
    """

    commit: Commit
    removed: str
    meant: str


@dataclass(frozen=True)
class UnmatchedRemovals:
    """The removals of a window that removed nothing.

    `standing` are removals whose file is still in the table. `gap` is the reason why the feed cannot be used, even if
    `standing` is empty; None if every removal of the window removed its file.
    """

    standing: tuple[UnmatchedRemoval, ...] = ()
    gap: str | None = None


@dataclass(frozen=True)
class FeedWindow:
    """The commits of a table after a position.

    `head_version` is None without a Delta table at the path. `unreadable` is why the commits after the last of
    `commits` are unknown: the log lacks one (TruncatedLogError), or one is damaged. `is_another_commit`: the version of
    the position has another commit than the one that was read; False if either is unknown.
    """

    path: Location
    position: FeedPosition
    head_version: int | None
    through_version_inclusive: int
    commits: tuple[Commit, ...] = ()
    unreadable: StoreError | None = None
    is_another_commit: bool = False

    @property
    def from_version_exclusive(self) -> int:
        """The version of the position."""
        return self.position.version

    @property
    def is_older(self) -> bool:
        """True if the table has fewer versions than were read."""
        return self.head_version is not None and self.head_version < self.position.version

    @property
    def is_at_position(self) -> bool:
        """True if the table is at the version of the position and its commit is not known to differ."""
        return self.head_version == self.position.version and not self.is_another_commit

    @property
    def is_unchanged(self) -> bool:
        """True if the table is known to be at the very commit of the position."""
        return self.is_at_position and self.position.commit is not None

    @property
    def is_truncated(self) -> bool:
        """True if the log lacks commits after the position."""
        return isinstance(self.unreadable, TruncatedLogError)

    @cached_property
    def table(self) -> TableState:
        """The table at its head.

        Raises: StoreError if its log cannot be read.
        """
        return open_table(self.path, self.head_version)

    @cached_property
    def end(self) -> TableState:
        """The table at the end of the window.

        Raises: StoreError if its log cannot be read.
        """
        through = self.through_version_inclusive
        return self.table if through == self.head_version else open_table(self.path, through)

    @cached_property
    def before(self) -> TableMetadata | None:
        """The metadata at the position; None if that version is gone or did not exist."""
        if self.position.version < 0:
            return None
        try:
            return open_table(self.path, self.position.version).metadata
        except StoreError:
            return None

    @property
    def metadata_commits(self) -> list[Commit]:
        """The commits that state the table's metadata."""
        return [commit for commit in self.commits if commit.metadata is not None]

    @cached_property
    def schema(self) -> SchemaWalk:
        """The columns through the window; empty if no commit states metadata, or if the metadata at its start is gone."""
        if not self.metadata_commits or self.before is None:
            return SchemaWalk()
        return walk(self.before, self.commits)

    def changes(self, is_own: IsOwn) -> list[Commit]:
        """Return the commits that changed rows, without a reader's own and without repetitions."""
        changed = (commit for commit in self.commits if commit.data_change and not commit.is_repetition)
        return [commit for commit in changed if not is_own(commit.mark)]

    @cached_property
    def standing_foreign_files(self) -> dict[str, Commit]:
        """The files outside the table's folder that these commits added and kept: path -> commit."""
        standing: dict[str, Commit] = {}
        for commit in self.commits:
            for name in commit.foreign_removed:
                standing.pop(name, None)
            standing.update(dict.fromkeys(commit.foreign_added, commit))
        return standing

    @cached_property
    def unmatched_removals(self) -> UnmatchedRemovals:
        """The removals by names unknown to the log."""
        return unmatched_removals(self.path, self.position.version, self.commits)

    def gap(self, changes: Iterable[Commit]) -> str | None:
        """Return, as a clause about the table, why the feed lacks these changes; None if it has them."""
        if self.is_truncated:
            return "versions are gone from its log"
        wanted = {commit.version for commit in changes}
        switched_off = has_vectors = False
        dropped: int | None = None
        known = self.before if self.metadata_commits else None
        for commit in self.commits:
            if dropped is not None and commit.version in wanted:
                # Delta reads the feed under the protocol of its last commit, and returns every row of a file as deleted,
                # or as deleted and inserted.
                return f"deletion vectors were dropped from it at version {dropped}"
            has_vectors = has_vectors or (commit.has_vectors and commit.version in wanted)
            if has_vectors and commit.drops_vectors:
                dropped = commit.version
            if commit.metadata is not None:
                retyped = retyped_column(known, commit.metadata) if known is not None else None
                if retyped is not None and commit.version in wanted:
                    return f"version {commit.version} changed the type of column '{retyped}' together with its rows"
                known = commit.metadata
                switched_off = not commit.metadata.change_data_feed
            if switched_off and commit.version in wanted:
                return f"Change Data Feed was off at version {commit.version}"
        return None

    def segments(self, changes: Sequence[Commit], key: Sequence[str]) -> tuple[Segment, ...]:
        """Return the segments of the feed to read for these changes, cut where columns changed.

        `key` are the columns by which the reader groups rows; empty: it compares whole rows.
        """
        if not changes:
            return ()
        first, last = changes[0].version, changes[-1].version
        cuts = [version for version in self._new_columns if first < version <= last]
        found = (
            self._segment(changes, tuple(key), begin, end - 1)
            for begin, end in pairwise([first, *cuts, last + 1])
        )
        return tuple(segment for segment in found if segment is not None)

    def _segment(
        self, changes: Sequence[Commit], key: tuple[str, ...], first: int, last: int
    ) -> Segment | None:
        inside = [commit for commit in changes if first <= commit.version <= last]
        if not inside:
            return None
        begin, end = inside[0].version, inside[-1].version
        versions = {commit.version for commit in inside}
        by_files, by_keys = untrue_versions(self.path, inside, key)
        return Segment(
            begin,
            end,
            tuple(
                commit.version
                for commit in self.commits
                if begin < commit.version < end and commit.data_change and commit.version not in versions
            ),
            by_files,
            not any(begin < commit.version <= end for commit in self.metadata_commits),
            by_keys,
            key,
        )

    @cached_property
    def _new_columns(self) -> list[int]:
        found = []
        shape = _shape(self.before) if self.metadata_commits and self.before is not None else None
        for commit in self.metadata_commits:
            stated = _shape(commit.metadata) if commit.metadata is not None else None
            if stated != shape:
                found.append(commit.version)
            shape = stated
        return found


def unmatched_removals(table: Location, version: int, commits: Sequence[Commit]) -> UnmatchedRemovals:
    """Return the removals of commits after a version that removed nothing.

    The version's files are listed only if a library other than Spark removed a file whose name a log may spell in two
    ways.
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


def untrue_versions(
    table: Location, commits: Iterable[Commit], key: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the versions with untrue change files: those to compare whole, and those whose changed keys are proven."""
    updates = [each.version for each in commits if each.has_untrue_feed]
    if not updates:
        return (), ()
    # It loads pyspark.
    from mergerepl.delta.update_keys import REMEDY, update_keys

    found = {version: update_keys(table, version, key) for version in updates}
    doubtful = {version: each for version, each in found.items() if each.doubt is not None}
    for version, each in doubtful.items():
        log.info("%s: version %d is %s. %s", table, version, each.cost, REMEDY)
    return tuple(doubtful), tuple(version for version in found if version not in doubtful)


def _shape(metadata: TableMetadata) -> tuple[object, ...]:
    columns = (
        (each["name"], ddl_of(each["type"]), each["metadata"].get(PHYSICAL_NAME)) for each in metadata.fields
    )
    return (metadata.partition_columns, *columns)


def feed_window(
    path: Location,
    position: FeedPosition,
    *,
    through_version_inclusive: int | None = None,
    head: int | None = None,
) -> FeedWindow:
    """Return the log's record of a table after a position, up to its head or a version before it.

    `head` is the one that the caller has listed.

    Raises: StoreError if the log cannot be listed, or has a gap before its head.
    """
    if head is None and (head := head_if_any(path)) is None:
        return FeedWindow(path, position, None, position.version)
    through = head if through_version_inclusive is None else min(head, through_version_inclusive)
    found: list[Commit] = []
    unreadable = None
    try:
        for each in commits(path, from_version_exclusive=position.version, through_version_inclusive=through):
            found.append(replace(each, is_repetition=is_repetition(path, each)))
    except StoreError as error:
        unreadable = error
    return FeedWindow(
        path,
        position,
        head,
        through,
        tuple(found),
        unreadable,
        is_another_commit(path, position.version, position.commit),
    )


_TYPE_CHANGES = "delta.typeChanges"
"""The property of a column whose type Delta widened: older files are still read as they were written."""


def retyped_column(before: "TableMetadata", after: "TableMetadata") -> str | None:
    """Return a column whose type changed so that older files lack its values, or None."""
    types = {each["name"]: ddl_of(each["type"]) for each in before.fields}
    for each in after.fields:
        old = types.get(each["name"])
        is_widened = isinstance(each["type"], str) and _TYPE_CHANGES in each["metadata"]
        if isinstance(each["type"], str) and old not in (None, ddl_of(each["type"])) and not is_widened:
            return str(each["name"])
    return None

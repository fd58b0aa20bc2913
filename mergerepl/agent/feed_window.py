"""What happened to an article's table since the last capture, told from its log without an engine.

Everything a user can do to a table that a feed cannot tell is noticed here and refused by name, or marked as
a gap that capture bridges by comparing versions (design section 3).
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mergerepl.agent.unmatched_removals import unmatched_removal_gap
from mergerepl.delta.log import Commit, TruncatedLogError, commits
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.types import Field, bare, ddl_of, padded_types
from mergerepl.errors import CaptureError, SchemaMismatchError
from mergerepl.model.article import PublishedArticle
from mergerepl.store.captured_table import (
    captured_version,
    head_of,
    is_as_captured,
    metadata_when_captured,
    require_same_table,
)
from mergerepl.store.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo


@dataclass(frozen=True)
class FeedWindow:
    """The versions of one article's table that are not captured yet.

    `gap` says why the feed cannot be used, `generated_columns` which published columns Delta computes, and how,
    `timestamp_partitions` what only a session in UTC may read.
    """

    article: PublishedArticle
    table: Path
    from_version_exclusive: int
    through_version_inclusive: int
    user_commits: tuple[Commit, ...]
    own_versions: tuple[int, ...]
    gap: str | None
    is_late: bool = False
    generated_columns: Mapping[str, str] = field(default_factory=dict)
    timestamp_partitions: tuple[str, ...] = ()
    metadata_versions: tuple[int, ...] = ()
    """Those that state the table's metadata."""

    @property
    def retold_versions(self) -> tuple[int, ...]:
        """Versions of which the feed may tell something else than a user wrote; the files that came and went do not."""
        return tuple(commit.version for commit in self.user_commits if commit.retells_rows)

    @property
    def has_changes(self) -> bool:
        """True when a user changed rows in these versions."""
        return bool(self.user_commits) or self.gap is not None


def feed_window(
    replica: Replica,
    article: PublishedArticle,
    info: ReplicaInfo,
    *,
    through_version_inclusive: int | None = None,
    is_late: bool = False,
) -> FeedWindow:
    """Return the window from the article's captured version to the head.

    A late window lies before a MERGE of ours that is done: its users' commits cannot be refused any more. What an
    ordinary one refuses about columns is left to the next ordinary one; about keys, capture tells a warning.

    Raises: CaptureError if the table went back, was re-created or is gone, has files elsewhere or removed none;
    SchemaMismatchError if its published columns are others at the window's end; StoreError if a commit of the
    window is damaged.
    """
    table = replica.table(article)
    captured, head = captured_version(replica, article, info), head_of(replica, article, info)
    if through_version_inclusive is not None:
        head = min(head, through_version_inclusive)
    if head == captured and (is_late or is_as_captured(replica, article, info)):
        return FeedWindow(article, table, captured, head, (), (), None)
    metadata = require_same_table(replica, article, info, is_late=is_late)
    generated = {name: text for name, text in metadata.generated_columns.items() if name in article.columns}
    timestamps = metadata.timestamp_partitions
    try:
        found = list(commits(table, from_version_exclusive=captured, through_version_inclusive=head))
    except TruncatedLogError:
        _schema_gap(replica, article, [], None, at_head=None if is_late else metadata)
        gone = "versions are gone from its log"
        return FeedWindow(article, table, captured, head, (), (), gone, is_late, generated, timestamps)
    stated = tuple(commit.version for commit in found if commit.metadata is not None)
    before = metadata_when_captured(replica, article, info) if stated else None
    # Each of these may refuse, whatever the others found to be undone.
    undone = [
        _schema_gap(replica, article, found, before, at_head=None if is_late else metadata),
        _foreign_files_gap(replica, article, found, is_late=is_late),
        unmatched_removal_gap(replica, article, found, captured, is_late=is_late),
    ]
    # A session that does its part moves the captured version beyond its MERGEs. What is left of one that was given up
    # before that is in no metadata: it counts as if users had written it.
    user_commits = tuple(each for each in found if each.is_user_change or (each.is_merge and not is_late))
    written = {commit.version for commit in found if commit.data_change}
    own_versions = tuple(sorted(written - {commit.version for commit in user_commits}))
    gap = next(filter(None, undone), None) or _feed_gap(found, user_commits)
    return FeedWindow(
        article,
        table,
        captured,
        head,
        user_commits,
        own_versions,
        gap,
        is_late,
        generated,
        timestamps,
        stated,
    )


def move_versions(replica: Replica, info: ReplicaInfo, windows: Iterable[FeedWindow]) -> None:
    """Move captured versions over commits that changed no rows (OPTIMIZE, properties), so that they are read once."""
    moved = {w.article.nickname: w.through_version_inclusive for w in windows if not w.has_changes}
    captured = {**info.captured, **moved}
    if captured != info.captured:
        replica.save_info(replace(info, captured=captured))


def _schema_gap(
    replica: Replica,
    article: PublishedArticle,
    found: list[Commit],
    before: TableMetadata | None,
    *,
    at_head: TableMetadata | None,
) -> str | None:
    """Refuse other columns at the table's head; what was undone before it is a gap of the feed.

    So is another partitioning: of files written under the old one the feed does not have these columns' values.
    Without `at_head` nothing is refused.

    Raises: SchemaMismatchError.
    """
    stated = [commit for commit in found if commit.metadata is not None]
    problem = schema_problem(article, at_head, before) if at_head is not None else None
    if problem is not None:
        where = f"version {stated[-1].version}, {stated[-1].operation}" if stated else "an earlier version"
        raise SchemaMismatchError(
            f"Article '{article.name}' at '{replica.root}': {problem} ({where}). Schema changes do not travel in "
            "this version. Nothing was changed. Undo it with ALTER TABLE, or with RESTORE TABLE, which takes back "
            "all later changes of the table too.",
            replica=str(replica.root),
            article=article.name,
        )
    passed = [commit.metadata for commit in stated if commit.metadata is not None]
    if any(schema_problem(article, metadata, before) for metadata in passed):
        return "its columns were changed in between"
    if before is not None and any(each.partition_columns != before.partition_columns for each in passed):
        return "its partitioning was changed"
    if before is None and any(commit.is_user_change for commit in stated):
        # Of rows that such a commit took away the feed may lack values, even of the key: they would stay elsewhere.
        return "its partitioning may have been changed"
    return None


def _foreign_files_gap(
    replica: Replica, article: PublishedArticle, found: list[Commit], *, is_late: bool
) -> str | None:
    """Refuse files outside the table's folder; if they left the table again, the feed that needs them is a gap.

    Publishing refuses them as well: their owner may remove them, and a log may name any file at all.

    Raises: CaptureError.
    """
    standing: dict[str, Commit] = {}
    for commit in found:
        for name in commit.foreign_removed:
            standing.pop(name, None)
        standing.update(dict.fromkeys(commit.foreign_added, commit))
    if standing and not is_late:
        name, commit = next(iter(standing.items()))
        raise CaptureError(
            f"Article '{article.name}': since version {commit.version} ({commit.operation}), table "
            f"'{replica.table(article)}' has files outside its folder, such as '{name}' (a shallow clone?). Their "
            "owner may remove them. Nothing was changed. Take that commit back with RESTORE TABLE, and write its "
            "rows into the table's own folder.",
            replica=str(replica.root),
            article=article.name,
        )
    has_passed = not is_late and any(commit.foreign_added for commit in found)
    return "files outside the table's folder were part of it for a while" if has_passed else None


def schema_problem(
    article: PublishedArticle, metadata: TableMetadata, before: TableMetadata | None
) -> str | None:
    """Return how a table's columns differ from the published ones, or None.

    Whether a column takes NULL, and pads its texts, is told by the table as it was when it was captured, if that is known.
    """
    present = {column["name"]: column for column in metadata.fields}
    for name, type_ in zip(article.columns, article.types, strict=True):
        if name not in present:
            return f"published column '{name}' was dropped or renamed"
        stored = ddl_of(present[name]["type"])
        if stored != type_:
            return f"published column '{name}' changed its type from {type_} to {stored}"
    for name, text in article.generated:
        if metadata.generated_columns.get(name) != text:
            # Each replica computes these values; one that is told them would differ.
            return f"published column '{name}' is not generated as ({text}) any more"
    known = dict(article.generated)
    for name in article.columns:
        if name in metadata.generated_columns and name not in known:
            return f"published column '{name}' became generated as ({metadata.generated_columns[name]})"
        if any(key.startswith("delta.identity.") for key in present[name]["metadata"]):
            return f"published column '{name}' became an identity column"
    added = [name for name in present if name not in article.columns]
    if added and not article.vertical:
        return f"column '{added[0]}' was added"
    problem = _told_by(article, present, before) if before is not None else None
    if problem is not None:
        return problem
    took_null = {column["name"]: column["nullable"] for column in before.fields} if before is not None else {}
    for name, column in present.items():
        # A column that is not published may take NULL again: nobody else has it.
        is_news = name in article.columns or not column["nullable"]
        if is_news and took_null.get(name, column["nullable"]) != column["nullable"]:
            return f"column '{name}' " + (
                "is not NOT NULL any more" if column["nullable"] else "became NOT NULL"
            )
    return None


def _told_by(article: PublishedArticle, present: Mapping[str, Field], before: TableMetadata) -> str | None:
    """Return what of the published columns is not as it was, though their types have the same names, or None."""
    known = {column["name"]: column for column in before.fields}
    for name in article.columns:
        was, is_ = known.get(name), present[name]
        if was is None:
            continue
        if padded_types(was) != padded_types(is_):
            # The other side's texts would be padded, or not, unlike this one's: equal keys would differ.
            return f"published column '{name}' is a char(n) that it was not, or is not the one that it was"
        if ddl_of(was["type"]) == ddl_of(is_["type"]) and bare(was["type"]) != bare(is_["type"]):
            return f"a part of published column '{name}' became NOT NULL, or is not NOT NULL any more"
    return None


def _feed_gap(found: list[Commit], user_commits: Container[Commit]) -> str | None:
    """Return at which of the users' commits the feed was off, or what else keeps it from being told; or None."""
    switched_off = has_vectors = False
    dropped: int | None = None
    for commit in found:
        if dropped is not None and commit in user_commits:
            # Delta reads the feed under the protocol of its last commit, and then tells every row of a file as deleted, or
            # as deleted and inserted.
            return f"deletion vectors were dropped from it at version {dropped}"
        has_vectors = has_vectors or (commit.has_vectors and commit in user_commits)
        if has_vectors and commit.drops_vectors:
            dropped = commit.version
        if commit.metadata is not None:
            switched_off = not commit.metadata.change_data_feed
        if switched_off and commit in user_commits:
            return f"Change Data Feed was off at version {commit.version}"
    return None

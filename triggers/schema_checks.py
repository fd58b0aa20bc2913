"""Checks of a published table: merge replication refuses another table at its path, an older copy, other columns.

Pure on the facts of a feed window.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mergerepl.delta.feed.column_changes import STATEMENTS, TYPE
from mergerepl.delta.types import Field, bare, ddl_of, is_widening, padded_types
from mergerepl.errors import CaptureError, SchemaMismatchError, begin_again
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import resolver_info
from mergerepl.model.tracking_options import SYSTEM_PREFIX
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from triggers.errors import StagedColumnsError, another_column, older_copy, replaced_table, table_gone

if TYPE_CHECKING:
    from mergerepl.delta.feed.window import FeedWindow
    from mergerepl.delta.metadata import TableMetadata
    from mergerepl.delta.tables import Commit


ADDED, LOST = "was added", "was dropped or renamed"
TAKES_NULL, STATED = "is not NOT NULL any more", "has another comment or default"
WIDER, NARROWER = "a wider type", "a narrower type"
FOLLOWED = (ADDED, LOST, TAKES_NULL, STATED, WIDER)
"""The ends of the problems of columns that a session may follow."""


@dataclass(frozen=True)
class ArticleTable:
    """An article's table at one replica."""

    article: PublishedArticle
    root: Location
    replid: str
    is_publisher: bool

    @property
    def path(self) -> Location:
        """Where the table is."""
        return self.root / self.article.table


def check_captured_table(
    at: ArticleTable, window: "FeedWindow", *, is_late: bool = False, is_followed: bool = False
) -> None:
    """Check that an article's table is the one that was captured.

    `is_late`: after a session's MERGE, when the table's id is not compared. `is_followed`: the commits that changed the
    columns, or the id, are known; the log must go on from the captured commit.

    Raises: CaptureError if it is gone, another table or an older copy; StoreError if its log cannot be read.
    """
    name, path, captured = at.article.name, at.path, window.position.version
    if window.head_version is None:
        raise table_gone(name, path, at.root, is_publisher=at.is_publisher)
    if window.is_older:
        what = f"is at version {window.head_version}, but version {captured} was captured already"
        raise older_copy(name, path, at.root, what)
    if window.is_unchanged:
        return
    is_new_id = not is_late and window.table.metadata.table_id != window.position.table_id
    if is_new_id and not (is_followed and window.position.commit is not None):
        raise replaced_table(name, path, at.root)
    if window.is_another_commit:
        what = f"has another commit as version {captured} than the one captured"
        raise older_copy(name, path, at.root, what)


def check_columns(at: ArticleTable, window: "FeedWindow") -> None:
    """Check that the table's columns are the published ones at its head, and not other columns of the same names.

    Raises: SchemaMismatchError.
    """
    stated = [] if window.is_truncated else window.metadata_commits
    before = window.before if stated else None
    problem = schema_problem(at.article, window.table.metadata, before, has_own=not at.is_publisher)
    if problem is not None:
        raise changed_columns(at, problem, stated[-1] if stated else None)
    replaced = replaced_column(at.article, window)
    if replaced is not None:
        name, commit = replaced
        raise SchemaMismatchError(
            f"Article '{at.article.name}' at '{at.root}': {another_column(name, commit.version, commit.operation)} This "
            "change does not travel: its values would replace the published ones at every replica. Nothing was changed. Go "
            f"back with {_restore(at.path, commit.version)}; or {begin_again(is_publisher=at.is_publisher)}.",
            replica=str(at.root),
            article=at.article.name,
            table=str(at.path),
            column=name,
            version=commit.version,
        )
    said = [each for each in window.schema.changes if each.kind in STATEMENTS]
    changed = [each.column for each in said if each.column in at.article.columns]
    if changed and at.is_publisher and stated:
        raise changed_columns(at, f"column '{changed[0]}' {STATED}", stated[-1])


def check_merged_columns(at: ArticleTable, window: "FeedWindow") -> None:
    """Check that a table still has the columns that rows were staged for, under their names and with their types.

    Raises: StagedColumnsError.
    """
    types = {each["name"]: ddl_of(each["type"]) for each in window.table.metadata.fields}
    published = dict(zip(at.article.columns, at.article.types, strict=True))
    for column in window.schema.top:
        name, commit, what = column.first_name, column.lost, "renamed or dropped"
        if name not in published:
            continue
        if name == column.name and types.get(name, published[name]) != published[name]:
            # Late rows would be read with the former type.
            stated = [
                each.version for each in window.schema.changes if each.kind == TYPE and each.column == name
            ]
            commit = next((each for each in window.commits if each.version in stated), None)
            what = f"given type {types[name]}"
        elif name == column.name:
            continue
        if commit is None:
            continue
        undo = "" if name == column.name else "ALTER TABLE … RENAME COLUMN, or with "
        remedy = f"Undo that with {undo}{_restore(at.path, commit.version)}, then run `mergerepl sync`"
        if at.is_publisher:
            remedy = (
                "Run `mergerepl sync` again: it gives the session up, follows the columns and begins anew"
            )
        raise StagedColumnsError(at.article.name, at.root, name, what, commit, remedy)


def changed_columns(at: ArticleTable, problem: str, commit: "Commit | None") -> SchemaMismatchError:
    """Return the error about a change of columns that is not followed."""
    where = f"version {commit.version}, {commit.operation}" if commit is not None else "an earlier version"
    travels = "This schema change does not travel. "
    undo = (
        "Undo it: ADD, RENAME and NOT NULL with ALTER TABLE; all else with RESTORE TABLE, which takes back all later "
        "changes of the table, too."
    )
    if problem.endswith(WIDER):
        undo = "Take it back with RESTORE TABLE, which takes back all later changes of the table, too."
        if not at.is_publisher:
            undo = (
                "Give the column the same type in the publisher's table, by ALTER TABLE … ALTER COLUMN … TYPE, then run "
                "`mergerepl sync`. Or take it back here with RESTORE TABLE, which takes back all its later changes, too."
            )
    if problem.endswith(NARROWER):
        undo = (
            "Give the column its type again, by ALTER TABLE … ALTER COLUMN … TYPE, then run `mergerepl sync`."
        )
    column = re.search("column '([^']+)'", problem)
    is_named = column is not None and column[1] in named_columns(at.article)
    # Others are followed before they are checked: this one was changed while the session ran.
    is_late = commit is not None and problem.endswith((LOST, TAKES_NULL, WIDER)) and not is_named
    if at.is_publisher and (is_late or problem.endswith((ADDED, STATED))):
        travels, undo = "", "It travels with the next `mergerepl sync`."
    return SchemaMismatchError(
        f"Article '{at.article.name}' at '{at.root}': {problem} ({where}). {travels}Nothing was changed. {undo}",
        replica=str(at.root),
        article=at.article.name,
    )


def named_columns(article: PublishedArticle) -> set[str]:
    """Return the columns that an article names: a subscriber's definition cannot go on under another name."""
    named = {*article.identity, *dict(article.generated), *resolver_info(article.resolver_info).columns}
    return {*named, article.rowguid_column or ""}


def _restore(table: Location, version: int) -> str:
    return (
        f"RESTORE TABLE delta.{quote(str(table))} TO VERSION AS OF {version - 1} (it takes back all later changes of the "
        "table, too)"
    )


def replaced_column(article: PublishedArticle, window: "FeedWindow") -> "tuple[str, Commit] | None":
    """Return a published column that has only the name of the captured one, and the commit that took that one away."""
    found = window.schema.replaced_names.items()
    return next(((".".join(path), commit) for path, commit in found if path[0] in article.columns), None)


def columns_gap(
    article: PublishedArticle,
    window: "FeedWindow",
    changes: Collection[int],
    *,
    has_own: bool,
    is_followed: bool,
) -> str | None:
    """Return why the feed lacks these versions' changes although the columns at its end are the published ones.

    Where columns were followed, no row was changed between their changes.

    The columns were others in between; or the partitioning was, and for files written under the old partitioning the
    feed lacks the values of these columns.
    """
    stated = window.metadata_commits
    if not stated:
        return None
    before = window.before
    passed = [commit.metadata for commit in stated if commit.metadata is not None]
    is_changed = any(schema_problem(article, metadata, before, has_own=has_own) for metadata in passed)
    if is_changed and not is_followed:
        return "its columns were changed in between"
    if before is not None and any(each.partition_columns != before.partition_columns for each in passed):
        return "its partitioning was changed"
    if before is None and any(commit.version in changes for commit in stated):
        # The feed may lack values of rows that such a commit removed, even of the key: other replicas would keep them.
        return "its partitioning may have been changed"
    return None


def check_files(at: ArticleTable, window: "FeedWindow") -> None:
    """Check that all files of the table lie in its folder.

    Publishing refuses them as well: their owner may remove them, and a log may name any file.

    Raises: CaptureError.
    """
    foreign = next(iter(window.standing_foreign_files.items()), None)
    if foreign is not None:
        file, commit = foreign
        raise CaptureError(
            f"Article '{at.article.name}': since version {commit.version} ({commit.operation}), table '{at.path}' has "
            f"files outside its folder, such as '{file}' (a shallow clone?). Their owner may remove them. Nothing was "
            "changed. Take that commit back with RESTORE TABLE, and write its rows into the table's own folder.",
            replica=str(at.root),
            article=at.article.name,
        )


def check_removals(at: ArticleTable, window: "FeedWindow") -> None:
    """Check that all commits removed files by the names that the log knows.

    Raises: CaptureError.
    """
    standing = next(iter(window.unmatched_removals.standing), None)
    if standing is not None:
        commit = standing.commit
        raise CaptureError(
            f"Article '{at.article.name}': version {commit.version} of table '{at.path}' ({commit.operation}, by "
            f"{commit.engine or 'an unknown writer'}) removes the file '{standing.removed}', which its log names "
            f"'{standing.meant}'. So the file is still in the table: rows that were updated are there twice, and rows that "
            f"were deleted are still there. Nothing was changed. Go back with {_restore(at.path, commit.version)}, run "
            f"`mergerepl doctor -f {at.root} --fix`, then write again.",
            replica=str(at.root),
            article=at.article.name,
            table=str(at.path),
            version=commit.version,
        )


def files_gap(window: "FeedWindow") -> str | None:
    """Return a problem if files elsewhere were part of the table and left it: the feed needs them. Else None."""
    has_passed = any(commit.foreign_added for commit in window.commits)
    return "files outside the table's folder were part of it for a while" if has_passed else None


def require_columns(article: PublishedArticle, table: Location, present: Collection[str]) -> None:
    """Check that a table has the published columns, for commands that would read them.

    Raises: SchemaMismatchError naming one that it lacks.
    """
    lost = next((name for name in article.columns if name not in present), None)
    if lost is not None:
        raise SchemaMismatchError(
            f"Article '{article.name}': published column '{lost}' {LOST} in '{table}'. Run `mergerepl sync`, which follows "
            "a change of columns or says why it does not travel.",
            article=article.name,
            table=str(table),
        )


def schema_problem(
    article: PublishedArticle,
    metadata: "TableMetadata",
    before: "TableMetadata | None",
    *,
    has_own: bool = False,
) -> str | None:
    """Return how a table's columns differ from the published ones, or None.

    `before` is the captured state of the table, if known: its NOT NULL and its padded texts count. `has_own`: it may have
    further columns of its own, which take NULL.
    """
    present = {column["name"]: column for column in metadata.fields}
    for name, type_ in zip(article.columns, article.types, strict=True):
        if name not in present:
            return f"published column '{name}' {LOST}"
        stored = ddl_of(present[name]["type"])
        if is_widening(type_, stored):
            return f"published column '{name}' went from {type_} to {stored}, {WIDER}"
        if stored != type_:
            changed = f"published column '{name}' changed its type from {type_} to {stored}"
            return changed + (f", {NARROWER}" if is_widening(stored, type_) else "")
    for name, text in article.generated:
        if metadata.generated_columns.get(name) != text:
            # Each replica computes these values: one that received them would differ.
            return f"published column '{name}' is not generated as ({text}) any more"
    known = dict(article.generated)
    for name in article.columns:
        if name in metadata.generated_columns and name not in known:
            return f"published column '{name}' became generated as ({metadata.generated_columns[name]})"
        if any(key.startswith("delta.identity.") for key in present[name]["metadata"]):
            return f"published column '{name}' became an identity column"
    # Compact change tracking adds its own columns, which are never published.
    added = [name for name in present if name not in article.columns and not name.startswith(SYSTEM_PREFIX)]
    refused = [name for name in added if not present[name]["nullable"]]
    if refused and not article.vertical:
        return f"column '{refused[0]}' {ADDED} as NOT NULL"
    if added and not has_own and not article.vertical:
        return f"column '{added[0]}' {ADDED}"
    if before is None:
        return None
    return _type_problem(article, present, before) or _null_problem(article, present, before)


def _null_problem(
    article: PublishedArticle, present: Mapping[str, Field], before: "TableMetadata"
) -> str | None:
    """Return the column whose NOT NULL was added or dropped, or None."""
    took_null = {column["name"]: column["nullable"] for column in before.fields}
    for name, column in present.items():
        # A column that is not published may take NULL again: other replicas lack it.
        is_news = name in article.columns or not column["nullable"]
        if is_news and took_null.get(name, column["nullable"]) != column["nullable"]:
            return f"column '{name}' " + (TAKES_NULL if column["nullable"] else "became NOT NULL")
    return None


def _type_problem(
    article: PublishedArticle, present: Mapping[str, Field], before: "TableMetadata"
) -> str | None:
    """Return a difference in the published columns beyond the names of their types, or None."""
    known = {column["name"]: column for column in before.fields}
    for name in article.columns:
        was, is_ = known.get(name), present[name]
        if was is None:
            continue
        if padded_types(was) != padded_types(is_):
            # One side's texts would be padded and the other's not: equal keys would differ.
            return f"published column '{name}' is a char(n) that it was not, or is not the one that it was"
        if ddl_of(was["type"]) == ddl_of(is_["type"]) and bare(was["type"]) != bare(is_["type"]):
            return f"a part of published column '{name}' became NOT NULL, or is not NOT NULL any more"
    return None

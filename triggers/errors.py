"""Errors of change tracking, with their texts."""

from typing import TYPE_CHECKING

from mergerepl.errors import CaptureError, SchemaMismatchError, begin_again
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.delta.tables import Commit


class DuplicateKeyError(CaptureError):
    """Two rows of an article have one key."""


class NullKeyError(CaptureError):
    """A row of an article has a NULL in its key."""


class FeedGapError(CaptureError):
    """The change feed lacks versions and the old version is gone too."""


class StagedColumnsError(SchemaMismatchError):
    """A column of staged rows was renamed, dropped or given another type before they were written."""

    def __init__(
        self, article: str, root: Location, column: str, what: str, commit: "Commit", remedy: str
    ) -> None:
        """Name the column, what was done to it and the commit that did it; `remedy` is what ends that."""
        super().__init__(
            f"Article '{article}' at '{root}': column '{column}' was {what} at version {commit.version} "
            f"({commit.operation}) while a session was under way. {remedy}",
            replica=str(root),
            article=article,
            column=column,
            version=commit.version,
        )


def table_gone(article: str, table: Location, root: Location, *, is_publisher: bool) -> CaptureError:
    """Return the error about a missing table of an article."""
    leave = "all subscriptions and the article" if is_publisher else "the subscription of this replica"
    return CaptureError(
        f"Article '{article}': its table '{table}' is gone or no Delta table any more. Nothing was changed. Restore "
        f"it, or take {leave} out of the file and run `mergerepl apply`.",
        replica=str(root),
        article=article,
    )


def replaced_table(article: str, table: Location, root: Location) -> CaptureError:
    """Return the error about a table whose id differs from the captured one."""
    return CaptureError(
        f"Article '{article}': table '{table}' was dropped and created again, or replaced by one in which a published "
        "column is missing or has another type (its table id changed), so what happened to its rows is not recorded. "
        "Nothing was changed. Restore the former table (RESTORE TABLE, if its versions go on), and replace it by one that "
        f"has these columns, or by INSERT OVERWRITE. Or {begin_again()}.",
        replica=str(root),
        article=article,
    )


def older_copy(article: str, table: Location, root: Location, what: str) -> CaptureError:
    """Return the error about a table whose folder was restored; `what` is the version that shows it."""
    return CaptureError(
        f"Article '{article}': table '{table}' {what}. Its folder was replaced by an older copy. Nothing was changed. Put "
        "the newer folder back (to go back in time use RESTORE TABLE, which is captured as a change), or "
        f"{begin_again()}.",
        replica=str(root),
        article=article,
    )


def another_column(column: str, version: int, operation: str) -> str:
    """Return the sentence that a column has only the name of a published one."""
    return (
        f"published column '{column}' is not the column any more that it was before version {version} ({operation}): it "
        "was dropped and added again, or another column has its name now."
    )

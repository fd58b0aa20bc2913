"""Errors of change tracking, with their texts."""

from collections.abc import Sequence
from pathlib import Path

from mergerepl.errors import CaptureError, SchemaMismatchError, begin_again
from mergerepl.rows.sql import quote


class DuplicateKeyError(CaptureError):
    """Two rows of an article have one key."""

    @classmethod
    def of(
        cls, article: str, table: Path, identity: Sequence[str], keys: Sequence[str]
    ) -> "DuplicateKeyError":
        """Return the error that names some of the keys."""
        return cls(
            f"{duplicate_keys(article, table, identity, keys)} Nothing was captured. Remove the duplicates, then run "
            "again.",
            article=article,
            table=str(table),
            keys=", ".join(keys),
        )


def duplicate_keys(article: str, table: Path, identity: Sequence[str], keys: Sequence[str]) -> str:
    """Return the sentence that several rows of a table have one key."""
    return f"Article '{article}': several rows of '{table}' have one key ({', '.join(identity)}): {'; '.join(keys)}."


class NullKeyError(CaptureError):
    """A row of an article has a NULL in its key."""

    @classmethod
    def of(cls, article: str, table: Path, identity: Sequence[str], rows: int) -> "NullKeyError":
        """Return the error that says how many rows there are."""
        return cls(
            f"Article '{article}': {rows} new rows of '{table}' have NULL in their key ({', '.join(identity)}). A row "
            "without a key cannot be replicated. Nothing was captured. Give them keys or delete them, then run again.",
            article=article,
            table=str(table),
        )


class FeedGapError(CaptureError):
    """The change feed lacks versions and the old version is gone too."""

    @classmethod
    def of(cls, article: str, table: Path, version: int, gap: str) -> "FeedGapError":
        """Return the error that says since which version changes are lost, and what the feed lacks."""
        return cls(
            f"Article '{article}': the changes of '{table}' since version {version} cannot be computed any more: {gap}, "
            "and that version cannot be read either. Nothing was changed. Restore the table from a copy that still has "
            f"these versions, or {begin_again()}.",
            article=article,
            table=str(table),
        )


def table_gone(article: str, table: Path, root: Path, *, is_publisher: bool) -> CaptureError:
    """Return the error about an article's table that is not there any more."""
    leave = "all subscriptions and the article" if is_publisher else "the subscription of this replica"
    return CaptureError(
        f"Article '{article}': its table '{table}' is gone or no Delta table any more. Nothing was changed. Restore "
        f"it, or take {leave} out of the file and run `mergerepl apply FILE`.",
        replica=str(root),
        article=article,
    )


def replaced_table(article: str, table: Path, root: Path) -> CaptureError:
    """Return the error about a table whose id is another one than was captured."""
    return CaptureError(
        f"Article '{article}': table '{table}' was dropped and created again, or replaced, or given columns by a MERGE of "
        "deltalake (its table id changed), so what happened to its rows is not recorded. Nothing was changed. Restore the "
        "former table (RESTORE TABLE, if its versions go on); to replace all rows, use INSERT OVERWRITE instead. Or "
        f"{begin_again()}.",
        replica=str(root),
        article=article,
    )


def older_copy(article: str, table: Path, root: Path, what: str) -> CaptureError:
    """Return the error about a table whose folder was put back; `what` says by which version that shows."""
    return CaptureError(
        f"Article '{article}': table '{table}' {what}. Its folder was replaced by an older copy. Nothing was changed. Put "
        "the newer folder back (to go back in time use RESTORE TABLE, which is captured as a change), or "
        f"{begin_again()}.",
        replica=str(root),
        article=article,
    )


def foreign_files(
    article: str, table: Path, root: Path, *, file: str, version: int, operation: str
) -> CaptureError:
    """Return the error about a table with files outside its folder since a version."""
    return CaptureError(
        f"Article '{article}': since version {version} ({operation}), table '{table}' has files outside its folder, such "
        f"as '{file}' (a shallow clone?). Their owner may remove them. Nothing was changed. Take that commit back with "
        "RESTORE TABLE, and write its rows into the table's own folder.",
        replica=str(root),
        article=article,
    )


def removed_nothing(
    article: str,
    table: Path,
    root: Path,
    *,
    removed: str,
    meant: str,
    version: int,
    operation: str,
    engine: str,
) -> CaptureError:
    """Return the error about a commit that removed a file by another name than the log knows it by."""
    return CaptureError(
        f"Article '{article}': version {version} of table '{table}' ({operation}, by {engine or 'an unknown writer'}) "
        f"removes the file '{removed}', which its log names '{meant}'. So the file is still in the table: rows that were "
        "updated are there twice, and rows that were deleted are still there. Nothing was changed. Go back with RESTORE "
        f"TABLE delta.{quote(str(table))} TO VERSION AS OF {version - 1} (it takes back all later changes of the table, "
        f"too), run `mergerepl doctor {root} --mend`, then write again.",
        replica=str(root),
        article=article,
        table=str(table),
        version=version,
    )


def columns_changed(article: str, root: Path, problem: str, where: str) -> SchemaMismatchError:
    """Return the error about a table whose columns are not the published ones any more."""
    return SchemaMismatchError(
        f"Article '{article}' at '{root}': {problem} ({where}). Schema changes do not travel in this version. Nothing was "
        "changed. Undo it: ADD, RENAME and NOT NULL with ALTER TABLE; all else with RESTORE TABLE, which takes back all "
        "later changes of the table too.",
        replica=str(root),
        article=article,
    )


def column_replaced(
    article: str, table: Path, root: Path, column: str, *, version: int, operation: str, is_publisher: bool
) -> SchemaMismatchError:
    """Return the error about a published column that was dropped, and whose name another column has now."""
    return SchemaMismatchError(
        f"Article '{article}' at '{root}': {another_column(column, version, operation)} Schema changes do not travel in "
        "this version: its values would replace the published ones at every replica. Nothing was changed. Go back with "
        f"RESTORE TABLE delta.{quote(str(table))} TO VERSION AS OF {version - 1} (it takes back all later changes of the "
        f"table, too); or {begin_again(is_publisher=is_publisher)}.",
        replica=str(root),
        article=article,
        table=str(table),
        column=column,
        version=version,
    )


def another_column(column: str, version: int, operation: str) -> str:
    """Return the sentence that a column only has the name of a published one."""
    return (
        f"published column '{column}' is not the column any more that it was before version {version} ({operation}): it "
        "was dropped and added again, or another column has its name now."
    )


def column_lost(article: str, table: Path, column: str) -> SchemaMismatchError:
    """Return the error about a table that lacks a published column, for commands that would read it."""
    return SchemaMismatchError(
        f"Article '{article}': published column '{column}' was dropped or renamed in '{table}'. Schema changes do not "
        "travel in this version; until it is undone, no session captures this table.",
        article=article,
        table=str(table),
    )


def generated_values(article: str, table: Path, column: str, found: str) -> CaptureError:
    """Return the error about generated values that this session computes otherwise; `found` is `other_values`."""
    return CaptureError(
        f"{found} Nothing was captured. Delete these rows and insert them again in a session with that time zone "
        "(spark.sql.session.timeZone), then run again. A Python program whose own session has the writers' time zone may "
        "synchronize them as they are.",
        article=article,
        table=str(table),
        column=column,
    )


def other_values(article: str, table: Path, *, rows: int, column: str, expression: str, zone: str) -> str:
    """Return the sentence that rows have other values of a generated column than this session computes."""
    return (
        f"Article '{article}': {rows} changed rows of '{table}' have values of the generated column '{column}' "
        f"({expression}) that a session with time zone {zone} computes differently, as the other replicas would."
    )

"""Is an article's table still the one that was captured? Told from its log, for sync, capture and apply alike."""

from collections.abc import Collection
from pathlib import Path

from mergerepl.delta.log import head_version, is_delta_table
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.table import open_table
from mergerepl.errors import CaptureError, SchemaMismatchError, StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.store.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo


def captured_version(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> int:
    """Return the version up to which the article's table is captured.

    Raises: CaptureError if MSmerge_replinfo does not say.
    """
    captured = info.captured.get(article.nickname)
    if captured is None:
        raise CaptureError(
            f"Article '{article.name}': MSmerge_replinfo of '{replica.root}' does not say up to which version "
            f"its table '{replica.table(article)}' was captured: it was edited or damaged. Nothing was changed. "
            "Restore the '_mergerepl' folder from a copy taken together with the tables, or initialise the "
            "replica anew.",
            replica=str(replica.root),
            article=article.name,
        )
    return captured


def table_gone(article: str, table: Path, root: Path, *, is_publisher: bool) -> CaptureError:
    """Return the error about an article's table that is not there any more."""
    leave = "all subscriptions and the article" if is_publisher else "the subscription of this replica"
    return CaptureError(
        f"Article '{article}': its table '{table}' is gone or no Delta table any more. Nothing was changed. Restore "
        f"it, or take {leave} out of the file and run `mergerepl apply FILE`.",
        replica=str(root),
        article=article,
    )


def head_of(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> int:
    """Return the latest version of the article's table.

    Raises: CaptureError if the table is gone or older than what was captured of it.
    """
    table, captured = replica.table(article), captured_version(replica, article, info)
    if not is_delta_table(table):
        raise table_gone(article.name, table, replica.root, is_publisher=replica.publishes(article.pubid))
    head = head_version(table)
    if head < captured:
        raise _older_copy(
            replica, article, f"is at version {head}, but version {captured} was captured already"
        )
    return head


def is_as_captured(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> bool:
    """Return whether the table is known to hold the very commit that was captured, by one look at its log file."""
    is_known = replica.noted_commit(article, info) is not None
    return is_known and not replica.is_another_copy(article, info)


def require_same_table(
    replica: Replica, article: PublishedArticle, info: ReplicaInfo, *, is_late: bool = False
) -> TableMetadata:
    """Return what the article's table is at its head; `is_late`: after a session's MERGE, whatever its id is by then.

    Raises: StoreError if its log cannot be read; CaptureError if it is another table by now, or another copy.
    """
    table = replica.table(article)
    metadata = open_table(table).metadata
    if metadata.table_id != info.table_ids.get(article.nickname) and not is_late:
        raise CaptureError(
            f"Article '{article.name}': table '{table}' was dropped and created again, or replaced, or given columns by a "
            "MERGE of deltalake (its table id changed), so what happened to its rows is not recorded. Nothing was changed. "
            "Restore the former table (RESTORE TABLE, if its versions go on), or initialise this replica anew; to replace "
            "all rows, use INSERT OVERWRITE instead.",
            replica=str(replica.root),
            article=article.name,
        )
    if replica.is_another_copy(article, info):
        captured = captured_version(replica, article, info)
        raise _older_copy(replica, article, f"has another commit as version {captured} than the one captured")
    return metadata


def check_captured_table(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> None:
    """Check that the article's table is the one that was captured, whatever was written to it since.

    Raises: as `head_of` and `require_same_table`.
    """
    is_at_head = head_of(replica, article, info) == captured_version(replica, article, info)
    if not (is_at_head and is_as_captured(replica, article, info)):
        require_same_table(replica, article, info)


def _older_copy(replica: Replica, article: PublishedArticle, what: str) -> CaptureError:
    return CaptureError(
        f"Article '{article.name}': table '{replica.table(article)}' {what}. Its folder was replaced by an "
        "older copy. Nothing was changed. Put the newer folder back (to go back in time use RESTORE TABLE, "
        "which is captured as a change), or initialise the replica anew.",
        replica=str(replica.root),
        article=article.name,
    )


def require_columns(article: PublishedArticle, table: Path, present: Collection[str]) -> None:
    """Check that a table has the published columns, for commands that would read them.

    Raises: SchemaMismatchError naming one that it lacks.
    """
    lost = next((name for name in article.columns if name not in present), None)
    if lost is not None:
        raise SchemaMismatchError(
            f"Article '{article.name}': published column '{lost}' was dropped or renamed in '{table}'. Schema changes do "
            "not travel in this version; until it is undone, no session captures this table.",
            article=article.name,
            table=str(table),
        )


def metadata_when_captured(
    replica: Replica, article: PublishedArticle, info: ReplicaInfo
) -> TableMetadata | None:
    """Return what the article's table was at its captured version, None if that version is gone or not known."""
    try:
        return open_table(replica.table(article), captured_version(replica, article, info)).metadata
    except (CaptureError, StoreError):
        return None

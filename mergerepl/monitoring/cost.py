"""The reasons why a few changes of an article's table take long, from its log, and their remedy."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from mergerepl.delta.layout import CLUSTERING, FILE_BYTES, Layout, last_commits, last_merges, layout
from mergerepl.delta.tables import Commit, TableState
from mergerepl.store.location import Location

_MIB = 1024**2
_ROWS_OF_A_FILE = 500_000
_SMALLEST_FILE = 4 * _MIB

_COPIED_ROWS, _COPIED_PER_CHANGE = 1_000_000, 100
"""A MERGE that copies more rows than both say is dear."""


@dataclass(frozen=True)
class Cost:
    """Why changes of a table are expensive, as clauses, and the remedy."""

    reasons: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return f"{'; '.join(self.reasons)}. {self.remedy}"


def layout_reasons(found: Layout, file_bytes: int) -> list[str]:
    """Return the faults of a table's files, as clauses. Files of up to twice the wanted size are fine."""
    reasons = []
    if found.largest_bytes > 2 * file_bytes:
        size = found.largest_bytes // _MIB
        reasons.append(f"files of up to {size} MiB: a changed row is written again with all rows of its file")
    if found.bytes > file_bytes and found.properties:
        reasons.append("new files do not state bounds of its key, so that a sync reads them all")
    elif found.bytes > file_bytes and found.bounded < found.files:
        reasons.append(
            f"{found.files - found.bounded} of {found.files} files do not state bounds of its key, so that a sync reads "
            "them all"
        )
    return reasons


def cost(root: Location, article: str, key: Sequence[str], table: TableState) -> Cost | None:
    """Return why changes of an article's table at a replica are expensive, or None.

    `key` are the columns whose bounds a sync uses to skip files.

    Raises: StoreError if one of its last commits is damaged.
    """
    return cost_of(root, article, table, layout(table, key))


def cost_of(root: Location, article: str, table: TableState, found: Layout) -> Cost | None:
    """Return why changes of an article's table with this layout are expensive, as `cost`."""
    reasons = layout_reasons(found, FILE_BYTES)
    dear = [commit for commit in last_merges(table) if _is_dear(commit)]
    size = FILE_BYTES
    if dear:
        worst = max(dear, key=lambda commit: commit.copied_rows)
        reasons.append(
            f"the MERGE of version {worst.version} copied {worst.copied_rows:,} rows to change {sum(worst.merged_rows):,}"
        )
        wanted = round(found.row_bytes * _ROWS_OF_A_FILE) if found.row_bytes else found.largest_bytes // 4
        size = min(size, max(wanted // _MIB * _MIB, _SMALLEST_FILE))
    return Cost(tuple(reasons), _remedy(root, article, table, found, size)) if reasons else None


def update_cost(table: TableState, key: Sequence[str]) -> str:
    """Return a warning if the last UPDATE by delta-rs costs a reader by `key` as much as the table's files; else ''.

    Other commits are not checked: each proof reads the key of all rows of the files that its commit touched.

    Raises: StoreError if one of the last commits is damaged.
    """
    last = next((commit for commit in last_commits(table) if commit.has_untrue_feed), None)
    if last is None:
        return ""
    # It loads pyspark, which no other code here needs.
    from mergerepl.delta.update_keys import REMEDY, update_keys

    keys = update_keys(table.path, last.version, key)
    if keys.doubt is None or keys.is_gone:
        return ""
    return f"version {last.version} is {keys.cost}. {REMEDY}"


def _is_dear(commit: Commit) -> bool:
    return commit.copied_rows > max(_COPIED_ROWS, _COPIED_PER_CHANGE * sum(commit.merged_rows))


def _remedy(root: Location, article: str, table: TableState, found: Layout, file_bytes: int) -> str:
    if not layout_reasons(found, file_bytes):
        return (
            "Its files are small; the changed rows lie in many of them. Synchronize less often, or cluster the table by a "
            "column whose rows change together."
        )
    size = "" if file_bytes == FILE_BYTES else f" --file-size {file_bytes // _MIB}MB"
    command = f"mergerepl tune {shlex.quote(article)} -f {shlex.quote(str(root))}{size}"
    if CLUSTERING in table.features:
        return (
            f"`{command}` writes it again in smaller files, in the order of its clustering columns. No row changes. "
            "If it has none any more, cluster it by its key first (`ALTER TABLE … CLUSTER BY`)."
        )
    return f"`{command}` writes it again in smaller files, in the order of its key. No row changes."

"""The commit at which a batch left a table, and the commits since: the check of a consumer on a table that it keeps.

`cdc load` and transactional subscriptions keep tables that users can change, too. A Delta transaction in the table does
not show a RESTORE or an overwrite, and it expires (`delta.setTransactionRetentionDuration`). So a consumer remembers, with
its position, `left_at(table, version)` of its own last commit; `LeftAt.text` is the stored form. Before the next batch
`changes_since` reads the log after it:

| `kind` | since then | the consumer |
|---|---|---|
| `same` | no commit | goes on |
| `no_data` | only commits that changed no row, such as OPTIMIZE | goes on |
| `foreign` | other writers changed rows | goes on; compares the rows of its batch by key |
| `replaced` | a RESTORE to an older state, an overwrite, another table (`reason`) | refuses, names the remedy |

`own` are the consumer's own commits since then (`is_own` of their marks): a run that died between its commit and its
position finds them, even if the transaction has expired. Call it again after the batch's commit, before the position is
saved: another writer may have been faster. Then remember the own commit's version, or `through` if nothing was written;
never the head, which may have commits that `changes_since` did not read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mergerepl.delta.commits import Commit, TruncatedLogError, commits
from mergerepl.delta.log import commit_text, head_version, is_delta_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from mergerepl.store.location import Location

SAME, NO_DATA, FOREIGN, REPLACED = "same", "no_data", "foreign", "replaced"


@dataclass(frozen=True)
class LeftAt:
    """A unique commit of a table: `version:hash` of its log file, and the table's id."""

    commit: str
    table_id: str

    @property
    def version(self) -> int:
        """The version of the commit."""
        return int(self.commit.partition(":")[0])

    @property
    def text(self) -> str:
        """The stored form."""
        return f"{self.commit}:{self.table_id}"

    @staticmethod
    def of_text(text: str) -> "LeftAt":
        """Read the stored form.

        Raises: ValueError if the text has another form.
        """
        commit, _, table_id = text.rpartition(":")
        if not commit.partition(":")[0].isdecimal():
            raise ValueError(f"'{text}' names no commit of a table")
        return LeftAt(commit, table_id)


@dataclass(frozen=True)
class Since:
    """The commits of a table since a batch: the consumer's own, and the versions in which others changed rows."""

    through: LeftAt
    has_commits: bool = False
    own: tuple[Commit, ...] = ()
    foreign: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def kind(self) -> str:
        """`same`, `no_data`, `foreign` or `replaced`."""
        if self.reason is not None:
            return REPLACED
        return FOREIGN if self.foreign else NO_DATA if self.has_commits else SAME


def left_at(table: Location, version: int) -> LeftAt:
    """Return the value to remember for a commit.

    Raises: StoreError if its log file is gone.
    """
    commit = commit_text(table, version)
    if commit is None:
        raise StoreError(
            f"Version {version} of '{table}' is gone from its log. Restore the table from a copy.",
            table=str(table),
        )
    return LeftAt(commit, open_table(table, version).metadata.table_id)


def changes_since(table: Location, left: LeftAt, is_own: Callable[[CommitMark], bool]) -> Since:
    """Classify the commits to a table since a batch left it at a commit. A table without commits since is not opened.

    Raises: StoreError if the log has a gap or is damaged.
    """
    if not is_delta_table(table):
        return Since(left, reason="there is no Delta table at its path any more")
    head, version = head_version(table), left.version
    if head < version:
        return Since(left, reason=f"its newest version is {head}, and the last batch left version {version}")
    found = commit_text(table, version)
    if found not in (None, left.commit):
        return Since(
            left, reason=f"version {version} is another commit than the one that the last batch left"
        )
    if head == version:
        return Since(left)
    through = left_at(table, head)
    try:
        read = list(commits(table, from_version_exclusive=version, through_version_inclusive=head))
    except TruncatedLogError as error:
        return Since(
            through, reason=f"its log does not show what happened since version {version}: {error.message}"
        )
    return classify(left, through, read, is_own)


def classify(
    left: LeftAt, through: LeftAt, read: Iterable[Commit], is_own: Callable[[CommitMark], bool]
) -> Since:
    """Classify the commits after a batch. Pure."""
    own: list[Commit] = []
    # Version of a commit that changed rows -> the reason to refuse it, None unless it replaced them.
    others: dict[int, str | None] = {}
    last = left.version
    for commit in read:
        if commit.mark is not None and is_own(commit.mark):
            own.append(commit)
            last = commit.version
        elif commit.operation == "RESTORE":
            to = commit.restored_version
            if to is None or to < last:
                where = "an earlier time" if to is None else f"version {to}"
                others[commit.version] = (
                    f"its version {commit.version} is a RESTORE to {where}, and the last batch left version {last}"
                )
            else:
                # The table is back in its state at that version.
                others = {version: reason for version, reason in others.items() if version <= to}
        elif commit.replaces_rows:
            others[commit.version] = f"its version {commit.version} replaced rows ({commit.operation})"
        elif commit.data_change:
            others[commit.version] = None
    reason = next((each for each in others.values() if each is not None), None)
    if through.table_id != left.table_id:
        reason = reason or "it is another table than the one that the last batch left"
    return Since(through, True, tuple(own), tuple(others), reason)

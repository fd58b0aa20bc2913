"""What waits at a replica: commits not captured yet, generations not sent yet. Told without an engine."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from enumeration.generations import generations_to_send, make_generation
from mergerepl.delta.log import Commit, commits, head_version, is_delta_table
from mergerepl.errors import MergeReplError
from mergerepl.model.article import PublishedArticle
from mergerepl.store.replica import Replica
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo

NO_VERSION = -1


@dataclass(frozen=True)
class Uncaptured:
    """One article's table since it was captured: version, user commits, what keeps capture from them."""

    version: int
    commits: int
    problem: str | None = None


def uncaptured(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> Uncaptured:
    """Return what the log tells of a table since its last capture; a damaged log is told, not raised."""
    table = replica.table(article)
    captured = info.captured.get(article.nickname, NO_VERSION)
    version, lost = head_or_problem(article, table)
    if lost is not None:
        return Uncaptured(NO_VERSION, 0, lost)
    if version < captured:
        problem = (
            f"'{table}' was replaced by an older copy: it is at version {version}, captured was {captured}."
        )
        return Uncaptured(version, 0, problem)
    if captured != NO_VERSION and replica.is_another_copy(article, info):
        problem = f"'{table}' was replaced: its version {captured} is another commit than the one captured."
        return Uncaptured(version, 0, problem)
    found: list[Commit] = []
    try:
        found.extend(commits(table, from_version_exclusive=captured, through_version_inclusive=version))
    except MergeReplError as error:
        return Uncaptured(version, _by_users(found), error.message)
    return Uncaptured(version, _by_users(found), _recreated(article, info, found))


def head_or_problem(article: PublishedArticle, table: Path) -> tuple[int, str | None]:
    """Return a table's version; or NO_VERSION and why nobody could read one: it is gone, or its log damaged."""
    try:
        if not is_delta_table(table):
            problem = (
                f"Article '{article.name}': its table '{table}' is gone or no Delta table any more. Restore it, or "
                "initialise this replica anew."
            )
            return NO_VERSION, problem
        return head_version(table), None
    except MergeReplError as error:
        return NO_VERSION, error.message


def _by_users(found: Iterable[Commit]) -> int:
    return sum(commit.is_user_change for commit in found)


def _recreated(article: PublishedArticle, info: ReplicaInfo, found: Iterable[Commit]) -> str | None:
    # The last one counts: RESTORE brings the table's id back.
    stated = [(commit.version, commit.metadata.table_id) for commit in found if commit.metadata is not None]
    if stated and stated[-1][1] != info.table_ids.get(article.nickname):
        return f"Article '{article.name}': its table was created anew at version {stated[-1][0]}."
    return None


def unsent_generations(
    replica: Replica,
    other: SubscriptionRow,
    articles: Iterable[PublishedArticle],
    *,
    held: Collection[str] | None,
) -> list[Generation]:
    """Return the generations with changes, open ones too, that a replica has yet to send to another.

    Args:
        replica: The source.
        other: Its row of sysmergesubscriptions about the destination.
        articles: The articles in question.
        held: Guids of the generations that the destination has; None if it is not asked.
    """
    waiting = generations_to_send(
        make_generation(replica.genhistory()),
        held or (),
        from_generation_exclusive=other.sentgen,
        destination_nickname=other.replnickname if held is None else None,
        tablenicks=[article.nickname for article in articles],
    )
    return [row for row in waiting if row.changecount]

"""The waiting changes of a replica: commits not captured yet, generations not sent yet. Read without an engine."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from enumeration.plan import Destination, Source, enumeration
from mergerepl.delta.feed.window import FeedPosition, FeedWindow, feed_window
from mergerepl.delta.marks import is_own_of_merge
from mergerepl.delta.tables import head_version, is_delta_table
from mergerepl.errors import MergeReplError, begin_again
from mergerepl.merge.partitions.filtered import filtered_publication, sent_partition
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.partition_generations import generations_for
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo

NO_VERSION = -1


@dataclass(frozen=True)
class Uncaptured:
    """One article's table since its capture: version, user commits, and the problem that stops the next capture.

    `window` has the facts from the log; None if it cannot be read.
    """

    version: int
    commits: int
    problem: str | None = None
    window: FeedWindow | None = None


def is_all_captured(
    replica: Replica, article: PublishedArticle, info: ReplicaInfo, *, head: int | None = None
) -> bool:
    """True if a table is captured up to its head, which the caller may have listed."""
    position = position_of(article, info)
    return position is not None and feed_window(replica.table(article), position, head=head).is_at_position


def uncaptured(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> Uncaptured:
    """Read a table's commits since its last capture from its log; a damaged log is a problem, not an error."""
    table = replica.table(article)
    unknown = FeedPosition(info.table_ids.get(article.nickname, ""), NO_VERSION)
    try:
        window = feed_window(table, position_of(article, info) or unknown)
    except MergeReplError as error:
        return Uncaptured(NO_VERSION, 0, error.message)
    if window.head_version is None:
        return Uncaptured(NO_VERSION, 0, _gone(article, table), window)
    is_same = not (window.is_older or window.is_another_commit)
    changes = (
        window.changes(partial(is_own_of_merge, replid=info.replid, nickname=article.nickname))
        if is_same
        else []
    )
    return Uncaptured(window.head_version, len(changes), _problem(article, window), window)


def _problem(article: PublishedArticle, window: FeedWindow) -> str | None:
    table, captured = window.path, window.position.version
    if window.is_older:
        return f"'{table}' was replaced by an older copy: it is at version {window.head_version}, captured was {captured}."
    if window.is_another_commit:
        return f"'{table}' was replaced: its version {captured} is another commit than the one captured."
    if window.unreadable is not None:
        return window.unreadable.message
    # The last one counts: RESTORE brings the table's id back.
    stated = window.metadata_commits[-1:]
    if any(
        each.metadata is not None and each.metadata.table_id != window.position.table_id for each in stated
    ):
        return f"Article '{article.name}': its table was dropped and created again at version {stated[0].version}."
    return None


def head_or_problem(article: PublishedArticle, table: Location) -> tuple[int, str | None]:
    """Return a table's version; or NO_VERSION and the problem: the table is gone, or its log is damaged."""
    try:
        if not is_delta_table(table):
            return NO_VERSION, _gone(article, table)
        return head_version(table), None
    except MergeReplError as error:
        return NO_VERSION, error.message


def _gone(article: PublishedArticle, table: Location) -> str:
    return (
        f"Article '{article.name}': its table '{table}' is gone or no Delta table any more. Restore it, or "
        f"{begin_again()}."
    )


GenerationsAfter = Callable[[int], list[Generation]]
"""Returns the generations of a replica after a number."""


def generations_read_once(replica: Replica, others: Iterable[SubscriptionRow]) -> GenerationsAfter:
    """Return a function that reads the generations of a replica once for all these subscriptions."""
    # An enumeration also reads the generation that it starts after.
    least = min((row.sentgen for row in others), default=0) - 1
    read: list[list[Generation]] = []

    def after(number: int) -> list[Generation]:
        if number < least:
            return replica.genhistory(from_generation_exclusive=number)
        if not read:
            read.append(replica.genhistory(from_generation_exclusive=least))
        return [row for row in read[0] if row.generation > number]

    return after


def source_of(
    replica: Replica,
    other: SubscriptionRow,
    articles: Iterable[PublishedArticle],
    *,
    after: GenerationsAfter | None = None,
) -> Source:
    """Return a replica as the sender of these articles; `other` is its row about the destination."""
    if after is None:

        def after(number: int) -> list[Generation]:
            return replica.genhistory(from_generation_exclusive=number)

    publication = filtered_publication(replica, other.pubid)
    partition = None
    if publication is not None:
        partition = sent_partition(replica, publication.number, publication.tablenicks, other)
    return Source(str(replica.root), after, other, tuple(article.nickname for article in articles), partition)


def changes_for(
    replica: Replica, other: SubscriptionRow, from_generation_exclusive: int
) -> Callable[[Generation], int]:
    """Return a function that counts a generation's changes, in a filtered article those in the partition of `other`."""
    publication = filtered_publication(replica, other.pubid)
    if publication is None:
        return lambda generation: generation.changecount
    tablenicks = publication.tablenicks
    counts: Counter[int] = Counter()
    for row in generations_for(
        replica, publication.number, other, from_generation_exclusive=from_generation_exclusive
    ):
        counts[row.generation] += row.changecount
    return lambda each: counts[each.generation] if each.art_nick in tablenicks else each.changecount


def unsent_generations(
    replica: Replica,
    other: SubscriptionRow,
    articles: Iterable[PublishedArticle],
    *,
    destination: Destination | None,
    after: GenerationsAfter | None = None,
) -> list[Generation]:
    """Return the generations with changes, including open ones, that a replica has yet to send to another.

    `other` is the row of sysmergesubscriptions about the destination; `destination` is None if it cannot be read.

    Raises: UnknownGenerationError if the watermarks of both contradict each other.
    """
    sent = enumeration(source_of(replica, other, articles, after=after), destination)
    return [row for row in sent.generations if row.changecount]

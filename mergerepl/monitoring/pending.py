"""`mergerepl pending`: the changes that wait for the next sync, per subscription, article and direction."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from enumeration.plan import Destination
from mergerepl.delta.feed.window import FeedWindow
from mergerepl.errors import EnumerationError, StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.products import MERGE
from mergerepl.model.tasks import Pending
from mergerepl.monitoring.parties import others, publication_name, reachable, subscriber_root
from mergerepl.monitoring.waiting import (
    GenerationsAfter,
    changes_for,
    generations_read_once,
    uncaptured,
    unsent_generations,
)
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.schema_checks import ADDED

UPLOAD = "upload"
DOWNLOAD = "download"


TableProblems = Callable[[PublishedArticle, FeedWindow], Sequence[str]]

Look = Callable[[Replica, ReplicaInfo, PublishedArticle], tuple[int, str | None, tuple[str, ...]]]
"""Returns the commits of an article's table that are not captured yet, the problem that stops their capture, and the
changes of published columns among them."""


def _none(*_: object) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class SchemaChanges:
    """How the schema changes that wait at a publisher are read: the agent's part.

    `recorded` takes the publisher, an article, the number of the last change that the subscriber has and those that it
    skips; `unfollowed` takes a replica, its article, its progress and the window of the table.
    """

    recorded: Callable[[Replica, PublishedArticle, int, Collection[int]], tuple[str, ...]] = _none
    unfollowed: Callable[[Replica, PublishedArticle, ReplicaInfo, FeedWindow | None], tuple[str, ...]] = _none


NO_CHANGES = SchemaChanges()


def lasting(problems: Sequence[str], followed: Sequence[str]) -> list[str]:
    """Return the problems of a table without an added column, if a sync follows its changes before it looks at rows."""
    return [text for text in problems if not (followed and ADDED in text)]


def pending_changes(
    root: Location, *, table_problems: TableProblems, schema: SchemaChanges = NO_CHANGES
) -> list[Pending]:
    """Return the waiting changes of each active subscription: both directions if the other end is in reach.

    A subscription whose other end cannot be read has a row without an article, with the problem. `table_problems`
    returns the problems of an article's table that the next capture meets (the agent's part).

    Raises: ConfigurationError if the folder is not a replica; StoreError if one of its tables cannot be read.
    """
    replica = Replica(root).require()
    active = [row for row in others(replica) if row.is_active]
    after = generations_read_once(replica, active)
    look = looked_at_once(table_problems, schema)
    return [each for row in active for each in pending_of(replica, row, look, after, schema)]


def looked_at_once(table_problems: TableProblems, schema: SchemaChanges) -> Look:
    """Return a function that reads each table once, not for every subscription."""
    seen: dict[tuple[Location, int], tuple[int, str | None, tuple[str, ...]]] = {}

    def look(
        source: Replica, info: ReplicaInfo, article: PublishedArticle
    ) -> tuple[int, str | None, tuple[str, ...]]:
        place = source.root, article.nickname
        if place not in seen:
            found = uncaptured(source, article, info)
            problem = found.problem
            changed = schema.unfollowed(source, article, info, found.window)
            if problem is None and found.window is not None:
                problem = " ".join(lasting(table_problems(article, found.window), changed)) or None
            seen[place] = found.commits, problem, changed
        return seen[place]

    return look


def pending_of(
    replica: Replica,
    row: SubscriptionRow,
    look: Look,
    after: GenerationsAfter,
    schema: SchemaChanges = NO_CHANGES,
) -> list[Pending]:
    """Return the article counts of this replica's own direction, then of the other one.

    `row` is about the other end; `after` has this replica's generations.
    """
    info = replica.info()
    other = reachable(row.subscriber_server, row.replid)
    away, back = (DOWNLOAD, UPLOAD) if replica.publishes(row.pubid) else (UPLOAD, DOWNLOAD)
    ends = publication_name(replica, row.pubid), subscriber_root(replica, row)
    found: list[Pending] | None = None
    problem = None
    if other is None:
        problem = (
            f"Replica '{row.subscriber_server}' is out of reach: its waiting changes are unknown. Check the "
            "path, or run again when it is back."
        )
    else:
        try:
            about_us = other.relation(row.subid, info.replid)
            settled = other.settled(row.pubid), replica.settled(row.pubid)
            there = Destination(str(other.root), other.held, about_us, settled=settled[0])
            ended = other.ended(row.pubid)
            found = list(_direction(ends, away, replica, info, row, there, look, schema, after, ended=ended))
            if about_us is not None and not about_us.is_ended:
                here = Destination(str(replica.root), replica.held, row, settled=settled[1])
                found += _direction(ends, back, other, other.info(), about_us, here, look, schema)
        except (StoreError, EnumerationError) as error:
            # A problem there does not concern the other subscriptions.
            found, problem = None, error.message
    if found is None:
        found = list(_direction(ends, away, replica, info, row, None, look, schema, after))
    if problem is not None:
        found.append(Pending(MERGE, *ends, "", back, problem=problem))
    return found


def _direction(
    ends: tuple[str, str],
    direction: str,
    source: Replica,
    info: ReplicaInfo,
    row: SubscriptionRow,
    destination: Destination | None,
    look: Look,
    schema: SchemaChanges,
    after: GenerationsAfter | None = None,
    *,
    ended: Collection[int] = (),
) -> Iterator[Pending]:
    """Yield the waiting changes of a source; `destination` is None if it cannot be read.

    `ended` are articles that ended at the publisher, which the source still has.
    """
    articles = [each for each in source.articles_of(row.pubid) if each.nickname not in ended]
    waiting = unsent_generations(source, row, articles, destination=destination, after=after)
    changes_of = changes_for(source, row, min((each.generation for each in waiting), default=0) - 1)
    for article in articles:
        generations = [each for each in waiting if each.art_nick == article.nickname]
        commits, problem, changed = look(source, info, article)
        if direction == DOWNLOAD:
            changed = schema.recorded(source, article, row.schemaversion, row.skipped_changes) + changed
            changed += ("the article ends",) if row.subid in article.ends_after else ()
        changes = sum(map(changes_of, generations))
        yield Pending(
            *(MERGE, *ends, article.name, direction, changes, len(generations), commits),
            problem=problem,
            schema=changed,
        )

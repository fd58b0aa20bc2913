"""What a subscriber changed and never uploaded, reported before its subscription ends."""

from collections.abc import Collection
from pathlib import Path

from enumeration.plan import Destination
from mergerepl.monitoring.waiting import uncaptured, unsent_generations
from mergerepl.replica.replica import Replica


def unsent_changes(publisher: Path, subscriber: Path, pubid: str, *, staged: Collection[str]) -> str:
    """Return in words the subscriber's changes that never reached the publisher; empty if all did.

    Args:
        publisher: Root of the publisher.
        subscriber: Root of the subscriber.
        pubid: The publication.
        staged: Guids of generations that an interrupted session uploads; it is finished first.

    Raises: StoreError if a system table cannot be read.
    """
    replica = Replica(subscriber)
    info = replica.info()
    # Also if the subscription is ended here already: a run was cut short before it ended at the publisher.
    about_publisher = replica.relations(pubid)
    if not about_publisher:
        return ""
    articles = replica.articles_of(pubid)

    def held(guids: Collection[str]) -> Collection[str]:
        return {*Replica(publisher).held(guids), *staged}

    # The publisher's watermark is not read: the publisher may have been restored, and the subscription ends all the same.
    destination = Destination(str(publisher), held)
    generations = unsent_generations(replica, about_publisher[0], articles, destination=destination)
    looks = [uncaptured(replica, article, info) for article in articles]
    changes, commits = sum(row.changecount for row in generations), sum(look.commits for look in looks)
    parts = [f"{_count(changes, 'change')}"] if changes else []
    parts += [f"{_count(commits, 'commit')} not captured yet"] if commits else []
    parts += [f"an unknown number of changes ({look.problem})" for look in looks if look.problem]
    return " and ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

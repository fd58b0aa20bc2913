"""Let the next sessions send again what a table refused: a rule may read more than the row, such as the day."""

from mergerepl.conflict_tools.interrupted import refuse_interrupted
from mergerepl.model.conflicts import RetryResult
from mergerepl.monitoring.parties import article_named, in_reach
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location


def retry_failed(
    root: Location, *, publication: str | None = None, article: str | None = None
) -> RetryResult:
    """Mark the refused changes that wait at a replica, and those that wait for it at the replicas in reach.

    Starts no engine. Raises: ConfigurationError if the folder is no replica or a name is unknown; ConflictError if a
        session is interrupted; LeaseError, StoreError.
    """
    replica = Replica(root).require()
    replid = replica.info().replid
    pubid = None if publication is None else replica.publication(publication).pubid
    artid = None if article is None else article_named(replica, article, publication).artid
    marked: dict[str, int] = {}
    sources = [*in_reach(replica)]
    for source in sources:
        refuse_interrupted(source)
    for source in sources:
        with lease(source.root, purpose="mergerepl conflicts retry"):
            refuse_interrupted(source)
            named = {each.nickname for each in source.articles if artid in (None, each.artid)}
            waiting = [
                row
                for row in source.waiting_generations()
                if (source is replica or row.waits_for == replid)
                and row.art_nick in named
                and pubid in (None, row.pubid)
            ]
            if waiting:
                source.ask_again([row.guidsrc for row in waiting])
                marked[str(source.root)] = sum(row.changecount for row in waiting)
    return RetryResult(sum(marked.values()), marked)

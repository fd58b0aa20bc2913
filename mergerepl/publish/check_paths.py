"""Check that the folders of a publication's replicas are there, and that no two replicas share a table."""

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Publication
from mergerepl.roots import resolved
from mergerepl.store.location import Location
from mergerepl.store.storage import MISSING, folder_problem, has_system_tables, replica_above
from mergerepl.systables.table import FOLDER


def check_places(publication: Publication) -> None:
    """Check the folders of the replicas, and that each table belongs to one article at one replica.

    Raises: PublicationError naming the folder, or the two replicas that share a table.
    """
    publisher = Location.of(publication.publisher)
    if problem := folder_problem(publisher):
        raise PublicationError(
            f"The publisher '{publisher}' {problem}. Give the folder that holds the tables to publish.",
            replica=str(publisher),
        )
    _check_outside(f"The publisher '{publisher}'", publisher)
    for subscription in publication.subscriptions:
        root = Location.of(subscription.subscriber)
        if (problem := folder_problem(root)) not in (None, MISSING):
            raise PublicationError(f"The subscriber '{root}' {problem}. Give a folder.", replica=str(root))
        _check_outside(f"The subscriber '{root}'", root)
    _check_one_replica(publication, publisher)


def _check_outside(what: str, root: Location) -> None:
    if has_system_tables(root):
        # Already a replica: a later replica around it shares no table with it (`_check_one_replica`).
        return
    around = replica_above(root)
    if around is not None:
        raise PublicationError(
            f"{what} lies inside the replica '{around}'; replicas may not contain each other. Give a folder outside of "
            f"it; or, if that replica is not used any more, remove '{around / FOLDER}'.",
            replica=str(root),
        )


def _check_one_replica(publication: Publication, publisher: Location) -> None:
    """Check that no two replicas share a table.

    Each of them would take the other's session commits for its own, and neither would send these changes.
    """
    roots = [
        ("the publisher", publisher),
        *((f"subscriber '{s.subscriber}'", Location.of(s.subscriber)) for s in publication.subscriptions),
    ]
    taken = {Location.of(resolved(root)): who for who, root in roots}
    for who, root in roots:
        own = Location.of(resolved(root))
        for article in publication.articles:
            named = root / article.table
            table = Location.of(resolved(named))
            other = next((taken[f] for f in (table, *table.parents) if f in taken and f != own), None)
            if other is None and (around := replica_above(named, own)) is not None:
                other = f"the replica '{around}' (if it is not used any more, remove '{around / FOLDER}')"
            if other is not None:
                raise PublicationError(
                    f"Article '{article.name}': its table '{table}' at {who} belongs to {other}. Of two replicas with "
                    "one table neither learns of all changes. Give each replica tables of its own, without links to "
                    "another's.",
                    article=article.name,
                    table=str(table),
                )
            taken[table] = f"article '{article.name}' at {who}"

"""`mergerepl vacuum` of a merge replica: capture first, then remove old files that no reader of changes needs."""

from collections.abc import Mapping, Sequence

from mergerepl.delta.tables import is_delta_table
from mergerepl.delta.vacuum import vacuum_read
from mergerepl.errors import CaptureError, ConfigurationError
from mergerepl.merge.session.capture_replica import capture_replica
from mergerepl.model.progress import NoProgress
from mergerepl.model.tasks import Vacuumed
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import captured_position, refuse_staged
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write


def vacuum_replica(
    root: Location, tables: Sequence[str], *, others: Mapping[str, int | str]
) -> list[Vacuumed]:
    """Remove old files of the tables of some articles, without names of all.

    `others` has the tables that other products read, by their path below the root: the version through which they have
    read it, or why it is not vacuumed.

    Raises: ConfigurationError if a name is unknown, or another product reads a table so; CaptureError, SchemaMismatchError
    if the changes cannot be captured (nothing is removed); ConflictError if a session is interrupted; LeaseError.
    """
    from mergerepl.spark import session as engine

    replica = Replica(root).require()
    articles = [each for each in replica.articles if not tables or {each.name, each.table} & set(tables)]
    if unknown := set(tables) - {name for each in articles for name in (each.name, each.table)}:
        known = ", ".join(sorted({each.name for each in replica.articles}))
        raise ConfigurationError(
            f"'{replica.root}' has no article {', '.join(map(repr, sorted(unknown)))}. Known: {known}.",
            replica=str(replica.root),
        )
    paths = dict.fromkeys(each.table for each in articles)
    for path in paths:
        if isinstance(reason := others.get(path), str):
            raise ConfigurationError(f"'{replica.root / path}' is not vacuumed: {reason}.")
    before_write()
    capture_replica(replica.root, progress=NoProgress())
    found = []
    with plain_errors(f"vacuuming '{root}'"), lease(replica.root, purpose="mergerepl vacuum"):
        replica = replica.reread()
        refuse_staged(replica)
        spark = recording_jvm(engine.session, (replica,))()
        info = replica.info()
        for path in paths:
            of_table = [each for each in replica.articles if each.table == path]
            if not of_table or not is_delta_table(replica.root / path):
                raise CaptureError(f"'{replica.root / path}' is gone, or no article any more. Run again.")
            read = [captured_position(replica, each, info).version for each in of_table]
            if isinstance(other := others.get(path), int):
                read.append(other)
            hours, unread = vacuum_read(spark, replica.root / path, min(read))
            found.append(Vacuumed(path, hours, unread))
    return found

"""How many conflicts there are, by article, type, resolver and day."""

from collections import Counter, defaultdict
from datetime import UTC

from mergerepl.conflict_tools.listing import conditions_of
from mergerepl.delta.tables import read_rows
from mergerepl.model.conflicts import ConflictCount, ConflictFilter
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import conflicts_info

_COLUMNS = ("tablenick", "conflict_type", "resolver", "MSrepl_create_time", "columns")


def conflict_summary(root: Location, chosen: ConflictFilter) -> tuple[ConflictCount, ...]:
    """Return the counts, the newest day first. Starts no engine.

    Raises: ConfigurationError if the folder is no replica or a name is unknown; StoreError.
    """
    replica = Replica(root).require()
    conditions = conditions_of(replica, chosen)
    if conditions is None:
        return ()
    path = replica.folder / conflicts_info.NAME
    names = {article.nickname: article.name for article in replica.articles}
    counts: Counter[tuple[str, int, str | None, str]] = Counter()
    columns: defaultdict[tuple[str, int, str | None, str], Counter[str]] = defaultdict(Counter)
    for row in read_rows(path, _COLUMNS, where=" and ".join(conditions) or None):
        name = names.get(row["tablenick"], f"article {row['tablenick']}")
        day = row["MSrepl_create_time"].astimezone(UTC).date().isoformat()
        group = (name, row["conflict_type"], row["resolver"], day)
        counts[group] += 1
        columns[group].update(row["columns"] or ())
    newest_first = sorted(counts, key=lambda group: (group[3], counts[group]), reverse=True)
    return tuple(
        ConflictCount(*group, conflicts=counts[group], columns=dict(columns[group].most_common()))
        for group in newest_first
    )

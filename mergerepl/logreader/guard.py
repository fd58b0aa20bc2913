"""Checks before a scan: a copied folder, partly restored bookkeeping and a lost consumer are refused."""

from collections.abc import Mapping, Sequence

from mergerepl.logreader.consumer import COMPARE, STOP, Consumer, Wanted
from mergerepl.logreader.errors import LogReaderError
from mergerepl.logreader.positions import LogState
from mergerepl.store.location import Location


def refuse_copy(root: Location, state: LogState) -> None:
    """Check that the database lies where it was enabled.

    Raises: LogReaderError.
    """
    if state.database.root != str(root):
        raise LogReaderError(
            f"'{root}' is a copy of the database '{state.database.root}', or was moved from there: its LSNs would be "
            f"given out twice. Nothing was changed. Run `mergerepl cdc adopt {root}`: a moved database goes on, a "
            "copy begins a new epoch.",
            root=str(root),
            stored=state.database.root,
        )


def refuse_other_consumers(root: Location, state: LogState, consumers: Sequence[Consumer]) -> None:
    """Check that this scan serves all consumers of each source.

    Raises: LogReaderError.
    """
    served = {consumer.name for consumer in consumers}
    missing = {name for row in state.sources.values() for name in row.consumers} - served
    if missing:
        named = ", ".join(sorted(missing))
        raise LogReaderError(
            f"The log of '{root}' is read for {named}, too, whose tables are gone. Nothing was changed. Put the folder "
            f"'_{named}' back. Or end it: `mergerepl cdc disable-db {root}` for cdc; for transactional, put the folder "
            "back, then take the articles out of the file and run `mergerepl apply FILE`.",
            root=str(root),
        )


def refuse_restored(root: Location, state: LogState, consumers: Sequence[Consumer]) -> None:
    """Check, unless a plan is pending, that gates and positions are from the same moment.

    Raises: LogReaderError.
    """
    for consumer in consumers:
        is_served = any(consumer.name in row.consumers for row in state.sources.values())
        if not is_served:
            continue
        gate, cycle = consumer.gate_cycle(), state.database.cycle
        if gate != cycle:
            older = "the table log_reader" if (gate or 0) > cycle else f"what readers of {consumer.name} see"
            raise LogReaderError.restored(
                root, f"{older} is older: scan cycles {cycle} and {gate if gate is not None else 'none'}"
            )


def key_of(state: LogState, consumers: Sequence[Consumer], path: str) -> tuple[str, ...]:
    """Return the key by which a table's rows are already identified; empty if it is not read, or read without a key."""
    known = state.source_at(path)
    if known is None:
        return ()
    keys = (each.wanted().get(known.source_object_id, Wanted()).key for each in consumers)
    return next((key for key in keys if key), ())


def refuse_other_key(state: LogState, consumers: Sequence[Consumer], path: str, key: tuple[str, ...]) -> None:
    """Check that a table that is about to be read by a key is not read by another one.

    Raises: LogReaderError.
    """
    known = key_of(state, consumers, path)
    if known and key and known != key:
        raise LogReaderError.other_key(path, ", ".join(known), ", ".join(key))


def wanted_of(
    state: LogState, consumers: Sequence[Consumer], wanted: Mapping[str, Mapping[int, Wanted]]
) -> dict[int, Wanted]:
    """Return the needs of all consumers together for each source.

    Raises: LogReaderError if two of them have different keys.
    """
    found: dict[int, Wanted] = {}
    for consumer in consumers:
        for object_id, each in wanted[consumer.name].items():
            other = found.get(object_id)
            if other is not None and other.key and each.key and other.key != each.key:
                path = state.sources[object_id].source_path
                raise LogReaderError.other_key(path, ", ".join(other.key), ", ".join(each.key))
            on_gap = STOP if STOP in (each.on_gap, other.on_gap if other else COMPARE) else COMPARE
            found[object_id] = Wanted(each.key or (other.key if other else ()), on_gap)
    return found

"""The identity of the column that a name means, through the commits of a table's log. Pure.

A name does not identify a column: it may be dropped and added again, or exchange its name with another one. Its values
then differ although no commit changed a row. With column mapping, the physical name identifies a column; otherwise only
its name does, and a commit that replaces the columns together with the rows may end it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.delta.types import Field, ddl_of

if TYPE_CHECKING:
    from mergerepl.delta.log import Commit
    from mergerepl.delta.metadata import TableMetadata

PHYSICAL_NAME = "delta.columnMapping.physicalName"
_MODE = "delta.columnMapping.mode"
_TYPE_CHANGES = "delta.typeChanges"
"""The property of a column whose type Delta widened: older files are still read as they were written."""

Path = tuple[str, ...]


def identities(fields: Sequence[Field]) -> dict[Path, Path]:
    """Return the identity of each column, and of each field inside of one: path of names -> path of physical names."""
    return dict(_identities(fields, (), ()))


def _identities(fields: Sequence[Field], names: Path, physical: Path) -> Iterator[tuple[Path, Path]]:
    for each in fields:
        name = (*names, each["name"])
        identity = (*physical, each["metadata"].get(PHYSICAL_NAME, each["name"]))
        yield name, identity
        yield from _inside(each["type"], name, identity)


def _inside(type_: Any, names: Path, physical: Path) -> Iterator[tuple[Path, Path]]:
    if isinstance(type_, str):
        return
    yield from _identities(type_.get("fields", ()), names, physical)
    for part in ("elementType", "keyType", "valueType"):
        if part in type_:
            yield from _inside(type_[part], (*names, part), (*physical, part))


def replaced_columns(before: "TableMetadata", commits: Iterable["Commit"]) -> dict[str, "Commit"]:
    """Return the columns of the last commit that replaced columns of the same names before.

    A dropped column does not return by its name, except by RESTORE. A commit that also replaces the rows, or switches
    column mapping on or off, keeps the columns that it names, also under new physical names.

    Returns: The dotted name of a column, or of a field inside of one, and the commit that removed the former one.
    """
    known = identities(before.fields)
    now, mode = known, _mode(before)
    dropped: dict[Path, Commit] = {}
    away: dict[Path, Commit] = {}
    for commit in commits:
        if commit.metadata is None:
            continue
        now = identities(commit.metadata.fields)
        there = set(now.values())
        is_restore = commit.restored_version is not None
        keeps_names = not is_restore and (commit.data_change or mode != _mode(commit.metadata))
        mode = _mode(commit.metadata)
        for name, identity in known.items():
            is_here = now.get(name) == identity
            if is_here and is_restore:
                dropped.pop(name, None)
            elif identity not in there and keeps_names and name in now and name not in away:
                known[name] = now[name]
                is_here = True
            elif identity not in there:
                dropped.setdefault(name, commit)
            if is_here and name not in dropped:
                away.pop(name, None)
            else:
                away.setdefault(name, commit)
    return {".".join(name): dropped.get(name, commit) for name, commit in away.items() if name in now}


def _mode(metadata: "TableMetadata") -> str:
    return metadata.configuration.get(_MODE, "none").lower()


def retyped_column(before: "TableMetadata", after: "TableMetadata") -> str | None:
    """Return a column whose type changed so that older files lack its values, or None."""
    types = {each["name"]: ddl_of(each["type"]) for each in before.fields}
    for each in after.fields:
        old = types.get(each["name"])
        is_widened = isinstance(each["type"], str) and _TYPE_CHANGES in each["metadata"]
        if isinstance(each["type"], str) and old not in (None, ddl_of(each["type"])) and not is_widened:
            return str(each["name"])
    return None

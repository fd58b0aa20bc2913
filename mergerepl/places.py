"""The place of a call, a project file or the folder of a replica, and the names in it.

A replica is called by the last part of its folder, or by its `name:` in the file. Nothing here loads Spark, Delta or
pydantic, so completion and `--help` can ask.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergerepl import roots
from mergerepl.errors import ConfigurationError
from mergerepl.model.products import CDC, MERGE, TRACKING, TRANSACTIONAL
from mergerepl.model.words import did_you_mean
from mergerepl.settings import Settings
from mergerepl.store.location import Location

FILE_NAME = "mergerepl.yml"

PUBLISHER, SUBSCRIBER, DATABASE = "publisher", "subscriber", "database"

_FOLDERS: Mapping[str, tuple[str, ...]] = {
    MERGE: (roots.MERGE_FOLDER,),
    TRANSACTIONAL: tuple(
        f"{roots.TRANSACTIONAL_FOLDER}/{table}" for table in ("MSpublications", "MSreplication_subscriptions")
    ),
    CDC: (roots.CDC_FOLDER,),
    TRACKING: (roots.TRACKING_FOLDER,),
}
"""The folders by which the root of a type is known."""


@dataclass(frozen=True)
class Place:
    """A project file or the folder of a replica. `is_given`: by the caller, not by a variable or a search."""

    path: str
    is_file: bool
    is_given: bool = True


@dataclass(frozen=True)
class NamedRoot:
    """A replica or database of a place.

    `role` is publisher, subscriber or database; `publication` is empty for databases. A folder that has several roles
    or publications occurs once for each.
    """

    name: str
    root: str
    type: str
    role: str
    publication: str = ""


def find_places(paths: Iterable[str | os.PathLike[str]] = (), *, here: str | Path = ".") -> tuple[Place, ...]:
    """Return the places of a call: the paths; else `MERGEREPL_FILE`, the nearest `mergerepl.yml`, or this folder.

    The file is looked for in `here` and the folders above it; `here` itself counts if it is the root of a product.

    Raises: ConfigurationError if nothing is found, or a folder does not exist.
    """
    given = tuple(_place(os.fspath(path), is_given=True) for path in paths)
    if given:
        return given
    if named := Settings.from_environment().file:
        return (_place(named, is_given=False),)
    folder = Path(here).absolute()
    for above in (folder, *folder.parents):
        if (above / FILE_NAME).is_file():
            return (Place(str(above / FILE_NAME), is_file=True, is_given=False),)
    if types_at(folder):
        return (Place(roots.existing(str(folder)), is_file=False, is_given=False),)
    raise ConfigurationError(
        f"There is no project here: no '{FILE_NAME}' in '{folder}' or above, and no table of this folder is replicated. "
        "Name a project file or a folder of tables with `-f PATH`."
    )


def _place(path: str, *, is_given: bool) -> Place:
    if roots.names_file(path):
        return Place(os.path.abspath(path), is_file=True, is_given=is_given)
    return Place(roots.existing(path, may_be_stored=True), is_file=False, is_given=is_given)


def types_at(root: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the types of the products that use a folder, in the order of `TYPES`.

    A store without a product counts as a merge replica, whose commands refuse it.
    """
    if not Location.of(root).is_local:
        from mergerepl.store.storage import folders_in

        # A place is refused before its store is asked: an error of the store names the whole place.
        here = folders_in(Location.of(roots.parse(str(root), may_be_stored=True)))
        found = tuple(
            kind
            for kind, folders in _FOLDERS.items()
            if any(folder.partition("/")[0] in here for folder in folders)
        )
        return found or (MERGE,)
    return tuple(
        kind
        for kind, folders in _FOLDERS.items()
        if any(os.path.isdir(os.path.join(root, f)) for f in folders)
    )


def roots_of_file(path: str | os.PathLike[str]) -> tuple[NamedRoot, ...]:
    """Return the replicas and databases that a project file states, by its YAML alone: other keys are not checked.

    Raises: ConfigurationError if the file is not YAML; OSError if it cannot be read.
    """
    from mergerepl.config import strict_yaml

    file = Path(path)
    documents = strict_yaml.parse(file.read_text(encoding="utf-8"), name=file.name)
    folder = file.absolute().parent
    return tuple(each for document in documents for each in _stated_roots(document.value, folder))


def _stated_roots(document: Any, folder: Path) -> Iterator[NamedRoot]:
    """Yield the roots of a raw document; parts of another form are left out, a later check reports them."""
    if not isinstance(document, dict):
        return
    kind = str(document.get("type", MERGE))
    if kind in (CDC, TRACKING):
        yield from _stated_root(document.get("root"), folder, kind, DATABASE)
        return
    publication = str(document.get("publication", ""))
    yield from _stated_root(document.get("publisher"), folder, kind, PUBLISHER, publication)
    subscriptions = document.get("subscriptions")
    for each in subscriptions if isinstance(subscriptions, list) else ():
        if isinstance(each, dict):
            own = each.get("name")
            yield from _stated_root(each.get("subscriber"), folder, kind, SUBSCRIBER, publication, own)


def _stated_root(
    text: Any, folder: Path, kind: str, role: str, publication: str = "", name: Any = None
) -> Iterator[NamedRoot]:
    from mergerepl.config.wording import with_variables

    if isinstance(text, str):
        with contextlib.suppress(ConfigurationError, ValueError):
            root = roots.parse(str(with_variables(text)), base=folder, may_be_stored=True)
            yield named_root(root, kind, role, publication, name if isinstance(name, str) else None)


def named_root(root: str, kind: str, role: str, publication: str = "", name: str | None = None) -> NamedRoot:
    """Return a root with its stated name, else the last part of its folder."""
    return NamedRoot(name or os.path.basename(root), root, kind, role, publication)


def has_variables(path: str | os.PathLike[str]) -> bool:
    """Whether the text of a project file names variables of the environment."""
    return "${" in Path(path).read_text(encoding="utf-8")


def require_name(text: str) -> str:
    """Return a name; refuse a path in its place.

    Raises: ConfigurationError that shows where the path goes.
    """
    if os.sep in text or text.lower().endswith((".yml", ".yaml")) or not text.strip():
        raise ConfigurationError(
            f"{roots.masked(text)!r} is a path, and a name is needed here. Give the project file or folder with "
            f"`-f {roots.masked(text)}`; a replica is called by its name in it."
        )
    return text


def choose_root(known: Sequence[NamedRoot], name: str) -> str:
    """Return the root of a name.

    Raises: ConfigurationError if the name is a path, unknown, or the name of several folders.
    """
    require_name(name)
    found = sorted({each.root for each in known if each.name == name})
    if len(found) == 1:
        return found[0]
    names = sorted({each.name for each in known})
    if found:
        way = "Give one of them a `name:` in the project file"
        if any(each.name == name and each.role != SUBSCRIBER for each in known):
            way = f"Name one with `-f`, as in `-f {shlex.quote(found[0])}`"
        raise ConfigurationError(f"Several folders are called {name!r}: {', '.join(found)}. {way}.")
    raise ConfigurationError(
        f"There is no replica {name!r} here.{did_you_mean(name, names)} Known: {', '.join(names) or 'none'}. A "
        "project file states its replicas; a publisher's folder knows its subscriptions, which `mergerepl apply` makes."
    )

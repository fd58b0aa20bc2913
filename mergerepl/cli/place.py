"""The place of a command (`-f`), and what is in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.errors import ConfigurationError
from mergerepl.model.transactional import Publication
from mergerepl.places import Place as Found
from mergerepl.places import find_places, types_at

if TYPE_CHECKING:
    from mergerepl.cdc import Instance
    from mergerepl.project import Project


@dataclass(frozen=True)
class Place:
    """The files and folders that a command works on."""

    given: tuple[str, ...]

    def __str__(self) -> str:
        """Return the place as it is typed after a command."""
        return (
            " ".join(f"-f {shlex.quote(each)}" for each in self.given) or f"-f {shlex.quote(self.paths[0])}"
        )

    @cached_property
    def found(self) -> tuple[Found, ...]:
        """The files and folders.

        Raises: ConfigurationError if there is none, or a folder does not exist.
        """
        return find_places(self.given)

    @property
    def paths(self) -> list[str]:
        """Return the files and folders as absolute paths."""
        return [each.path for each in self.found]

    @cached_property
    def project(self) -> Project:
        """The project of the place.

        Raises: ConfigurationError.
        """
        from mergerepl.project import Project

        return Project.load(*(self.given or self.paths))

    @property
    def publication(self) -> str | None:
        """Return the name of the only transactional publication of a file; None for a folder: all of them."""
        stated = (each for each in self.project.documents if isinstance(each, Publication))
        names = {each.name for each in stated}
        return names.pop() if len(names) == 1 else None

    def root(self, name: str | None = None) -> str:
        """Return the folder of a replica; without a name the publisher of a file, or the folder that is the place.

        Raises: ConfigurationError if the name is unknown here, or several folders are meant.
        """
        return str(self.project.at(name).root)

    def roots(self, names: Iterable[str]) -> list[str]:
        """Return the folders of replicas; without names the publishers and databases.

        Raises: As `root`.
        """
        return [self.root(name) for name in dict.fromkeys(names)] or self.project.own_roots()

    def subscriber(self, names: Sequence[str]) -> str | None:
        """Return the folder of the subscriber that is named, None for all.

        Raises: As `root`; ConfigurationError if several are named.
        """
        if len(names) > 1:
            raise ConfigurationError("Name one subscriber, or none for all.")
        return self.root(names[0]) if names else None

    def of_type(self, type_: str, what: str, at: str | None = None) -> str:
        """Return the folder of a replica; refuse one that only has other types.

        Raises: ConfigurationError, such as "feed is transactional: no conflicts".
        """
        root = self.root(at)
        types = types_at(root)
        if types and type_ not in types:
            name = os.path.basename(root)
            raise ConfigurationError(f"{name} is {' and '.join(types)}: no {what}.", replica=root)
        return root


def captured(place: Place, name: str) -> Instance:
    """Return the capture instance of this name, or the only one of the table of this name.

    Raises: ConfigurationError if there is none, or a table has two.
    """
    from mergerepl.cdc import Database

    root = place.of_type("cdc", "captured tables")
    database = Database(root)
    known = [each.capture_instance for each in database.instances()]
    if name in known:
        return database.instance(name)
    found = [each.capture_instance for each in database.instances(name)]
    if len(found) == 1:
        return database.instance(found[0])
    if found:
        raise ConfigurationError(f"Table {name!r} has two instances: name {' or '.join(found)}.")
    nearest = get_close_matches(name, known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigurationError(
        f"There is no capture instance or captured table {name!r} in '{root}'.{hint} Instances: "
        f"{', '.join(known) or 'none'}."
    )

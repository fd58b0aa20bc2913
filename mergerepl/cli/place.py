"""The place of a command (`-f`), and what is in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.errors import ConfigurationError
from mergerepl.places import Place, find_places, types_at

if TYPE_CHECKING:
    from mergerepl.cdc import Database, Instance
    from mergerepl.project import Project


@dataclass(frozen=True)
class CommandPlace:
    """The files and folders that a command works on."""

    given: tuple[str, ...]
    at: str | None = None
    """The replica that `--at` names."""

    def __str__(self) -> str:
        """Return the place as it is typed after a command."""
        files = [self.root()] if self.at else self.given or self.paths[:1]
        return " ".join(f"-f {shlex.quote(each)}" for each in files)

    @cached_property
    def found(self) -> tuple[Place, ...]:
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

    def root(self, name: str | None = None) -> str:
        """Return the folder of a replica; without a name that of `--at`, else the publisher or the folder of the place.

        Raises: ConfigurationError if the name is unknown here, or several folders are meant.
        """
        return str(self.project.at(name or self.at).root)

    def roots(self, names: Iterable[str]) -> list[str]:
        """Return the folders of replicas; without names the publishers and databases.

        Raises: As `root`.
        """
        return [self.root(name) for name in dict.fromkeys(names)] or self.project.own_roots()

    def of_type(self, type_: str, what: str) -> str:
        """Return the folder of `root()`; refuse one that only has other types.

        Raises: ConfigurationError, such as "feed is transactional: no conflicts".
        """
        root = self.root()
        types = types_at(root)
        if types and type_ not in types:
            name = os.path.basename(root)
            raise ConfigurationError(f"{name} is {' and '.join(types)}: no {what}.", replica=root)
        return root


def database(place: CommandPlace) -> Database:
    """Return the database of a place with captured tables."""
    from mergerepl.cdc import Database

    return Database(place.of_type("cdc", "captured tables"))


def captured(place: CommandPlace, name: str) -> Instance:
    """Return the capture instance of this name, or the only one of the table of this name."""
    return database(place).instance(name)

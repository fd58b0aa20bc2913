"""`mergerepl.unit`: the commits of a user's job to several tables are one transaction for all readers of the log.

While the job runs it holds a file below `_logreader/units`: the log reader waits for it. A job that died left the file
unlocked, which means nothing; the job that is repeated under the same id goes on with the unit.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from mergerepl import roots
from mergerepl.delta.marks import CommitUnit
from mergerepl.delta.tables import is_delta_table
from mergerepl.errors import ConfigurationError
from mergerepl.store.lease import is_locked, lock_for_life
from mergerepl.store.location import Location
from mergerepl.store.storage import files_in, is_folder, make_folder, storage
from mergerepl.systables.logreader import FOLDER

_FOLDER = "units"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Unit:
    """The commits of a job that belong together. Each of them carries `user_metadata`."""

    id: str
    user_metadata: str

    @property
    def options(self) -> dict[str, str]:
        """Options of Spark's DataFrameWriter; for other commits set `spark.databricks.delta.commitInfo.userMetadata`."""
        return {"userMetadata": self.user_metadata}


@contextmanager
def unit(root: str | os.PathLike[str], tables: Sequence[str], *, id: str | None = None) -> Iterator[Unit]:
    """Give the mark by which commits to several tables of a captured or publishing folder get one LSN.

    Args:
        root: The folder.
        tables: Folders below the root. Each gets a commit with the mark, better one than several: the last one takes part.
        id: Name of this unit, unused before; a job that died and is repeated under its name goes on. Default: a new one.

    Raises: ConfigurationError if a table is none, or the id cannot name a file; StoreError if the folder cannot be written.
    """
    place = Location.of(roots.existing(os.fspath(root)))
    missing = [name for name in tables if not is_delta_table(place / name)]
    if missing or not tables:
        what = f"'{missing[0]}' is no Delta table there" if missing else "it has no tables"
        raise ConfigurationError(
            f"A unit of '{place}' cannot begin: {what}. Nothing was changed. Name the tables by their folders below it.",
            root=str(place),
        )
    if id is not None and not _ID.fullmatch(id):
        raise ConfigurationError(
            f"A unit cannot be named {id!r}: an id has letters, digits, '_', '.' and '-', at most 100, and begins with a "
            "letter or digit. Nothing was changed."
        )
    name = id or str(uuid4())
    given = Unit(name, CommitUnit(f"user:{name}", tuple(tables)).to_user_metadata())
    if not is_folder(place / FOLDER):
        # Nobody reads the log here.
        yield given
        return
    file = place / FOLDER / _FOLDER / name
    make_folder(file.parent)
    owner = lock_for_life(file, f"unit {name}")
    try:
        yield given
    finally:
        storage(file).delete(file)
        os.close(owner)


def is_unfinished(root: Location) -> bool:
    """True if a job of a user is at work on a unit."""
    return any(map(is_locked, files_in(root / FOLDER / _FOLDER)))

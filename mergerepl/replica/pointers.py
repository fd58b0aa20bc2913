"""Pointers: files at a subscriber that name its publisher's unfinished sessions.

`<subscriber>/_mergerepl/staging/<session>.json` states the publisher's folder and replica id.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import is_staged
from mergerepl.store.location import Location
from mergerepl.store.storage import put_text


class Pointer(NamedTuple):
    """What a subscriber knows of an unfinished session; the publisher is None if the file is damaged."""

    session: str
    file: Path
    publisher: Replica | None
    replid: str

    @property
    def is_publisher_there(self) -> bool:
        """True when the publisher is still in the folder that the file names: another replica may be there now."""
        publisher = self.publisher
        return publisher is not None and publisher.folder.is_dir() and publisher.info().replid == self.replid

    @property
    def is_staged(self) -> bool:
        """True when the session was staged whole: it will be carried out."""
        return self.publisher is not None and is_staged(self.publisher.staging / self.session)


def pointers(subscriber: Replica) -> Iterator[Pointer]:
    """Yield the pointers of a subscriber, by session."""
    for path in sorted(subscriber.staging.glob("*.json")):
        try:
            stated = json.loads(path.read_text(encoding="utf-8"))
            yield Pointer(path.stem, path, Replica(Path(stated["publisher"])), str(stated["replid"]))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            yield Pointer(path.stem, path, None, "")


def write_pointer(publisher: Replica, subscriber: Replica, session: str) -> None:
    """Write the pointer of a session that is about to be staged."""
    stated = json.dumps({"publisher": str(publisher.root), "replid": publisher.info().replid})
    put_text(Location.of(_path(subscriber, session)), stated)


def drop_pointer(subscriber: Replica, session: str) -> None:
    """Remove the pointer of a session that is over."""
    _path(subscriber, session).unlink(missing_ok=True)


def drop_half_written_pointers(subscriber: Replica) -> None:
    """Remove half-written pointers that a killed process left."""
    for path in subscriber.staging.glob("*.json.tmp"):
        path.unlink(missing_ok=True)


def _path(subscriber: Replica, session: str) -> Path:
    return subscriber.staging / f"{session}.json"

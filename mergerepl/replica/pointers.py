"""Pointers: files at a subscriber that name its publisher's unfinished sessions.

`<subscriber>/_mergerepl/staging/<session>.json` states the publisher's folder and replica id.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import is_staged
from mergerepl.store.folders import files_in, is_folder
from mergerepl.store.location import Location
from mergerepl.store.storage import HALF_WRITTEN, put_text, read_text, storage


class Pointer(NamedTuple):
    """A subscriber's record of an unfinished session; the publisher is None if the file is damaged."""

    session: str
    file: Location
    publisher: Replica | None
    replid: str

    @property
    def is_publisher_there(self) -> bool:
        """True if the publisher is still in the folder that the file names: another replica may be there now."""
        publisher = self.publisher
        return (
            publisher is not None and is_folder(publisher.folder) and publisher.info().replid == self.replid
        )

    @property
    def is_staged(self) -> bool:
        """True if the session was staged whole, so that it will be carried out."""
        return self.publisher is not None and is_staged(self.publisher.staging / self.session)


def pointers(subscriber: Replica) -> Iterator[Pointer]:
    """Yield the pointers of a subscriber, by session."""
    staging = Location.of(subscriber.staging)
    for file in (staging / name for name in storage(staging).list_from(staging) if name.endswith(".json")):
        try:
            text = read_text(file)
            if text is not None:
                stated = json.loads(text)
                publisher = Replica(Location.of(stated["publisher"]))
                yield Pointer(file.stem, file, publisher, str(stated["replid"]))
        except (ValueError, KeyError, TypeError):
            yield Pointer(file.stem, file, None, "")


def write_pointer(publisher: Replica, subscriber: Replica, session: str) -> None:
    """Write the pointer of a session that is about to be staged."""
    stated = json.dumps({"publisher": str(publisher.root), "replid": publisher.info().replid})
    put_text(_file(subscriber, session), stated)


def drop_pointer(subscriber: Replica, session: str) -> None:
    """Remove the pointer of a session that is over."""
    storage(at := _file(subscriber, session)).delete(at)


def drop_half_written_pointers(subscriber: Replica) -> None:
    """Remove half-written pointers that a killed process left."""
    staging = Location.of(subscriber.staging)
    storage(staging).delete(*files_in(staging, HALF_WRITTEN))


def _file(subscriber: Replica, session: str) -> Location:
    return Location.of(subscriber.staging) / f"{session}.json"

"""The quick "nothing to do": no table that could make work has changed since a full check found nothing.

After a session found nothing to do, `<publisher>/_mergerepl/quiet/<key>.json` lists every Delta table that
could make work with its version and its log file's size, time and inode. As long as each of them still is the
head, the next sync is done after two look-ups a table. Any doubt is a no; then the full check decides. The
files are caches: deleting them is harmless. `is_quiet` loads no library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergerepl.delta.log import as_seen, head_version, is_as_seen

if TYPE_CHECKING:
    from mergerepl.model.results import SessionResult
    from mergerepl.store.replica import Replica

_FORMAT = 1
_SYSTEM_TABLES = (
    "sysmergepublications",
    "sysmergearticles",
    "sysmergesubscriptions",
    "MSmerge_genhistory",
    "MSmerge_replinfo",
    # Whoever edited them is told, also where there is nothing to do.
    "MSmerge_contents",
    "MSmerge_tombstone",
)
_TELL_SUBSCRIPTIONS = ("sysmergepublications", "sysmergesubscriptions", "MSmerge_replinfo")
_SYSTEM_FOLDER = "_mergerepl"
_BOTH = "both"


def is_quiet(publisher: Path, subscriber: Path, publication: str, direction: str = _BOTH) -> bool:
    """Return whether nothing has changed at both replicas since a full check found nothing to do.

    Each publication has a note of its own: two on one pair of replicas list different tables.
    """
    try:
        return not _has_staged_session(publisher, subscriber) and any(
            all(is_as_seen(seen) for seen in told["tables"])
            for told in _remembered(publisher, subscriber, publication, direction)
        )
    except Exception:
        # Whatever is wrong with the file or a table: the full check will say it.
        return False


def nothing_to_do(subscriber: Path, publication: str) -> SessionResult:
    """Return the result of a session that `is_quiet` made unnecessary."""
    from mergerepl.model.results import SessionResult

    return SessionResult(publication, str(subscriber), "nothing_to_do")


def remember_quiet(publisher: Replica, subscriber: Replica, publication: str, direction: str = _BOTH) -> None:
    """Note the versions of all tables after a session found nothing to do; nothing if work has come since.

    First the versions, then a check: what comes after that session (a user's commit, another subscriber's
    session) is either seen by the check or makes a version newer than the noted one. So no lease is needed.
    """
    pubid = publisher.publication(publication).pubid
    tables = [
        *(replica.folder / name for replica in (publisher, subscriber) for name in _SYSTEM_TABLES),
        *(
            replica.table(article)
            for replica in (publisher, subscriber)
            for article in replica.articles_of(pubid)
        ),
    ]
    seen = [as_seen(table, head_version(table)) for table in tables]
    if _has_staged_session(publisher.root, subscriber.root) or not _has_nothing(
        publisher, subscriber, pubid, direction
    ):
        return
    told = {"format": _FORMAT, "publication": publication, "tables": seen}
    _write(_path(publisher.root, subscriber.root, publication, direction), told)


Target = tuple[Path, Path, str]
"""Publisher root, subscriber root and name of the publication of a subscription."""


def noted_subscriptions(root: Path) -> list[Target] | None:
    """Return the active subscriptions of a publisher as they were noted; None if they must be read.

    A note holds for the very folder it was made in: a copy of a replica has its own subscriptions to tell.
    """
    root = root.expanduser().resolve()
    try:
        told = json.loads(_subscriptions_path(root).read_text(encoding="utf-8"))
        is_valid = told["format"] == _FORMAT and told["root"] == str(root) and len(told["tables"]) > 0
        if not is_valid or not all(is_as_seen(seen) for seen in told["tables"]):
            return None
        return [
            (Path(publisher), Path(subscriber), str(name))
            for publisher, subscriber, name in told["subscriptions"]
        ]
    except Exception:
        # Whatever is wrong with the file or a table: reading them will say it.
        return None


def remember_subscriptions(root: Path) -> None:
    """Note the active subscriptions of a publisher with the tables they are told from."""
    from mergerepl.agent.subscription import subscriptions_of_root

    tables = [root / _SYSTEM_FOLDER / name for name in _TELL_SUBSCRIPTIONS]
    seen = [as_seen(table, head_version(table)) for table in tables]
    subscriptions = [[str(part) for part in target] for target in subscriptions_of_root(root)]
    told = {"format": _FORMAT, "root": str(root), "tables": seen, "subscriptions": subscriptions}
    _write(_subscriptions_path(root), told)


def _subscriptions_path(root: Path) -> Path:
    return root / _SYSTEM_FOLDER / "quiet" / "subscriptions.json"


def _write(path: Path, told: dict[str, Any]) -> None:
    # A cache that cannot be written only costs time.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(told), encoding="utf-8")
        temporary.replace(path)


def _path(publisher: Path, subscriber: Path, publication: str, direction: str) -> Path:
    what = f"{publisher.resolve()}\n{subscriber.resolve()}\n{publication}"
    key = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return publisher.resolve() / _SYSTEM_FOLDER / "quiet" / f"{key}-{direction}.json"


def _remembered(publisher: Path, subscriber: Path, publication: str, direction: str) -> list[dict[str, Any]]:
    """Return what was noted for a direction; nothing to do both ways is nothing to do in each."""
    notes: list[dict[str, Any]] = []
    for noted in dict.fromkeys((_BOTH, direction)):
        path = _path(publisher, subscriber, publication, noted)
        # A damaged note tells nothing, and hides no other.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] == _FORMAT and told["publication"] == publication and told["tables"]:
                notes.append(told)
    return notes


def _has_staged_session(publisher: Path, subscriber: Path) -> bool:
    """Return whether a session waits to be finished (a folder at the publisher, a pointer elsewhere)."""
    for root in (publisher, subscriber):
        try:
            if os.listdir(root / _SYSTEM_FOLDER / "staging"):
                return True
        except FileNotFoundError:
            continue
    return False


def _has_nothing(publisher: Replica, subscriber: Replica, pubid: str, direction: str) -> bool:
    """Return whether every table is captured up to its head and no generation waits to travel."""
    from enumeration.generations import generations_to_send, make_generation

    infos = {replica.root: replica.info() for replica in (publisher, subscriber)}
    histories = {replica.root: replica.genhistory() for replica in (publisher, subscriber)}
    for replica in (publisher, subscriber):
        captured = infos[replica.root].captured
        if not all(
            captured.get(article.nickname) == head_version(replica.table(article))
            and not replica.is_another_copy(article, infos[replica.root])
            for article in replica.articles_of(pubid)
        ):
            return False
    ways = {"upload": (subscriber, publisher), "download": (publisher, subscriber)}
    for way in ways if direction == _BOTH else (direction,):
        source, destination = ways[way]
        sent = generations_to_send(
            make_generation(histories[source.root]),
            {row.guidsrc for row in histories[destination.root]},
            from_generation_exclusive=_start(source, infos[destination.root].replid, pubid),
            tablenicks=[article.nickname for article in source.articles_of(pubid)],
        )
        if any(row.changecount for row in sent):
            return False
    return True


def _start(source: Replica, destination_replid: str, pubid: str) -> int:
    """Return the generation up to which a source knows to have sent."""
    about = (row for row in source.relations(pubid) if row.replid == destination_replid)
    return min((row.sentgen for row in about), default=0)

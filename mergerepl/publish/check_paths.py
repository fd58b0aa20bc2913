"""Checks of a publication's names and places that need no table."""

import os
import re
import unicodedata
from collections.abc import Iterable

from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.model.publication import Article, Publication
from mergerepl.publish.unfinished import subscriber_path
from mergerepl.roots import SCHEME, masked, require_openable, resolved
from mergerepl.store.folders import MISSING, folder_problem, has_system_tables, replica_above
from mergerepl.store.location import Location
from mergerepl.systables.conflicts_info import LONGEST_FOLDER_NAME, conflict_table_name
from mergerepl.systables.table import FOLDER

_UNUSABLE = re.compile(r"[/\\\x00-\x1f\x7f]")


def check_names(publication: Publication) -> None:
    """Check the names that become names of folders.

    Raises: ConfigurationError naming the first unusable one, or two that a file system may not distinguish.
    """
    _check_name("publication", publication.name)
    if not publication.articles:
        raise ConfigurationError(
            f"Publication '{publication.name}' has no articles. Name at least one table under `articles:`.",
            publication=publication.name,
        )
    seen: dict[str, str] = {}
    for article in publication.articles:
        _check_name("article", article.name)
        _check_name("conflict table", conflict_table_name(publication.name, article.name))
        folded = unicodedata.normalize("NFC", article.name).casefold()
        if folded in seen:
            raise ConfigurationError(
                f"Articles '{seen[folded]}' and '{article.name}' of publication '{publication.name}' have "
                "one name (case and Unicode form do not count). Rename one of them.",
                publication=publication.name,
                article=article.name,
            )
        seen[folded] = article.name


def _check_name(kind: str, name: str) -> None:
    if not name.strip() or name in (".", "..") or _UNUSABLE.search(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind}: it becomes a folder's name, so it may not be empty or "
            "hold slashes or control characters. Choose another name."
        )
    if len(name.encode()) > LONGEST_FOLDER_NAME:
        raise ConfigurationError(
            f"The {kind} name '{name[:40]}…' is {len(name.encode())} bytes long; file systems take "
            f"{LONGEST_FOLDER_NAME}. Choose a shorter one."
        )


def check_places(publication: Publication) -> None:
    """Check that the replica roots are separate folders, and that each table belongs to one article at one replica.

    Raises: ConfigurationError or PublicationError naming the two folders or articles that collide.
    """
    publisher = _root(publication.publisher, "publisher")
    if problem := folder_problem(publisher):
        raise PublicationError(
            f"The publisher '{publisher}' {problem}. Give the folder that holds the tables to publish.",
            replica=str(publisher),
        )
    _check_outside(f"The publisher '{publisher}'", publisher)
    places = [("the publisher", publisher)]
    for subscription in publication.subscriptions:
        root = _root(subscription.subscriber, "subscriber")
        _check_subscriber_folder(root)
        for what, other in places:
            _check_apart(root, what, other)
        places.append((f"subscriber '{root}'", root))
    _check_tables(publication, publisher)
    _check_one_replica(publication, publisher)


def _root(text: str, kind: str) -> Location:
    if SCHEME.match(text):
        raise ConfigurationError(
            f"The {kind} '{masked(text)}' is a URI; this version of mergerepl works on file "
            "systems only. Mount the store, or give a path."
        )
    path = Location.of(text)
    if not path.is_absolute:
        raise ConfigurationError(
            f"The {kind} '{masked(text)}' is not an absolute path. Give an absolute one."
        )
    require_openable(f"The {kind}", resolved(path))
    return path


def _check_subscriber_folder(root: Location) -> None:
    try:
        problem = folder_problem(root)
    except OSError as error:  # a loop of symbolic links
        raise PublicationError(
            f"The subscriber '{root}' cannot be looked at: {error.strerror}. Check the path.",
            replica=str(root),
        ) from error
    if problem not in (None, MISSING):
        raise PublicationError(f"The subscriber '{root}' {problem}. Give a folder.", replica=str(root))
    _check_outside(f"The subscriber '{root}'", root)


def _check_outside(what: str, root: Location) -> None:
    if has_system_tables(root):
        # Already a replica: a later replica around it shares no table with it (`_check_one_replica`).
        return
    around = replica_above(root)
    if around is not None:
        raise PublicationError(
            f"{what} lies inside the replica '{around}'; replicas may not contain each other. Give a folder outside of "
            f"it; or, if that replica is not used any more, remove '{around / FOLDER}'.",
            replica=str(root),
        )


def _check_apart(root: Location, what: str, other: Location) -> None:
    one, two = Location.of(resolved(root)), Location.of(resolved(other))
    if one == two:
        raise ConfigurationError(
            f"The subscriber '{root}' and {what} are one folder. Give each replica its own.",
            replica=str(root),
        )
    if two in one.parents or one in two.parents:
        inner, outer = (root, what) if two in one.parents else (what, f"'{root}'")
        raise ConfigurationError(
            f"{inner} lies inside {outer}; replicas may not contain each other. Give each its own folder.",
            replica=str(root),
        )


def _check_tables(publication: Publication, publisher: Location) -> None:
    seen: dict[str, str] = {}
    for article in publication.articles:
        if SCHEME.match(article.table):
            raise ConfigurationError(
                f"Article '{article.name}': table '{masked(article.table)}' is a URI; this "
                "version of mergerepl works on file systems only. Give a path.",
                article=article.name,
            )
        table = Location.of(resolved(publisher / article.table))
        require_openable(f"Article '{article.name}': its table", str(table))
        if FOLDER in Location.of(os.path.normpath(article.table)).parts:
            raise ConfigurationError(
                f"Article '{article.name}': table '{article.table}' is a system table of mergerepl, which "
                "cannot be published. Choose a table of your own.",
                article=article.name,
            )
        if table == Location.of(resolved(publisher)) or table in Location.of(resolved(publisher)).parents:
            raise ConfigurationError(
                f"Article '{article.name}': table '{table}' contains the publisher '{publisher}' itself. "
                "Give as publisher the folder above the tables.",
                article=article.name,
            )
        for place, name in seen.items():
            if _overlap(table, Location.of(place)):
                raise ConfigurationError(
                    f"Articles '{name}' and '{article.name}' are one table ('{table}'), or one lies in the "
                    "other. Publish a table once.",
                    article=article.name,
                )
        seen[str(table)] = article.name
        roots: Iterable[str] = (s.subscriber for s in publication.subscriptions)
        for root in roots:
            if _overlap(table, Location.of(resolved(root))):
                raise ConfigurationError(
                    f"Article '{article.name}': its table '{table}' and the subscriber '{root}' lie in one "
                    "another. Give the subscriber a folder of its own.",
                    article=article.name,
                )


def _check_one_replica(publication: Publication, publisher: Location) -> None:
    """Check that no two replicas share a table.

    Each of them would take the other's session commits for its own, and neither would send these changes.
    """
    roots = [
        ("the publisher", publisher),
        *((f"subscriber '{s.subscriber}'", Location.of(s.subscriber)) for s in publication.subscriptions),
    ]
    taken = {Location.of(resolved(root)): who for who, root in roots}
    for who, root in roots:
        own = Location.of(resolved(root))
        for article in publication.articles:
            named = root / (article.table if root is publisher else _subscriber_path(article))
            table = Location.of(resolved(named))
            other = next((taken[f] for f in (table, *table.parents) if f in taken and f != own), None)
            if other is None and (around := replica_above(named, own)) is not None:
                other = f"the replica '{around}' (if it is not used any more, remove '{around / FOLDER}')"
            if other is not None:
                raise PublicationError(
                    f"Article '{article.name}': its table '{table}' at {who} belongs to {other}. Of two replicas with "
                    "one table neither learns of all changes. Give each replica tables of its own, without links to "
                    "another's.",
                    article=article.name,
                    table=str(table),
                )
            taken[table] = f"article '{article.name}' at {who}"


def _subscriber_path(article: Article) -> str:
    return subscriber_path(article.name, article.table)


def _overlap(one: Location, other: Location) -> bool:
    return one == other or one in other.parents or other in one.parents

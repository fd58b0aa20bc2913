"""Refusals of a publication that need no table, whether a file states it or a program: names, tables, folders, filters."""

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from mergerepl import roots
from mergerepl.config.strict_yaml import KeyPath
from mergerepl.config.wording import dotted, shown
from mergerepl.errors import ConfigurationError
from mergerepl.filters import stated as filters
from mergerepl.model.publication import Publication
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.systables.conflicts_info import LONGEST_FOLDER_NAME, conflict_table_name

LONGEST_NAME = 128

Problem = tuple[KeyPath, str]
"""The keys that lead to a value, and why it cannot be; the message follows the keys."""


def first_problem(publication: Publication | TransactionalPublication) -> Problem | None:
    """Return the first value that cannot be, and why; the replicas' folders are looked at, no table is opened."""
    return next(_problems(publication), None)


def check_stated(publication: Publication | TransactionalPublication) -> None:
    """Check a publication that a program may have made.

    Raises: ConfigurationError naming the first value that cannot be.
    """
    if problem := first_problem(publication):
        path, why = problem
        raise ConfigurationError(f"{dotted(path)} {why}.", publication=publication.name)


def _problems(publication: Publication | TransactionalPublication) -> Iterator[Problem]:
    is_merge = isinstance(publication, Publication)
    yield from _text(("publication",), publication.name, check_name)
    names = [article.name for article in publication.articles]
    for index, name in enumerate(names):
        yield from _text(("articles", index, "name"), name, check_name)
        conflict_table = conflict_table_name(publication.name, name)
        if is_merge and len(conflict_table.encode()) > LONGEST_FOLDER_NAME:
            yield (
                ("articles", index, "name"),
                f"and the publication's name are too long together: {conflict_table[:40]}… names a folder "
                f"(at most {LONGEST_FOLDER_NAME} bytes)",
            )
    yield from find_repeated(names, lambda index: ("articles", index, "name"), "an article")
    if is_merge and not names:
        yield ("articles",), "is empty"
    yield from _of_roots(publication)
    yield from _of_tables(publication)
    if isinstance(publication, Publication):
        if problem := filters.first_problem(publication):
            yield problem
    else:
        yield from _of_destinations(publication)


def _text(path: KeyPath, text: str, check: Callable[[str], str]) -> Iterator[Problem]:
    try:
        check(text)
    except ValueError as error:
        yield path, str(error)


def find_repeated(values: Iterable[str], path: Callable[[int], KeyPath], what: str) -> Iterator[Problem]:
    """Yield values that are one name for a file system that ignores case or composes Unicode."""
    first: dict[str, str] = {}
    for index, value in enumerate(values):
        if (other := first.get(fold_name(value))) is not None:
            yield path(index), f"is {shown(value)}, and {what} {shown(other)} is there already: name another"
        first[fold_name(value)] = value


def fold_name(text: str) -> str:
    """Return a form that is equal for names that a file system or Spark may treat as one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def check_name(text: str) -> str:
    """Return a publication's or article's name; it also names folders and conflict tables.

    Raises: ValueError.
    """
    composed = unicodedata.normalize("NFC", text)
    if not 1 <= len(composed) <= LONGEST_NAME:
        raise ValueError(f"must have 1 to {LONGEST_NAME} characters, and has {len(composed)}")
    is_plain = all(unicodedata.category(letter)[0] in "LMN" or letter in "_-. " for letter in composed)
    if not is_plain or composed[0] in "-. " or composed[-1] in ". ":
        raise ValueError(
            f"is {shown(text)}; a name has letters, digits, `_`, `-`, `.` and spaces only, begins with a "
            "letter, digit or `_` and does not end in `.` or a space (it names folders too)"
        )
    return text


def check_table(text: str) -> str:
    """Return a table's folder, relative to the replica root, in one spelling.

    Raises: ValueError.
    """
    if text.startswith(("/", "~")) or "://" in text:
        raise ValueError(f"is {shown(text)}; give a folder inside the replica root, such as `bronze/orders`")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"is {shown(text)}; the table must lie inside the replica root")
    if any(part in roots.RESERVED_FOLDERS for part in parts):
        raise ValueError(
            f"is {shown(text)}; {', '.join(roots.RESERVED_FOLDERS)} are not folders of users' tables"
        )
    if any(unicodedata.category(letter)[0] == "C" or letter in "\\:`" for letter in text):
        raise ValueError(f"is {shown(text)}; a control character, `\\`, `:` and a backtick are not allowed")
    return "/".join(parts)


def _of_tables(publication: Publication | TransactionalPublication) -> Iterator[Problem]:
    """Yield tables that lie outside of the publisher, cannot be opened, or belong to two articles."""
    publisher = roots.resolved(publication.publisher)
    tables = [article.table for article in publication.articles]
    for index, table in enumerate(tables):
        path = ("articles", index, "table")
        try:
            tables[index] = check_table(table)
            roots.require_openable("Its folder", os.path.join(publisher, table))
        except ValueError as error:
            yield path, str(error)
        except ConfigurationError as error:
            yield path, f"cannot be used: {error.message.rstrip('.')}"
        if not roots.resolved(os.path.join(publisher, table)).startswith(publisher.rstrip("/") + "/"):
            yield path, f"is {shown(table)}, a link that leads out of the publisher's folder"
    yield from find_repeated(tables, lambda index: ("articles", index, "table"), "the table")
    for index, table in enumerate(tables):
        for other in tables:
            if fold_name(table).startswith(fold_name(other) + "/"):
                yield ("articles", index, "table"), f"is {shown(table)}, inside the table {shown(other)}"


def _of_roots(publication: Publication | TransactionalPublication) -> Iterator[Problem]:
    """Yield folders that are no paths of replicas, or that hold one another."""
    replicas: list[tuple[str, str]] = []
    subscribers = [each.subscriber for each in publication.subscriptions]
    for index, text in enumerate([publication.publisher, *subscribers]):
        path: KeyPath = ("subscriptions", index - 1, "subscriber") if index else ("publisher",)
        try:
            root = roots.parse(text, may_be_stored=True)
        except ConfigurationError as error:
            yield path, f"cannot be used: {error.message.rstrip('.')}"
            return
        if not text.startswith(("/", "file:", "s3:", "s3a:", "az:")):
            yield path, f"is {shown(text)}, and not an absolute path"
        for who, other in replicas:
            match roots.overlap(root, other):
                case "same":
                    yield path, f"is the same folder as {who} ({other}): each replica has its own"
                case "inside":
                    yield path, f"lies inside the folder of {who} ({other}): put it beside"
                case "around":
                    yield path, f"holds the folder of {who} ({other}): put it beside"
        replicas.append((dotted(path) if index else "the publisher", root))
    if any(each.name for each in publication.subscriptions):
        names = (each.name or os.path.basename(each.subscriber) for each in publication.subscriptions)
        yield from find_repeated(names, lambda index: ("subscriptions", index, "name"), "a subscriber")


def _of_destinations(publication: TransactionalPublication) -> Iterator[Problem]:
    names = [article.name for article in publication.articles]
    for index, each in enumerate(publication.subscriptions):
        path = ("subscriptions", index, "destination")
        if unknown := next((key for key in each.destination if key not in names), None):
            yield path, f"names {shown(unknown)}, which is no article"
        tables = [each.destination.get(article.name, article.table) for article in publication.articles]
        if shared := next((table for table in tables if tables.count(table) > 1), None):
            yield path, f"leads two articles to the table {shown(shared)}"

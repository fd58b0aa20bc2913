"""The project file: YAML documents to publications and to folders that are captured or tracked.

It reads the file and checks the folders; it changes nothing. Every refusal is one `ConfigurationError` that names the
file, the line, the key, the reason and the remedy.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mergerepl import roots
from mergerepl.config import strict_yaml
from mergerepl.config.problems import refusal
from mergerepl.config.resolver import ResolverKeyError, resolver_settings
from mergerepl.config.schema import (
    MODELS,
    ArticleKeys,
    CaptureKeys,
    Keys,
    PublicationKeys,
    SubscriptionKeys,
    TrackingKeys,
    TransactionalKeys,
)
from mergerepl.config.stated import Problem, find_repeated, first_problem
from mergerepl.config.wording import dotted, kind, known, place, shown
from mergerepl.errors import ConfigurationError
from mergerepl.model import refused_pairs
from mergerepl.model.alerts import Alerts
from mergerepl.model.folders import Capture, Document, FolderTracking, TableCapture, TableTracking
from mergerepl.model.publication import (
    DEFAULT_SERVER_PRIORITY,
    Article,
    ConflictLogging,
    Join,
    Publication,
    Resolution,
    SubscriberType,
    Subscription,
    SyncType,
    Tracking,
)
from mergerepl.model.resolvers import RESOLVERS
from mergerepl.model.tracking_options import Foreign, TrackingOptions
from mergerepl.model.transactional import Article as TransactionalArticle
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.model.transactional import Subscription as TransactionalSubscription
from mergerepl.store.location import Location

LARGEST_FILE = 1_000_000


def load_documents(path: str | os.PathLike[str]) -> tuple[Document, ...]:
    """Read the documents of a project file, in their order.

    Raises: ConfigurationError if the file cannot be read or is not valid, or a folder cannot be used.
    """
    file = Path(path)
    name = roots.masked(str(path))
    documents = strict_yaml.parse(_read(file, name), name=name) or [strict_yaml.Document(None)]
    found: dict[tuple[str, ...], Document] = {}
    for document in documents:
        check = _Check(document, name)
        stated = _document(document, check, folder=file.absolute().parent)
        if isinstance(stated, Publication | TransactionalPublication) and (problem := first_problem(stated)):
            raise check.refuse(*problem)
        identity = (
            (type(stated).__name__, stated.name, stated.publisher)
            if isinstance(stated, Publication | TransactionalPublication)
            else (type(stated).__name__, stated.root)
        )
        if identity in found:
            raise check.refuse(
                ("publication" if "publication" in document.value else "root",),
                f"is {shown(identity[1])}, as in another document of this file: put both into one",
            )
        found[identity] = stated
    return tuple(found.values())


def _document(document: strict_yaml.Document, check: "_Check", *, folder: Path) -> Document:
    name = check.file
    if not isinstance(document.value, dict):
        what = "is empty" if document.value is None else f"holds {kind(document.value)}"
        at = place(name, line) if (line := document.line(())) and line > 1 else f"{name} "
        raise ConfigurationError(
            f"{at}{what}: a document is a mapping that begins with `publication:` and `publisher:`, or with `type:`.",
            file=name,
        )
    type_ = document.value.get("type", "merge")
    if not isinstance(type_, str):
        # Another kind of value is refused with the other keys.
        type_ = "merge"
    elif type_ not in MODELS:
        raise check.refuse(("type",), f"is {shown(type_)}; {known(type_, MODELS, 'it may be')}")
    try:
        stated = MODELS[type_].model_validate(document.value)
    except ValidationError as error:
        raise refusal(error, document, name, MODELS[type_], type_) from None
    match stated:
        case TransactionalKeys():
            return _transactional(stated, check, folder)
        case CaptureKeys():
            return _capture(stated, check, folder)
        case TrackingKeys():
            return _tracking(stated, check, folder)
        case PublicationKeys():
            return _publication(stated, check, folder=folder)
    raise AssertionError(type_)


def _values(stated: Keys, **others: object) -> dict[str, Any]:
    """Return the values of keys by name, lists as tuples; `others` replace or add some."""
    values = {name: getattr(stated, name) for name in type(stated).model_fields} | others
    return {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}


def _transactional(stated: TransactionalKeys, check: "_Check", folder: Path) -> TransactionalPublication:
    publisher = _existing(stated.publisher, check, ("publisher",), folder, may_be_stored=True)
    if stated.min_retention > stated.retention:
        raise check.refuse(("min_retention",), "is longer than `retention`")
    articles = tuple(
        TransactionalArticle(
            **_values(
                each,
                table=each.table or each.name,
                columns=_with_identity(each.columns, each.key) if each.columns else None,
                text_columns=tuple(each.text_columns or ()),
            )
        )
        for each in stated.articles
    )
    subscriptions = tuple(
        TransactionalSubscription(
            **_values(
                each,
                subscriber=_root(
                    each.subscriber, check, ("subscriptions", index, "subscriber"), folder, may_be_stored=True
                ),
            )
        )
        for index, each in enumerate(stated.subscriptions)
    )
    return TransactionalPublication(
        stated.publication,
        publisher,
        articles,
        subscriptions,
        stated.min_retention,
        stated.retention,
        Alerts(**_values(stated.alerts)),
        stated.conflict_retention,
    )


def _capture(stated: CaptureKeys, check: "_Check", folder: Path) -> Capture:
    root = _existing(stated.root, check, ("root",), folder, may_be_stored=True)
    tables = tuple(TableCapture(**_values(each)) for each in stated.tables)
    names = (each.instance for each in tables)
    check.refuse_first(find_repeated(names, lambda index: ("tables", index, "name"), "an instance"))
    for index, each in enumerate(stated.tables):
        if sum(other.table == each.table for other in stated.tables) > 2:
            raise check.refuse(
                ("tables", index, "table"), f"is {shown(each.table)}; a table has two instances at most"
            )
    reading = stated.jobs.capture.model_dump(exclude_none=True)
    cleaning = stated.jobs.cleanup.model_dump(exclude_none=True)
    if stated.interval is not None:
        reading["pollinginterval"] = int(stated.interval.total_seconds())
    if stated.retention is not None:
        cleaning["retention"] = int(stated.retention.total_seconds()) // 60
    jobs = {"capture": reading, "cleanup": cleaning}
    return Capture(
        root,
        tables,
        stated.log_retention,
        {name: parameters for name, parameters in jobs.items() if parameters},
        Alerts(**_values(stated.alerts)),
    )


def _tracking(stated: TrackingKeys, check: "_Check", folder: Path) -> FolderTracking:
    root = _existing(stated.root, check, ("root",), folder, may_be_stored=True)
    names = (each.table for each in stated.tables)
    check.refuse_first(find_repeated(names, lambda index: ("tables", index, "table"), "the table"))
    tables = []
    for index, each in enumerate(stated.tables):
        _require_identity(each.key, each.rowguid, check, ("tables", index))
        options = TrackingOptions(0)
        for word in each.track:
            options |= TrackingOptions[word.upper()]
        key = (each.rowguid,) if each.rowguid else tuple(each.key or ())
        tables.append(TableTracking(each.table, key, each.rowguid is not None, options))
    return FolderTracking(root, tuple(tables), Foreign(stated.foreign), stated.retention)


def _existing(
    text: str, check: "_Check", path: strict_yaml.KeyPath, folder: Path, *, may_be_stored: bool = False
) -> str:
    root = _root(text, check, path, folder, may_be_stored=may_be_stored)
    if Location.of(root).is_local and not os.path.isdir(root):
        raise check.refuse(
            path,
            f"is {shown(text)}, and there is no folder {root}: check the path, and whether it is mounted",
            replica=root,
        )
    return root


def _read(file: Path, name: str) -> str:
    """Read the file's text: UTF-8, of a size that a person can have written."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except IsADirectoryError as error:
        raise ConfigurationError(f"{name} is a folder: name the project file.", file=name) from error
    except FileNotFoundError as error:
        raise ConfigurationError(f"{name} does not exist: check the path.", file=name) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{name} cannot be read: {reason}. Check the path and its permissions.", file=name
        ) from error
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(
            f"{name} is larger than {LARGEST_FILE // 1_000_000} MB: is it the project file?", file=name
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name} is not UTF-8 text (byte {error.start + 1}): save it as UTF-8.", file=name
        ) from error


class _Check:
    """Builds refusals that name the line of a key path."""

    def __init__(self, document: strict_yaml.Document, file: str) -> None:
        self.document = document
        self.file = file

    def refuse(self, path: strict_yaml.KeyPath, problem: str, **facts: str) -> ConfigurationError:
        """Return the error for one key path."""
        return ConfigurationError(
            f"{place(self.file, self.document.line(path))}{dotted(path)} {problem}.",
            file=self.file,
            key=dotted(path),
            **facts,
        )

    def refuse_first(self, problems: Iterator[Problem]) -> None:
        """Refuse the first problem, if there is one."""
        for path, problem in problems:
            raise self.refuse(path, problem)


def _publication(stated: PublicationKeys, check: _Check, *, folder: Path) -> Publication:
    publisher = _existing(stated.publisher, check, ("publisher",), folder, may_be_stored=True)
    articles = tuple(
        _article(article, check, ("articles", index)) for index, article in enumerate(stated.articles)
    )
    subscriptions = tuple(
        _subscription(subscription, check, ("subscriptions", index), folder)
        for index, subscription in enumerate(stated.subscriptions)
    )
    values = _values(
        stated,
        name=stated.publication,
        publisher=publisher,
        articles=articles,
        subscriptions=subscriptions,
        conflict_logging=ConflictLogging(stated.conflict_logging),
        joins=tuple(Join(**join.model_dump()) for join in stated.joins),
        alerts=Alerts(**_values(stated.alerts)),
    )
    del values["publication"], values["type"]
    return Publication(**values)


def _article(stated: ArticleKeys, check: _Check, path: strict_yaml.KeyPath) -> Article:
    _require_identity(stated.key, stated.rowguid, check, path)
    resolver, resolution = shown(stated.resolver.name), (*path, "resolver", "resolution")
    is_one_way = RESOLVERS[stated.resolver.name].rejects is not None
    if stated.resolver.resolution == "columns" and stated.tracking != "column":
        raise check.refuse(resolution, refused_pairs.COLUMNS_BY_ROW.says())
    if stated.resolver.resolution == "columns" and is_one_way:
        raise check.refuse(resolution, refused_pairs.COLUMNS_OF_ONE_WAY.says(resolver=resolver))
    if stated.compensate_for_errors and is_one_way:
        problem = refused_pairs.COMPENSATED_ONE_WAY.says(resolver=resolver)
        raise check.refuse((*path, "compensate_for_errors"), problem)
    try:
        resolver_info = resolver_settings(stated.resolver, stated.tracking)
    except ResolverKeyError as error:
        raise check.refuse((*path, "resolver", error.key), error.problem) from error
    key = tuple(stated.key or ())
    identity = (stated.rowguid,) if stated.rowguid else key
    return Article(
        name=stated.name,
        table=stated.table or stated.name,
        key=key,
        rowguid=stated.rowguid,
        tracking=Tracking(stated.tracking),
        columns=_with_identity(stated.columns, identity) if stated.columns else None,
        resolver=stated.resolver.name,
        resolver_info=resolver_info,
        resolution=Resolution(stated.resolver.resolution),
        filter=stated.filter,
        partition_options=stated.partition_options,
        compensates=stated.compensate_for_errors,
    )


def _require_identity(
    key: list[str] | None, rowguid: str | None, check: _Check, path: strict_yaml.KeyPath
) -> None:
    """Refuse a table with both `key` and `rowguid`, or with neither."""
    if key is not None and rowguid is not None:
        raise check.refuse(
            (*path, "rowguid"), "and `key` exclude each other: keep the one that identifies a row"
        )
    if key is None and rowguid is None:
        raise check.refuse(
            path,
            "says neither `key` nor `rowguid`: name the columns that identify a row, as in `key: [order_id]`",
        )


def _with_identity(columns: Iterable[str], identity: Sequence[str]) -> tuple[str, ...]:
    """Add the columns that identify a row to a vertical filter."""
    chosen = tuple(columns)
    present = {column.lower() for column in chosen}
    return (*(column for column in identity if column.lower() not in present), *chosen)


def _subscription(
    stated: SubscriptionKeys, check: _Check, path: strict_yaml.KeyPath, folder: Path
) -> Subscription:
    """Return one subscription, with the priority that its type implies."""
    kind = SubscriberType(stated.type)
    if kind is SubscriberType.CLIENT and stated.priority:
        raise check.refuse((*path, "priority"), refused_pairs.CLIENT_PRIORITY.says(priority=stated.priority))
    default = DEFAULT_SERVER_PRIORITY if kind is SubscriberType.SERVER else 0.0
    values = _values(
        stated,
        subscriber=_root(stated.subscriber, check, (*path, "subscriber"), folder, may_be_stored=True),
        type=kind,
        priority=default if stated.priority is None else stated.priority,
        sync_type=SyncType(stated.sync_type),
    )
    return Subscription(**values)


def _root(
    text: str, check: _Check, path: strict_yaml.KeyPath, folder: Path, *, may_be_stored: bool = False
) -> str:
    """Return a replica root; a relative one is relative to the file."""
    try:
        return roots.parse(text, base=folder, may_be_stored=may_be_stored)
    except ConfigurationError as error:
        raise check.refuse(path, f"cannot be used: {error.message.rstrip('.')}") from error

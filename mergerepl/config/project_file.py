"""The configuration file: YAML to `Publication`.

It reads the file and checks the replicas' folders; it changes nothing. Every refusal is one `ConfigurationError` that
names the file, the line, the key, the reason and the remedy.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from mergerepl import roots
from mergerepl.config import strict_yaml
from mergerepl.config.problems import refusal
from mergerepl.config.resolver import ResolverKeyError, resolver_settings
from mergerepl.config.schema import ArticleKeys, PublicationKeys, SubscriptionKeys, folded
from mergerepl.config.wording import dotted, kind, known, place, shown
from mergerepl.errors import ConfigurationError
from mergerepl.filters.stated import first_problem
from mergerepl.model import refused_pairs
from mergerepl.model.later import instead_of
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
from mergerepl.model.transactional import (
    TransactionalArticle,
    TransactionalPublication,
    TransactionalSubscription,
)
from mergerepl.systables.conflicts_info import LONGEST_FOLDER_NAME, conflict_table_name

LARGEST_FILE = 1_000_000
MERGE, TRANSACTIONAL = "merge", "transactional"


def load(path: str | os.PathLike[str]) -> Publication:
    """Read the merge publication of a configuration file.

    Raises:
        ConfigurationError: The file cannot be read or is not valid, states another type of publication, or a replica's
            folder cannot be used.
    """
    found = load_any(path)
    if isinstance(found, TransactionalPublication):
        raise ConfigurationError(
            f"{roots.masked(str(path))} states `type: transactional`, and this command takes merge publications only. See "
            "`mergerepl transactional --help`.",
            file=str(path),
        )
    return found


def load_any(path: str | os.PathLike[str]) -> Publication | TransactionalPublication:
    """Read the publication of a configuration file, of either type.

    Raises: ConfigurationError as `load`.
    """
    file = Path(path)
    name = roots.masked(str(path))
    document = strict_yaml.parse(_read(file, name), name=name)
    if not isinstance(document.value, dict):
        what = "is empty" if document.value is None else f"holds {kind(document.value)}"
        raise ConfigurationError(
            f"{name} {what}: a configuration is a mapping that begins with `publication:` and `publisher:`.",
            file=name,
        )
    _require_type(document, name)
    if document.value.get("type") == "transactional":
        return _transactional(document, name, folder=file.absolute().parent)
    try:
        stated = PublicationKeys.model_validate(document.value)
    except ValidationError as error:
        raise refusal(error, document, name) from None
    check = _Check(document, name)
    return _publication(stated, check, folder=file.absolute().parent)


def _require_type(document: strict_yaml.Document, name: str) -> None:
    """Check that a file's type exists.

    Raises: ConfigurationError that lists all types.
    """
    stated = document.value.get("type", MERGE)
    if not isinstance(stated, str) or stated in (MERGE, TRANSACTIONAL):
        # Another kind of value is refused with the other keys.
        return
    instead = instead_of("file", "type", stated)
    problem = (
        f"is {shown(stated)}, a value of a later version. {instead}"
        if instead
        else f"is {shown(stated)}; {known(stated, (MERGE, TRANSACTIONAL), 'it may be')}."
    )
    raise ConfigurationError(f"{place(name, document.line(('type',)))}type {problem}", file=name, key="type")


def _transactional(document: strict_yaml.Document, name: str, *, folder: Path) -> TransactionalPublication:
    from mergerepl.config.transactional import MODELS, TransactionalKeys

    try:
        stated = TransactionalKeys.model_validate(document.value)
    except ValidationError as error:
        raise refusal(error, document, name, MODELS, type_="transactional") from None
    check = _Check(document, name)
    publisher = _publisher(stated.publisher, check, folder)
    retention = stated.distribution_retention
    if retention.min > retention.max:
        raise check.refuse(("distribution_retention",), "has a `min` above its `max`")
    names = [article.name for article in stated.articles]
    check.unique(names, lambda index: ("articles", index, "name"), "an article")
    articles = []
    for index, each in enumerate(stated.articles):
        lost = [key for key in each.key if each.columns and key not in each.columns]
        articles.append(
            TransactionalArticle(
                each.name,
                each.table or each.name,
                tuple(each.key),
                (*lost, *each.columns) if each.columns else None,
                each.filter,
                each.ins_cmd,
                each.upd_cmd,
                each.del_cmd,
                tuple(each.text_columns or ()),
                each.singleton_key_updates,
            )
        )
        if (
            twice := next((a for a in articles[:index] if a.table == articles[index].table), None)
        ) is not None:
            path: strict_yaml.KeyPath = ("articles", index)
            raise check.refuse(
                path, f"publishes the table of article {shown(twice.name)}: use another publication"
            )
    subscriptions = []
    for index, subscription in enumerate(stated.subscriptions):
        at = ("subscriptions", index)
        if unknown := next((key for key in subscription.destination if key not in names), None):
            raise check.refuse((*at, "destination"), f"names {shown(unknown)}, which is no article")
        tables = [subscription.destination.get(each.name, each.table) for each in articles]
        if shared := next((each for each in tables if tables.count(each) > 1), None):
            raise check.refuse((*at, "destination"), f"leads two articles to the table {shown(shared)}")
        root = _root(subscription.subscriber, check, (*at, "subscriber"), folder)
        subscriptions.append(
            TransactionalSubscription(
                root,
                subscription.sync_type,
                subscription.verify,
                tuple(subscription.skip_errors),
                subscription.subscription_streams,
                dict(subscription.destination),
            )
        )
    _check_roots(publisher, tuple(subscriptions), check)
    return TransactionalPublication(
        stated.publication, publisher, tuple(articles), tuple(subscriptions), retention.min, retention.max
    )


def _publisher(text: str, check: "_Check", folder: Path) -> str:
    publisher = _root(text, check, ("publisher",), folder)
    if not os.path.isdir(publisher):
        raise check.refuse(
            ("publisher",),
            f"is {shown(text)}, and there is no folder {publisher}: check the path, and whether it is mounted",
            replica=str(publisher),
        )
    return publisher


def _read(file: Path, name: str) -> str:
    """Read the file's text: UTF-8, of a size that a person can have written."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except IsADirectoryError as error:
        raise ConfigurationError(f"{name} is a folder: name the configuration file.", file=name) from error
    except FileNotFoundError as error:
        raise ConfigurationError(f"{name} does not exist: check the path.", file=name) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{name} cannot be read: {reason}. Check the path and its permissions.", file=name
        ) from error
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(
            f"{name} is larger than {LARGEST_FILE // 1_000_000} MB: is it the configuration file?", file=name
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

    def unique(self, values: Iterable[str], path: Callable[[int], strict_yaml.KeyPath], what: str) -> None:
        """Refuse two values that are one name for a case-blind or Unicode-composing file system."""
        first: dict[str, str] = {}
        for index, value in enumerate(values):
            if (other := first.get(folded(value))) is not None:
                raise self.refuse(
                    path(index),
                    f"is {shown(value)}, and {what} {shown(other)} is there already: name another",
                )
            first[folded(value)] = value


def _publication(stated: PublicationKeys, check: _Check, *, folder: Path) -> Publication:
    publisher = _publisher(stated.publisher, check, folder)
    articles = tuple(
        _article(article, check, ("articles", index), publisher)
        for index, article in enumerate(stated.articles)
    )
    check.unique(
        (article.name for article in articles), lambda index: ("articles", index, "name"), "an article"
    )
    _check_tables(articles, check)
    for index, article in enumerate(articles):
        conflict_table = conflict_table_name(stated.publication, article.name)
        if len(conflict_table.encode()) > LONGEST_FOLDER_NAME:
            raise check.refuse(
                ("articles", index, "name"),
                f"and the publication's name are too long together: {conflict_table[:40]}… names a folder "
                f"(at most {LONGEST_FOLDER_NAME} bytes)",
            )
    subscriptions = tuple(
        _subscription(subscription, check, ("subscriptions", index), folder)
        for index, subscription in enumerate(stated.subscriptions)
    )
    _check_roots(publisher, subscriptions, check)
    publication = Publication(
        name=stated.publication,
        publisher=publisher,
        articles=articles,
        subscriptions=subscriptions,
        retention=stated.retention,
        conflict_retention=stated.conflict_retention,
        conflict_logging=ConflictLogging(stated.conflict_logging),
        joins=tuple(Join(**join.model_dump()) for join in stated.joins),
        allow_partition_realignment=stated.allow_partition_realignment,
        engine=stated.engine,
    )
    if problem := first_problem(publication):
        raise check.refuse(*problem)
    return publication


def _article(stated: ArticleKeys, check: _Check, path: strict_yaml.KeyPath, publisher: str) -> Article:
    if stated.key is not None and stated.rowguid is not None:
        raise check.refuse(
            (*path, "rowguid"), "and `key` exclude each other: keep the one that identifies a row"
        )
    if stated.key is None and stated.rowguid is None:
        raise check.refuse(
            path,
            "says neither `key` nor `rowguid`: name the columns that identify a row, as in `key: [order_id]`",
        )
    if stated.resolver.resolution == "columns" and stated.tracking != "column":
        raise check.refuse((*path, "resolver", "resolution"), refused_pairs.COLUMNS_BY_ROW.says())
    if stated.resolver.resolution == "columns" and RESOLVERS[stated.resolver.name].rejects is not None:
        raise check.refuse(
            (*path, "resolver", "resolution"),
            refused_pairs.COLUMNS_OF_ONE_WAY.says(resolver=shown(stated.resolver.name)),
        )
    if stated.compensate_for_errors and RESOLVERS[stated.resolver.name].rejects is not None:
        raise check.refuse(
            (*path, "compensate_for_errors"),
            refused_pairs.COMPENSATED_ONE_WAY.says(resolver=shown(stated.resolver.name)),
        )
    try:
        resolver_info = resolver_settings(stated.resolver, stated.tracking)
    except ResolverKeyError as error:
        raise check.refuse((*path, "resolver", error.key), error.problem) from error
    table = stated.table or stated.name
    inside = os.path.realpath(os.path.join(publisher, table))
    if not inside.startswith(publisher.rstrip("/") + "/"):
        raise check.refuse(
            (*path, "table"), f"is {shown(table)}, a link that leads out of the publisher's folder"
        )
    key = tuple(stated.key or ())
    identity = (stated.rowguid,) if stated.rowguid else key
    return Article(
        name=stated.name,
        table=table,
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


def _with_identity(columns: Iterable[str], identity: tuple[str, ...]) -> tuple[str, ...]:
    """Add the columns that identify a row to a vertical filter."""
    chosen = tuple(columns)
    present = {column.lower() for column in chosen}
    return (*(column for column in identity if column.lower() not in present), *chosen)


def _check_tables(articles: tuple[Article, ...], check: _Check) -> None:
    """Refuse two articles on one table, or a table inside another."""
    check.unique(
        (article.table for article in articles), lambda index: ("articles", index, "table"), "the table"
    )
    for index, article in enumerate(articles):
        for other in articles:
            if folded(article.table).startswith(folded(other.table) + "/"):
                raise check.refuse(
                    ("articles", index, "table"),
                    f"is {shown(article.table)}, inside the table {shown(other.table)}",
                )


def _subscription(
    stated: SubscriptionKeys, check: _Check, path: strict_yaml.KeyPath, folder: Path
) -> Subscription:
    """Return one subscription, with the priority that its type implies."""
    kind = SubscriberType(stated.type)
    if kind is SubscriberType.CLIENT and stated.priority:
        raise check.refuse((*path, "priority"), refused_pairs.CLIENT_PRIORITY.says(priority=stated.priority))
    default = DEFAULT_SERVER_PRIORITY if kind is SubscriberType.SERVER else 0.0
    return Subscription(
        subscriber=_root(stated.subscriber, check, (*path, "subscriber"), folder),
        type=kind,
        priority=default if stated.priority is None else stated.priority,
        sync_type=SyncType(stated.sync_type),
        host_name=stated.host_name,
        suser_sname=stated.suser_sname,
    )


def _check_roots(
    publisher: str, subscriptions: Sequence[Subscription | TransactionalSubscription], check: _Check
) -> None:
    replicas = [("the publisher", publisher)]
    for index, subscription in enumerate(subscriptions):
        path = ("subscriptions", index, "subscriber")
        for who, other in replicas:
            match roots.overlap(subscription.subscriber, other):
                case "same":
                    raise check.refuse(
                        path, f"is the same folder as {who} ({other}): each replica has its own"
                    )
                case "inside":
                    raise check.refuse(path, f"lies inside the folder of {who} ({other}): put it beside")
                case "around":
                    raise check.refuse(path, f"holds the folder of {who} ({other}): put it beside")
        replicas.append((dotted(path), subscription.subscriber))


def _root(text: str, check: _Check, path: strict_yaml.KeyPath, folder: Path) -> str:
    """Return a replica root; a relative one is relative to the file."""
    try:
        return roots.parse(text, base=folder)
    except ConfigurationError as error:
        raise check.refuse(path, f"cannot be used: {error.message.rstrip('.')}") from error

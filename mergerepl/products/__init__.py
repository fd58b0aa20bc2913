"""The products that use a folder, by type. Each module has one function for each task that its product has.

The functions have the names of the tasks: `status`, `pending`, `history`, `capture`, `validate`, `cleanup`, `reinit`,
`resume`. `of_products` finds one task at all products of some folders; a task that none of them has is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

from mergerepl.calls import require_choice, require_limit
from mergerepl.errors import ConfigurationError, EngineError, MergeReplError
from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.folders import Document
from mergerepl.model.listing import Listing
from mergerepl.model.products import CDC, MERGE, TYPES
from mergerepl.model.progress import Progress
from mergerepl.model.results import ApplyResult, ArticleValidation, PlanStep
from mergerepl.model.tasks import (
    UNKNOWN,
    Captured,
    Pending,
    PendingRow,
    Run,
    Status,
    StatusWarning,
    ValidationResult,
)
from mergerepl.places import types_at
from mergerepl.sessions import NO_SUBSCRIPTION, Level
from mergerepl.sessions.targets import Item, distributions, merge_targets
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.monitoring.doctor import Check

_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_NOUNS = {
    "pending": "changes that wait for a sync",
    "capture": "capture of its own",
    "validate": "subscribers to compare",
    "cleanup": "cleanup by age",
    "reinit": "subscriber to fill again",
    "repair": "repair of rows",
    "vacuum": "files to remove",
    "resume": "paused tables",
    "conflicts": "conflicts",
    "schema": "published columns",
}


def of_products(
    task: str, roots: Sequence[Location], types: Collection[str] = TYPES
) -> Iterator[tuple[Location, Callable[..., Any]]]:
    """Yield each folder with the function of the task, once for each product there that has it.

    Raises: ConfigurationError if no product uses one of the folders, or none of all has the task.
    """
    only = None if len(types) == len(TYPES) else f"nothing of type {', '.join(sorted(types))}"
    found: list[tuple[Location, Callable[..., Any]]] = []
    without: dict[str, str] = {}
    for root in roots:
        there = types_at(root)
        if not there and only:
            raise ConfigurationError(f"{root.name} has {only}.", replica=str(root))
        if not there:
            from mergerepl.replica.replica import Replica

            # It names the reason, and the commands that take such a folder.
            Replica(root).require()
        for kind in there:
            function = getattr(import_module(f"mergerepl.products.{kind}"), task, None)
            if function is not None and kind in types:
                found.append((root, function))
            else:
                without.setdefault(root.name, kind)
    if not found:
        raise lacks(task, next(iter(without.items()), None), only)
    yield from found


def apply(
    kind: str,
    document: Document,
    dry_run: bool,
    progress: Progress,
    planned: Collection[PlanStep] | None = None,
) -> ApplyResult:
    """Make a folder match a document of this type; a dry run only returns the steps.

    Steps that remove rows must be `planned`, if a plan was made before. Merge publications have none.
    """
    function = import_module(f"mergerepl.products.{kind}").apply
    terms = {} if kind == MERGE else {"planned": planned}
    applied: ApplyResult = function(document, dry_run=dry_run, progress=progress, **terms)
    return applied


def lacks(task: str, known: tuple[str, str] | None, what: str | None = None) -> ConfigurationError:
    """Return the error for a task that a product does not have; `known` is a name and its type."""
    said = what or f"no {_NOUNS.get(task, task)}"
    if known is None:
        return ConfigurationError(f"Here is {said}.")
    return ConfigurationError(f"{known[0]} is {known[1]}: {said}. `mergerepl status` shows what it has.")


_RECENT = timedelta(days=1)
"""Thresholds of sessions are about the last one, if it is not older."""

AlertsOf = Callable[[str, Location], Alerts]
"""Returns the thresholds of one type at one folder."""


def default_alerts(kind: str, root: Location) -> Alerts:
    """Return the defaults, for folders without a file."""
    return DEFAULT


def status(
    roots: Sequence[Location], types: Collection[str] = TYPES, *, alerts_of: AlertsOf = default_alerts
) -> Listing[Status]:
    """Return the state of each product at each folder.

    A product that cannot be read has the warning `unknown`; if it is the only one, its error is raised.
    """

    def with_alerts(root: Location, work: Callable[..., Status]) -> Callable[[Location], Status]:
        alerts = alerts_of(_kind_of(work), root)

        def read(root: Location) -> Status:
            found = work(root, alerts=alerts)
            if not alerts.reads_sessions:
                return found
            from mergerepl.products.session_alerts import session_warnings

            recent = import_module(work.__module__).recent
            warnings = session_warnings(recent(root, datetime.now(UTC) - _RECENT), alerts)
            return replace(found, warnings=(*found.warnings, *warnings))

        return update_wrapper(read, work)

    works = [(root, with_alerts(root, work)) for root, work in of_products("status", roots, types)]
    return Listing(of_each(works, _unknown))


def _kind_of(work: Callable[..., Any]) -> str:
    return work.__module__.rpartition(".")[2]


def _unknown(kind: str, root: Location, error: MergeReplError) -> Status:
    return Status(kind, str(root), "", (StatusWarning(str(root), UNKNOWN, error.message),))


def of_each(
    works: Iterable[tuple[Location, Callable[..., Any]]],
    failed: Callable[[str, Location, MergeReplError], Any],
    **terms: Any,
) -> Iterator[Any]:
    """Yield the result of each product; an error becomes one by `failed`, and the others go on. The only one raises."""
    found = list(works)
    for root, work in found:
        try:
            yield work(root, **terms)
        except MergeReplError as error:
            if len(found) == 1:
                raise
            yield failed(_kind_of(work), root, error)


def captured_checks(roots: Iterable[Location]) -> Iterator[Check]:
    """Yield for `doctor` whether Change Data Capture of some folders keeps up; nothing where it is not enabled."""
    for root in roots:
        if CDC not in types_at(root):
            continue
        from mergerepl.monitoring.doctor import Check, CheckStatus
        from mergerepl.products import cdc

        see = f"See `mergerepl status -f {root}`."
        try:
            warnings = cdc.status(root).warnings
        except MergeReplError as error:
            warnings = _unknown(CDC, root, error).warnings
        for each in warnings:
            yield Check(f"cdc {root}", CheckStatus.WARN, f"{each.source}: {each.text}", see)
        if not warnings:
            yield Check(f"cdc {root}", CheckStatus.OK, "captured tables are read in time")


def history(
    roots: Sequence[Location],
    *,
    subscribers: Collection[str] | None = None,
    failed: bool = False,
    types: Collection[str] = TYPES,
    limit: int = 20,
) -> Listing[Run]:
    """Return the newest runs of all products at some folders; of one subscriber or more, only their sessions."""
    require_limit(limit)
    wanted = _wanted(subscribers)
    found = [
        run
        for root, history_at in of_products("history", roots, types)
        for subscriber in wanted
        for run in history_at(root, failed=failed, limit=limit, subscriber=subscriber)
    ]
    newest = sorted(found, key=lambda run: run.time or _LONG_AGO, reverse=True)
    return Listing(newest[:limit])


def count_history(
    roots: Sequence[Location],
    *,
    subscribers: Collection[str] | None = None,
    failed: bool = False,
    types: Collection[str] = TYPES,
) -> int:
    """Return the number of runs that `history` lists without a limit."""
    works = list(of_products("count_history", roots, types))
    wanted = _wanted(subscribers)
    return sum(work(root, failed=failed, subscriber=each) for root, work in works for each in wanted)


def _wanted(subscribers: Collection[str] | None) -> list[str | None]:
    return [None] if subscribers is None else [*sorted(subscribers)]


def pending(roots: Sequence[Location], types: Collection[str] = TYPES) -> Listing[Pending]:
    """Return the changes that wait at some folders, by subscription, article and direction."""
    return Listing(
        each for root, pending_at in of_products("pending", roots, types) for each in pending_at(root)
    )


def pending_rows(items: Sequence[Item], chosen: Collection[str] | None, *, limit: int) -> Listing[PendingRow]:
    """Return the rows that wait for the chosen merge subscriptions, up to a number.

    Raises: ConfigurationError if there is no merge subscription; the errors of `monitoring.pending_rows`.
    """
    from mergerepl.monitoring.pending_rows import pending_rows as of_subscription

    require_limit(limit)
    targets = merge_targets(items, chosen)
    if not targets:
        raise ConfigurationError(
            "Only merge subscriptions list the rows that wait, and this project has no merge subscription."
        )
    found: list[PendingRow] = []
    for each in targets:
        found += of_subscription(each.publisher, each.subscriber, each.publication, limit=limit - len(found))
    return Listing(found)


def capture(
    roots: Sequence[Location], progress: Progress, types: Collection[str] = TYPES
) -> Listing[Captured]:
    """Record new changes at some folders; where products share one reading of the log, it runs once.

    A product that fails has an `error`; if it is the only one, it is raised.
    """

    def failed(kind: str, root: Location, error: MergeReplError) -> Captured:
        return Captured(kind, str(root), 0, error=error.message)

    done = of_each(of_products("capture", roots, types), failed, progress=progress)
    return Listing(each for each in done if each is not None)


def validate(
    items: Sequence[Item], chosen: Collection[str] | None, level: Level, tables: Collection[str]
) -> ValidationResult:
    """Compare the chosen subscribers with their publishers; a subscriber that cannot be compared is a row with the error.

    Raises: the error of the only subscription; ConfigurationError, EngineError.
    """
    from mergerepl.merge.repair.certificate import record_news
    from mergerepl.monitoring.validate import not_compared, validate_subscription

    require_choice("level of validation", level, get_args(Level))
    targets, one_way = merge_targets(items, chosen), distributions(items, chosen)
    if not targets and not one_way:
        raise ConfigurationError(NO_SUBSCRIPTION)
    if one_way and level != "checksum":
        raise ConfigurationError(f"{one_way[0].publisher.name} is transactional: it is compared by checksum.")
    found: list[ArticleValidation] = []
    for item in targets:
        try:
            rows = validate_subscription(
                item.publisher, item.subscriber, item.publication, level, tables=tables
            )
            record_news(item.publisher, item.subscriber, item.publication, rows)
        except MergeReplError as error:
            if len(targets) + len(one_way) == 1 or isinstance(error, ConfigurationError | EngineError):
                raise
            rows = not_compared(item.publisher, item.publication, level, error.details())
            if not rows:
                raise
        found += (replace(each, subscriber=str(item.subscriber)) for each in rows)
    for each in one_way:
        from mergerepl.products import transactional

        found += transactional.validate(each, tables=tables, is_only=len(one_way) == 1 and not targets)
    if unknown := set(tables) - {each.article for each in found}:
        raise ConfigurationError(
            f"Nothing was compared of {', '.join(map(repr, sorted(unknown)))}: no article is called so here. "
            "`mergerepl status` lists the articles."
        )
    return ValidationResult(Listing(found))

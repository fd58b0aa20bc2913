"""The sessions of one `sync`: merge sessions of the chosen subscriptions, and distributions of transactional ones."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from mergerepl.calls import require_choice
from mergerepl.errors import TRIES, ConfigurationError, MergeReplError, class_of_details
from mergerepl.model.products import MERGE, TRANSACTIONAL, TYPES
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import SessionResult, SyncResult
from mergerepl.sessions.distributed import distributed, failed_session
from mergerepl.sessions.targets import Item, Target, distributions, merge_targets
from mergerepl.store.lease import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.merge.session.merge_session import SessionRequest

Direction = Literal["both", "upload", "download"]
Level = Literal["rowcount", "checksum"]
SessionLevel = Literal["rowcount", "touched", "checksum"]
Engine = Literal["spark", "auto"]
T = TypeVar("T")

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 300.0

NO_SUBSCRIPTION = "There is no subscription. Add `subscriptions:` to the file and run `mergerepl apply`."


def require_options(
    direction: Direction, engine: Engine | None, validate: SessionLevel | None, *, dry_run: bool
) -> None:
    """Refuse options that no type of publication takes.

    Raises: ConfigurationError.
    """
    require_choice("direction", direction, get_args(Direction))
    if engine is not None:
        require_choice("engine", engine, get_args(Engine))
    if validate is not None:
        require_choice("level of validation", validate, get_args(SessionLevel))
        if dry_run:
            raise ConfigurationError(
                "A dry run changes nothing that could be validated afterwards: leave out `validate`, or run "
                "`mergerepl validate` by itself."
            )


def synchronize(
    items: Sequence[Item | Target],
    *,
    chosen: Collection[str] | None = None,
    types: Collection[str] = TYPES,
    direction: Direction = "both",
    dry_run: bool = False,
    validate: SessionLevel | None = None,
    validate_interval: timedelta | None = None,
    retries: int = 0,
    engine: Engine | None = None,
    streams: int | None = None,
    skip_errors: Sequence[int] = (),
    procedures: Sequence[str] = (),
    long_running: bool = False,
    progress: Progress | None = None,
) -> SyncResult:
    """Run the sessions of `Project.sync`; `long_running` tunes the embedded engine for many of them."""
    require_options(direction, engine, validate, dry_run=dry_run)
    one_way = distributions(items, chosen) if TRANSACTIONAL in types else []
    targets = merge_targets(items, chosen) if MERGE in types else []
    if one_way:
        _refuse(
            "A transactional publication goes one way",
            {
                "--direction": direction != "both",
                "--validate": validate is not None,
                "--validate-interval": validate_interval is not None,
                "--retries": retries > 0,
                "--engine": engine is not None,
            },
        )
    elif streams is not None or skip_errors or procedures:
        _refuse(
            "No transactional publication is synchronized here",
            {
                "--streams": streams is not None,
                "--skip-errors": bool(skip_errors),
                "--procedures": bool(procedures),
            },
        )
    if not targets and not one_way:
        raise ConfigurationError(NO_SUBSCRIPTION)
    if one_way:
        from mergerepl.transactional.refusals import require_streams

        require_streams(streams)
    if procedures:
        from mergerepl.transactional.procedures import load

        load(procedures)
    shown = progress or NoProgress()
    is_only = len(targets) == 1 and not one_way
    if validate_interval is not None and validate is None:
        raise ConfigurationError("An interval of validations needs their level: name one (--validate).")
    if validate_interval is not None and validate == "touched":
        raise ConfigurationError(
            "`touched` compares the rows of each session: leave out the interval (--validate-interval), or validate by "
            "`checksum`."
        )

    def run(item: Target) -> SessionResult:
        return _reported(
            item,
            direction,
            dry_run,
            validate,
            validate_interval,
            engine,
            long_running,
            shown,
            is_only=is_only,
        )

    if retries and not dry_run:
        from mergerepl.merge.session.session_history import one_round

        with one_round():
            sessions = run_again(run, targets, retries)
    else:
        sessions = run_again(run, targets, 0)
    options = {"streams": streams, "skip_errors": list(skip_errors) or None}
    for each in one_way:
        is_only = len(one_way) == 1 and not targets
        sessions += distributed(each, options, shown, is_only=is_only, dry_run=dry_run)
    if not sessions:
        raise ConfigurationError(NO_SUBSCRIPTION)
    return SyncResult(sessions[0].publication, tuple(sessions))


def _refuse(reason: str, options: dict[str, bool]) -> None:
    given = [f"`{name}`" for name, is_given in options.items() if is_given]
    if given:
        raise ConfigurationError(f"{reason}: leave out {', '.join(given)}.")


def _reported(
    item: Target,
    direction: Direction,
    dry_run: bool,
    validate: SessionLevel | None,
    validate_interval: timedelta | None,
    engine: Engine | None,
    long_running: bool,
    progress: Progress,
    *,
    is_only: bool,
) -> SessionResult:
    """Run one session; its error is its result, unless it is the only one."""
    started = time.monotonic()
    done: SessionResult | None = None
    try:
        chosen = item if engine is None else replace(item, engine=engine)
        since = None
        if validate == "touched":
            from mergerepl.merge.repair.certificate import last_runs

            since = last_runs(item.publisher, item.subscriber)
        done = _session(chosen, direction, dry_run, long_running, progress)
        if validate is None:
            return done
        from mergerepl.merge.repair.certificate import is_due, record_validation
        from mergerepl.monitoring.validate import validate_subscription

        place = item.publisher, item.subscriber, item.publication
        if validate_interval is not None and not is_due(*place, validate_interval):
            return done
        found = validate_subscription(*place, validate, since=since)
        record_validation(*place, found)
        return replace(done, validation=found)
    except MergeReplError as error:
        if is_only:
            raise
        if done is not None:
            return replace(done, error=error.details())
        return failed_session(item.publication, str(item.subscriber), started, error)


def run_again(
    run: Callable[[Target], SessionResult], targets: Sequence[Target], retries: int
) -> list[SessionResult]:
    """Run all sessions, then up to `retries` times again those that failed for a reason that may pass.

    The others of the round go on first. The wait doubles up to five minutes and is drawn, so that agents that failed
    together do not meet again.
    """
    results: dict[Target, SessionResult] = {}
    left = list(targets)
    for attempt in range(retries + 1):
        again: list[Target] = []
        for item in left:
            try:
                results[item] = run(item)
            except MergeReplError as error:
                if not _is_tried_again(error.details(), attempt, retries):
                    raise
                log.warning("%s Trying again.", error.message)
                again.append(item)
                continue
            details = results[item].error
            if details is not None and _is_tried_again(details, attempt, retries):
                again.append(item)
        left = again
        if not left or attempt == retries:
            break
        time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, 2.0**attempt)))
    return [results[item] for item in targets]


def _is_tried_again(details: Mapping[str, Any], attempt: int, retries: int) -> bool:
    tries = TRIES[class_of_details(details)]
    return attempt < retries and (tries is None or attempt + 1 < tries)


def _session(
    item: Target, direction: Direction, dry_run: bool, long_running: bool, progress: Progress
) -> SessionResult:
    from mergerepl.store.register import looking

    with looking(item.publisher, item.subscriber):
        return _session_of(item, direction, dry_run, long_running, progress)


def _session_of(
    item: Target, direction: Direction, dry_run: bool, long_running: bool, progress: Progress
) -> SessionResult:
    from mergerepl.monitoring.quiet import (
        nothing_to_do,
        remember_quiet,
        remember_subscriptions,
        waiting_if_quiet,
    )

    place = (item.publisher, item.subscriber, item.publication, direction)
    waiting = None if dry_run else waiting_if_quiet(*place)
    if waiting is not None:
        return nothing_to_do(item.subscriber, item.publication, waiting)
    from mergerepl.merge.session.merge_session import merge_session
    from mergerepl.merge.session.session_history import record_unreached

    if not dry_run:
        from mergerepl.delta.tables import adopt_knowledge, trust_heads

        trust_heads(item.publisher, item.subscriber)
        adopt_knowledge(item.publisher, item.subscriber)
    try:
        request = session_request(item, progress, direction=direction, long_running=long_running)
    except MergeReplError as error:
        if not dry_run:
            record_unreached(item.publisher, item.subscriber, item.publication, error)
        raise
    if dry_run:
        from mergerepl.merge.session.preview import preview_session

        return preview_session(request)
    result = merge_session(request, lease_wait_s=WAIT_S.get())
    if result.status == "nothing_to_do":
        # Another `apply` may have run while the session waited for its leases.
        ends = request.reread()
        remember_quiet(ends.publisher, ends.subscriber, item.publication, direction, waiting=result.waiting)
        remember_subscriptions(ends.publisher.root)
    return result


def session_request(
    item: Target, progress: Progress, *, direction: Direction = "both", long_running: bool = False
) -> SessionRequest:
    """Return the request of a session of one subscription.

    Raises: as `find_subscription` and `require_names`.
    """
    from mergerepl.merge.session.merge_session import SessionRequest
    from mergerepl.replica.named_tables import require_names
    from mergerepl.replica.subscription import find_subscription

    publisher, subscriber, row = find_subscription(item.publisher, item.subscriber, item.publication)
    require_names(publisher, subscriber.root, item.publication)

    def spark_of() -> SparkSession:
        from mergerepl.delta.store_proof import prove_callers, require_shared_folders
        from mergerepl.spark import session as engine

        for root in (item.publisher, item.subscriber):
            root.require_spark()
        spark = engine.session(long_running=long_running, step=progress.step)
        prove_callers(spark, item.publisher, item.subscriber)
        return require_shared_folders(spark, item.publisher, item.subscriber)

    return SessionRequest(
        publisher,
        subscriber,
        row,
        item.publication,
        spark_of,
        progress,
        engine=item.engine,
        upload=direction != "download",
        download=direction != "upload",
    )

"""The results of a validation after a session: rows of MSmerge_articlehistory at both ends, and the diverged articles.

An article stays diverged until a validation of the same or a higher level finds it equal with nothing left out, or a
repair has covered it.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.errors import MergeReplError
from mergerepl.model.results import ArticleValidation
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import find_subscription, update_subscription
from mergerepl.store.lease import leases
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.sessions import ArticleHistoryRow, Phase

log = logging.getLogger(__name__)

LEVELS = ("rowcount", "touched", "checksum")
"""From the lowest to the highest."""

_TOUCHED = "touched"


def last_runs(publisher: Location, subscriber: Location) -> dict[str, int]:
    """Return the last run of each side, before a session whose rows are to be compared.

    A side that cannot be read counts from its first run on: its session fails, or compares all rows with metadata.
    """
    found = {}
    for side, root in ((PUBLISHER, publisher), (SUBSCRIBER, subscriber)):
        try:
            found[side] = Replica(root).require().info().last_seq
        except MergeReplError:
            found[side] = 0
    return found


def is_due(publisher: Location, subscriber: Location, publication: str, interval: timedelta) -> bool:
    """True if the subscription was not validated within the interval.

    Raises: as `find_subscription`.
    """
    _, _, row = find_subscription(publisher, subscriber, publication)
    last = row.attempted_validate
    return last is None or datetime.now(UTC) - last.replace(tzinfo=last.tzinfo or UTC) >= interval


def record_validation(
    publisher: Location, subscriber: Location, publication: str, found: Sequence[ArticleValidation]
) -> None:
    """Record the results at both ends.

    If an end is held by another process or cannot be written, the process log has it: the result itself is reported.
    """
    now = datetime.now(UTC)
    try:
        with leases(publisher, subscriber, purpose="recording a validation"):
            at_publisher, at_subscriber, row = find_subscription(publisher, subscriber, publication)
            for replica in (at_publisher, at_subscriber):
                replica.control.append(sessions.ARTICLEHISTORY, [_history(each, now) for each in found])
                _mark(replica, row.subid, found, now)
    except (MergeReplError, OSError) as error:
        log.warning("the validation of '%s' is not recorded: %s", subscriber, error)


def record_news(
    publisher: Location, subscriber: Location, publication: str, found: Sequence[ArticleValidation]
) -> None:
    """Record results as `record_validation` does if they change which articles count as diverged; else write nothing."""
    at_publisher, _, row = find_subscription(publisher, subscriber, publication)
    now = datetime.now(UTC)
    after = diverged_after(row.diverged, _results(at_publisher, row, found), now)
    if after.keys() != row.diverged.keys():
        record_validation(publisher, subscriber, publication, found)


def _results(
    replica: Replica, row: SubscriptionRow, found: Sequence[ArticleValidation]
) -> dict[int, ArticleValidation]:
    """Return the results of articles that both sides have, by tablenick."""
    nicknames = {each.name: each.nickname for each in replica.articles_of(row.pubid)}
    return {nicknames[each.article]: each for each in found if each.article in nicknames}


def _history(each: ArticleValidation, now: datetime) -> ArticleHistoryRow:
    return ArticleHistoryRow(
        phase_id=Phase.VALIDATION,
        article_name=each.article,
        start_time=now,
        level=each.level,
        result=each.result,
        publisher_version=each.publisher_version,
        subscriber_version=each.subscriber_version,
        publisher_rows=each.publisher_rows,
        subscriber_rows=each.subscriber_rows,
        differing_rows=each.differing_rows,
        unsent_at_publisher=each.unsent_at_publisher,
        unsent_at_subscriber=each.unsent_at_subscriber,
        uncaptured_at_publisher=each.uncaptured_at_publisher,
        uncaptured_at_subscriber=each.uncaptured_at_subscriber,
    )


def _mark(replica: Replica, subid: str, found: Sequence[ArticleValidation], now: datetime) -> None:
    row = next((row for row in replica.relations() if row.subid == subid), None)
    if row is None:
        return
    results = _results(replica, row, found)
    changed: dict[str, Any] = {"diverged": diverged_after(row.diverged, results, now)}
    if any(each.level == _TOUCHED for each in found):
        # The rows of one session say nothing about the others: validations of whole tables stay due.
        if changed["diverged"] != row.diverged:
            update_subscription(replica, subid, row.replid, changed)
        return
    changed["attempted_validate"] = now
    # Some tables alone say nothing about the others.
    if len(results) == len(replica.articles_of(row.pubid)) and all(each.result == "equal" for each in found):
        changed["last_validated"] = now
    update_subscription(replica, subid, row.replid, changed)


def diverged_after(
    known: Mapping[int, str], results: Mapping[int, ArticleValidation], now: datetime
) -> dict[int, str]:
    """Return tablenick -> level and time of the validation that found it different, after these results."""
    diverged = dict(known)
    for nickname, each in results.items():
        before = diverged.get(nickname)
        is_as_high = before is None or LEVELS.index(each.level) >= LEVELS.index(before.split()[0])
        if each.result == "different" and is_as_high:
            diverged[nickname] = f"{each.level} {now.isoformat(timespec='seconds')}"
        elif each.result == "equal" and is_as_high and each.level != _TOUCHED:
            diverged.pop(nickname, None)
    return diverged


def forget_divergence(replicas: Iterable[Replica], subid: str, tablenicks: Collection[int]) -> None:
    """Note at held replicas that a repair has covered these articles."""
    for replica in replicas:
        row: SubscriptionRow | None = next((row for row in replica.relations() if row.subid == subid), None)
        if row is None or not set(row.diverged) & set(tablenicks):
            continue
        left = {nickname: text for nickname, text in row.diverged.items() if nickname not in tablenicks}
        update_subscription(replica, subid, row.replid, {"diverged": left})

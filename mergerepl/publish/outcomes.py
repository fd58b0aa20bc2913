"""The outcome of a planned `apply` for each subscription. Nothing is written here."""

from collections.abc import Iterator

from mergerepl.model.results import PlannedMoves, PlannedSubscription
from mergerepl.model.words import counted
from mergerepl.publish.agent import Agent
from mergerepl.publish.difference import filter_change
from mergerepl.publish.stated import Stated, ended_upload_only, is_removed
from mergerepl.publish.stored import Stored, SubscriberState, describe_unsent

FOLLOWED, DIFF, STOPS, NEW, ENDS = "followed", "diff", "stops", "new", "ends"
ELSEWHERE = "it moves to another partition with its next session, after its changes went up"


def planned_subscriptions(stated: Stated, stored: Stored, agent: Agent) -> Iterator[PlannedSubscription]:
    """Yield the outcome for each subscription of the file, then for those that it no longer names."""
    compared = ", ".join(ended_upload_only(stated.publication, stored))
    removed = [row.name for row in stored.articles if is_removed(stated.publication, stored, row)]
    ending = ", ".join(removed)
    staged = [guid for session in stored.publisher.sessions for guid in session.manifest.uploaded_guids]
    moves = _moves(stated, stored, agent)
    for each in stored.subscribers:
        outcome, why = _outcome(each, compared)
        if outcome == FOLLOWED and (gets := [*each.missing(stored.articles), *stated.new_rows]):
            why = f"it gets {', '.join(row.name for row in gets)}"
        if outcome == FOLLOWED and ending:
            why = "; ".join([*([why] if why else []), f"{ending}: after one more upload"])
        if outcome == FOLLOWED and stated.filled_by_row:
            first = f"{', '.join(stated.filled_by_row)}: after its changes went up"
            why = "; ".join([*([why] if why else []), first])
        moved = () if moves is None or each.row is None else moves.get(each.row.partition_id, ())
        if outcome == FOLLOWED and each.is_active and (moves is None or moved):
            why = "; ".join([*([why] if why else []), *_moved_rows(moved)])
        if outcome == FOLLOWED and _is_elsewhere(each, stated):
            why = "; ".join([*([why] if why else []), ELSEWHERE])
        if each.is_active and (reason := _stops_at(each, stated, stored, agent)) is not None:
            outcome, why = STOPS, reason
        unsent = ""
        if each.is_active and each.row is not None and each.row.expired_at is None:
            unsent = describe_unsent(stored.publisher.root, each.replica.root, stored.pubid, staged)
        yield PlannedSubscription(each.subscription.subscriber, outcome, why, unsent, moved)
    for row, _ in stored.left:
        why = "the file no longer names it"
        yield PlannedSubscription(row.subscriber_server, ENDS, why, stored.unsent.get(row.subid, ""))


def _moves(stated: Stated, stored: Stored, agent: Agent) -> dict[int | None, tuple[PlannedMoves, ...]] | None:
    """Return by partition the rows that move because filters change; None if they change and Spark would have to count."""
    change = filter_change(stated, stored)
    if change is None:
        return {}
    rows = (each.row for each in stored.subscribers if each.is_active)
    partitions = {row.partition_id for row in rows if row is not None and row.partition_id is not None}
    found = agent.planned_moves(stored.publisher.root, stored.pubid, change, sorted(partitions))
    if found is None:
        return None
    return {
        partition: tuple(
            PlannedMoves(name, *counts[partition]) for name, counts in found.items() if any(counts[partition])
        )
        for partition in partitions
    }


def _moved_rows(moves: tuple[PlannedMoves, ...]) -> Iterator[str]:
    """Yield the rows that enter and leave in words, by article; empty: they were not counted."""
    if not moves:
        yield "rows enter and leave, which only Spark can count"
    for each in moves:
        yield f"{each.article} gains {counted(each.enter, 'row')}, loses {each.leave:,}"


def _is_elsewhere(each: SubscriberState, stated: Stated) -> bool:
    """Return True if the file gives a subscriber another value of a function that filters use."""
    names = [function.lower() for function in stated.filters.functions]
    return any(getattr(each.row, name) != getattr(each.subscription, name) for name in names)


def _stops_at(each: SubscriberState, stated: Stated, stored: Stored, agent: Agent) -> str | None:
    """Return why a subscriber's tables cannot get the columns that articles publish from now on; None if they can."""
    ends = stored.publisher.root, each.replica.root
    found = (agent.stops_at(*ends, of.change) for of in stated.columns)
    return next(filter(None, found), None)


def _outcome(each: SubscriberState, compared: str) -> tuple[str, str]:
    if each.row is None or not each.is_active:
        return NEW, "it gets all tables"
    if each.row.expired_at is not None:
        return STOPS, "it has expired: `mergerepl reinit` fills it again"
    return (DIFF, f"{compared}: after its changes went up") if compared else (FOLLOWED, "")

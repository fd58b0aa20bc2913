"""Reinitialise a subscriber by difference: readers never meet an empty table, and equal rows are not written.

Its tables are compared with the publisher's at captured versions. The outcome is staged and carried out as a session's
changeset: it happens once, late writes are taken in, and a run that died is finished by the next one. The subscriber's
metadata becomes void and is replaced by the publisher's (docs/decisions/0073). So the two need no common past: a
subscription that expired, or a replica that was restored from an older copy, goes on.
"""

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import ARROW_FOR_FEW, EngineChoice, NeedsSparkError
from mergerepl.errors import ConfigurationError, EnumerationError, PublicationError
from mergerepl.merge.reinit.captured_ends import capture_ends
from mergerepl.merge.reinit.outcome import article_to_follow, carried_out, with_counts
from mergerepl.merge.reinit.unsent import (
    NOTHING,
    ReinitTerms,
    compared_articles,
    decided_article,
    refuse_moves,
    refuse_unsent,
    refuse_waiting,
)
from mergerepl.merge.schema.skip import forget_stale_skips
from mergerepl.merge.schema.waiting import definition_changes
from mergerepl.merge.session.merge_session import (
    SessionRequest,
    finish_elsewhere,
    held_session,
    refuse_pending_elsewhere,
)
from mergerepl.merge.session.recovery import recover, refuse_interrupted
from mergerepl.merge.session.schema_step import changed_articles, followed_schema
from mergerepl.merge.session.sides import SideState, open_sides, with_windows, without
from mergerepl.model.results import ArticleCounts
from mergerepl.model.tasks import Reinit
from mergerepl.replica.replica import recording_jvm
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.tracking.sweep import sweep_root

log = logging.getLogger(__name__)


def reinitialise(request: SessionRequest, terms: ReinitTerms, *, lease_wait_s: float = 0.0) -> list[Reinit]:
    """Reinitialise one subscription, or some of its articles.

    Raises: ConfigurationError if a table is unknown, or changes would be given up that the terms do not name;
    PublicationError if its publication cannot be reinitialised, a replica is not the subscribed one, or a key has several
    rows; ApplyError if a table would refuse a row; CaptureError, SchemaMismatchError, StoreError if a table cannot be
    read on; EnumerationError if a session must be finished or aborted first; LeaseError, CommitConflictError (run again).
    """
    if not terms.is_dry:
        for replica in request.ends:
            finish_elsewhere(replica, request)
    doing = f"reinitialising '{request.subscriber.root}'"
    with request.held(doing, lease_wait_s) as held, plain_errors(doing):
        return reinitialise_held(held, terms)


def reinitialise_held(held: SessionRequest, terms: ReinitTerms) -> list[Reinit]:
    """Reinitialise a subscription whose replicas the caller holds (`SessionRequest.held`); as `reinitialise`."""
    for replica in held.ends:
        sweep_root(replica.root)
    held.refuse_unfit_replicas()
    refuse_pending_elsewhere(held)
    if terms.is_dry:
        refuse_interrupted(*held.ends)
    else:
        recover(*held.ends, held.spark_of, engine=held.engine)
        forget_stale_skips(*held.ends, held.subscription.pubid)
    chosen = _chosen(held, terms)
    others = [
        each.nickname
        for each in held.publisher.articles_of(held.subscription.pubid)
        if each.nickname not in chosen
    ]
    counts: tuple[ArticleCounts, ...] = ()
    if not terms.is_dry and (others or terms.upload_first):
        try:
            # What the others have to send goes first: the watermarks are those of all articles.
            counts = held_session(held, datetime.now(UTC), time.monotonic())[0].articles
        except EnumerationError:
            # The two have no common past that a session could go by.
            if others:
                raise
        held = held.reread()
    sides = open_sides(*held.ends, held.subscription, is_anew=not others)
    changed = _with_changed_columns(held, sides, terms, chosen)
    if changed and not terms.is_dry:
        stopped = followed_schema(held.ends, changed, held.engine, held.spark_of, held.progress)
        for error in stopped.values():
            raise error
        held = held.reread()
    started = recording_jvm(held.spark_of, held.ends)
    choice = EngineChoice(uses_arrow=held.engine == ARROW_FOR_FEW, spark_of=started)
    in_process = replace(choice, in_process=choice.uses_arrow)
    try:
        done = _filled_again(held, terms, in_process, others=others, left_out=changed)
    except NeedsSparkError as error:
        if not in_process.in_process:
            raise
        # Nothing is staged. Captured changes may be recorded; they are read again.
        log.info("Spark: %s", error)
        done = _filled_again(held.reread(), terms, choice, others=others, left_out=changed)
    done = [with_counts(each, counts) for each in done]
    if not terms.is_dry:
        return done
    return done + [article_to_follow(held, nickname) for nickname in changed]


def _filled_again(
    held: SessionRequest,
    terms: ReinitTerms,
    choice: EngineChoice,
    *,
    others: Collection[int],
    left_out: Collection[int],
) -> list[Reinit]:
    """Compare the tables and carry out the outcome. `others` are not chosen; a dry run leaves out `left_out`, too.

    Raises: NeedsSparkError in process; nothing is staged then.
    """
    sides = open_sides(*held.ends, held.subscription, is_anew=not others)
    if others:
        sides = without(sides, others)
        refuse_waiting(sides)
    if terms.is_dry:
        sides = without(sides, left_out)
    kept = Kept()
    with ExitStack() as stack:
        stack.callback(kept.release)
        with choice.rules():
            captured = capture_ends(
                sides, choice, stack, takes_as_it_is=terms.discard_local, is_dry=terms.is_dry
            )
            articles = compared_articles(
                captured, is_changing_resolver=terms.is_changing_resolver, uses_arrow=choice.uses_arrow
            )
            found = [decided_article(choice.for_rules, of, kept) for of in articles]
        refuse_unsent(held, terms, found)
        refuse_moves(held, terms, sides[PUBLISHER], found)
        return carried_out(held, terms, captured, found, choice, kept) if found else []


def _chosen(held: SessionRequest, terms: ReinitTerms) -> set[int]:
    """Return the tablenicks of the articles to reinitialise.

    Raises: ConfigurationError, PublicationError.
    """
    articles = held.publisher.articles_of(held.subscription.pubid)
    if unknown := set(terms.tables) - {each.name for each in articles}:
        raise ConfigurationError(
            f"Publication '{held.publication}' has no article {', '.join(map(repr, sorted(unknown)))}. {NOTHING}"
        )
    if terms.tables and held.publisher.publication(pubid=held.subscription.pubid).filters is not None:
        raise PublicationError(
            f"Publication '{held.publication}' has row filters: rows of one table may follow those of another. {NOTHING} "
            "Leave out --table: all its tables are compared.",
            publication=held.publication,
        )
    chosen = [each for each in articles if not terms.tables or each.name in terms.tables]
    return {each.nickname for each in chosen}


def _with_changed_columns(
    held: SessionRequest, sides: Mapping[str, SideState], terms: ReinitTerms, chosen: Collection[int]
) -> list[int]:
    """Return the chosen articles whose columns the subscriber has to follow first.

    Raises: PublicationError if changes that were not sent would be compared with rows of other columns.
    """
    opened, refused = with_windows({PUBLISHER: sides[PUBLISHER]})
    changed = [nickname for nickname in changed_articles(opened, sides, refused) if nickname in chosen]
    if changed and terms.upload_first and not (terms.is_dry and _has_session_first(held)):
        article = sides[PUBLISHER].articles[changed[0]]
        since = sides[SUBSCRIBER].articles[changed[0]].root_version
        said = (
            ", ".join(definition_changes(held.publisher, article, since)) or "its columns or its whole table"
        )
        raise PublicationError(
            f"Article '{article.name}' changed since '{held.subscriber.root}' was synchronized last ({said}): its "
            f"changes cannot be compared with the publisher's rows. {NOTHING} Say --discard-local: their rows are kept.",
            article=article.name,
        )
    return changed


def _has_session_first(held: SessionRequest) -> bool:
    """True if the two have a common past: the session before an upload follows columns, as `held_session` does."""
    try:
        open_sides(*held.ends, held.subscription)
    except EnumerationError:
        return False
    return True

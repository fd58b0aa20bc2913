"""The two sides of a session: the bookkeeping of each replica about the other, and its captured changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace

from enumeration.generations import make_generation
from enumeration.horizon import clock_of, own_row, refuse_expired
from enumeration.plan import Destination, Source
from mergerepl.changes import OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import (
    ApplyError,
    CaptureError,
    ConflictError,
    MergeReplError,
    PublicationError,
    SchemaMismatchError,
    StoreError,
    Transient,
)
from mergerepl.failpoints import failpoint
from mergerepl.merge.capture.capture import (
    CapturedArticle,
    CaptureJob,
    after_commit,
    commit_changes,
    open_generations,
    read_changes,
    remove_leftovers,
)
from mergerepl.merge.capture.windows import article_window
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication, sent_partition
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.damage import refuse_older_bookkeeping
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import (
    own_priority,
    require_same_articles,
    require_same_session,
    require_subscribed,
)
from mergerepl.spark.plain import plain_errors
from mergerepl.store.rehearsal import worker_threads
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.window import CaptureWindow

AT_ONCE = 2
"""Spark actions run side by side: one keeps two cores busy only in part."""


Refused = dict[int, MergeReplError]
"""Tablenick -> why the article cannot go on."""

ARTICLE_ERRORS = (ApplyError, CaptureError, ConflictError, SchemaMismatchError, StoreError)
"""Errors about one article; any other error is about the session."""


def raised_if_transient(error: MergeReplError) -> MergeReplError:
    """Return an error about the article; raise a transient one, which a second run may not meet."""
    if isinstance(error, Transient):
        raise error
    return error


def refuse(refused: Refused, nickname: int, error: MergeReplError) -> None:
    """Note why an article cannot go on; the first reason counts.

    Raises: the error itself if it is transient.
    """
    refused.setdefault(nickname, raised_if_transient(error))


@dataclass(frozen=True)
class SideState:
    """One replica of the session with its present bookkeeping. `other` is its row about the other side."""

    name: str
    replica: Replica
    info: ReplicaInfo
    genhistory: list[Generation]
    """Its generations from the watermarks on."""
    articles: dict[int, PublishedArticle]
    other: SubscriptionRow
    windows: tuple[CaptureWindow, ...] = ()
    captured: tuple[CapturedArticle, ...] = ()
    left_out: frozenset[int] = frozenset()
    """Tablenicks of articles that were refused: they are not among `articles`, and their generations wait."""
    filtered: FilteredPublication | None = None
    """The filter of the rows that the other side gets, at a publisher with row filters."""
    rows: tuple[SubscriptionRow, ...] = ()
    """The replica's rows of the publication, with the one about itself."""

    @property
    def source(self) -> Source:
        """The side as the sender."""

        def after(number: int) -> list[Generation]:
            return [row for row in self.genhistory if row.generation > number]

        partition = None
        if self.filtered is not None:
            partition = sent_partition(
                self.replica, self.filtered.number, self.filtered.tablenicks, self.other
            )
        cleaned = max((self.info.cleaned.get(nickname, 0) for nickname in self.articles), default=0)
        return Source(str(self.replica.root), after, self.other, tuple(self.articles), partition, cleaned)

    @property
    def destination(self) -> Destination:
        """The side as the receiver."""
        rules = self.replica.row_constraints
        return Destination(str(self.replica.root), self.held, self.other, rules, self.settled)

    @property
    def settled(self) -> int:
        """The version up to which the replica knew all changes before this session."""
        return own_row(self.rows).settled

    def held(self, guids: Collection[str]) -> Collection[str]:
        """Return those of these generations that the side had before this session."""
        return self.replica.held(guids)

    def captured_article(self, nickname: int) -> CapturedArticle | None:
        """Return the changes of an article captured in this session, or None."""
        return next((c for c in self.captured if c.article.nickname == nickname and c.rows is not None), None)


def open_sides(
    publisher: Replica, subscriber: Replica, subscription: SubscriptionRow, *, is_anew: bool = False
) -> dict[str, SideState]:
    """Return both sides by name, from the control plane alone.

    `is_anew`: for a reinitialisation, which asks for no common past of the two.

    Raises: PublicationError, EnumerationError if the replicas are not those of the subscription, or not in the state of
    their last session.
    """
    pubid, subid = subscription.pubid, subscription.subid
    for replica in (publisher, subscriber):
        replica.require_tables()
    replicas = {PUBLISHER: publisher, SUBSCRIBER: subscriber}
    infos = {name: replica.info() for name, replica in replicas.items()}
    # Both sides stamp above all versions that either knows.
    clock = max(clock_of(infos[name], replica.subscriptions()) for name, replica in replicas.items())
    infos = {name: replace(info, clock=clock) for name, info in infos.items()}
    found = {n: replica.relation(subid, infos[OTHER_SIDE[n]].replid) for n, replica in replicas.items()}
    if is_anew:
        row_of = require_subscribed(publisher, subscriber, found)
    else:
        row_of = require_same_session(publisher, subscriber, found)
        refuse_expired(publisher.rows_of(pubid), row_of[PUBLISHER], str(publisher.root), str(subscriber.root))
    for name, replica in replicas.items():
        refuse_older_bookkeeping(replica.root, infos[name], replica.relations())
    articles = {
        name: {article.nickname: article for article in replica.articles_of(pubid)}
        for name, replica in replicas.items()
    }
    for nickname in publisher.ended(pubid):
        # It may be there until its next session.
        articles[SUBSCRIBER].pop(nickname, None)
    require_same_articles(publisher, subscriber, articles[PUBLISHER], articles[SUBSCRIBER])
    filtered = filtered_publication(publisher, pubid)
    return {
        name: SideState(
            name,
            replica,
            infos[name],
            # Start at the last generation that it sent or that the other side received, whichever is lower.
            replica.genhistory(
                from_generation_exclusive=min(row_of[name].sentgen, row_of[OTHER_SIDE[name]].recgen) - 1
            ),
            articles[name],
            row_of[name],
            filtered=filtered if name == PUBLISHER else None,
            rows=tuple(replica.rows_of(pubid)),
        )
        for name, replica in replicas.items()
    }


def with_windows(sides: dict[str, SideState]) -> tuple[dict[str, SideState], Refused]:
    """Read the tables' commits since the last capture from their logs.

    An article that cannot be captured at one side is left out at both.
    """
    refused: Refused = {}
    windows: dict[str, list[CaptureWindow]] = {name: [] for name in sides}
    for name, side in sides.items():
        for nickname, article in side.articles.items():
            try:
                windows[name].append(article_window(side.replica, article, side.info))
            except ARTICLE_ERRORS as error:
                refuse(refused, nickname, error)
    found = {name: replace(side, windows=tuple(windows[name])) for name, side in sides.items()}
    return without(found, refused), refused


def without(sides: dict[str, SideState], refused: Collection[int]) -> dict[str, SideState]:
    """Leave out these articles: their generations wait, and no watermark of the session passes them.

    Their captured changes are recorded with the rest.
    """
    return {
        name: replace(
            side,
            articles={n: article for n, article in side.articles.items() if n not in refused},
            windows=tuple(window for window in side.windows if window.article.nickname not in refused),
            left_out=side.left_out | frozenset(refused),
        )
        for name, side in sides.items()
    }


def without_filtered(
    sides: dict[str, SideState], refused: Refused, names: Mapping[int, str]
) -> tuple[dict[str, SideState], Refused]:
    """Leave out all filtered articles if one of them was refused: rows of one follow those of another.

    `names` are those of all articles, by tablenick.
    """
    filtered = sides[PUBLISHER].filtered
    if filtered is None or not (first := sorted(filtered.tablenicks & refused.keys())):
        return sides, refused
    waiting: Refused = {
        nickname: PublicationError(
            f"Article '{names[nickname]}' waits for article '{names[first[0]]}', which cannot go on: rows of one follow "
            "rows of the other by a row filter or a join.",
            article=names[nickname],
        )
        for nickname in sorted(filtered.tablenicks - refused.keys())
    }
    found = without(sides, waiting)
    return {name: replace(side, filtered=None) for name, side in found.items()}, refused | waiting


def captured_sides(sides: dict[str, SideState], choice: EngineChoice) -> tuple[dict[str, SideState], Refused]:
    """Compute the new changes of both sides concurrently; writes nothing yet.

    An article that cannot be captured at one side is left out at both.
    """
    jobs = [
        CaptureJob(
            side.replica,
            window,
            side.info,
            own_priority(side.name, side.other),
            generation,
            with_images=side.filtered is not None,
        )
        for side in sides.values()
        for window, generation in zip(
            side.windows, open_generations(side.genhistory, side.windows, side.info), strict=True
        )
    ]

    def read(job: CaptureJob) -> CapturedArticle | MergeReplError:
        try:
            with plain_errors(f"capturing article '{job.article.name}' of '{job.replica.root}'"):
                return read_changes(choice.for_rules, job)
        except ARTICLE_ERRORS as error:
            return raised_if_transient(error)

    results = _all_or_none(read, jobs)
    refused: Refused = {}
    by_side: dict[str, list[CapturedArticle]] = {name: [] for name in sides}
    names = [name for name, side in sides.items() for _ in side.windows]
    for name, job, result in zip(names, jobs, results, strict=True):
        if isinstance(result, MergeReplError):
            refuse(refused, job.article.nickname, result)
        else:
            by_side[name].append(result)
    captured = {name: replace(side, captured=tuple(by_side[name])) for name, side in sides.items()}
    if PUBLISHER in sides and sides[PUBLISHER].filtered is not None:
        captured[PUBLISHER] = _with_memberships(captured[PUBLISHER], refused, choice)
    return without(captured, refused), refused


def _with_memberships(side: SideState, refused: Refused, choice: EngineChoice) -> SideState:
    """Return a publisher with row filters, with the rows that its captured changes move.

    Raises: the error of an article that the filters name, and that cannot be captured: rows of others may follow its rows.
    """
    from mergerepl.merge.capture.partitions import Capturing, with_memberships

    assert side.filtered is not None
    try:
        for article in side.filtered.articles.values():
            if article.nickname in refused:
                raise refused[article.nickname]
        at = Capturing(side.replica, side.genhistory, side.info, choice)
        joined = with_memberships(at, [side.filtered], side.captured)
    except BaseException:
        for item in side.captured:
            item.release()
        raise
    return replace(side, captured=joined)


def _all_or_none(
    read: Callable[[CaptureJob], CapturedArticle | MergeReplError], jobs: Sequence[CaptureJob]
) -> list[CapturedArticle | MergeReplError]:
    """Capture all articles; if the engine fails, release the rows that the others keep in memory."""
    with worker_threads(AT_ONCE) as pool:
        futures = [pool.submit(read, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            begun = [future for future in futures if not future.cancel()]
            for future in wait(begun).done:
                if future.exception() is None and not isinstance(done := future.result(), MergeReplError):
                    done.release()
            raise


def committed_sides(sides: dict[str, SideState], choice: EngineChoice) -> dict[str, SideState]:
    """Append the captured changes and close the generations (make_generation), on both sides concurrently."""

    def commit(side: SideState) -> SideState:
        remove_leftovers(side.replica, side.info)
        done = planned(side)
        info = commit_changes(side.replica, done.captured, done.genhistory, side.info)
        saved = {item.generation.guidsrc for item in done.captured if item.generation is not None}
        left_open = [row.guidsrc for row in side.genhistory if row.is_open and row.guidsrc not in saved]
        if left_open:
            failpoint("generations.before_close")
            side.replica.close_generations(left_open)
            failpoint("generations.after_close")
        return replace(done, info=info)

    with worker_threads(AT_ONCE) as pool:
        done = list(pool.map(commit, sides.values()))
    return {side.name: side for side in done}


def planned(side: SideState) -> SideState:
    """Return the side as `committed_sides` leaves it, without writing: its generations are closed (make_generation).

    Everything except the number of the run is known before the commit.
    """
    captured = tuple(
        item if item.generation is None else replace(item, generation=item.generation.closed())
        for item in side.captured
    )
    info, genhistory = after_commit(captured, make_generation(side.genhistory), side.info)
    return replace(side, info=info, genhistory=genhistory, captured=captured)

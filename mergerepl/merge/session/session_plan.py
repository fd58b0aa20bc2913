"""The plan of a session, from both sides' knowledge of each other, and the manifest that commits to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from enumeration.generations import received_generation
from enumeration.horizon import NOTHING_STAGED, horizon, with_horizon
from enumeration.plan import Numbers, SessionPlan, enumeration, plan_session
from mergerepl.changes import OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.delta.tables import commit_text, is_delta_table, transaction_version
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.side import next_seq
from mergerepl.merge.capture.capture import new_generation
from mergerepl.merge.session.sides import SideState
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model.horizon import Horizon
from mergerepl.replica.application_ids import data_app_id, log_app_id, session_number_of
from mergerepl.replica.expiry import present, staged_again
from mergerepl.replica.subscription import update_subscription
from mergerepl.store.changeset import ArticleWork, Manifest, Mark, SideWork
from mergerepl.systables import conflicts_info
from mergerepl.systables.catalog import PublicationRow, SubscriptionRow
from mergerepl.systables.genhistory import Generation, GenStatus, new_guid
from triggers.window import SMALL_ROWS

MANY_ROWS = 500_000
"""Changed rows from which a new process is faster with Java's full compiler: 1,200,000 in 10 M took 96 s instead of 124 s,
120,000 in 1 M took 35 s instead of 24 s (measured)."""


def session_plan(sides: dict[str, SideState], *, upload: bool, download: bool) -> SessionPlan:
    """Return the generations that each side sends to the other.

    Raises: EnumerationError, as `plan_session`.
    """
    sources = {name: side.source for name, side in sides.items()}
    destinations = {name: side.destination for name, side in sides.items()}
    return plan_session(sources, destinations, upload=upload, download=download)


def has_work(sides: dict[str, SideState], plan: SessionPlan) -> bool:
    """True if a running direction has changes to capture or to send."""
    has_new = {name: any(window.has_changes for window in side.windows) for name, side in sides.items()}
    return plan.has_work or (plan.upload and has_new[SUBSCRIBER]) or (plan.download and has_new[PUBLISHER])


def has_few_changes(sides: dict[str, SideState], plan: SessionPlan) -> bool:
    """True if few rows are captured and sent, so that interpreting queries is faster than compiling them."""
    return _sent_rows(plan) <= SMALL_ROWS and all(
        window.is_small for side in sides.values() for window in side.windows
    )


def has_many_changes(sides: dict[str, SideState], plan: SessionPlan) -> bool:
    """True if many rows are captured and sent, so that Java's full compiler pays in a new process."""
    found = sum(window.counted_rows or 0 for side in sides.values() for window in side.windows)
    return _sent_rows(plan) + found > MANY_ROWS


def _sent_rows(plan: SessionPlan) -> int:
    return sum(row.changecount for each in (plan.up, plan.down) for row in each.generations)


def session_manifest(
    sides: dict[str, SideState],
    plan: SessionPlan,
    numbers: Mapping[str, Numbers],
    staged: dict[int, StagedArticle],
    session: str,
    publication: str,
    *,
    void: Mapping[int, int] = MappingProxyType({}),
) -> Manifest:
    """Return the plan of the session: everything needed to carry it out, now or after a crash.

    `void` is that of a reinitialisation (`Manifest`): each of these articles gets a generation at both sides.
    """
    publisher, subscriber = sides[PUBLISHER], sides[SUBSCRIBER]
    # A conflict of a clock that went back would be older than its retention.
    now = max(present(publisher.info), present(subscriber.info))
    resolved = [
        nickname
        for nickname, article in staged.items()
        if article.resolved or article.undone or nickname in void
    ]
    both = plan.upload and plan.download
    guids = {nickname: new_guid() for nickname in resolved}
    clock = max(publisher.info.clock, subscriber.info.clock)

    def resolution(side: SideState) -> list[Generation]:
        holders = [publisher.info.nickname, subscriber.info.nickname] if both else [side.info.nickname]
        made_here = side is publisher or not plan.upload
        status = GenStatus.CLOSED if made_here else GenStatus.CLOSED_ELSEWHERE
        number = numbers[side.name].resolved
        return [
            replace(
                new_generation(
                    side.articles[n],
                    number=number[n],
                    nicknames=holders,
                    status=status,
                    # A reinitialisation of which nothing goes up makes no version.
                    maxversion=clock + bool(staged[n].resolved or staged[n].undone),
                    guid=guids[n],
                ),
                changecount=staged[n].resolved + (staged[n].undone if side is subscriber else 0),
            )
            for n in resolved
            if n in number
        ]

    def received(side: SideState) -> list[Generation]:
        sender = OTHER_SIDE[side.name]
        rows = (plan.up if side is publisher else plan.down).generations
        number = numbers[side.name].received
        return [
            received_generation(
                _without_refused(row, rows, staged, sender),
                generation=number[row.generation],
                nickname=side.info.nickname,
                now=now,
            )
            for row in rows
            if row.generation in number
        ]

    def waiting(side: SideState) -> list[Generation]:
        number, other = numbers[side.name].waiting, sides[OTHER_SIDE[side.name]]
        own = [side.info.nickname]
        return [
            replace(
                new_generation(
                    side.articles[n],
                    number=number[n],
                    nicknames=own,
                    status=GenStatus.CLOSED,
                    maxversion=side.info.clock,
                ),
                changecount=article.waiting[side.name],
                waits_for=other.info.replid,
                refused_by=article.refused_by[other.name],
            )
            for n, article in sorted(staged.items())
            if article.waiting.get(side.name)
        ]

    at = {name: received(side) + resolution(side) for name, side in sides.items()}
    waits = {name: waiting(side) for name, side in sides.items()}

    def side_work(name: str) -> SideWork:
        works = [staged[n].works[name] for n in sorted(staged)]
        return _side_work(sides[name], sides[OTHER_SIDE[name]], [*at[name], *waits[name]], works)

    def watermark(name: str) -> Mark:
        side = sides[name]
        first = min([_first_left_out(side, sides[OTHER_SIDE[name]]), *(g.generation for g in waits[name])])
        # Both sides have the generations received in this session, so both watermarks may cover them, except those that
        # wait. After a session of one direction, resolved rows still have to be sent.
        return _watermark(side, at[name] if both else [], first)

    first = publisher.replica.publication(pubid=publisher.other.pubid)
    return Manifest(
        session=session,
        number=_next_session_number(sides, staged),
        publication=publication,
        pubid=publisher.other.pubid,
        subid=publisher.other.subid,
        upload=plan.upload,
        download=plan.download,
        started=now.isoformat(),
        conflict_logging=_conflict_logging(first),
        conflicts={nickname: article.conflicts for nickname, article in staged.items()},
        publisher=side_work(PUBLISHER),
        subscriber=side_work(SUBSCRIBER),
        upload_watermark=watermark(SUBSCRIBER) if plan.upload else None,
        download_watermark=watermark(PUBLISHER) if plan.download else None,
        uploaded_guids=[row.guidsrc for row in plan.up.generations] if plan.upload else [],
        replicastate=str(uuid4()),
        floor=0 if void else floor_of(sides),
        void=dict(void),
        horizon=_horizon(
            sides,
            is_all_uploaded=plan.upload and not waits[SUBSCRIBER],
            is_all_downloaded=plan.download and not waits[PUBLISHER],
        ),
    )


def floor_of(sides: Mapping[str, SideState]) -> int:
    """Return the version up to which changes count as known to both sides: what had settled at the subscriber.

    With row filters that is true of the rows that it has (`ArticleTerms`).
    """
    return sides[SUBSCRIBER].settled


def _horizon(sides: Mapping[str, SideState], *, is_all_uploaded: bool, is_all_downloaded: bool) -> Horizon:
    """Return what a session leaves. A session that leaves an article out moves nothing."""
    is_whole = not any(side.left_out for side in sides.values())
    return horizon(
        {name: side.rows for name, side in sides.items()},
        sides[PUBLISHER].other.subid,
        sides[SUBSCRIBER].info.clock,
        is_all_uploaded=is_whole and is_all_uploaded,
        is_all_downloaded=is_whole and is_all_downloaded,
    )


@dataclass(frozen=True)
class QuietMove:
    """The watermarks, and the horizon if given, that a session without changes to send stores at one side in one commit."""

    side: SideState
    marks: dict[str, Any]
    horizon: Horizon | None

    @property
    def is_needed(self) -> bool:
        """True if it changes a row."""
        subid, rows = self.side.other.subid, list(self.side.rows)
        marked = [replace(row, **self.marks) if row.subid == subid else row for row in rows]
        return self._with_horizon(marked) != rows

    def store(self) -> None:
        """Store it."""
        about = self.side.other
        failpoint("quiet.before_move")
        update_subscription(self.side.replica, about.subid, about.replid, self.marks, self._with_horizon)

    def _with_horizon(self, rows: list[SubscriptionRow]) -> list[SubscriptionRow]:
        if self.horizon is None:
            return rows
        side = self.side
        staged = staged_again(side.replica) if side.name == PUBLISHER else NOTHING_STAGED
        return with_horizon(
            rows, subid=side.other.subid, side=side.name, to=self.horizon, info=side.info, staged=staged
        )


def quiet_moves(sides: Mapping[str, SideState], plan: SessionPlan) -> list[QuietMove]:
    """Return what a session without changes to send has to store, in this order.

    A source's watermark moves after its destination's: what it acknowledges may be cleaned up. What the publisher settles
    comes last: the subscriber's clock is stored by then.
    """
    to = _horizon(
        sides,
        is_all_uploaded=plan.upload and not plan.up.waiting,
        is_all_downloaded=plan.download and not plan.down.waiting,
    )
    if any(side.left_out for side in sides.values()):
        return []
    sent: dict[str, dict[str, Any]] = {name: {} for name in sides}
    received: dict[str, dict[str, Any]] = {name: {} for name in sides}
    for name, way, runs in ((SUBSCRIBER, plan.up, plan.upload), (PUBLISHER, plan.down, plan.download)):
        side, other = sides[name], sides[OTHER_SIDE[name]].other
        waits = [row.generation for row in side.genhistory if row.is_open or row in way.waiting]
        mark = _watermark(side, (), min(waits, default=inf))
        if runs and mark.generation > max(side.other.sentgen, other.recgen):
            sent[name] = {"sentgen": mark.generation, "sentguid": mark.guid}
            received[OTHER_SIDE[name]] = {"recgen": mark.generation, "recguid": mark.guid}
    moves = [
        QuietMove(sides[PUBLISHER], received[PUBLISHER], None),
        QuietMove(sides[SUBSCRIBER], received[SUBSCRIBER] | sent[SUBSCRIBER], to),
        QuietMove(sides[PUBLISHER], received[PUBLISHER] | sent[PUBLISHER], to),
    ]
    return [move for move in moves if move.is_needed]


def _without_refused(
    row: Generation, sent: Sequence[Generation], staged: Mapping[int, StagedArticle], sender: str
) -> Generation:
    """Return a received generation, without changes if all of them waited for this side and are refused again.

    With a count it would be work for each replica that it is sent to next.
    """
    article = staged.get(row.art_nick)
    if row.waits_for is None or article is None:
        return row
    waited = sum(g.changecount for g in sent if g.waits_for is not None and g.art_nick == row.art_nick)
    return replace(row, changecount=0) if article.refused_again.get(sender, 0) >= waited else row


def _side_work(
    side: SideState, peer: SideState, generations: Sequence[Generation], works: Sequence[ArticleWork]
) -> SideWork:
    commits = {
        work.nickname: commit_text(side.replica.table(side.articles[work.nickname]), work.from_version)
        for work in works
    }
    return SideWork(
        root=str(side.replica.root),
        replid=side.info.replid,
        peer=peer.info.replid,
        nickname=side.info.nickname,
        base_seq=side.info.last_seq,
        seq=next_seq(side.replica.root, side.info.last_seq),
        last_generation=max([side.info.last_generation, *(row.generation for row in generations)]),
        clock=side.info.clock,
        publication_number=side.filtered.number if side.filtered is not None else 0,
        generations=list(generations),
        articles=list(works),
        commits={nickname: text for nickname, text in commits.items() if text is not None},
    )


def _first_left_out(source: SideState, destination: SideState) -> float:
    """Return the first generation that the destination lacks among the articles left out of the session."""
    if not source.left_out:
        return inf
    waiting = enumeration(
        replace(source.source, tablenicks=source.left_out), destination.destination
    ).generations
    return waiting[0].generation if waiting else inf


def _watermark(side: SideState, received: Sequence[Generation], before: float) -> Mark:
    """Return the last closed generation `before` the first that waits.

    Later generations that are sent now are not sent again: the destination has them.
    """
    rows = [row for row in (*side.genhistory, *received) if not row.is_open and row.generation < before]
    if not rows:
        return Mark(generation=0, guid=None)
    last = max(rows, key=lambda row: row.generation)
    return Mark(generation=last.generation, guid=last.guidsrc)


def _next_session_number(sides: dict[str, SideState], staged: dict[int, StagedArticle]) -> int:
    """Return a session number above all used ones, also in restored tables: no write may be skipped."""
    used = [0]
    for side in sides.values():
        used += [side.info.session_number, side.other.session_number]
        app_id = data_app_id(side.other.subid)
        for nickname in staged:
            table = side.replica.table(side.articles[nickname])
            used.append(session_number_of(transaction_version(table, app_id)))
        # A session that was given up may have logged only its conflicts.
        names = [side.articles[nickname].conflict_table for nickname in staged if staged[nickname].conflicts]
        logged = [side.replica.folder / name for name in (*names, conflicts_info.NAME)] if names else []
        log_id = log_app_id(side.other.subid)
        # A side that keeps no conflicts does not need such a table.
        used += [
            session_number_of(transaction_version(table, log_id)) for table in logged if is_delta_table(table)
        ]
    return max(used) + 1


def _conflict_logging(publication: PublicationRow) -> str:
    centralized, decentralized = publication.centralized_conflicts, publication.decentralized_conflicts
    return "both" if centralized and decentralized else "subscriber" if decentralized else "publisher"

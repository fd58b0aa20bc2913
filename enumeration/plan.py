"""The plan of enumeration: where it starts, which generations are sent, and under which numbers they are received.

This is the only place: a session, the quiet answer, `status` and `pending` use it. Pure Python on rows of the control
plane. Rules: merge_replication.md 2.5 to 2.7.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from enumeration.generations import (
    Held,
    Watermark,
    generations_to_send,
    lost_by_publisher,
    make_generation,
    start_generation,
)
from enumeration.horizon import expired
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.genhistory import Generation, GenStatus

After = Callable[[int], Collection[Generation]]
"""Returns a replica's generations after a number."""


@dataclass(frozen=True)
class Partition:
    """The filter of generations for a destination's filtered articles (tablenicks): only those with changes for it.

    `relevant` returns the numbers of such generations after a number.
    """

    tablenicks: Collection[int]
    relevant: Callable[[int], Collection[int]]


@dataclass(frozen=True)
class Source:
    """A replica that sends: its generations, its row about the destination and the articles in question (tablenicks).

    `partition` is set if it filters rows by the destination. `cleaned` is the last generation of an article whose metadata
    it no longer has.
    """

    root: str
    after: After
    other: SubscriptionRow
    tablenicks: Collection[int]
    partition: Partition | None = None
    cleaned: int = 0


@dataclass(frozen=True)
class Destination:
    """A replica that receives: the generations it has, and its row about the source (None: unread).

    `rules` returns the present conditions of its table of an article (tablenick); None: unread. It knows all changes up to
    the version `settled`.
    """

    root: str
    held: Held
    other: SubscriptionRow | None = None
    rules: Callable[[int], str] | None = None
    settled: int = 0


@dataclass(frozen=True)
class Enumeration:
    """The generations a source sends: closed ones after a start that the destination does not hold.

    `known` are generations after the start that are not sent: the destination holds them. `passed_over` lack changes for
    its partition: it neither holds them nor gets them. `waiting` are those of `generations` whose rows the destination
    refused and would refuse again. `elsewhere` have rows that wait for another destination and that this one has.
    """

    from_generation_exclusive: int
    generations: list[Generation]
    known: list[Generation]
    passed_over: list[Generation] = field(default_factory=list)
    waiting: list[Generation] = field(default_factory=list)
    elsewhere: list[Generation] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        """Whether they have a change that the destination has not refused."""
        return any(row.changecount for row in self.generations if row not in self.waiting)

    @property
    def waiting_changes(self) -> int:
        """How many changes wait until the destination's rules or the rows change."""
        return sum(row.changecount for row in self.waiting)

    def of_articles(self, tablenicks: Collection[int]) -> "Enumeration":
        """Return the part of these articles."""
        lists = (self.generations, self.known, self.passed_over, self.waiting, self.elsewhere)
        chosen = ([row for row in rows if row.art_nick in tablenicks] for rows in lists)
        return Enumeration(self.from_generation_exclusive, *chosen)


def enumeration(source: Source, destination: Destination | None) -> Enumeration:
    """Return the enumeration of a source for a destination; open generations count as closed.

    If the destination cannot be read (None), the source's notes about it are used.

    Raises: UnknownGenerationError if the watermarks of both do not fit together.
    """
    sent_before = Watermark(source.other.sentgen, source.other.sentguid)
    received = sent_before
    if destination is not None and destination.other is not None:
        received = Watermark(destination.other.recgen, destination.other.recguid)
    start = min(sent_before.generation, received.generation)
    # With the watermarks' own generations, whose guids are compared.
    closed = make_generation(source.after(start - 1))
    if destination is not None and destination.other is not None:
        start = start_generation(
            sent=sent_before,
            received=received,
            source_genhistory=closed,
            source=source.root,
            destination=destination.root,
        )
    sent = generations_to_send(
        closed,
        (lambda guids: ()) if destination is None else destination.held,
        from_generation_exclusive=start,
        destination_nickname=source.other.replnickname if destination is None else None,
        destination_replid=source.other.replid,
        tablenicks=source.tablenicks,
        settled=0 if destination is None else destination.settled,
    )
    chosen = {row.guidsrc for row in sent}
    later = [row for row in closed if row.generation > start and row.art_nick in source.tablenicks]
    elsewhere = [row for row in later if not row.is_for(source.other.replid)]
    known = [row for row in later if row.guidsrc not in chosen and row not in elsewhere]
    if source.partition is None or not sent:
        return Enumeration(start, sent, known, waiting=_refused_again(sent, destination), elsewhere=elsewhere)
    relevant, filtered = source.partition.relevant(start), source.partition.tablenicks
    passed_over = [row for row in sent if row.art_nick in filtered and row.generation not in relevant]
    return Enumeration(start, [row for row in sent if row not in passed_over], known, passed_over)


def _refused_again(sent: Collection[Generation], destination: Destination | None) -> list[Generation]:
    """Return the generations whose rows the destination has refused, if its tables still have the same rules."""
    if destination is None or destination.rules is None:
        return []
    waiting = [row for row in sent if row.waits_for is not None]
    rules = {nickname: destination.rules(nickname) for nickname in {row.art_nick for row in waiting}}
    return [row for row in waiting if row.refused_by == rules[row.art_nick]]


@dataclass(frozen=True)
class SessionPlan:
    """The generations a session sends, and the directions in which it runs."""

    upload: bool
    download: bool
    up: Enumeration
    down: Enumeration

    @property
    def has_work(self) -> bool:
        """Whether there is a change to send that its destination has not refused."""
        return (self.upload and self.up.has_changes) or (self.download and self.down.has_changes)

    @property
    def waiting_changes(self) -> int:
        """How many changes wait until their destination's rules or the rows change, in the directions that run."""
        up, down = self.upload and self.up.waiting_changes, self.download and self.down.waiting_changes
        return int(up) + int(down)

    @property
    def tablenicks(self) -> list[int]:
        """The articles that have something to send."""
        carried = [
            *(self.up.generations if self.upload else ()),
            *(self.down.generations if self.download else ()),
        ]
        return sorted({row.art_nick for row in carried})

    def of_articles(self, tablenicks: Collection[int]) -> "SessionPlan":
        """Return the plan of these articles alone."""
        return replace(self, up=self.up.of_articles(tablenicks), down=self.down.of_articles(tablenicks))


def plan_session(
    sources: Mapping[str, Source], destinations: Mapping[str, Destination], *, upload: bool, download: bool
) -> SessionPlan:
    """Return the closed generations that each side sends to the other; both sides are given by name.

    Raises: UnknownGenerationError if the watermarks of the two sides do not fit together; EnumerationError if the
        subscriber holds generations of the publisher that the publisher does not have; SubscriptionExpiredError if a side
        has cleaned up what it has yet to send.
    """
    up = enumeration(sources[SUBSCRIBER], destinations[PUBLISHER])
    down = enumeration(sources[PUBLISHER], destinations[SUBSCRIBER])
    for source, found in ((sources[SUBSCRIBER], up), (sources[PUBLISHER], down)):
        if (start := found.from_generation_exclusive) < source.cleaned:
            raise expired(
                sources[PUBLISHER].root,
                sources[SUBSCRIBER].root,
                f"'{source.root}' has cleaned up its metadata up to generation {source.cleaned}, and the other side has "
                f"received only those up to {start}",
            )
    if any(row.genstatus == GenStatus.CLOSED_ELSEWHERE for row in up.generations):
        raise lost_by_publisher(sources[PUBLISHER].root, sources[SUBSCRIBER].root)
    return SessionPlan(upload, download, up, down)


@dataclass(frozen=True)
class Numbers:
    """The generation numbers of one side in a session.

    `received`: the other side's number -> the own one. `resolved`: tablenick -> where merged and resolved rows go.
    `waiting`: tablenick -> where changes of this side go that the other one refuses. They are the last: a watermark stays
    before them and passes all others.
    """

    received: Mapping[int, int]
    resolved: Mapping[int, int]
    waiting: Mapping[int, int] = field(default_factory=dict)


def number_generations(
    plan: SessionPlan,
    last_generations: Mapping[str, int],
    *,
    filtered: Collection[int] = (),
    resolving_alone: Collection[int] = (),
) -> dict[str, Numbers]:
    """Give out the numbers after each side's last generation; an article changed at both sides gets one for resolved rows.

    So does each `filtered` one: an upload to one of them may move rows of all. So does an article with sent changes that
    is `resolving_alone`: its resolver decides rows that only one side changed.

    A side that receives nothing in this session gets none of these, only a number for its changes that the other side
    refuses.
    """
    up, down = plan.up.generations, plan.down.generations
    uploaded, downloaded = ({row.art_nick for row in rows} for rows in (up, down))
    two_sided = sorted(uploaded & downloaded | set(filtered) | (uploaded | downloaded) & set(resolving_alone))

    def number(
        side: str, received: Collection[Generation], sent: Collection[Generation], *, is_carried: bool
    ) -> Numbers:
        number = count(last_generations[side] + 1)
        numbers = {row.generation: next(number) for row in received} if is_carried else {}
        resolved = {n: next(number) for n in two_sided} if is_carried else {}
        may_wait = sorted({row.art_nick for row in sent} - set(filtered))
        return Numbers(numbers, resolved, {n: next(number) for n in may_wait})

    return {
        PUBLISHER: number(PUBLISHER, up, down if plan.download else (), is_carried=plan.upload),
        SUBSCRIBER: number(SUBSCRIBER, down, up if plan.upload else (), is_carried=plan.download),
    }

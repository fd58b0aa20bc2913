"""What a publication that was applied has stored, as values: for the tests of `apply` as a difference."""

from dataclasses import replace
from typing import Any

from mergerepl.model.publication import Article, Publication, Subscription
from mergerepl.publish import rows
from mergerepl.publish.difference import difference
from mergerepl.publish.filters import filters_of
from mergerepl.publish.stated import prepare
from mergerepl.publish.stored import ReplicaState, Stored, match
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionState
from mergerepl.systables.replinfo import ReplicaInfo
from tests.publish.publishing import orders, table

HQ, NORTH, SOUTH = (Location.of(f"/{name}") for name in ("hq", "north", "south"))
PUBID = "pub"
COLUMNS = "qty", "b"
"""The columns of each table beside its key."""


def publication(*articles: Article, to: tuple[Subscription, ...] = ()) -> Publication:
    return Publication("sales", str(HQ), articles or (orders(),), subscriptions=to)


def subscribed(name: str = "north", **settings: Any) -> Subscription:
    return Subscription(f"/{name}", **settings)


def info(repid: str, nickname: int, root: str) -> ReplicaInfo:
    return ReplicaInfo(repid=repid, replnickname=nickname, root=root)


class Replicas:
    """The control planes of a publication that was applied: `hq`, and each subscriber with a nickname of its own."""

    def __init__(self, stated: Publication) -> None:
        self.names = ["hq", *(each.subscriber[1:] for each in stated.subscriptions)]
        infos = [info(f"id-{n}", i + 1, f"/{n}") for i, n in enumerate(self.names)]
        articles = [
            rows.article_row(
                stated, each, table(HQ / each.table, *COLUMNS), pubid=PUBID, artid=f"art-{i}", nickname=i + 1
            )
            for i, each in enumerate(stated.articles)
        ]
        filters = filters_of(
            stated, {each.name: table(HQ / each.table, *COLUMNS) for each in stated.articles}
        )
        row = rows.publication_row(stated, PUBID, 1, publisher_replid="id-hq", filters=filters)
        abouts = [
            replace(
                rows.subscriber_row(
                    each, PUBID, subid=f"sub-{n}", replid=f"id-{n}", nickname=i + 2, replicastate=None
                ),
                status=SubscriptionState.ACTIVE,
            )
            for i, (n, each) in enumerate(zip(self.names[1:], stated.subscriptions, strict=True))
        ]
        at_hq = replace(row, status=1, definition=rows.definition(stated))
        own = rows.publisher_row(infos[0], PUBID)
        self.states = {"hq": ReplicaState(HQ, infos[0], [at_hq], articles, [own, *abouts])}
        for each, about in zip(infos[1:], abouts, strict=True):
            copy = replace(at_hq, definition=rows.definition(stated, with_subscriptions=False))
            both = list(rows.rows_at_subscriber(infos[0], about))
            self.states[each.root[1:]] = ReplicaState(Location.of(each.root), each, [copy], articles, both)

    def edit(self, name: str, kind: str, **values: Any) -> None:
        """Change columns of all rows of a kind at a replica."""
        state = self.states[name]
        changed = [replace(row, **values) for row in getattr(state, kind)]
        self.states[name] = replace(state, **{kind: changed})

    def stored(self, stated: Publication, **facts: Any) -> Stored:
        """Return what is stored, as the file finds it; its tables need nothing, unless `facts` say otherwise."""
        roots = [
            Location.of(stated.publisher),
            *(Location.of(each.subscriber) for each in stated.subscriptions),
        ]
        seen = [self.states.get(root.name, ReplicaState(root)) for root in roots]
        tables: dict[Location, Any] = {
            roots[0] / each.table: table(HQ / each.table) for each in stated.articles
        }
        for state in self.states.values():
            paths = [state.root / row.source_table for row in state.articles]
            tables |= {path: table(path) for path in paths}
        found = match(stated, [*seen, *(each for each in self.states.values() if each not in seen)])
        return replace(found, tables=tables | facts.pop("tables", {}), **facts)


def plan(stored: Stored, stated: Publication) -> list[str]:
    """Return the lines of the plan."""
    steps = difference(prepare(stated, stored), stored)
    return [f"{step.action} {step.object}: {step.detail}" for step in steps]


def actions(stored: Stored, stated: Publication) -> list[str]:
    return [line.partition(":")[0] for line in plan(stored, stated)]

"""`apply` as a difference: what a file states against what is stored, as values. No table, no folder, no engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl.errors import CaptureError, PublicationError
from mergerepl.model.publication import (
    Article,
    ConflictLogging,
    Publication,
    Resolution,
    SubscriberType,
    SyncType,
    Tracking,
)
from mergerepl.publish import rows
from mergerepl.publish.difference import nicknames
from mergerepl.publish.stated import check_publisher, prepare
from mergerepl.publish.stored import ReplicaState, match
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionState, SyncKind
from mergerepl.systables.partitions import PartitionGroup
from tests.publish.publishing import orders, table
from tests.publish.stored_publication import (
    HQ,
    NORTH,
    SOUTH,
    Replicas,
    actions,
    info,
    plan,
    publication,
    subscribed,
)

LINES = Article("lines", "lines", ("id",))


RUNNING = publication(orders(tracking=Tracking.COLUMN), to=(subscribed(),))
TURNED_ON = "turn Change Data Feed on, keep removed files for 14 days"


def test_a_new_publication() -> None:
    stated = publication(orders(), LINES, to=(subscribed(), subscribed("south", sync_type=SyncType.NONE)))
    raw = {HQ / "orders": table(HQ / "orders", "qty", **{"delta.appendOnly": "false"})}
    stored = replace(
        match(stated, [ReplicaState(root) for root in (HQ, NORTH, SOUTH)]),
        tables={HQ / "lines": table(HQ / "lines"), **raw},
    )
    assert plan(stored, stated) == [
        "create sales: new publication, with the publisher's system tables",
        f"publish orders: {TURNED_ON}",
        LINES_ARE_READY,
        "subscribe /north: copy orders, lines from the publisher",
        "subscribe /south: orders, lines are there already",
        "record sales: make the publication active",
    ]
    assert [new.nickname for new in prepare(stated, stored).new] == [1, 2]


def test_what_was_applied_has_no_step() -> None:
    stated = publication(orders(), LINES, to=(subscribed(priority=80.0), subscribed("south")))
    assert plan(Replicas(stated).stored(stated), stated) == []


NOTED, ENDS = (
    "record sales: note the changes as applied",
    "unsubscribe /north: end the subscription; its tables stay",
)
LINES_ARE_READY = "publish lines: Change Data Feed is on and files are kept long enough"
CHANGES: dict[str, tuple[Callable[[Publication], Publication], list[str]]] = {
    "retention, tables first": (
        lambda p: replace(p, retention=timedelta(days=40)),
        ["change /hq/orders: keep the log for 40 days, keep removed files for 40 days",
         "change /north/orders: keep the log for 40 days, keep removed files for 40 days",
         "change sales: retention 14 → 40", NOTED]),
    "a shorter retention lowers no table": (
        lambda p: replace(p, retention=timedelta(days=2)), ["change sales: retention 14 → 2", NOTED]),
    "where conflicts are kept": (
        lambda p: replace(p, conflict_logging=ConflictLogging.BOTH),
        ["change sales: decentralized_conflicts 0 → 1", NOTED]),
    "how an article is resolved": (
        lambda p: replace(p, articles=(replace(p.articles[0], resolution=Resolution.COLUMNS),)),
        ["change orders: resolution row → columns", NOTED]),
    "what a table refuses is undone": (
        lambda p: replace(p, articles=(replace(p.articles[0], compensates=True),)),
        ["change orders: compensate_for_errors 0 → 1; changes of subscribers that wait, refused here, are undone by "
         "their next session", NOTED]),
    "what a subscription states": (
        lambda p: replace(p, subscriptions=(subscribed(priority=10.0, host_name="N"),)),
        ["change /north: priority 75.0 → 10.0, host_name None → N", NOTED]),
    "a new article": (
        lambda p: replace(p, articles=(*p.articles, LINES)),
        [LINES_ARE_READY, "initialise /north: add lines", NOTED]),
    "a new subscriber": (
        lambda p: replace(p, subscriptions=(*p.subscriptions, subscribed("south"))),
        ["capture /hq: bring the publisher's metadata up to date",
         "subscribe /south: copy orders from the publisher", NOTED]),
    "an end": (lambda p: replace(p, subscriptions=()), [ENDS, NOTED]),
    "an article that leaves": (
        lambda p: replace(p, subscriptions=(), articles=(LINES,)),
        [ENDS, "unpublish orders: take it out of the publication; its table stays", LINES_ARE_READY, NOTED]),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_what_a_changed_file_asks_for(case: str) -> None:
    change, expected = CHANGES[case]
    stated = change(RUNNING)
    assert plan(Replicas(RUNNING).stored(stated), stated) == expected


@pytest.mark.parametrize("name", ["hq", "north"])
def test_a_change_that_reached_one_replica_goes_on_to_the_others(name: str) -> None:
    replicas = Replicas(RUNNING)
    replicas.edit(name, "publications", retention=40)
    assert actions(replicas.stored(RUNNING), RUNNING) == ["change sales"]


def test_a_table_without_the_feed_gets_it_again() -> None:
    off = {NORTH / "orders": table(NORTH / "orders", **{"delta.enableChangeDataFeed": "false"})}
    stored = Replicas(RUNNING).stored(RUNNING, tables=off)
    assert plan(stored, RUNNING) == [f"change /north/orders: {TURNED_ON}"]
    with pytest.raises(CaptureError, match="'/north/orders' is gone"):
        plan(replace(stored, tables={**stored.tables, NORTH / "orders": None}), RUNNING)


# ---- ends


@pytest.mark.parametrize(
    ("status", "sync_type", "outcome"),
    [
        (SubscriptionState.ACTIVE, SyncKind.AUTOMATIC, "stay; never uploaded: 3 changes. To send them first, run "
         "`mergerepl sync north -f /hq`"),
        (SubscriptionState.INACTIVE, SyncKind.AUTOMATIC, "were not finished: removed"),
        (SubscriptionState.INACTIVE, SyncKind.NONE, "stay"),
    ],
)  # fmt: skip
def test_an_end_says_what_the_tables_come_to(
    status: SubscriptionState, sync_type: SyncKind, outcome: str
) -> None:
    replicas = Replicas(RUNNING)
    replicas.edit("hq", "subscriptions", status=status, sync_type=sync_type)
    stated = replace(RUNNING, subscriptions=())
    unsent = {"sub-north": "3 changes"} if status == SubscriptionState.ACTIVE else {}
    first, *_ = plan(replicas.stored(stated, unsent=unsent), stated)
    assert first == f"unsubscribe /north: end the subscription; its tables {outcome}"


def test_a_subscriber_out_of_reach_can_end_and_learns_of_it_later() -> None:
    replicas = Replicas(RUNNING)
    away = replicas.states.pop("north")
    stated = replace(RUNNING, subscriptions=())
    stored = replicas.stored(stated)
    assert "(the replica cannot be reached: the end is not recorded there" in plan(stored, stated)[0]
    replicas.edit("hq", "subscriptions", status=SubscriptionState.DELETED)
    replicas.edit("hq", "publications", definition=rows.definition(stated))
    replicas.states["north"] = away
    assert plan(replicas.stored(stated), stated) == [
        "unsubscribe /north: record there that its subscription ended while it was out of reach; its tables stay"
    ]


def test_an_end_that_was_cut_short_is_taken_back() -> None:
    replicas = Replicas(RUNNING)
    replicas.edit("north", "subscriptions", status=SubscriptionState.DELETED)
    assert plan(replicas.stored(RUNNING), RUNNING) == ["change /north: status 2 → 1"]


# ---- subscribers


def test_an_interrupted_initialisation_starts_over() -> None:
    stated = replace(RUNNING, subscriptions=(subscribed(type=SubscriberType.CLIENT),))
    replicas = Replicas(RUNNING)
    state = replicas.states["hq"]
    unfinished = [replace(r, status=0) if r.subid == "sub-north" else r for r in state.subscriptions]
    replicas.states = {"hq": replace(state, subscriptions=unfinished)}
    assert plan(replicas.stored(stated), stated)[:2] == [
        "capture /hq: bring the publisher's metadata up to date",
        "subscribe /north: copy orders from the publisher, again: it was interrupted",
    ]


def test_new_subscribers_get_nicknames_that_no_other_ever_had() -> None:
    replicas = Replicas(RUNNING)
    replicas.edit("hq", "subscriptions", replnickname=8)
    stated = replace(RUNNING, subscriptions=tuple(subscribed(name) for name in ("north", "a", "b")))
    assert nicknames(replicas.stored(stated)) == {"/north": 2, "/a": 9, "/b": 10}


def test_constraints_that_a_copy_cannot_have_are_named() -> None:
    stated = replace(RUNNING, subscriptions=(*RUNNING.subscriptions, subscribed("south")))
    stored = Replicas(RUNNING).stored(stated, unusable={"orders": ["on_a", "on_b"]})
    assert plan(stored, stated)[1] == (
        "subscribe /south: copy orders from the publisher, without CHECK on_a, on_b (not all of their columns are "
        "published)"
    )


def test_an_article_takes_no_image_column_of_another_type() -> None:
    stated = replace(RUNNING, articles=(*RUNNING.articles, LINES))
    images = {"row_1": "struct<c0:int>", "row_2": "struct<c0:string>", "row_3": "struct<c0:int>"}
    (new,) = prepare(stated, Replicas(RUNNING).stored(stated, image_types=images)).new
    assert new.nickname == 3


def test_a_replica_that_moved_keeps_its_subscription_and_a_new_one_may_take_its_folder() -> None:
    replicas = Replicas(RUNNING)
    moved = replicas.states.pop("north")
    replicas.states["moved"] = replace(moved, root=Path("/moved"))
    stated = replace(RUNNING, subscriptions=(subscribed("moved"), subscribed("north")))
    stored = replicas.stored(stated, moved={Path("/moved"): NORTH})
    assert [each.row and each.row.subid for each in stored.subscribers] == ["sub-north", None]
    assert plan(stored, stated)[0] == "move /moved: was at '/north'"
    assert actions(stored, stated)[1:] == ["capture /hq", "subscribe /north", "record sales"]


def test_a_publisher_that_moved_is_recorded_at_each_subscriber() -> None:
    stated = replace(RUNNING, publisher="/new")
    replicas = Replicas(RUNNING)
    replicas.states["hq"] = hq = replace(replicas.states["hq"], root=Location.of("/new"))
    tables = {root / "orders": table(root / "orders") for root in (Location.of("/new"), NORTH)}
    found = replace(match(stated, [hq, replicas.states["north"]]), tables=tables)
    assert actions(replace(found, moved={Location.of("/new"): HQ}), stated) == ["move /new", "record sales"]
    # Another file's `apply` moved it: this one's subscribers are told.
    line, *_ = plan(found, stated)
    assert line == "move /north: record there that its publisher is not at '/hq' any more"


def test_a_partition_is_added_before_the_capture_and_once() -> None:
    filtered = replace(orders(), filter="id = CAST(HOST_NAME() AS INT)")
    to = tuple(subscribed(name, host_name=host) for name, host in (("a", "1"), ("b", "1"), ("c", "2")))
    stated = publication(filtered, to=to)
    group = PartitionGroup(partition_id=1, publication_number=1, maxgen_whenadded=0, HOST_NAME_FN="2")
    replicas = Replicas(publication(filtered))
    stored = replicas.stored(stated, groups=[group])
    assert [line for line in plan(stored, stated) if line.startswith("partition")] == [
        "partition /a: add the partition with HOST_NAME() = '1'"
    ]
    assert actions(stored, stated)[:2] == ["partition /a", "capture /hq"]


# ---- refusals


def article(**settings: Any) -> Publication:
    return replace(RUNNING, articles=(orders(**{"tracking": Tracking.COLUMN, **settings}),))


def another(replicas: Replicas) -> None:
    """Let the subscriber be one of another publisher, which this one does not know."""
    replicas.edit("north", "subscriptions", replid="other", subscriber_server="/other")
    forget(replicas)


def forget(replicas: Replicas) -> None:
    """Put the publisher back to a copy from before the subscription."""
    hq = replicas.states["hq"]
    replicas.states["hq"] = replace(hq, subscriptions=hq.subscriptions[:1])


def published_elsewhere(
    name: str, table_of: str, conflicts: str = "MSmerge_conflict_stock_theirs"
) -> Callable[[Replicas], None]:
    def prepare_(replicas: Replicas) -> None:
        hq = replicas.states["hq"]
        others = {"pubid": "p2", "artid": "a2", "nickname": 2, "source_table": table_of, "name": name}
        more = replace(hq.articles[0], **others, conflict_table=conflicts)
        stock = replace(hq.publications[0], name="stock", pubid="p2")
        replicas.states["hq"] = replace(
            hq,
            articles=[*hq.articles, more],
            publications=[*hq.publications, stock],
            subscriptions=[*hq.subscriptions, replace(hq.subscriptions[-1], pubid="p2", subid="s2")],
        )

    return prepare_


def nothing(replicas: Replicas) -> None:
    pass


def lose(replicas: Replicas) -> None:
    del replicas.states["north"]


AND_LINES = replace(RUNNING, articles=(*RUNNING.articles, LINES))
REFUSED: Mapping[str, tuple[Publication, Callable[[Replicas], None], str]] = {
    "the key": (article(key=("qty",)), nothing, r"`key` was \[id\] and is \[qty\]"),
    "other columns beside a dropped one": (
        article(columns=("id",)), nothing, "`columns` changes in the file, and column 'qty' was dropped or renamed"),
    "the table": (replace(RUNNING, articles=(replace(RUNNING.articles[0], table="lines"),)), nothing,
                  "`table` was 'orders'"),
    "a subscriber's type": (replace(RUNNING, subscriptions=(subscribed(type=SubscriberType.CLIENT),)), nothing,
                            "`type` was server and is client"),
    "a filter for subscribers without a partition": (
        article(filter="id = 1"), nothing, "'orders' was published without a filter and is with the filter"),
    "a table of another publication": (AND_LINES, published_elsewhere("theirs", "lines"),
                                       "'/hq/lines' is article 'theirs' of publication 'stock' already"),
    "a conflict table of another publication": (
        AND_LINES, published_elsewhere("theirs", "more", "MSmerge_conflict_sales_lines"),
        r"name of that of article 'theirs' .*\(MSmerge_conflict_sales_lines\)"),
    "a subscriber that is gone": (RUNNING, lose, "has lost its replica.*not mounted"),
    "a subscriber of another publisher": (RUNNING, another, "is already a subscriber of '/other'"),
    "a subscriber that the publisher forgot": (
        RUNNING, forget, "'/north' is a subscriber of '/hq', which does not know of it"),
    "a publisher as a subscriber": (
        RUNNING, lambda replicas: replicas.edit("north", "publications", publisher_replid="id-north"), "is a publisher"),
    "another replica in a subscriber's place": (
        RUNNING, lambda replicas: replicas.states.update(
            north=replace(replicas.states["north"], info=info("other", 7, "/north"))),
        "is another replica than the one subscribed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    stated, change, message = REFUSED[case]
    replicas = Replicas(RUNNING)
    change(replicas)
    with pytest.raises(PublicationError, match=message):
        prepare(stated, replicas.stored(stated))


def test_a_subscriber_cannot_publish() -> None:
    with pytest.raises(PublicationError, match="cannot publish from a subscriber"):
        check_publisher(Replicas(RUNNING).states["north"])

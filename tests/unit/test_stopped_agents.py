"""Each way to stop is recorded once, shown until the agent works again, and raised as it came."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mergerepl import Project
from mergerepl.errors import ConfigurationError, LeaseError, OutOfReachError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn
from mergerepl.store.location import Location
from mergerepl.systables.transactional import (
    ACTIVE,
    ERRORS,
    HISTORY,
    PUBLICATIONS,
    TRANSACTIONS,
    PositionRow,
    PublicationRow,
    SubscriptionRow,
    TransactionRow,
)
from mergerepl.transactional import monitoring
from mergerepl.transactional.agents import stop_of, stops_recorded
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore, subscriptions_of
from mergerepl.transactional.position import other_publisher, position_of
from mergerepl.transactional.refusals import StoppedAt, TransactionalError, TransactionalUsageError
from mergerepl.transactional.snapshot import initialise
from mergerepl.transactional.validation import validate_one

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AT = StoppedAt(bytes(9) + b"\7", 70, 1)
CASES = {
    # the error -> number, transaction, level (None: it is no stop)
    "a command": (
        TransactionalError(547, "547: too small.", command=AT),
        547,
        f"0x{AT.xact_seqno.hex()}",
        "critical",
    ),
    "a lost table": (TransactionalError(21074, "It is gone."), 21074, None, "critical"),
    "what a procedure raises": (ZeroDivisionError("no rate"), None, None, "critical"),
    "a disk that is not mounted": (OutOfReachError("Not there."), None, None, "warning"),
    "another agent at work": (LeaseError("In use."), None, None, None),
    "an interrupt": (KeyboardInterrupt(), None, None, None),
}


@pytest.fixture
def distributor(tmp_path: Path) -> DistributionStore:
    (tmp_path / "north").mkdir()
    found = DistributionStore(tmp_path / "hq")
    found.root.mkdir()
    found.create()
    row = PublicationRow(publication_id=1, publication="feed", publisher_root=str(found.root))
    found.control.replace(PUBLICATIONS, [row])
    return found


@pytest.mark.parametrize("is_log_reader", [False, True], ids=["distribution", "log reader"])
def test_a_stop_is_recorded_once_until_the_agent_works_again(
    distributor: DistributionStore, tmp_path: Path, is_log_reader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = SubscriptionRow(
        publication_id=1, agent_id=1, subscriber=str(tmp_path / "north"), status=ACTIVE, subscription_guid="g"
    )
    distributor.add_subscription(subscription)
    row = None if is_log_reader else subscription
    monkeypatch.setattr(monitoring, "read_state", lambda _: type("Nothing", (), {"sources": {}}))
    errors = 0
    for name, (error, number, seqno, level) in CASES.items():
        for _ in range(2):
            with pytest.raises(type(error)) as met, stops_recorded(distributor, row):
                raise error
            assert met.value is error
        errors += level is not None
        assert len(distributor.control.rows(ERRORS)) == errors, name
        shown = [(each.level, each.text) for each in monitoring.warnings_of(distributor.root, NOW)]
        if level is None:
            assert shown == []
            continue
        first = monitoring.errors(distributor.root, limit=1)[0]
        text = str(error.args[0]) if number or level == "warning" else "ZeroDivisionError: no rate"
        assert (first.number, first.xact_seqno, first.text, first.skipped) == (number, seqno, text, False)
        assert first.subscriber == ("log reader" if is_log_reader else subscription.subscriber)
        last = monitoring.history(distributor.root, limit=1)[0]
        assert (last.status, last.comments, last.subscriber) == ("failed", text, first.subscriber)
        for found in (monitoring.history, monitoring.errors):
            assert found(distributor.root, subscriber=first.subscriber) == found(distributor.root)
            assert found(distributor.root, subscriber="/south") == ()
        assert [each[0] for each in shown] == [level]
        assert text in shown[0][1]
        (at,) = monitoring.status(distributor.root).subscriptions
        assert (at.stopped_since is None) == is_log_reader
        with stops_recorded(distributor, row):
            pass
        assert stop_of(distributor, row) is None
        assert monitoring.warnings_of(distributor.root, NOW) == []
        count = len(distributor.control.rows(HISTORY))
        with stops_recorded(distributor, row):
            pass
        assert len(distributor.control.rows(HISTORY)) == count, "an agent that works adds nothing"


@pytest.mark.parametrize(
    ("from_", "to", "wanted"),
    [
        (None, None, (bytes(10), b"\xff" * 10)),
        (str(Lsn(bytes(9) + b"\2")), str(Lsn(bytes(9) + b"\3")), (2, 3)),
        (NOW, NOW + timedelta(hours=1), (1, 2)),
        (NOW + timedelta(minutes=1), NOW + timedelta(hours=9), (2, 3)),
        (NOW + timedelta(hours=9), None, (b"\xff" * 10, b"\xff" * 10)),
        (None, NOW - timedelta(hours=9), (bytes(10), bytes(10))),
    ],
)
def test_a_range_of_transactions_is_given_by_numbers_or_by_times_of_commits(
    distributor: DistributionStore,
    from_: str | datetime | None,
    to: str | datetime | None,
    wanted: tuple[int | bytes, int | bytes],
) -> None:
    """Three transactions, an hour apart."""
    rows = [
        TransactionRow(
            xact_id=bytes(10), xact_seqno=bytes(9) + bytes([n]), entry_time=NOW, scan_cycle=1,
            commit_time=NOW + timedelta(hours=n - 1), kind="transaction",
        )
        for n in (1, 2, 3)
    ]  # fmt: skip
    distributor.control.replace(TRANSACTIONS, rows)
    low, high = (bytes(9) + bytes([each]) if isinstance(each, int) else each for each in wanted)
    assert distributor.bounds(from_, to) == (low, high)
    with pytest.raises(TransactionalUsageError, match="is no LSN"):
        distributor.bounds("7", None)


def test_a_subscriber_is_named_by_its_folder_or_by_the_last_part_of_it(
    distributor: DistributionStore, tmp_path: Path
) -> None:
    for number, folder in enumerate(("a/north", "b/north", "south"), 1):
        row = SubscriptionRow(
            publication_id=1,
            agent_id=number,
            subscriber=str(tmp_path / folder),
            subscription_guid=str(number),
        )
        distributor.add_subscription(row)

    def numbers(given: object) -> list[int]:
        return [row.agent_id for _, row in subscriptions_of(distributor, subscriber=given)]  # type: ignore[arg-type]

    assert (numbers(None), numbers("south"), numbers(tmp_path / "b" / "north")) == ([1, 2, 3], [3], [2])
    with pytest.raises(TransactionalUsageError, match="several subscribers called 'north'"):
        numbers("north")
    with pytest.raises(TransactionalUsageError, match="has no subscription of a publication for"):
        numbers("east")


def test_a_copy_of_a_publisher_does_not_write_to_its_subscribers(
    distributor: DistributionStore, tmp_path: Path
) -> None:
    row = SubscriptionRow(
        publication_id=1, agent_id=1, subscriber=str(tmp_path / "north"), status=ACTIVE, subscription_guid="g"
    )
    distributor.add_subscription(row)
    position = PositionRow(
        publisher=str(distributor.root),
        publication="feed",
        subscription_guid="g",
        time=NOW,
        transaction_timestamp=bytes(10),
        batch=0,
    )
    subscriber = SubscriberStore(Location.of(row.subscriber))
    subscriber.save(position)
    shutil.copytree(distributor.root, tmp_path / "copy")
    copy = DistributionStore(Location.of(tmp_path / "copy"))
    for call in (
        lambda: position_of(copy, row),
        lambda: position_of(copy, row, has_to_go_on=False),
        lambda: initialise(copy, LogReader(copy.root), row, "feed", replaces=True),
        lambda: validate_one(copy, "feed", row, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TransactionalError, match="is a copy: its rows would overwrite those there"):
            call()
    assert subscriber.positions() == [position]
    # A folder that was moved goes on: its former place is gone.
    distributor.root.rename(tmp_path / "gone")
    assert other_publisher(copy, position) is None


def test_a_subscriber_of_several_publishers_shows_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    north = tmp_path / "north"
    north.mkdir()
    for number, name in enumerate(("hq", "shop", "gone"), 1):
        root = tmp_path / name
        if name != "gone":
            root.mkdir()
            store = DistributionStore(Location.of(root))
            store.create()
            publication = PublicationRow(
                publication_id=1, publication=f"feed_{name}", publisher_root=str(root)
            )
            store.control.replace(PUBLICATIONS, [publication])
            store.add_subscription(
                SubscriptionRow(
                    publication_id=1, agent_id=1, subscriber=str(north), status=ACTIVE, subscription_guid=name
                )
            )
        SubscriberStore(Location.of(north)).save(
            PositionRow(
                publisher=str(root), publication=f"feed_{name}", subscription_guid=name, time=NOW,
                transaction_timestamp=bytes(10), batch=number,
            )
        )  # fmt: skip
    monkeypatch.setattr(monitoring, "read_state", lambda _: type("Nothing", (), {"sources": {}}))
    (found,) = Project.load(north).status()
    assert [each.publication for each in found.details.subscriptions] == ["feed_hq", "feed_shop"]
    assert [(each.level, each.source) for each in found.warnings if each.level == "unknown"] == [
        ("unknown", str(tmp_path / "gone"))
    ]
    validated = Project.load(north).validate()
    assert [(each.article, each.ok) for each in validated.articles] == [("(all)", False)] * 3


def test_subscribers_are_filled_again_and_no_publisher_stands_for_its_own(
    distributor: DistributionStore, tmp_path: Path
) -> None:
    distributor.add_subscription(
        SubscriptionRow(
            publication_id=1,
            agent_id=1,
            subscriber=str(tmp_path / "north"),
            status=ACTIVE,
            subscription_guid="g",
        )
    )
    publisher = Project.load(distributor.root)
    with pytest.raises(ConfigurationError, match=r"publishes: name the subscribers, or choose all of them"):
        publisher.reinit(distributor.root.name)

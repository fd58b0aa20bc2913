"""The quick "nothing to do": when it may answer, and when the full check must."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import mergerepl
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.merge.session.merge_session import SessionRequest
from mergerepl.model.results import SessionResult
from mergerepl.monitoring.quiet import (
    noted_subscriptions,
    nothing_to_do,
    remember_quiet,
    remember_subscriptions,
    waiting_if_quiet,
)
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import find_subscription, subscriptions_of_root
from mergerepl.systables import catalog, genhistory, replinfo
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.table import TypedTable
from tests.networks import LAST_GENERATION, article_row, generation, make_pair, publication_row


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Replica, Replica]:
    """A publisher and its subscriber, in step."""
    return make_pair(tmp_path)


def remembered(pair: tuple[Replica, Replica], direction: str = "both") -> bool:
    remember_quiet(*pair, "sales", direction)
    return quiet(pair, direction)


def quiet(pair: tuple[Replica, Replica], direction: str = "both") -> bool:
    return waiting_if_quiet(pair[0].root, pair[1].root, "sales", direction) is not None


def add_row(replica: Replica) -> None:
    write_deltalake(str(replica.root / "orders"), pa.table({"id": [3]}), mode="append")


def enter(replica: Replica, rows: list[Generation]) -> None:
    replica.control.append(genhistory.TABLE, rows)


def commit_to(*tables: TypedTable[Any]) -> Callable[[Replica], None]:
    def write(replica: Replica) -> None:
        for table in tables:
            replica.control.replace(table, replica.control.rows(table))

    return write


def restore_log(replica: Replica) -> None:
    log = Path(replica.root) / "orders" / "_delta_log" / "00000000000000000000.json"
    shutil.copy2(log, copy := log.with_suffix(".copy"))
    copy.replace(log)


def stage(replica: Replica) -> None:
    (Path(replica.staging) / "session").mkdir(parents=True)


def point_to_staged(replica: Replica) -> None:
    Path(replica.staging).mkdir()
    (Path(replica.staging) / "session.json").write_text("{}")


def rename_in_note(replica: Replica) -> None:
    for note in (Path(replica.folder) / "quiet").glob("*-both.json"):
        note.write_text(note.read_text().replace('"sales"', '"stock"'))


CATALOG = (catalog.PUBLICATIONS, catalog.ARTICLES, catalog.SUBSCRIPTIONS, genhistory.TABLE, replinfo.TABLE)
BOTH_SIDES: dict[str, Callable[[Replica], None]] = {
    "a user's commit": add_row,
    **{f"a commit to {table.name}": commit_to(table) for table in CATALOG},
    "a log restored to the same version": restore_log,
    "a removed table": lambda replica: shutil.rmtree(replica.root / "orders"),
}
ENDS = {
    **{f"{name}, at {side}": (side, end) for name, end in BOTH_SIDES.items() for side in (0, 1)},
    "a staged session": (0, stage),
    "a pointer to a staged session": (1, point_to_staged),
    "a note of another publication": (0, rename_in_note),
    "no notes": (0, lambda replica: shutil.rmtree(Path(replica.folder) / "quiet")),
}


@pytest.mark.parametrize(("side", "end"), ENDS.values(), ids=ENDS)
def test_what_ends_the_quiet(pair, side, end):
    assert not quiet(pair), "before a full check"
    assert remembered(pair)
    end(pair[side])
    assert not quiet(pair)


def create_again(replica: Replica) -> None:
    shutil.rmtree(replica.root / "orders")
    write_deltalake(str(replica.root / "orders"), pa.table({"id": [1, 2]}))


@pytest.mark.parametrize(
    ("side", "change"), [*((n, each) for n in (0, 1) for each in (add_row, create_again)), (0, stage)]
)
def test_what_came_after_the_full_check_is_not_noted_as_seen(pair, side, change):
    pair[side].save_info(pair[side].info())
    change(pair[side])
    assert not remembered(pair)


def test_the_result_names_publication_and_subscriber(pair):
    result = nothing_to_do(pair[1].root, "sales")
    assert (result.publication, result.subscriber) == ("sales", str(pair[1].root))
    assert result.status == "nothing_to_do"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "tables": []}', '{"format": 2}', "null"]
)
def test_a_damaged_note_is_no_answer(pair, text):
    assert remembered(pair)
    assert noted(pair)
    (note,) = (folder := Path(pair[0].folder) / "quiet").glob("*-both.json")
    for each in (note, folder / "subscriptions.json"):
        each.write_text(text)
    assert not quiet(pair)
    assert noted_subscriptions(pair[0].root) is None
    assert remembered(pair, "upload")


def with_second_publication(pair: tuple[Replica, Replica]) -> tuple[Replica, Replica]:
    """Return the pair with a publication `stock` of the table `lines` beside `sales`."""
    for here in pair:
        write_deltalake(str(here.root / "lines"), pa.table({"id": [1]}))
        info = here.control.rows(replinfo.TABLE)[0]
        here.control.replace(replinfo.TABLE, [replace(info, captured={1: 0, 2: 0})])
        publications = [*here.publications, publication_row("stock", "pub-2")]
        here.control.replace(catalog.PUBLICATIONS, publications)
        lines = article_row("lines", 2, pubid="pub-2")
        here.control.replace(catalog.ARTICLES, [article_row("orders", 1), lines])
        second = replace(here.subscriptions()[1], pubid="pub-2", subid="sub-2")
        here.control.replace(catalog.SUBSCRIPTIONS, [*here.subscriptions(), second])
    return Replica(pair[0].root), Replica(pair[1].root)


def test_one_publications_quiet_is_not_that_of_another_on_the_same_replicas(pair):
    pair = with_second_publication(pair)
    write_deltalake(str(pair[1].root / "lines"), pa.table({"id": [9]}), mode="append")
    assert remembered(pair)
    assert waiting_if_quiet(pair[0].root, pair[1].root, "stock") is None
    remember_quiet(*pair, "stock")
    assert waiting_if_quiet(pair[0].root, pair[1].root, "stock") is None


def test_a_session_that_waited_notes_the_articles_there_are_by_then(pair, monkeypatch):
    def wait(request: SessionRequest, **_: Any) -> SessionResult:
        assert [row.name for row in request.publisher.publications] == ["sales"]
        with_second_publication(pair)
        return nothing_to_do(pair[1].root, "sales")

    # Waiting for a lease alone is simulated: meanwhile another process applies a file.
    monkeypatch.setattr("mergerepl.merge.session.merge_session.merge_session", wait)
    (session,) = mergerepl.Project.load(pair[0].root).sync().sessions
    assert session.status == "nothing_to_do"
    assert quiet(pair)
    assert noted_subscriptions(pair[0].root) == [
        (pair[0].root, pair[1].root, name) for name in ("sales", "stock")
    ]


def test_a_moved_subscriber_is_another_one(pair, tmp_path):
    assert remembered(pair)
    shutil.move(str(pair[1].root), str(tmp_path / "elsewhere"))
    assert waiting_if_quiet(pair[0].root, tmp_path / "elsewhere", "sales", "both") is None


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("status", GenStatus)
def test_another_session_after_the_full_check_is_not_noted_as_seen(pair, side, status):
    # A session of another subscriber left a generation here; the tables are captured to their heads.
    here = pair[side]
    enter(here, [generation(1, nicknames=(side + 1,), genstatus=status, changecount=3)])
    assert not remembered(pair)


def test_generations_without_changes_or_already_held_are_no_work(pair):
    held = replace(generation(2, nicknames=(1,), genstatus=GenStatus.CLOSED, changecount=5), nicknames=(1, 2))
    enter(pair[0], [generation(1, nicknames=(1,), genstatus=GenStatus.OPEN, changecount=0), held])
    assert not remembered(pair), "its nickname may have been entered before it had done its part"
    enter(pair[1], [replace(held, generation=1, genstatus=GenStatus.CLOSED_ELSEWHERE)])
    assert remembered(pair)


def test_a_generation_that_was_never_given_out_is_no_work(pair):
    """A capture entered it and died before its commit point."""
    left = generation(LAST_GENERATION + 1, nicknames=(1,), genstatus=GenStatus.OPEN, changecount=3)
    enter(pair[0], [replace(left, seq=pair[0].info().last_seq + 1)])
    assert remembered(pair)


def test_both_ways_quiet_is_quiet_each_way_but_not_the_reverse(pair):
    assert remembered(pair, "upload")
    assert not quiet(pair, "both")
    assert not quiet(pair, "download")
    assert remembered(pair, "both")
    assert quiet(pair, "download")


def test_work_of_the_other_direction_does_not_end_the_quiet_of_one(pair):
    enter(pair[0], [generation(1, nicknames=(1,), genstatus=GenStatus.CLOSED, changecount=3)])
    assert remembered(pair, "upload")
    assert not remembered(pair, "download")
    # Nor does an old note of both directions hide that of one.
    pair[0].control.delete(genhistory.TABLE, where="generation = 1")
    assert remembered(pair, "both")
    enter(pair[0], [generation(1, nicknames=(1,), genstatus=GenStatus.CLOSED, changecount=3)])
    assert not quiet(pair, "upload")
    assert remembered(pair, "upload")


def test_the_answer_loads_no_library(pair):
    assert remembered(pair)
    assert noted(pair)
    script = (
        "import sys; from pathlib import Path;"
        "from mergerepl.monitoring.quiet import noted_subscriptions, nothing_to_do, waiting_if_quiet;"
        f"hq, north = Path({str(pair[0].root)!r}), Path({str(pair[1].root)!r});"
        "assert [tuple(map(str, each)) for each in noted_subscriptions(hq)] == [(str(hq), str(north), 'sales')];"
        "assert waiting_if_quiet(hq, north, 'sales', 'both') == 0; nothing_to_do(north, 'sales');"
        "print([m for m in ('deltalake', 'pyarrow', 'pydantic', 'pyspark', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def noted(pair: tuple[Replica, Replica]) -> Any:
    remember_subscriptions(pair[0].root)
    return noted_subscriptions(pair[0].root)


def test_noted_subscriptions_are_those_that_would_be_read(pair):
    assert noted_subscriptions(pair[0].root) is None
    assert noted(pair) == subscriptions_of_root(pair[0].root)


@pytest.mark.parametrize("table", [catalog.PUBLICATIONS, catalog.SUBSCRIPTIONS, replinfo.TABLE])
def test_subscriptions_are_read_again_when_a_table_changed(pair, table):
    assert noted(pair)
    pair[0].control.replace(table, pair[0].control.rows(table))
    assert noted_subscriptions(pair[0].root) is None


def test_a_note_in_a_copy_of_a_publisher_is_not_about_the_copy(pair, tmp_path):
    assert noted(pair)
    copy = tmp_path / "copy"
    shutil.copytree(pair[0].root, copy)
    assert noted_subscriptions(copy) is None


def test_a_subscription_is_found_from_either_end(pair):
    hq, north = pair
    assert subscriptions_of_root(hq.root) == [(hq.root, north.root, "sales")]
    assert subscriptions_of_root(north.root) == [(hq.root, north.root, "sales")]
    publisher, subscriber, row = find_subscription(hq.root, north.root, "sales")
    assert (publisher.root, subscriber.root) == (hq.root, north.root)
    assert row.replid == "replica-2"


def test_a_moved_subscriber_is_known_by_its_replica_id(pair, tmp_path):
    moved = tmp_path / "moved"
    shutil.move(str(pair[1].root), str(moved))
    _, subscriber, row = find_subscription(pair[0].root, moved, "sales")
    assert (Path(subscriber.root), row.replid) == (moved, "replica-2")


def changed_subscription(pair: tuple[Replica, Replica], **changes: Any) -> None:
    itself, other = pair[0].subscriptions()
    pair[0].control.replace(catalog.SUBSCRIPTIONS, [itself, replace(other, **changes)])


@pytest.mark.parametrize(("status", "words"), [(0, "not initialised"), (2, "has ended")])
def test_an_inactive_subscription_is_refused_by_name(pair, status, words):
    changed_subscription(pair, status=status)
    with pytest.raises(PublicationError, match=words):
        find_subscription(pair[0].root, pair[1].root, "sales")
    assert subscriptions_of_root(pair[0].root) == []


def test_what_is_no_subscription_is_refused_by_name(pair, tmp_path):
    with pytest.raises(ConfigurationError, match="no subscription to publication 'other'"):
        find_subscription(pair[0].root, pair[1].root, "other")
    with pytest.raises(ConfigurationError, match="has no subscription to publication 'sales' at publisher"):
        find_subscription(pair[1].root, pair[0].root, "sales")
    with pytest.raises(ConfigurationError, match="not a replica"):
        find_subscription(pair[0].root, tmp_path, "sales")
    changed_subscription(pair, subscriber_server="/elsewhere", replid="another")
    with pytest.raises(ConfigurationError, match=r"Subscribers known there: /elsewhere.*mergerepl apply"):
        find_subscription(pair[0].root, pair[1].root, "sales")

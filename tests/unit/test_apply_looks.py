"""What `apply` finds at replicas that changed without it: moved, away, written to, or published long ago."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.errors import CaptureError, MergeReplError, PublicationError
from mergerepl.model.results import ApplyResult
from mergerepl.publish.apply import apply_publication
from mergerepl.publish.stored import read_replicas
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, genhistory, replinfo
from mergerepl.systables.catalog import SubscriptionState
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.table import SystemTable
from tests.networks import FILE, ROWS, Network, capturing, write_table
from tests.project_files import load
from triggers.errors import DuplicateKeyError, FeedGapError

NORTH, SOUTH, WEST = ({"subscriber": f"./{name}"} for name in ("north", "south", "west"))


@pytest.fixture
def network(replica_dir: Path) -> Network:
    return Network(replica_dir)


def apply(network: Network, *, dry_run: bool = False) -> ApplyResult:
    return apply_publication(load(network.folder / FILE), dry_run=dry_run)


def actions(result: ApplyResult) -> list[str]:
    return [step.action for step in result.steps]


def statuses(network: Network, name: str) -> set[int]:
    return {row.status for row in Replica(network.root(name)).control.rows(catalog.SUBSCRIPTIONS)}


# ---- a subscriber whose move was recorded through another publication's file


@pytest.fixture
def elsewhere(network: Network) -> Network:
    """`north` is at `yonder`, and everybody knows; the file was not changed."""
    yonder = network.root("yonder")
    network.root("north").rename(yonder)
    network.edit("yonder", replinfo.TABLE, root=str(yonder))
    for name in ("hq", "yonder"):
        control = Replica(network.root(name)).control
        rows = control.rows(catalog.SUBSCRIPTIONS)
        moved = {"subscriber_server": str(yonder)}
        rows = [replace(row, **(moved if row.replnickname == 2 else {})) for row in rows]
        if name == "hq":
            # The file of another publication recorded north's move, and there was a replica in its place before.
            (north,) = (row for row in rows if row.replnickname == 2)
            former = {"replid": "f", "subscriber_server": str(network.root("north"))}
            rows += [
                replace(north, pubid="stock", subid="s"),
                replace(north, **former, subid="e", status=SubscriptionState.DELETED),
            ]
        control.replace(catalog.SUBSCRIPTIONS, rows)
    return network


@pytest.mark.parametrize("dry_run", [True, False])
def test_where_it_was_it_is_not_subscribed_again(elsewhere: Network, dry_run: bool) -> None:
    rows = Replica(elsewhere.root("hq")).control.rows(catalog.SUBSCRIPTIONS)
    with pytest.raises(PublicationError, match="was moved, as the file of another") as refused:
        apply(elsewhere, dry_run=dry_run)
    assert f"to '{elsewhere.root('yonder')}'. Write that folder" in str(refused.value)
    assert not elsewhere.root("north").exists()
    assert Replica(elsewhere.root("hq")).control.rows(catalog.SUBSCRIPTIONS) == rows


def test_its_new_folder_is_all_the_file_needs(elsewhere: Network) -> None:
    elsewhere.write_file(subscriptions=[{"subscriber": "./yonder"}, SOUTH])
    assert actions(apply(elsewhere)) == ["record"]
    assert actions(apply(elsewhere)) == []


def test_it_may_also_end(elsewhere: Network) -> None:
    elsewhere.write_file(subscriptions=[SOUTH])
    assert actions(apply(elsewhere)) == ["unsubscribe", "record"]
    assert statuses(elsewhere, "yonder") == {SubscriptionState.DELETED}


# ---- a subscription that ended while its replica was out of reach


def test_the_end_is_recorded_when_it_is_back(network: Network) -> None:
    away = network.folder / "away"
    network.root("north").rename(away)
    network.write_file(subscriptions=[SOUTH])
    assert actions(apply(network)) == ["unsubscribe", "record"]
    assert actions(apply(network)) == []
    away.rename(network.root("north"))
    assert statuses(network, "north") == {SubscriptionState.ACTIVE}
    (step,) = apply(network).steps
    assert (step.action, step.object) == ("unsubscribe", str(network.root("north")))
    assert "ended while it was out of reach" in step.detail
    assert statuses(network, "north") == {SubscriptionState.DELETED}
    assert statuses(network, "south") == {SubscriptionState.ACTIVE}
    assert actions(apply(network)) == []


def test_nothing_is_recorded_at_another_replica_in_its_place(network: Network) -> None:
    network.root("north").rename(network.folder / "away")
    network.write_file(subscriptions=[SOUTH])
    apply(network)
    shutil.copytree(network.root("south"), network.root("north"))
    replicas = read_replicas(load(network.folder / FILE))
    assert [replica.root.name for replica in replicas] == ["hq", "south"]
    assert actions(apply(network)) == []
    assert statuses(network, "north") == {SubscriptionState.ACTIVE}


# ---- a publication without subscribers that had some


@pytest.fixture
def left(network: Network) -> Network:
    """All subscriptions have ended; changes had travelled before. The file has a new subscriber."""
    network.write_file(subscriptions=[])
    apply(network)
    control = Replica(network.root("hq")).control
    (publication,) = control.rows(catalog.PUBLICATIONS)
    generation = Generation(
        guidsrc="g",
        pubid=publication.pubid,
        generation=1,
        art_nick=1,
        nicknames=(1, 2, 3),
        genstatus=GenStatus.CLOSED,
        changecount=1,
    )
    control.replace(genhistory.TABLE, [generation])
    network.write_file(subscriptions=[WEST])
    return network


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_table_in_the_place_of_the_published_one_may_be_published_again(
    left: Network, dry_run: bool
) -> None:
    shutil.rmtree(left.root("hq") / "orders")
    write_table(left.root("hq") / "orders")
    with pytest.raises(
        PublicationError, match=r"replaced.*The publication has no subscribers, so you may also take all"
    ):
        apply(left, dry_run=dry_run)
    assert not left.root("west").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FeedGapError, r"^Not so\. The publication has no subscribers.* put them in again \(.*\)\.$"),
        # Published again, the table would be refused for them, too.
        (DuplicateKeyError, r"^Not so\.$"),
    ],
)
def test_changes_that_are_gone_are_no_dead_end(left: Network, error: type[CaptureError], says: str) -> None:
    def capture(root: Path, pubid: str) -> None:
        raise error("Not so.", article="orders")

    with pytest.raises(MergeReplError, match=says) as refused:
        apply_publication(load(left.folder / FILE), capturing(capture))
    assert refused.value.details()["article"] == "orders"


def test_a_published_table_that_is_gone_has_one_way_out(left: Network) -> None:
    shutil.rmtree(left.root("hq") / "orders")
    with pytest.raises(CaptureError) as refused:
        apply(left)
    assert "has no subscribers" not in str(refused.value)


# ---- columns that were published and are gone


def test_a_subscriber_with_the_columns_that_its_publisher_had_is_no_bug(network: Network) -> None:
    write_table(network.root("west") / "orders")
    fewer = pa.table({name: ROWS[name] for name in ("id", "region")})
    write_deltalake(str(network.root("hq") / "orders"), fewer, mode="overwrite", schema_mode="overwrite")
    network.write_file(subscriptions=[NORTH, SOUTH, WEST | {"sync_type": "none"}])
    with pytest.raises(PublicationError, match="changed since it was published"):
        apply(network, dry_run=True)


# ---- replicas that are not what they were


@pytest.mark.parametrize("name", ["hq", "north"])
def test_a_copy_is_refused(network: Network, name: str) -> None:
    shutil.copytree(network.root(name), network.root("copy"))
    if name == "hq":
        network.write_file(publisher="./copy")
    else:
        network.write_file(subscriptions=[{"subscriber": "./copy"}, SOUTH])
    with pytest.raises(PublicationError, match="is a copy of the replica"):
        apply(network)


@pytest.mark.parametrize("table", ["MSmerge_contents", "MSmerge_genhistory", "MSmerge_replinfo"])
def test_a_dropped_system_table_is_named(network: Network, table: str) -> None:
    shutil.rmtree(network.root("north") / "_mergerepl" / table)
    with pytest.raises(PublicationError, match=f"has lost its system table.*{table}"):
        apply(network)


def test_newer_system_tables_are_refused(network: Network) -> None:
    network.edit("north", replinfo.TABLE, schema_version=99)
    with pytest.raises(PublicationError, match="have version 99"):
        apply(network)


# ---- a session that ends between two reads


def test_a_session_that_ends_meanwhile_does_not_seem_put_back(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(self: ControlPlane, table: SystemTable) -> list[Any]:
        if table is catalog.SUBSCRIPTIONS and not ended:
            ended.append(table)
            for done in (replinfo.TABLE, catalog.SUBSCRIPTIONS):
                network.edit("hq", done, session_number=7)
        return read(self, table)

    ended: list[SystemTable] = []
    read = ControlPlane.rows
    monkeypatch.setattr(ControlPlane, "rows", rows)
    assert actions(apply(network)) == []
    assert ended

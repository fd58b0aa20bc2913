"""What `apply` is to publish or to subscribe: tables and folders that cannot be it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mergerepl.errors import PublicationError
from mergerepl.publish.apply import check_places
from mergerepl.store.lease import LOCK_FILE
from mergerepl.systables.table import FOLDER
from tests import project_files as config
from tests.bad_inputs.conftest import Refused, run
from tests.bad_inputs.unprivileged import refused_without_privileges, run_without_privileges
from tests.networks import FILE, Network, commit, write_table

pytestmark = pytest.mark.usefixtures("no_engine")


def unknown_feature(name: str) -> Callable[[Path], None]:
    def make(table: Path) -> None:
        write_table(table)
        features = {"readerFeatures": [], "writerFeatures": [name]}
        commit(table, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})

    return make


def iceberg(table: Path) -> None:
    (table / "metadata").mkdir(parents=True)
    (table / "metadata" / "v1.metadata.json").write_text("{}")


def looping_log(table: Path) -> None:
    table.mkdir()
    (table / "_delta_log").symlink_to(table / "_delta_log")


def no_columns(table: Path) -> None:
    write_table(table)
    stated = {"format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}}
    commit(table, {"metaData": {"id": "x", "schemaString": '{"type":"struct","fields":[]}', **stated}})


NEW_TABLES: list[Any] = [
    pytest.param(unknown_feature("icebergCompatV2"), ("icebergCompatV2", "does not know", "DROP FEATURE"), id="47 UniForm"),
    pytest.param(unknown_feature("catalogManaged"), ("CatalogManaged", "cannot be read", "undo what"), id="45 feature"),
    pytest.param(iceberg, ("is no Delta table", "create the table first"), id="47 Iceberg"),
    pytest.param(looping_log, ("Too many levels of symbolic links", "where it leads"), id="31 log is a loop of links"),
    pytest.param(no_columns, ("with empty schema", "ADD COLUMN"), id="63 no columns"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), NEW_TABLES)
def test_a_new_article_that_is_no_such_table(
    network: Network, refused: Refused, make: Callable[[Path], None], says: tuple[str, ...]
) -> None:
    make(network.root("hq") / "lines")
    network.write_file(articles=[*network.stated["articles"], {"name": "lines", "key": ["id"]}])
    refused("apply", "-f", FILE, code=1, says=("'lines'", *says))


def test_44_a_catalog_name_is_a_folder_that_is_not_there(network: Network, refused: Refused) -> None:
    network.write_file(
        articles=[{"name": "a", "table": "main.sales.orders", "key": ["id"]}], subscriptions=[]
    )
    refused("apply", "-f", FILE, code=1, says=("main.sales.orders' does not exist", "Check `table:`"))


@pytest.mark.parametrize("table", ["orders", "./orders//"])
def test_42_52_a_subscriber_gets_a_table_from_one_publication(
    network: Network, refused: Refused, table: str
) -> None:
    article = {"name": "mine", "table": table, "key": ["id"]}
    network.write_file("other.yml", publication="other", articles=[article])
    says = ("'mine'", "is article 'orders' of publication 'sales' already", "out there first")
    refused("apply", "-f", "other.yml", code=1, says=says)


def publisher_inside(network: Network) -> dict[str, Any]:
    write_table(network.root("hq") / "bronze" / "orders")
    return {"publisher": "./hq/bronze"}


def table_of_a_subscriber(network: Network) -> dict[str, Any]:
    return {"publisher": ".", "articles": [{"name": "orders", "table": "north/orders", "key": ["id"]}]}


def link_to_a_table_of_a_subscriber(network: Network) -> dict[str, Any]:
    (network.folder / "linked").symlink_to(network.root("north") / "orders")
    return {"publisher": ".", "articles": [{"name": "orders", "table": "linked", "key": ["id"]}]}


def table_that_is_a_link_there(network: Network) -> dict[str, Any]:
    """The replica `north` may publish its link; no system table is at the place where it leads."""
    (network.folder / "elsewhere").mkdir()
    (network.root("north") / "orders").rename(network.folder / "elsewhere" / "orders")
    (network.root("north") / "orders").symlink_to(network.folder / "elsewhere" / "orders")
    return table_of_a_subscriber(network)


def subscriber_around(network: Network) -> dict[str, Any]:
    (network.folder / "lake").mkdir()
    network.root("north").rename(network.folder / "lake" / "north")
    write_table(network.root("west") / "north" / "orders")
    article = {"name": "orders", "table": "north/orders", "key": ["id"]}
    there = {"subscriber": "./lake", "sync_type": "none"}
    return {"publisher": "./west", "articles": [article], "subscriptions": [there]}


def link_to_the_publishers_table(network: Network) -> dict[str, Any]:
    write_table(network.root("west") / "orders")
    network.root("east").mkdir()
    (network.root("east") / "orders").symlink_to(network.root("west") / "orders")
    return {"publisher": "./west", "subscriptions": [{"subscriber": "./east", "sync_type": "none"}]}


def link_to_another_subscribers_table(network: Network) -> dict[str, Any]:
    for name in ("west", "east"):
        write_table(network.root(name) / "orders")
    network.root("yonder").mkdir()
    (network.root("yonder") / "orders").symlink_to(network.root("east") / "orders")
    there = [{"subscriber": f"./{name}", "sync_type": "none"} for name in ("east", "yonder")]
    return {"publisher": "./west", "subscriptions": there}


TWO_REPLICAS: list[Any] = [
    pytest.param(publisher_inside, ("The publisher", "hq/bronze' lies inside the replica", "/hq'"), id="publisher inside"),
    pytest.param(table_of_a_subscriber, ("at the publisher", "belongs to the replica", "/north'"), id="replica between"),
    pytest.param(link_to_a_table_of_a_subscriber, ("at the publisher", "belongs to the replica", "/north'"), id="link"),
    pytest.param(table_that_is_a_link_there, ("at the publisher", "belongs to the replica", "/north'"), id="link there"),
    pytest.param(subscriber_around, ("at the subscriber", "/lake'", "belongs to the replica", "/lake/north'"), id="around"),
    pytest.param(link_to_the_publishers_table, ("at the subscriber", "/east'", "belongs to article 'orders' at the"),
                 id="the publisher's"),
    pytest.param(link_to_another_subscribers_table, ("/yonder'", "belongs to article 'orders' at the subscriber", "/east'"),
                 id="another subscriber's"),
]  # fmt: skip


def test_replicas_around_which_another_came_are_applied_as_before(network: Network) -> None:
    (network.folder / FOLDER).mkdir()
    publication = config.load(network.folder / FILE)
    check_places(publication)
    # What came around it shares no table with it.
    with pytest.raises(PublicationError, match=r"belongs to the replica '.*/hq'"):
        check_places(
            replace(
                publication,
                publisher=str(network.folder),
                articles=(replace(publication.articles[0], table="hq/orders"),),
                subscriptions=(),
            )
        )


@pytest.mark.parametrize(("make", "says"), TWO_REPLICAS)
def test_52_a_table_belongs_to_one_replica(
    network: Network, refused: Refused, make: Callable[[Network], dict[str, Any]], says: tuple[str, ...]
) -> None:
    network.write_file("other.yml", **{"publication": "other", "subscriptions": [], **make(network)})
    refused("apply", "-f", "other.yml", code=1, says=says)


def inside_a_replica(network: Network) -> str:
    return "./south/inner"


def a_file(network: Network) -> str:
    (network.folder / "west").touch()
    return "./west"


def with_the_table(network: Network) -> str:
    write_table(network.root("west") / "orders")
    return "./west"


def with_a_file_there(network: Network) -> str:
    network.root("west").mkdir()
    (network.root("west") / "orders").touch()
    return "./west"


def with_a_link_there(network: Network) -> str:
    network.root("west").mkdir()
    (network.root("west") / "orders").symlink_to("/etc")
    return "./west"


def test_30_a_table_to_adopt_that_lies_elsewhere(network: Network, refused: Refused) -> None:
    """A lock of the link would be one of another folder."""
    write_table(network.folder / "elsewhere")
    network.root("west").mkdir()
    (network.root("west") / "orders").symlink_to(network.folder / "elsewhere")
    there = {"subscriber": "./west", "sync_type": "none"}
    network.write_file(subscriptions=[{"subscriber": "./north"}, there])
    says = ("leads out of the replica", "/elsewhere'", "Move the table into the replica's folder")
    refused("apply", "-f", FILE, code=1, says=says)


def of_another_network(name: str) -> Callable[[Network], str]:
    def make(network: Network) -> str:
        (network.folder / "other").mkdir()
        return str(Network.of_its_own(network.folder / "other").root(name))

    return make


PLACES: list[Any] = [
    pytest.param(inside_a_replica, 1, ("lies inside the replica", "folder outside of it"), id="36 in a replica"),
    pytest.param(a_file, 2, ("west", "is a file", "give the folder"), id="26 file"),
    pytest.param(with_the_table, 1, ("there is a table already", "sync_type: none"), id="a table there"),
    pytest.param(with_a_file_there, 1, ("the place is taken", "Move it away"), id="26 a file there"),
    pytest.param(with_a_link_there, 1, ("the place is taken", "Move it away"), id="30 a link out of the root there"),
    pytest.param(of_another_network("hq"), 1, ("is a publisher", "folder of its own"), id="42 a publisher"),
    pytest.param(of_another_network("north"), 1, ("is already a subscriber of", "Give another folder"), id="42 another's"),
    pytest.param(lambda n: "./loop", 2, ("loop of symbolic links", "Check the path"), id="31 loop"),
    pytest.param(lambda n: "./100%41", 2, ("%41", "Rename the folder"), id="33 percent code"),
    pytest.param(lambda n: "./a[b]", 2, ("[", "Rename the folder"), id="37 bracket"),
    pytest.param(lambda n: "./a?b", 2, ("?", "Rename the folder"), id="37 question mark"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "code", "says"), PLACES)
def test_a_place_that_is_no_new_subscriber(
    network: Network, refused: Refused, place: Callable[[Network], str], code: int, says: tuple[str, ...]
) -> None:
    (network.folder / "loop").symlink_to(network.folder / "loop")
    root = place(network)
    network.write_file(subscriptions=[{"subscriber": "./north"}, {"subscriber": root}])
    refused("apply", "-f", FILE, code=code, says=says)


def test_36_a_lock_file_alone_makes_no_replica(network: Network) -> None:
    (network.folder / "held").mkdir()
    (network.folder / "held" / LOCK_FILE).touch()
    network.write_file(subscriptions=[*network.stated["subscriptions"], {"subscriber": "./held/inner"}])
    shown = run("apply", "-f", FILE, "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    assert "held/inner" in shown.stdout


def test_41_a_subscriber_that_cannot_be_created(network: Network) -> None:
    (network.folder / "readonly").mkdir(mode=0o555)
    network.write_file(subscriptions=[*network.stated["subscriptions"], {"subscriber": "./readonly/west"}])
    says = ("readonly/west' cannot be created", "Permission denied", "Check the path")
    refused_without_privileges(network.folder, "apply", "-f", FILE, "--quiet", code=1, says=says)


@pytest.fixture
def read_only(network: Network) -> Network:
    """Replicas whose folders and files may be read and not written."""
    for root in (network.root(name) for name in ("hq", "north", "south")):
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    return network


def test_41_a_read_only_replica_is_not_written(read_only: Network) -> None:
    says = ("cannot be locked", "Permission denied", "writable")
    refused_without_privileges(read_only.folder, "sync", "-f", "north", "--quiet", code=1, says=says)


@pytest.mark.parametrize("command", ["status", "validate --level rowcount"])
def test_41_a_read_only_replica_can_be_looked_at(read_only: Network, command: str) -> None:
    shown = run_without_privileges(read_only.folder, *command.split(), "-f", "hq", "--quiet")
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize("name", ["a b#c", "100%", "büro ☃", "it's a+b&c=d", "-x"])
def test_37_odd_folders_work(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).mkdir()
    monkeypatch.chdir(Network(folder / name).folder)
    for command in (
        "apply -f sales.yml",
        "sync -f sales.yml",
        "capture -f north",
        "status -f hq",
        "pending -f north",
        "history -f hq",
    ):
        shown = run(*command.split())
        assert (shown.exit_code, shown.stderr) == (0, ""), shown.output

"""System tables that were dropped, damaged, edited by hand, copied or put back to an older state."""
# ruff: noqa: E501 - one case is one line

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, registry, replinfo
from tests.bad_inputs.conftest import Refused, run
from tests.networks import FILE, Network, lose_changes

pytestmark = pytest.mark.usefixtures("no_engine")

SYNC = ("sync", "north", "-f", "hq")
CAPTURE = ("capture", "-f", "hq")
ROW = ("row", "orders", "-f", "hq", "--key", "id=1")
VALIDATE = ("validate", "north", "-f", "hq", "--level", "rowcount")
CONFLICTS = ("conflicts", "list", "-f", "hq")
LOOKS = (("status", "-f", "hq"), ("pending", "-f", "hq"), ("history", "-f", "hq"), CONFLICTS, ROW, VALIDATE)
READ_BY = {
    "sysmergepublications": (("status", "-f", "hq"), ("pending", "-f", "hq"), ROW, VALIDATE),
    "sysmergearticles": (("status", "-f", "hq"), ("pending", "-f", "hq"), ROW, VALIDATE),
    "sysmergesubscriptions": (("status", "-f", "hq"), ("pending", "-f", "hq"), ROW, VALIDATE),
    "MSmerge_genhistory": (("pending", "-f", "hq"), VALIDATE),
    "MSmerge_contents": (ROW,),
    "MSmerge_tombstone": (ROW,),
    "MSmerge_conflicts_info": (CONFLICTS,),
    "MSmerge_sessions": (("history", "-f", "hq"),),
}
TABLES = [table.name for table in registry.ALL if table.name != replinfo.NAME]
READS = [
    pytest.param(table, words, id=f"{words[0]} {table}")
    for table, reads in READ_BY.items()
    for words in reads
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["hq", pytest.param("north", marks=pytest.mark.slow)])
def test_50_nothing_is_written_where_a_system_table_was_dropped(
    network: Network, refused: Refused, name: str, table: str
) -> None:
    network.add_rows(name, 4)
    shutil.rmtree(network.system_table(name, table))
    for words in (SYNC, ("capture", "-f", name), ("apply", "-f", FILE)):
        refused(*words, code=1, says=(table, f"/{name}", "estore the folder", "from a copy"))


@pytest.mark.parametrize(("table", "words"), READS)
def test_50_a_dropped_system_table_is_named(
    network: Network, refused: Refused, table: str, words: tuple[str, ...]
) -> None:
    shutil.rmtree(network.system_table("hq", table))
    refused(*words, code=1, says=(f"'{table}' is missing", "/hq/", "Restore the folder"))


def no_data_file(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()


def empty_data_file(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.write_bytes(b"")


def last_commit(table: Path) -> Path:
    return max((table / "_delta_log").glob("*.json"))


def damaged_commit(table: Path) -> None:
    last_commit(table).write_text("{garbage")


def binary_commit(table: Path) -> None:
    last_commit(table).write_bytes(b"\xff\xfe\0")


def half_commit(table: Path) -> None:
    text = last_commit(table).read_text()
    last_commit(table).write_text(text[: len(text) - 40])


def gap(table: Path) -> None:
    last = last_commit(table)
    last.with_stem(f"{int(last.stem) + 2:020d}").write_text("{}")


DAMAGES = [no_data_file, empty_data_file, damaged_commit, binary_commit, half_commit]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_system_table_is_named(
    network: Network, refused: Refused, damage: Callable[[Path], None]
) -> None:
    damage(network.system_table("hq", "sysmergearticles"))
    for words in (
        ("status", "-f", "hq"),
        ("pending", "-f", "hq"),
        ROW,
        VALIDATE,
        SYNC,
        CAPTURE,
        ("apply", "-f", FILE),
    ):
        message = refused(*words, code=1, says=("/hq/_mergerepl/sysmergearticles' cannot be read", "restore"))
        assert message.count("\n") == 1, "no native stack trace"


@pytest.mark.parametrize("name", ["hq", "north"])
@pytest.mark.parametrize("table", ["sysmergearticles", "sysmergesubscriptions", "MSmerge_replinfo"])
def test_an_empty_last_commit_is_no_older_state(
    network: Network, refused: Refused, table: str, name: str
) -> None:
    network.edit(name, replinfo.TABLE, last_seq=0)
    last = last_commit(network.system_table(name, table))
    last.write_text("")
    for words in (("status", "-f", name), ("pending", "-f", name), SYNC, ("apply", "-f", FILE)):
        refused(*words, code=1, says=(f"/{name}/_mergerepl/{table}'", last.name, "not written to the end"))


@pytest.mark.parametrize("name", ["hq", "north"])
def test_no_row_about_any_subscription_is_reported_as_such(
    network: Network, refused: Refused, name: str
) -> None:
    Replica(network.root(name)).control.replace(catalog.SUBSCRIPTIONS, [])
    for words in (
        ("status", "-f", name),
        ("pending", "-f", name),
        SYNC,
        ("sync", "-f", name),
        ("apply", "-f", FILE),
    ):
        says = (f"'sysmergesubscriptions' of replica '{network.root(name)}' is empty", "Restore it", "copy")
        refused(*words, code=1, says=says)


def replinfo_rows(count: int) -> Callable[[Network], None]:
    def edit(network: Network) -> None:
        control = Replica(network.root("hq")).control
        control.replace(replinfo.TABLE, control.rows(replinfo.TABLE) * count)

    return edit


def info(**values: Any) -> Callable[[Network], None]:
    return lambda network: network.edit("hq", replinfo.TABLE, **values)


def publications(**values: Any) -> Callable[[Network], None]:
    return lambda network: network.edit("hq", catalog.PUBLICATIONS, **values)


def subscriptions(**values: Any) -> Callable[[Network], None]:
    return lambda network: network.edit("hq", catalog.SUBSCRIPTIONS, **values)


def articles(**values: Any) -> Callable[[Network], None]:
    return lambda network: network.edit("hq", catalog.ARTICLES, **values)


def genhistory_gone(network: Network) -> None:
    network.edit("north", catalog.SUBSCRIPTIONS, recgen=3, recguid="g3")


def settled_more(network: Network) -> None:
    network.edit("north", catalog.SUBSCRIPTIONS, settled=9)


EVERY = (*LOOKS, SYNC, CAPTURE)
OLDER = ("restored from an older copy", "Nothing was changed", "`mergerepl reinit ")
EDITED: list[Any] = [
    pytest.param(replinfo_rows(0), EVERY, 1, ("holds 0 rows", "/hq", "Restore"), id="51 nobody"),
    pytest.param(replinfo_rows(2), EVERY, 1, ("holds 2 rows", "/hq", "Restore"), id="51 twice"),
    pytest.param(info(schema_version=99), EVERY, 1, ("version 99", "/hq", "Upgrade"), id="45 later version"),
    pytest.param(info(schema_version=0), EVERY, 1, ("version 0", "/hq", "Upgrade"), id="45 earlier version"),
    pytest.param(info(captured={}), (SYNC,), 1, ("does not say up to which version", "/hq", "Restore"), id="51 captured"),
    pytest.param(info(captured={1: None}), (SYNC,), 1, ("does not say up to which version", "/hq", "Restore"), id="51 captured NULL"),
    pytest.param(info(captured={1: 99}), (SYNC, CAPTURE), 1, ("'orders'", "version 99 was captured", "Put the newer folder back"), id="49 table older"),
    pytest.param(subscriptions(sentgen=7, sentguid="x"), (SYNC,), 1, ("generation 7", *OLDER), id="51 watermark"),
    pytest.param(subscriptions(sentgen=2**63 - 1, sentguid="x"), (SYNC,), 1, (f"{2**63 - 1}", *OLDER), id="51 huge watermark"),
    pytest.param(genhistory_gone, (SYNC,), 1, ("generation 3", *OLDER), id="51 gap in generations"),
    pytest.param(subscriptions(replicastate="x"), (SYNC,), 1, ("do not end with the same session", "older copy", "`mergerepl reinit north"), id="49 restored"),
    pytest.param(subscriptions(through=9), (SYNC,), 1, ("do not end with the same session", *OLDER), id="49 subscriber older than a session without changes"),
    pytest.param(settled_more, (SYNC,), 1, ("do not end with the same session", *OLDER), id="49 publisher older than a session without changes"),
    pytest.param(subscriptions(status=2), (SYNC, VALIDATE), 2, ("no replica 'north' here", "mergerepl apply"), id="95 dropped"),
    pytest.param(subscriptions(status=0), (SYNC, VALIDATE), 2, ("no replica 'north' here", "mergerepl apply"), id="95 unfinished"),
    pytest.param(publications(publisher_replid="x"), (("apply", "-f", FILE),), 1, ("cannot publish", "Publish from"), id="51 role"),
    pytest.param(articles(source_table="../x"), (SYNC, CAPTURE), 1, ("'orders'", "no Delta table any more", "Restore it"), id="32 table outside"),
    pytest.param(articles(key_columns=["nr"]), (("apply", "-f", FILE),), 1, ("`key` was [nr] and is [id]", "Put it back"), id="51 key"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "commands", "code", "says"), EDITED)
def test_inv_39_43_a_system_table_edited_by_hand(
    network: Network,
    refused: Refused,
    edit: Callable[[Network], None],
    commands: tuple[tuple[str, ...], ...],
    code: int,
    says: tuple[str, ...],
) -> None:
    edit(network)
    for words in commands:
        refused(*words, code=code, says=says)


def copied(network: Network) -> None:
    shutil.copytree(network.root("north"), network.root("copy"))
    network.write_file("copy.yml", subscriptions=[{"subscriber": "./copy"}, {"subscriber": "./south"}])


@pytest.mark.parametrize(
    "words", [("sync", "-f", "copy"), ("capture", "-f", "copy"), ("apply", "-f", "copy.yml")], ids=" ".join
)
def test_48_a_copy_of_a_replica(network: Network, refused: Refused, words: tuple[str, ...]) -> None:
    copied(network)
    network.add_rows("copy", 9)
    refused(*words, code=1, says=("/copy' is a copy of the replica", "/north'", "emov"))


def test_48_a_copy_is_no_subscription_of_the_publisher(network: Network, refused: Refused) -> None:
    copied(network)
    refused("sync", "copy", "-f", "hq", code=2, says=("no replica 'copy' here", "Known: hq, north, south"))


def test_48_another_subscriber_in_its_place(network: Network, refused: Refused) -> None:
    network.root("north").rename(network.root("aside"))
    network.root("south").rename(network.root("north"))
    refused(
        *SYNC, code=1, says=("do not know each other", "replaced by another replica", "To subscribe it again")
    )


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(shutil.rmtree, "gone or no Delta table", id="gone"),
        pytest.param(lambda table: last_commit(table).unlink(), "gone or no Delta table", id="no commit"),
        pytest.param(gap, "its log has a gap", id="a gap"),
    ],
)
def test_a_row_is_shown_beside_a_replica_that_lost_its_table(
    network: Network, damage: Callable[[Path], None], says: str
) -> None:
    damage(network.root("north") / "orders")
    shown = run(*ROW)
    assert (shown.exit_code, shown.stdout.count("Problem: ")) == (0, 1), shown.output
    hq, north, south = json.loads(run(*ROW, "--json").stdout)["replicas"]
    assert hq["row"] == south["row"] == {"id": "1", "region": "N", "amount": "1.0"}
    assert (hq["problem"], north["row"], south["problem"]) == (None, None, None)
    assert says in north["problem"]
    unknown = run(*ROW[:-1], "id=9").stdout
    assert f"(asked: {network.root('hq')}, {network.root('south')})" in unknown


@pytest.mark.parametrize("table", ["sysmergearticles", "MSmerge_contents"])
def test_a_row_is_shown_beside_a_replica_with_a_damaged_system_table(network: Network, table: str) -> None:
    damaged = network.system_table("north", table)
    last_commit(damaged).write_text("{")
    replicas = {
        Path(each["replica"]).name: each for each in json.loads(run(*ROW, "--json").stdout)["replicas"]
    }
    assert replicas["hq"]["row"] == replicas["south"]["row"] == {"id": "1", "region": "N", "amount": "1.0"}
    assert (replicas["hq"]["problem"], replicas["north"]["row"], replicas["south"]["problem"]) == (
        None,
        None,
        None,
    )
    assert f"'{damaged}" in replicas["north"]["problem"]
    assert {name: entry["current"] for name, entry in replicas.items()} == {
        "hq": True,
        "north": False,
        "south": True,
    }


def test_a_row_is_shown_by_a_subscriber_whose_publisher_is_damaged(network: Network) -> None:
    damaged = network.system_table("hq", "sysmergesubscriptions")
    last_commit(damaged).write_text("{")
    shown = run("row", "orders", "-f", "north", "--key", "id=1", "--json")
    rows = {Path(each["replica"]).name: each["row"] for each in json.loads(shown.stdout)["replicas"]}
    assert rows["north"] == {"id": "1", "region": "N", "amount": "1.0"}, shown.output


@pytest.mark.parametrize("table", ["MSmerge_genhistory", "sysmergearticles"])
def test_pending_shows_the_others_beside_a_damaged_subscriber(network: Network, table: str) -> None:
    damaged = network.system_table("north", table)
    last_commit(damaged).write_text("{")
    network.add_rows("south", 9)
    rows = json.loads(run("pending", "-f", "hq", "--json").stdout)["pending"]
    north, unknown = (each for each in rows if each["subscriber"].endswith("/north"))
    south = [each for each in rows if each["subscriber"].endswith("/south")]
    assert f"'{damaged}" in unknown["problem"]
    assert (north["direction"], unknown["article"]) == ("download", "")
    assert {(each["direction"], each["uncaptured_commits"], each["problem"]) for each in south} == {
        ("download", 0, None),
        ("upload", 1, None),
    }


def test_validate_compares_the_others_beside_a_subscriber_out_of_reach(network: Network) -> None:
    shutil.rmtree(network.root("south"))
    network.add_rows("north", 9)
    lose_changes(network.root("north"))
    options = ("validate", "-f", FILE, "--level", "rowcount")
    shown = run(*options)
    assert shown.exit_code == 1
    assert "DIFFERENT" in shown.stdout
    assert f"Problem: Replica '{network.root('south')}' is out of reach" in shown.stdout
    north, south = json.loads(run(*options, "--json").stdout)["articles"]
    assert (north["error"], north["differing_rows"]) == (None, 1)
    assert (south["ok"], south["error"]["error"]) == (False, "OutOfReachError")


def test_validate_compares_nothing_for_a_publication_that_is_not_there(
    network: Network, refused: Refused
) -> None:
    network.write_file("other.yml", publication="other")
    command = ("validate", "-f", "other.yml", "--level", "rowcount")
    refused(*command, code=2, says=("no active subscription", "'other'"))
    for name in ("north", "south"):
        shutil.rmtree(network.root(name))
    refused(*command, code=3, says=("/north' is out of reach",))


def test_validate_reports_a_publisher_that_is_not_mounted(network: Network, refused: Refused) -> None:
    shutil.rmtree(network.root("hq"))
    network.root("hq").mkdir()
    refused("validate", "-f", FILE, "--level", "rowcount", code=3, says=("/hq' is out of reach",))


def test_a_damaged_pointer_to_an_unfinished_session(network: Network, refused: Refused) -> None:
    """A capture has to know whose session it was; a sync finds unfinished ones at the publisher itself."""
    pointer = network.system_table("north", "staging") / "s1.json"
    pointer.parent.mkdir()
    pointer.write_text("{x")
    refused("capture", "-f", "north", code=1, says=("s1.json' is damaged", "remove the file"))
    network.root("south").rename(network.root("aside"))
    network.edit("hq", catalog.SUBSCRIPTIONS, replicastate="x")
    refused(*SYNC, code=1, says=("do not end with the same session",))


def test_an_unfinished_session_whose_publisher_is_away(network: Network, refused: Refused) -> None:
    pointer = network.system_table("north", "staging") / "s1.json"
    pointer.parent.mkdir()
    pointer.write_text(json.dumps({"publisher": "/nowhere", "replid": "r1"}))
    refused(*SYNC, code=3, says=("Session s1", "'/nowhere' is out of reach", "must be finished first"))
    refused("capture", "-f", "north", code=3, says=("Session s1", "'/nowhere' is out of reach", "run again"))


def test_a_damaged_staged_session(network: Network, refused: Refused) -> None:
    manifest = network.system_table("hq", "staging") / "s1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{x")
    refused(
        *SYNC, code=1, says=("session 's1' cannot be read", "manifest.json' is damaged", "Restore the file")
    )

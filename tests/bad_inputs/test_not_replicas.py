"""Folders that are no replica, given to the commands that want one."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bad_inputs.conftest import Refused, message_of, run, state_of
from tests.networks import FILE, Network, write_table

pytestmark = pytest.mark.usefixtures("no_engine")

COMMANDS = [
    pytest.param(words, id=" ".join(words[:2] if words[0] == "conflicts" else words[:1]))
    for words in [
        ("sync",),
        ("capture",),
        ("validate",),
        ("status",),
        ("pending",),
        ("history",),
        ("conflicts", "list"),
        ("row", "orders", "--key", "id=1"),
    ]
]


def empty(place: Path) -> None:
    place.mkdir()


def delta_table(place: Path) -> None:
    write_table(place)


def parquet(place: Path) -> None:
    write_table(place)
    shutil.rmtree(place / "_delta_log")


def link_to_a_table(place: Path) -> None:
    write_table(place.with_name("table"))
    place.symlink_to(place.with_name("table"))


def file_in_the_way(place: Path) -> None:
    place.mkdir()
    (place / "_mergerepl").touch()


@pytest.mark.parametrize("make", [empty, delta_table, parquet, link_to_a_table, file_in_the_way])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_system_tables(
    folder: Path, refused: Refused, command: tuple[str, ...], make: Callable[[Path], None]
) -> None:
    make(folder / "place")
    says = ("is not a replica", "no '_mergerepl' folder", "mergerepl apply")
    refused(*command, "-f", "place", code=2, says=says)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_system_folder_without_the_table_that_says_who_it_is(
    network: Network, refused: Refused, command: tuple[str, ...]
) -> None:
    shutil.rmtree(network.system_table("hq", "MSmerge_replinfo"))
    says = ("no complete replica", "MSmerge_replinfo", "Restore the folder", "run it again")
    refused(*command, "-f", "hq", code=2, says=says)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["loop", "hq/orders/_delta_log/00000000000000000000.json/x"])
def test_a_path_that_leads_nowhere(
    network: Network, refused: Refused, command: tuple[str, ...], place: str
) -> None:
    (network.folder / "loop").symlink_to(network.folder / "loop")
    message = refused(*command, "-f", place, code=2, says=(place,))
    assert "Check the path" in message or "give the folder" in message


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Answer as the file system does to who may not look into a folder; root may look into any."""

    def if_allowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, **options: Any) -> Any:
            if not isinstance(path, int) and str(folder) in map(str, Path(path).parents):
                raise PermissionError(errno.EACCES, "Permission denied")
            return call(path, **options)

        return called

    for name in ("stat", "listdir"):
        monkeypatch.setattr(os, name, if_allowed(getattr(os, name)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_replica_that_nobody_may_look_into(
    network: Network, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    before = state_of(network.folder)
    with monkeypatch.context() as context:
        deny(context, network.root("hq") / "_mergerepl")
        message = message_of(run(*command, "-f", "hq"), 1)
    assert "/hq' cannot be read: Permission denied. Nothing was changed. Check where it leads" in message
    assert state_of(network.folder) == before


def test_a_subscriber_that_nobody_may_look_into_keeps_no_other_away(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, network.root("north") / "_mergerepl")
    report = json.loads(run("sync", "-f", FILE, "--json").stdout)
    status = {Path(each["subscriber"]).name: each["status"] for each in report["sessions"]}
    assert status == {"north": "failed", "south": "nothing_to_do"}


def test_a_table_that_nobody_may_look_into_is_a_problem(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, network.root("hq") / "orders")
    for command in ("status", "pending"):
        shown = run(command, "-f", "hq", "--json")
        assert (shown.exit_code, "orders' cannot be read: Permission denied" in shown.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        pytest.param(("sync", "north", "-f", "hq"), "north", id="sync"),
        pytest.param(("validate", "north", "-f", "hq"), "north", id="validate"),
        pytest.param(("sync", "-f", "north"), "hq", id="sync at the subscriber"),
        pytest.param(("validate", "-f", "north"), "hq", id="validate at the subscriber"),
    ],
)
def test_the_other_end_is_gone(
    network: Network, refused: Refused, arguments: tuple[str, ...], gone: str
) -> None:
    network.root(gone).rename(network.root("elsewhere"))
    says = (f"/{gone}' is out of reach", "not mounted", "new path", "mergerepl apply")
    refused(*arguments, code=3, says=says)
    if arguments[1] != gone:  # An empty mount point is what another command would be given.
        network.root(gone).mkdir()
        refused(*arguments, code=3, says=says)
        network.root(gone).rmdir()
    network.root("elsewhere").rename(network.root(gone))
    assert run(*arguments, *(["--level", "rowcount"] if arguments[0] == "validate" else [])).exit_code == 0


def test_an_end_that_is_gone_and_known_to_nobody(network: Network, refused: Refused) -> None:
    network.write_file("more.yml", subscriptions=[{"subscriber": "./west"}])
    for command in ("sync", "validate"):
        refused(
            command,
            "-f",
            "more.yml",
            code=1,
            says=("/west' does not exist", "not mounted", "mergerepl apply"),
        )
    network.root("hq").rename(network.root("elsewhere"))
    refused("sync", "-f", FILE, code=2, says=("/hq", "check the path", "mounted"))
    # An agent that had it there once waits for it to return.
    (error,) = json.loads(run("sync", "-f", FILE, "--json").stdout).values()
    assert error["replica"] == str(network.root("hq"))


def test_a_subscriber_that_is_gone_is_not_made_again(network: Network, refused: Refused) -> None:
    network.root("north").rename(network.root("elsewhere"))
    refused("apply", "-f", "sales.yml", code=1, says=("/north' has lost its replica", "bring it back"))

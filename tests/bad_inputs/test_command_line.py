"""Words on the command line: unknown, malformed, hostile. Nothing is looked at before they are understood."""

import re

import pytest

from mergerepl.cli.main import COMMANDS
from tests.bad_inputs.conftest import Refused, run
from tests.networks import Network

pytestmark = pytest.mark.usefixtures("no_engine", "network")

ROW = ("row", "hq", "--article", "orders", "--key")
SECRET = "s3://key:hunter2@bucket/x"

WORDS = [
    pytest.param(("frobnicate",), ("No such command 'frobnicate'",), id="2 unknown command"),
    pytest.param(("conflicts", "drop", "hq"), ("No such command 'drop'",), id="2 unknown subcommand"),
    pytest.param(("sync",), ("Missing argument", "REPLICA"), id="1 nothing to work on"),
    pytest.param(("status", "hq", "--frob"), ("No such option '--frob'",), id="3 unknown option"),
    pytest.param(("history", "hq", "--limit", "x"), ("--limit", "'x'", "integer"), id="14 wrong type"),
    pytest.param(("history", "hq", "--limit", "-1"), ("--limit", "-1", "x>=1"), id="15 negative number"),
    pytest.param(("history", "hq", "--limit", str(2**63 - 1)), ("out of range", "1,000,000,000"), id="17 huge limit"),
    pytest.param(("conflicts", "list", "hq", "--limit", "9" * 20), ("out of range", "1,000,000,000"), id="17 huge limit"),
    pytest.param(("sync", "hq", "--interval", "9" * 12 + "h"), ("--interval", "60s, 5m or 1h"), id="17 huge number"),
    pytest.param(("sync", "hq", "--interval", "nan"), ("--interval", "'nan' is no time", "60s"), id="18 no number"),
    pytest.param(("tune", "hq", "--file-size", "64"), ("--file-size", "'64' is no size", "64MB"), id="18 no unit"),
    pytest.param(("tune", "hq", "--file-size", "1GB"), ("'1GB' is no size", "1MB to 999999MB", "1024MB"), id="18 unit"),
    pytest.param(("tune", "hq", "--file-size", "0MB"), ("--file-size", "'0MB' is no size"), id="16 zero"),
    pytest.param((*ROW, "id=x"), ("'id' of article 'orders'", "'x' is no bigint", "Correct"), id="100 text for a number"),
    pytest.param((*ROW, f"id={2**63}"), ("'id'", f"'{2**63}' is no bigint", "Correct"), id="100 number out of range"),
    pytest.param((*ROW, "id=" + "9" * 5000), ("'id'", "is no bigint", "Correct"), id="100 number without end"),
    pytest.param((*ROW, "nr=1"), ("identified by id", "names nr", "COLUMN=VALUE"), id="54 unknown key column"),
    pytest.param((*ROW, "=1"), ("names no column", "order_id=7"), id="53 no key column"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), WORDS)
def test_inv_43_words_that_are_wrong(
    refused: Refused, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(*arguments, code=2, says=says)


HOSTILE = [
    pytest.param("nope", id="unknown"),
    pytest.param("", id="empty"),
    pytest.param("x" * 10_000, id="20 long"),
    pytest.param("../hq", id="21 path"),
    pytest.param("a\nError: b", id="21 newline"),
    pytest.param("\x1b[31mred", id="21 escape sequence"),
    pytest.param("a`b", id="21 backtick"),
    pytest.param("' or 1=1 --", id="21 quote"),
    pytest.param("ORDERS", id="22 another case"),
]
NAMED = [
    pytest.param(("conflicts", "list", "hq", "--article"), "no article", id="conflicts list --article"),
    pytest.param(("conflicts", "show", "hq", "--article"), "no article", id="conflicts show --article"),
    pytest.param(("conflicts", "list", "hq", "--publication"), "no publication", id="--publication"),
    pytest.param(("row", "hq", "--key", "id=1", "--article"), "no article", id="row --article"),
    pytest.param(("tune", "hq"), "no article", id="tune ARTICLE"),
    pytest.param(("conflicts", "show", "hq"), "no conflict", id="conflicts show ID"),
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(("arguments", "says"), NAMED)
def test_names_that_are_not_there(refused: Refused, arguments: tuple[str, ...], says: str, name: str) -> None:
    message = refused(*arguments, name, code=2, says=(says, "hq"))
    assert "Known: " in message or re.search(r"see `mergerepl conflicts list \S+/hq`", message)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("sync", "hq"), "no subscription for", id="sync"),
        pytest.param(("validate", "hq"), "no subscription for", id="validate"),
        pytest.param(("history", "hq"), "knows no subscriber", id="history"),
        pytest.param(("sync", "north"), "no subscription for", id="sync at a subscriber"),
    ],
)
def test_95_a_subscription_that_is_not_there(refused: Refused, arguments: tuple[str, ...], says: str) -> None:
    refused(*arguments, "--subscriber", "west", code=2, says=(says, "/west'", "nown: ", "Name one of them"))


def test_95_subscriptions_are_known_where_sessions_are_not(network: Network) -> None:
    shown = run("history", "hq", "--subscriber", "north")
    assert (shown.exit_code, shown.stderr) == (0, "")


TARGETS = [
    pytest.param("gone", ("'gone' does not exist", "check the path"), id="25 missing"),
    pytest.param("", ("is empty", "give the folder"), id="25 empty"),
    pytest.param("x" * 5000, ("xxx…", "File name too long", "Check the path"), id="20 long"),
    pytest.param("a\0b", ("'a\\x00b'", "control character", "plain path"), id="21 NUL"),
    pytest.param("a\n\x1b[31mb", ("control character", "plain path"), id="21 newline"),
    pytest.param("~/hq", ("'~/hq'", "not expanded", "whole path"), id="38 home"),
    pytest.param("%2e%2e", ("%2e in its path", "Rename the folder"), id="33 percent codes"),
    pytest.param("hq/orders/../../../x", ("does not exist", "check the path"), id="32 way out"),
    pytest.param("abc://bucket/x", ("abc://", "not supported", "local or mounted folder"), id="38 unknown scheme"),
    pytest.param("gs://bucket/x", ("gs://", "not supported", "local or mounted folder"), id="39 no driver"),
    pytest.param(SECRET, ("s3://***@bucket/x", "not supported", "local or mounted folder"), id="40 credentials"),
    pytest.param("file:///x/a%00b", ("'file:///x/a%00b'", "control character", "plain path"), id="21 NUL in a URI"),
    pytest.param("file:///x/a%0Ab", ("'file:///x/a%0Ab'", "control character", "plain path"), id="21 newline in a URI"),
    pytest.param("file://[x", ("'file://[x' is no URI", "three slashes"), id="38 no host in a file URI"),
    pytest.param("file://host/x", ("'host'", "three slashes"), id="38 host in a file URI"),
]  # fmt: skip
SUBCOMMANDS = {
    "conflicts": ("list",),
    "partition": ("list",),
    **dict.fromkeys(("tracking", "cdc", "agent", "transactional"), ("status",)),
}
"""Of each group, a command that takes a place."""
ON_ONE_REPLICA = ("sync", "capture", "tune", "validate", "status", "pending", "history")


@pytest.mark.parametrize(("target", "says"), TARGETS)
@pytest.mark.parametrize(
    "command", [*ON_ONE_REPLICA, "conflicts list", "conflicts show", "row", "sync hq --subscriber", "demo"]
)
def test_places_that_are_no_folder(
    refused: Refused, command: str, target: str, says: tuple[str, ...]
) -> None:
    if target in ("gone", "%2e%2e", "hq/orders/../../../x") and command in ("demo", "sync hq --subscriber"):
        pytest.skip("a new folder for a demo, an unknown subscription: no mistake of the path")
    more = {"row": ("--article", "orders", "--key", "id=1"), "conflicts show": ("--article", "orders")}
    message = refused(*command.split(), target, *more.get(command, ()), code=2, says=says)
    assert "hunter2" not in message
    assert len(message) < 700


@pytest.mark.parametrize("name", [name for names in COMMANDS.values() for name in names])
def test_inv_46_no_command_shows_credentials(network: Network, name: str) -> None:
    """Case 40 of the bad inputs."""
    subcommand = SUBCOMMANDS.get(name, ())
    options = ("--article", "orders", "--key", "id=1") if name == "row" else ()
    if subcommand:
        assert "hunter2" not in run(name, SECRET).output
    for extra in ((), ("--json",), ("--verbose",)):
        shown = run(name, *subcommand, SECRET, *options, *extra)
        assert shown.exit_code in (1, 2)
        assert "hunter2" not in shown.output
    assert sorted(path.name for path in network.folder.iterdir()) == ["hq", "north", "sales.yml", "south"]


@pytest.mark.parametrize("name", ["hq", "sales.yml"])
def test_a_demo_takes_nobodys_place(refused: Refused, name: str) -> None:
    message = refused("demo", name, code=2, says=(name,))
    assert "is not an empty folder" in message or "is a file" in message

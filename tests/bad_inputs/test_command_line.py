"""Words on the command line: unknown, malformed, hostile. Nothing is looked at before they are understood."""

import re

import pytest

from mergerepl.cli.main import COMMANDS
from tests.bad_inputs.conftest import Refused, run
from tests.networks import Network

pytestmark = pytest.mark.usefixtures("no_engine", "network")

ROW = ("row", "orders", "-f", "hq", "--key")
SECRET = "s3://key:hunter2@bucket/x"

WORDS = [
    pytest.param(("frobnicate",), ("No such command 'frobnicate'",), id="2 unknown command"),
    pytest.param(("conflicts", "dorp", "hq"), ("No such command 'dorp'", "'drop'"), id="2 unknown subcommand"),
    pytest.param(("sync",), ("no project here", "`-f PATH`"), id="1 nothing to work on"),
    pytest.param(("status", "-f", "hq", "--frob"), ("No such option '--frob'",), id="3 unknown option"),
    pytest.param(("history", "-f", "hq", "--limit", "x"), ("--limit", "'x'", "no number of rows"), id="14 wrong type"),
    pytest.param(("history", "-f", "hq", "--limit", "-1"), ("--limit", "-1", "from 1"), id="15 negative number"),
    pytest.param(("history", "-f", "hq", "--limit", str(2**63 - 1)), ("no number", "1,000,000,000"), id="17 huge"),
    pytest.param(("conflicts", "list", "-f", "hq", "--limit", "9" * 20), ("no number of rows", "`all`"), id="17 long"),
    pytest.param(("sync", "-f", "hq", "--interval", "9" * 12 + "h"), ("--interval", "30s, 5m, 2h"), id="17 huge number"),
    pytest.param(("sync", "-f", "hq", "--interval", "nan"), ("--interval", "'nan' is no time", "30s"), id="18 no number"),
    pytest.param(("tune", "-f", "hq", "--file-size", "64"), ("--file-size", "'64' is no size", "64MB"), id="18 no unit"),
    pytest.param(("tune", "-f", "hq", "--file-size", "1GB"), ("'1GB' is no size", "1MB to 999999MB"), id="18 unit"),
    pytest.param(("tune", "-f", "hq", "--file-size", "0MB"), ("--file-size", "'0MB' is no size"), id="16 zero"),
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
    pytest.param(("conflicts", "list", "-f", "hq", "--table"), "no article", id="conflicts list --table"),
    pytest.param(("conflicts", "show", "-f", "hq", "--table"), "no article", id="conflicts show --table"),
    pytest.param(("conflicts", "list", "-f", "hq", "--publication"), "no publication", id="--publication"),
    pytest.param(("row", "-f", "hq", "--key", "id=1"), "no article", id="row TABLE"),
    pytest.param(("tune", "-f", "hq"), "no article", id="tune TABLE"),
    pytest.param(("conflicts", "show", "-f", "hq"), "no conflict", id="conflicts show ID"),
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(("arguments", "says"), NAMED)
def test_names_that_are_not_there(refused: Refused, arguments: tuple[str, ...], says: str, name: str) -> None:
    if name == "../hq" and not arguments[-1].startswith("--"):
        refused(*arguments, name, code=2, says=("is a path", "-f ../hq"))
        return
    message = refused(*arguments, name, code=2, says=(says, "hq"))
    assert "Known: " in message or re.search(r"see `mergerepl conflicts list -f \S+/hq`", message)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("sync", "west", "-f", "hq"), "hq, north, south", id="sync"),
        pytest.param(("validate", "west", "-f", "hq"), "hq, north, south", id="validate"),
        pytest.param(("history", "west", "-f", "hq"), "hq, north, south", id="history"),
        pytest.param(("sync", "west", "-f", "north"), "hq, north", id="sync at a subscriber"),
        pytest.param(("sync", "noth", "-f", "sales.yml"), "Did you mean 'north'?", id="a slip"),
    ],
)
def test_95_a_replica_that_is_not_there(refused: Refused, arguments: tuple[str, ...], says: str) -> None:
    refused(*arguments, code=2, says=(f"no replica {arguments[1]!r}", "Known: ", says))


def test_a_table_that_no_article_is_called_is_not_equal(refused: Refused) -> None:
    refused("validate", "-f", "hq", "--table", "a,b", code=2, says=("compared of 'a', 'b'", "no article"))


def test_95_subscriptions_are_known_where_sessions_are_not(network: Network) -> None:
    shown = run("history", "north", "-f", "hq")
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
    pytest.param(SECRET, ("s3://***@bucket/x", "holds credentials", "environment"), id="40 credentials"),
    pytest.param("file:///x/a%00b", ("'file:///x/a%00b'", "control character", "plain path"), id="21 NUL in a URI"),
    pytest.param("file:///x/a%0Ab", ("'file:///x/a%0Ab'", "control character", "plain path"), id="21 newline in a URI"),
    pytest.param("file://[x", ("'file://[x' is no URI", "three slashes"), id="38 no host in a file URI"),
    pytest.param("file://host/x", ("'host'", "three slashes"), id="38 host in a file URI"),
]  # fmt: skip
SUBCOMMANDS = {
    **dict.fromkeys(("conflicts", "partitions", "cdc"), ("list",)),
    "tracking": ("enumerate", "hq"),
    "agent": ("status",),
    "transactional": ("browse",),
}
"""Of each group, a command that takes a place."""


@pytest.mark.parametrize(("target", "says"), TARGETS)
@pytest.mark.parametrize(
    "command",
    [
        *("sync", "status", "conflicts list", "row", "demo"),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("capture", "tune", "validate", "pending", "history", "conflicts show")
        ),
    ],
)
def test_places_that_are_no_folder(
    refused: Refused, command: str, target: str, says: tuple[str, ...]
) -> None:
    if target in ("gone", "%2e%2e", "hq/orders/../../../x") and command == "demo":
        pytest.skip("a new folder for a demo: no mistake of the path")
    more = {"row": ("orders", "--key", "id=1"), "conflicts show": ("--table", "orders")}
    place = (target,) if command == "demo" else ("-f", target)
    message = refused(*command.split(), *place, *more.get(command, ()), code=2, says=says)
    assert "hunter2" not in message
    assert len(message) < 700


@pytest.mark.parametrize("name", [name for names in COMMANDS.values() for name in names])
def test_inv_46_no_command_shows_credentials(network: Network, name: str) -> None:
    """Case 40 of the bad inputs."""
    subcommand = SUBCOMMANDS.get(name, ())
    options = ("orders", "--key", "id=1") if name == "row" else ()
    assert "hunter2" not in run(name, SECRET).output
    for extra in ((), ("--json",), ("--verbose",)):
        place = (SECRET,) if name == "demo" else ("-f", SECRET)
        shown = run(name, *subcommand, *place, *options, *extra)
        assert "hunter2" not in shown.output
    assert sorted(path.name for path in network.folder.iterdir()) == ["hq", "north", "sales.yml", "south"]


@pytest.mark.parametrize("name", ["hq", "sales.yml"])
def test_a_demo_takes_nobodys_place(refused: Refused, name: str) -> None:
    message = refused("demo", name, code=2, says=(name,))
    assert "is not an empty folder" in message or "is a file" in message

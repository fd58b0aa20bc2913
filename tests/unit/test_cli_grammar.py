"""The commands keep one grammar: a walk over them, the first help, and answers to words that are gone. No Spark."""

import inspect
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl import Agent, Project, Replica, cdc, tracking, transactional
from mergerepl.cli import options
from mergerepl.cli.grammar import DESTROYS, RUNS, WIDTH, WRITES, Command, kind_of
from mergerepl.cli.main import COMMANDS, main
from mergerepl.cli.report import columns
from mergerepl.conflicts.selection import Conflicts
from mergerepl.replicas import Partitions, Schema

ROOT = Path(__file__).parents[2]
BEFORE = [
    line.partition(":")[::2]
    for line in (Path(__file__).with_name("words_before.txt")).read_text().splitlines()
]
"""The commands of the first grammar, with their options."""

KINDS = {"REPLICA", "TABLE", "INSTANCE", "TABLE|INSTANCE", "CONSUMER", "ROOT", "DIR", "SHELL", "JOB"}
IDS = {"ID", "SESSION", "XACT", "BSN", "LSN", "PARTITION", "CHANGE"}
GENERAL = {"--file", "--json", "--log-format", "--quiet", "--verbose", "--version", "--help"}
OBJECTS: dict[str, Any] = {
    "Project": Project,
    "Replica": Replica,
    "Replica.conflicts": Conflicts,
    "Replica.partitions": Partitions,
    "Replica.schema": Schema,
    "Agent": Agent,
    "ChangeTracking": tracking.ChangeTracking,
    "ChangeTracking.consumer": tracking.Consumer,
    "Distributor": transactional.Distributor,
    "Subscriber": transactional.Subscriber,
    "cdc": cdc,
    "cdc.Database": cdc.Database,
    "cdc.Database.jobs": cdc.Jobs,
    "cdc.Instance": cdc.Instance,
    "": mergerepl,
}
"""The objects of the Python interface, as a command's `call` begins."""


def walk(group: click.Group = main, path: str = "") -> Iterator[tuple[str, Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from walk(command, f"{path} {name}".strip())
            else:
                assert isinstance(command, Command)
                yield f"{path} {name}".strip(), command


ALL = dict(walk())
each_command = pytest.mark.parametrize("words", ALL)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def options_of(command: click.Command) -> dict[str, click.Option]:
    found = [each for each in command.params if isinstance(each, click.Option)]
    return {name: each for each in found for name in each.opts if name.startswith("--")}


@each_command
def test_an_option_has_one_meaning(words: str) -> None:
    stated = {name: terms for names, terms in options.TABLE.items() for name in names.split("/")}
    for name, option in options_of(ALL[words]).items():
        assert option.help == stated[name]["help"]
        assert name not in GENERAL


def test_no_two_options_mean_the_same() -> None:
    meanings = [terms["help"] for terms in options.TABLE.values()]
    assert len(set(meanings)) == len(meanings)
    used = {name for command in ALL.values() for name in options_of(command)}
    assert {
        names.split("/")[-1] if names[1] != "-" else names.split("/")[0] for names in options.TABLE
    } <= used


@each_command
def test_a_command_takes_one_kind_of_object(words: str) -> None:
    arguments = [each for each in ALL[words].params if isinstance(each, click.Argument)]
    assert len(arguments) <= 1
    assert all(kind_of(each.metavar) in KINDS | IDS for each in arguments)


@each_command
def test_what_writes_can_be_rehearsed_and_what_destroys_asks(words: str) -> None:
    command, has = ALL[words], options_of(ALL[words])
    assert ("--dry-run" in has) is (command.effect in (WRITES, DESTROYS))
    assert ("--yes" in has) is (command.effect is DESTROYS)
    assert (command.effect is RUNS) is (words in ("agent run", "agent stop", "demo"))


def call_of(words: str) -> Callable[..., Any] | None:
    owner, _, method = ALL[words].call.rpartition(".")
    return getattr(OBJECTS[owner], method) if method else None


SHELL = {"--at", "--dry-run", "--yes", "--output", "--limit", "--force", "--all", "--check"}
"""Options of the command line: where it works, what it asks, and what it shows."""
OTHERWISE = {
    "agent run": {"--detach": "start"},
    "cdc changes": {"--net": "net_changes"},
    "cdc load": {"--into": "target"},
    "conflicts resolve": dict.fromkeys(("--winner", "--loser", "--set", "--set-null"), "choice"),
    "conflicts list": {"--count-by": "count_by"},
    "init": {"--print-schema": ""},
    "pending": {"--list": "pending_rows", "--limit": "pending_rows"},
    "status": {"--metrics-file": "snapshot"},
    "sync": {"--interval": "rounds", "--no-agent": "", "--metrics-file": "snapshot"},
    "tracking enumerate": {"--table": "tables", "--start": "consumer"},
    "tracking enable": {"--foreign": "the constructor"},
}
"""Options that Python has as another method or a positional argument."""


@each_command
def test_a_command_makes_one_call_whose_keywords_are_its_options(words: str) -> None:
    call = call_of(words)
    if call is None or inspect.isclass(call):
        return
    keywords = set(inspect.signature(call).parameters)
    if "parameters" in keywords:
        keywords |= {*columns.PARAMETERS}
    if ALL[words].call.startswith("Replica.conflicts."):
        keywords |= set(inspect.signature(Conflicts.where).parameters)
    for stated, each in options_of(ALL[words]).items():
        name = str(each.name)
        is_there = {name, name.removeprefix("no_")} & keywords
        assert is_there or stated in SHELL or stated in OTHERWISE.get(words, {}), (stated, sorted(keywords))


OF_ALL_TYPES = {
    "capture",
    "status",
    "pending",
    "history",
    "cleanup",
    "resume",
    "reinit",
    "repair",
    "validate",
}
"""The calls of `Project` for all types, which an object of one type has, too."""
PYTHON_ONLY = {
    "Project": {"load", "replicas", "at", "own_roots", "count_history"},
    "Replica": {"lock"},
    "Replica.conflicts": {"where", "count", "rows"},
    "ChangeTracking": {
        *("options", "tracked_tables", "last_csn", "pack_key", "unpack_key", "sql", "consumer", "consumers"),
        *("begin", "transaction", "insert", "upsert", "update", "delete", "read"),
        *("transactions", "count_transactions"),
    },
    "ChangeTracking.consumer": {"received"},
    "Distributor": {"deliver", "count_commands", "warnings", "errors", "reinit_articles"},
    "Subscriber": {"read"},
    "cdc.Database": {
        *("is_enabled", "is_captured", "instance", "register_functions", "max_lsn", "lsn_at", "time_of"),
        "vacuum",
    },
    "cdc.Instance": {
        *("ends", "min_lsn", "max_lsn", "columns", "ddl_history", "ordinal", "has_changed", "snapshot"),
        *("to_debezium", "version_of", "lsn_of", "switch_lsn"),
    },
}
"""The methods that no command calls by their name."""


@pytest.mark.parametrize("owner", [name for name, each in OBJECTS.items() if inspect.isclass(each)])
def test_a_public_method_has_a_command_or_is_pythons_alone(owner: str) -> None:
    of_owner = [words for words, each in ALL.items() if each.call.rpartition(".")[0] == owner]
    called = {ALL[words].call.rpartition(".")[2] for words in of_owner}
    called |= {name for words in of_owner for name in OTHERWISE.get(words, {}).values()}
    methods = {
        name
        for name, each in vars(OBJECTS[owner]).items()
        if not name.startswith("_") and (callable(each) or isinstance(each, classmethod | staticmethod))
    }
    alone = PYTHON_ONLY.get(owner, set())
    assert methods - called - OF_ALL_TYPES == alone
    assert alone <= methods - called


RUN = {
    "mergerepl.yml": (
        *("apply", "sync", "capture", "agent status", "agent stop", "status", "pending", "history", "row"),
        *("conflicts list", "conflicts show", "conflicts retry", "conflicts drop", "conflicts export"),
        *("conflicts report", "conflicts resolvers", "dashboard", "validate", "reinit", "doctor", "cleanup"),
        *("tune", "partitions list", "partitions drop", "schema list", "abort", "completion"),
    ),
    "shop": (
        *("cdc enable", "capture", "cdc list", "cdc show", "cdc changes", "cdc lsn", "cdc jobs list"),
        *("cdc jobs change", "cdc jobs stop", "cdc jobs start", "cdc jobs drop", "cdc jobs add", "resume"),
        *("cdc cleanup", "cdc relocate", "cdc disable"),
    ),
}
"""Commands whose examples run in this order without an engine, by the place that they run in."""
ELSEWHERE = {"mergerepl.yml": ("--interval", "--start-engine"), "shop": ("capture north",)}
"""What examples have that do not end, start Java, or name a replica of the other place."""


def test_examples_run_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conflict = prepare_places()
    for place, commands in RUN.items():
        monkeypatch.setenv("MERGEREPL_FILE", place)
        for line in [each for words in commands for each in examples_of(ALL[words])]:
            if any(each in line for each in ELSEWHERE[place]):
                continue
            if "0x" in line:
                lsn = json.loads(run("cdc", "lsn", "--json").stdout)["min_lsn"]
                line = re.sub("0x[0-9A-F]+", lsn, line)
            words = shlex.split(line.replace("3f2a", conflict))[1:]
            done = run(*words)
            asks = done.exit_code == 2 and "Say --yes to go on" in done.stderr
            assert asks or done.exit_code == 0, (line, done.output)


def prepare_places() -> str:
    """Make a project with a conflict, and a folder of tables; return the id of the conflict."""
    orders = pa.table({"order_id": [7, 8], "quantity": [1, 2]})
    for path in ("hq/orders", "shop/orders", "shop-copy/orders"):
        write_deltalake(path, orders)
    write_deltalake("hq/lines", pa.table({"order_id": [7], "line": [1]}))
    write_deltalake("shop/bronze/eu/items", pa.table({"id": [1], "price": [2.0]}))
    articles = "[{name: orders, key: [order_id]}, {name: lines, key: [order_id, line]}]"
    stated = f"publication: sales\npublisher: ./hq\narticles: {articles}\nsubscriptions: [{{subscriber: ./north}}]\n"
    for file in ("mergerepl.yml", "sales.yml"):
        Path(file).write_text(stated)
    assert run("apply").exit_code == run("sync").exit_code == 0
    assert run("cdc", "enable", "orders", "-f", "shop-copy").exit_code == 0
    for number, replica in enumerate(("hq", "north"), 5):
        DeltaTable(f"{replica}/orders").update(updates={"quantity": f"{number}"}, predicate="order_id = 7")
    assert run("sync").exit_code == 0
    (conflict,) = json.loads(run("conflicts", "list", "--json").stdout)["conflicts"]
    return str(conflict["conflict_id"])


def examples_of(command: click.Command) -> list[str]:
    assert command.help is not None
    return command.help.split("Example:\n")[1].strip().splitlines()


def test_the_first_help_is_one_page() -> None:
    lines = run("--help").output.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= WIDTH
    assert not any("…" in line or line.endswith("...") for line in lines[1:])
    assert "\n  init           Write mergerepl.yml from folders of tables.\n" in run("--help").output


def is_visible(words: str) -> bool:
    first, *rest = words.split()
    if first in COMMANDS[""]:
        return False
    found: click.Command = main
    for word in (first, *rest):
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
        if found.hidden:
            return False
    return True


def test_few_commands_are_visible_and_help_lists_all() -> None:
    visible = [words for words in ALL if is_visible(words)]
    assert len(visible) <= 48
    assert len(ALL) - len(visible) <= 19
    listed = run("help", "--all").output
    assert all(f"mergerepl {words} " in listed for words in ALL)
    assert "abort" not in run("tracking", "--help").output
    assert "abort" in run("tracking", "help", "--all").output
    assert run("help", "conflicts", "show").output == run("conflicts", "show", "--help").output


@pytest.mark.parametrize(("words", "opts"), BEFORE)
def test_a_command_that_is_gone_is_answered_with_the_new_one(words: str, opts: str) -> None:
    if words in ALL or words == "cdc help":
        # Every group has `help` now.
        return
    shown = run(*words.split(), "hq")
    named = re.findall(r"`mergerepl ([^`]+)`", shown.stderr)
    assert shown.exit_code == 2
    if "in Python: " in " ".join(shown.stderr.split()):
        (call,) = re.findall(r"`(ChangeTracking[^`]*\))`", " ".join(shown.stderr.split()))
        assert hasattr(tracking.ChangeTracking, re.split(r"[.(]", call.replace("(PATH)", ""))[1])
        return
    new = named[-1].split()
    assert any(" ".join(new[:size]) in ALL for size in (1, 2)), shown.stderr
    assert "[" not in named[-1], "typed as it is shown"


@pytest.mark.parametrize(("words", "opts"), [pair for pair in BEFORE if pair[0] in ALL])
def test_an_option_that_is_gone_is_answered_with_the_new_one(words: str, opts: str) -> None:
    command = ALL[words]
    required = [kind_of(command.takes).lower()] if command.takes and not command.takes.startswith("[") else []
    for option in opts.split():
        if option in options_of(command) or option in {
            each for o in command.params for each in o.secondary_opts
        }:
            continue
        shown = run(*words.split(), *required, option, "x")
        assert shown.exit_code == 2
        assert "any more. Write " in " ".join(shown.stderr.split()), (option, shown.stderr)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("sync", "sales.yml"), "mergerepl sync -f sales.yml"),
        (("apply", "sales.yml", "--dry-run"), "mergerepl apply -f sales.yml --dry-run"),
        (("status", "./hq", "--check"), "mergerepl status -f ./hq --check"),
        (("conflicts", "show", "./hq", "3f2a"), "mergerepl conflicts show -f ./hq 3f2a"),
        (("row", "/data/hq", "--key", "id=1"), "mergerepl row -f /data/hq --key id=1"),
        (("cdc", "show", "./shop"), "mergerepl cdc show -f ./shop"),
    ],
)
def test_a_place_where_a_name_should_be_is_answered_with_the_command(
    arguments: tuple[str, ...], named: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert f"`{named}`" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", ["dashboard -o", "tracking enumerate hq -o", "agent run --metrics-file"])
def test_results_go_to_this_machine(words: str) -> None:
    shown = run(*words.split(), "s3://lake/x")
    assert (shown.exit_code, "no path of this machine" in shown.stderr) == (2, True)


def commands_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands that a text names, with their options."""
    for line in re.findall(r"`mergerepl ([a-z][^`\n]*)`", text):
        words = re.sub(r"\{[^{}]*\}", "X", line).split()
        yield line, words


TEXTS = (
    *(
        path
        for name in ("mergerepl", "triggers", "enumeration", "conflict")
        for path in (ROOT / name).rglob("*.py")
    ),
    *(path for path in (ROOT / "docs").glob("*.md") if path.name != "cli.md"),
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md")),
)


def test_no_text_names_a_command_or_option_that_is_gone() -> None:
    # One test of all files: as a test each they took longer to begin and end than to run.
    lines = [
        (file.name, line, words)
        for file in TEXTS
        if file.name != "words.py"
        for line, words in commands_of(file.read_text(encoding="utf-8"))
    ]
    assert len(lines) > 400
    assert [(name, line) for name, line, words in lines if not is_known(words)] == []


def is_known(words: list[str]) -> bool:
    """Whether words are a group, or a command with options that it has."""
    beginnings = [" ".join(words[:size]) for size in (3, 2, 1)]
    path = next((each for each in beginnings if each in ALL), None)
    if path is None:
        groups = {" ".join(words.split()[:size]) for words in ALL for size in (1, 2)}
        return not groups.isdisjoint(beginnings) or words[0] in ("help", "COMMAND")
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    secondary = {each for option in ALL[path].params for each in option.secondary_opts}
    return used <= {*options_of(ALL[path]), *GENERAL, *secondary}


HEAVY = (
    "pyspark",
    "delta",
    "pyarrow",
    "pandas",
    "numpy",
    "deltalake",
    "pydantic",
    "obstore",
    "mergerepl.model.results",
)


@pytest.mark.parametrize(
    ("typed", "offered"), [("sy", "sync"), ("sync ", "north"), ("row ord", "orders"), ("conflicts l", "list")]
)
def test_completion_offers_commands_and_names_of_the_file(tmp_path: Path, typed: str, offered: str) -> None:
    (tmp_path / "mergerepl.yml").write_text(
        "publication: sales\npublisher: ./hq\narticles:\n  - {name: orders, key: [id]}\n"
        "subscriptions:\n  - {subscriber: ./north}\n"
    )
    script = (
        "import sys\nfrom mergerepl.cli.main import main\n"
        "try:\n    main(prog_name='mergerepl', complete_var='_MERGEREPL_COMPLETE')\n"
        f"finally:\n    assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
    )
    typed = f"mergerepl {typed}"
    words = typed.split(" ")
    environment = {
        "_MERGEREPL_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert f"plain,{offered}" in done.stdout.splitlines(), done.stderr
    assert not done.stderr
    # Alone it takes 0.2 s; here others may use the machine.
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    assert "_MERGEREPL_COMPLETE" in run("completion", shell).output
    assert run("completion", "csh").exit_code == 2

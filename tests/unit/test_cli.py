"""The command line over in-memory public objects: arguments in, output and exit code out. No Spark."""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import types
from dataclasses import replace
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from mergerepl import Listing, errors
from mergerepl.cli.main import COMMANDS, main
from mergerepl.conflicts.selection import Conflicts
from mergerepl.model import replica_status, results
from mergerepl.model.conflicts import ConflictRecord
from mergerepl.model.tasks import Captured, ValidationResult
from mergerepl.monitoring.doctor import Check, CheckStatus
from mergerepl.project import Project
from mergerepl.replicas import Replica

COUNTS = results.PhaseCounts(inserts=2, updates=1, deletes=0, conflicts=1)
IDLE = results.SessionResult("sales", "north", "nothing_to_do", duration_s=0.4)
DONE = replace(
    IDLE,
    status="succeeded",
    upload=COUNTS,
    articles=(results.ArticleCounts("orders", COUNTS, results.PhaseCounts()),),
)
DIFFERENT = results.ArticleValidation(
    "orders", "checksum", 3, 3, 1, (results.KeyDifference({"order_id": "7"}, "different"),)
)
EQUAL = results.ArticleValidation("orders", "checksum", 3, 3, 0)
CONFLICT = ConflictRecord(
    conflict_id="c1",
    publication="sales",
    article="orders",
    rowguid="00000000-0000-0000-0000-000000000007",
    key={"order_id": 7},
    conflict_type=1,
    reason_code=1,
    reason_text="The same row was changed at both sides.",
    origin_datasource="north",
    winner="hq",
    created=datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC),
    losing_row={"order_id": 7, "amount": 5},
    winning_row={"order_id": 7, "amount": 9},
)


class Api:
    """Returns the answers that a test sets, and keeps the calls."""

    def __init__(self):
        self.calls = []
        self.answers = {}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args, progress=None, **options):
            self.calls.append((name, args, options))
            if progress is not None:
                progress.step(name, article="orders")
            answer = self.answers[name]
            if isinstance(answer, list):
                answer = answer.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def api(monkeypatch):
    fake = Api()
    of_project = ("sync", "apply", "pending", "history", "capture", "validate")
    for kind, names in ((Project, of_project), (Replica, ("row", "tune"))):
        for name in names:

            @functools.wraps(getattr(kind, name))
            def call(place, *args, name=name, **options):
                return getattr(fake, name)(*args, **options)

            monkeypatch.setattr(kind, name, call)

    def ask(chosen, **options):
        return fake.conflict_records(chosen=chosen.chosen, **options)

    monkeypatch.setattr(Conflicts, "list", ask)
    return fake


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def commands(group=main, path=()):
    """Every command with its words."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))


ALL_COMMANDS = [pytest.param(words, command, id=" ".join(words)) for words, command in commands()]


@pytest.mark.parametrize(("words", "command"), ALL_COMMANDS)
def test_every_command_has_help_with_an_example_of_itself(words, command):
    shown = run(*words, "--help")
    assert shown.exit_code == 0
    assert "Example:\n    mergerepl " + " ".join(words) in shown.output


def test_every_example_of_every_help_parses(hq):
    lines = [
        line for command in (main, *(each.values[1] for each in ALL_COMMANDS)) for line in examples(command)
    ]
    assert len(lines) > 120
    for line in lines:
        words, found = shlex.split(line)[1:], main
        while isinstance(found, click.Group):
            found = found.get_command(click.Context(found), words.pop(0))
            assert found is not None, line
        found.make_context(found.name, words, help_option_names=["-h", "--help"])


def examples(command):
    """The lines of a command's example, without what the first help says of each."""
    return [line.split("   ")[0] for line in command.help.split("Example:\n")[1].strip().splitlines()]


def test_help_lists_every_command_by_task():
    shown = run("--help").output
    assert [task for task in COMMANDS if task and f"{task}:" in shown] == list(filter(None, COMMANDS))
    assert all((f"\n  {name} " in shown) is bool(task) for task, names in COMMANDS.items() for name in names)


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("sync",),
        ("sync", "--frobnicate"),
        ("sync", "-f", "hq", "--direction", "sideways"),
        ("sync", "-f", "hq", "--interval", "soon"),
        ("sync", "-f", "hq", "--interval", "0s"),
        ("row", "-f", "hq"),
        ("row", "orders", "-f", "hq"),
        ("row", "orders", "-f", "hq", "--key", "7"),
        ("row", "orders", "-f", "hq", "--key", "a=1", "--key", "a=2"),
        ("history", "-f", "hq", "--limit", "0"),
        ("history", "-f", "hq", "-f", "north"),
        ("conflicts", "show", "-f", "hq"),
        ("conflicts", "list", "-f", "hq", "--count-by", "week"),
        ("conflicts", "list", "-f", "hq", "--from", "5"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2_and_calls_nothing(api, hq, arguments):
    for extra in ((), ("--json",)):
        shown = run(*arguments, *extra)
        assert shown.exit_code == 2
        assert api.calls == []
    assert json.loads(shown.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("snyc", "hq"), "No such command 'snyc'. Did you mean 'sync'?"),
        (("frobnicate", "hq"), "No such command 'frobnicate'."),
        (("conflicts", "lsit", "hq"), "No such command 'lsit'. Did you mean 'list'?"),
        (("--limit", "5", "history"), "as in `mergerepl history … --limit`."),
        (("conflicts", "--limit", "5", "list"), "as in `mergerepl conflicts list … --limit`."),
        (("--frobnicate", "status", "hq"), "No such option '--frobnicate'."),
    ],
    ids=" ".join,
)
def test_a_mistake_before_the_command_is_one_message_with_the_remedy(api, hq, arguments, says):
    shown = run(*arguments)
    message = json.loads(shown.stdout)["error"]["message"] if "--json" in arguments else shown.stderr.rstrip()
    assert (shown.exit_code, shown.output.count("rror: "), api.calls) == (2, "--json" not in arguments, [])
    assert message.endswith(says)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-f", "hq", "--json", "conflicts", "list"),
        ("conflicts", "-f", "hq", "--json", "list"),
        ("conflicts", "list", "-f", "hq", "--json"),
    ],
    ids=" ".join,
)
def test_general_options_work_before_and_after_the_command(api, hq, arguments):
    api.answers["conflict_records"] = Listing()
    assert json.loads(run(*arguments).stdout) == {"replica": str(hq), "total": 0, "conflicts": []}


def test_no_arguments_shows_the_help():
    assert "Synchronize:" in run().output
    assert run().exit_code == 2


def test_sync_passes_its_options_on(api, hq):
    api.answers["sync"] = results.SyncResult("sales", (IDLE,))
    shown = run(
        "sync",
        "north",
        "-f",
        "sales.yml",
        "--direction",
        "upload",
        "--validate",
        "checksum",
        "--engine",
        "auto",
    )
    assert shown.exit_code == 0
    assert shown.stdout == "north: nothing to do (0.4 s).\n"
    options = {
        "direction": "upload",
        "validate": "checksum",
        "validate_interval": None,
        "retries": 0,
        "dry_run": False,
        "engine": "auto",
        "streams": None,
        "skip_errors": (),
        "procedures": (),
    }
    assert api.calls == [("sync", ("north",), options)]


def test_a_session_that_ends_says_where_its_rows_are_and_what_to_do(hq, monkeypatch):
    given_up = results.GivenUp(
        "4f0c-1", "/hq/_mergerepl/unsent/4f0c-1", "No column v.", "Run `mergerepl sync`."
    )
    session = results.SessionResult("sales", "/north", "given_up", given_up=given_up)
    asked = []
    monkeypatch.setattr(Project, "abort", lambda _, session_id: asked.append(session_id) or session)
    unconfirmed = run("abort", "4f0c", "-f", "hq")
    assert (unconfirmed.exit_code, asked) == (2, [])
    assert "Say --yes" in unconfirmed.stderr
    shown = run("abort", "4f0c", "-f", "hq", "--yes")
    assert (shown.exit_code, asked) == (0, ["4f0c"])
    assert shown.stdout.splitlines() == [
        "Session 4f0c-1 is given up.",
        "It could not be finished: No column v.",
        "What it had staged is kept in '/hq/_mergerepl/unsent/4f0c-1'.",
        "Run `mergerepl sync`.",
    ]


def test_an_article_that_is_left_out_is_named_and_the_exit_code_is_1(api, hq):
    error = errors.RefusedArticlesError(
        ["x", "y"], [errors.ApplyError("X is bad."), errors.CaptureError("Y is gone.")]
    )
    session = results.SessionResult(
        "sales", "/north", "succeeded", refused=("x", "y"), error=error.details(), duration_s=1.0
    )
    api.answers["sync"] = results.SyncResult("sales", (session,))
    shown = run("sync", "-f", "hq")
    assert shown.exit_code == 1
    assert "/north: synchronized, uploaded 0, downloaded 0, but for x, y (1.0 s)." in shown.stdout
    assert "X is bad.\nY is gone." in shown.stderr
    session = json.loads(run("sync", "-f", "hq", "--json").stdout)["sessions"][0]
    assert session["refused"] == ["x", "y"]
    assert [each["message"] for each in session["error"]["articles"]] == ["X is bad.", "Y is gone."]


def test_a_replica_may_be_named_like_a_file(api, hq):
    (hq.parent / "old.yml").mkdir()
    api.answers["pending"] = ()
    assert run("pending", "-f", "old.yml").exit_code == 0
    assert api.calls == [("pending", (), {})]


TRANSIENT_FACTS = errors.LeaseError("held").details()
PERMANENT_FACTS = errors.ApplyError("broken").details()
FAILED = replace(IDLE, status="failed")


@pytest.mark.parametrize(
    ("sessions", "code"),
    [
        ((DONE, IDLE), 0),
        ((replace(DONE, validation=(EQUAL,)),), 0),
        ((replace(DONE, validation=(DIFFERENT,)),), 1),
        ((FAILED,), 1),
        ((replace(FAILED, error=PERMANENT_FACTS), IDLE), 1),
        ((replace(FAILED, error=TRANSIENT_FACTS), IDLE), 3),
        ((replace(FAILED, error=TRANSIENT_FACTS), replace(FAILED, error=PERMANENT_FACTS)), 1),
        ((replace(FAILED, error=TRANSIENT_FACTS), replace(DONE, validation=(DIFFERENT,))), 1),
        ((replace(DONE, error=PERMANENT_FACTS),), 1),
        ((replace(DONE, error=TRANSIENT_FACTS),), 3),
        ((), 0),
    ],
)
def test_exit_code_of_a_sync(api, hq, sessions, code):
    api.answers["sync"] = results.SyncResult("sales", sessions)
    assert run("sync", "-f", "hq").exit_code == code
    assert run("sync", "-f", "hq", "--json").exit_code == code


def test_each_error_of_several_sessions_is_said_once_on_standard_error(api, hq):
    held, broken = replace(FAILED, error=TRANSIENT_FACTS), replace(FAILED, error=PERMANENT_FACTS)
    api.answers["sync"] = results.SyncResult("sales", (held, IDLE, broken, held, FAILED))
    shown = run("sync", "-f", "hq", "--quiet")
    assert shown.stderr.splitlines() == [
        "Error: held",
        "Error: broken",
        "Error: The session failed; the reason was not kept.",
    ]
    assert "held" not in shown.stdout
    assert shown.stdout.count("failed after") == 4
    in_json = run("sync", "-f", "hq", "--json")
    assert (in_json.stderr, len(json.loads(in_json.stdout)["sessions"])) == ("", 5)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("no"), 2),
        (errors.ApplyError("no", article="orders"), 1),
        (errors.LeaseError("held by 42"), 3),
        (errors.CommitConflictError("again"), 3),
        (ZeroDivisionError("oops s3://k:secret@b/x"), 1),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(api, hq, error, code, monkeypatch):
    monkeypatch.delenv("MERGEREPL_DEBUG", raising=False)
    api.answers["sync"] = error
    shown = run("sync", "-f", "hq", "--quiet")
    assert shown.exit_code == code
    assert (shown.stdout, shown.stderr.count("\n")) == ("", 1)
    assert shown.stderr.startswith("Error: ")
    assert "Traceback" not in shown.output
    assert "secret" not in shown.output
    in_json = run("sync", "-f", "hq", "--json")
    assert in_json.exit_code == code
    assert in_json.stderr == ""
    assert json.loads(in_json.stdout)["error"]["transient"] is (code == 3)


def test_an_error_shows_no_control_characters(api, hq):
    api.answers["sync"] = errors.ApplyError("row \x1b[31mred\nsecond line")
    assert run("sync", "-f", "hq", "--quiet").stderr == "Error: row \\x1b[31mred\nsecond line\n"


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_traceback_is_shown_on_request(api, hq, way):
    arguments = ["--verbose"] if way == "option" else []
    environment = {"MERGEREPL_DEBUG": "1"} if way == "environment" else {}
    fake = "import mergerepl.project as p; p.Project.pending = lambda *r: 1 / 0;"
    fake += "from mergerepl.cli.main import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", fake, "pending", "-f", "hq", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "Error: ZeroDivisionError: division by zero. This is a bug" in shown.stderr


def test_a_wrong_setting_is_exit_2(monkeypatch):
    monkeypatch.setenv("MERGEREPL_LOG_LEVEL", "LOUD")
    shown = run("--version")
    assert shown.exit_code == 2
    assert "MERGEREPL_LOG_LEVEL" in shown.stderr


def test_progress_goes_to_standard_error_and_can_be_turned_off(api, hq):
    details = results.CaptureResult("hq", (results.ArticleCapture("orders", 1, 2, 3, 4, 6),))
    api.answers["capture"] = (Captured("merge", "hq", 6, details=details),)
    shown = run("capture", "-f", "hq")
    assert "capture orders" in shown.stderr
    assert "5 to 6" in shown.stdout
    assert run("capture", "-f", "hq", "--quiet").stderr == ""
    assert (
        json.loads(run("capture", "-f", "hq", "--json").output)["captured"][0]["details"]["articles"][0][
            "deletes"
        ]
        == 3
    )


def test_tune_says_what_was_written_and_why(api, hq):
    why = "files of up to 300 MiB"
    tuned = results.ArticleTuning(
        "sales", "orders", "t", "tuned", (why,), {"delta.x": "3"}, 1, 300 * 1024**2, 3, 2**20, 7
    )
    api.answers["tune"] = results.TuneResult("hq", (tuned,), False, 1.0)
    shown = run("tune", "orders", "-f", "hq", "--file-size", "64mb")
    assert api.calls[0][:2] == ("tune", ("orders",))
    terms = api.calls[0][2]
    assert (terms["file_size"], "dry_run" in terms) == (64 * 1024**2, False)
    assert re.search(r"orders +tuned +1 +300\.0 +3 +1\.0", shown.stdout)
    assert why not in shown.stdout, "it is so no more"
    assert "orders: delta.x = 3.\n" in shown.stdout
    assert json.loads(run("tune", "-f", "hq", "--json").stdout)["articles"][0]["version"] == 7
    assert "Nothing was changed" in run("tune", "-f", "hq", "--dry-run").stdout
    api.answers["tune"] = results.TuneResult("hq", (replace(tuned, status="unchanged"),), False, 1.0)
    assert f"orders: {why}.\norders: Delta found nothing to write again.\n" in run("tune", "-f", "hq").stdout


def test_conflicts_show_asks_once_for_the_rows_of_all(api, hq):
    api.answers["conflict_records"] = Listing((CONFLICT, replace(CONFLICT, conflict_id="c2")))
    assert "Conflict c2" in run("conflicts", "show", "-f", "hq", "--table", "orders").stdout
    ((_, _, options),) = api.calls
    assert (options["with_rows"], options["limit"]) == (True, 20)


@pytest.mark.parametrize("words", [("list",), ("show", "--table", "orders")], ids=" ".join)
def test_conflicts_beyond_the_limit_are_counted(api, hq, words):
    for options, limit, total in (((), 20, 1), (("--limit", 1), 1, 7)):
        api.answers["conflict_records"] = Listing.limited((CONFLICT,), limit, lambda: 7)
        shown = run("conflicts", *words, "-f", "hq", *options, "--json")
        assert json.loads(shown.stdout)["total"] == total
    assert "6 older not shown" in run("conflicts", *words, "-f", "hq", "--limit", 1).stdout


def test_row_parses_the_key(api, hq):
    key = {"order_id": "7", "note": "a=b"}
    api.answers["row"] = replica_status.RowInfo("sales", "orders", key, "guid")
    assert run("row", "orders", "-f", "hq", "--key", "order_id=7", "--key", "note=a=b").exit_code == 0
    assert api.calls == [("row", ("orders",), {"key": key})]


AWAY = replace(EQUAL, error=TRANSIENT_FACTS)
BROKEN = replace(EQUAL, error=PERMANENT_FACTS)


@pytest.mark.parametrize(
    ("answers", "code"),
    [((EQUAL,), 0), ((DIFFERENT,), 1), ((EQUAL, AWAY), 3), ((AWAY, DIFFERENT), 1), ((AWAY, BROKEN), 1)],
)
def test_validate_is_exit_1_if_replicas_differ_and_3_if_some_are_out_of_reach(api, hq, answers, code):
    rows = (replace(answer, subscriber=f"replica {number}") for number, answer in enumerate(answers))
    api.answers["validate"] = ValidationResult(Listing(rows))
    assert run("validate", "-f", "sales.yml").exit_code == code
    shown = run("validate", "-f", "sales.yml", "--level", "rowcount", "--json")
    assert shown.exit_code == code
    assert json.loads(shown.stdout)["ok"] is (code == 0)
    assert [call[2]["level"] for call in api.calls] == ["checksum", "rowcount"]


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_is_exit_1_if_something_has_to_be_mended(hq, monkeypatch, status, code):
    fake = types.ModuleType("mergerepl.monitoring.doctor")
    asked = []
    check = Check("java", CheckStatus(status), "21", "install")
    fake.checks = lambda roots, **chosen: asked.append((list(roots), chosen)) or [check]
    monkeypatch.setitem(sys.modules, "mergerepl.monitoring.doctor", fake)
    monkeypatch.setattr("mergerepl.monitoring.doctor", fake, raising=False)
    shown = run("doctor", "-f", "hq", "-f", "sales.yml", "--start-engine")
    assert shown.exit_code == code
    assert "java: install" in shown.stdout
    assert run("doctor", "-f", "hq", "--fix").exit_code == code
    roots = [str(hq), str(hq.parent / "north")]
    assert asked == [
        (roots, {"start_engine": True, "mend": False}),
        ([str(hq)], {"start_engine": False, "mend": True}),
    ]


@pytest.mark.parametrize(
    "words", ["abort {x} --yes", "cdc enable {x} --dry-run", "tracking forget {x} --yes"]
)
def test_a_brace_in_a_name_is_text(hq, words):
    shown = run(*words.split(), "-f", "hq")
    assert shown.exit_code in (1, 2)
    assert "bug" not in shown.stderr


def test_demo_passes_its_folder(hq, monkeypatch):
    fake = types.ModuleType("mergerepl.cli.demo.story")
    fake.run = lambda directory, emit: emit(f"story in {directory}")
    monkeypatch.setitem(sys.modules, "mergerepl.cli.demo.story", fake)
    monkeypatch.setattr("mergerepl.cli.demo.story", fake, raising=False)
    assert run("demo").stdout == "story in demo\n"
    assert json.loads(run("demo", "there", "--json").stdout) == {"text": "story in there"}

"""The command line in processes of its own, over a fake session: rounds of `--interval`, closed pipes, start-up."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

FAKE = """
import sys, time
import mergerepl.project, mergerepl.sessions
from mergerepl.errors import ApplyError, ConfigurationError, LeaseError, StoreError
from mergerepl.model.results import SessionResult, SyncResult

rounds = []
def sync(target, *, progress, **options):
    rounds.append(target)
    progress.step("sync")
    print(f"began {len(rounds)}", file=sys.stderr, flush=True)
    end = time.monotonic() + SESSION_S
    while time.monotonic() < end:
        # A signal that comes just before a sleep does not end it.
        time.sleep(min(0.1, SESSION_S))
    if len(rounds) == GONE:
        raise StoreError("Replica '/nowhere' does not exist.", replica="/nowhere")
    if len(rounds) in AWAY:
        error = ConfigurationError("'/nowhere' is no replica.", replica="/nowhere").details()
        return SyncResult("sales", tuple(SessionResult("sales", name, "failed", error=error) for name in "ab"))
    if len(rounds) == 2:
        raise LeaseError("The replica is held by process 42.")
    if len(rounds) == LAST and BROKEN:
        error = ApplyError("The disk is full.").details()
        broken = [SessionResult("sales", name, "failed", error=error) for name in BROKEN]
        others = [SessionResult("sales", name, "nothing_to_do") for name in {"north", "south"} - set(BROKEN)]
        return SyncResult("sales", (*others, *broken))
    if len(rounds) == LAST:
        raise ApplyError("The disk is full.")
    return SyncResult("sales", (SessionResult("sales", "north", "nothing_to_do"),))

mergerepl.sessions.synchronize = mergerepl.project.synchronize = sync
from mergerepl.agents import loop
from mergerepl.cli.main import main
loop.LOOK_S = 0.05
repeat = loop.repeat
loop.repeat = lambda *given, interval_s, **named: repeat(
    *given, interval_s=0.05 if interval_s == 1 else interval_s, **named
)
"""


def start(
    *arguments, session_s=0.05, last=99, broken=(), away=(), gone=None, after="main()", stdout=subprocess.PIPE
):
    given = f"SESSION_S, LAST, BROKEN, AWAY, GONE = {session_s}, {last}, {broken}, {away}, {gone}"
    text = f"{given}\n{FAKE}\n{textwrap.dedent(after)}"
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in a shell's background, Ctrl-C is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_rounds_go_on_after_a_transient_error_and_end_at_a_permanent_one(hq):
    said, complaints = start("sync", "-f", "hq", "--interval", "1s", last=3).communicate(timeout=60)
    assert len(said.splitlines()) == 1
    assert "north: nothing to do" in said
    assert "held by process 42. Trying again." in complaints
    assert complaints.endswith("Error: The disk is full.\n")
    assert len(complaints.splitlines()) == 3 + 2, "the fake's own lines and the two errors"


@pytest.mark.parametrize(("gone", "rounds"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 4)])
def test_rounds_wait_for_a_replica_that_was_there_once(hq, gone, rounds):
    """E13: a store that vanished may return; a path that never led anywhere is a mistake."""
    process = start("sync", "-f", "hq", "--interval", "1s", gone=gone, last=4)
    complaints = process.communicate(timeout=60)[1]
    assert complaints.count("began") == rounds
    assert ("'/nowhere' does not exist. Trying again." in complaints) == (rounds > 1)
    assert process.returncode == 1


@pytest.mark.parametrize(("away", "rounds"), [pytest.param((1,), 1, marks=pytest.mark.slow), ((3, 4), 5)])
def test_rounds_wait_while_all_of_several_sessions_miss_a_replica_that_was_there_once(hq, away, rounds):
    process = start("sync", "-f", "hq", "--interval", "1s", away=away, last=5)
    complaints = process.communicate(timeout=60)[1]
    assert complaints.count("began") == rounds
    assert process.returncode == 1


@pytest.mark.parametrize("extra", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_rounds_end_when_all_of_several_sessions_failed_for_good(hq, extra):
    process = start("sync", "-f", "hq", "--interval", "1s", *extra, last=1, broken=("north", "south"))
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The disk is full" in said
    assert (len(said.splitlines()), complaints) == (1, "began 1\n")


def test_rounds_go_on_while_one_of_several_sessions_goes_well(hq):
    """A subscriber that is out of reach does not keep the others from being synchronized."""
    process = start("sync", "-f", "hq", "--interval", "1s", last=1, broken=("south",))
    said = [process.stdout.readline()]
    while "north: nothing to do" not in said[-1] or len(said) < 2:
        said.append(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "The disk is full" in said[0]


def test_rounds_in_json_are_one_object_per_line(hq):
    process = start("sync", "-f", "hq", "--interval", "1s", "--json", last=3)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    first, second, third = (json.loads(line) for line in said.splitlines())
    assert first["sessions"][0]["status"] == "nothing_to_do"
    assert second["error"]["transient"] is True
    assert third["error"]["transient"] is False
    assert first["time"].endswith("Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_rounds_after_the_current_session(hq, number):
    process = start("sync", "-f", "hq", "--interval", "1h", session_s=0.5)
    while "began" not in process.stderr.readline():
        pass
    process.send_signal(number)
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "north: nothing to do" in said, "the session was finished and reported"
    assert "Traceback" not in complaints


def test_a_signal_between_sessions_ends_the_rounds(hq):
    process = start("sync", "-f", "hq", "--interval", "1h")
    assert "nothing to do" in process.stdout.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert time.monotonic() - began < 30
    process.communicate()


def test_a_second_signal_ends_the_rounds_at_once(hq):
    process = start("sync", "-f", "hq", "--interval", "1h", session_s=300)
    while "began" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "the first one waits for the session"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.communicate()


@pytest.mark.parametrize(
    ("extra", "listens"),
    [
        ((), True),
        (("--no-agent",), False),
        pytest.param(("--procedures", "json"), False, marks=pytest.mark.slow),
    ],
)
def test_between_rounds_the_syncs_of_others_are_run(hq, extra, listens):
    (hq / "orders").mkdir()
    # Its sessions are a fake's: no engine is started for them.
    after = """
        from mergerepl.agents import server
        server.warm_up = lambda: None
        main()
    """
    process = start("sync", "-f", "hq", "--interval", "1h", *extra, after=after)
    process.stdout.readline()
    assert (hq / ".mergerepl.agent.sock").exists() is listens
    if listens:
        words = [sys.executable, "-m", "mergerepl", "sync", "-f", "hq"]
        handed_over = subprocess.run(words, capture_output=True, text=True, timeout=60)
        # The fake's second session finds the replica held.
        assert handed_over.returncode == 3
        assert "sync\nbegan 2\nError: The replica is held by process 42.\n" in handed_over.stderr
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=60)
    assert (process.returncode, said, complaints) == (0, "", "began 1\n")
    assert not (hq / ".mergerepl.agent.sock").exists()


@pytest.mark.parametrize("extra", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_ctrl_c_is_a_message_and_130(hq, extra):
    process = start("sync", "-f", "hq", *extra, session_s=300)
    while "began" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    message = json.loads(said)["error"]["message"] if extra else complaints
    assert "Interrupted. Run the command again" in message
    assert "Traceback" not in complaints


def test_sigterm_ends_a_single_sync_at_once(hq):
    """As a kill does: the next run finishes what was staged."""
    process = start("sync", "-f", "hq", session_s=300)
    while "began" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=60)
    assert (process.returncode, said, complaints) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize("extra", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_a_closed_pipe_is_no_traceback(hq, extra):
    process = start("sync", "-f", "hq", "--quiet", *extra, session_s=0.5)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == "began 1\n"
    process.stderr.close()


FULL = (
    "Error: Standard output cannot be written: No space left on device. What was done until then stays done"
)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "name_length"),
    [
        (("--help",), 1),
        # Written as a whole at the end, and in parts.
        (("sync", "-f", "hq", "--quiet"), 1),
        pytest.param(("sync", "-f", "hq", "--quiet"), 100_000, marks=pytest.mark.slow),
        (("sync", "-f", "hq", "--quiet", "--json"), 100_000),
        pytest.param(("sync", "-f", "hq", "--interval", "1s"), 1, marks=pytest.mark.slow),
        (("status", "-f", "gone", "--json"), 1),
    ],
    ids=str,
)
def test_output_to_a_full_disk_is_no_bug(hq, arguments, name_length):
    after = f"name = 'n' * {name_length}"
    after += (
        "\ndone = SyncResult('sales', (SessionResult('sales', name, 'nothing_to_do'),))"
        "\nmergerepl.project.synchronize = mergerepl.sessions.synchronize = lambda *_, **__: done"
    )
    with open("/dev/full", "w") as full:
        process = start(*arguments, after=after + "\nmain()", stdout=full)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaints.startswith(FULL)
    assert len(complaints.splitlines()) == 1


@pytest.mark.parametrize("closed", ["sys.stdout", "sys.stderr"])
def test_a_closed_stream_is_nobodys_error(hq, closed):
    process = start("sync", "-f", "hq", after=f"{closed} = None\nmain()")
    said, complaints = process.communicate(timeout=60)
    assert (process.returncode, "rror" in complaints) == (0, False), complaints
    assert ("nothing to do" in said) is (closed == "sys.stderr")


HEAVY = {
    "rich",
    "pydantic",
    "pandas",
    "pyarrow",
    "numpy",
    "pyspark",
    "delta",
    "deltalake",
    "networkx",
    "obstore",
}


@pytest.mark.parametrize("arguments", [("--help",), ("sync", "-f", "hq", "--json")], ids=" ".join)
def test_a_quick_command_loads_nothing_heavy(hq, arguments):
    after = """
    try:
        main()
    finally:
        print(" ".join(sys.modules), file=sys.stderr)
    """
    process = start(*arguments, after=after)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert {name.split(".")[0] for name in complaints.split()} & HEAVY == set()


LOST_GATEWAY = """
import socket, sys, threading
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from mergerepl.cli.main import log_to_stderr

log_to_stderr(sys.argv[1])
server = socket.create_server(("127.0.0.1", 0))

def serve():
    while True:
        connection, _ = server.accept()
        connection.recv(1000)
        connection.close()

threading.Thread(target=serve, daemon=True).start()
gateway = JavaGateway(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
try:
    gateway.jvm.System.nanoTime()
except Py4JError:
    print("raised")
"""


def test_what_is_sent_to_the_engine_is_never_logged():
    """Its secret is: a reader of it could run code in the JVM."""
    code = "\n".join(
        (
            "import logging",
            "from mergerepl.cli.main import log_to_stderr",
            "log_to_stderr('DEBUG')",
            "logging.getLogger('py4j.clientserver').debug('the secret')",
            "logging.getLogger('mergerepl').debug('the rest')",
        )
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ("the secret" in run.stderr, "the rest" in run.stderr) == (False, True)


@pytest.mark.parametrize(("level", "is_shown"), [("WARNING", False), ("INFO", True)])
def test_what_pyspark_raises_is_not_logged_too(level, is_shown):
    """It logs each error of a query as JSON, with a traceback: with --verbose only."""
    code = "\n".join(
        (
            "from mergerepl.cli.main import log_to_stderr",
            f"log_to_stderr({level!r})",
            "from pyspark.logger import PySparkLogger",
            "for name in ('DataFrameQueryContextLogger', 'SQLQueryContextLogger'):",
            "    PySparkLogger.getLogger(name).exception('no such column', errorClass='X')",
        )
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    for name in ("DataFrame", "SQL"):
        assert (f"{name}QueryContextLogger: no such column" in run.stderr) is is_shown
    assert is_shown or "no such column" not in run.stderr


@pytest.mark.parametrize(("level", "is_shown"), [("WARNING", False), ("INFO", True)])
def test_an_engine_that_ends_is_not_reported_twice(level, is_shown):
    """py4j logs a traceback of what it raises: with --verbose only."""
    run = subprocess.run(
        [sys.executable, "-c", LOST_GATEWAY, level], capture_output=True, text=True, check=True
    )
    assert run.stdout == "raised\n"
    assert ("Traceback" in run.stderr) is is_shown

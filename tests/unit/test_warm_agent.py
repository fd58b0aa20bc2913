"""A command that an agent runs for another process: what they say to each other, and who ends when. No Spark."""

import json
import logging
import os
import queue
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mergerepl.agents import agent_socket
from mergerepl.agents import client as agent_client
from mergerepl.agents.agent_socket import LONGEST_REQUEST, SOCKET, Messages, connect, identity, listen
from mergerepl.agents.client import agent_roots, hand_over
from mergerepl.agents.server import CommandServer
from mergerepl.cli.report.table import Table
from mergerepl.errors import AgentLostError
from mergerepl.model.progress import NoProgress, Progress
from tests.waiting import waited

WAIT_S = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that is not empty."""
    (tmp_path / "hq" / "orders").mkdir(parents=True)
    return tmp_path / "hq"


class Agent:
    """An agent with a fake command, and the commands it ran."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ran: list[str] = []
        self.cwds: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.began = threading.Event()
        self._is_ended = False
        self._desk = CommandServer([root], self._run)

    def _run(self, arguments: list[str], progress: Progress) -> int:
        # A command of this process would print, too: pytest looks at its standard output meanwhile.
        self.ran.append(arguments[-1])
        self.cwds.append(os.getcwd())
        self.began.set()
        with progress:
            progress.step("capture", article="orders", rows=3)
            assert self.may_go_on.wait(WAIT_S)
        logging.getLogger().handlers = [logging.StreamHandler()]
        logging.getLogger("mergerepl").warning("beware")
        Table(("a",), [("1",)]).write(sys.stdout)
        sys.stdout.write("café\n")
        return 7

    def _work(self) -> None:
        while not self._is_ended:
            self._desk.serve(0.02)

    @contextmanager
    def runs(self) -> Iterator["Agent"]:
        with self._desk:
            worker = threading.Thread(target=self._work)
            worker.start()
            try:
                yield self
            finally:
                self.may_go_on.set()
                self._is_ended = True
                worker.join(WAIT_S)


@pytest.fixture
def agent(root: Path) -> Iterator[Agent]:
    with Agent(root).runs() as running:
        yield running


def wait_for_turn(messages: Messages) -> None:
    assert messages.receive(timeout_s=WAIT_S) == {"ready": True}


@contextmanager
def asking(root: Path, name: str, **other: object) -> Iterator[Messages]:
    """Ask an agent to run a command."""
    connection = connect(root, timeout_s=WAIT_S)
    assert connection is not None
    with connection:
        messages = Messages(connection)
        request = {"arguments": ["sync", "-f", name], "cwd": "/", "terminal": False, "identity": identity()}
        messages.send(**{**request, **other})
        if not other.keys() & {"identity", "arguments", "cwd"}:
            assert messages.receive(timeout_s=WAIT_S) == {"heard": True}
        yield messages


def rest(messages: Messages) -> list[dict]:
    found = []
    while not found or "exit" not in found[-1]:
        found.append(messages.receive(timeout_s=WAIT_S))
    return found


def test_a_command_is_shown_to_its_client_with_its_exit_code(agent: Agent) -> None:
    with asking(agent.root, "first") as messages:
        wait_for_turn(messages)
        messages.send(go=True)
        found = rest(messages)
    assert found[:2] == [{"step": ["capture", "orders", 3]}, {"shown": True}]
    text = {name: "".join(each.get(name, "") for each in found) for name in ("out", "err")}
    assert text == {"out": "a\n1\ncafé\n", "err": "beware\n"}
    assert found[-1] == {"exit": 7}
    assert agent.cwds == ["/"]
    assert os.getcwd() != "/"


def test_a_table_is_drawn_by_the_client_that_knows_its_terminal(agent: Agent) -> None:
    with asking(agent.root, "first", terminal=True) as messages:
        wait_for_turn(messages)
        messages.send(go=True)
        (table,) = [each["table"] for each in rest(messages) if "table" in each]
    assert table == {"headings": ["a"], "rows": [["1"]], "title": "", "styles": {}}


REFUSED = {
    **{name: ({"identity": {**identity(), name: "another"}}, name) for name in identity()},
    "a later agent's": ({"identity": {**identity(), "more": 1}}, "more"),
    "no identity": ({"identity": None}, ""),
    "no arguments": ({"arguments": "sync"}, ""),
    "too much": ({"cwd": "x" * LONGEST_REQUEST}, ""),
}


@pytest.mark.parametrize(("request_", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_done_otherwise_here_is_refused(agent: Agent, request_: dict, reason: str) -> None:
    try:
        with asking(agent.root, "first", **request_) as messages:
            answer = messages.receive(timeout_s=WAIT_S)
        assert set(answer) == {"refused"}
        assert reason in answer["refused"]
    except ConnectionError:
        # It did not read to the end.
        assert not reason
    assert agent.ran == []


@pytest.mark.parametrize("sent", [b"", b"\n", b"[]\n", b"{\n", b"\xff\n", b"{}\n"])
def test_an_agent_goes_on_after_what_is_no_request(agent: Agent, sent: bytes) -> None:
    connection = connect(agent.root, timeout_s=WAIT_S)
    assert connection is not None
    connection.sendall(sent)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1000):
        pass
    connection.close()
    with asking(agent.root, "next") as messages:
        wait_for_turn(messages)
    assert agent.ran == []


def test_commands_run_one_at_a_time_in_their_order(agent: Agent) -> None:
    agent.may_go_on.clear()
    with asking(agent.root, "first") as first, asking(agent.root, "second") as second:
        wait_for_turn(first)
        first.send(go=True)
        assert agent.began.wait(WAIT_S)
        with pytest.raises(TimeoutError):
            second.receive(timeout_s=0.2)
        agent.may_go_on.set()
        rest(first)
        wait_for_turn(second)
        second.send(go=True)
        rest(second)
    assert agent.ran == ["first", "second"]


def test_a_client_that_goes_away_before_its_turn_is_left_out_and_one_after_it_is_not_cut_short(
    agent: Agent,
) -> None:
    agent.may_go_on.clear()
    with asking(agent.root, "first") as first:
        wait_for_turn(first)
        first.send(go=True)
        assert agent.began.wait(WAIT_S)
        with asking(agent.root, "gone"):
            pass
    # Nobody is shown the first one any more.
    with asking(agent.root, "last") as last:
        agent.may_go_on.set()
        wait_for_turn(last)
        last.send(go=True)
        assert rest(last)[-1] == {"exit": 7}
    assert agent.ran == ["first", "last"]


def test_an_agent_warms_up_where_it_is_listened_to(root: Path) -> None:
    for listening in ([root], []):
        warm = threading.Event()
        with CommandServer(listening, lambda *_: 0, warm.set):
            assert warm.wait(WAIT_S if listening else 0.1) == bool(listening)


def test_an_agent_that_ends_lets_those_who_wait_run_themselves(root: Path) -> None:
    with ExitStack() as client:
        with CommandServer([root], lambda *_: 0) as desk:
            messages = client.enter_context(asking(root, "first"))
            waited(lambda: desk._waiting.qsize() == 1, seconds=WAIT_S, every_s=0.02)
        with pytest.raises(ConnectionError):
            messages.receive(timeout_s=WAIT_S)
    assert connect(root, timeout_s=1) is None
    assert os.listdir(root) == ["orders"]


# The client, with an agent that says what it is to say.


@contextmanager
def fake_agent(root: Path, *said: dict) -> Iterator["queue.Queue[dict]"]:
    """Listen, hear the request, say some messages, hear `go` after the last one if that is `ready`, and end."""
    heard: queue.Queue[dict] = queue.Queue()
    found = listen(root)
    assert found is not None

    def answer() -> None:
        connection, _ = found.listener.accept()
        with connection:
            messages = Messages(connection)
            heard.put(messages.receive(timeout_s=WAIT_S))
            for each in said:
                messages.send(**each)
            if said and "ready" in said[-1]:
                heard.put(messages.receive(timeout_s=WAIT_S))

    worker = threading.Thread(target=answer)
    worker.start()
    try:
        yield heard
    finally:
        worker.join(WAIT_S)
        found.close()


NOT_BEGUN = {
    "ends": (),
    "refuses": ({"refused": "no"},),
    "ends while it waits": ({"heard": True},),
    "says something else": ({"heard": True}, {"exit": 0}),
    "answers with something else": ({"exit": 0},),
}


@pytest.mark.parametrize("said", NOT_BEGUN.values(), ids=NOT_BEGUN)
def test_a_command_that_no_agent_begins_runs_itself(root: Path, said: tuple[dict, ...]) -> None:
    with fake_agent(root, *said):
        assert hand_over([root.parent / "gone", root], ["sync"], NoProgress()) is None


def test_a_command_that_an_agent_began_and_did_not_end_is_an_error(root: Path) -> None:
    with (
        fake_agent(root, {"heard": True}, {"ready": True}) as heard,
        pytest.raises(AgentLostError, match="the next sync finishes what was staged"),
    ):
        hand_over([root], ["sync", "--json"], NoProgress())
    assert heard.get()["arguments"] == ["sync", "--json"]
    assert heard.get() == {"go": True}


@pytest.mark.parametrize("where", ["is_same_user", "_is_ours"])
def test_the_agent_of_another_user_is_not_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    found = listen(root)
    assert found is not None
    monkeypatch.setattr(agent_socket, where, lambda *_: False)
    assert hand_over([root], ["sync"], NoProgress()) is None
    found.close()


def test_a_client_is_shown_that_it_waits(root: Path) -> None:
    with Agent(root).runs() as agent:
        agent.may_go_on.clear()
        with asking(root, "first") as first:
            wait_for_turn(first)
            first.send(go=True)
            assert agent.began.wait(WAIT_S)
            client = subprocess_client(root)
            waited(lambda: agent._desk._waiting.qsize() == 1, seconds=WAIT_S, every_s=0.02)
            assert client.stderr is not None
            waits = client.stderr.readline()
            agent.may_go_on.set()
        said, complaints = client.communicate(timeout=60)
    assert (client.returncode, said) == (7, "a\n1\ncafé\n")
    assert "wait for the agent, which is at work" in waits
    assert complaints.endswith("beware\n")


def subprocess_client(root: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "mergerepl", "sync", "-f", str(root), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "options", [("--no-agent",), ("--procedures", "json")], ids=["--no-agent", "procedures of its own"]
)
def test_a_command_runs_itself_where_it_says_so(agent: Agent, options: tuple[str, ...]) -> None:
    process = subprocess_client(agent.root, *options, "--json")
    said, _ = process.communicate(timeout=60)
    assert "is not a replica" in json.loads(said)["error"]["message"]
    assert (process.returncode, agent.ran) == (2, [])


# The socket.


def test_only_this_user_may_open_the_socket_and_any_path_is_short_enough(tmp_path: Path) -> None:
    root = tmp_path / ("d" * 200) / ("e" * 200)
    (root / "orders").mkdir(parents=True)
    umask = os.umask(0)
    try:
        found = listen(root)
    finally:
        assert os.umask(umask) == 0
    assert found is not None
    assert stat.S_IMODE((root / SOCKET).stat().st_mode) == 0o600
    connection = connect(root, timeout_s=1)
    assert connection is not None
    connection.close()
    found.close()
    assert os.listdir(root) == ["orders"]


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(root: Path) -> None:
    dead = listen(root)
    assert dead is not None
    dead.listener.close()
    assert connect(root, timeout_s=1) is None
    second = listen(root)
    assert second is not None
    assert listen(root) is None
    (root / SOCKET).unlink()
    third = listen(root)
    assert third is not None
    # Its end leaves what is not its own.
    second.close()
    connection = connect(root, timeout_s=1)
    assert connection is not None
    connection.close()
    third.close()
    os.close(dead.folder)


def test_what_is_no_socket_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / SOCKET).write_text("a user's")
    with CommandServer([tmp_path, tmp_path / "gone"], lambda *_: 0):
        assert connect(tmp_path, timeout_s=1) is None
    assert (tmp_path / SOCKET).read_text() == "a user's"
    assert [record.message.split(":")[0] for record in caplog.records] == [str(tmp_path)]


def test_a_folder_that_is_empty_stays_so(tmp_path: Path) -> None:
    """As where a store is not mounted: what looks for it takes the folder for one that is not there."""
    (tmp_path / "hq").mkdir()
    with CommandServer([tmp_path / "hq", tmp_path / "gone"], lambda *_: 0):
        assert os.listdir(tmp_path / "hq") == []


@pytest.mark.parametrize("publisher", ["./hq", "file://{}/hq", "'hq/'"])
def test_a_file_means_its_publisher(tmp_path: Path, publisher: str) -> None:
    (tmp_path / "hq").mkdir()
    file = tmp_path / "sales.yml"
    file.write_text(f"articles: 3\npublisher: {publisher.format(tmp_path)}\n")
    broken = tmp_path / "broken.yml"
    broken.write_text("publisher: [")
    (tmp_path / "other.yml").write_text("3")
    texts = [str(each) for each in (file, tmp_path / "hq", broken, tmp_path / "other.yml", tmp_path / "no")]
    assert list(map(Path, agent_roots(texts))) == [tmp_path / "hq"]


def test_an_agent_that_does_not_answer_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "_ANSWER_S", 0.1)
    found = listen(root)
    assert found is not None
    assert hand_over([root], ["sync"], NoProgress()) is None
    found.close()


def test_the_warm_up_and_the_worker_never_import_the_engine_at_once(root: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mergerepl.agents.server import CommandServer\n"
        "found = []\n"
        "warm = lambda: found.append('SQLContext' in vars(sys.modules['pyspark.sql']))\n"
        "with CommandServer([Path(sys.argv[1])], lambda *_: 0, warm):\n"
        "    import pyspark.sql\n"
        "while not found: pass\n"
        "assert found == [True]\n"
    )
    subprocess.run([sys.executable, "-c", code, str(root)], check=True, timeout=WAIT_S * 3)

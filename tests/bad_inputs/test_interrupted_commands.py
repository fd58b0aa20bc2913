"""Commands in processes of their own that are interrupted: no replica changes, none stays locked, no JVM stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import failpoints
from mergerepl.store import lease
from tests.bad_inputs.conftest import run, state_of
from tests.networks import Network

SYNC = ("sync", "north", "-f", "hq", "--quiet")


@pytest.fixture
def machine(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose Java never gets ready, but ends when its standard input does, as the engine's does."""
    network.add_rows("north", 9)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\nexec cat > /dev/null\n")
    java.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="21.0.1"\n')
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("MERGEREPL_JARS", str(java))
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    return tmp_path


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "mergerepl", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in a shell's background, Ctrl-C is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if is_so():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it took too long")


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        pytest.param(signal.SIGINT, 130, "Interrupted. Run the command again", id="SIGINT"),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, "", id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_103_a_sync_that_is_interrupted_before_it_wrote_leaves_no_trace(
    network: Network, machine: Path, number: int, code: int, says: str
) -> None:
    before = state_of(network.folder)
    process = started(network.folder, *SYNC, "--engine", "spark")
    until(lambda: (machine / "pid").exists() and (machine / "pid").read_text().endswith("\n"), process)
    assert lease.holder(network.root("north")) is not None
    process.send_signal(number)
    said, complaints = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "")
    # After an empty line, since the terminal shows ^C.
    assert complaints.strip().startswith(says)
    assert len(complaints.strip().splitlines()) == bool(says)
    java = int((machine / "pid").read_text())
    for _ in range(100):
        if not is_alive(java):
            break
        time.sleep(0.05)
    assert not is_alive(java)
    assert state_of(network.folder) == before
    if number == signal.SIGINT:
        assert list((machine / "scratch").iterdir()) == []


# A slow machine's progress is no complaint.
@pytest.mark.parametrize(
    "command", ["status --quiet", pytest.param("sync --dry-run --quiet", marks=pytest.mark.slow)]
)
def test_103_a_reader_that_has_gone_is_no_error_of_ours(network: Network, command: str) -> None:
    before = state_of(network.folder)
    process = started(network.folder, *command.split(), "-f", "hq")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as complaints:
        assert complaints.read() == ""
    assert process.wait(timeout=60) == 1
    assert state_of(network.folder) == before


POINTS = [
    pytest.param("capture.before_contents", marks=pytest.mark.slow),
    pytest.param("stage.before_manifest", marks=pytest.mark.slow),
    "publisher.before_merge",
    pytest.param("publisher.after_merge", marks=pytest.mark.slow),
    pytest.param("watermarks.before_subscriber", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("point", POINTS)
def test_103_a_session_that_is_interrupted_is_finished_by_the_next(
    spark: SparkSession, network: Network, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    network.add_rows("north", 9)

    def interrupt(*_: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(failpoints, "_act", interrupt)
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=interrupt")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        shown = run(*SYNC)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (shown.exit_code, shown.stdout) == (130, "")
    assert shown.stderr.strip() == "Interrupted. Run the command again: it first finishes what was staged."
    assert [lease.holder(network.root(name)) for name in ("hq", "north")] == [None, None]
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    shown = run(*SYNC, "--validate", "checksum")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    ids = [
        DeltaTable(str(network.root(name) / "orders")).to_pyarrow_table()["id"] for name in ("hq", "north")
    ]
    assert [sorted(each.to_pylist()) for each in ids] == [[1, 2, 3, 9]] * 2
    assert not list((network.root("hq") / "_mergerepl" / "staging").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_103_a_command_that_is_interrupted_at_any_time_is_made_up_for(network: Network, number: int) -> None:
    """Wherever the signal meets it: in Python, in a call of the JVM, in one of its jobs."""
    ended = []
    for i in range(10):
        network.add_rows("north", 100 + i)
        process = started(network.folder, *SYNC)
        try:
            process.wait(timeout=0.5 + 1.2 * i)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        said, complaints = process.communicate(timeout=120)
        ended.append(process.returncode)
        assert process.returncode in (0, 130, -signal.SIGTERM), complaints
        assert "rror" not in complaints
        assert "Traceback" not in complaints
        assert [lease.holder(network.root(name)) for name in ("hq", "north")] == [None, None]
    assert set(ended) - {0}
    process = started(network.folder, *SYNC, "--validate", "checksum")
    said, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, said + complaints
    rows = [DeltaTable(str(network.root(name) / "orders")).to_pyarrow_table() for name in ("hq", "north")]
    assert [sorted(each["id"].to_pylist()) for each in rows] == [[1, 2, 3, *range(100, 110)]] * 2

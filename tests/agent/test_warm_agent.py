"""A real agent that runs the syncs of other processes: they print what a sync prints by itself. And one that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from tests.networks import Site, edit_by_delta_rs

ARTICLES = ["orders"]
KILLED_AT_THE_SECOND = {**os.environ, "MERGEREPL_FAILPOINT": "stage.after_manifest:2=kill"}


@pytest.fixture
def sites(spark: SparkSession, replica_dir: Path) -> list[Site]:
    """Two publishers with the same rows."""
    found = []
    for name in ("handed", "alone"):
        (replica_dir / name).mkdir()
        found.append(Site(spark, replica_dir / name, ARTICLES))
    return found


def edit(site: Site, value: int) -> None:
    for name in ARTICLES:
        edit_by_delta_rs(site.path("hq", name), f"update {name} set b = {value} where id < 3")
    edit_by_delta_rs(site.path("north", "orders"), f"update orders set a = 'n{value}' where id in (2, 4)")


@pytest.fixture
def agent(sites: list[Site]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mergerepl",
            "agent",
            "run",
            "-f",
            str(sites[0].folder / "hq"),
            "--no-sync",
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=KILLED_AT_THE_SECOND,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["job"] == "agent"
    yield process
    process.kill()
    process.communicate()


def wait_for_java(agent: int) -> None:
    """Wait until an agent has started its Java, which it does without being asked."""
    until = time.monotonic() + 60
    while not any(each.read_text() for each in Path(f"/proc/{agent}/task").glob("*/children")):
        assert time.monotonic() < until
        time.sleep(0.1)


def handed_over(site: Site, *options: str) -> tuple[int, str, str]:
    """Return what `mergerepl sync` in the folder of a site says, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "mergerepl", "sync", "-f", site.file.name, *options],
        cwd=site.folder,
        env=KILLED_AT_THE_SECOND,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def alone(site: Site, *options: str) -> tuple[int, str, str]:
    """Return the same of a sync by itself, in this process and its engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(site.folder)
        done = CliRunner().invoke(main, ["sync", "-f", site.file.name, "--no-agent", *options])
    return done.exit_code, done.stdout, done.stderr


def without_times(said: str, site: Site) -> object:
    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name != "duration_s"}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return value.replace(str(site.folder), "") if isinstance(value, str) else value

    return plain(json.loads(said))


@pytest.mark.slow
def test_an_agent_syncs_as_a_process_of_its_own_and_may_be_killed(
    sites: list[Site], agent: "subprocess.Popen[str]"
) -> None:
    first, second = sites
    wait_for_java(agent.pid)
    refused = ("nobody",)
    for options in (refused, (*refused, "--json"), ("--dry-run", "--validate", "rowcount")):
        code, said, complaints = handed_over(first, *options)
        expected = alone(second, *options)
        assert code == 2
        assert (
            code,
            said.replace("/handed/", "/alone/"),
            complaints.replace("/handed/", "/alone/"),
        ) == expected
    for site in sites:
        edit(site, 100)
    code, said, complaints = handed_over(first, "--json", "--validate", "rowcount")
    assert (code, complaints) == (0, "")
    expected_code, expected, _ = alone(second, "--json", "--validate", "rowcount")
    assert (expected_code, without_times(said, first)) == (0, without_times(expected, second))
    assert without_times(said, first)["sessions"][0]["upload"]["conflicts"] == 1

    edit(first, 200)
    code, said, complaints = handed_over(first)
    assert agent.wait(timeout=60) == -signal.SIGKILL
    assert (code, said) == (3, "")
    assert "  stage orders" in complaints
    assert complaints.splitlines()[-1].startswith(
        f"Error: The agent of '{first.folder / 'hq'}' ended in the middle"
    )

    # Its socket is there, and nobody answers.
    code, said, complaints = handed_over_to_nobody(first)
    assert (code, complaints) == (0, "")
    assert json.loads(said)["sessions"][0]["recovered"] == 1
    for name in ARTICLES:
        assert first.rows("hq", name) == first.rows("north", name)
        assert {row[2] for row in first.rows("north", name) if row[0] < 2} == {200.0}


def handed_over_to_nobody(site: Site) -> tuple[int, str, str]:
    """Return what a sync says that asks, and then works in this process."""
    assert (site.folder / "hq" / ".mergerepl.agent.sock").is_socket()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(site.folder)
        done = CliRunner().invoke(main, ["sync", "-f", site.file.name, "--json"])
    return done.exit_code, done.stdout, done.stderr

"""What a release consists of: the wheel, the sdist, the pages of the site, the files under examples/."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from mergerepl.cli.main import main

ROOT = Path(__file__).parents[2]
SCHEDULES = ROOT / "examples" / "schedules"
PACKAGES = ("mergerepl", "triggers", "enumeration", "conflict")


INSTALLED = {each.name for each in distributions()}


@pytest.mark.skipif(not {"build", "hatchling"} <= INSTALLED, reason="scripts/setup installs build")
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    stated = {path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    stated = {path for path in stated if "__pycache__" not in path.parts}
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*PACKAGES, "docs", "examples", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "constraints.txt", ROOT / "LICENSE"]:
        shutil.copy(file, tree)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(tree)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT)) for path in stated} - names == set()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "constraints.txt", "zensical.toml"} <= held
    assert {str(path.relative_to(ROOT)) for path in SCHEDULES.iterdir()} <= held


def test_the_site_has_every_page() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = {page for group in settings["project"]["nav"] for each in group.values() for page in values(each)}
    docs = ROOT / "docs"
    assert pages == {path.name for path in docs.glob("*.md")} | {"decisions/index.md"}
    assert not [
        path for path in docs.rglob("*.md") if re.search(r"\]\(\.\./(?!\w+[-\w]*\.md)", path.read_text())
    ]


def values(items: list[dict[str, str]]) -> list[str]:
    return [page for item in items for page in item.values()]


def test_every_schedule_is_named_by_its_page() -> None:
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert {path.name for path in SCHEDULES.iterdir()} <= set(re.findall(r"`([^`]+)`", page))


def accepted(words: list[str]) -> None:
    """Check that the command line takes these words; nothing runs."""
    command: click.Command = main
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    command.make_context(command.name, words)


COMMAND = re.compile(r"/opt/mergerepl/bin/mergerepl ([^>|)\n]+)")


@pytest.mark.parametrize("name", ["crontab", "mergerepl-agent.service", "mergerepl-sync.service"])
def test_the_commands_of_a_schedule_are_commands(name: str) -> None:
    found = COMMAND.findall((SCHEDULES / name).read_text(encoding="utf-8"))
    assert len(found) == (2 if name == "crontab" else 1)
    for line in found:
        accepted(line.split())


def test_the_lines_of_the_crontab_have_five_times_and_no_percent_sign() -> None:
    lines = (SCHEDULES / "crontab").read_text(encoding="utf-8").splitlines()
    for line in (each for each in lines if not each.startswith("#")):
        assert re.match(r"((\*|\d+)(/\d+)? ){5} *\S", line), line
        # Cron makes a line break of it.
        assert "%" not in line
        assert subprocess.run(["sh", "-n", "-c", re.sub(r"^(\S+ ){5}", "", line)]).returncode == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    program = shutil.which("true")
    for unit in SCHEDULES.glob("*.[st]*i*e*"):
        text = unit.read_text(encoding="utf-8").replace("/opt/mergerepl/bin/mergerepl", str(program))
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 3
    shown = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_the_cron_job_of_kubernetes_runs_a_command_alone() -> None:
    job: dict[str, Any] = yaml.safe_load((SCHEDULES / "cronjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"], job["spec"]["concurrencyPolicy"]) == (
        "batch/v1",
        "CronJob",
        "Forbid",
    )
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *words = container["command"]
    assert program == "mergerepl"
    accepted(words)
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert pod["restartPolicy"] == "Never"


def test_the_dag_of_airflow_imports_mergerepl_in_its_task() -> None:
    tree = ast.parse((SCHEDULES / "airflow_dag.py").read_text(encoding="utf-8"))
    first = {each.module for each in tree.body if isinstance(each, ast.ImportFrom)}
    assert first == {"datetime", "airflow.sdk", "airflow.sdk.exceptions"}
    later = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)} - first
    assert later == {"mergerepl.errors"}

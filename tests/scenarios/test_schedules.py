"""The schedules of examples/ in their own programs: Airflow runs the DAG, the schemas of Kubernetes take the job.

Each is installed into an environment of its own.
"""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.networks import FILE, Network

ROOT = Path(__file__).parents[2]
SCHEDULES = ROOT / "examples" / "schedules"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN_DAG = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path += sys.argv[2:]
import airflow_dag
run = airflow_dag.sync_sales().test()
print("RUN", run.state, [(each.task_id, each.state) for each in run.get_task_instances()])
"""


def installed(folder: Path, *packages: str) -> Path:
    """Install packages into a new environment and return its folder of programs; skip without a registry."""
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [folder / "bin" / "pip", "install", "-q", *packages], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{packages[0]} cannot be installed: {done.stderr[-200:]}")
    return folder / "bin"


def test_kubernetes_knows_every_key_of_the_job(tmp_path: Path) -> None:
    program = installed(tmp_path / "env", "kubernetes-validate") / "kubernetes-validate"
    job = SCHEDULES / "cronjob.yaml"
    done = subprocess.run([program, "--strict", job], capture_output=True, text=True)
    assert (done.returncode, "passed" in done.stdout + done.stderr) == (0, True), done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(job.read_text(encoding="utf-8").replace("concurrencyPolicy", "concurrency"))
    assert subprocess.run([program, "--strict", wrong], capture_output=True).returncode != 0


def test_airflow_runs_the_dag(tmp_path: Path) -> None:
    programs = installed(tmp_path / "env", "apache-airflow-core", "apache-airflow-providers-standard")
    place = tmp_path / "sales"
    network = Network(place)
    dags = tmp_path / "dags"
    dags.mkdir()
    dag = (SCHEDULES / "airflow_dag.py").read_text(encoding="utf-8")
    assert "/srv/sales/mergerepl.yml" in dag
    (dags / "airflow_dag.py").write_text(dag.replace("/srv/sales/mergerepl.yml", str(place / FILE)))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Deprecated" not in done.stderr + done.stdout
        return done.stdout

    run(programs / "airflow", "db", "migrate")
    # mergerepl and its packages are those of this environment, behind Airflow's own.
    ours = str(ROOT), sysconfig.get_path("purelib")
    shown = run(programs / "python", "-c", RUN_DAG, dags, *ours)
    assert "RUN success [('sync', 'success')]" in shown
    # A subscriber that is gone is transient: the task fails and would be tried again, three minutes long.
    network.root("north").rename(tmp_path / "away")
    (dags / "airflow_dag.py").write_text(
        (dags / "airflow_dag.py").read_text().replace("retries=3", "retries=0")
    )
    assert "RUN failed" in run(programs / "python", "-c", RUN_DAG, dags, *ours)

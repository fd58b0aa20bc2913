"""A standalone cluster of Spark whose workers share only a bucket with the driver; one is killed."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.spark.jars import delta_jars, s3_jars
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.storage import storage
from tests.store.proxy import Proxy

SPARK_HOME = Path(pyspark.__file__).resolve().parent
PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
ARTICLES = ("orders",)
ROWS = 3000
_PATIENCE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.spark]


class Cluster:
    """A master and two workers. Each worker has an empty folder where the driver has its own."""

    def __init__(self, hidden: Path, logs: Path, endpoint: str) -> None:
        self.hidden, self.logs = hidden, logs
        self.begun: list[subprocess.Popen[bytes]] = []
        self.secret = secrets.token_hex(16)
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.getcwd(),
            "MERGEREPL_LEASE_S": "2",
        }
        self.conf = logs / "cluster.conf"
        page = (
            PAGE.read_text(encoding="utf-8")
            .partition("`cluster.conf`")[2]
            .split("```text\n")[1]
            .split("```")[0]
        )
        more = {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.executorEnv.AWS_ACCESS_KEY_ID": "test-key",
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "test-secret",
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.executor.memory": "600m",
            "spark.sql.shuffle.partitions": "4",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.jars": ",".join(map(str, [*delta_jars(), *s3_jars()])),
        }
        self.conf.write_text(page + "".join(f"{name} {value}\n" for name, value in more.items()))
        self._daemon("master.Master", "--port", "0")
        self.master = waited(lambda: self._said("master.log", "Starting Spark master at "))
        self.workers = [self.worker(number) for number in (1, 2)]
        waited(lambda: (logs / "master.log").read_text().count("Registering worker") == 2)

    def _said(self, log: str, words: str) -> str:
        return (self.logs / log).read_text().partition(words)[2].partition("\n")[0].strip()

    def _daemon(self, name: str, *words: str, log: str = "master.log", before: tuple[str, ...] = ()) -> None:
        java = shutil.which("java") or "java"
        secret = ("-Dspark.authenticate=true", f"-Dspark.authenticate.secret={self.secret}")
        command = [
            *before,
            java,
            "-Xmx256m",
            *secret,
            "-cp",
            f"{SPARK_HOME}/jars/*",
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *words,
        ]
        with open(self.logs / log, "wb") as out:
            self.begun.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=out, stderr=out, start_new_session=True
                )
            )

    def worker(self, number: int) -> "subprocess.Popen[bytes]":
        """Start a worker with its executors in a process group of its own."""
        hide = f'mount -t tmpfs none "{self.hidden}" && exec "$0" "$@"'
        before = ("unshare", "-m", "--propagation", "private", "bash", "-c", hide)
        work = ("-d", str(self.logs / f"work{number}"))
        words = ("-c", "1", "-m", "1g", *work, self.master)
        self._daemon("worker.Worker", *words, log=f"worker{number}.log", before=before)
        return self.begun[-1]

    def submit(self, folder: Path, *words: str) -> "subprocess.Popen[bytes]":
        """Begin a command on the cluster."""
        job = folder / "mergerepl_job.py"
        job.write_text("from mergerepl.cli.main import main\n\nmain()\n")
        given = ("--master", self.master, "--properties-file", str(self.conf), "--driver-memory", "1g")
        command = [str(SPARK_HOME / "bin" / "spark-submit"), *given, str(job), *words]
        # Spark says much: a pipe that nobody reads would stop it.
        with open(self.logs / "shown", "w") as shown, open(self.logs / "said", "w") as said:
            return subprocess.Popen(
                command, cwd=folder, env=self.environment, stdout=shown, stderr=said, start_new_session=True
            )

    def end(self, process: "subprocess.Popen[bytes]", code: int = 0) -> str:
        """Wait for a command; return what it printed."""
        process.wait(timeout=_PATIENCE_S)
        assert process.returncode == code, (self.logs / "said").read_text()[-5000:]
        return (self.logs / "shown").read_text()

    def close(self) -> None:
        for each in self.begun:
            kill(each)


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process with its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def waited(found: Callable[[], Any]) -> Any:
    ends = time.monotonic() + _PATIENCE_S
    while not (value := found()) and time.monotonic() < ends:
        time.sleep(0.2)
    assert value
    return value


@pytest.fixture
def cluster(proxy: Proxy, tmp_path: Path) -> Iterator[Cluster]:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to make mount namespaces")
    hidden, logs = tmp_path / "driver", tmp_path / "logs"
    hidden.mkdir()
    logs.mkdir()
    made = Cluster(hidden, logs, proxy.url)
    yield made
    made.close()


def opened(root: Location, name: str) -> DeltaTable:
    return DeltaTable(str(root / name), storage_options=storage_options(root))


def rows(root: Location) -> dict[str, list[dict[str, Any]]]:
    return {name: opened(root, name).to_pyarrow_table().sort_by("id").to_pylist() for name in ARTICLES}


def edit_both(hq: Location, north: Location, number: int) -> None:
    """Change rows at both ends, some of them the same ones."""
    for name in ARTICLES:
        opened(hq, name).update(updates={"qty": str(number)}, predicate="id % 10 = 1")
        opened(north, name).update(updates={"item": f"'north {number}'"}, predicate="id % 7 = 1")


def is_as_edited(root: Location, number: int) -> bool:
    """Whether both edits are there; of rows that both changed, the publisher's."""
    found = rows(root)["orders"]
    return len(found) == ROWS and all(
        (row["qty"] == number) is (row["id"] % 10 == 1)
        and (row["item"] == f"north {number}" or row["id"] % 7 != 1 or row["id"] % 10 == 1)
        for row in found
    )


def test_a_sync_survives_a_killed_worker(cluster: Cluster, bucket: str) -> None:
    hq, north = (Location.of(f"s3://{bucket}/{name}") for name in ("hq", "north"))
    folder = cluster.hidden
    for name in ARTICLES:
        table = pa.table(
            {
                "id": pa.array(range(ROWS), pa.int64()),
                "qty": pa.array([0] * ROWS, pa.int32()),
                "item": [f"i{n}" for n in range(ROWS)],
            }
        )
        write_deltalake(str(hq / name), table, storage_options=storage_options(hq))
    articles = "".join(f"  - {{name: {name}, key: [id]}}\n" for name in ARTICLES)
    project = f"publication: sales\npublisher: {hq}\narticles:\n{articles}subscriptions:\n"
    (folder / "mergerepl.yml").write_text(f"{project}  - {{subscriber: {north}, name: north}}\n")
    (folder / "laptop").mkdir()
    (folder / "laptop.yml").write_text(f"{project}  - {{subscriber: ./laptop, name: laptop}}\n")

    def run(*words: str, code: int = 0) -> str:
        return cluster.end(cluster.submit(folder, *words), code)

    run("apply")
    # A folder of the driver is none of the executors.
    seen = run("doctor", "--start-engine", "-f", "laptop.yml", code=1)
    assert "do not see" in seen
    edit_both(hq, north, 1)
    sync = cluster.submit(folder, "sync", "--engine", "spark", "--json")
    staging = hq.join("_mergerepl", "staging")
    waited(lambda: sync.poll() is not None or storage(staging).list_from(staging))
    kill(cluster.workers[0])
    (done,) = json.loads(cluster.end(sync))["sessions"]
    assert done["status"] == "succeeded"
    assert rows(hq) == rows(north)
    assert is_as_edited(hq, 1)

"""A standalone cluster of Spark whose workers share only a bucket with the driver; one is killed, or the driver."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.spark.jars import delta_jars, s3_jars
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import state_of
from mergerepl.store.storage import storage
from tests.store.proxy import SECRETS, Proxy
from tests.waiting import waited

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
            "spark.executorEnv.AWS_ACCESS_KEY_ID": SECRETS[0],
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": SECRETS[1],
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
        self.master = waited(
            lambda: self._said("master.log", "Starting Spark master at "), seconds=_PATIENCE_S
        )
        self.workers = [self.worker(number) for number in (1, 2)]
        waited(
            lambda: (logs / "master.log").read_text().count("Registering worker") == 2, seconds=_PATIENCE_S
        )

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

    def submit(self, folder: Path, *words: str, failpoint: str = "") -> "subprocess.Popen[bytes]":
        """Begin a command on the cluster."""
        job = folder / "mergerepl_job.py"
        job.write_text("from mergerepl.cli.main import main\n\nmain()\n")
        given = ("--master", self.master, "--properties-file", str(self.conf), "--driver-memory", "1g")
        command = [str(SPARK_HOME / "bin" / "spark-submit"), *given, str(job), *words]
        environment = {**self.environment, **({"MERGEREPL_FAILPOINT": failpoint} if failpoint else {})}
        # Spark says much: a full pipe would stop it.
        with open(self.logs / "shown", "w") as shown, open(self.logs / "said", "w") as said:
            begun = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=shown, stderr=said, start_new_session=True
            )
        self.begun.append(begun)
        return begun

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


class Sites:
    """A publisher and a subscriber in a bucket, and the commands that a cluster runs for them."""

    def __init__(self, cluster: Cluster, bucket: str) -> None:
        self.cluster = cluster
        self.hq, self.north = (Location.of(f"s3://{bucket}/{name}") for name in ("hq", "north"))
        table = pa.table(
            {
                "id": pa.array(range(ROWS), pa.int64()),
                "qty": pa.array([0] * ROWS, pa.int32()),
                "item": [f"i{n}" for n in range(ROWS)],
            }
        )
        for name in ARTICLES:
            write_deltalake(str(self.hq / name), table, storage_options=storage_options(self.hq))
        articles = "".join(f"  - {{name: {name}, key: [id]}}\n" for name in ARTICLES)
        project = f"publication: sales\npublisher: {self.hq}\narticles:\n{articles}subscriptions:\n"
        folder = cluster.hidden
        (folder / "mergerepl.yml").write_text(f"{project}  - {{subscriber: {self.north}, name: north}}\n")
        (folder / "laptop").mkdir()
        (folder / "laptop.yml").write_text(f"{project}  - {{subscriber: ./laptop, name: laptop}}\n")

    def begin(self, *words: str, failpoint: str = "") -> "subprocess.Popen[bytes]":
        return self.cluster.submit(self.cluster.hidden, *words, failpoint=failpoint)

    def run(self, *words: str, code: int = 0, failpoint: str = "") -> str:
        return self.cluster.end(self.begin(*words, failpoint=failpoint), code)

    def edit(self) -> None:
        """Change rows at both ends, some of them the same ones."""
        for name in ARTICLES:
            opened(self.hq, name).update(updates={"qty": "7"}, predicate="id % 10 = 1")
            opened(self.north, name).update(updates={"item": "'north'"}, predicate="id % 7 = 1")

    def check(self) -> None:
        """Both edits are at both ends; of rows that both changed, the publisher's."""
        found = rows(self.hq)
        assert found == rows(self.north)
        for each in found.values():
            assert len(each) == ROWS
            assert [row["id"] for row in each if row["qty"] == 7] == [*range(1, ROWS, 10)]
            of_north = [n for n in range(1, ROWS, 7) if n % 10 != 1]
            assert [row["id"] for row in each if row["item"] == "north"] == of_north


@pytest.fixture
def sites(cluster: Cluster, bucket: str) -> Sites:
    made = Sites(cluster, bucket)
    made.run("apply")
    made.edit()
    return made


def test_a_sync_survives_a_killed_worker(sites: Sites) -> None:
    # A folder of the driver is none of the executors.
    assert "do not see" in sites.run("doctor", "--start-engine", "-f", "laptop.yml", code=1)
    sync = sites.begin("sync", "--engine", "spark", "--json")
    staging = sites.hq.join("_mergerepl", "staging")
    waited(
        lambda: sync.poll() is not None or storage(staging).list_from(staging),
        seconds=_PATIENCE_S,
        every_s=0.2,
    )
    kill(sites.cluster.workers[0])
    (done,) = json.loads(sites.cluster.end(sync))["sessions"]
    assert done["status"] == "succeeded"
    sites.check()


def test_a_sync_whose_driver_was_killed_is_finished_by_the_next_one(sites: Sites) -> None:
    sites.run(
        "sync", "--engine", "spark", code=-signal.SIGKILL, failpoint="subscriber.before_merge=killgroup"
    )
    (session,) = state_of(sites.hq).sessions
    assert rows(sites.hq) != rows(sites.north)
    sites.run("sync", "--engine", "spark")
    assert session not in state_of(sites.hq).sessions
    sites.check()

"""dbt itself builds published tables: in a virtual environment of its own, by dbt-spark's session method."""

import json
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

import mergerepl
from mergerepl.spark import confs, jars
from mergerepl.spark.java import find_java
from tests.dbt_statements import AGAIN, FIRST, FULL_REFRESH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PACKAGES = ("dbt-core==1.10.23", "dbt-spark==1.9.3")
MODELS = {
    "orders": "materialized='table'",
    "stock": "materialized='incremental', unique_key='id', incremental_strategy='merge'",
}
ROWS = {
    "first": "select 1L as id, 'a' as note, 1 as qty union all select 2L, 'b', 5",
    "again": "select 1L as id, 'a' as note, 2 as qty union all select 2L, 'b', 5",
    "refreshed": "select 1L as id, 'a' as note, 3 as qty union all select 3L, 'c', 7",
}
MANY = (
    "select id, concat('n', id) as note, cast(case when id < {changed} then -id else id end as bigint) as qty "
    "from range(1000000)"
)


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `dbt`, installed beside the pyspark of this environment."""
    folder = tmp_path_factory.mktemp("dbt")
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [folder / "bin/pip", "install", "-q", *PACKAGES],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{' and '.join(PACKAGES)} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    (packages,) = folder.glob("lib/python*/site-packages")
    # Behind its own packages: pyspark and what it needs.
    (packages / "behind.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n", encoding="utf-8")
    return folder / "bin/dbt"


class Shop:
    """A dbt project whose models are published tables."""

    def __init__(self, dbt: Path, root: Path) -> None:
        self.dbt, self.root, self.project = dbt, root, root / "project"
        (self.project / "models").mkdir(parents=True)
        settings = {
            "spark.jars": ",".join(str(each) for each in jars.delta_jars()),
            "spark.sql.extensions": confs.EXTENSION,
            "spark.sql.catalog.spark_catalog": confs.CATALOG,
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root / 'metastore'};create=true",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.master": "local[2]",
        }
        session = {
            "type": "spark",
            "method": "session",
            "schema": "shop",
            "host": "NA",
            "server_side_parameters": settings,
        }
        self.write("profiles.yml", {"shop": {"target": "dev", "outputs": {"dev": session}}})
        models = {"+file_format": "delta", "+location_root": str(root / "hq")}
        self.write(
            "dbt_project.yml",
            {"name": "shop", "version": "1.0.0", "profile": "shop", "models": {"shop": models}},
        )

    def write(self, name: str, content: object) -> None:
        # JSON is YAML.
        (self.project / name).write_text(json.dumps(content), encoding="utf-8")

    def run(self, models: dict[str, str], *more: str) -> list[str]:
        """Run dbt on models, given by their queries; return the statements on their tables that it sent."""
        for name, query in models.items():
            text = f"{{{{ config({MODELS[name]}) }}}}\n{query}"
            (self.project / "models" / f"{name}.sql").write_text(text, encoding="utf-8")
        log = self.root / "log" / "dbt.log"
        log.unlink(missing_ok=True)
        java = find_java()
        done = subprocess.run(
            [
                *(self.dbt, "run", "--profiles-dir", self.project, "--project-dir", self.project),
                *("--log-path", log.parent, "--log-level-file", "debug", "--no-version-check", *more),
            ],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=self.root,
            env={
                **os.environ,
                "JAVA_HOME": str(java.executable.parents[1]),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
                "PYSPARK_PYTHON": sys.executable,
            },
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sent(log.read_text(encoding="utf-8"))


def sent(log: str) -> list[str]:
    """Return the statements about models that a log of dbt has, each on one line."""
    found = re.findall(
        r'/\* \{"app": "dbt".*?\*/(.*?)(?=\n(?:\x1b\[\d+m)?\d\d:\d\d:\d\d\.\d+)', log, re.DOTALL
    )
    flat = [" ".join(text.split()) for text in found]
    return [text for text in flat if re.match(r"(create|drop|merge|insert|-- back compat)", text)]


def published(root: Path, *names: str) -> mergerepl.Project:
    """Publish tables of `hq` to one subscriber."""
    articles = ", ".join(f"{{name: {name}, key: [id]}}" for name in names)
    file = root / "mergerepl.yml"
    file.write_text(
        f"publication: shop\npublisher: ./hq\nretention: 14 days\narticles: [{articles}]\n"
        "subscriptions: [{subscriber: ./north, type: server, priority: 50}]\n",
        encoding="utf-8",
    )
    project = mergerepl.Project.load(file)
    project.apply()
    return project


def rows(root: Path, name: str) -> dict[int, dict[str, object]]:
    found = DeltaTable(str(root / name)).to_pyarrow_table().to_pylist()
    return {row["id"]: row for row in found}


def test_each_run_of_dbt_reaches_the_subscriber_as_the_rows_that_differ(dbt: Path, tmp_path: Path) -> None:
    shop = Shop(dbt, tmp_path)

    def run(rows_of: str, *more: str) -> list[str]:
        return shop.run(dict.fromkeys(MODELS, ROWS[rows_of]), *more)

    first = run("first")
    project = published(tmp_path, *MODELS)
    nights = [("again", (), 1, AGAIN), ("refreshed", ("--full-refresh",), 3, FULL_REFRESH)]
    said = {"first": (first, FIRST)}
    for rows_of, more, travel, recorded in nights:
        said[rows_of] = run(rows_of, *more), recorded
        (session,) = project.sync().sessions
        assert session.error is None
        assert [article.download.total for article in session.articles] == [travel, travel]
        for name in MODELS:
            assert rows(tmp_path / "north", name) == rows(tmp_path / "hq", name)
    for name, (statements, recorded) in said.items():
        wanted = {" ".join(each.format(root=tmp_path / "hq").split()) for each in recorded}
        assert wanted == {*statements}, name


def test_a_full_refresh_of_a_million_rows_sends_the_rows_that_differ(
    dbt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(dbt, tmp_path)
    shop.run({"orders": MANY.format(changed=0)})
    project = published(tmp_path, "orders")
    seconds = {}
    for what in ("update", "full refresh"):
        if what == "update":
            DeltaTable(str(tmp_path / "hq/orders")).update({"note": "'u'"}, predicate="id < 100")
        else:
            # The notes are as they were again: the same 100 rows differ.
            shop.run({"orders": MANY.format(changed=0)}, "--full-refresh")
        begin = time.monotonic()
        (session,) = project.sync().sessions
        seconds[what] = time.monotonic() - begin
        assert session.error is None
        assert [article.download.total for article in session.articles] == [100]
    with capsys.disabled():
        sys.stdout.write(f"\nsync of 100 rows: {seconds}\n")
    assert rows(tmp_path / "north", "orders")[7]["note"] == "n7"

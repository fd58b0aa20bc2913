"""Replicas are the same whatever the environment of the process that makes them: locale, zone, encoding, umask, options."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.small_tables import read_rows
from mergerepl.errors import EngineError
from mergerepl.monitoring import doctor
from mergerepl.spark import session as engine

pytestmark = pytest.mark.spark

STATED = """\
publication: p
publisher: ./hé
articles: [{name: t, key: [day, k]}]
subscriptions: [{subscriber: ./north}]
"""
SCRIPT = """\
import os, mergerepl
from deltalake import DeltaTable
from mergerepl.spark import session as engine
os.umask(0o027)
project = mergerepl.load("p.yml")
project.apply()
DeltaTable("hé/t").update(updates={"note": "'hq'"}, predicate="note = 'b'")
north = f"delta.`{os.getcwd()}/north/t`"
engine.session().sql(f"INSERT INTO {north} SELECT day, k + 2, region, 'north', at FROM {north}")
synced = mergerepl.sync(project, validate="checksum")
assert synced.ok, synced
row = mergerepl.row("north", article="t", key={"day": "2026-03-29 02:30:00.000001", "k": "9007199254740993"})
print([each.row["note"] for each in row.replicas])
"""
DAY = datetime(2026, 3, 29, 2, 30, 0, 1)
FIRST = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
COLUMNS = {
    "day": pa.timestamp("us"),
    "k": pa.decimal128(38, 0),
    "region": pa.string(),
    "note": pa.string(),
    "at": pa.timestamp("us", "UTC"),
}
ROWS: list[tuple[Any, ...]] = [
    (DAY, Decimal(9007199254740992), "Île", "a", FIRST),
    (DAY, Decimal(9007199254740993), "Nord", "b", LAST),
]
SYNCHRONIZED: list[tuple[Any, ...]] = [
    (DAY, Decimal(9007199254740992), "Île", "a", FIRST),
    (DAY, Decimal(9007199254740993), "Nord", "hq", LAST),
    (DAY, Decimal(9007199254740994), "Île", "north", FIRST),
    (DAY, Decimal(9007199254740995), "Nord", "north", LAST),
]
EVERYTHING_BUT_THE_LOCALE = {
    "TZ": "Asia/Kathmandu",
    "JAVA_TOOL_OPTIONS": "-Duser.timezone=America/St_Johns -Duser.script.format=Arab -XX:+UseParallelGC",
    "JDK_JAVA_OPTIONS": "-Dfile.encoding=ISO-8859-1 -Djava.io.tmpdir=/nowhere",
    "SPARK_ANSI_SQL_MODE": "false",
    "SPARK_TESTING": "1",
    "DELTA_TESTING": "1",
    "SPARK_LOCAL_DIRS": "/nowhere",
    "SPARK_CONF_DIR": "conf",
    "HADOOP_CONF_DIR": "conf",
    "CLASSPATH": "conf",
    "PYSPARK_PIN_THREAD": "false",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.session.timeZone=Asia/Tokyo pyspark-shell",
    "PYTHONHASHSEED": "0",
    "TMPDIR": "tmp ö",
}


def replicas_made_in(environment: dict[str, str], folder: Path) -> None:
    """Publish, change and synchronize in a process with an environment, and look at all that it has left."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text("spark.sql.session.timeZone Asia/Tokyo\n")
    (folder / "conf" / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere:1</value></property></configuration>"
    )
    scratch = folder / "tmp ö"
    scratch.mkdir()
    (folder / "p.yml").write_text(STATED, encoding="utf-8")
    columns = zip(*ROWS, strict=True)
    rows = {
        name: pa.array(values, type_) for (name, type_), values in zip(COLUMNS.items(), columns, strict=True)
    }
    write_deltalake(folder / "hé" / "t", pa.table(rows), partition_by=["region"])
    made_before = set(folder.rglob("*"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['hq', 'hq']\n"
    for replica in ("hé", "north"):
        there = read_rows(folder / replica / "t", list(COLUMNS))
        assert sorted(tuple(row.values()) for row in there) == SYNCHRONIZED
    commits = {path.name for path in folder.rglob("_delta_log/*.json")}
    assert {name for name in commits if not re.fullmatch(r"\d{20}\.json", name, re.ASCII)} == set()
    made = [path for path in folder.rglob("*") if path not in made_before]
    modes = {(path.is_dir(), f"{stat.S_IMODE(path.stat().st_mode):o}") for path in made}
    assert modes == {(True, "750"), (False, "640")}
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_replicas_do_not_depend_on_the_environment(replica_dir: Path) -> None:
    arabic = "-Duser.language=ar -Duser.country=EG -Duser.language.format=ar -Dfile.encoding=ISO-8859-1"
    replicas_made_in({**EVERYTHING_BUT_THE_LOCALE, "LC_ALL": "C", "_JAVA_OPTIONS": arabic}, replica_dir)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar_EG", "fa_IR", "tr_TR"])
def test_replicas_do_not_depend_on_the_locale(name: str, replica_dir: Path, tmp_path: Path) -> None:
    compiler = shutil.which("localedef")
    if compiler is None:
        pytest.skip("this machine has no localedef, which makes the locale")
    subprocess.run([compiler, "-i", name, "-f", "UTF-8", tmp_path / f"{name}.UTF-8"], check=True)
    replicas_made_in(
        {**EVERYTHING_BUT_THE_LOCALE, "LOCPATH": str(tmp_path), "LC_ALL": f"{name}.UTF-8"}, replica_dir
    )


@pytest.fixture
def in_locale(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Let the JVM word numbers and capitals as a locale does, for one test."""
    java: Any = spark.sparkContext._jvm
    locale = java.java.util.Locale
    form = locale.Category.valueOf("FORMAT")
    before = locale.getDefault(form)
    yield lambda tag: locale.setDefault(form, locale.forLanguageTag(tag))
    locale.setDefault(form, before)


@pytest.mark.parametrize(("tag", "ten"), [("ar-EG", "١٠"), ("fa-IR", "۱۰"), ("en-US-u-nu-thai", "๑๐")])
def test_a_session_that_would_name_commits_in_other_digits_is_refused(
    spark: SparkSession, in_locale: Callable[[str], None], tag: str, ten: str
) -> None:
    engine.require_ascii_digits(spark)
    in_locale(tag)
    with pytest.raises(EngineError, match=rf"writes 10 as {ten}.*-Duser\.language=en"):
        engine.require_ascii_digits(spark)


@pytest.mark.slow
def test_doctor_reports_a_locale_with_other_capitals(
    spark: SparkSession, in_locale: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "jvm_pid", lambda: None)
    for tag, status in (("de-DE", doctor.CheckStatus.OK), ("tr-TR", doctor.CheckStatus.WARN)):
        in_locale(tag)
        [check] = [check for check in doctor.checks(start_engine=True) if check.name == "engine"]
        assert (check.status, bool(check.remedy)) == (status, status is doctor.CheckStatus.WARN), check

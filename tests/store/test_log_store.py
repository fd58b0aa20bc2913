"""The log store's JAR is the one that its source makes; the JARs for S3 come from the user or the cache."""

import os
from pathlib import Path

import pytest

from mergerepl.spark import artifacts, jars, stores
from tests.project_scripts import script


def test_the_jar_is_built_from_its_source() -> None:
    made = script("logstore")
    if made.compiler() is None or not all(map(jars.is_intact, (*artifacts.DELTA, *artifacts.S3))):
        pytest.skip("needs the javac of a JDK 17, and the JARs that scripts/setup fetches")
    assert made.main(["--check"]) is None


def test_a_users_own_hadoop_aws_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [tmp_path / "delta-spark.jar", tmp_path / "hadoop-aws-3.4.2.jar"]
    for jar in own:
        jar.touch()
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MERGEREPL_JARS", os.pathsep.join(map(str, own)))
    assert (jars.delta_jars(), jars.s3_jars()) == (own, [jars.LOG_STORE])


def test_each_jar_that_is_fetched_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEREPL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MERGEREPL_MAVEN", (tmp_path / "repository").as_uri())
    monkeypatch.delenv("MERGEREPL_JARS", raising=False)
    files = [(name, tmp_path / "repository" / f"org/x/{name}/1/{name}-1.jar") for name in ("one", "two")]
    for name, file in files:
        file.parent.mkdir(parents=True)
        file.write_text(name)
    pinned = tuple(artifacts.Artifact(name, "1", jars.checksum(file), "org.x") for name, file in files)
    monkeypatch.setattr(artifacts, "S3", pinned)
    steps: list[str] = []
    assert [jar.name for jar in jars.s3_jars(steps.append)] == [
        *("mergerepl-logstore.jar", "one-1.jar", "two-1.jar")
    ]
    assert steps == ["fetch the JARs for S3 (1 of 2)", "fetch the JARs for S3 (2 of 2)"]
    jars.s3_jars(steps.append)
    assert len(steps) == 2, "nothing is fetched again"


@pytest.mark.parametrize(
    ("options", "confs"),
    [
        (
            {"AWS_REGION": "eu-central-1", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            {
                "endpoint.region": "eu-central-1",
                "path.style.access": "false",
                "connection.ssl.enabled": "true",
            },
        ),
        (
            {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"},
            {
                "endpoint": "http://127.0.0.1:9000",
                "path.style.access": "true",
                "connection.ssl.enabled": "false",
            },
        ),
    ],
    ids=["S3", "another server"],
)
def test_s3a_finds_the_store_of_the_other_libraries(options: dict[str, str], confs: dict[str, str]) -> None:
    found = stores.s3a_confs(options)
    assert found | {f"fs.s3a.{name}": value for name, value in confs.items()} == found
    assert ("fs.s3a.endpoint" in found) == ("AWS_ENDPOINT_URL" in options)
    assert "key" not in "".join(found), "credentials are the JVM's own"

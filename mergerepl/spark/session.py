"""The only module that obtains a SparkSession: the user's own, or an embedded local one.

Functions elsewhere take `spark` or a store. A notebook, a Databricks job or a spark-submit has a session: it is used
unchanged, if its reads return every row. Otherwise a JVM is started here; it ends with this process, even a killed one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from mergerepl.errors import EngineError
from mergerepl.settings import umask
from mergerepl.spark import confs, stores
from mergerepl.spark.callers import GIVEN, OURS
from mergerepl.store.location import Location
from mergerepl.store.objects import options_in_use

if TYPE_CHECKING:
    from mergerepl.spark import jvm

_UTC = frozenset({"UTC", "Etc/UTC", "UCT", "Zulu", "Z", "GMT", "Etc/GMT", "+00:00"})

ENGLISH = "-Duser.language=en -Duser.country=US"
"""Options that give a JVM a locale with ASCII digits."""

_lock = threading.RLock()
_embedded: tuple[jvm.Jvm, SparkSession] | None = None
_owner = 0
"""The process that started the JVM."""
_many_rows: ContextVar[bool] = ContextVar("_many_rows", default=False)


@contextlib.contextmanager
def tuned_for(*, many_rows: bool) -> Iterator[None]:
    """Let an embedded JVM that starts here have the compiler and the memory of long runs."""
    token = _many_rows.set(many_rows or _many_rows.get())
    try:
        yield
    finally:
        _many_rows.reset(token)


def session(
    *, long_running: bool = False, with_stores: bool = False, step: Callable[[str], object] = str
) -> SparkSession:
    """Return the session to work in: the one that the caller gave, the running one, or the embedded one, started here.

    Args:
        long_running: For agents: the embedded JVM takes longer to start and merges faster, as inside `tuned_for`.
            Without effect on a session that already runs.
        with_stores: The embedded JVM has the JARs for object stores, as it does once this process has opened a bucket.
        step: Receives each JAR that is fetched for it.

    Raises: EngineError: The user's session lacks Delta or is of Spark Connect, the embedded one cannot start, or the
    session ignores files that it cannot read, or would overwrite commits in a store that is used.
    """
    options = options_in_use()
    if (given := GIVEN.get()) is not None:
        return _users(given)
    with _lock:
        _forget_parents()
        if _embedded is not None:
            own_jvm, own_session = _embedded
            is_running = own_jvm.process.poll() is None and own_session._sc._jsc is not None
            if is_running and (own_jvm.more_jars or options is None):
                # A caller's `SparkSession.builder.config(...)` and `SET` affect this one, too.
                require_all_files(own_session)
                if options is not None:
                    stores.find_stores(own_session, options)
                return own_session
            # The JVM was killed, a caller stopped the session, or it lacks the JARs for stores: restart it.
            stop()
        if (users := users_session()) is not None:
            return _users(users)
        long_running = long_running or _many_rows.get()
        started = _start(long_running=long_running, with_stores=with_stores or options is not None, step=step)
        if options is not None:
            stores.find_stores(started, options)
        return started


def callers_own() -> SparkSession | None:
    """Return the session that the caller gave or has; None if work is done in the embedded one.

    Raises: EngineError: as `session`.
    """
    if (given := GIVEN.get()) is not None:
        return usable(given)
    with _lock:
        _forget_parents()
        return None if _embedded is not None else users_session()


def _users(given: SparkSession) -> SparkSession:
    require_ascii_digits(usable(given))
    return given


def scratch_folders(spark: SparkSession) -> tuple[Path, ...]:
    """Return the folders of a session's JVM for blocks, shuffle files and other temporary data."""
    context: Any = spark.sparkContext
    jvm_ = context._jvm
    local = jvm_.org.apache.spark.util.Utils.getConfiguredLocalDirs(context._jsc.sc().conf())
    stated = (*local, jvm_.java.lang.System.getProperty("java.io.tmpdir"))
    return tuple(Path(os.path.realpath(each)) for each in stated)


def users_session() -> SparkSession | None:
    """Return the session that this process has or was started with, if any.

    A thread other than the one that made the session has no active one, but the process has its default.

    Raises: EngineError: It is of Spark Connect, or would be.
    """
    if is_remote():
        raise _connect_refused()
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    if "SPARK_REMOTE" in os.environ:
        # The first session of the script would connect there.
        raise _connect_refused()
    is_running = SparkContext._active_spark_context is not None
    # spark-submit leaves this for the first session of the script to pick up.
    is_provided = "PYSPARK_GATEWAY_PORT" in os.environ
    return SparkSession.builder.getOrCreate() if is_running or is_provided else None


def usable(given: SparkSession) -> SparkSession:
    """Return a session made elsewhere, checked.

    Raises: EngineError: It is a client of Spark Connect, lacks Delta, ignores files that it cannot read, or would
    overwrite commits in a store that this process uses.
    """
    if getattr(given, "_jsparkSession", None) is None:
        raise _connect_refused()
    require_delta(given)
    require_all_files(given)
    if options_in_use() is not None:
        stores.require_log_store(given)
    return given


def _connect_refused() -> EngineError:
    return EngineError(
        "Spark Connect sessions (serverless notebooks, SPARK_REMOTE) are not supported: mergerepl works in the JVM of a "
        "classic SparkSession. Run it where there is one, such as on a cluster's driver; or, for a Spark of its own, in a "
        "process without the environment variables SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED."
    )


def require_delta(spark: SparkSession) -> None:
    """Check that a session made elsewhere can work with Delta tables.

    Raises: EngineError: Its confs lack Delta; the message names them.
    """
    is_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
    if is_databricks or confs.EXTENSION in (spark.conf.get("spark.sql.extensions", "") or ""):
        return
    raise EngineError(
        "The running Spark session has no Delta Lake. Add to it, before it starts: "
        f"spark.sql.extensions={confs.EXTENSION} and spark.sql.catalog.spark_catalog={confs.CATALOG}, with "
        f"the Delta JARs (`delta.configure_spark_with_delta_pip`); or stop it, and mergerepl starts its own."
    )


def require_all_files(spark: SparkSession) -> None:
    """Check that a read in a session fails where a file is missing or damaged, and that its times are instants.

    Raises: EngineError: Its confs differ; the message names them.
    """
    name, zoned = confs.TIMESTAMP_TYPE
    if (stated := (spark.conf.get(name, zoned) or zoned).strip().upper()) != zoned:
        raise EngineError(
            f"The running Spark session takes the word timestamp for another type: {name}={stated}. Times would be stored "
            f'without their zone. Run `spark.conf.set("{name}", "{zoned}")` in that session, then run again.'
        )
    values = {name: spark.conf.get(name, "false") or "" for name in confs.PASSES_OVER_FILES}
    ignoring = [name for name, value in values.items() if value.strip().lower() == "true"]
    if not ignoring:
        return
    remedy = "; ".join(f'`spark.conf.set("{name}", "false")`' for name in ignoring)
    raise EngineError(
        f"The running Spark session passes over files that it cannot read: {'=true, '.join(ignoring)}=true. Rows would be "
        f"missing without an error, and replicas would miss writes for good. Run {remedy} in that session (it overrides "
        "spark-defaults.conf and --conf, too), then run again."
    )


def require_ascii_digits(spark: SparkSession) -> None:
    """Check that a session's JVM writes numbers with ASCII digits: Delta names its log files with the JVM's digits.

    Raises: EngineError: Its locale has others.
    """
    if (ten := format_in_jvm(spark, "%d", 10)) == "10":
        return
    raise EngineError(
        f"The JVM of the running Spark session writes 10 as {ten}, as its locale has it. Delta would name its commits so, "
        "and no reader finds such a commit. Start the session again with "
        f'`--driver-java-options "{ENGLISH}"` (conf spark.driver.extraJavaOptions), or without LC_ALL and LANG of that '
        "locale; or stop it, and mergerepl starts its own. Commits that were written so are renamed by hand: see "
        "docs/errors.md."
    )


def format_in_jvm(spark: SparkSession, pattern: str, value: object) -> str:
    """Return a value formatted by the locale of a session's JVM."""
    context: Any = spark.sparkContext
    java: Any = context._jvm
    values = context._gateway.new_array(java.java.lang.Object, 1)
    values[0] = value
    return str(java.java.lang.String.format(pattern, values))


def new_session(spark: SparkSession) -> SparkSession:
    """Return a session next to another, with its own confs, whose reads fail if a file is missing or damaged.

    It takes times as instants, and writes files that every engine reads correctly. It starts with the JVM's initial
    confs, not with those set in the other session since.
    """
    session = spark.newSession()
    OURS.add(session)
    for name in confs.PASSES_OVER_FILES:
        session.conf.set(name, "false")
    session.conf.set(*confs.TIMESTAMP_TYPE)
    is_interpreting = all(spark.conf.get(name, None) == value for name, value in confs.INTERPRETED.items())
    for name, value in {**confs.WRITES, **(confs.INTERPRETED if is_interpreting else {})}.items():
        session.conf.set(name, value)
    if options_in_use() is not None:
        session.conf.set(*stores.NO_CHECKSUMS)
    return session


def interpreting(spark: SparkSession) -> SparkSession:
    """Return a copy of a session that interprets its queries; the session itself if this Spark cannot copy sessions."""
    return copy_if_possible(spark, confs.INTERPRETED)


def copy_if_possible(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return `copy_of`; the session itself, without the settings, if this Spark cannot copy sessions."""
    try:
        return copy_of(spark, settings)
    except Py4JError:
        return spark


def copy_of(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with the state of another, except for some confs; the other one is unchanged.

    Raises: Py4JError: This Spark cannot copy sessions.
    """
    copy = SparkSession(spark._sc, spark._jsparkSession.cloneSession())
    OURS.add(copy)
    for name, value in settings.items():
        copy.conf.set(name, value)
    return copy


def in_session(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a frame that another session of its JVM plans."""
    jvm: Any = spark._jvm
    datasets = getattr(jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(datasets.ofRows(spark._jsparkSession, rows._jdf.logicalPlan()), spark)


def with_write_confs(rows: DataFrame) -> DataFrame:
    """Return rows that are written in a form that every engine reads correctly, whatever the confs of their session.

    That session, perhaps a user's, is unchanged: the rows go to a copy of it. Delta notes the version of a commit in a
    conf of the session that commits.

    Raises: EngineError: This Spark cannot copy sessions; the message names the confs to set.
    """
    spark = rows.sparkSession
    # Spark would refuse a default of "" as a value of most of them.
    is_fit = all(spark.conf.get(name, None) == value for name, value in confs.WRITES.items())
    if is_fit and spark in OURS:
        return rows
    try:
        return in_session(rows, copy_of(spark, confs.WRITES))
    except Py4JJavaError:
        raise
    except Py4JError as error:
        if is_fit:
            return rows
        remedy = "; ".join(f'`spark.conf.set("{name}", "{value}")`' for name, value in confs.WRITES.items())
        raise EngineError(
            "The running Spark session writes files that other engines read otherwise (times as INT96, for example), and "
            f"this Spark allows no copy of it to write in ({error}). Nothing was written. Run {remedy} in that session, "
            "then run again."
        ) from error


def require_utc(
    spark: SparkSession, article: str, table: Location, timestamp_partitions: Sequence[str]
) -> None:
    """Check that a session reads a table's timestamp partition columns correctly.

    The log holds their values as text, many writers' without a time zone (PROTOCOL.md, Partition Value Serialization):
    Spark then takes its session's zone, delta-rs UTC. A wrong zone would shift rows in time, also those that a MERGE
    only copies.

    Raises: EngineError.
    """
    if timestamp_partitions and (zone := str(spark.conf.get("spark.sql.session.timeZone"))) not in _UTC:
        raise EngineError(
            f"Article '{article}': table '{table}' is partitioned by the timestamp column '{timestamp_partitions[0]}', "
            f"whose values in its log are in UTC; the active Spark session has spark.sql.session.timeZone {zone} and "
            "would read other times. Nothing was changed. Set it to UTC, or run without an active session.",
            article=article,
            table=str(table),
        )


def jvm_pid() -> int | None:
    """Return the process id of the embedded JVM, or None."""
    return _embedded[0].process.pid if _embedded is not None else None


def stop(*, at_exit: bool = False) -> None:
    """Stop the embedded session and its JVM, if one was started. A user's session is left alone.

    At this process' end it skips the wait of half a second for a pyspark thread: an ending JVM removes Spark's files
    too.
    """
    global _embedded
    with _lock:
        _forget_parents()
        if _embedded is None:
            return
        from mergerepl.spark import jvm

        (own_jvm, own_session), _embedded = _embedded, None
        if at_exit and (server := own_session.sparkContext._accumulatorServer) is not None:
            # A thread of pyspark reads from the JVM the counters of Python tasks. It would print the JVM's end as an
            # error.
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if own_jvm.process.poll() is None and not at_exit:
            # An orderly end lets Spark remove its files; if the JVM dies first, there is nothing left to stop.
            with contextlib.suppress(Py4JError, OSError):
                own_session.stop()
        _forget_gateway()
        jvm.stop(own_jvm)


def _forget_parents() -> None:
    """Forget an engine inherited by a fork: it belongs to the parent and goes on."""
    global _embedded
    if _embedded is not None and _owner != os.getpid():
        _embedded = None
        _forget_gateway(is_ours=False)


def _start(*, long_running: bool, with_stores: bool, step: Callable[[str], object]) -> SparkSession:
    global _embedded, _owner
    # Sessions in process start no Java, and need not load what downloads its libraries.
    from mergerepl.spark import jars, jvm
    from mergerepl.spark.java import find_java

    own_jvm = jvm.launch(
        find_java(),
        long_running=long_running,
        heap_mb=confs.heap_mb(long_running=long_running),
        more_jars=jars.s3_jars(step) if with_stores else (),
    )
    try:
        _connect(own_jvm)
        cores = confs.usable_cores()
        builder = SparkSession.builder.appName("mergerepl").master(f"local[{cores}]")
        stated = confs.session_confs(scratch=own_jvm.scratch, cores=cores, long_running=long_running)
        for key, value in {**stated, **(stores.STATIC_CONFS if with_stores else {})}.items():
            builder = builder.config(key, value)
        _embedded, _owner = (own_jvm, builder.getOrCreate()), os.getpid()
        _settle_local_files()
    except BaseException as error:
        _forget_gateway()
        jvm.stop(own_jvm)
        if isinstance(error, Exception) and not isinstance(error, EngineError):
            raise EngineError(
                f"The embedded Spark did not start: {error}. {jvm.last_words(own_jvm.log)}"
            ) from error
        raise
    return _embedded[1]


def _connect(own_jvm: jvm.Jvm) -> None:
    """Connect pyspark to the JVM.

    pyspark takes the port and secret from the environment only; they are removed again at once, so that no child
    process inherits the secret.
    """
    # Python workers run this interpreter, not the `python3` on the PATH, which differs if a venv is not activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Otherwise the active session of one thread would be another's, too.
    os.environ["PYSPARK_PIN_THREAD"] = "true"
    os.environ["PYSPARK_GATEWAY_PORT"] = str(own_jvm.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = own_jvm.secret
    try:
        SparkContext._ensure_initialized(gateway=launch_gateway())  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    _remember_functions()


class _LookedUpOnce(JavaClass):  # type: ignore[misc]
    """A class of the JVM that looks up each of its static functions once."""

    def __getattr__(self, name: str) -> object:
        member = super().__getattr__(name)
        # From now on it is found before `__getattr__`.
        setattr(self, name, member)
        return member


def _remember_functions() -> None:
    """Let pyspark look up the JVM's functions once.

    It otherwise asks the JVM for the class and the function at every use: 3,000 of the 10,500 messages of a session,
    and messages take most of Python's time.
    """
    java: Any = SparkContext._jvm
    for name, imported in (
        ("org.apache.spark.sql.functions", "functions"),
        ("org.apache.spark.api.python.PythonUtils", "PythonUtils"),
        ("org.apache.spark.sql.api.python.PythonSQLUtils", "PythonSQLUtils"),
    ):
        found = _LookedUpOnce(name, java._gateway_client)
        setattr(java, name, found)
        setattr(java, imported, found)


def _settle_local_files() -> None:
    """Keep Hadoop from writing a file `.<name>.crc` for each file on a local path, and make it respect the umask.

    Each such file costs a process (`chmod`, 3 ms). Parquet's pages hold checksums themselves; writers without Hadoop
    neither write nor read such files, and leave stale ones behind.
    """
    java: Any = SparkContext._jvm
    files = getattr(java, "org.apache.hadoop.fs.FileSystem")
    configuration = getattr(java, "org.apache.hadoop.conf.Configuration")
    local = files.getLocal(configuration())
    local.setWriteChecksum(False)
    # Made before the session's confs were known.
    local.getConf().set(confs.UMASK, f"{umask():03o}")


def _forget_gateway(*, is_ours: bool = True) -> None:
    """Make pyspark forget the JVM, so that another session can start in this process."""
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None and is_ours:
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()


atexit.register(stop, at_exit=True)

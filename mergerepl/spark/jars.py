"""The JARs of Delta and S3: fetched once into the cache, verified by checksum, put on the JVM's class path.

Spark's own `spark.jars.packages` would run Ivy at every start (3 to 4 s, measured), load Delta in a class
loader that class-data sharing does not reach, and trip over a half-filled local Maven repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from mergerepl.errors import EngineError
from mergerepl.roots import masked
from mergerepl.spark import artifacts, cache
from mergerepl.spark.artifacts import Artifact
from mergerepl.spark.java import find_java

TIMEOUT_SECONDS = 60
"""How long a repository may be silent."""

DOWNLOADS_AT_ONCE = 4


MAVEN_CENTRAL = "https://repo1.maven.org/maven2"

LOG_STORE = Path(__file__).with_name("mergerepl-logstore.jar")
"""Writes commits to S3: built by scripts/logstore.py from java/."""


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
    return cached_jars(artifacts.DELTA, "The Delta JARs")


def s3_jars(step: Callable[[str], object] = str) -> list[Path]:
    """Return the JARs for tables on S3, for the class path after Delta's; fetch them at the first use on this machine.

    A `hadoop-aws` of the user, in `$MERGEREPL_JARS` or pyspark's own folder, comes with what it needs: then only the
    log store is added.

    Raises: EngineError: as `delta_jars`.
    """
    if has_own_s3():
        return [LOG_STORE]
    return [LOG_STORE, *cached_jars(artifacts.S3, "The JARs for S3", step)]


def has_own_s3() -> bool:
    """True if the user's own JARs have `hadoop-aws`.

    Raises: EngineError: a JAR of `$MERGEREPL_JARS` is missing.
    """
    own = [*chosen_jars(), *(pyspark_home() / "jars").glob("hadoop-aws-*.jar")]
    return any(jar.name.startswith("hadoop-aws-") for jar in own)


def cached_jars(wanted: Sequence[Artifact], names: str, step: Callable[[str], object] = str) -> list[Path]:
    """Return the paths of JARs in the cache; fetch those that are missing or damaged.

    Raises: EngineError: one cannot be fetched; the message begins with `names`.
    """
    if missing := [artifact for artifact in wanted if not is_intact(artifact)]:
        fetch(missing, names, step)
    return [cached_jar(artifact) for artifact in wanted]


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


def fetch(wanted: Sequence[Artifact], names: str, step: Callable[[str], object] = str) -> None:
    """Fetch JARs into the cache, from Maven Central or the repository in `$MERGEREPL_MAVEN`.

    They come into a separate folder, are verified, and only then renamed into place: an interrupted or concurrent
    process leaves whole files or none. Python's proxy and trusted certificates count. `step` is told of each JAR.

    Raises: EngineError: the cache cannot be written, the repository does not answer, or a JAR has another checksum.
    """
    try:
        folder = cache.folder("jars")
        scratch = tempfile.TemporaryDirectory(dir=cache.root(), prefix="fetch-")
    except OSError as error:
        raise EngineError(
            f"{names} cannot be kept in '{cache.root()}': {error.strerror}. Make it writable, name another folder "
            "in MERGEREPL_CACHE, or name the JARs in MERGEREPL_JARS."
        ) from error
    repository = os.environ.get("MERGEREPL_MAVEN") or MAVEN_CENTRAL
    with scratch as work, ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:

        def bring(artifact: Artifact) -> Path:
            brought = Path(work) / artifact.file_name
            download(f"{repository.rstrip('/')}/{artifact.path}", brought, names, wanted)
            if (found := checksum(brought)) != artifact.sha256:
                raise EngineError(
                    f"{artifact.file_name} is not the file mergerepl expects: SHA-256 {found}, expected "
                    f"{artifact.sha256}. Nothing was kept. Look for a proxy or mirror that changes "
                    f"downloads; a JAR from elsewhere can be named in MERGEREPL_JARS."
                )
            return brought

        all_brought = []
        for number, brought in enumerate(pool.map(bring, wanted), start=1):
            step(f"fetch {names[0].lower()}{names[1:]} ({number} of {len(wanted)})")
            all_brought.append(brought)
        for brought in all_brought:
            brought.replace(folder / brought.name)


def download(address: str, to: Path, names: str, wanted: Sequence[Artifact]) -> None:
    """Write the content of a repository's address to a file.

    Raises: EngineError: the message names the JARs that are wanted.
    """
    try:
        with urlopen(address, timeout=TIMEOUT_SECONDS) as answer, to.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, HTTPException) as error:
        # Python quotes the credentials of an address in its error.
        why = type(error).__name__ if "@" in address else error
        listed = [each.coordinates for each in wanted]
        said = " and ".join(listed) if len(listed) < 3 else f"{len(listed)} JARs"
        raise EngineError(
            f"{names} could not be fetched: {said}: {masked(address)}: {why}. They are fetched once, which needs "
            f"a network. Run the command again once connected; or copy the JARs from a machine that has them into "
            f"{cache.folder('jars')}; or name them in MERGEREPL_JARS; or name your company's repository in MERGEREPL_MAVEN."
        ) from error


def main(words: Sequence[str]) -> None:
    """Fetch Delta's JARs, with the word `s3` those for S3, too; `--log-store` prints the path of the log store's JAR."""
    if unknown := set(words) - {"s3", "--log-store"}:
        sys.exit(
            f"unknown words: {', '.join(sorted(unknown))}. Give s3, --log-store, or nothing for Delta's JARs."
        )
    if "--log-store" in words:
        sys.stdout.write(f"{LOG_STORE}\n")
        return

    def say(step: str) -> None:
        sys.stderr.write(f"{step}\n")

    try:
        find_java()
        delta_jars()
        if "s3" in words:
            s3_jars(say)
    except EngineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

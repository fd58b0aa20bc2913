"""The Delta JARs: resolved once into the cache, verified by checksum, put on the JVM's class path.

Spark's own `spark.jars.packages` would run Ivy at every start (3 to 4 s, measured), load Delta in a class
loader that class-data sharing does not reach, and trip over a half-filled local Maven repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from mergerepl.errors import EngineError
from mergerepl.spark import cache
from mergerepl.spark.java import Java, find_java

RESOLVE_TIMEOUT_SECONDS = 300


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


# Two are enough for path tables. The delta-kernel JARs that the POM also names serve the V2 connector and
# Unity Catalog.
ARTIFACTS = (
    Artifact(
        "delta-spark_4.2_2.13", "4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Artifact("delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)

# An own settings file, so that neither ~/.ivy2 nor ~/.m2 (which may hold POMs without their JARs) is read or written.
# `ibiblio` without a root is Ivy's built-in Maven Central.
IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="${ivy.home}/cache"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def delta_jars(java: Java) -> list[Path]:
    """Return the Delta JARs for the class path; resolve them at the first use on this machine.

    `$MERGEREPL_JARS` (paths, separated as in PATH) comes first; JARs that the user put into pyspark's own folder come
    before the cache, and need nothing added.

    Raises:
        EngineError: A JAR of `$MERGEREPL_JARS` is missing, or one cannot be resolved or has changed.
    """
    if chosen := chosen_jars():
        return chosen
    if pyspark_jars():
        return []
    jars = [cached_jar(artifact) for artifact in ARTIFACTS]
    if not all(map(is_intact, ARTIFACTS)):
        resolve(java)
    return jars


def pyspark_jars() -> list[Path]:
    """Return the Delta JARs in pyspark's own folder; empty if Delta's main one is not among them."""
    folder = pyspark_home() / "jars"
    main = sorted(folder.glob("delta-spark_*.jar"))
    return main and [*main, *sorted(folder.glob("delta-storage-*.jar"))]


def chosen_jars() -> list[Path]:
    """Return the JARs that `$MERGEREPL_JARS` names.

    Raises:
        EngineError: One of them does not exist.
    """
    named = (name for name in os.environ.get("MERGEREPL_JARS", "").split(os.pathsep) if name)
    # Not Path.expanduser, which fails for an unknown user, for whom the file does not exist either.
    jars = [Path(os.path.expanduser(name)) for name in named]
    if missing := [str(jar) for jar in jars if not jar.is_file()]:
        raise EngineError(
            f"MERGEREPL_JARS names files that do not exist: {', '.join(missing)}. "
            f"Correct it, or unset it to have mergerepl resolve the Delta JARs itself."
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


def resolve(java: Java) -> None:
    """Resolve the JARs with the Ivy inside pyspark into the cache.

    They are resolved into a separate folder, verified, and only then renamed into place: an interrupted or concurrent
    process leaves whole files or none.

    Raises:
        EngineError: The cache cannot be written, Ivy failed, or a resolved JAR has another checksum.
    """
    try:
        folder = cache.folder("jars")
        scratch = tempfile.TemporaryDirectory(dir=cache.root(), prefix="resolve-")
    except OSError as error:
        raise EngineError(
            f"The Delta JARs cannot be kept in '{cache.root()}': {error.strerror}. Make it writable, name another folder "
            "in MERGEREPL_CACHE, or name the JARs in MERGEREPL_JARS."
        ) from error
    with scratch as work_name:
        work = Path(work_name)
        run_ivy(java, work)
        for artifact in ARTIFACTS:
            brought = work / "out" / artifact.file_name
            found = checksum(brought) if brought.is_file() else "no file"
            if found != artifact.sha256:
                raise EngineError(
                    f"{artifact.file_name} is not the file mergerepl expects: SHA-256 {found}, expected "
                    f"{artifact.sha256}. Nothing was kept. Look for a proxy or mirror that changes "
                    f"downloads; a JAR from elsewhere can be named in MERGEREPL_JARS."
                )
        for artifact in ARTIFACTS:
            (work / "out" / artifact.file_name).replace(folder / artifact.file_name)


def run_ivy(java: Java, work: Path) -> None:
    """Run Ivy in `work`, leaving the JARs in `work/out`.

    Raises:
        EngineError: Ivy is missing from pyspark, or failed.
    """
    ivy = next((pyspark_home() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise EngineError(
            "pyspark's jars have no ivy-*.jar: reinstall pyspark, or name the Delta JARs in MERGEREPL_JARS."
        )
    dependencies = "".join(
        f'<dependency org="io.delta" name="{a.name}" rev="{a.version}" transitive="false"'
        ' conf="default->master"/>'
        for a in ARTIFACTS
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="mergerepl" module="engine"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    (work / "settings.xml").write_text(IVY_SETTINGS)
    # A company's own repository: its Ivy settings file replaces ours.
    settings = os.environ.get("MERGEREPL_IVY_SETTINGS") or str(work / "settings.xml")
    arguments = ["-cp", str(ivy), "org.apache.ivy.Main", "-warn", "-settings", settings]
    arguments += ["-ivy", str(work / "ivy.xml"), "-confs", "default", "-types", "jar"]
    arguments += ["-retrieve", str(work / "out" / "[artifact]-[revision].[ext]")]
    options = ["-Xmx256m", f"-Divy.home={work}", f"-Divy.default.ivy.user.dir={work}", *proxy_options()]
    log = cache.folder("logs") / "resolve.log"
    log.unlink(missing_ok=True)
    # First with the certificates that this Java trusts, then with those that Python trusts.
    for trust in ([], trust_options(work)):
        if run_java(java, [*options, *trust, *arguments], log):
            return
    names = " and ".join(f"io.delta:{a.name}:{a.version}" for a in ARTIFACTS)
    raise EngineError(
        f"The Delta JARs could not be resolved: {names}. They are fetched once, from Maven Central, "
        f"which needs a network (Ivy's output: {log}). Run the command again once connected; or copy the "
        f"JARs from a machine that has them into {cache.folder('jars')}; or name them in MERGEREPL_JARS; "
        f"or name your company's Ivy settings in MERGEREPL_IVY_SETTINGS."
    )


def run_java(java: Java, arguments: list[str], log: Path) -> bool:
    """Run a Java program, adding its output to a log; return whether it succeeded."""
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                [java.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=RESOLVE_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"no answer within {RESOLVE_TIMEOUT_SECONDS} s\n".encode())
            return False
    return done.returncode == 0


# Trust stores hold no secret; every JDK's own one has this password.
TRUST_STORE_PASSWORD = "changeit"


def proxy_options() -> list[str]:
    """Return the JVM options for the proxy that Python would use, if any."""
    proxy = urlsplit(getproxies().get("https", ""))
    if proxy.hostname is None:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def trust_options(work: Path) -> list[str]:
    """Return the JVM options to trust Python's certificates, written as a trust store into `work`."""
    certificates = trusted_certificates()
    if not certificates:
        return []
    store = work / "trusted.jks"
    store.write_bytes(trust_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
    ]


def trusted_certificates() -> list[bytes]:
    """Return the certificates (DER) that Python trusts on this machine."""
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    if not context.get_ca_certs() and folder is not None:
        # OpenSSL reads a folder only on meeting a certificate: load it all to have a list.
        for file in Path(folder).iterdir():
            with contextlib.suppress(OSError, ssl.SSLError):
                context.load_verify_locations(cafile=file)
    return context.get_ca_certs(binary_form=True)


def trust_store(certificates: list[bytes]) -> bytes:
    """Return a trust store in Java's JKS format, which needs no `keytool`: the wheel's runtime has none."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        # An entry: trusted certificate (2), its alias, no date, its kind, its bytes.
        body += struct.pack(">I", 2) + _utf(f"trusted-{number}") + struct.pack(">Q", 0)
        body += _utf("X.509") + struct.pack(">I", len(certificate)) + certificate
    password = TRUST_STORE_PASSWORD.encode("utf-16-be")
    return body + hashlib.sha1(password + b"Mighty Aphrodite" + body).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def main() -> int:
    """Find a Java and resolve the Delta JARs."""
    try:
        java = find_java()
        delta_jars(java)
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

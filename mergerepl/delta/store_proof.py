"""Proof, before the first use of a root on an object store, that the store refuses a write that comes second.

Two writers of a table rely on this alone. A store, or a proxy in front of it, that ignores conditions answers like any
other, and loses commits later. So each library tries what must fail and what must succeed, on objects of its own, and
reads what another one wrote: two endpoints with one bucket name would pass separate proofs.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from mergerepl.errors import EngineError, StoreError, StoreUnavailableError
from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError, ObjectStorage, storage_options
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import files_in, remove_leftover, storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROOF = ".mergerepl.proof"
"""The object of a root that was proved; its text is the marker that each library must read."""

_SCRATCH = ".mergerepl.proving"


def require_proof(root: Location) -> None:
    """Prove a store once for each root; a place on this machine needs no proof.

    Raises: StoreError: The store ignores conditions, or has another fault that loses commits; StoreUnavailableError.
    """
    if root.is_local or is_rehearsal() or storage(root).exists(root / PROOF):
        return
    prove(root)


def prove(root: Location) -> None:
    """Try conditional writes through obstore and deltalake; record the result at the root.

    Raises: as `require_proof`.
    """
    marker = str(uuid.uuid4())
    folder = root / _SCRATCH / marker
    objects = storage(root)
    assert isinstance(objects, ObjectStorage)
    try:
        _prove_objects(objects, folder)
        _prove_delta_rs(objects, folder / "table", marker)
    finally:
        objects.delete_tree(folder)
    objects.put(root / PROOF, json.dumps({"format": 1, "marker": marker}).encode())


def prove_spark(spark: SparkSession, root: Location) -> None:
    """Check that a Spark session sees the same store as this process, and that its log store refuses a second commit.

    Raises: StoreError.
    """
    from mergerepl.spark.stores import read_text, writes_over

    at = root / PROOF
    found = storage(root).read(at)
    if found is None:
        return
    if read_text(spark, at.spark_uri) != found[0].decode():
        raise StoreError(
            f"The Spark session reads another store than mergerepl at '{root}': two endpoints have a bucket of this name. "
            "Give the session the endpoint of AWS_ENDPOINT_URL (fs.s3a.endpoint).",
            location=str(root),
        )
    if is_rehearsal():
        return
    scratch = root / _SCRATCH / str(uuid.uuid4())
    storage(root).put(scratch, b"first")
    try:
        if writes_over(spark, scratch.spark_uri):
            raise _ignores(root, "If-None-Match", "Spark")
    finally:
        storage(root).delete(scratch)


def prove_callers(spark: SparkSession, *roots: Location) -> None:
    """Prove the stores of roots to a session made elsewhere: it may have another log store, or another endpoint.

    Raises: as `prove_spark`; EngineError if it would overwrite commits.
    """
    from mergerepl.spark import session as engine
    from mergerepl.spark.stores import require_log_store

    for root in roots:
        if not root.is_local and engine.jvm_pid() is None:
            require_log_store(spark)
            prove_spark(spark, root)


def prove_executors(spark: SparkSession, root: Location) -> int:
    """Let executors write a file each at a root, and find the files here; return how many there were.

    In a folder of their own disk the files would be written without an error, and be missing here.

    Raises: EngineError if they are not here.
    """
    from mergerepl.spark.plain import plain_errors

    context: Any = spark.sparkContext
    tasks = max(2, int(context.defaultParallelism))
    folder = root / _SCRATCH / str(uuid.uuid4())
    reason = f"{tasks} tasks wrote a file each, and not all of them are there"
    found = 0
    try:
        with plain_errors("the executors of the cluster wrote files", again=""):
            rows = spark.range(0, tasks, 1, tasks).write
            rows.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(folder.spark_uri)
        found = sum(each.name.startswith("part-") for each in files_in(folder))
    except StoreError as error:
        reason = error.message.strip().rstrip(".")
    finally:
        remove_leftover(root / _SCRATCH)
    if found != tasks:
        raise EngineError(
            f"The executors of the Spark cluster ({context.master}) do not see '{root}': {reason}. Nothing was changed. "
            "Keep replicas in a bucket, or in a folder that every node mounts under the same name; or run without the "
            "cluster (`--master 'local[*]'`).",
            replica=str(root),
        )
    return tasks


_proved: set[tuple[str, Location]] = set()
"""Applications of Spark, and the folders that their executors wrote to."""


def require_shared_folders(spark: SparkSession, *roots: Location) -> SparkSession:
    """Check once for each folder that the executors of a cluster see it; return the session.

    Raises: EngineError.
    """
    from mergerepl.spark.cluster import is_on_cluster

    for root in roots if is_on_cluster(spark) else ():
        proof = spark.sparkContext.applicationId, root
        if root.is_local and proof not in _proved:
            prove_executors(spark, root)
            _proved.add(proof)
    return spark


def _prove_objects(objects: ObjectStorage, folder: Location) -> None:
    at = folder / "object"
    # An ETag is a hash of the content, so the contents differ.
    bodies = iter([f"{number} {uuid.uuid4()}".encode() for number in range(6)])
    first = objects.put_if_absent(at, next(bodies))
    try:
        objects.put_if_absent(at, next(bodies))
    except FileExistsError:
        pass
    else:
        raise _ignores(folder, "If-None-Match", "obstore")
    if at.name not in objects.list_from(folder):
        raise StoreError(
            f"The store of '{folder.parent.parent}' does not list an object that was just written: commits would be "
            "overlooked. Use a store whose listings are consistent.",
            location=str(folder),
        )
    # As a lease: renewed twice with the tag of the last answer, released, taken again.
    tag = first
    try:
        for _ in range(3):
            tag = objects.put_if_unchanged(at, next(bodies), tag)
    except (ChangedError, StoreUnavailableError) as error:
        if isinstance(error, StoreUnavailableError) and "PreconditionFailed" not in error.message:
            raise
        raise StoreError(
            f"The store of '{folder.parent.parent}' refuses to replace an object by the tag that it gave (If-Match): "
            "locks could not be renewed. Use a store that supports conditional writes.",
            location=str(folder),
        ) from error
    try:
        objects.put_if_unchanged(at, next(bodies), first)
    except ChangedError:
        return
    raise _ignores(folder, "If-Match", "obstore")


def _prove_delta_rs(objects: ObjectStorage, table: Location, marker: str) -> None:
    """Let deltalake commit, and obstore find that commit: it has the same store.

    deltalake cannot be made to send a PUT for a version that it sees taken. It sends the condition of obstore, by the same
    library in Rust; `storage_options` refuses the variables that would change that.
    """
    import pyarrow as pa
    from deltalake import CommitProperties, write_deltalake

    write_deltalake(
        table.uri,
        pa.table({"marker": [marker]}),
        storage_options=storage_options(table),
        commit_properties=CommitProperties(custom_metadata={"marker": marker}),
    )
    at = table / "_delta_log" / f"{0:020}.json"
    found = objects.read(at)
    if found is None or marker.encode() not in found[0]:
        raise StoreError(
            f"deltalake writes to another store than mergerepl at '{table.parent}': check AWS_ENDPOINT_URL and variables "
            "of the environment that begin with AWS_.",
            location=str(table),
        )


def _ignores(folder: Location, condition: str, library: str) -> StoreError:
    return StoreError(
        f"The store at '{folder.scheme}://{folder.bucket}' ignores {condition} (tried through {library}): commits of two "
        "writers would overwrite each other. Nothing was changed. Use a store that supports conditional writes, such as "
        "S3, without a proxy that drops the header.",
        location=str(folder),
    )

"""Files of a table that libraries other than Spark misread or remove wrongly: find and rewrite them.

By default Spark writes times as INT96. deltalake takes these for nanoseconds in 64 bits, and when it rewrites the file,
9999-12-31 becomes 1816-03-29. Spark writes a path such as `region=Île/…` unencoded, deltalake encodes it: the file that
deltalake then removes does not belong to the table.

A faulty file is replaced by the same rows in the same order, in a commit that changes no data.

Each new file replaces one, with its partition values, its bounds, its deletion vector and the ids of its rows.
Delta's own transaction commits them and checks the commits of other writers.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from py4j.java_gateway import JavaClass
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.commits import is_foreign
from mergerepl.delta.footers import has_int96, read_footer
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.reads import write_files
from mergerepl.delta.table import file_names
from mergerepl.delta.transactions import session_with_mark
from mergerepl.errors import StoreError
from mergerepl.spark.callers import active_session
from mergerepl.store.location import Location
from mergerepl.store.storage import (
    copy_file,
    facts_of,
    files_in,
    link_file,
    make_folder,
    remove_leftover,
    rename,
)

_AS_ONE = {
    # One task reads a file from start to end: deletion vectors and row ids count rows.
    "spark.sql.files.maxPartitionBytes": str(2**50),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxRecordsPerFile": "0",
    # Read the file's own bytes, whatever the table pads.
    "spark.sql.readSideCharPadding": "false",
}


@dataclass(frozen=True)
class FaultyFiles:
    """Paths of a table's files as in its log: with times as INT96, and with non-ASCII names."""

    table: Location
    count: int
    """The number of all files of the table."""
    int96: Sequence[str]
    not_ascii: Sequence[str]

    @property
    def names(self) -> list[str]:
        """All files with a fault."""
        return sorted({*self.int96, *self.not_ascii})


def faulty_files(table: Location) -> FaultyFiles:
    """Check all files of a table's head.

    Raises: StoreError if it is not a table or its log has a gap; errors of deltalake and pyarrow if the log or a file
    cannot be read.
    """
    names = file_names(table, head_version(table))
    own = [name for name in names if not is_foreign(table, name)]
    return FaultyFiles(
        table,
        len(names),
        [name for name in own if has_int96(read_footer(table / unquote(name)))],
        [name for name in own if not name.isascii()],
    )


def mend_files(spark: SparkSession, faults: FaultyFiles, mark: CommitMark) -> int:
    """Replace the table's remaining faulty files by files that every library reads; return their number.

    Times are written as Spark reads them. The caller holds the replica.

    Raises: StoreError with another Delta (Databricks), or if a new file differs from the old one; Delta's error if
    another writer's commit came first.
    """
    session = session_with_mark(spark, mark)
    for name, value in _AS_ONE.items():
        session.conf.set(name, value)
    jvm: Any = session._jvm
    logs = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog")
    if not isinstance(logs, JavaClass):
        raise StoreError(
            f"The files of '{faults.table}' cannot be written again in this Spark: its Delta is another one. Nothing was "
            "changed. Run the command without an active session, where mergerepl starts its own.",
            table=str(faults.table),
        )
    nothing = getattr(jvm, "scala.Option").empty()
    with active_session(session):
        transaction = logs.forTable(session._jsparkSession, str(faults.table)).startTransaction(
            nothing, nothing
        )
        rows = DataFrame(transaction.snapshot().allFiles().toDF(), session)
        rows = rows.where(F.col("path").isin(*faults.names)).select(F.to_json(F.struct("*")).alias("text"))
        files = [json.loads(text) for text in rows.toArrow()["text"].to_pylist()]
        actions = [
            action
            for file in files
            for action in (_removed(file), _added(session, faults.table, file, set(faults.int96)))
        ]
        if actions:
            from_json = getattr(jvm, "org.apache.spark.sql.delta.actions.Action").fromJson
            operation = getattr(
                getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate$"), "MODULE$"
            )
            transaction.commit(
                jvm.PythonUtils.toSeq([from_json(json.dumps(each)) for each in actions]), operation
            )
    return len(files)


def _removed(file: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "path",
        "partitionValues",
        "size",
        "tags",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
    )
    body = {name: file[name] for name in kept if name in file}
    now = int(time.time() * 1000)
    return {"remove": {**body, "deletionTimestamp": now, "dataChange": False, "extendedFileMetadata": True}}


def _added(
    session: SparkSession, table: Location, file: dict[str, Any], int96: Collection[str]
) -> dict[str, Any]:
    name = unquote(file["path"])
    old = table / name
    folder = old.parent if file["path"].isascii() else table
    new = folder / f"part-00000-{uuid4()}.c000.parquet"
    if file["path"] in int96:
        _write_again(session, table, old, new)
    else:
        copy_file(old, new)
    facts = facts_of(new)
    # The folder keeps its name from the log.
    path = f"{file['path'].rpartition('/')[0]}/{new.name}" if folder != table else new.name
    changed = {"path": path, "size": facts.size, "modificationTime": facts.written_ns // 1_000_000}
    return {"add": {**file, **changed, "dataChange": False}}


def _write_again(session: SparkSession, table: Location, old: Location, new: Location) -> None:
    import pyarrow.parquet as pq

    scratch = table / f"run-{uuid4()}"
    try:
        make_folder(scratch)
        # Spark may take a user's name for a pattern, or for hidden.
        link_file(old, source := scratch / "source.parquet")
        write_files(session.read.parquet(Location.of(source).spark_uri), scratch / "new")
        (written,) = files_in(scratch / "new", ".parquet")
        before, after = read_footer(old), read_footer(written)
        columns = [pq.read_schema(file).remove_metadata() for file in (old, written)]
        ids = [[(field.metadata or {}).get(b"PARQUET:field_id") for field in each] for each in columns]
        if before.num_rows != after.num_rows or columns[0].names != columns[1].names or ids[0] != ids[1]:
            raise StoreError(
                f"'{old}' cannot be written again: Spark reads other rows or columns of it than it holds. Nothing was "
                f"changed. Write the table's rows again yourself, such as with INSERT OVERWRITE.",
                table=str(table),
            )
        rename(written, new)
    finally:
        remove_leftover(scratch)

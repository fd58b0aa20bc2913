"""The rows of a source at an LSN: where a consumer begins, without gap or overlap."""

import os
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from mergerepl.cdc.database import database_at
from mergerepl.cdc.intervals import checked_lsn
from mergerepl.cdc.lsn_times import lsn_of_text, version_through
from mergerepl.cdc.queries import reading_session
from mergerepl.cdc.refusals import CdcError
from mergerepl.delta.log import is_another_commit, is_delta_table
from mergerepl.delta.table import open_table
from mergerepl.delta.versions import read_version
from mergerepl.errors import StoreError
from mergerepl.logreader.column_changes import column_id, is_mapped
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.rows.nested import in_shape
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason, plain_errors


class Snapshot(NamedTuple):
    """Rows of a source (the captured columns), and the LSN that they are of: go on from the next one."""

    rows: DataFrame
    lsn: Lsn


def snapshot(
    database: str | os.PathLike[str],
    instance: str,
    lsn: bytes | str | None = None,
    *,
    spark: SparkSession | None = None,
) -> Snapshot:
    """Return the rows of an instance's source at exactly an LSN, and that LSN; by default the highest one.

    The rows are read when they are used: files that VACUUM removed meanwhile fail then.

    Raises: CdcUsageError 22985 if there is no such instance; LsnRangeError if the LSN is not in its interval; CdcError
        22859 if the source cannot be read at that version any more.
    """
    found = database_at(database)
    chosen = found.instance(instance)
    at = checked_lsn(found, chosen, None if lsn is None else lsn_of_text(lsn))
    version = version_through(found, chosen, at)
    source = read_state(found.log).sources[chosen.source_object_id]
    path = found.root / source.source_path
    if not is_delta_table(path) or is_another_commit(path, source.position, source.position_commit):
        why = "the table at its path is gone, or another one"
        raise CdcError.version_gone(source.source_path, version, why)
    session = reading_session(spark)
    with plain_errors("a snapshot was read"):
        try:
            fields = open_table(path, version).fields
            rows = read_version(session, path, version)
        except StoreError as error:
            raise CdcError.version_gone(source.source_path, version, error.message.rstrip(".")) from error
        except Exception as error:
            if (why_gone := gone_reason(error)) is None:
                raise
            raise CdcError.version_gone(source.source_path, version, why_gone) from error
    stored = {column.name: column for column in rows.schema}
    name_of = (
        {column_id(fields, each["name"]): str(each["name"]) for each in fields} if is_mapped(fields) else None
    )
    columns = []
    for column in found.captured(chosen.object_id):
        name = column.column_name if name_of is None else name_of.get(column.column_id, "")
        if name not in stored:
            value = F.lit(None).cast(column.column_type)
        elif stored[name].dataType.simpleString() != column.column_type:
            wanted = DataType.fromDDL(column.column_type)
            value = in_shape(F.col(quote(name)), stored[name].dataType, wanted)
        else:
            value = F.col(quote(name))
        columns.append(value.alias(column.column_name))
    return Snapshot(rows.select(*columns), at)

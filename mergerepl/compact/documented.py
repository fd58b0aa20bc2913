"""The queries as SQL Server Compact's documentation prints them, on live tables, with views for the names that they use.

They lose changes in some orders of commits: see docs/compact.md.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.compact.database import facts_of
from mergerepl.compact.numbers import packed, packed_column
from mergerepl.compact.session import Session
from mergerepl.delta.log import head_version
from mergerepl.delta.versions import read_version
from mergerepl.model.tracking import Anchors, TrackedTable
from mergerepl.rows.sql import literal, quote
from mergerepl.spark.session import in_session, new_session
from mergerepl.systables.compact import COMMIT_SEQUENCE, INSERT_CSN, TABLE_NAME


def documented(session: Session, table: TrackedTable, query: str, anchors: Anchors) -> DataFrame:
    """Return the present result of a printed query."""
    spark, database = new_session(session.spark), session.database
    sequence = _live(spark, database.control.path(COMMIT_SEQUENCE.name))
    sequence.createOrReplaceTempView(COMMIT_SEQUENCE.name)
    deleted = _live(spark, database.deleted_rows)
    deleted.withColumns(
        {"__sysTName": F.col(TABLE_NAME), "__sysInsertTxCsn": packed_column(F.col(INSERT_CSN))}
    ).createOrReplaceTempView("__sysOcsDeletedRows")
    rows = _live(spark, facts_of(database, table).path)
    rows.createOrReplaceTempView(quote(table.name))
    text = query.format(table=quote(table.name), name=literal(table.name))
    for name in ("lbsn", "lcsn", "ecsn"):
        text = text.replace(f":{name.upper()}", f"X'{packed(getattr(anchors, name)).hex()}'")
    return in_session(spark.sql(text), session.spark)


def _live(spark: SparkSession, path: Path) -> DataFrame:
    return read_version(spark, path, head_version(path))

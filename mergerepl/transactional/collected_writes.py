"""Writes of custom procedures: collected, checked before the first write, then done once each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import (
    NewTable,
    Transaction,
    append,
    commit_once,
    create_table,
    head_version,
    is_delta_table,
    lost_commits,
    marked_session,
    open_table,
)
from mergerepl.delta.types import field, json_of
from mergerepl.failpoints import failpoint
from mergerepl.roots import resolved
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import in_session
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import table_text
from mergerepl.transactional.position import is_written
from mergerepl.transactional.refusals import TransactionalUsageError


@dataclass(frozen=True)
class Write:
    """Rows for a table. `place` names the write among those of its subscription: article, operation, number."""

    kind: Literal["append", "merge", "delete"]
    rows: DataFrame
    table: Location
    on: tuple[str, ...]
    place: str


def prepared(writes: Sequence[Write], root: Location, kept: Kept) -> list[Write]:
    """Return the writes with their rows computed: an error in them leaves nothing. Those without rows are left out.

    Raises: TransactionalUsageError if a table or its columns are missing, or two rows agree in `on`.
    """
    found = []
    for write in writes:
        _check(write, root)
        rows = kept.keep(write.rows)
        if not rows.count():
            continue
        if write.on:
            keys = rows.groupBy(*(F.col(quote(name)) for name in write.on)).agg(
                F.count(F.lit(1)).alias("rows")
            )
            if keys.where("rows > 1").limit(1).count():
                raise _refused(
                    write,
                    f"has several rows of one key ({', '.join(write.on)})",
                    "`call.net()` leaves one of each row.",
                )
        found.append(replace(write, rows=rows))
    return found


def _check(write: Write, root: Location) -> None:
    table = Location.of(write.table)
    is_below = Location.of(resolved(table)).is_below(Location.of(resolved(root)))
    if not is_below or any(part.startswith("_") for part in table.relative_to(root).split("/")):
        raise _refused(write, f"goes to a place that is no table below '{root}'", "Name a table there.")
    if not is_delta_table(table):
        if write.kind == "append":
            return
        raise _refused(write, "goes to a table that is not there", "Create it first.")
    known = {each["name"].lower() for each in open_table(table).fields}
    for name in (*write.rows.columns, *write.on):
        if name.lower() not in known:
            raise _refused(write, f"has a column '{name}' that the table has not", "Add it to the table.")
    missing = [name for name in write.on if name not in write.rows.columns]
    if missing:
        raise _refused(write, f"has no column '{missing[0]}', which `on` names", "Select it.")


def _refused(write: Write, why: str, remedy: str) -> TransactionalUsageError:
    return TransactionalUsageError(
        f"The {write.kind} of a procedure to '{write.table}' {why}. Nothing was applied. {remedy}",
        table=str(write.table),
    )


def heads_of(writes: Sequence[Write]) -> dict[str, int]:
    """Return the versions of the written tables for the plan, -1 for a missing table."""
    tables = {write.table for write in writes}
    return {str(table): head_version(table) if is_delta_table(table) else -1 for table in tables}


def carry_out(
    writes: Sequence[Write],
    spark: Callable[[], SparkSession],
    transaction_of: Callable[[str], Transaction],
    heads: Mapping[str, int],
) -> None:
    """Do each write once, also over crashes; `transaction_of` gives the Delta transaction of a place.

    `heads` are those of the plan (`heads_of`): commits after them show finished writes. A Delta transaction may expire.

    Raises: CommitConflictError if other writers win every time.
    """
    for write in writes:
        transaction = transaction_of(write.place)
        if not is_delta_table(write.table):
            _create(write, replace(transaction.mark, step=f"{transaction.mark.step}:new"))
        failpoint("distribute.before_write")
        head = heads.get(str(write.table), -1)
        if not is_written(write.table, transaction.mark, head):
            if write.kind == "append":
                append(write.rows, write.table, transaction)
            else:
                _merge(write, spark(), transaction, head)
        failpoint("distribute.after_write")


def _create(write: Write, mark: CommitMark) -> None:
    fields = [field(each.name, json_of(each.dataType.simpleString())) for each in write.rows.schema.fields]
    create_table(write.table, NewTable(fields), mark)


def _merge(write: Write, spark: SparkSession, transaction: Transaction, head: int) -> None:
    names = [quote(name) for name in write.rows.columns]
    on = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in write.on)
    others = [quote(name) for name in write.rows.columns if name not in write.on]
    text = f"MERGE INTO {table_text(str(write.table))} AS t USING written AS s ON {on}\n"
    if write.kind == "delete":
        text += "WHEN MATCHED THEN DELETE"
    else:
        if others:
            text += f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{each} = s.{each}' for each in others)}\n"
        values = ", ".join(f"s.{each}" for each in names)
        text += f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"

    def merge() -> None:
        with marked_session(spark, transaction) as session:
            in_session(write.rows, session).createOrReplaceTempView("written")
            session.sql(text)

    lost = lost_commits(
        f"'{write.table}'",
        f"a procedure's {write.kind}",
        "Run again: the same batch is finished.",
        table=str(write.table),
    )
    commit_once(merge, write.table, transaction, from_version_exclusive=head, lost=lost)

"""Procedures of the user's own: Python callables over many commands at once (transactional.md 9).

A replica holds their names only; the code is registered in the agent's own process.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import types
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
from mergerepl.failpoints import failpoint
from mergerepl.roots import resolved
from mergerepl.rows.arrow_values import ArrowAlone
from mergerepl.rows.images import same_value
from mergerepl.rows.sql import quote, table_text
from mergerepl.spark.callers import callers_session
from mergerepl.spark.in_memory import Kept, frame_of
from mergerepl.spark.session import in_session, new_session
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import CommandType, Method, Operation, bit_text, mask_text
from mergerepl.transactional.position import is_written
from mergerepl.transactional.refusals import SCHEMA_CHANGED, TransactionalError, TransactionalUsageError

OPERATIONS = {each.name.lower(): each for each in Operation}
_READS = ("SELECT", "WITH", "VALUES", "TABLE")
_TRANSACTION = "spark.databricks.delta.write.txn"


@dataclass(frozen=True)
class Procedure:
    """A registered procedure. `columns` are those of the article that it was written for; None is any."""

    name: str
    operation: Operation
    method: Method
    columns: tuple[str, ...] | None
    body: Callable[["Call"], None]


_registered: dict[str, Procedure] = {}


def procedure(
    name: str,
    *,
    operation: Literal["insert", "update", "delete"],
    call: str = "CALL",
    columns: Sequence[str] | None = None,
) -> Callable[[Callable[["Call"], None]], Callable[["Call"], None]]:
    """Register a procedure in this process: `upd_cmd: "XCALL audit_update"` of an article names it.

    `call` is the command type's method. `columns` are the article's columns, in order: after a change of columns the agent
    refuses the procedure; None accepts any columns.

    Raises: TransactionalUsageError if the method does not fit the operation.
    """
    try:
        command = CommandType.parse(f"{call} {name}", OPERATIONS[operation])
    except (KeyError, ValueError) as error:
        raise TransactionalUsageError(
            f"The procedure '{name}' cannot be registered: {call} for {operation} {error}."
        ) from error

    def register(body: Callable[["Call"], None]) -> Callable[["Call"], None]:
        stated = tuple(columns) if columns is not None else None
        _registered[name] = Procedure(name, command.operation, command.method, stated, body)
        return body

    return register


def load(modules: Sequence[str]) -> None:
    """Import the modules that register procedures; they may lie in the working folder.

    Raises: TransactionalUsageError if one cannot be imported.
    """
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise TransactionalUsageError(
                f"The procedures of '{module}' cannot be imported: {type(error).__name__}: {error}. Nothing was changed. "
                "Name a module as `import` does, such as `feed_procedures` for ./feed_procedures.py."
            ) from error
    if modules:
        ArrowAlone.end()


def custom_operations(shape: Shape) -> dict[Operation, str]:
    """Return the operations of an article that a custom procedure carries out, with its name."""
    named = {each: shape.command(each).procedure for each in Operation}
    return {each: name for each, name in named.items() if name not in (None, shape.procedure(each))}


def procedures_of(article: Shape) -> dict[Operation, Procedure]:
    """Return custom procedures of an article, by operation.

    Raises: TransactionalUsageError if one is not registered here, or is registered for another operation or method;
        TransactionalError 21076 if one was written for other columns.
    """
    found = {}
    for operation, name in custom_operations(article).items():
        known = _registered.get(name)
        method = article.command(operation).method
        if known is None:
            raise TransactionalUsageError(
                f"Article '{article.article}' calls the procedure '{name}', and this process has none of that name. "
                "Nothing was applied. Name the module that registers it: `--procedures MODULE`."
            )
        if (known.operation, known.method) != (operation, method):
            stated, does = operation.name.lower(), known.operation.name.lower()
            raise TransactionalUsageError(
                f"Article '{article.article}' calls '{name}' by {method} for {stated}; it is registered for "
                f"{known.method}, {does}. Nothing was applied. Register it as the article calls it."
            )
        if known.columns is not None and known.columns != article.columns:
            raise TransactionalError(
                SCHEMA_CHANGED,
                f"The procedure '{name}' was written for the columns {', '.join(known.columns)}; article "
                f"'{article.article}' has {', '.join(article.columns)} (schema version {article.schema_version}). "
                "Everything before that change is applied. Write the procedure again for these columns and state them in "
                f"`columns`, or state `columns=None`. It begins as:\n{skeleton(article, operation)}",
                article=article.article,
            )
        found[operation] = known
    return found


@dataclass(frozen=True)
class Write:
    """Rows for a table. `place` names the write among those of its subscription: article, operation, number."""

    kind: Literal["append", "merge", "delete"]
    rows: DataFrame
    table: Location
    on: tuple[str, ...]
    place: str


@dataclass
class Call:
    """The argument of a procedure. Its writes are carried out after all procedures of the batch have returned.

    `commands`: xact_seqno (binary), command_id (bigint), commit_time (timestamp) and the parameters of the call syntax:
    old_c1…, c1…, pkc1…, bitmap (with XCALL only where the article has `text_columns`). There may be several updates of one
    row; `net()` leaves one. `table` is the article's table at the subscriber, `spark` a session of this batch's own.
    """

    article: str
    operation: Literal["insert", "update", "delete"]
    table: str
    subscriber: str
    commands: DataFrame
    spark: SparkSession
    shape: Shape
    writes: list[Write] = field(default_factory=list)
    calls_default: bool = False
    requires_rows: bool = False

    @property
    def does(self) -> Operation:
        """The operation."""
        return OPERATIONS[self.operation]

    def default(self) -> None:
        """Apply these commands as the generated procedure would, before other writes of the procedures."""
        self.calls_default = True

    def require_rows(self) -> None:
        """Let commands fail with 20598 if their row is missing (an insert with 2627 if it exists)."""
        self.requires_rows = True

    def append(self, rows: DataFrame, table: str) -> None:
        """Append rows to a table below the subscriber, which is made if it is missing."""
        self._add("append", rows, table, ())

    def merge(self, rows: DataFrame, table: str, on: Sequence[str]) -> None:
        """Update the rows of a table that agree in the columns `on`, insert the others."""
        self._add("merge", rows, table, on)

    def delete(self, rows: DataFrame, table: str, on: Sequence[str]) -> None:
        """Delete the rows of a table that agree in the columns `on`."""
        self._add("delete", rows, table, on)

    def _add(
        self, kind: Literal["append", "merge", "delete"], rows: DataFrame, table: str, on: Sequence[str]
    ) -> None:
        place = f"{self.shape.article_id}-{self.does}-{len(self.writes)}"
        self.writes.append(Write(kind, rows, Location.of(self.subscriber) / table, tuple(on), place))

    def sql(self, text: str) -> DataFrame:
        """Return the result of a query; `commands` is a view in it.

        Raises: TransactionalUsageError for anything else: the agent writes, in its own transaction.
        """
        word = (re.match(r"\s*\(*\s*(\w+)", text) or [""] * 2)[1].upper()
        if word not in _READS:
            raise TransactionalUsageError(
                f"The procedure of article '{self.article}' executes {word or text}: a procedure begins and ends no "
                "transactions and writes nothing by itself. Nothing was applied. Hand rows to `call.append`, `call.merge` "
                "or `call.delete`."
            )
        self.commands.createOrReplaceTempView("commands")
        return self.spark.sql(text)

    def has_changed(self, column: int | str) -> Column:
        """True if an update changes a column, given by number (from 1) or name.

        Raises: TransactionalUsageError if the call syntax lacks the bitmap (CALL).
        """
        k = self.shape.columns.index(column) + 1 if isinstance(column, str) else column
        command = self.shape.command(self.does)
        if "bitmap" in self.commands.columns:
            return F.expr(bit_text("bitmap", k))
        if command.passes_old and command.passes_new:
            return ~same_value(F.col(f"old_c{k}"), F.col(f"c{k}"), self.commands.schema[f"c{k}"].dataType)
        raise TransactionalUsageError(
            f"{command.method} does not say which columns changed. Let article '{self.article}' use SCALL, MCALL or XCALL."
        )

    def net(self) -> DataFrame:
        """Return one command for each row: the last value of each column and the first old values."""
        command = self.shape.command(self.does)
        columns = range(1, len(self.shape.columns) + 1)
        places = self.shape.key_places
        if command.passes_key:
            key = {f"pkc{i}": F.col(f"pkc{i}") for i in range(1, len(places) + 1)}
        else:
            key = {f"k{k}": F.col(f"old_c{k}" if command.passes_old else f"c{k}") for k in places}
        order = F.struct("xact_seqno", "command_id")
        has_mask = "bitmap" in self.commands.columns

        def last(k: int) -> Column:
            at = F.when(F.expr(bit_text("bitmap", k)), order) if command.passes_bitmap else order
            return F.max_by(f"c{k}", at).alias(f"c{k}")

        found = self.commands.groupBy(*(each.alias(name) for name, each in key.items())).agg(
            *(F.max_by(name, order).alias(name) for name in ("xact_seqno", "command_id", "commit_time")),
            *(F.min_by(f"old_c{k}", order).alias(f"old_c{k}") for k in columns if command.passes_old),
            *(last(k) for k in columns if command.passes_new),
            *(F.max(F.expr(bit_text("bitmap", k))).alias(f"bit{k}") for k in columns if has_mask),
        )
        if has_mask:
            found = found.withColumn("bitmap", F.expr(mask_text([f"bit{k}" for k in columns])))
        return found.select(*self.commands.columns)


def session_of_procedures(spark: SparkSession) -> SparkSession:
    """Return a separate session: settings made by a procedure end with the batch."""
    session = new_session(spark)
    for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"):
        session.conf.set(key, str(spark.conf.get(key)))
    return session


def called(
    found: Mapping[Operation, Procedure],
    article: Shape,
    commands: DataFrame,
    commit_times: Mapping[bytes, datetime],
    *,
    table: Location,
    subscriber: Location,
    kept: Kept,
) -> list[Call]:
    """Call the procedures of an article: deletes, updates, inserts. Nothing is written yet.

    Reads: commands (MSrepl_commands), in a separate session.

    Raises: TransactionalUsageError if a procedure set a Delta transaction.
    """
    import pyarrow as pa

    spark = commands.sparkSession
    times = pa.table(
        {
            "xact_seqno": pa.array(commit_times, pa.binary()),
            "commit_time": pa.array(commit_times.values(), pa.timestamp("us", "UTC")),
        }
    )
    timed = kept.keep(commands.join(F.broadcast(frame_of(spark, times)), on="xact_seqno", how="left"))
    calls = []
    for operation in (Operation.DELETE, Operation.UPDATE, Operation.INSERT):
        if operation not in found:
            continue
        call = Call(
            article.article,
            operation.name.lower(),  # type: ignore[arg-type]
            str(table),
            str(subscriber),
            timed.where(F.col("operation") == operation.value).select(
                *("xact_seqno", "command_id", "commit_time"),
                *_parameters(article, article.command(operation)),
            ),
            spark,
            article,
        )
        with callers_session():
            found[operation].body(call)
        if spark.conf.get(f"{_TRANSACTION}Version", None) or spark.conf.get(f"{_TRANSACTION}AppId", None):
            raise TransactionalUsageError(
                f"The procedure '{found[operation].name}' set {_TRANSACTION}Version or {_TRANSACTION}AppId, which "
                "belong to the agent: later writes would be skipped silently. Nothing was applied. Use `call.append`."
            )
        calls.append(call)
    return calls


def _parameters(shape: Shape, command: CommandType) -> list[Column]:
    names = command.parameters(len(shape.columns), len(shape.key_columns))
    if shape.has_kept_bitmap(command.operation):
        names.append("bitmap")
    return [
        F.col("bitmap")
        if name == "bitmap"
        else F.col(f"{_side(name)}.{name.removeprefix('old_')}").alias(name)
        for name in names
    ]


def _side(parameter: str) -> str:
    return "old" if parameter.startswith("old_") else "pk" if parameter.startswith("pk") else "new"


def skeleton(shape: Shape, operation: Operation) -> str:
    """Return a Python template of a procedure that does the same as the generated one."""
    command = shape.command(operation)
    types = {**shape.parameter_types, "bitmap": "binary"}
    names = command.parameters(len(shape.columns), len(shape.key_columns))
    shown = [f"{name} {types[name.removeprefix('old_')].lower()}" for name in names]
    title = operation.name.lower()
    name = command.procedure or f"my_{title}_{shape.article}"
    body, columns = re.sub(r"\W", "_", name), json.dumps(shape.columns, ensure_ascii=False)
    return "\n".join(
        [
            "from mergerepl import transactional as tr",
            "",
            "",
            f'@tr.procedure("{name}", operation="{title}", call="{command.method}", columns={columns})',
            f"def {body}(call: tr.Call) -> None:",
            f"    # call.commands: xact_seqno, command_id, commit_time, {', '.join(shown)}",
            "    call.default()",
        ]
    )


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
    fields = [
        types.field(each.name, types.json_of(each.dataType.simpleString()))
        for each in write.rows.schema.fields
    ]
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
        with marked_session(spark, transaction, write.table) as session:
            in_session(write.rows, session).createOrReplaceTempView("written")
            session.sql(text)

    lost = lost_commits(
        f"'{write.table}'",
        f"a procedure's {write.kind}",
        "Run again: the same batch is finished.",
        table=str(write.table),
    )
    commit_once(merge, write.table, transaction, from_version_exclusive=head, lost=lost)

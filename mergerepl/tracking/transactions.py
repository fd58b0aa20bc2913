"""A transaction: operations on tracked tables that see one snapshot and their own writes, and are published together.

Its changes reach Delta tables only after `commit` has decided it. A failed operation aborts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from mergerepl.delta.contract.rules import GUID_PATTERN
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.tables import open_table, write_files
from mergerepl.frames import F, is_in_process
from mergerepl.model.tracking import TransactionResult
from mergerepl.model.tracking_options import SYSTEM_PREFIX, TrackingKeyType
from mergerepl.rows.images import all_true, same_value
from mergerepl.rows.sql import quote
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.spark.in_memory import broadcast_if_few, frame_of_tuples
from mergerepl.spark.plain import plain_errors
from mergerepl.store.register import noting_unknown
from mergerepl.systables.tracking import ROW_COLUMNS
from mergerepl.tracking import counters, staged_rows
from mergerepl.tracking.commit import Change, commit
from mergerepl.tracking.counters import Bounds
from mergerepl.tracking.database import (
    Database,
    context_guid,
    last_commit,
    packed_literal,
    tracked_table,
    versions_of,
)
from mergerepl.tracking.errors import ForeignCommitError, TrackingError, TransactionConflictError
from mergerepl.tracking.few_rows import few_values, require_few_rows
from mergerepl.tracking.foreign import look, writable_facts
from mergerepl.tracking.row_keys import packed_key
from mergerepl.tracking.staged_rows import (
    DELETE_CONTEXT,
    DELETED_AT,
    EXISTED,
    PRESENT,
    REBORN,
    STATE,
    Touched,
    broken_rules,
    default_of,
    fitted,
    key_columns,
    overlay,
    read_staged,
    staged,
    too_long_key,
    view,
)

if TYPE_CHECKING:
    from mergerepl.tracking.change_tracking import ChangeTracking

Rows = DataFrame | Sequence[Mapping[str, Any]]
"""Rows given to an operation: a DataFrame, or dictionaries whose values have the types of the table."""
Where = str | Column | None
"""A condition in SQL or as a Column; None is every row."""

_MISFIT, _COPIES = "__sysRuleGiven", "__sysRuleCopies"
"""Why a given value does not fit, and whether another row has the key; NULL where all is well."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Given(NamedTuple):
    """Rows given to an operation, read once: their frame with keys, the bounds of the keys, and their number at most."""

    rows: DataFrame
    bounds: Bounds
    most_rows: int


@methods_keep_callers_session
class Transaction:
    """One transaction. Use it as a context: leaving it commits, an exception aborts."""

    def __init__(self, tracking: ChangeTracking, begun: counters.Begun, context: str | None) -> None:
        """Begin with the number that `begun` holds."""
        self.tracking = tracking
        """The database; its calls are the database's own."""
        self._begun = begun
        self._touched: dict[str, Touched] = {}
        self._ended: str | None = None
        self._context: str | None = None
        self.tracking_context = context
        self.result: TransactionResult | None = None
        """What the commit did; None before."""

    @property
    def current_transaction_bsn(self) -> int:
        """The begin sequence number."""
        return self._begun.bsn

    @property
    def tracking_context(self) -> str | None:
        """The GUID stored with later changes, in lower case.

        Raises: TrackingError if it is set to a text other than a GUID.
        """
        return self._context

    @tracking_context.setter
    def tracking_context(self, context: str | None) -> None:
        self._context = context_guid(context)

    def insert(self, table: str, rows: Rows) -> None:
        """Insert rows; columns that they lack get their default, and columns whose names begin with `__sys` are left out.

        Raises: TrackingError if a key is NULL, exists already or is given twice, or a row breaks a rule of the table.
        """
        self._put(table, rows, replaces=False)

    def upsert(self, table: str, rows: Rows) -> None:
        """Insert rows with new keys; in existing rows, update the given columns where a value differs.

        Raises: TrackingError as `insert`.
        """
        self._put(table, rows, replaces=True)

    def update(self, table: str, set: Mapping[str, str | Column], where: Where = None) -> None:
        """Set columns to expressions in some rows. Rows with bitwise equal values are not changed.

        An update of a key column is a delete of the old key and an insert of the new one.

        Raises: TrackingError if a row breaks a rule of the table, or a new key exists already.
        """
        with self._operation(table) as touched:
            known = {name.lower(): name for name in touched.columns}
            unknown = next((name for name in set if name.lower() not in known), None)
            if unknown is not None:
                raise TrackingError.bad_rows(table, f"it has no column '{unknown}' that can be set", [])
            expressions = {known[name.lower()]: _expression(value) for name, value in set.items()}
            matching = self._matching(touched, where)
            if expressions.keys() & {*touched.table.key}:
                self._move(touched, matching, expressions)
            else:
                self._change(touched, matching, expressions)

    def touch(self, table: str, where: Where = None) -> None:
        """Stamp rows as updated without changing them.

        Raises: TrackingError if the table is not tracked.
        """
        with self._operation(table) as touched:
            self._stage(touched, self._matching(touched, where), {}, {})

    def delete(self, table: str, where: Where = None, *, rows: Rows | None = None) -> None:
        """Delete rows that fulfil a condition, or those whose keys are in `rows`; missing keys are ignored.

        Raises: TrackingError if a packed key takes more than 8,000 bytes.
        """
        with self._operation(table, may_be_few=rows is not None and where is None) as touched:
            if rows is None:
                self._remove(touched, self._matching(touched, where))
            elif where is not None:
                self._delete_given(touched, where, rows)
            else:
                self._few_in_process(touched, rows, partial(self._delete_given, touched, None, rows))

    def read(self, table: str) -> DataFrame:
        """Return the table's rows as this transaction sees them: its snapshot and its own changes.

        Returns: The table's columns, the three tracking columns last.
        """
        with self._operation(table) as touched:
            columns = [*touched.columns, *(name for name, _ in ROW_COLUMNS)]
            return view(self._spark, touched).where(PRESENT).select(*(quote(name) for name in columns))

    def commit(self) -> TransactionResult:
        """Publish the changes.

        Raises: TransactionConflictError (run it again) if a row of ours was changed by a transaction that committed first;
            ForeignCommitError where the table refuses those; LeaseError if the folder stays in use; TrackingError if it was
            decided and could not be finished now.
        """
        self._require_open()
        root = self._database.root
        try:
            # Until another agent has fenced the tables, a request of this one may be in flight after an error.
            with (
                noting_unknown(root, TransactionConflictError, ForeignCommitError),
                plain_errors(f"committing transaction {self.current_transaction_bsn}"),
            ):
                changes = [self._changed(touched) for touched in self._touched.values() if touched.operations]
                self.result = commit(self.tracking.session, self._begun, changes)
        except BaseException as error:
            self._fail(error)
            raise
        self._end("committed")
        return self.result

    def abort(self) -> None:
        """Discard the changes. Without effect after the end."""
        if self._ended is None:
            self._end("aborted" if counters.mark_aborted(self._begun.folder) else "decided")

    rollback = abort

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Commit, or abort after an exception."""
        if kind is not None:
            self.abort()
        elif self._ended is None:
            self.commit()
        return False

    @property
    def _spark(self) -> SparkSession:
        return self.tracking.session.spark

    @property
    def _database(self) -> Database:
        return self.tracking.session.database

    def _fail(self, error: BaseException) -> None:
        """Abort after an error. Raises: TransactionConflictError if the root was lost before a decision."""
        is_undecided = isinstance(error, Exception) and not isinstance(error, TrackingError)
        is_lost = is_undecided and not self._begun.is_held(asks=True)
        self.abort()
        if is_lost:
            raise TransactionConflictError.was_taken_over(self.current_transaction_bsn) from error

    def _end(self, how: str) -> None:
        self._ended = how
        self._begun.let_go()

    def _require_open(self) -> None:
        if self._ended is not None:
            bsn = self.current_transaction_bsn
            raise TrackingError(f"Transaction {bsn} was {self._ended} already. Begin another one.", bsn=bsn)
        if not self._begun.is_held():
            self._end("aborted")
            raise TransactionConflictError.was_taken_over(self.current_transaction_bsn)
        if counters.is_aborted(self._begun.folder) or not counters.is_begun(self._begun.folder):
            self._end("aborted")
            raise TransactionConflictError.was_aborted(self.current_transaction_bsn)

    @contextmanager
    def _operation(self, table: str, *, may_be_few: bool = False) -> Iterator[Touched]:
        """Yield the table in the transaction's state; any failure aborts the transaction."""
        self._require_open()
        try:
            with plain_errors(f"changing table '{table}' in transaction {self.current_transaction_bsn}"):
                touched = self._touch(table)
                if not may_be_few:
                    # Started before the first expression is made.
                    _ = self._spark
                yield touched
        except BaseException as error:
            self._fail(error)
            raise

    def _touch(self, name: str) -> Touched:
        if name not in self._touched:
            table = tracked_table(self._database, name)
            facts = writable_facts(self._database, table)
            version = look(self._database, table, versions_of(last_commit(self._database))).quiet_through
            if version < facts.version and open_table(facts.path, version).fields != facts.fields:
                raise ForeignCommitError(
                    f"Table '{name}' has other columns since foreign commits that are not adopted yet. The transaction was "
                    "aborted; nothing was changed. Run `mergerepl tracking adopt`, then begin the transaction again.",
                    table=name,
                )
            folder = counters.staging_folder(self._begun.folder, name)
            self._touched[name] = Touched(table, facts, version, folder)
        return self._touched[name]

    def _few_in_process(self, touched: Touched, rows: Any, operation: Callable[[], None]) -> None:
        """Stage an operation with given rows in this process if they are few, else on Spark."""

        def require() -> None:
            if isinstance(rows, DataFrame):
                raise NeedsSparkError("the rows are a DataFrame of Spark", touched.facts.path)
            # Both engines refuse a value other than a list of rows.
            require_few_rows(touched, len(rows) if isinstance(rows, Sequence) else 0)

        self.tracking.session.few_in_process(require, operation)

    def _matching(self, touched: Touched, where: Where, *, among: DataFrame | None = None) -> DataFrame:
        rows = view(self._spark, touched, among=among)
        rows = rows.where(PRESENT) if touched.operations else rows
        return rows if where is None else rows.where(_expression(where))

    def _change(self, touched: Touched, rows: DataFrame, expressions: Mapping[str, Column]) -> None:
        values: dict[str, Column] = {}
        misfits: dict[str, tuple[Column, str]] = {}
        differing = []
        for name, expression in expressions.items():
            values[name], misfit = self._fitted(touched, name, expression, rows)
            if misfit is not None:
                misfits[f"__sysRule{len(misfits)}"] = misfit, f"values do not fit the type of column '{name}'"
            differing.append(same_value(F.col(quote(name)), values[name], rows.schema[name].dataType))
        # Values and differing rows are computed from the same row: an expression may have another value next time.
        rows = rows.where(~all_true(differing))
        rows = rows.withColumns({name: misfit for name, (misfit, _) in misfits.items()})
        rules = {text: F.col(name) for name, (_, text) in misfits.items()}
        self._stage(touched, rows, values, {}, rules)

    def _fitted(
        self, touched: Touched, name: str, expression: Column, rows: DataFrame
    ) -> tuple[Column, Column | None]:
        field = touched.facts.field(name)
        assert field is not None
        given = rows.select(expression.alias("given")).schema["given"].dataType.simpleString()
        return fitted(expression, given, field)

    def _move(self, touched: Touched, rows: DataFrame, expressions: Mapping[str, Column]) -> None:
        """Update key columns: a row that keeps its key is updated, the others are deleted and inserted again."""
        values = {name: self._fitted(touched, name, each, rows)[0] for name, each in expressions.items()}
        old = {f"__sysOld{i}": F.col(name) for i, name in enumerate(touched.keys)}
        after = rows.select(
            *(values.get(name, F.col(quote(name))).alias(name) for name in touched.columns),
            *(key.alias(alias) for alias, key in old.items()),
        )
        given = self._kept(touched, after)
        is_same = all_true(
            [F.col(alias).eqNullSafe(F.col(key)) for alias, key in zip(old, touched.keys, strict=True)]
        )
        moved, stayed = given.rows.where(~is_same), given.rows.where(is_same)
        gone = moved.select(*(F.col(alias).alias(key) for alias, key in zip(old, touched.keys, strict=True)))
        self._remove(touched, self._matching(touched, None).join(gone, on=touched.keys, how="left_semi"))
        self._put_given(touched, given._replace(rows=moved.drop(*old)), (), replaces=False)
        self._put_given(touched, given._replace(rows=stayed.drop(*old)), (), replaces=True)

    def _remove(self, touched: Touched, rows: DataFrame) -> None:
        nothing = {name: F.lit(None).cast(rows.schema[name].dataType) for name in touched.columns}
        state = {
            PRESENT: F.lit(False),
            REBORN: F.lit(False),
            DELETED_AT: F.timestamp_micros(F.lit((datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1))),
            DELETE_CONTEXT: F.lit(self._context).cast("string"),
        }
        self._stage(touched, rows, nothing, state)

    def _delete_given(self, touched: Touched, where: Where, rows: Rows) -> None:
        keys = self._given(touched, rows, only=touched.table.key).rows.select(*touched.keys)
        matching = self._matching(touched, where, among=keys)
        self._remove(touched, matching.join(F.broadcast(keys), on=touched.keys, how="left_semi"))

    def _put(self, table: str, rows: Rows, *, replaces: bool) -> None:
        def put() -> None:
            given = self._given(touched, rows)
            missing = [name for name in touched.columns if name not in given.rows.columns]
            self._put_given(touched, given, missing, replaces=replaces)

        with self._operation(table, may_be_few=True) as touched:
            self._few_in_process(touched, rows, put)

    def _given(self, touched: Touched, rows: Rows, *, only: Sequence[str] | None = None) -> _Given:
        frame = _frame(self._spark, rows, touched)
        known = {field["name"].lower(): field for field in touched.facts.fields}
        names = {name: name.lower() for name in frame.columns if not name.lower().startswith(SYSTEM_PREFIX)}
        unknown = next((name for name, lower in names.items() if lower not in known), None)
        if unknown is not None:
            raise TrackingError.bad_rows(touched.table.name, f"it has no column '{unknown}'", [])
        absent = next((key for key in touched.table.key if key.lower() not in names.values()), None)
        if absent is not None:
            raise TrackingError.bad_rows(touched.table.name, f"the rows have no key column '{absent}'", [])
        columns, misfits = [], []
        for name, lower in names.items():
            field = known[lower]
            if only is not None and field["name"] not in only:
                continue
            fitting, misfit = fitted(F.col(quote(name)), frame.schema[name].dataType.simpleString(), field)
            columns.append(fitting.alias(field["name"]))
            if misfit is not None:
                misfits.append(F.when(misfit, f"values do not fit the type of column '{field['name']}'"))
        problem = F.coalesce(*misfits) if misfits else F.lit(None).cast("string")
        return self._kept(touched, frame.select(*columns, problem.alias(_MISFIT)))

    def _kept(self, touched: Touched, rows: DataFrame) -> _Given:
        """Return rows with their keys: on Spark written to files, so that their source is read once."""
        kept = rows.withColumns(dict(zip(touched.keys, key_columns(touched.table), strict=True)))
        bounds: Bounds = {}
        if is_in_process():
            count = kept.count()
        else:
            folder = touched.folder / f"given-{uuid.uuid4().hex[:8]}"
            write_files(kept, folder)
            kept, count = read_staged(self._spark, folder, kept.schema), staged_rows.count_rows(folder)
            bounds = staged_rows.bounds_of(folder, touched.table)
        if count > 1:
            counted = kept.groupBy(*touched.keys).agg(F.count(F.lit(1)).alias("__sysRows"))
            copies = counted.where(F.col("__sysRows") > 1).select(*touched.keys, F.lit(True).alias(_COPIES))
            kept = kept.join(copies, on=touched.keys, how="left")
        return _Given(kept, bounds, count)

    def _put_given(self, touched: Touched, given: _Given, missing: Sequence[str], *, replaces: bool) -> None:
        """Stage given rows: new keys as inserts; known ones as updates where a value differs, or as refused rows."""
        bounded = staged_rows.within_keys(touched.table, given.bounds)
        seen = view(self._spark, touched, bounded, among=given.rows.select(*touched.keys))
        old = {name: f"__sysOld{i}" for i, name in enumerate(touched.columns)} if replaces else {}
        seen = seen.select(
            *touched.keys, *STATE, *(F.col(quote(name)).alias(alias) for name, alias in old.items())
        )
        matched = seen.join(F.broadcast(given.rows.select(*touched.keys)), on=touched.keys, how="left_semi")
        rows = given.rows.join(broadcast_if_few(matched, given.most_rows), on=touched.keys, how="left")
        is_there = F.coalesce(F.col(PRESENT), F.lit(False))
        values: dict[str, Column] = {}
        for name in missing:
            field = touched.facts.field(name)
            assert field is not None
            default = default_of(field)
            values[name] = F.when(is_there, F.col(old[name])).otherwise(default) if replaces else default
        if replaces:
            same = [
                same_value(F.col(quote(name)), F.col(old[name]), given.rows.schema[name].dataType)
                for name in touched.columns
                if name not in missing
            ]
            rows = rows.where(~(is_there & all_true(same)))
        existed = F.coalesce(F.col(EXISTED), F.lit(False))
        state = {
            EXISTED: existed,
            PRESENT: F.lit(True),
            REBORN: F.when(is_there, F.coalesce(F.col(REBORN), F.lit(False))).otherwise(existed),
        }
        rules: dict[str, Column] = {}
        if not replaces:
            rows = rows.withColumn("__sysRuleThere", is_there)
            rules["keys are there already"] = F.col("__sysRuleThere")
        if _COPIES in rows.columns:
            rules["keys are given twice"] = F.col(_COPIES)
        self._stage(touched, rows, values, state, rules)

    def _stage(
        self,
        touched: Touched,
        rows: DataFrame,
        values: Mapping[str, Column],
        state: Mapping[str, Column],
        rules: Mapping[str, Column] | None = None,
    ) -> None:
        """Write the rows of an operation.

        Raises: TrackingError if one of them breaks a rule.
        """
        types = touched.table.key_types
        packed = packed_key([F.col(name) for name in touched.keys], types)
        has_long = any(type_ in ("string", "binary") for type_ in types)
        has_null = ~all_true([F.col(name).isNotNull() for name in touched.keys])
        is_guid = touched.table.key_type is TrackingKeyType.GUID
        every = {
            "rows have a key that is NULL": has_null,
            **({"keys are no GUIDs": ~F.col(touched.keys[0]).rlike(GUID_PATTERN)} if is_guid else {}),
            **(rules or {}),
            **broken_rules(touched.facts, touched.table.key, F.col(PRESENT)),
            **(too_long_key(packed) if has_long else {}),
        }
        bsn = packed_literal(self.current_transaction_bsn)
        arguments: dict[str, Any] = {"state": state, "bsn": bsn, "context": self._context, "rules": every}
        frame = staged(rows, touched, values, **arguments)
        folder = touched.operation_folder(len(touched.operations))
        write_files(frame, folder)
        found = staged_rows.problems_of(folder, touched.keys)
        if found is not None:
            raise TrackingError.bad_rows(touched.table.name, *found)
        if staged_rows.count_rows(folder):
            touched.operations.append(frame.schema)

    def _changed(self, touched: Touched) -> Change:
        if len(touched.operations) == 1:
            return Change(touched, touched.operation_folder(0), touched.operations[0])
        folder = touched.folder / "net"

        def net() -> StructType:
            rows = overlay(self._spark, touched)
            write_files(rows, folder)
            return rows.schema

        schema = self.tracking.session.few_in_process(partial(require_few_rows, touched, 0), net)
        return Change(touched, folder, schema)


def _expression(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value


def _frame(spark: SparkSession, rows: Rows, touched: Touched) -> DataFrame:
    """Return given rows as a frame; dictionaries have the types of the table."""
    if isinstance(rows, DataFrame):
        return rows
    given: Any = rows
    if not isinstance(given, Sequence) or not all(isinstance(row, Mapping) for row in given):
        raise TrackingError.bad_rows(
            touched.table.name, "rows are given as a Spark DataFrame or a list of dictionaries", []
        )
    stored = [{**field, "nullable": True, "metadata": {}} for field in touched.facts.fields]
    known = {field.name.lower(): field for field in StructType.fromJson({"type": "struct", "fields": stored})}
    names = dict.fromkeys([name for row in rows for name in row] if rows else known)
    fields = [known[name.lower()] for name in names if name.lower() in known]
    if len(fields) < len(names):
        unknown = next(name for name in names if name.lower() not in known)
        raise TrackingError.bad_rows(touched.table.name, f"it has no column '{unknown}'", [])
    if len({*(field.name for field in fields)}) < len(names):
        raise TrackingError.bad_rows(touched.table.name, "names of columns differ in case alone", [*names])
    data = [tuple(row.get(name) for name in names) for row in rows]
    return few_values(data, fields) if is_in_process() else frame_of_tuples(spark, data, StructType(fields))

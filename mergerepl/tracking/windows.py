"""A window: the transactions between two anchors, and the rows that they inserted, updated and deleted (compact.md 6).

Rows come from the snapshot of the last transaction of the window, never from live tables: later transactions do not change
a window. A consumer applies deletes, inserts, updates, in this order.

`csn(b)` is the CSN of a BSN: that of `__sysTxCommitSequence`, or else the BSN itself. A window is half-open: LCSN <= csn <
ECSN. Exactly:

| set | condition |
|---|---|
| inserts | insert BSN not NULL and csn(insert BSN) in the window |
| updates | change BSN not NULL and csn(change BSN) in the window, and the row is not among the inserts |
| deletes | csn(delete BSN) in the window, and insert BSN NULL or csn(insert BSN) below LCSN |

The BSNs whose CSN is in the window are known beforehand, from `tracking_commits`: as ranges of literals they let Parquet's
bounds leave row groups out.
"""

import base64
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.tables import (
    file_names,
    head_version,
    open_table,
    plain_files,
    read_files,
    read_version,
    write_files,
)
from mergerepl.errors import ConfigurationError, StoreError
from mergerepl.model.tracking import Anchors, CommittedTransaction, EnumerationQueries, TrackedTable
from mergerepl.rows.sql import literal, quote
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.spark.in_memory import frame_of_tuples
from mergerepl.spark.session import in_session, new_session
from mergerepl.store.location import Location
from mergerepl.store.storage import put_text, read_text
from mergerepl.systables.tracking import (
    CHANGE_BSN,
    COMMIT_SEQUENCE,
    CONTEXT,
    DELETE_BSN,
    DELETE_CSN,
    INSERT_BSN,
    INSERT_CSN,
    ROW_KEY,
    TABLE_NAME,
)
from mergerepl.tracking.database import (
    Session,
    facts_of,
    packed,
    packed_column,
    packed_literal,
    snapshot_version,
    unpacked_column,
    versions_of,
)
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.row_keys import packed_key, unpacked_keys
from mergerepl.tracking.staged_rows import count_rows, key_columns

log = logging.getLogger(__name__)

WINDOW_FILE = "window.json"
"""Beside the rows of a window that is written: its state, which a consumer acknowledges."""
_NAMED_AT_MOST = 1000
"""Up to this number of files are selected by name; beyond it, reading all files costs no more."""


@dataclass(frozen=True)
class WindowState:
    """The identity of a window, which a consumer acknowledges, as JSON can hold it."""

    consumer: str
    anchors: Anchors
    nonce: str | None
    """Nonce of the last transaction below ECSN."""
    initial: tuple[str, ...] = ()
    """Tables left out of the window because the consumer lacks a copy that changes could be applied to."""
    enumeration: str = "exact"

    @property
    def id(self) -> str:
        """Return the id by which the receiver recognises a repeated window: consumer, LCSN and ECSN."""
        return f"{self.consumer}:{self.anchors.lcsn}:{self.anchors.ecsn}"

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "id": self.id}

    @classmethod
    def of_json(cls, stated: Mapping[str, Any]) -> "WindowState":
        """Return the window of a JSON object from `to_json`. Raises: TrackingError if it is not a window."""
        try:
            anchors = Anchors(**{name: int(value) for name, value in stated["anchors"].items()})
            parts = {name: stated[name] for name in ("consumer", "nonce", "enumeration")}
            return cls(anchors=anchors, initial=tuple(stated["initial"]), **parts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TrackingError.bad_window("?", f"it is no window: {error!r}.") from error

    @classmethod
    def of_file(cls, file: Location) -> "WindowState":
        """Return the window of a `window.json`. Raises: ConfigurationError if it is not one of `Window.write_to`."""
        try:
            if (text := read_text(file)) is not None:
                return cls.of_json(json.loads(text))
            why = "it does not exist."
        except TrackingError:
            why = "it states something else."
        except (OSError, ValueError) as error:
            why = f"{error}."
        raise ConfigurationError(f"'{file}' is no window: {why} Give the window.json of `enumerate`.")


@methods_keep_callers_session
@dataclass(frozen=True)
class Window:
    """The transactions with LCSN <= CSN < ECSN. DataFrames are computed when they are used, always with the same rows."""

    state: WindowState
    _session: Session = field(repr=False)
    _tables: Mapping[str, TrackedTable] = field(repr=False)
    _before: CommittedTransaction | None = field(repr=False)
    _last: CommittedTransaction | None = field(repr=False)
    _transactions: Sequence[CommittedTransaction] = field(repr=False)
    _exclude: str | None = field(repr=False)
    _deleted_version: int = field(repr=False)
    """Version of the tombstones: later purges do not affect this window."""

    @property
    def id(self) -> str:
        """Return the id by which the receiver recognises a repeated window: consumer, LCSN and ECSN."""
        return self.state.id

    @property
    def anchors(self) -> Anchors:
        """LBSN, LCSN, EBSN and ECSN."""
        return self.state.anchors

    @property
    def initial(self) -> tuple[str, ...]:
        """Tables to be copied whole, by `ct.read(table, csn=window.anchors.ecsn - 1)`; the window lacks their rows."""
        return self.state.initial

    @property
    def tables(self) -> tuple[str, ...]:
        """The enumerated tables."""
        return tuple(self._tables)

    @property
    def is_empty(self) -> bool:
        """True if the window did not change these tables."""
        return not any(each.changes.get(name) for each in self._transactions for name in self._tables)

    def inserts(self, table: str) -> DataFrame:
        """Return the inserted rows: the table's columns, with the three tracking columns."""
        if self.state.enumeration == "documented":
            return self._documented(table, DOCUMENTED_INSERTS)
        rows, is_changed, is_new = self._changed(table)
        return rows.where(is_changed & is_new)

    def updates(self, table: str) -> DataFrame:
        """Return the updated rows: the table's columns, with the three tracking columns."""
        if self.state.enumeration == "documented":
            return self._documented(table, DOCUMENTED_UPDATES)
        rows, is_changed, is_new = self._changed(table)
        return rows.where(is_changed & ~F.coalesce(is_new, F.lit(False)))

    def deletes(self, table: str) -> DataFrame:
        """Return the deleted keys: `__sysRK`, the key columns, `__sysTrackingContext`."""
        if self.state.enumeration == "documented":
            return self._documented(table, DOCUMENTED_DELETES)
        tracked, tombstones = self._table(table), self._tombstones(table)
        inside, theirs = self._bsns(), self._theirs()
        is_born_inside = F.coalesce(is_among(F.col(INSERT_BSN), inside - theirs), F.lit(False))
        if theirs:
            if any(each.changes.get(table) for each in self._transactions if each.bsn in theirs):
                # A row that was inserted and deleted inside the window may have replaced one of the consumer's own.
                is_born_inside = F.lit(False)
            tombstones = tombstones.where(~is_among(F.col(DELETE_BSN), theirs))
        found = tombstones.where(~is_born_inside)
        if theirs:
            found = self._without_known(found, tracked, theirs)
        keys = unpacked_keys(F.col(ROW_KEY), tracked.key_types)
        named = [key.alias(name) for key, name in zip(keys, tracked.key, strict=True)]
        return found.select(ROW_KEY, *named, CONTEXT)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of rows: table to deletes, inserts, updates."""
        return {name: {kind: rows.count() for kind, rows in self._kinds(name)} for name in self.tables}

    def write_to(self, folder: Location) -> dict[str, dict[str, int]]:
        """Write the rows as Parquet files, in folders `table/deletes`, `inserts` and `updates`; return their numbers.

        `window.json` is written last: the state with these numbers.
        """
        counts: dict[str, dict[str, int]] = {}
        for name in self.tables:
            for kind, rows in self._kinds(name):
                write_files(rows, folder / name / kind)
                counts.setdefault(name, {})[kind] = count_rows(folder / name / kind)
        put_text(folder / WINDOW_FILE, json.dumps({**self.state.to_json(), "tables": counts}, indent=2))
        return counts

    def _kinds(self, table: str) -> list[tuple[str, DataFrame]]:
        return [
            ("deletes", self.deletes(table)),
            ("inserts", self.inserts(table)),
            ("updates", self.updates(table)),
        ]

    def token(self, *, fresh: Collection[str] = ()) -> str:
        """Return the window's end as a text that the application keeps in place of a registered consumer.

        Args:
            fresh: The initial tables that were copied whole.

        Raises: TrackingError if an initial table is not named.
        """
        require_fresh(self.state, fresh)
        anchors = self.anchors
        stated = {"lbsn": anchors.ebsn, "lcsn": anchors.ecsn, "nonce": self.state.nonce}
        return base64.urlsafe_b64encode(json.dumps(stated).encode()).decode()

    def _table(self, table: str) -> TrackedTable:
        if table not in self._tables:
            raise TrackingError.not_tracked(table, list(self._tables))
        return self._tables[table]

    def _bsns(self) -> set[int]:
        return {each.bsn for each in self._transactions}

    def _theirs(self) -> set[int]:
        return {
            each.bsn
            for each in self._transactions
            if self._exclude and each.tracking_context == self._exclude
        }

    def _changed(self, table: str) -> tuple[DataFrame, Column, Column]:
        """Return rows of the snapshot, whether the window changed them, and whether it inserted them."""
        tracked = self._table(table)
        inside, theirs = self._bsns(), self._theirs()
        changing = {each.bsn for each in self._transactions if each.changes.get(table)}
        is_changed = is_among(F.col(CHANGE_BSN), changing - theirs)
        # The consumer knows rows that its own transactions inserted: changes of these are updates.
        is_new = is_among(F.col(INSERT_BSN), inside - theirs)
        return self._snapshot(tracked), is_changed, is_new

    def _snapshot(self, table: TrackedTable) -> DataFrame:
        """Return the rows of the window's snapshot that may have changed since the window began."""
        facts = facts_of(self._session.database, table)
        last = snapshot_version(table, versions_of(self._last))
        since = snapshot_version(table, versions_of(self._before))
        if table.name in self.initial:
            since = last
        return changed_rows(
            self._session.spark, facts.path, from_version_exclusive=since, through_version_inclusive=last
        )

    def _tombstones(self, table: str) -> DataFrame:
        anchors = self.anchors
        bounds = {DELETE_CSN: (anchors.lcsn - 1, anchors.ecsn - 1)}
        path, version = self._session.database.deleted_rows, self._deleted_version
        rows = appended.read(self._session.spark, path, bounds, version=version)
        inside = F.col(DELETE_CSN).between(anchors.lcsn, anchors.ecsn - 1)
        found = rows.where((F.col(TABLE_NAME) == table) & inside)
        return found.limit(0) if table in self.initial else found

    def _without_known(self, deletes: DataFrame, table: TrackedTable, theirs: set[int]) -> DataFrame:
        """Leave out deletes of rows that the consumer's own transactions restored. A row is restored if one of these
        transactions changed it last, or inserted it after the delete.
        """
        rows = self._snapshot(table)
        csns = [(each.bsn, each.csn) for each in self._transactions if each.bsn in theirs]
        is_changed = F.coalesce(is_among(F.col(CHANGE_BSN), theirs), F.lit(False))
        csn_of = F.create_map(*(F.lit(number) for pair in csns for number in pair))
        born = csn_of[unpacked_column(F.col(INSERT_BSN))].cast("bigint")
        known = (
            rows.select(
                packed_key(key_columns(table), table.key_types).alias("key"),
                is_changed.alias("changed"),
                born.alias("born"),
            )
            .where(F.col("changed") | F.col("born").isNotNull())
            .alias("known")
        )
        is_known = (F.col(ROW_KEY) == F.col("known.key")) & (
            F.col("known.changed") | (F.col("known.born") > F.col(DELETE_CSN))
        )
        return deletes.join(known, on=is_known, how="left_anti")

    def _documented(self, table: str, query: str) -> DataFrame:
        return documented(self._session, self._table(table), query, self.anchors)


def require_fresh(state: WindowState, fresh: Collection[str]) -> None:
    """Check that all initial tables of a window were copied. Raises: TrackingError."""
    missing = [name for name in state.initial if name not in fresh]
    if missing:
        raise TrackingError.bad_window(
            state.consumer,
            f"the window {state.id} has no rows of {', '.join(missing)}, which must be copied whole: take `ct.read(table, "
            f"csn={state.anchors.ecsn - 1})`, then name them as `fresh`.",
        )


def documented(session: Session, table: TrackedTable, query: str, anchors: Anchors) -> DataFrame:
    """Return the present result of a query as SQL Server Compact's documentation prints it, on live tables.

    Views give it the names that it uses. It loses changes in some orders of commits: see docs/compact.md.
    """
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


def _live(spark: SparkSession, path: Location) -> DataFrame:
    return read_version(spark, path, head_version(path))


def changed_rows(
    spark: SparkSession, path: Location, *, from_version_exclusive: int, through_version_inclusive: int
) -> DataFrame:
    """Return the rows of the later version in files that the earlier one does not have, with some unchanged rows.

    This holds also after OPTIMIZE, and with deletion vectors, which only remove rows. If the earlier version is gone from
    the log, the whole table is read.
    """
    try:
        later = open_table(path, through_version_inclusive)
        before = file_names(path, from_version_exclusive)
        new = set(file_names(path, through_version_inclusive)) - set(before)
        schema, files = later.schema, plain_files(later)
    except StoreError as error:
        # For example a version that is gone from the log.
        log.info("%s: the whole table is read: %s", path, error)
        return read_version(spark, path, through_version_inclusive)
    if not new:
        return frame_of_tuples(spark, [], schema)
    is_padded = any(each.metadata for each in schema)
    if files is not None and not is_padded:
        return read_files(spark, path, [file for file in files if file["path"] in new], schema)
    picked = _picked(spark, path, through_version_inclusive, new) if len(new) <= _NAMED_AT_MOST else None
    return read_version(spark, path, through_version_inclusive) if picked is None else picked


def _picked(spark: SparkSession, path: Location, version: int, names: set[str]) -> DataFrame | None:
    """Return the rows of some files of a table with deletion vectors, mapped or partition columns; None if that fails."""
    jvm: Any = spark._jvm
    try:
        option = getattr(jvm, "scala.Option")
        delta_log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(
            spark._jsparkSession, path.spark_uri
        )
        snapshot = delta_log.getSnapshotAt(version, option.empty(), option.empty(), False)
        is_chosen = F.col("path").isin(sorted(names))
        chosen = snapshot.allFiles().filter(is_chosen._jc).collectAsList()
        if chosen.size() != len(names):
            return None
        converters = getattr(jvm, "scala.jdk.javaapi.CollectionConverters")
        files = converters.asScala(chosen).toSeq()
        return DataFrame(delta_log.createDataFrame(snapshot, files, False, option.empty()), spark)
    except Py4JError as error:
        log.info("%s: the whole table is read: %s", path, error)
        return None


RANGES_AT_MOST = 200
"""Ranges written into a query; more numbers are compared as a list."""


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges, first and last."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def is_among(stored: Column, numbers: Collection[int]) -> Column:
    """True if a stored BSN is one of the numbers; False for NULL."""
    if not numbers:
        return F.lit(False)
    spans = ranges(numbers)
    whole = stored.between(packed_literal(spans[0][0]), packed_literal(spans[-1][1]))
    if len(spans) > RANGES_AT_MOST:
        found = whole & stored.isin([packed_literal(number) for number in numbers])
    elif len(spans) > 1:
        found = whole & _any([stored.between(packed_literal(a), packed_literal(b)) for a, b in spans])
    else:
        found = whole
    return found


def _any(terms: list[Column]) -> Column:
    """Whether any term is true, built as a tree: a long chain would exceed Spark's stack."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return _any(terms[:middle]) | _any(terms[middle:])


EXACT_SQL = """\
-- {table}: inserts, updates and deletes of the window :LCSN <= csn < :ECSN, in this order of application: deletes, inserts,
-- updates. csn(b) is the CSN of a transaction: that of the commit sequence, or else its BSN.
-- Read all tables in the versions of one row of tracking_commits: that with the highest csn below :ECSN.
WITH sequence AS (SELECT __sysTxBsn AS bsn, conv(hex(__sysTxCsn), 16, 10) AS csn FROM __sysTxCommitSequence),
rows AS (
  SELECT t.*,
    coalesce(i.csn, conv(hex(t.__sysInsertTxBsn), 16, 10)) AS insert_csn,
    coalesce(c.csn, conv(hex(t.__sysChangeTxBsn), 16, 10)) AS change_csn
  FROM {table} t
  LEFT JOIN sequence i ON i.bsn = t.__sysInsertTxBsn
  LEFT JOIN sequence c ON c.bsn = t.__sysChangeTxBsn)
SELECT 'insert' AS operation, * FROM rows WHERE insert_csn >= :LCSN AND insert_csn < :ECSN
UNION ALL
SELECT 'update', * FROM rows
WHERE change_csn >= :LCSN AND change_csn < :ECSN AND NOT coalesce(insert_csn >= :LCSN AND insert_csn < :ECSN, false);

SELECT __sysRK, __sysTrackingContext FROM __sysOCSDeletedRows
WHERE __sysTN = {name} AND mr_delete_csn >= :LCSN AND mr_delete_csn < :ECSN
  AND (mr_insert_csn IS NULL OR mr_insert_csn < :LCSN);
"""
"""The exact queries as printed. `{table}` is the table's name, `{name}` its SQL text literal."""

DOCUMENTED_INSERTS = """\
SELECT ut.* FROM
  (SELECT ut0.* FROM {table} AS ut0 WHERE
    ut0.__sysInsertTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn >= :LBSN
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON (ut.__sysInsertTxBsn = txcs.__sysTxBsn) WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysInsertTxBsn >= :LCSN AND ut.__sysInsertTxBsn < :ECSN)"""

DOCUMENTED_UPDATES = """\
SELECT ut.* FROM
  (SELECT ut0.* FROM {table} AS ut0 WHERE
    (ut0.__sysChangeTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn >= :LBSN)
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON ut.__sysChangeTxBsn = txcs.__sysTxBsn OR txcs.__sysTxBsn IS NULL WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysChangeTxBsn >= :LCSN AND ut.__sysChangeTxBsn < :ECSN)"""

DOCUMENTED_DELETES = """\
SELECT ut.__sysRK FROM
  (SELECT ut0.* FROM __sysOcsDeletedRows AS ut0 WHERE
    (ut0.__sysInsertTxCsn IS NULL OR ut0.__sysInsertTxCsn < :LCSN) AND
    ut0.__sysTName = {name}
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON ut.__sysDeleteTxBsn = txcs.__sysTxBsn OR txcs.__sysTxBsn IS NULL WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysDeleteTxBsn >= :LCSN AND ut.__sysDeleteTxBsn < :ECSN)"""

QUERIES = EnumerationQueries(EXACT_SQL, DOCUMENTED_INSERTS, DOCUMENTED_UPDATES, DOCUMENTED_DELETES)
"""The texts of `ChangeTracking.sql`: {table} and {name} stand for the table."""

"""`Instance`: the change rows of one captured table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import overload

from pyspark.sql import Column, DataFrame

from mergerepl.cdc import cleaning, instances, queries, tables
from mergerepl.cdc.apply_net_changes import load
from mergerepl.cdc.change_rows import ALL
from mergerepl.cdc.jobs import THRESHOLD
from mergerepl.cdc.new_instance import names_in
from mergerepl.cdc.queries import Snapshot, to_debezium
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.cdc.tables import CdcTables, Switch, checked_lsn, high_of, lsn_of_text, version_through
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.cdc import AppliedChanges, CapturedColumn, DdlEntry, InstanceDescription, RemovedChanges
from mergerepl.model.later import answers_later
from mergerepl.model.listing import Listing
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.systables.cdc import DDL_HISTORY

NOT_ABOVE = "largest less than or equal"
NOT_BELOW = "smallest greater than or equal"


@methods_keep_callers_session
class Instance:
    """A capture instance: the change rows of one table. Its methods raise CdcUsageError 22985 if it does not exist."""

    def __init__(self, tables: CdcTables, name: str) -> None:
        self._tables, self.name = tables, name

    def __repr__(self) -> str:
        return f"Instance({self.name!r} of {str(self._tables.root)!r})"

    def changes(
        self,
        from_: bytes | str | datetime | None = None,
        to: bytes | str | datetime | None = None,
        row_filter: str = ALL,
        *,
        ordered: bool = True,
    ) -> DataFrame:
        """Return all changes of a range, both ends included.

        Args:
            from_: An LSN or a time; by default the low end of the instance's interval.
            to: An LSN or a time; by default the high end.
            row_filter: `all`; or `all update old`, which also has the rows before updates (operation 3).
            ordered: Sort by __$start_lsn, __$seqval and __$operation.

        Returns: __$start_lsn, __$seqval, __$operation (1 delete, 2 insert, 3 and 4 update), __$update_mask, the captured
        columns.

        Raises: CdcUsageError 22990 for an unknown row filter; LsnRangeError 313 if the range is not in the interval.
        """
        first, last = self.ends(from_, to)
        return queries.all_changes(self._tables, self.name, first, last, row_filter, ordered=ordered)

    def net_changes(
        self,
        from_: bytes | str | datetime | None = None,
        to: bytes | str | datetime | None = None,
        row_filter: str = ALL,
        *,
        ordered: bool = True,
    ) -> DataFrame:
        """Return the net change of each key of a range, both ends included: one row, with its last values.

        Args:
            from_: An LSN or a time; by default the low end of the instance's interval.
            to: An LSN or a time; by default the high end.
            row_filter: `all`; `all with mask`, which has the changed columns of updates; or `all with merge`, which has
                operation 5 (insert or update) in place of 2 and 4.
            ordered: Sort by __$start_lsn.

        Returns: __$start_lsn (of the last change), __$operation (1 delete, 2 insert, 4 update, 5 insert or update),
        __$update_mask, the captured columns.

        Raises: as `changes`; LsnRangeError if the instance does not support net changes; CdcError 22838 if a key had two
            rows at once.
        """
        first, last = self.ends(from_, to)
        return queries.net_changes(self._tables, self.name, first, last, row_filter, ordered=ordered)

    def ends(
        self, from_: bytes | str | datetime | None = None, to: bytes | str | datetime | None = None
    ) -> tuple[bytes | str | None, bytes | str | None]:
        """Return the LSNs of a range, both included; None where no transaction is in it.

        Raises: CdcUsageError 22901 if the folder is not enabled.
        """
        self._tables.require_enabled()
        if isinstance(from_, datetime):
            from_ = tables.lsn_at(self._tables, from_, NOT_BELOW)
        elif from_ is None:
            from_ = self.min_lsn()
        if isinstance(to, datetime):
            return from_, tables.lsn_at(self._tables, to, NOT_ABOVE)
        return from_, self.max_lsn() if to is None else to

    def min_lsn(self) -> Lsn:
        """Return the low end of the instance's validity interval, which cleanup moves."""
        return Lsn(self._tables.instance(self.name).start_lsn)

    def max_lsn(self) -> Lsn | None:
        """Return the high end of the instance's interval: the highest LSN, or the end of a paused one."""
        gate = self._tables.max_lsn()
        return high_of(self._tables.instance(self.name), gate)

    def columns(self) -> Listing[CapturedColumn]:
        """Return the captured columns, by ordinal."""
        return Listing(self._tables.captured(self._tables.instance(self.name).object_id))

    def ddl_history(self) -> Listing[DdlEntry]:
        """Return the column changes of the table since the instance began, in order of LSNs."""
        chosen, limit = self._tables.instance(self.name), self._tables.max_lsn()
        rows = (row for row in self._tables.control.rows(DDL_HISTORY) if row.object_id == chosen.object_id)
        seen = (row for row in rows if limit is not None and row.ddl_lsn <= limit)
        return Listing(sorted(seen, key=lambda row: row.ddl_lsn))

    def describe(self) -> InstanceDescription:
        """Return the instance with its interval, its columns and their changes."""
        (found,) = instances.instances_of(self._tables, name=self.name)
        return InstanceDescription(found, self.min_lsn(), self.max_lsn(), self.columns(), self.ddl_history())

    def ordinal(self, column: str) -> int:
        """Return the place of a captured column, from 1: its bit in the mask.

        Raises: CdcUsageError 22930 if the instance does not capture the column.
        """
        captured = self.columns()
        for row in captured:
            if row.column_name.lower() == column.lower():
                return row.column_ordinal
        raise CdcUsageError.unknown_column(self.name, column, [row.column_name for row in captured])

    @overload
    def has_changed(self, column: str, mask: bytes | None) -> bool: ...
    @overload
    def has_changed(self, column: str, mask: Column) -> Column: ...
    def has_changed(self, column: str, mask: bytes | Column | None) -> bool | Column:
        """True if a mask marks a captured column as changed: bytes give bool, a Column gives a Column.

        Raises: CdcUsageError 22930 if the instance does not capture the column.
        """
        return queries.is_bit_set(self.ordinal(column), mask)

    def snapshot(self, lsn: bytes | str | None = None) -> Snapshot:
        """Return the rows of the table at exactly an LSN, and that LSN; by default the highest one.

        The rows are read lazily: reading fails if VACUUM removed their files by then.

        Raises: LsnRangeError if the LSN is not in the interval; CdcError 22859 if the table cannot be read at that version
            any more.
        """
        return queries.snapshot(self._tables, self._tables.instance(self.name), lsn)

    @answers_later("cdc", CdcUsageError.later)
    def load(
        self,
        target: str | os.PathLike[str],
        *,
        consumer: str,
        key: Sequence[str] | str | None = None,
        initial: bool = True,
        restart: bool = False,
    ) -> AppliedChanges:
        """Bring a Delta table to the newest state of the instance: one MERGE of its net changes, exactly once.

        The consumer's position lies in the target's folder. Repeating a run that died changes nothing twice. The first run
        fills the target, new or empty, from a snapshot.

        Args:
            target: The table to keep; created if missing. It has the captured columns, and may have more.
            consumer: Name of this consumer: each has its own position.
            key: The columns that identify a row, for an instance without a key; by default the instance's.
            initial: Fill a target without a position from a snapshot. Else its rows are kept, and changes are applied from
                start_lsn on.
            restart: Replace the rows of the target by those of a snapshot, in one commit, and go on from there.

        Returns: What was applied; `paused` and `unread_commits` describe changes that are not captured yet.

        Raises: CdcUsageError for a wrong parameter or a target that cannot be used or hold every value; LsnRangeError 313
            if cleanup passed the position; CdcError 22838 if a key has two rows, 22859 if the target or the database was
            replaced; CommitConflictError if another writer won the commit: run again.
        """
        columns = names_in(key)
        return load(
            self._tables, self.name, target, consumer=consumer, key=columns, initial=initial, restart=restart
        )

    def cleanup(self, to: bytes | str | None = None, *, threshold: int = THRESHOLD) -> RemovedChanges:
        """Raise the low end of the instance's interval, and remove the change rows below it.

        Args:
            to: The new low end: the LSN of a transaction. It is lowered to the smallest LSN of its time. None removes only
                the rows below the present one.
            threshold: Rows that one statement removes at most, except where a file has more.

        Raises: CdcUsageError 22964 if no transaction has this LSN, 22957 if it lies outside the interval;
            ScanInProgressError (22903).
        """
        return cleaning.cleanup_instance(self._tables, self.name, to, threshold)

    def to_debezium(self, changes: DataFrame) -> DataFrame:
        """Return changes as envelopes: `to_json(struct(*), map('ignoreNullFields', 'false'))` of a row is a payload.

        `changes` is the result of `changes`, with `all update old`. Without operation 3, updates have no `before`.

        Returns: before and after (structs of the captured columns, or NULL), op (c, u, d), source (schema, table,
        commit_lsn, change_lsn, ts_ms: the commit time), ts_ms (the same). LSNs are written as epoch:cycle:slot, in
        hexadecimal. Rows of one LSN are in the order of `change_lsn`.
        """
        return to_debezium(self._tables, self.name, changes)

    def version_of(self, lsn: bytes | str) -> int:
        """Return the version of the table that has exactly the changes up to an LSN.

        Raises: LsnRangeError if the LSN is not in the interval.
        """
        chosen = self._tables.instance(self.name)
        return version_through(self._tables, chosen, checked_lsn(self._tables, chosen, lsn_of_text(lsn)))

    def lsn_of(self, version: int) -> Lsn | None:
        """Return the highest LSN whose changes are in a version of the table: the inverse of `version_of`.

        None if the version is unread, lies before the instance's interval, or inside a gap that was compared as a whole.
        """
        return tables.lsn_of(self._tables, self._tables.instance(self.name), version)

    def switch_lsn(self, new: str) -> Switch:
        """Return how a consumer moves to a later instance of the table: this one below the LSN, `new` from it on.

        Earlier values of the new columns are in neither instance: take them once from `snapshot(lsn)` of the new one.

        Raises: CdcUsageError 22990 if they are of two tables, or `new` began first.
        """
        before, after = self._tables.instance(self.name), self._tables.instance(new)
        if before.source_object_id != after.source_object_id or before.object_id >= after.object_id:
            allowed = f"it is a later instance of the table of {before.capture_instance}"
            raise CdcUsageError.bad_parameter(22990, "new", new, allowed)
        known = {column.column_name for column in self.columns()}
        names = (column.column_name for column in self._tables.captured(after.object_id))
        return Switch(Lsn(after.start_lsn), tuple(name for name in names if name not in known))

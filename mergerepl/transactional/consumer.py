"""Transactional replication as a consumer of the log reader: commands of each article, and the gate MSrepl_transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mergerepl.delta.feed.column_changes import (
    ADD,
    DROP,
    FIELDS,
    NULLABILITY,
    RENAME,
    REPLACE,
    RESTORE,
    TYPE,
    ColumnChange,
)
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.properties import KEPT_A_DAY
from mergerepl.delta.tables import NewTable, counts_by, create_table, is_delta_table, transaction_version
from mergerepl.delta.types import field, json_of
from mergerepl.failpoints import failpoint
from mergerepl.filters.clause import columns_of
from mergerepl.filters.parse import parse_stored
from mergerepl.logreader.consumer import Cycle, PauseSource, ReadRows, Wanted, pausing
from mergerepl.logreader.plan import Entry, Plan, SourcePlan
from mergerepl.logreader.positions import LogState
from mergerepl.replica.control import CHECKPOINT_INTERVAL
from mergerepl.replica.fence import fence_table
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, remove_table
from mergerepl.systables.transactional import (
    APP_ID,
    ARTICLES,
    ERRORS,
    FAILED,
    HISTORY,
    LOG_READER_AGENT,
    PAUSES_APP_ID,
    TRANSACTIONS,
    ErrorRow,
    HistoryRow,
    TransactionRow,
)
from mergerepl.systables.transactional import CONSUMER as NAME
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import VERSIONS
from mergerepl.transactional.catalog import DistributionStore
from mergerepl.transactional.refusals import SCHEMA_CHANGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def consumer_at(root: Location) -> Commands:
    """Return the consumer of a folder."""
    return Commands(DistributionStore(root))


class Commands:
    """The consumer `transactional`."""

    name, app_id, cycle_column, is_in_process = NAME, APP_ID, "scan_cycle", False

    def __init__(self, distributor: DistributionStore) -> None:
        self.distributor = distributor

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Record why a cycle failed for the log reader agent."""
        from mergerepl.transactional.agents import stops_recorded

        with stops_recorded(self.distributor), plain_errors("the log was read"):
            yield

    def served(self, state: LogState) -> None:
        """Do nothing: publications do not depend on other consumers."""

    def wanted(self) -> Mapping[int, Wanted]:
        """Return the sources of all articles; a gap is bridged by comparing versions."""
        return {row.source_object_id: Wanted(row.key_columns) for row in self.distributor.articles()}

    def gate_cycle(self) -> int:
        """Return the scan cycle that agents may see; -1 for none."""
        return self.distributor.gate_cycle if self.distributor.is_there else -1

    def tables(self) -> list[tuple[int, Location]]:
        """Return the tables of commands, each with its source."""
        shapes = self.distributor.shapes()
        return [(each.source_object_id, self.distributor.commands_table(each)) for each in shapes]

    def check(self, source: SourcePlan, rows: Sequence[ReadRows], spark: Callable[[], SparkSession]) -> None:
        """Check that the key and the columns of the filter are still there.

        Raises: PauseSource.
        """
        del rows, spark
        for article in self._of_source(source.object_id):
            used = {*article.key_columns}
            if article.filter_clause is not None:
                used |= {column.name for column in columns_of(parse_stored(article.filter_clause))}
            for change in source.columns:
                if change.kind in (DROP, RENAME) and change.column in used:
                    raise PauseSource(
                        SCHEMA_CHANGED,
                        f"Column '{change.column}' of '{source.path}' is part of the key or the filter of article "
                        f"'{article.article}' and was dropped or renamed. Its log is not read on; other tables go on. "
                        "Publish it again with another key or filter.",
                    )

    def _of_source(self, object_id: int) -> list[Shape]:
        return [row for row in self.distributor.articles() if row.source_object_id == object_id]

    def decide(self, plan: Plan) -> Any:
        """Return the new shapes of articles in this cycle, and the shape of each reading."""
        steps: dict[str, Any] = {"shapes": [], "readings": {}}
        for source in plan.sources:
            lsns = plan.lsns_of(source.object_id)
            for article in self._of_source(source.object_id):
                known = article
                places = []
                shapes = [article]
                for change_version in sorted({change.version for change in source.columns}):
                    changes = [each for each in source.columns if each.version == change_version]
                    following = changed_shape(known, changes)
                    if following is None:
                        continue
                    # A gap has one LSN: changes of columns inside of it have that one.
                    version = min(v for v in lsns if v >= change_version)
                    known = replace(following, first_seqno=bytes(lsns[version]))
                    shapes.append(known)
                    steps["shapes"].append(as_stated(known))
                for reading in source.readings:
                    last = lsns[reading.through_version_inclusive]
                    in_force = max(
                        (each for each in shapes if each.first_seqno <= last),
                        key=lambda each: each.schema_version,
                    )
                    places.append(in_force.schema_version)
                steps["readings"][str(article.article_id)] = places
        return steps

    # -- after the decision --------------------------------------------------------------------------------------------

    def write(self, cycle: Cycle) -> None:
        """State the shapes of articles that begin or changed, make their tables, append the commands."""
        steps = cycle.plan.steps.get(NAME) or {}
        new = [article_of(each) for each in (*steps.get("begin", ()), *steps.get("shapes", ()))]
        if new:
            self._state(new)
        for source in cycle.plan.sources:
            for article in self._of_source(source.object_id):
                with pausing(source):
                    self._append(cycle, source, article, steps.get("readings", {}))
                failpoint("transactional.after_commands")

    def _state(self, new: Sequence[Shape]) -> None:
        known = {(row.article_id, row.schema_version) for row in self.distributor.shapes()}
        missing = [row for row in new if (row.article_id, row.schema_version) not in known]
        for row in missing:
            _create(self.distributor.commands_table(row), row)
        failpoint("transactional.after_create")
        if missing:
            with self.distributor.writing():
                self.distributor.control.replace(ARTICLES, [*self.distributor.shapes(), *missing])

    def _append(
        self, cycle: Cycle, source: SourcePlan, article: Shape, readings: Mapping[str, Sequence[int]]
    ) -> None:
        from mergerepl.transactional.commands import commands_of

        lsns = cycle.plan.lsns_of(source.object_id)
        commits = (entry.of(source.object_id) for entry in cycle.plan.entries)
        updates = {
            each.version
            for each in commits
            if each is not None and each.operation == "UPDATE" and each.from_version == each.version
        }
        places = readings.get(str(article.article_id), ())
        shapes = {
            row.schema_version: row
            for row in self.distributor.shapes()
            if row.article_id == article.article_id
        }
        frames: dict[int, list[DataFrame]] = {}
        for version in sorted(set(places)):
            table = self.distributor.commands_table(shapes[version])
            if cycle.is_written(table, APP_ID):
                continue
            for read, place in zip(cycle.changes(source.object_id), places, strict=True):
                if place == version:
                    of_reading = {each: lsns[each] for each in read.reading.versions}
                    made = commands_of(cycle.spark(), read, of_reading, shapes[version], updates)
                    frames.setdefault(version, []).append(made)
        transaction = cycle.transaction(APP_ID, "commands")
        count = sum(read.count for read in cycle.changes(source.object_id)) if frames else 0
        for version, parts in frames.items():
            cycle.append(parts, self.distributor.commands_table(shapes[version]), transaction, count)

    def show(self, cycle: Cycle) -> None:
        """Append the gate: all transactions of the cycle in one commit; a dummy entry if no agent needs any of them."""
        plan = cycle.plan
        if not self.distributor.shapes():
            # The last publication has gone.
            return
        self._note_paused(plan)
        counts = self._counts(plan)
        shapes: dict[bytes, list[Shape]] = {}
        for row in self.distributor.shapes():
            if row.schema_version > 1:
                shapes.setdefault(row.first_seqno, []).append(row)
        now = datetime.now(UTC)
        rows = []
        for entry in plan.entries:
            seqno = bytes(plan.lsn(entry))
            changed = shapes.get(seqno, [])
            if counts.get(seqno) or changed:
                text = "; ".join(str(row.schema_text) for row in changed)
                kind = "schema" if changed else "transaction"
                rows.append(_transaction(plan, entry, kind, now, counts.get(seqno, {}), text or None))
        if not rows and plan.entries:
            rows = [_transaction(plan, plan.entries[-1], "dummy", now, {}, None)]
        failpoint("transactional.before_gate")
        with self.distributor.writing():
            self.distributor.control.append(TRANSACTIONS, rows, once=(APP_ID, plan.scan_cycle))

    def _note_paused(self, plan: Plan) -> None:
        """Record paused articles for `status`."""
        now = datetime.now(UTC)
        errors = [
            ErrorRow(
                time=now,
                error_code=each.number,
                error_text=each.reason,
                subscription_guid="",
                article_id=article.article_id,
            )
            for each in plan.paused
            for article in self._of_source(each.object_id)
        ]
        runs = [
            HistoryRow(
                agent_id=LOG_READER_AGENT,
                time=now,
                runstatus=FAILED,
                comments=each.error_text,
                xact_seqno=bytes(plan.last_lsn or bytes(10)),
            )
            for each in errors
        ]
        with self.distributor.writing():
            self.distributor.control.append(ERRORS, errors, once=(PAUSES_APP_ID, plan.scan_cycle))
            self.distributor.control.append(HISTORY, runs, once=(PAUSES_APP_ID, plan.scan_cycle))

    def _counts(self, plan: Plan) -> dict[bytes, dict[int, int]]:
        found: dict[bytes, dict[int, int]] = {}
        for row in self.distributor.shapes():
            table = self.distributor.commands_table(row)
            if not is_delta_table(table) or transaction_version(table, APP_ID) < plan.scan_cycle:
                continue
            counted = counts_by(table, "xact_seqno", where=f"scan_cycle = {plan.scan_cycle}")
            for seqno, n in counted.items():
                found.setdefault(bytes(seqno), {})[row.article_id] = n
        return found


def _transaction(
    plan: Plan, entry: Entry, kind: str, now: datetime, counts: Mapping[int, int], schema_text: str | None
) -> TransactionRow:
    return TransactionRow(
        xact_id=entry.transaction_id,
        xact_seqno=bytes(plan.lsn(entry)),
        entry_time=now,
        scan_cycle=plan.scan_cycle,
        commit_time=entry.end_time,
        kind=kind,
        commands=counts,
        commits=entry.commits,
        schema_text=schema_text,
    )


def changed_shape(article: Shape, changes: Sequence[ColumnChange]) -> Shape | None:
    """Return the article after one commit's changes of columns; None if they do not concern it."""
    types = dict(zip(article.columns, article.types, strict=True))
    names = {name: name for name in article.columns}
    new: dict[str, str] = {}
    statements = []
    for change in changes:
        column = change.column
        if change.kind == ADD and article.has_all_columns and not change.new_name.lower().startswith("__sys"):
            new[change.new_name] = change.new_type
            statements.append(f"ADD COLUMN {change.new_name} {change.new_type.upper()}")
        elif change.kind == DROP and column in names:
            del names[column]
            statements.append(f"DROP COLUMN {column}")
        elif change.kind == RENAME and column in names:
            names[column] = change.new_name
            statements.append(f"RENAME COLUMN {column} TO {change.new_name}")
        elif change.kind in (TYPE, FIELDS) and column in names:
            types[column] = change.new_type
            statements.append(f"ALTER COLUMN {change.new_name} TYPE {change.new_type.upper()}")
        else:
            assert change.kind in (ADD, DROP, RENAME, TYPE, FIELDS, NULLABILITY, REPLACE, RESTORE), (
                change.kind
            )
    if not statements:
        return None
    return replace(
        article,
        columns=(*names.values(), *new),
        types=(*(types[name] for name in names), *new.values()),
        text_columns=tuple(names[name] for name in article.text_columns if name in names),
        schema_version=article.schema_version + 1,
        schema_text=", ".join(statements),
        former=(*names, *("" for _ in new)),
    )


def as_stated(row: Shape) -> dict[str, Any]:
    """Return an article as a plan states it."""
    return {**asdict(row), "first_seqno": row.first_seqno.hex()}


def article_of(stated: Mapping[str, Any]) -> Shape:
    """Return the article that `as_stated` gave."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()
    }
    given["first_seqno"] = bytes.fromhex(stated["first_seqno"])
    return Shape(**given)


def _create(table: Location, shape: Shape) -> None:
    """Make the table of an article's commands; in a folder in place of one that was left.

    In a store it is that of a cycle that died: no other article gets its number. So no late request removes another one's.
    """
    if is_local(table):
        remove_table(table)
    elif is_delta_table(table):
        fence_table(table)
        return
    from mergerepl.transactional.commands import key_type, row_type

    row, key = row_type(shape), key_type(shape)
    types = {
        "xact_seqno": "binary",
        "command_id": "bigint",
        "article_id": "int",
        "hashkey": "int",
        "operation": "string",
        "key_change": "boolean",
        "old": row,
        "new": row,
        "pk": key,
        "bitmap": "binary",
        "scan_cycle": "bigint",
        **(dict.fromkeys(VERSIONS, "binary") if shape.has_writers else {}),
    }
    properties = {"delta.checkpointInterval": CHECKPOINT_INTERVAL, STATS_PROPERTY: "scan_cycle", **KEPT_A_DAY}
    fields = [field(name, json_of(type_)) for name, type_ in types.items()]
    create_table(table, NewTable(fields, (), properties), CommitMark(NAME, "commands:create"))
    fence_table(table)

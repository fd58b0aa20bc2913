"""Enable and disable the tracking of tables, one by one or as a document states them (compact.md 3).

Steps can be repeated; the rows of the catalog come last.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl import roots
from mergerepl.delta.contract.problems import Code, Problem, TableContract
from mergerepl.delta.contract.rules import NO_GUID, NULL, SHARED, bad_keys
from mergerepl.delta.properties import describe, missing_properties, set_properties
from mergerepl.delta.sql_text import quoted, text_literal
from mergerepl.delta.store_proof import require_proof
from mergerepl.delta.tables import (
    TableState,
    add_columns,
    foreign_file,
    head_version,
    is_delta_table,
    open_table,
    read_version,
    session_with_mark,
)
from mergerepl.delta.types import ddl_of
from mergerepl.delta.types import field as nullable_field
from mergerepl.errors import MergeReplError
from mergerepl.model.folders import FolderTracking, TableTracking
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult, PlanStep
from mergerepl.model.tracking import TrackedTable
from mergerepl.model.tracking_options import SYSTEM_PREFIX, Foreign, TrackingOptions
from mergerepl.publish.steps import Step, check_steps
from mergerepl.publish.steps import carry_out as carry_out_steps
from mergerepl.rows.sql import quote
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.tracking import CHANGE_BSN, CONSUMERS, DELETED_ROWS, ROW_COLUMNS, TABLE_NAME
from mergerepl.tracking import counters
from mergerepl.tracking.carry_out import carry_out
from mergerepl.tracking.commit import empty_intent, published_versions
from mergerepl.tracking.database import (
    Database,
    Session,
    create_tables,
    database_at,
    key_type_of,
    packed_literal,
    snapshot_version,
    store_tracked,
    tracked_table,
    tracked_tables,
)
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.foreign import look_at_all
from mergerepl.tracking.row_keys import unsupported
from mergerepl.tracking.staged_rows import key_texts, unwritable
from mergerepl.tracking.sweep import sweep

LONGEST_NAME = 128
_NAMED_KEYS = 4
_BAD_KEYS = {NULL: "rows have a key that is NULL", SHARED: "rows share a key", NO_GUID: "keys are no GUIDs"}
_OTHER_STAMPS = "rows carry stamps of another database"
_MAPPING = "delta.columnMapping.mode"


def enable(
    session: Session, stated: TableTracking, *, foreign: Foreign, retention: timedelta
) -> TrackedTable:
    """Track a table, or change the options of a tracked one.

    Raises: TrackingError, with nothing changed, if the table or its rows cannot be tracked, or its key is another one.
    """
    database, now = session.database, datetime.now(UTC)
    require_proof(database.root)
    with session.held("tracking enable"):
        known = tracked_tables(database).get(stated.table) if counters.is_database(database.root) else None
        if known is not None:
            _require_same_key(stated, known)
            sweep(session)
            return _change_options(session, known, stated.options, foreign)
        facts = check(session, stated)
        fields = (each for each in map(facts.field, stated.key) if each is not None)
        types = tuple(key_type_of(each, stated.key_type) for each in fields)
        terms = (stated.table, stated.options, stated.key_type, stated.key, types, facts.metadata.table_id)
        wanted = TrackedTable(*terms, 0, foreign, now, None)
        counters.create_database(database.root)
        create_tables(database, retention=retention)
        sweep(session)
        mark = database.setup_mark("enable")
        set_properties(lambda: session.spark, facts, missing_properties(facts, retention), mark)
        missing = [nullable_field(name, type_) for name, type_ in ROW_COLUMNS if facts.field(name) is None]
        add_columns(lambda: session.spark, facts.path, missing, mark)
        wanted = replace(wanted, enabled_version=head_version(facts.path))
        return _enabled(session, wanted)


def _require_same_key(stated: TableTracking, known: TrackedTable) -> None:
    if (known.key_type, known.key) != (stated.key_type, stated.key):
        raise TrackingError.other_key(known.name, known.key)


def check(session: Session, stated: TableTracking) -> TableState:
    """Return the facts of a table that can be tracked; its keys and stamps are read. Raises: TrackingError."""
    root = session.database.root
    facts = check_table(session.database, stated)
    # Where the system tables are without the numbers, reading these says what is lost.
    has_numbers = counters.is_database(root) or session.database.is_there
    last_bsn = counters.read_counters(root).last_bsn if has_numbers else 0
    _check_rows(session.spark, stated, facts, last_bsn)
    return facts


def check_table(database: Database, stated: TableTracking) -> TableState:
    """Return the facts of the table, if it can be tracked by its log. Raises: TrackingError."""
    path = database.path(stated.table)
    problem = _place_problem(database, stated.table, path)
    if problem is None:
        facts = open_table(path)
        problem = _columns_problem(facts, stated)
    if problem is not None:
        raise TrackingError.cannot_enable(stated.table, *problem)
    return facts


def _place_problem(database: Database, name: str, path: Location) -> Problem | None:
    if not name or Location.of(name).name != name or name.startswith(("_", ".")):
        return "it is no name of a table's folder", "Give the folder's name below PATH."
    if len(name) > LONGEST_NAME:
        return f"its name is longer than {LONGEST_NAME} characters", "Rename it."
    if Location.of(roots.resolved(path)) != Location.of(roots.resolved(database.root)) / name:
        return "it is a link to another folder", "Track it in the folder it lies in."
    return None if is_delta_table(path) else (f"'{path}' is no Delta table", "Check the name.")


def _columns_problem(facts: TableState, stated: TableTracking) -> Problem | None:
    ours, key = dict(ROW_COLUMNS), stated.key
    for each in facts.fields:
        if each["name"].startswith(SYSTEM_PREFIX) and ours.get(each["name"]) != each["type"]:
            return (
                f"column '{each['name']}' has a name that is reserved for the runtime",
                "Rename the column.",
            )
    if (problem := unwritable(facts)) is not None:
        return problem
    if not key or len({column.lower() for column in key}) < len(key):
        what = "a column of the key was named twice" if key else "no key was named"
        return what, "Name the key's columns, each once, or the GUID column."
    for column in key:
        if (found := facts.field(column)) is None:
            columns = ", ".join(each["name"] for each in facts.fields)
            return f"it has no column '{column}'", f"Its columns are: {columns}."
        type_ = ddl_of(found["type"])
        if stated.is_guid and type_ != "string":
            remedy = "Use a string column of GUIDs."
            if type_ == "binary":
                remedy += (
                    " Or name it as `key`: its bytes are the key then, in whichever order they are stored."
                )
            return f"GUID column '{column}' has the type {type_}", remedy
        why = unsupported(type_)
        if TableContract(facts, key=(column,)).find(Code.KEY_PADDED):
            why = (
                "Delta stores char(n) padded or not, and pads it when it is read: a key would have two forms"
            )
        if why is not None:
            return f"key column '{column}': {why}", "Choose another key."
    return None


def _check_rows(spark: SparkSession, stated: TableTracking, facts: TableState, last_bsn: int) -> None:
    """Check keys and, for existing tracking columns, that their stamps are of this database."""
    name = stated.table
    away = foreign_file(lambda: spark, facts.path, facts.version)
    if away is not None:
        raise TrackingError.cannot_enable(
            name, f"it is a shallow clone: its file '{away}' lies elsewhere", "Make a copy of its rows."
        )
    stamps = {}
    if facts.field(CHANGE_BSN) is not None:
        stamps = {_OTHER_STAMPS: F.max(CHANGE_BSN) > packed_literal(last_bsn)}
    found = bad_keys(
        read_version(spark, facts.path, facts.version),
        stated.key,
        most=_NAMED_KEYS,
        is_guid=stated.is_guid,
        also=stamps,
    )
    if found:
        remedy = "Correct these rows first."
        if found[0].reason == _OTHER_STAMPS:
            remedy = "Drop the three columns whose names begin with __sys first."
        raise TrackingError.cannot_enable(
            name,
            f"{_BAD_KEYS.get(found[0].reason, found[0].reason)}: {', '.join(key_texts([each.values for each in found]))}",
            remedy,
        )


def _enabled(session: Session, table: TrackedTable) -> TrackedTable:
    """Record that a table is tracked; if the database has numbers or consumers, from a separate transaction on."""
    database = session.database
    has_past = counters.read_counters(database.root).last_bsn > 0 or database.control.rows(CONSUMERS)
    if has_past:
        table = replace(table, enabled_csn=_empty_transaction(session, table))
    store_tracked(database, table.name, table)
    return table


def _empty_transaction(session: Session, table: TrackedTable) -> int:
    """Commit an empty transaction, so that earlier changes have lower numbers."""
    database = session.database
    begun = counters.begin(database.root)
    try:
        versions = published_versions(look_at_all(database))
        versions[table.name] = snapshot_version(table, versions)
        intent = empty_intent(database, begun.bsn, versions)
        counters.decide(begun.folder, intent)
        carry_out(session, begun.folder)
    finally:
        begun.let_go()
    return intent.last_csn


def _change_options(
    session: Session, known: TrackedTable, options: TrackingOptions, foreign: Foreign
) -> TrackedTable:
    if (known.options, known.foreign) == (options, foreign):
        return known
    changed = replace(known, options=options, foreign=foreign)
    if options & ~known.options:
        return _enabled(session, replace(changed, enabled_at=datetime.now(UTC)))
    store_tracked(session.database, known.name, changed)
    return changed


def disable(session: Session, name: str, *, keep_columns: bool) -> None:
    """Track a table no longer: drop its columns or keep them, and remove its rows of the system tables.

    Raises: TrackingError if a transaction that has touched the table is open, or dropping would rewrite the table.
    """
    database = session.database
    if not keep_columns and not is_local(database.root):
        raise TrackingError(
            f"Tracking of '{name}' cannot be ended with its columns in a bucket: no fence stops an ALTER TABLE that an "
            "agent sends late. Nothing was changed. Leave the columns (`keep_columns=True`, `--keep-columns`), and drop "
            "them yourself if they are to go.",
            table=name,
        )
    if not keep_columns:
        _refuse_unmapped(database, tracked_table(database, name))
    with session.held("tracking disable"):
        table = tracked_table(database, name)
        try:
            sweep(session)
        except MergeReplError as error:
            # A decided transaction that this table cannot take blocks all others until its tracking ends.
            if Location.of(error.facts.get("table", "")).name != name:
                raise
        touching = [
            counters.bsn_of(folder)
            for folder in counters.transaction_folders(database.root)
            if counters.has_staged(folder, name) and not counters.has_intent(folder)
        ]
        if touching:
            raise TrackingError(
                f"Tracking of '{name}' cannot be disabled: transactions {', '.join(map(str, touching))} are open. Commit "
                "or abort them first (`mergerepl status`)."
            )
        if not keep_columns and is_delta_table(database.path(name)):
            _drop_columns(session, open_table(database.path(table.name)))
        store_tracked(database, name, None)
        database.control.delete(DELETED_ROWS, where=f"{quoted(TABLE_NAME)} = {text_literal(name)}")


def _tracking_columns(facts: TableState) -> list[str]:
    return [name for name, _ in ROW_COLUMNS if facts.field(name) is not None]


def _refuse_unmapped(database: Database, table: TrackedTable) -> None:
    """Check, before anything else, that the columns of a table can be dropped. Raises: TrackingError."""
    path = database.path(table.name)
    if not is_delta_table(path):
        return
    facts = open_table(path)
    if _tracking_columns(facts) and facts.properties.get(_MAPPING, "none") == "none":
        raise TrackingError(
            f"Tracking of '{table.name}' cannot be ended with its columns: Delta drops columns only of a table with column "
            f"mapping. Nothing was changed. Turn it on (ALTER TABLE delta.{quote(str(path))} SET TBLPROPERTIES "
            "('delta.columnMapping.mode' = 'name'); older readers cannot open the table then) and run again; or leave the "
            "columns: `keep_columns=True`, `--keep-columns`.",
            table=table.name,
        )


def _drop_columns(session: Session, facts: TableState) -> None:
    present = _tracking_columns(facts)
    if not present:
        return
    marked = session_with_mark(session.spark, session.database.setup_mark("disable"))
    marked.sql(f"ALTER TABLE delta.{quote(str(facts.path))} DROP COLUMNS ({', '.join(map(quote, present))})")


# ---- `mergerepl apply` of a document with `type: tracking`


@dataclass(frozen=True)
class Stored:
    """The stored state of a folder: the tracked tables by name, and the states of those that exist."""

    tracked: Mapping[str, TrackedTable] = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)


def apply_tracking(
    folder: FolderTracking,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    planned: Collection[PlanStep] | None = None,
) -> ApplyResult:
    """Make the tracked tables of a folder match a document; repeating it does nothing.

    Steps with `removes_rows` end the tracking of a table: its stamps and its tombstones go. They must be `planned`, if a
    plan was made before.

    Raises: TrackingError, ForeignCommitError (nothing was changed); LeaseError (run again).
    """
    started = time.monotonic()
    session = Session(database_at(folder.root))
    with plain_errors("a tracked folder was applied"):
        steps = difference(folder, _read_stored(session.database))
        check_steps(steps, session)
        if not dry_run:
            carry_out_steps(steps, session, progress or NoProgress(), planned=planned)
    took = round(time.monotonic() - started, 3)
    return ApplyResult(session.database.root.name, tuple(step.plan for step in steps), dry_run, took)


def _read_stored(database: Database) -> Stored:
    if not counters.is_database(database.root):
        return Stored()
    tracked = tracked_tables(database)
    there = {name: database.path(name) for name in tracked}
    return Stored(tracked, {name: open_table(path) for name, path in there.items() if is_delta_table(path)})


def difference(stated: FolderTracking, stored: Stored) -> list[Step[Session]]:
    """Return the steps, in order: tables that leave, new ones, changes. Nothing is read.

    Raises: TrackingError for another key of a tracked table.
    """
    named = {each.table for each in stated.tables}
    steps = [_end(name, stored.tables.get(name)) for name in stored.tracked if name not in named]
    for each in stated.tables:
        if each.table not in stored.tracked:
            detail = f"three columns are added; rows are identified by {', '.join(each.key)}"
            steps.append(
                Step("track", each.table, detail, _enabling(stated, each), partial(check, stated=each))
            )
    for each in stated.tables:
        if (known := stored.tracked.get(each.table)) is not None:
            steps += _changes(stated, each, known, stored.tables.get(each.table))
    return steps


def _enabling(folder: FolderTracking, stated: TableTracking) -> Callable[[Session], TrackedTable]:
    return partial(enable, stated=stated, foreign=folder.foreign, retention=folder.retention)


def _end(name: str, table: TableState | None) -> Step[Session]:
    # Dropping a column of a table without column mapping would rewrite the table. In a bucket they stay.
    is_mapped = (
        table is not None and is_local(table.path) and table.properties.get(_MAPPING, "none") != "none"
    )
    detail = f"end its tracking; its tombstones go, {'its' if is_mapped else 'not its'} three columns"
    end = partial(disable, name=name, keep_columns=not is_mapped)
    return Step("untrack", name, detail, end, removes_rows=True)


def _changes(
    stated: FolderTracking, each: TableTracking, known: TrackedTable, table: TableState | None
) -> Iterator[Step[Session]]:
    _require_same_key(each, known)
    changed = [
        f"{name} {before} → {now}"
        for name, before, now in (
            ("track", known.options.name, each.options.name),
            ("foreign", known.foreign.value, stated.foreign.value),
        )
        if before != now
    ]
    if changed:
        yield Step("change", each.table, ", ".join(changed), _enabling(stated, each))
    if table is not None and (missing := missing_properties(table, stated.retention)):
        yield Step("change", each.table, describe(missing), partial(_set_properties, table, missing))


def _set_properties(table: TableState, missing: Mapping[str, str], session: Session) -> None:
    with session.held("apply"):
        set_properties(lambda: session.spark, table, missing, session.database.setup_mark("enable"))

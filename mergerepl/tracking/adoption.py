"""Make transactions of foreign commits: read their changes, and stage the stamps and tombstones that they lack."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.feed.window import FeedWindow
from mergerepl.delta.tables import Commit, commits, write_files
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import TrackedTable
from mergerepl.rows.images import all_true
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.in_memory import frame_of
from mergerepl.store.location import Location
from mergerepl.store.register import fence_of
from mergerepl.tracking import foreign, staged_rows
from mergerepl.tracking.counters import Counts, Intent, Planned, Write, decide, take_bsns
from mergerepl.tracking.database import Database, Session, packed, tracked_table
from mergerepl.tracking.errors import ForeignCommitError
from mergerepl.tracking.foreign import events_of, foreign_commits, readable_window, writable_facts
from mergerepl.tracking.staged_rows import PROBLEM, key_columns, key_names, snapshot_rows

_COMMITS = pa.schema(
    {
        "version": pa.int64(),
        "bsn": pa.binary(),
        "csn": pa.int64(),
        "time": pa.timestamp("ms", "UTC"),
        "by": pa.string(),
        "is_own": pa.bool_(),
    }
)


def adopt_between(session: Session, folder: Location, intent: Intent, write: Write, version: int) -> Intent:
    """Return the intent with the foreign commits between reading a table's state and our commit to it.

    They are published together with it, under the next numbers: their rows are in the snapshot already.
    """
    database = session.database
    table = tracked_table(database, write.table)
    later = (each for each in intent.transactions if each.csn > write.csn)
    if any(each.foreign_version is not None and write.table in each.tables for each in later):
        return intent
    found = foreign_commits(
        database, table, from_version_exclusive=write.from_version, through_version_inclusive=version
    )
    if not found:
        return intent
    bsns = take_bsns(database.root, len(found))
    planned = plan(database, table, found, bsns, first_csn=intent.last_csn + 1)
    between = {"from_version_exclusive": write.from_version, "through_version_inclusive": version}
    ours = {
        each.version for each in commits(database.path(table.name), **between) if database.is_own(each.mark)
    }
    # An agent that was displaced may still stage its own rows of this commit.
    at = folder / f"between-{write.csn}-{fence_of(folder)}"
    staged, planned = stage(session, folder, at, table, planned, found, write.from_version, version, own=ours)
    overwritten = _overwritten(at)
    extended = intent.extended(
        replace(intent, transactions=planned, writes=(staged,), overwritten={write.table: overwritten})
    )
    failpoint("tracking.before_extension")
    decide(folder, extended)
    return extended


def plan(
    database: Database, table: TrackedTable, found: Sequence[Commit], bsns: Sequence[int], *, first_csn: int
) -> tuple[Planned, ...]:
    """Return the transactions that foreign commits of a table become, in version order.

    The context of a merge session's commit is the other replica.
    """
    contexts = [None if each.mark is None else each.mark.peer.lower() or None for each in found]
    return tuple(
        Planned(bsn, first_csn + i, uuid.uuid4().hex, context, {}, commit.version, (table.name,))
        for i, (commit, bsn, context) in enumerate(zip(found, bsns, contexts, strict=True))
    )


def stage(
    session: Session,
    folder: Location,
    at: Location,
    table: TrackedTable,
    planned: Sequence[Planned],
    found: Sequence[Commit],
    from_version_exclusive: int,
    through_version_inclusive: int,
    *,
    own: set[int],
) -> tuple[Write, tuple[Planned, ...]]:
    """Stage the writes that foreign commits of one table need; return them, and the transactions with their changes.

    Raises: ForeignCommitError if the change feed does not have them, or their rows have no key or share one.
    """
    path = writable_facts(session.database, table).path
    bounds = from_version_exclusive, through_version_inclusive
    window = readable_window(
        path,
        table,
        from_version_exclusive=from_version_exclusive,
        through_version_inclusive=through_version_inclusive,
    )
    keys = key_names(table)
    try:
        events = _numbered_events(session.spark, table, window, planned, found, own=own)
        rows = foreign.folded(events, keys, table.options)
        has_null = ~all_true([F.col(name).isNotNull() for name in keys])
        problem = F.when(has_null, F.lit("have a key that is NULL"))
        write_files(rows.withColumn(PROBLEM, problem), at)
    except (PySparkException, Py4JJavaError) as error:
        why = gone_reason(error)
        if why is None:
            raise
        raise ForeignCommitError.unreadable(table.name, found[0].version, why) from error
    bad = staged_rows.problems_of(at, keys)
    if bad is not None:
        what, listed = bad
        raise ForeignCommitError(
            f"Table '{table.name}': foreign commits cannot be adopted, because rows {what}: {', '.join(listed)}. Nothing "
            "was changed. Correct these rows in the table, then run again.",
            table=table.name,
        )
    _refuse_shared_keys(session.spark, path, table, at, *bounds)
    counted = _changes(at)
    changes = [counted.get(each.foreign_version or -1, 0) for each in planned]
    planned = tuple(
        replace(each, changes={table.name: count} if count else {})
        for each, count in zip(planned, changes, strict=True)
    )
    stamps = staged_rows.count_where(at, foreign.IS_THERE)
    write = Write(
        table.name,
        planned[-1].csn,
        str(at.relative_to(folder)),
        rows.withColumn(PROBLEM, problem).schema.jsonValue(),
        int(table.options),
        through_version_inclusive,
        counts=Counts(updates=stamps),
        adopts=True,
    )
    return write, planned


def _numbered_events(
    spark: SparkSession,
    table: TrackedTable,
    window: FeedWindow,
    planned: Sequence[Planned],
    found: Sequence[Commit],
    *,
    own: set[int],
) -> DataFrame:
    """Return the effect of each commit of a window on each key, with the numbers of its transaction."""
    adopted = [
        (commit.version, packed(each.bsn), each.csn, commit.made_at_ms, each.context, False)
        for each, commit in zip(planned, found, strict=True)
    ]
    rows = [*adopted, *((version, None, None, None, None, True) for version in own)]
    numbers = pa.table([list(column) for column in zip(*rows, strict=True)], schema=_COMMITS)
    events = events_of(spark, table, window)
    joined = events.join(F.broadcast(frame_of(spark, numbers)), on=foreign.VERSION)
    return joined.select(*key_names(table), *foreign.EVENT)


def _refuse_shared_keys(
    spark: SparkSession,
    path: Location,
    table: TrackedTable,
    at: Location,
    from_version_exclusive: int,
    through_version_inclusive: int,
) -> None:
    """Check that keys were unique at all times: changes of rows that share a key cannot be distinguished.

    Raises: ForeignCommitError.
    """
    keys = key_names(table)
    bounded = staged_rows.within_keys(table, staged_rows.bounds_of(at, table))

    def keys_at(version: int, *, now: int) -> DataFrame:
        rows = snapshot_rows(spark, path, version)
        rows = rows if bounded is None else rows.where(bounded)
        named = [key.alias(name) for key, name in zip(key_columns(table), keys, strict=True)]
        return rows.select(*named, F.lit(now).alias("now"), F.lit(1 - now).alias("then"))

    states = spark.read.parquet(at.spark_uri).select(
        *keys, foreign.IS_THERE, foreign.WAS_ABSENT, foreign.SHARED
    )
    both = keys_at(through_version_inclusive, now=1).unionByName(keys_at(from_version_exclusive, now=0))
    counted = both.join(states.select(*keys), on=keys, how="left_semi").groupBy(*keys)
    rows = states.join(
        counted.agg(F.sum("now").alias("now"), F.sum("then").alias("then")), on=keys, how="left"
    )
    now, then = (F.coalesce(F.col(name), F.lit(0)) for name in ("now", "then"))
    is_odd = (now != F.col(foreign.IS_THERE).cast("int")) | (F.col(foreign.WAS_ABSENT) & (then > 0))
    shared = rows.where(is_odd | F.col(foreign.SHARED)).select(*keys).limit(4).collect()
    if shared:
        raise ForeignCommitError(
            f"Table '{table.name}': foreign commits cannot be adopted, because two rows share a key, or did: "
            f"{', '.join(staged_rows.key_texts(shared))}. Nothing was changed. Restore the table to the "
            "version before these commits (RESTORE TABLE); or correct the rows, disable tracking and enable it "
            "again, and let consumers take a copy.",
            table=table.name,
        )


def _changes(at: Location) -> Counter[int]:
    import pyarrow.compute as pc

    versions = pc.list_flatten(staged_rows.staged_columns(at, [foreign.CHANGED])[foreign.CHANGED])
    return Counter({each["values"]: each["counts"] for each in pc.value_counts(versions).to_pylist()})


def _overwritten(at: Location) -> int:
    import pyarrow.compute as pc

    rows = staged_rows.staged_columns(at, [foreign.LAST_IS_OWN, foreign.CHANGED])
    lost = pc.and_(rows[foreign.LAST_IS_OWN], pc.greater(pc.list_value_length(rows[foreign.CHANGED]), 0))
    return int(pc.sum(lost).as_py() or 0)

"""Readers of the staged rows of a changeset, for the MERGEs, the runs and the conflict tables."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.changes import (
    ACTION_OF,
    BASE,
    BORN_GENERATION,
    CHANGE_COLUMNS,
    CONFLICT_HASH,
    CONFLICT_TYPE,
    DATA_ACTIONS,
    DELETED,
    GENERATION,
    GENERATION_OF,
    NOTE,
    PARTCHANGEGEN,
    PUBLISHER_WINS,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.delta.commit_files import MOST_ROWS
from mergerepl.delta.engine_choice import MOST_BYTES, NeedsSparkError, require_texts
from mergerepl.delta.footers import read_footer
from mergerepl.delta.parquet_files import folder_dataset
from mergerepl.delta.small_writer import ACTION, SmallRows, type_problem
from mergerepl.delta.tables import SPARK_SCHEMA, reason_of
from mergerepl.delta.types import Field, ddl_of
from mergerepl.errors import StoreError
from mergerepl.frames import DataFrame, F, is_in_process
from mergerepl.spark.in_memory import frame_of
from mergerepl.store.location import Location
from mergerepl.store.storage import are_at_most, files_once_written
from mergerepl.systables.tombstone import TombstoneType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset

_ROWS_OF_BATCH, _BYTES_OF_BATCH = 1 << 16, 64 << 20


@dataclass(frozen=True)
class RowKind:
    """A kind of RESOLVED rows, and their number; `actions` and `has_generation` are by side."""

    verdict: str
    is_deleted: bool
    actions: Mapping[str, str | None]
    has_generation: Mapping[str, bool]
    is_conflict: bool
    has_note: bool
    rows: int


def with_conflict_hash(rows: DataFrame) -> DataFrame:
    """Return RESOLVED or DECIDED with `conflict_hash`."""
    # Both tables may refuse the row merged from two changes. A test of the type would cost another projection.
    of_conflict = F.xxhash64(ROWGUID, PUBLISHER_WINS)
    return rows.withColumn(CONFLICT_HASH, F.when(F.col(PUBLISHER_WINS).isNotNull(), of_conflict))


def read_staged(spark: SparkSession | None, folder: Location) -> DataFrame:
    """Return the rows written to a folder, with the columns that were written.

    Spark itself would run a job at each of a session's eight readings to learn the columns from a footer.

    Raises: StoreError if the file is missing or damaged.
    """
    written = _written_schema(folder)
    if is_in_process():
        assert written is not None
        return frame_of(None, _in_memory(folder, None), StructType.fromJson(json.loads(written)))
    assert spark is not None
    reader = spark.read if written is None else spark.read.schema(StructType.fromJson(json.loads(written)))
    return reader.parquet(Location.of(folder).spark_uri)


def require_rows(folder: Location) -> None:
    """Check that a folder still has the rows written to it.

    Raises: StoreError.
    """
    _written_schema(folder)


def staged_kinds(folder: Location) -> list[RowKind]:
    """Count the rows written to a folder, by kind.

    Raises: StoreError if the file is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    require_rows(folder)
    texts = ds.ParquetFileFormat(dictionary_columns={VERDICT, *ACTION_OF.values()})
    try:
        return row_kinds(folder_dataset(folder, texts))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(folder, reason_of(error)) from error


def row_kinds(rows: "Dataset") -> list[RowKind]:
    """Count RESOLVED rows by kind, one batch in memory at a time: each batch has its own kinds."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    facts = {
        **{name: ds.field(name) for name in (VERDICT, DELETED, *ACTION_OF.values())},
        **{name: ds.field(name).is_valid() for name in (CONFLICT_TYPE, NOTE, *GENERATION_OF.values())},
    }
    kinds: list[RowKind] = []
    for batch in rows.to_batches(
        columns=facts, batch_size=_ROWS_OF_BATCH, batch_readahead=1, fragment_readahead=1
    ):
        groups = pa.Table.from_batches([batch]).group_by([*facts]).aggregate([([], "count_all")])
        kinds += [
            RowKind(
                verdict=group[VERDICT],
                is_deleted=group[DELETED],
                actions={side: group[action] for side, action in ACTION_OF.items()},
                has_generation={side: group[generation] for side, generation in GENERATION_OF.items()},
                is_conflict=group[CONFLICT_TYPE],
                has_note=group[NOTE],
                rows=group["count_all"],
            )
            for group in groups.to_pylist()
        ]
    return kinds


def are_small(folder: Location) -> bool:
    """True if the rows written to a folder fit into memory."""
    return are_at_most(files_once_written(folder), MOST_BYTES)


def are_few(folder: Location) -> bool:
    """True if the rows written to a folder are few enough for this process to compute with them."""
    files = files_once_written(folder)
    return are_small(folder) and sum(read_footer(file).num_rows for file in files) <= MOST_ROWS


def small_rows(folder: Location, action: str) -> SmallRows:
    """Return the rows written to a folder for one side's table, in memory.

    A row that leaves the partition counts as deleted. The caller has checked `are_small`.

    Raises: StoreError if the file is missing or damaged.
    """
    import pyarrow.compute as pc

    types = {field["name"]: ddl_of(field["type"]) for field in _image_fields(folder)}
    of_side = _in_memory(folder, [action, ROW], where=(action, [each.value for each in DATA_ACTIONS]))
    is_gone = pc.equal(of_side[action], Action.LEAVE.value)
    named = pc.if_else(is_gone, Action.DELETE.value, of_side[action])
    values = of_side.select([ROW]).flatten().rename_columns(list(types))
    return SmallRows(values.append_column(ACTION, named), types)


def recorded_in_batches(
    folder: Location, side: str, *, keys_of_gone: Collection[str] | None = None
) -> "Iterator[pa.Table]":
    """Yield CHANGES of a folder's rows that one side records, in batches that fit into memory.

    `keys_of_gone` are the only fields recorded of a row that is gone or left the partition; None records whole rows.

    Raises: as `conflicts_in_batches`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    action, generation = ACTION_OF[side], GENERATION_OF[side]
    names = [*CHANGE_COLUMNS, *([BASE] if BASE in _columns(folder) else [])]
    kept = [name for name in names if name != GENERATION]
    for rows in _in_batches(folder, [*kept, action, generation, VERDICT], having=action):
        # As `apply.side.recorded_rows`: for the next receivers, a row that was here before is not an insert.
        waits = pc.equal(rows[VERDICT], Verdict.REFUSED.value)
        is_born = pc.and_(pc.equal(rows[action], Action.INSERT.value), pc.is_valid(rows[BORN_GENERATION]))
        born = pc.if_else(is_born, rows[generation], pa.scalar(None, pa.int64()))
        born = pc.if_else(waits, rows[BORN_GENERATION], born)
        place = rows.schema.get_field_index(BORN_GENERATION)
        recorded = rows.set_column(place, BORN_GENERATION, born).append_column(GENERATION, rows[generation])
        if keys_of_gone is not None:
            recorded = _in_partition(recorded, pc.equal(rows[action], Action.LEAVE.value), keys_of_gone)
        yield recorded.select(names)


def _in_partition(rows: "pa.Table", has_left: "pa.ChunkedArray[Any]", keys: Collection[str]) -> "pa.Table":
    """Return CHANGES as a subscriber records them, as `apply.side.recorded_rows` does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_deleted = pc.or_(rows[DELETED], has_left)
    left = pa.scalar(int(TombstoneType.PARTIAL_DELETE), pa.int32())
    images = rows[ROW].combine_chunks()
    place = pa.array(range(rows.num_rows), pa.int32())
    live = pc.if_else(is_deleted.combine_chunks(), pa.scalar(None, pa.int32()), place)
    names = [field.name for field in images.type]
    values = [images.field(i) if name in keys else images.field(i).take(live) for i, name in enumerate(names)]
    found = {
        DELETED: is_deleted,
        TOMBSTONE_TYPE: pc.if_else(has_left, left, rows[TOMBSTONE_TYPE]),
        ROW: pa.StructArray.from_arrays(values, names=names),
        # The publisher's number.
        PARTCHANGEGEN: pa.nulls(rows.num_rows, pa.int64()),
    }
    return pa.table({name: found.get(name, rows[name]) for name in rows.column_names})


def conflicts_in_batches(folder: Location, columns: Sequence[str]) -> "Iterator[pa.Table]":
    """Yield a folder's RESOLVED rows that are conflicts, in batches that fit into memory.

    Raises:
        NeedsSparkError: Arrow may represent a value otherwise than Spark does.
        StoreError: The file is missing or damaged.
    """
    return _in_batches(folder, columns, having=CONFLICT_TYPE)


def are_for_arrow(folder: Location) -> bool:
    """True if Arrow writes the types of a folder's rows as Spark does."""
    return not any(type_problem(field["type"]) for field in _image_fields(folder))


def _in_batches(folder: Location, columns: Sequence[str], *, having: str) -> "Iterator[pa.Table]":
    """Yield the rows that have a value in a column."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if not are_for_arrow(folder):
        raise NeedsSparkError(f"types of columns in '{folder}'")
    try:
        rows = folder_dataset(folder)
        batches = rows.to_batches(
            columns=[*columns],
            filter=ds.field(having).is_valid(),
            batch_size=_rows_of_batch(rows),
            batch_readahead=1,
            fragment_readahead=1,
        )
        for batch in batches:
            require_texts(batch)
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowNotImplementedError, pa.ArrowCapacityError) as error:
        raise NeedsSparkError(reason_of(error)) from error
    except NeedsSparkError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(folder, reason_of(error)) from error


def _rows_of_batch(rows: "Dataset") -> int:
    """Return the number of rows that take about `_BYTES_OF_BATCH` of memory."""
    groups = [group for file in rows.get_fragments() for group in file.row_groups]
    size, count = sum(group.total_byte_size for group in groups), sum(group.num_rows for group in groups)
    return max(1, min(_ROWS_OF_BATCH, int(_BYTES_OF_BATCH * count / max(1, size))))


def staged_fields(folder: Location) -> tuple[str, ...] | None:
    """Return the fields of the images written to a folder, in order; None if the files do not state them."""
    if _written_schema(folder) is None:
        return None
    return tuple(field["name"] for field in _image_fields(folder))


def _image_fields(folder: Location) -> list[Field]:
    image: list[Field] = _columns(folder)[ROW]["type"]["fields"]
    return image


def _columns(folder: Location) -> dict[str, Field]:
    written = _written_schema(folder)
    assert written is not None
    return {field["name"]: field for field in json.loads(written)["fields"]}


def _in_memory(
    folder: Location, columns: list[str] | None, where: "tuple[str, Sequence[str]] | None" = None
) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.dataset as ds

    chosen = ds.field(where[0]).isin(where[1]) if where is not None else None
    try:
        return folder_dataset(folder).to_table(columns=columns, filter=chosen)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(folder, reason_of(error)) from error


def _written_schema(folder: Location) -> bytes | None:
    """Return the columns that Spark notes in a folder's files, as JSON."""
    import pyarrow as pa

    file = next(iter(files_once_written(folder)), None)
    if file is None:
        raise _unreadable(folder, "there is no file; or Spark wrote them to another machine's file system")
    try:
        return (read_footer(file).metadata or {}).get(SPARK_SCHEMA)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(file, reason_of(error)) from error


def _unreadable(path: Location, reason: str) -> StoreError:
    return StoreError(
        f"Staged rows cannot be read in '{path}': {reason}. Run again; if a session that was interrupted needs them, "
        "restore the files from a copy.",
        path=str(path),
    )

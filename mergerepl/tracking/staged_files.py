"""The contents of staged Parquet files, read without Spark: rows of each kind, broken rules, bounds of their keys."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.delta.footers import read_footer, statistics_of
from mergerepl.model.article import BOUNDED_TYPES
from mergerepl.model.tracking import TrackedTable
from mergerepl.rows.key_bounds import within
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.tracking.counters import Bounds, Counts, parquet_files
from mergerepl.tracking.overlay import CHANGE_CONTEXT, EXISTED, PRESENT, PROBLEM, REBORN, key_names

_EXAMPLES = 3


def count_rows(folder: Location) -> int:
    """Return the number of staged rows, from the files' footers."""
    return sum(footer.num_rows for footer in _footers(folder))


def count_where(folder: Location, name: str) -> int:
    """Return the number of rows with a true value in a boolean column."""
    import pyarrow.compute as pc

    return int(pc.sum(read(folder, [name])[name]).as_py() or 0)


def counts_of(folder: Location) -> Counts:
    """Return the numbers of inserted, updated and deleted rows."""
    import pyarrow as pa

    kinds = [EXISTED, PRESENT, REBORN]
    grouped = pa.TableGroupBy(read(folder, kinds), kinds).aggregate([([], "count_all")]).to_pylist()
    inserts = updates = deletes = reborn = 0
    for each in grouped:
        rows = each["count_all"]
        inserts += rows * (not each[EXISTED] and each[PRESENT])
        updates += rows * (each[EXISTED] and each[PRESENT])
        deletes += rows * (each[EXISTED] and not each[PRESENT])
        reborn += rows * (each[EXISTED] and each[PRESENT] and each[REBORN])
    return Counts(inserts, updates, deletes, reborn)


def problems_of(folder: Location, keys: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first rule that staged rows break, with the keys of some; None if they break none."""
    import pyarrow.compute as pc

    rows = read(folder, [PROBLEM, *keys])
    broken = rows.filter(pc.is_valid(rows[PROBLEM])).slice(0, 1000).to_pylist()
    if not broken:
        return None
    text = broken[0][PROBLEM]
    return text, key_texts([[each[name] for name in keys] for each in broken if each[PROBLEM] == text])


def key_texts(keys: Sequence[Sequence[object]]) -> list[str]:
    """Return some keys as text; an ellipsis replaces those after the first three."""
    shown = [[str(value) for value in key] for key in keys[:_EXAMPLES]]
    found = [key[0] if len(key) == 1 else f"({', '.join(key)})" for key in shown]
    return [*found, "…"] if len(keys) > _EXAMPLES else found


def context_of(folders: Sequence[Location]) -> str | None:
    """Return the context of all staged changes; None if it is missing or not unique."""
    import pyarrow.compute as pc

    found: set[str | None] = set()
    for folder in folders:
        found |= set(pc.unique(read(folder, [CHANGE_CONTEXT])[CHANGE_CONTEXT]).to_pylist())
    return found.pop() if len(found) == 1 else None


def bounds_of(folder: Location, table: TrackedTable) -> dict[str, tuple[str, str]]:
    """Return the bounds of the staged key columns that have some, from the files' footers."""
    ends = {
        name: _ends(folder, name)
        for name, type_ in zip(key_names(table), table.key_types, strict=True)
        if type_ in BOUNDED_TYPES
    }
    return {name: found for name, found in ends.items() if found is not None}


def _ends(folder: Location, name: str) -> tuple[str, str] | None:
    lows, highs = [], []
    for footer in _footers(folder):
        for i, bounds in enumerate(statistics_of(footer, name)):
            if not footer.row_group(i).num_rows:
                continue
            if bounds is None or not bounds.has_min_max:
                return None
            lows.append(bounds.min)
            highs.append(bounds.max)
    return (str(min(lows)), str(max(highs))) if lows else None


def within_keys(table: TrackedTable, bounds: Bounds, *, of: str = "") -> Column | None:
    """Return a condition that rows with keys inside the bounds meet, also for file skipping."""
    ends = [
        within(F.col(f"{of}{quote(column)}"), *bounds[name], type_)
        for column, name, type_ in zip(table.key, key_names(table), table.key_types, strict=True)
        if name in bounds
    ]
    return reduce(Column.__and__, ends) if ends else None


def _footers(folder: Location) -> list[Any]:
    return [read_footer(file) for file in parquet_files(folder)]


def read(folder: Location, names: Sequence[str]) -> Any:
    """Return columns of staged rows as an Arrow table."""
    import pyarrow.dataset as ds

    return ds.dataset([str(file) for file in parquet_files(folder)], format="parquet").to_table(
        columns=list(names)
    )

"""A small batch in this process: which articles may be judged here, and their effect as rows that delta-rs merges."""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from mergerepl.delta.commit_files import frame_having
from mergerepl.delta.engine_choice import NeedsSparkError, require_few
from mergerepl.delta.small_writer import ACTION, SmallRows, article_problem
from mergerepl.delta.tables import TableState, open_table
from mergerepl.frames import DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import collected
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.judge import has_bit

if TYPE_CHECKING:
    from mergerepl.store.location import Location

_ACTIONS = {Operation.INSERT: "insert", Operation.UPDATE: "update", Operation.DELETE: "delete"}


def article_of(shape: Shape, table: str) -> PublishedArticle:
    """Return an article's table as the writers of rows take it."""
    return PublishedArticle.of_table(
        table, tuple(shape.key_columns), dict(zip(shape.columns, shape.types, strict=True))
    )


def require_few_commands(
    counts: Mapping[int, int], shapes: Mapping[int, Shape], tables: "Mapping[int, tuple[Location, int]]"
) -> None:
    """Check that this process may judge and apply some commands of articles, by their numbers, to tables at versions.

    Raises: NeedsSparkError.
    """
    # A command has the row before and the row after.
    require_few(
        sum(counts.values()), sum(2 * count * len(shapes[each].columns) for each, count in counts.items())
    )
    for each in counts:
        path, version = tables[each]
        if not path.is_local:
            raise NeedsSparkError("it is in a bucket", path)
        if shapes[each].has_writers:
            raise NeedsSparkError("its subscribers write", path)
        state = open_table(path, version)
        if (problem := article_problem(state, article_of(shapes[each], path.name))) is not None:
            raise NeedsSparkError(problem, path)


def require_values(commands: DataFrame, shape: Shape, table: TableState) -> None:
    """Check that no command breaks a rule of a table that this process writes: it has no others than NOT NULL.

    Raises: NeedsSparkError.
    """
    if table.is_append_only:
        raise NeedsSparkError("delta.appendOnly", table.path)
    required = {each["name"] for each in table.fields if not each["nullable"]}
    all_set = F.lit(shape.has_kept_bitmap(Operation.UPDATE)) | F.col("bitmap").isNull()
    is_row = F.col("operation") != Operation.DELETE.value
    for k, name in enumerate(shape.columns, 1):
        if name in required:
            is_null = F.col(f"new.c{k}").isNull() & (all_set | has_bit(k))
            if not commands.where(is_row & is_null).isEmpty():
                raise NeedsSparkError(
                    f"a command sets no value of column '{name}', which is NOT NULL", table.path
                )


def rows_to_merge(effects: DataFrame, shape: Shape, table: TableState) -> SmallRows:
    """Return the rows of an effect as they are to be in a table, which is at the version that was judged.

    Raises: NeedsSparkError if a row gets another key.
    """
    places = range(1, len(shape.columns) + 1)
    keys = [f"pkc{i}" for i in range(1, len(shape.key_columns) + 1)]
    now = frame_having(table, shape.columns, effects, dict(zip(shape.key_columns, keys, strict=True)))
    now = now.select(
        *(F.col(quote(name)).alias(f"t{k}") for k, name in zip(places, shape.columns, strict=True))
    )
    same_key = (F.col(f"t{k}") == F.col(key) for k, key in zip(shape.key_places, keys, strict=True))
    joined = effects.join(now, on=reduce(and_, same_key), how="left")
    is_insert = F.col("operation") == Operation.INSERT.value
    is_delete = F.col("operation") == Operation.DELETE.value
    values = [F.when(is_insert | F.col(f"set{k}"), F.col(f"c{k}")).otherwise(F.col(f"t{k}")) for k in places]
    for k, key in zip(shape.key_places, keys, strict=True):
        moved = (F.col("operation") == Operation.UPDATE.value) & ~values[k - 1].eqNullSafe(F.col(key))
        if not joined.where(moved).isEmpty():
            raise NeedsSparkError("a key changes", table.path)
        values[k - 1] = F.when(is_delete, F.col(key)).otherwise(values[k - 1])
    action = F.coalesce(*(F.when(F.col("operation") == each.value, name) for each, name in _ACTIONS.items()))
    article = article_of(shape, table.path.name)
    image = (value.alias(field) for value, field in zip(values, article.fields, strict=True))
    rows = collected(joined.select(action.alias(ACTION), *image))
    return SmallRows(rows, dict(zip(article.fields, article.types, strict=True)))

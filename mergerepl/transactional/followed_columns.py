"""Changed columns of an article at a subscriber: ADD, DROP, RENAME and wider types as ALTER statements (schema.md 1).

The statements are planned from the table as it is, so that a run which died is made up for by the next one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import WIDENING_PROPERTY
from mergerepl.delta.tables import TableState, open_table, read_version, session_with_mark, state_features
from mergerepl.delta.types import ddl_of, fits, json_of
from mergerepl.failpoints import failpoint
from mergerepl.rows.sql import quote, table_text
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAPPING = "delta.columnMapping.mode"
_MAPPED = f"'{_MAPPING}' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"


class CannotFollowError(Exception):
    """A subscriber's table cannot follow a change; `remedy` is what to do, empty where only `reinit` helps."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


@dataclass(frozen=True)
class Following:
    """What a table needs to have the columns of a shape. `emptied` are columns that it has and that must hold only NULL."""

    statements: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()


def following(table: TableState, before: Shape, after: Shape, left: Collection[str] = ()) -> Following:
    """Return the statements that bring a table from one shape of an article to the next. Pure.

    Args:
        table: The subscriber's table as it is.
        before: The shape that it had, whether or not some statements were carried out since.
        after: The next shape; `former` has the names in the shape before.
        left: The names of columns that earlier shapes had: without column mapping the table may still have them.

    Raises: CannotFollowError, before any statement is carried out.
    """
    alter = f"ALTER TABLE {table_text(table.path.spark_uri)}"
    there = {each["name"].lower(): each for each in table.fields}
    is_mapped = table.properties.get(_MAPPING, "none").lower() != "none"
    types = dict(zip(after.columns, after.types, strict=True))
    former = dict(zip(after.columns, after.former, strict=True))
    renamed = {old: new for new, old in former.items() if old not in ("", new)}
    dropped = [name for name in before.columns if name not in former.values()]
    added = [name for name, old in former.items() if not old]
    found: list[str] = []
    known = {each.lower() for each in before.columns}
    if taken := [new for new in renamed.values() if new.lower() in known]:
        raise CannotFollowError(f"column {taken[0]} got its name from another one")
    for name in (each for each in dropped if each.lower() in there):
        if is_mapped and name.lower() in {each.lower() for each in table.metadata.partition_columns}:
            raise CannotFollowError(f"the table is partitioned by column {name}")
        if is_mapped:
            found.append(f"{alter} DROP COLUMN {quote(name)}")
        elif name in added:
            raise CannotFollowError(f"column {name} was dropped and added again", _switch_on_mapping(alter))
        elif not there[name.lower()]["nullable"]:
            # Without column mapping it stays, and new rows have NULL there.
            found.append(f"{alter} ALTER COLUMN {quote(name)} DROP NOT NULL")
    for old, new in renamed.items():
        has_old, has_new = old.lower() in there, new.lower() in there
        if has_old and has_new:
            raise CannotFollowError(
                f"the table has a column {new} of its own", f"{alter} DROP COLUMN {quote(new)}"
            )
        if has_old and not is_mapped:
            raise CannotFollowError(f"column {old} was renamed to {new}", _switch_on_mapping(alter))
        if has_old:
            found.append(f"{alter} RENAME COLUMN {quote(old)} TO {quote(new)}")
            there[new.lower()] = there[old.lower()]
    written = {each.lower() for each in table.written_columns}
    for name, old in former.items():
        field = there.get(name.lower()) if old or name not in dropped else None
        if field is None and old:
            raise CannotFollowError(f"the table has no column {name}")
        if field is None:
            continue
        if field["name"].lower() not in written:
            raise CannotFollowError(f"column {name} is computed there and sent from here")
        has, wanted = field["type"], types[name]
        if ddl_of(has) == wanted:
            continue
        is_wider = "<" not in wanted and fits(has, json_of(wanted))
        if not is_wider or not old:
            raise CannotFollowError(f"column {name} is another type there than {types[name].upper()}")
        if not table.widens_types and not table.path.is_local:
            # With this feature no fence can be committed to it.
            raise CannotFollowError(f"column {name} is {types[name].upper()} now, and it is in a bucket")
        if not table.widens_types:
            remedy = f"{alter} SET TBLPROPERTIES ('{WIDENING_PROPERTY}' = 'true')"
            raise CannotFollowError(f"column {name} is {types[name].upper()} now", remedy)
        found.append(f"{alter} ALTER COLUMN {quote(name)} TYPE {types[name].upper()}")
    missing = [name for name in added if name.lower() not in there or name in dropped]
    if missing:
        columns = ", ".join(f"{quote(name)} {types[name].upper()}" for name in missing)
        found.append(f"{alter} ADD COLUMNS ({columns})")
    stale = {each.lower() for each in left} - known
    emptied = tuple(name for name in added if name.lower() in there and name.lower() in stale)
    return Following(tuple(found), tuple(types[name] for name in missing), emptied)


def _switch_on_mapping(alter: str) -> str:
    return f"{alter} SET TBLPROPERTIES ({_MAPPED})"


def follow(
    spark: "Callable[[], SparkSession]",
    path: Location,
    before: Shape,
    after: Shape,
    mark: CommitMark,
    *,
    left: Collection[str] = (),
) -> None:
    """Bring a subscriber's table from one shape of an article to the next; repeating it does nothing.

    Raises: CannotFollowError; the table may have some of the changes if Delta refuses one.
    """
    table = open_table(path)
    plan = following(table, before, after, left)
    for name in plan.emptied:
        values = read_version(spark(), path, table.version).where(f"{quote(name)} IS NOT NULL")
        if not values.isEmpty():
            raise CannotFollowError(
                f"column {name} was dropped and added again, and the table has its former values",
                f"UPDATE {table_text(path.spark_uri)} SET {quote(name)} = NULL",
            )
    if not plan.statements:
        return
    if not path.is_local:
        # A displaced agent's ALTER could come later: fences do not stop it.
        why = "it is in a bucket, where an agent does not change columns"
        raise CannotFollowError(why, "; ".join(plan.statements))
    session = session_with_mark(spark(), mark)
    if plan.added:
        state_features(lambda: session, table, list(plan.added))
    for statement in plan.statements:
        try:
            session.sql(statement)
        except AnalysisException as error:
            raise CannotFollowError(f"{statement}: {str(error).splitlines()[0]}") from error
        failpoint("distribute.after_columns")

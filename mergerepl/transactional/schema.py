"""Bring added columns to a subscriber's table (transactional.md 11)."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import open_table, session_with_mark, state_features
from mergerepl.delta.types import ddl_of
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables.transactional import ArticleRow
from mergerepl.transactional.refusals import TransactionalError


def add_columns(
    spark: Callable[[], SparkSession],
    table: Location,
    article: ArticleRow,
    mark: CommitMark,
    refusal: Callable[[str], TransactionalError],
) -> None:
    """Add the columns of an article that its table lacks, as NULL in existing rows; repeating it does nothing.

    Raises: `refusal` if the table has such a column with another type.
    """
    state = open_table(table)
    known = {each["name"].lower(): ddl_of(each["type"]) for each in state.fields}
    plain = {each.lower() for each in state.written_columns}
    missing, types = [], []
    for name, type_ in zip(article.columns, article.types, strict=True):
        if name.lower() not in known:
            missing.append(f"{quote(name)} {type_.upper()}")
            types.append(type_)
        elif known[name.lower()] != type_:
            raise refusal(f"column {name} is {known[name.lower()].upper()} there and {type_.upper()} here")
        elif name.lower() not in plain:
            raise refusal(f"column {name} is computed there and sent from here")
    if missing:
        session = session_with_mark(spark(), mark)
        state_features(lambda: session, state, types)
        session.sql(f"ALTER TABLE delta.{quote(str(table))} ADD COLUMNS ({', '.join(missing)})")

"""The rows that a command means: those of a table, of one key, or those that meet a condition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mergerepl.errors import ConfigurationError
from mergerepl.filters.clause import Clause, ClauseError, functions_of
from mergerepl.filters.columns import holds
from mergerepl.filters.parse import parse_filter
from mergerepl.filters.prepare import prepare_clause
from mergerepl.frames import Column, F
from mergerepl.rows.rowguid import key_value

NOTHING = "Nothing was changed."


@dataclass(frozen=True)
class ChosenRows:
    """All rows of a table (None: of all tables), or those of a key (column -> text) or a condition."""

    table: str | None = None
    key: Mapping[str, str] | None = None
    where: str | None = None

    @property
    def is_narrow(self) -> bool:
        """True if it names some rows of a table."""
        return bool(self.key) or self.where is not None

    def tables(self, known: Sequence[str]) -> list[str]:
        """Return the articles among the known ones.

        Raises: ConfigurationError if no article fits, or several fit a key or a condition.
        """
        found = [name for name in known if self.table in (None, name)]
        listed = ", ".join(known)
        if not found:
            raise ConfigurationError(
                f"There is no article '{self.table}'. {NOTHING} The articles are: {listed}."
            )
        if len(found) > 1 and self.is_narrow:
            raise ConfigurationError(
                f"A key or a condition is one of an article, and there are several. {NOTHING} Name one: {listed}."
            )
        return found

    def conditions(
        self,
        article: str,
        types: Mapping[str, str],
        key: Sequence[str],
        *,
        key_column: Callable[[str], Column],
        rows: Sequence[Callable[[str], Column]],
    ) -> list[Column]:
        """Return the conditions that the rows meet: `key_column` and `rows` give the columns of a name.

        A condition holds if it does for one of `rows`: the row at one side and at the other.

        Raises: ConfigurationError if the key or the condition does not fit the article (its column types).
        """
        found = _is_key(article, types, key, self.key, key_column) if self.key else []
        if self.where is not None:
            clause = _condition(self.where, types)
            at_sides = [holds(clause, column=lambda column, row=row: row(column.name)) for row in rows]  # type: ignore[misc]
            either = at_sides[0]
            for each in at_sides[1:]:
                either = either | each
            found.append(either)
        return found


def _is_key(
    article: str,
    types: Mapping[str, str],
    key: Sequence[str],
    given: Mapping[str, str],
    column: Callable[[str], Column],
) -> list[Column]:
    if set(given) != set(key):
        raise ConfigurationError(
            f"Article '{article}' is identified by {', '.join(key)}; the key given names "
            f"{', '.join(sorted(given))}. {NOTHING} Give each of them once, as COLUMN=VALUE."
        )
    found = []
    for name in key:
        try:
            value = key_value(given[name], types[name])
        except ValueError as error:
            raise ConfigurationError(
                f"Column '{name}' of article '{article}' is {types[name].upper()}: {error}. {NOTHING}"
            ) from error
        found.append(column(name) == F.lit(value).cast(types[name]))
    return found


def _condition(text: str, types: Mapping[str, str]) -> Clause:
    try:
        return static_clause(text, types)
    except ClauseError as error:
        raise ConfigurationError(
            f"The condition {error}. {NOTHING} It is written as a `filter` of the article is."
        ) from error


def static_clause(stated: str, types: Mapping[str, str]) -> Clause:
    """Return a condition with the columns' exact names and explicit casts.

    Raises: ClauseError if it is not a condition, or differs between subscribers.
    """
    clause = prepare_clause(parse_filter(stated), {None: types})
    if functions_of(clause):
        raise ClauseError("calls HOST_NAME() or SUSER_SNAME(), and here it is the same for all subscribers")
    return clause

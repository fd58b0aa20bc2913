"""A resolver: a function from the detected rows to the same rows with the decision of each conflict.

Built-in rules are functions of Columns, and one adapter makes a resolver of them. Rules by role or priority decide the
conflicts of all articles in the one plan of a session. Rules that read or make values get the typed fields that their
article names, in the same plan. Other resolvers may join further data by (tablenick, rowguid).

From each decision `resolve` makes lineage, versions of columns and actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import DataType

from mergerepl.frames import Column, DataFrame, F
from mergerepl.model.resolvers import Resolver, ResolverInfo

Decide = Callable[[DataFrame], DataFrame]
"""From detected PAIRS to the same rows, each (tablenick, rowguid) once, with `publisher_wins` (NULL: no conflict),
`resolver` (its rule), `note`, and, where an article's rule makes values, `made` and the article's made column."""


NO_ANCESTOR: Final = "no common ancestor is known"


@dataclass(frozen=True)
class Made:
    """The value that a rule makes of one column, where both sides changed it.

    `is_made` is false without such a value: the winner's value stays, and `note` has the reason.
    """

    value: Column
    is_made: Column
    note: Column


@dataclass(frozen=True)
class Values:
    """Both sides' values of one column of a conflicting row that is live at both.

    `base` is the value before either change, `is_base_known` whether it is known (a row that both inserted had none);
    otherwise they are NULL and false.
    """

    publisher: Column
    subscriber: Column
    base: Column
    is_base_known: Column
    data_type: DataType
    info: ResolverInfo


def of_ancestor(values: Values, made: Made) -> Made:
    """Return the value made with a common ancestor; without one, no value is made."""
    is_made = values.is_base_known & made.is_made
    return Made(made.value, is_made, F.when(~values.is_base_known, F.lit(NO_ANCESTOR)).otherwise(made.note))


@dataclass(frozen=True)
class Rule:
    """A built-in resolver: its inputs, the winner, and the values it makes.

    `publisher_wins` gives whether the publisher's row wins, from the values of the column that the rule reads (None for a
    rule by role or priority). For NULL the default decides. `make` gives the value of each column that it makes.
    """

    resolver: Resolver
    publisher_wins: Callable[[Values | None], Column]
    make: Callable[[Values], Made] | None = field(default=None)


Rules = Mapping[str, Rule]

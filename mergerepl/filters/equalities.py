"""A filter split into parts that joins can use: equalities of a row with a partition's values, and the rest."""

from collections.abc import Callable
from dataclasses import dataclass

from mergerepl.filters.clause import Clause, Operation, Operator, all_of, columns_of, functions_of


@dataclass(frozen=True)
class Equality:
    """`of_row` = `of_other`; NULL matches nothing.

    In a part of an own filter `of_row` uses columns only and `of_other` functions only. In the terms of an `on`
    `of_row` uses columns of the child and `of_other` columns of the parent.
    """

    of_row: Clause
    of_other: Clause


@dataclass(frozen=True)
class Part:
    """Terms that must all be true: equalities for a hash join, and a `residual` condition on the rows joined.

    A part of an own filter without equalities is joined with the values by its residual alone; if `is_static`, it uses
    no function, and every subscriber has its rows (partition_id -1).
    """

    equalities: tuple[Equality, ...]
    residual: Clause | None
    is_static: bool = False


def parts_of(clause: Clause) -> tuple[Part, ...]:
    """Return the parts of an own filter: a row belongs to a partition if one of them is true for the two.

    region = HOST_NAME() AND active OR everywhere    (region = HOST_NAME(), active) and (static: everywhere)
    """
    return tuple(_part_of_filter(alternative) for alternative in _terms(clause, Operator.OR))


def terms_of_on(on: Clause, *, article: str) -> Part:
    """Return the equalities of a join filter's `on` (`of_row` of the child `article`) and the rest of its terms."""

    def pair(one: Clause, other: Clause) -> Equality | None:
        sides = [{column.article for column in columns_of(side)} for side in (one, other)]
        is_pair = sides[0] == {article} and len(sides[1]) == 1 and sides[1] != {article}
        return Equality(one, other) if is_pair else None

    return _part(on, pair, is_static=False)


def _part_of_filter(clause: Clause) -> Part:
    def pair(one: Clause, other: Clause) -> Equality | None:
        is_pair = columns_of(one) and not functions_of(one) and functions_of(other) and not columns_of(other)
        return Equality(one, other) if is_pair else None

    return _part(clause, pair, is_static=not functions_of(clause))


def _part(clause: Clause, pair: Callable[[Clause, Clause], Equality | None], *, is_static: bool) -> Part:
    equalities: list[Equality] = []
    others: list[Clause] = []
    for term in _terms(clause, Operator.AND):
        found = None
        if isinstance(term, Operation) and term.operator is Operator.EQUAL:
            one, other = term.operands
            found = pair(one, other) or pair(other, one)
        if found is None:
            others.append(term)
        else:
            equalities.append(found)
    return Part(tuple(equalities), all_of(tuple(others)), is_static)


def _terms(clause: Clause, operator: Operator) -> tuple[Clause, ...]:
    """Return the operands of a chain of ANDs or ORs, or the clause itself."""
    if isinstance(clause, Operation) and clause.operator is operator:
        return clause.operands
    return (clause,)

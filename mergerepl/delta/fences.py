"""Fences: what keeps an earlier holder of a root on an object store from committing to its tables.

A transaction's version has the fence of its holder in the high half and the number that the product gave it in the
low half. Roots on this machine have fence 0, so there the version is the number. An agent that takes a root over from
a holder that may still write commits its fence to each table (`transactions.commit_fence`), and the rules here stop
that holder:

| its write | after the fence |
|---|---|
| delta-rs, opened before | is committed at the next version or not at all: refused |
| delta-rs, opened later | finds a fence above its own (`refuse_fenced`) |
| Spark, opened before | the fence names its application: a conflict |
| Spark, opened later | Delta skips a version below the last one; the mark is not in the log |
"""

from typing import TYPE_CHECKING, Any

from mergerepl.delta.own_log import last_transaction, transactions_of
from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.register import displaced, fence_of, register_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

FENCE_APP_ID = "mergerepl-fence"
"""The application whose version is the fence itself."""

_HALF = 32
_LOW = (1 << _HALF) - 1


def with_fence(number: int, fence: int) -> int:
    """Return the transaction version of a number."""
    if number > _LOW:
        raise StoreError(f"The transaction number {number} is too high for a root on an object store.")
    return fence << _HALF | number


def version_at(number: int, table: Location) -> int:
    """Return the transaction version under which this process writes a number to a table.

    Raises: LeaseError if the root of a table on a store was taken over; StoreError if this process does not hold it.
    """
    # Below 0 nothing is ever committed.
    return number if number < 0 or Location.of(table).is_local else with_fence(number, fence_of(table))


def number_of(version: int, table: Location) -> int:
    """Return the number of a transaction version that a table holds; -1 of -1."""
    return version if version < 0 or Location.of(table).is_local else version & _LOW


def refuse_fenced(log: "DeltaTable", table: Location) -> None:
    """Check that a table was not fenced by a later holder of its root.

    Raises: LeaseError; StoreError if this process does not hold the root.
    """
    if not Location.of(table).is_local:
        known = transactions_of(table, log.version())
        fence = (
            log.transaction_version(FENCE_APP_ID) if known is None else last_transaction(known, FENCE_APP_ID)
        )
        refuse_fence(fence or 0, table)


def refuse_fence(fence: int, table: Location) -> None:
    """Check that the last fence of a table is not that of a later holder of its root.

    Raises: as `refuse_fenced`.
    """
    if fence > fence_of(table):
        raise displaced(register_of(table).at.parent)


def commit_terms(table: Location) -> dict[str, Any]:
    """Return the terms of `CommitProperties` by which delta-rs commits at the next version or not at all, on a store."""
    return {} if Location.of(table).is_local else {"max_commit_retries": 0}

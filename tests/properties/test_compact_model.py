"""Every history of few transactions and synchronisations, in the reference: the exact predicates lose nothing.

So the rules that they need are shown, too: each variant that breaks one has its fault, as many times as the page says.
"""

import os
from collections import Counter
from itertools import product

import pytest

from tests.properties.compact_model import (
    OPERATIONS,
    Rules,
    as_seen,
    classes,
    documented,
    echo_faults,
    exact,
    faults_of,
    interleavings,
)

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
TRANSACTIONS = 4 if IS_LONG else 3
SYNCS = 3


def histories(transactions: int = TRANSACTIONS):
    for count, events in sorted(classes(transactions, SYNCS)):
        for operations in product(OPERATIONS, repeat=count):
            for is_there in (False, True):
                yield events, operations, is_there


def all_faults(transactions: int = TRANSACTIONS, **variant) -> Counter:
    found: Counter = Counter()
    for events, operations, is_there in histories(transactions):
        found["histories"] += 1
        found.update(faults_of(events, operations, is_there=is_there, **variant))
    return found


def test_the_exact_predicates_lose_nothing_and_repeat_nothing():
    found = all_faults(query=exact)
    assert found["histories"] > 90_000
    assert set(found) == {"histories"}


def test_the_safe_purge_of_the_sequence_loses_nothing():
    found = all_faults(query=exact, is_needed=lambda bsn, csn, lcsn: max(bsn, csn) >= lcsn)
    assert set(found) == {"histories"}


VARIANTS = {
    "as printed": (
        {"query": documented, "ecsn_above": 0},
        {"lost row", "late", "doubled", "again", "misfit"},
    ),
    "as printed, a BSN in the tombstone": (
        {"query": lambda *a: documented(*a, holds_csn=False), "ecsn_above": 0},
        {"lost row", "lost delete", "late", "doubled", "again", "misfit"},
    ),
    "printed, without the prefilter, one further": (
        {"query": lambda *a: documented(*a, prefilter=False)},
        {"doubled"},
    ),
    "aborts take no CSN, rows by order": (
        {"query": exact, "rules": Rules(abort_takes_csn=False, stored_if="out of order")},
        {"lost row", "lost delete", "late", "again", "misfit"},
    ),
    "the sequence purged by CSN alone": (
        {"query": exact, "is_needed": lambda bsn, csn, lcsn: csn >= lcsn},
        {"lost row", "lost delete", "late", "again", "misfit"},
    ),
}


ALWAYS = ("as printed",)
"""What every run of the tests tries; `--long` tries everything."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in VARIANTS]
)
def test_each_rule_is_needed(name):
    variant, faults = VARIANTS[name]
    found = all_faults(3, **variant)
    assert set(found) - {"histories"} == faults


def test_the_smallest_histories_of_the_page():
    # T2 changes, SYNC, T1 began before it and inserts, T3 commits elsewhere, SYNC: T1's row has BSN 1 < LBSN 2.
    assert "lost row" in faults_of((2, 0, 1, 3, 0), ("U", "N", "N"), is_there=False, query=documented)

    # T3 inserts, T1 commits, SYNC, T2 deletes: the insert BSN 3 >= LCSN hides it.
    def stored_bsn(*a):
        return documented(*a, holds_csn=False)

    assert "lost delete" in faults_of((3, 1, 0, 2, 0), ("N", "D", "U"), is_there=False, query=stored_bsn)
    for events, operations in (((2, 0, 1, 3, 0), ("U", "N", "N")), ((3, 1, 0, 2, 0), ("N", "D", "U"))):
        assert not faults_of(events, operations, is_there=False, query=exact)


@pytest.mark.parametrize(
    ("naive", "loses"), [(False, False), pytest.param(True, True, marks=pytest.mark.slow)]
)
def test_what_a_consumer_sent_itself_is_left_out_without_a_loss(naive, loses):
    lost = 0
    for count in (1, 2, 3):
        for events in {as_seen(each) for each in interleavings(count, 2)}:
            for operations, marks, is_there in product(
                product("UDR", repeat=count), product((False, True), repeat=count), (False, True)
            ):
                theirs = {bsn for bsn, is_theirs in enumerate(marks, 1) if is_theirs}
                lost += echo_faults(events, operations, theirs, is_there=is_there, naive=naive)
    assert bool(lost) is loses


def test_no_later_commit_has_a_bsn_below_ebsn():
    for events in interleavings(TRANSACTIONS, SYNCS):
        open_, begun, bound = set(), 0, 0
        for kind, bsn in events:
            if kind == "begin":
                begun = bsn
                open_.add(bsn)
            elif kind == "end":
                open_.discard(bsn)
                assert bsn >= bound
            else:
                bound = min(open_, default=begun + 1)

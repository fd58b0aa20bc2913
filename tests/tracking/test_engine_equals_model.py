"""The engine enumerates what the reference does: many histories at once, each of a key of its own in one table.

Their transactions begin and end together; what each does to a key is another history. Of two transactions that are open at
one time only one may change a key, as the first committer wins.
"""

import random
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta import engine_choice
from mergerepl.tracking.transactions import Transaction
from mergerepl.tracking.windows import Window
from tests.properties.compact_model import Bounds, Database, Found, Row, exact, without_context
from tests.tracking.databases import notes_of, rows, tracked

pytestmark = pytest.mark.spark

CONTEXT = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
LETTERS = "UDRXN"


class Schedule(NamedTuple):
    """Begins and ends of transactions, by BSN, and synchronisations (0); which abort, and which are the consumer's own."""

    events: tuple[tuple[str, int], ...]
    aborted: frozenset[int] = frozenset()
    theirs: frozenset[int] = frozenset()

    @property
    def transactions(self) -> int:
        return max(bsn for _, bsn in self.events)

    def overlapping(self) -> set[tuple[int, int]]:
        """Pairs of committing transactions that are open at one time."""
        spans = {
            bsn: (self.events.index(("begin", bsn)), self.events.index(("end", bsn)))
            for bsn in range(1, self.transactions + 1)
            if bsn not in self.aborted
        }
        return {
            (one, other)
            for one, other in combinations(sorted(spans), 2)
            if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]
        }

    def histories(self) -> list[tuple[str, bool]]:
        """Every choice of operations that the first committer allows; whether the row is older than tracking."""
        pairs = self.overlapping()
        return [
            ("".join(letters), is_there)
            for letters in product(LETTERS, repeat=self.transactions)
            for is_there in (False, True)
            if not any(letters[a - 1] != "N" != letters[b - 1] for a, b in pairs)
            and not any(letters[bsn - 1] != "U" for bsn in self.aborted)
        ]


def schedule(text: str, *, aborted: str = "", theirs: str = "") -> Schedule:
    """Read `b1 b2 e2 s e1`: begin, end, synchronise."""
    kinds = {"b": "begin", "e": "end", "s": "sync"}
    events = tuple((kinds[word[0]], int(word[1:] or 0)) for word in text.split())
    return Schedule(events, frozenset(map(int, aborted)), frozenset(map(int, theirs)))


def drawn(number: int) -> Schedule:
    """Draw a schedule of four transactions and three synchronisations."""
    random_ = random.Random(number)
    events: list[tuple[str, int]] = []
    begun, open_ = 0, []
    while begun < 4 or open_:
        if begun < 4 and (not open_ or random_.random() < 0.5):
            begun += 1
            open_.append(begun)
            events.append(("begin", begun))
        else:
            events.append(("end", open_.pop(random_.randrange(len(open_)))))
    for _ in range(3):
        events.insert(random_.randrange(len(events)), ("sync", 0))
    aborted = frozenset({random_.randrange(1, 5)} if random_.random() < 0.5 else set())
    theirs = frozenset(bsn for bsn in range(1, 5) if random_.random() < 0.4)
    return Schedule((*events, ("sync", 0)), aborted, theirs - aborted)


class Run:
    """A database beside one reference for each key, and two consumers: of everything, and one that is a source itself."""

    def __init__(self, folder: Path, plan: Schedule) -> None:
        self.plan = plan
        self.histories = plan.histories()
        self.models = [
            Database(Row(None, None, "old") if is_there else None) for _, is_there in self.histories
        ]
        there = {key: "old" for key, (_, is_there) in enumerate(self.histories) if is_there}
        self.tracking = tracked(folder, there)
        self.all = self.tracking.consumer("all")
        self.source = self.tracking.consumer("source")
        self.lcsn = 0
        self.open: dict[int, Transaction] = {}
        self.found: Counter[str] = Counter()

    def run(self) -> None:
        for kind, bsn in self.plan.events:
            getattr(self, kind)(bsn)

    def keys(self, bsn: int, letters: str) -> list[int]:
        return [key for key, (operations, _) in enumerate(self.histories) if operations[bsn - 1] in letters]

    def begin(self, bsn: int) -> None:
        tx = self.tracking.begin(CONTEXT if bsn in self.plan.theirs else None)
        assert tx.current_transaction_bsn == bsn
        self.open[bsn] = tx
        passing = [key for key in self.keys(bsn, "X") if self.models[key].row is None]
        put = [*self.keys(bsn, "UR"), *passing]
        tx.delete("orders", rows=[{"id": key} for key in self.keys(bsn, "DRX")] or [{"id": -1}])
        if put:
            tx.upsert("orders", rows(*((key, f"by {bsn}") for key in put)))
        if passing:
            tx.delete("orders", rows=[{"id": key} for key in passing])

    def end(self, bsn: int) -> None:
        tx = self.open.pop(bsn)
        is_aborted = bsn in self.plan.aborted
        if is_aborted:
            tx.abort()
        else:
            tx.commit()
        for model, (operations, _) in zip(self.models, self.histories, strict=True):
            # What comes and goes within a transaction was never there for others: the engine keeps no tombstone of it.
            is_nothing = operations[bsn - 1] == "X" and model.row is None
            model.end(bsn, "A" if is_aborted else "N" if is_nothing else operations[bsn - 1])

    def sync(self, _: int) -> None:
        whole, without = self.all.enumerate(), self.source.enumerate(exclude_context=CONTEXT)
        assert whole.anchors.lcsn == self.lcsn
        bounds = Bounds(0, self.lcsn, whole.anchors.ecsn)
        expected = [exact(model, bounds) for model in self.models]
        self.compare(whole, expected)
        theirs = set(self.plan.theirs)
        self.compare(without, [without_context(model, theirs, bounds) for model in self.models])
        self.all.acknowledge(whole)
        self.source.acknowledge(without)
        self.lcsn = whole.anchors.ecsn
        for each in expected:
            self.found.update({"i": len(each.inserts), "u": len(each.updates), "d": len(each.deletes)})

    def compare(self, window: Window, expected: list[Found]) -> None:
        inserts = {key: each.inserts[0] for key, each in enumerate(expected) if each.inserts}
        updates = {key: each.updates[0] for key, each in enumerate(expected) if each.updates}
        deletes = Counter({key: len(each.deletes) for key, each in enumerate(expected) if each.deletes})
        assert notes_of(window.inserts("orders")) == inserts
        assert notes_of(window.updates("orders")) == updates
        assert Counter(row["id"] for row in window.deletes("orders").select("id").collect()) == deletes


ALWAYS = schedule("b1 b2 e2 s b3 e1 e3 s", theirs="2")
"""Out of sequence, over a synchronisation; `--long` draws orders of four transactions and four synchronisations."""


@pytest.mark.parametrize("is_here", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_choice_of_operations_in_one_order(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    if not is_here:
        monkeypatch.setattr(engine_choice, "MOST_IN_PROCESS", -1)
    run = Run(replica_dir, ALWAYS)
    run.run()
    assert len(run.histories) > 50
    assert min(run.found.values()) > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_histories_in_drawn_orders(
    spark: SparkSession, worker_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, number = 0, 0
    most = engine_choice.MOST_IN_PROCESS
    while count < 10_000:
        # On both executors in turns.
        monkeypatch.setattr(engine_choice, "MOST_IN_PROCESS", most if number % 2 else -1)
        folder = worker_folder / f"drawn-{number}"
        folder.mkdir()
        run = Run(folder, drawn(number))
        run.run()
        count += len(run.histories)
        number += 1

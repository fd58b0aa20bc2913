"""The engine equals the reference: drawn transactions of articles with all methods, from the publisher's commits on."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.properties import transactional_model as model
from tests.transactional.publications import publication_file, rows, run, runs

pytestmark = pytest.mark.spark

NAMES = ("c", "v2", "v3", "v4")
SCHEMA = pa.schema([(name, pa.int32()) for name in NAMES])
COMMITS = 8
Rows = dict[int, tuple[Any, ...]]


@dataclass(frozen=True)
class Drawn:
    """An article with the methods of its operations; `keys` are others of the file."""

    name: str
    methods: tuple[str, str, str]
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def article(self) -> dict[str, Any]:
        """The article as the file has it."""
        commands = dict(zip(("ins_cmd", "upd_cmd", "del_cmd"), self.methods, strict=True))
        return {"name": self.name, "key": ["c"], **commands, **self.keys}

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns."""
        return tuple(self.keys.get("columns", NAMES))

    def sent(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row without the values of other columns."""
        return tuple(value if name in self.columns else None for name, value in zip(NAMES, row, strict=True))

    def is_in(self, row: tuple[Any, ...]) -> bool:
        """Whether a row fulfils the filter, v2 <> 0."""
        return "filter" not in self.keys or row[1] != 0


ARTICLES = (
    Drawn("calls", ("CALL", "CALL", "CALL")),
    Drawn("gaps", ("CALL", "SCALL", "XCALL"), {"filter": "v2 <> 0"}),
    Drawn("masks", ("CALL", "MCALL", "CALL"), {"columns": ["c", "v2", "v4"]}),
    Drawn("pairs", ("CALL", "XCALL", "CALL"), {"singleton_key_updates": False, "text_columns": ["v3"]}),
    Drawn("texts", ("SQL", "SQL", "SQL")),
    Drawn("kept", ("CALL", "SCALL", "NONE")),
    Drawn("quiet", ("NONE", "XCALL", "XCALL"), {"filter": "v2 <> 0"}),
)
FEW = tuple(drawn for drawn in ARTICLES if drawn.name in ("gaps", "kept"))
"""What every run of the tests plays, with both errors and a key change; `--long` plays all. test_crash.py has MCALL,
test_procedures.py XCALL."""


def drawn_commit(rng: random.Random, table: Path, state: Rows) -> tuple[Rows, bool]:
    """Commit a drawn transaction; return the rows after it, and whether it was an UPDATE."""
    delta, kind = DeltaTable(str(table)), rng.random()
    if kind < 0.2 and state:
        key, new = rng.choice(sorted(state)), rng.randint(1, 7)
        if new not in state:
            delta.update(predicate=f"c = {key}", updates={"c": str(new), "v4": "0"})
            return {**{k: r for k, r in state.items() if k != key}, new: (new, *state[key][1:3], 0)}, True
    if kind < 0.3 and len(state) > 1:
        one, other = rng.sample(sorted(state), 2)
        delta.update(
            predicate=f"c in ({one}, {other})",
            updates={"c": f"case when c = {one} then {other} else {one} end"},
        )
        swapped = {one: (one, *state[other][1:]), other: (other, *state[one][1:])}
        return {**state, **swapped}, True
    if kind < 0.4 and state:
        delta.update(updates={"c": "c + 1"})
        return {k + 1: (k + 1, *row[1:]) for k, row in state.items()}, True
    after = dict(state)
    for _ in range(rng.choice([1, 1, 2, 3])):
        key = rng.randint(1, 7)
        if key in after and rng.random() < 0.35:
            del after[key]
        else:
            after[key] = (key, rng.randint(0, 2), rng.choice([None, 0, 1]), rng.randint(0, 2))
    images = {**{k: (k, None, None, None) for k in state if k not in after}, **after}
    changed = [row for k, row in images.items() if state.get(k) != row]
    if changed:
        source = pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in changed], schema=SCHEMA)
        done = delta.merge(source, "s.c = t.c", source_alias="s", target_alias="t")
        done.when_matched_delete(
            "s.v2 is null"
        ).when_matched_update_all().when_not_matched_insert_all().execute()
    return after, False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "articles"), [(7, FEW), *((seed, ARTICLES) for seed in (1, 2, 8))], ids=["some-7", "1", "2", "8"]
)
def test_drawn_transactions_of_all_methods(
    spark: SparkSession, replica_dir: Path, seed: int, articles: tuple[Drawn, ...]
) -> None:
    rng = random.Random(seed)
    states: dict[str, Rows] = {}
    for drawn in articles:
        states[drawn.name] = {k: (k, rng.randint(0, 2), None, 1) for k in rng.sample(range(1, 8), 4)}
        write_deltalake(
            str(replica_dir / "hq" / drawn.name),
            pa.Table.from_pylist(
                [dict(zip(NAMES, row, strict=True)) for row in states[drawn.name].values()], schema=SCHEMA
            ),
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    north = {"subscriber": "./north", "skip_errors": [20598, 2627], "streams": 3}
    file = publication_file(replica_dir, [each.article for each in articles], subscribers=[north])
    run("apply", "-f", file)
    expected: dict[str, Rows] = {}
    errors: Counter[tuple[str, int, int]] = Counter()
    commands = 0
    for drawn in articles:
        state = states[drawn.name]
        table = {k: drawn.sent(row) for k, row in state.items() if drawn.is_in(row)}
        if drawn.name in ("gaps", "texts"):
            # Somebody tampers with the subscriber.
            gone = min(table)
            DeltaTable(str(replica_dir / "north" / drawn.name)).delete(f"c = {gone}")
            del table[gone]
        method = dict(zip(("ins", "upd", "del"), drawn.methods, strict=True))
        sent: list[model.Command] = []
        for xact in range(1, COMMITS + 1):
            after, is_update = drawn_commit(rng, replica_dir / "hq" / drawn.name, state)
            pre = {k: drawn.sent(row) for k, row in state.items() if after.get(k) != row}
            post = {k: drawn.sent(row) for k, row in after.items() if state.get(k) != row}
            is_moved = len(pre) == len(post) == 1 and pre.keys() != post.keys()
            is_single = is_update and is_moved and drawn.keys.get("singleton_key_updates", True)
            sent += model.commands_of(xact, pre, post, method, singleton=is_single, is_in=drawn.is_in)
            state = after
        expected[drawn.name], found = model.row_by_row(table, sent, {model.NOT_FOUND, model.DUPLICATE})
        commands += len(sent)
        by_order = {command.order: command for command in sent}
        for number, order in found:
            command = by_order[order]
            if not (number == model.NOT_FOUND and method[command.op] == "SQL"):
                assert command.pk is not None
                errors[drawn.name, number, command.pk] += 1
    done = run("sync", "-f", file)
    for drawn in articles:
        left = {row[0]: row for row in rows(replica_dir / "north" / drawn.name)}
        whole = {
            key: tuple(v for v, n in zip(row, NAMES, strict=True) if n in drawn.columns)
            for key, row in expected[drawn.name].items()
        }
        assert left == whole, drawn
    listed = runs(replica_dir / "hq", "--failed", "--limit", 1000)
    assert Counter(_named(each) for each in listed) == errors
    assert {number for _, number, _ in errors} == {model.NOT_FOUND, model.DUPLICATE}
    (session,) = done["sessions"]
    assert session["status"] == "succeeded"
    assert len(run("transactional", "browse", "-f", replica_dir / "hq", "--limit", 1000)) == commands


def _named(error: Mapping[str, Any]) -> tuple[str, int, int]:
    found = re.search(r"Table '(\w+)' with Primary Key\(s\): c = (\d+)", error["text"])
    assert found
    return found[1], error["number"], int(found[2])

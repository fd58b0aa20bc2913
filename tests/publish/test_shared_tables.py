"""One table in two merge publications of one publisher: other columns, keys and filters, and one conflict log each."""

import json
import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.errors import PublicationError
from mergerepl.monitoring.doctor import checks
from tests.faults.deaths import dies
from tests.schema.stars import Published

COLUMNS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("a", pa.string()), ("b", pa.string())])
WHOLE: dict[str, Any] = {"name": "orders", "key": ["id"], "tracking": "column"}
PART: dict[str, Any] = {"name": "orders", "key": ["id"], "columns": ["id", "region", "a"]}


class Shared(Published):
    """`hq/orders` in the publications `all`, with all columns, for `north`, and `some`, for `south`."""

    def __init__(self, root: Path, some: Mapping[str, Any] = PART, **subscription: str) -> None:
        super().__init__(root)
        rows = [{"id": i, "region": "SN"[i % 2], "a": "x", "b": "y"} for i in range(1, 7)]
        write_deltalake(str(root / "hq/orders"), pa.Table.from_pylist(rows, COLUMNS))
        self.some, self.subscription = some, subscription
        self.apply("all", [WHOLE], [{"subscriber": "./north"}])
        self.apply("some", [some], [{"subscriber": "./south", **subscription}])

    def of(self, name: str) -> mergerepl.Project:
        """Return the project of a publication, as a new process sees it."""
        return mergerepl.Project.load(self.root / f"{name}.yml")

    def apply(self, name: str, articles: Any, subscriptions: Any) -> None:
        """Write the file of a publication and apply it."""
        stated = {"publication": name, "publisher": "./hq", "articles": articles}
        text = json.dumps(stated | {"subscriptions": subscriptions})
        (self.root / f"{name}.yml").write_text(text, encoding="utf-8")
        self.of(name).apply()

    def sync(self, *names: str) -> None:
        """Synchronize publications one after the other."""
        for name in names or ("all", "some", "all"):
            for result in self.of(name).sync().sessions:
                assert result.error is None, result.error

    def conflicts(self, name: str) -> int:
        """Count the rows of the conflict table of a publication at the publisher."""
        table = self.root / f"hq/_mergerepl/MSmerge_conflict_{name}_orders"
        return DeltaTable(str(table)).to_pyarrow_table().num_rows

    def check(self) -> None:
        """Check that each subscriber has the publisher's rows and columns of its publication."""
        rows = self.rows("hq", "orders")
        assert self.rows("north", "orders") == rows
        columns, region = self.some.get("columns", COLUMNS.names), self.subscription.get("host_name")
        theirs = {
            key: {name: value for name, value in row.items() if name in columns}
            for key, row in rows.items()
            if region in (None, row["region"])
        }
        assert self.rows("south", "orders") == theirs


def insert(network: Shared, replica: str, **row: Any) -> None:
    """Insert a row with the columns of the table there."""
    there = network.table(replica, "orders").to_pyarrow_table().column_names
    schema = pa.schema([each for each in COLUMNS if each.name in there])
    write_deltalake(
        str(network.root / replica / "orders"), pa.Table.from_pylist([row], schema), mode="append"
    )


def write_everywhere(network: Shared) -> None:
    """Change a row at each place, insert and delete one, and change one row at both subscribers."""
    for number, place in enumerate(("hq", "north", "south"), 1):
        network.table(place, "orders").update({"a": f"'{place}'"}, predicate=f"id = {number}")
    network.table("north", "orders").update({"a": "'north'", "b": "'n'"}, predicate="id = 4")
    network.table("south", "orders").update({"a": "'south'"}, predicate="id = 4")
    network.table("south", "orders").delete("id = 5")
    insert(network, "south", id=10, region="N", a="new")
    insert(network, "north", id=11, region="S", a="new", b="n")


def test_a_table_in_two_publications(tmp_path: Path) -> None:
    network = Shared(tmp_path)
    write_everywhere(network)
    network.sync("all", "some", "all")
    network.check()
    rows = network.rows("hq", "orders")
    assert [rows[number]["a"] for number in (1, 2, 3)] == ["hq", "north", "south"]
    assert set(rows) == {1, 2, 3, 4, 6, 10, 11}
    # What `north` sent counts as the publisher's change in the other publication, which has the conflict.
    assert rows[4]["a"] == "north"
    assert rows[4]["b"] == "n"
    assert (network.conflicts("all"), network.conflicts("some")) == (0, 1)
    # One ends; the other goes on.
    network.apply("some", [PART], [])
    network.table("north", "orders").update({"b": "'later'"}, predicate="id = 1")
    network.sync("all")
    assert network.rows("hq", "orders")[1]["b"] == "later"
    network.sync("all")
    assert network.rows("north", "orders") == network.rows("hq", "orders")


@pytest.mark.slow
def test_the_doctor_names_each_publication_of_a_shared_table(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    shared.table("hq", "orders").update({"a": "'z'"}, predicate="id = 1")
    table = tmp_path / "hq/orders"
    then = time.time() - 8 * 86_400
    os.utime(table / "_delta_log" / f"{shared.table('hq', 'orders').version():020d}.json", (then, then))
    found = [each.name for each in checks([str(tmp_path / "hq")]) if each.name.startswith("capture ")]
    assert found == [f"capture {table} (all)", f"capture {table} (some)"]


@pytest.mark.slow
def test_what_is_refused_of_a_shared_table(tmp_path: Path) -> None:
    network = Shared(tmp_path)
    for articles, place, says in (
        ([PART], "./north", "has it from there"),
        ([PART | {"resolver": {"name": "upload_only"}}], "./west", "upload_only"),
    ):
        with pytest.raises(PublicationError, match=says):
            network.apply("third", articles, [{"subscriber": place}])
    # A later change of the first publication is checked as well.
    with pytest.raises(PublicationError, match="has it from there"):
        network.apply("all", [WHOLE], [{"subscriber": "./north"}, {"subscriber": "./south"}])


def draw(network: Shared, rng: random.Random, number: int) -> None:
    """Write at random at one place, or synchronize one publication, which may die."""
    place = rng.choice(("hq", "north", "south", "sync"))
    if place == "sync":
        name = rng.choice(("all", "some"))
        if rng.random() < 0.4:
            point = rng.choice(
                ("stage.after_manifest", "publisher.after_merge", "bookkeeping.before_replinfo")
            )
            with suppress(pytest.fail.Exception), dies(point, action="stop", error=BaseException):
                network.of(name).sync()
        else:
            network.sync(name)
        return
    key = rng.choice(sorted(network.rows(place, "orders")))
    kind = rng.choice(("update", "update", "delete", "insert"))
    if kind == "insert":
        row = {"id": 100 + number, "region": rng.choice("NS"), "a": place}
        insert(network, place, **row, **({} if place == "south" else {"b": place}))
    elif kind == "delete":
        network.table(place, "orders").delete(f"id = {key}")
    else:
        network.table(place, "orders").update({"a": f"'{place} {number}'"}, predicate=f"id = {key}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_drawn_histories_of_a_shared_table_converge(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    network = Shared(tmp_path)
    for number in range(14):
        draw(network, rng, number)
    network.sync("all", "some", "all", "some", "all")
    network.check()

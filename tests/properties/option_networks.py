"""One history on two networks: a publication of drawn articles with row filters, and the same articles without."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.model.resolvers import CUSTOM, RESOLVERS, TypeFamily
from tests.faults.deaths import dies
from tests.networks import publish, write_changes, writing_late
from tests.properties.option_pairs import Choice

Row = dict[str, Any]
Engine = Literal["auto", "spark"]
Writes = dict[tuple[str, str], dict[int, Row | None]]
"""(replica, article) -> the rows as they become (None: deleted), by number."""

SUBSCRIBERS = {"north": {"type": "client"}, "south": {"priority": 75.0}}
HOMES = {"north": "N", "south": "S"}
PERSONS = {"N": "ann", "S": "bob", "-": "cy"}
CLAUSES = {"static": "active", "HOST_NAME": "region = HOST_NAME()", "SUSER_SNAME": "person = SUSER_SNAME()"}
PARENTS = {"N": 1, "S": 2, "-": 3, "M": 4}
"""Parents by the home of their children; the last one moves from north to south."""
LARGE = 1_000_000
"""The publisher's table of an article that compensates for errors takes smaller values of `w`."""
OF_REPLICA = {"hq": 100, "north": 200, "south": 300}

KEYS: Mapping[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda k: k),
    "string": (pa.string(), lambda k: f"k'{k:03}"),
    "composite": (pa.int64(), lambda k: k % 3),
    "date": (pa.date32(), lambda k: date(1969, 12, 1) + timedelta(k)),
    "timestamp_ntz": (
        pa.timestamp("us"),
        lambda k: datetime(2020, 2, 29, 23, 59, 59, 999_900 + k % 100) + timedelta(k),
    ),
    "decimal": (pa.decimal128(12, 2), lambda k: Decimal(k) / 100),
    "rowguid": (pa.string(), lambda k: str(uuid.UUID(int=k + (1 << 100)))),
}
VALUES: Mapping[TypeFamily | None, tuple[pa.DataType, Callable[[int], Any]]] = {
    None: (pa.int32(), lambda n: n),
    TypeFamily.NUMBER: (pa.int32(), lambda n: n),
    TypeFamily.TIME: (pa.date32(), lambda n: date(2020, 1, 1) + timedelta(n)),
    TypeFamily.TEXT: (pa.string(), lambda n: f"text {n}"),
    TypeFamily.ARRAY: (pa.list_(pa.int32()), lambda n: [0, n] if n % 2 else [n]),
    TypeFamily.FIELDS: (pa.struct({"a": pa.int32(), "b": pa.int32()}), lambda n: {"a": n % 2, "b": n // 2}),
}


@dataclass(frozen=True)
class Drawn:
    """An article with drawn options."""

    name: str
    choice: Choice

    @property
    def depth(self) -> int:
        return int(str(self.choice["depth"]))

    @property
    def options(self) -> int:
        return int(str(self.choice["partition_options"]))

    @property
    def resolver(self) -> str:
        return str(self.choice["resolver"])

    @property
    def root(self) -> str:
        """The filtered article that it follows; its number says which partition_options children may have."""
        return f"root_{self.choice['filter']}_{2 if self.options >= 2 else 0}"

    @property
    def schema(self) -> pa.Schema:
        key, _ = KEYS[str(self.choice["key"])]
        value, _ = VALUES[RESOLVERS[self.resolver].reads]
        columns = {
            "key": key,
            "part": pa.string(),
            "k": pa.int64(),
            "region": pa.string(),
            "person": pa.string(),
        }
        columns |= {"active": pa.bool_(), "parent": pa.int64(), "v": value, "w": pa.int64(), "x": pa.int64()}
        return pa.schema(columns)

    @property
    def published(self) -> list[str]:
        return [name for name in self.schema.names if name != "x" or self.choice["columns"] == "all"]

    def row(self, k: int, home: str, n: int, w: int) -> Row:
        key, value = KEYS[str(self.choice["key"])][1], VALUES[RESOLVERS[self.resolver].reads][1]
        return {"key": key(k), "part": f"p{k}", "k": k, "v": value(n), "w": w, "x": 0, **self.home(home)}

    def home(self, home: str) -> Row:
        """Return what decides about the partitions of a row."""
        own = "N" if home == "M" else home
        return {"region": own, "person": PERSONS[own], "active": own != "-", "parent": PARENTS[home]}

    def value(self, n: int) -> Any:
        return VALUES[RESOLVERS[self.resolver].reads][1](n)

    def stated(self, *, filtered: bool) -> Row:
        choice = self.choice
        resolver: Row = {"name": self.resolver, "resolution": choice["resolution"]}
        resolver |= {"column": "v"} if RESOLVERS[self.resolver].reads is not None else {}
        resolver |= {"delimiter": "|"} if self.resolver == "merge_text" else {}
        resolver |= {"function": "drawn"} if self.resolver == CUSTOM else {}
        stated: Row = {"name": self.name, "tracking": choice["tracking"], "resolver": resolver}
        composite = ["key", "part"] if choice["key"] == "composite" else ["key"]
        stated |= {"rowguid": "key"} if choice["key"] == "rowguid" else {"key": composite}
        if choice["compensate_for_errors"]:
            stated["compensate_for_errors"] = "upload"
        if choice["columns"] == "some":
            stated["columns"] = self.published
        if filtered and self.options:
            stated["partition_options"] = self.options
        if filtered and not self.depth and choice["filter"] != "none":
            stated["filter"] = CLAUSES[str(choice["filter"])]
        return stated

    def is_for_filters(self) -> bool:
        """Whether it may be in a publication with row filters."""
        return self.resolver != CUSTOM and RESOLVERS[self.resolver].rejects is None


def _always_the_subscriber(conflicts: Any, context: Any) -> Any:
    from pyspark.sql import functions as F

    return conflicts.select("rowguid", F.lit("subscriber").alias("outcome"))


@dataclass
class Network:
    """A publisher and two subscribers of drawn articles, with row filters or without."""

    folder: Path
    articles: Sequence[Drawn]
    filtered: bool
    engine: Engine
    subscribers: Sequence[str]
    parents: set[str] = field(default_factory=set)

    def publish(self) -> None:
        mergerepl.register_resolver("drawn", _always_the_subscriber)
        stated, joins = [], []
        for each in self.articles:
            stated.append(each.stated(filtered=self.filtered))
            homes = [(k, home) for k, home in enumerate(("N", "N", "S", "M", "N", "S", "M", "-") * 2)]
            rows = [each.row(k, "N" if k % 4 == 1 else home, 10, -1 - k) for k, home in homes]
            table = pa.Table.from_pylist(rows, schema=each.schema)
            write_deltalake(str(self.folder / "hq" / each.name), table)
            if each.choice["filter"] != "none":
                self.parents |= (
                    {each.root, f"mid_{each.root}"}
                    if each.depth == 2
                    else {each.root}
                    if each.depth
                    else set()
                )
            if self.filtered and each.depth:
                parent = each.root if each.depth == 1 else f"mid_{each.root}"
                joins.append(
                    {
                        "article": each.name,
                        "parent": parent,
                        "on": f"{each.name}.parent = {parent}.id",
                        "unique": True,
                    }
                )
        for parent in sorted(self.parents):
            homes = {1: "N", 2: "S", 3: "-", 4: "N"}
            columns: Row = {"id": list(homes), "region": list(homes.values()), "up": list(homes)}
            columns |= {
                "person": [PERSONS[h] for h in homes.values()],
                "active": [h != "-" for h in homes.values()],
            }
            write_deltalake(str(self.folder / "hq" / parent), pa.table(columns))
            root = parent.removeprefix("mid_")
            of_parent: Row = {"name": parent, "key": ["id"]}
            if self.filtered:
                of_parent["partition_options"] = int(root[-1])
                if parent == root:
                    of_parent["filter"] = CLAUSES[root[len("root_") : -len("_0")]]
                else:
                    joins.append(
                        {"article": parent, "parent": root, "on": f"{parent}.up = {root}.id", "unique": True}
                    )
            stated.append(of_parent)
        who = [
            {
                "subscriber": f"./{name}",
                "host_name": HOMES[name],
                "suser_sname": PERSONS[HOMES[name]],
                **SUBSCRIBERS[name],
            }
            for name in self.subscribers
        ]
        publish(self.folder, "drawn", stated, who, joins=joins)
        for each in self.articles:
            if each.choice["compensate_for_errors"]:
                table = DeltaTable(str(self.folder / "hq" / each.name))
                table.alter.add_constraint({"small": f"w < {LARGE}"})

    def rows(self, replica: str, article: str) -> dict[int, Row]:
        found = DeltaTable(str(self.folder / replica / article)).to_pyarrow_table().to_pylist()
        return {row["k"] if "k" in row else row["id"]: row for row in found}

    def write(self, writes: Writes) -> None:
        articles = {each.name: each for each in self.articles}
        for (replica, name), rows in writes.items():
            schema = articles[name].schema
            there = [each.name for each in DeltaTable(str(self.folder / replica / name)).schema().fields]
            schema = pa.schema([each for each in schema if each.name in there])
            blank = articles[name].row(0, "N", 0, 0)
            source = pa.Table.from_pylist(
                [{**blank, **(row or {}), "k": k, "gone": row is None} for k, row in rows.items()],
                schema=schema.append(pa.field("gone", pa.bool_())),
            )
            write_changes(self.folder / replica / name, source, "k")

    def move_parents(self) -> None:
        """Let the parents with number 4 move from north to south."""
        for parent in self.parents:
            if parent.startswith("root"):
                values = {"region": "S", "person": "bob"}
                DeltaTable(str(self.folder / "hq" / parent)).update(predicate="id = 4", new_values=values)

    def sync(self, name: str, late: Writes | None = None, *, dies_at: str | None = None) -> Any:
        def once() -> Any:
            found = mergerepl.Project.load(self.folder / "hq").sync(
                Path(str(self.folder / name)).name, engine=self.engine
            )
            return found.sessions[0]

        with writing_late(lambda: self.write(late)) if late else nullcontext():
            if dies_at is None:
                return once()
            with dies(dies_at, action="stop"):
                once()
        return once()

    def conflicts(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """Return by article the losing rows: number, and value of `w`."""
        found = {}
        for each in self.articles:
            table = DeltaTable(str(self.folder / "hq/_mergerepl" / f"MSmerge_conflict_drawn_{each.name}"))
            rows = table.to_pyarrow_table().to_pylist()
            found[each.name] = Counter((row["k"], row["w"]) for row in rows)
        return found

    def sees(self, article: Drawn, name: str) -> Callable[[Row], bool]:
        """Return whether a subscriber is to have a row, by the publisher's rows."""
        if not self.filtered or article.choice["filter"] == "none":
            return lambda row: True
        attribute, wanted = {
            "static": ("active", True),
            "HOST_NAME": ("region", HOMES[name]),
            "SUSER_SNAME": ("person", PERSONS[HOMES[name]]),
        }[str(article.choice["filter"])]
        if not article.depth:
            return lambda row: row[attribute] == wanted
        roots = self.rows("hq", article.root)
        return lambda row: row["parent"] in roots and roots[row["parent"]][attribute] == wanted


@dataclass
class Histories:
    """What users write, drawn; and each value of `w` with what its writer replaced: no value is written twice."""

    rng: random.Random
    replaced: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    last: int = 0
    inserts: int = 0

    def token(self) -> int:
        self.last += 1
        return self.last

    def drawn(
        self, network: Network, articles: Iterable[Drawn], replicas: Iterable[str], *, late: bool = False
    ) -> Writes:
        """Return writes for the rows of articles that are at these replicas of a network."""
        writes: Writes = {}
        self.inserts += 1
        for each in articles:
            for replica in replicas:
                there = network.rows(replica, each.name)
                rows = {
                    k: made
                    for k, row in there.items()
                    if (made := self._changed(each, replica, k, row, late)) != row
                }
                if not late:
                    # A number that left a replica is not written there again: without filters it would be there still.
                    k = OF_REPLICA[replica] + self.inserts
                    if self.rng.random() < 0.5:
                        home = (
                            "N"
                            if replica == "north"
                            else "S"
                            if replica == "south"
                            else self.rng.choice("NS-")
                        )
                        rows[k] = each.row(k, home, self.rng.randrange(4), self.token())
                for k, row in rows.items():
                    before = there.get(k)
                    new = -1 if row is None else row["w"]
                    old = 0 if before is None else before["w"]
                    if old != new:
                        self.replaced.setdefault(each.name, {}).setdefault(old, set()).add(new)
                if rows:
                    writes[(replica, each.name)] = rows
        return writes

    def _changed(self, each: Drawn, replica: str, k: int, row: Row, late: bool) -> Row | None:
        if self.rng.random() < (0.6 if late else 0.45):
            return row
        what = self.rng.choice(("v", "w", "both", "both", "delete", "move"))
        if what == "delete":
            return None if k % 3 == 0 else row
        if what == "move":
            if late or k % 4 == 1 or (replica != "hq" and each.options and not is_apart(k)):
                return row
            return {**row, **each.home(self.rng.choice("NS-"))}
        made = dict(row)
        if what in ("v", "both"):
            made["v"] = each.value(self.rng.randrange(7))
        if what in ("w", "both"):
            is_large = each.choice["compensate_for_errors"] and replica != "hq" and k % 8 == 6 and not late
            made["w"] = self.token() + (LARGE if is_large else 0)
        return made


def is_apart(k: int) -> bool:
    """Whether a subscriber may move the row out of its partition, which partition_options reject."""
    return k % 8 == 7


class Twins:
    """The two networks, with one history."""

    def __init__(
        self,
        folder: Path,
        choices: Sequence[Choice],
        seed: int,
        engines: tuple[Engine, Engine],
        subscribers: Sequence[str] = tuple(HOMES),
    ) -> None:
        self.subscribers = subscribers
        drawn = [Drawn(f"a{number}", choice) for number, choice in enumerate(choices)]
        self.both = [each for each in drawn if each.is_for_filters()]
        self.others = [each for each in drawn if not each.is_for_filters()]
        self.filtered = Network(folder / "filtered", self.both, True, engines[0], subscribers)
        self.whole = Network(folder / "whole", drawn, False, engines[1], subscribers)
        self.rng = random.Random(seed)
        self.histories = Histories(self.rng)
        for network in (self.filtered, self.whole):
            network.folder.mkdir()
            network.publish()

    def write(self, *, moves: bool = False) -> None:
        for network, writes in self._drawn(("hq", *self.subscribers), late=False):
            network.write(writes)
            if moves:
                network.move_parents()

    def _drawn(self, replicas: tuple[str, ...], *, late: bool) -> list[tuple[Network, Writes]]:
        """Return what users write in both networks: in articles of both the same."""
        both = self.histories.drawn(self.filtered, self.both, replicas, late=late)
        others = self.histories.drawn(self.whole, self.others, replicas, late=late)
        return [(self.filtered, both), (self.whole, both | others)]

    def sync(self, name: str, *, late: bool = False, dies_at: str | None = None) -> list[str]:
        writes = self._drawn(("hq", name), late=late) if late else [(self.filtered, {}), (self.whole, {})]
        return [network.sync(name, mine, dies_at=dies_at).status for network, mine in writes]

    def problems(self) -> list[str]:
        """Return what is wrong, by article and row."""
        found: list[str] = []
        logged = {network.filtered: network.conflicts() for network in (self.filtered, self.whole)}
        for network in (self.filtered, self.whole):
            for each in network.articles:
                at_hq = network.rows("hq", each.name)
                for name in network.subscribers:
                    sees = network.sees(each, name)
                    wanted = {k: row for k, row in at_hq.items() if sees(row)}
                    if each.resolver != "upload_only":
                        found += differing(
                            f"{name} filtered={network.filtered}", each, network.rows(name, each.name), wanted
                        )
            for each in network.articles:
                found += self.lost(network, each, logged[network.filtered][each.name])
        for each in self.both:
            one, other = self.filtered.rows("hq", each.name), self.whole.rows("hq", each.name)
            apart = {k for k in {*one, *other} if each.options and is_apart(k)}
            one, other = ({k: row for k, row in rows.items() if k not in apart} for rows in (one, other))
            found += differing("filtered and whole", each, one, other)
            lost = [
                Counter({key: n for key, n in logged[name][each.name].items() if key[0] not in apart})
                for name in (True, False)
            ]
            if lost[0] != lost[1]:
                only = dict(lost[0] - lost[1]), dict(lost[1] - lost[0])
                found.append(f"{each}: logged with filters alone {only[0]}, without alone {only[1]}")
        return found

    def lost(self, network: Network, each: Drawn, logged: Counter[tuple[Any, ...]]) -> list[str]:
        """Return the values of `w` that are neither there, nor logged, nor replaced by somebody who saw them."""
        replaced = self.histories.replaced.get(each.name, {})
        there = {row["w"] for row in network.rows("hq", each.name).values()} | {w for _, w in logged}
        known = {w for values in replaced.values() for w in values}
        open_ = [w for w in known if w > 0 and w not in there and w not in replaced]
        return [f"LOST filtered={network.filtered} {each.name}: {open_} {each.choice}"] if open_ else []


def differing(what: str, each: Drawn, one: Mapping[int, Row], other: Mapping[int, Row]) -> list[str]:
    names = each.published
    found = []
    for k in sorted({*one, *other}):
        rows = [None if (row := rows.get(k)) is None else {n: row[n] for n in names} for rows in (one, other)]
        if rows[0] != rows[1]:
            short = [None if r is None else {n: r[n] for n in ("region", "parent", "v", "w")} for r in rows]
            found.append(f"{what} {each.name} row {k}: {short[0]} / {short[1]} {each.choice}")
    return found

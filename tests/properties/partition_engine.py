"""Histories of filtered articles, played on the reference model and on the engine side by side.

Many worlds share one set of tables, each with keys of its own: what happens in one must not be seen in another. All of them
share one schedule: who synchronises when, and in which sessions users write late.
"""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.failpoints import FailpointError
from mergerepl.merge.session import carry_out
from tests.faults.deaths import dies
from tests.networks import writing_late
from tests.properties.partition_histories import KEYS, SOME, VARIANTS, draw_row
from tests.properties.partition_model import Filters, Merged, Network, Row

APART = 1000
"""Keys of one world, and between those of two."""
REFERENCES = ("key", "customer", "order", "rate")
TYPES = {
    "region": pa.string(),
    "second": pa.string(),
    "rep": pa.string(),
    "area": pa.string(),
    "state": pa.string(),
    "tok": pa.string(),
}
REPLICAS = {"north": "A", "south": "B", "north2": "A"}

CANARY = re.compile(r"canary \d+ -?\d+")
"""What each write of each world puts into its row, and no other one: where a file has it, the row was there."""

DEATHS = {"staged": None, "hub": SUBSCRIBER, "sub": PUBLISHER}
"""What of a session was finished when it died, as the model names it, and the side that the engine did not begin with
(None: with neither)."""

Change = tuple[str, str, int, Row | None]
"""Replica, article, key, and the row as it becomes (None: deleted)."""

Write = tuple[str, str, int, Row | None]
"""Article, operation, key and values."""

_CUSTOMERS_ORDERS_LINES: dict[str, Any] = {
    "filters": {"customers": "region = HOST_NAME()"},
    "joins": [
        ("orders", "customers", "customers.key = orders.customer"),
        ("lines", "orders", "orders.key = lines.`order`"),
    ],
}

_STATES = [
    ("orders", "customers", "customers.key = orders.customer AND customers.state = 'on'"),
    ("lines", "orders", "orders.key = lines.`order`"),
]
_REFILTERED: dict[str, Any] = {
    **_CUSTOMERS_ORDERS_LINES,
    "then": [
        {"filters": {"customers": "second = HOST_NAME()", "lines": "region = HOST_NAME()"}, "joins": _STATES},
        {**_CUSTOMERS_ORDERS_LINES, "filters": {"customers": "region = HOST_NAME() OR second = HOST_NAME()"}},
    ],
}

CLAUSES: dict[str, dict[str, Any]] = {
    "options": _CUSTOMERS_ORDERS_LINES,
    "refilter": _REFILTERED,
    "refilter options": _REFILTERED,
    "or": {
        "filters": {"customers": "region = HOST_NAME()", "lines": "region = HOST_NAME()"},
        "joins": [
            ("orders", "customers", "customers.key = orders.customer"),
            ("lines", "orders", "orders.key = lines.`order`"),
        ],
    },
    "many": {
        "filters": {"routes": "rep = HOST_NAME()", "rates": "active = 1"},
        "joins": [
            ("customers", "routes", "routes.area = customers.region"),
            ("orders", "customers", "customers.key = orders.customer"),
            ("notes", "rates", "rates.key = notes.rate"),
            ("notes", "customers", "customers.key = notes.customer"),
        ],
    },
    "terms": {
        "filters": {"customers": "region = HOST_NAME()"},
        "joins": [
            ("orders", "customers", "customers.key = orders.customer AND customers.state = 'on'"),
            ("lines", "orders", "orders.key = lines.`order` AND orders.state = 'on' AND lines.qty = 1"),
        ],
    },
}
"""What the functions of a variant of the model are as clauses."""


class Recorded(Network):
    """A model that notes what users write, late writes too."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.written: list[Change] = []
        super().__init__(*arguments, **settings)

    def write(self, replica: str, a: str, op: str, k: Any, values: Row | None = None) -> bool:
        done = super().write(replica, a, op, k, values)
        if done:
            table = (self.hub if replica == "hub" else self.subs[replica]).tables[a]
            self.written.append((replica, a, k, table.get(k)))
        return done

    def taken(self) -> list[Change]:
        """Return what was written since the last call."""
        written, self.written = self.written, []
        return written


def canary(world: int, row: Row) -> str:
    """Return what distinguishes this version of a row from all others."""
    return f"canary {world} {row['tok']}"


def schema_of(filters: Filters, article: str) -> pa.Schema:
    names = ("key", *filters.articles[article].columns, "tok")
    return pa.schema([(name, TYPES.get(name, pa.int64())) for name in names])


def shifted(world: int, row: Row) -> Row:
    """Return a row of a world as the shared tables have it; what joins two rows is the world's own."""
    values = {**row, "tok": canary(world, row)}
    for name in REFERENCES:
        if values.get(name) is not None:
            values[name] += world * APART
    # An area joins routes with customers: of one world only.
    for name in ("area",):
        if values.get(name) is not None:
            values[name] = f"{values[name]} {world}"
    return values


class PartitionEngine:
    """A publisher and its subscribers with the rows of all worlds."""

    def __init__(
        self, folder: Path, variant: str, worlds: int, filters: Filters, rows: Mapping[int, Any]
    ) -> None:
        self.folder, self.filters, self.variant = folder, filters, variant
        self.schemas = {name: schema_of(filters, name) for name in filters.articles}
        for name, schema in self.schemas.items():
            there = [self._row(w, name, row) for w in range(worlds) for row in rows[w].get(name, {}).values()]
            write_deltalake(str(folder / "hub" / name), pa.Table.from_pylist(there, schema=schema))
        self.file = folder / "network.yml"
        self.apply(CLAUSES[variant])

    def apply(self, clauses: Mapping[str, Any]) -> None:
        """Apply the file with these filters and joins."""
        articles = []
        for name in self.filters.articles:
            own = clauses["filters"].get(name)
            options = VARIANTS[self.variant].get("options", 0)
            filtered = {"partition_options": options} | ({"filter": own} if own else {})
            articles.append({"name": name, "key": ["key"], **filtered})
        stated = {
            "publication": "network",
            "publisher": "./hub",
            "articles": articles,
            "joins": [dict(zip(("article", "parent", "on"), join, strict=True)) for join in clauses["joins"]],
            "subscriptions": [
                {"subscriber": f"./{name}", "host_name": value, "priority": 50}
                for name, value in REPLICAS.items()
            ],
        }
        self.file.write_text(yaml.safe_dump(stated))
        mergerepl.Project.load(self.file).apply()

    def _row(self, world: int, article: str, row: Row) -> Row:
        values = shifted(world, row)
        if self.variant == "many" and article == "customers" and values.get("region") is not None:
            values["region"] = f"{values['region']} {world}"
        return {name: values.get(name) for name in self.schemas[article].names}

    def write(self, changes: Iterable[tuple[int, Change]]) -> None:
        """Commit what users wrote in all worlds: two commits for each table at most."""
        last: dict[tuple[str, str], dict[int, Row | None]] = defaultdict(dict)
        for world, (replica, article, key, row) in changes:
            stored = None if row is None else self._row(world, article, row)
            last[(replica, article)][world * APART + key] = stored
        for (replica, article), rows in last.items():
            table = DeltaTable(str(self.folder / replica / article))
            live = [row for row in rows.values() if row is not None]
            if live:
                source = pa.Table.from_pylist(live, schema=self.schemas[article])
                merge = table.merge(source, "t.key = s.key", source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
            dead = [key for key, row in rows.items() if row is None]
            if dead:
                table.delete(f"key in ({', '.join(map(str, dead))})")

    def sync(self, name: str, late: Iterable[tuple[int, Change]] = ()) -> Any:
        with writing_late(lambda: self.write(late)):
            return (
                mergerepl.Project.load(self.folder / "hub")
                .sync(Path(str(self.folder / name)).name)
                .sessions[0]
            )

    def rows(self, replica: str) -> dict[str, dict[int, Row]]:
        return {
            name: {
                row["key"]: row
                for row in DeltaTable(str(self.folder / replica / name)).to_pyarrow_table().to_pylist()
            }
            for name in self.filters.articles
        }

    def conflicts(self) -> int:
        return (
            DeltaTable(str(self.folder / "hub/_mergerepl/MSmerge_conflicts_info")).to_pyarrow_table().num_rows
        )

    def netted(self) -> tuple[set[tuple[int, str, int]], set[tuple[int, str, int, int]]]:
        """Return current (tablenick, rowguid, partition) and past (…, reason) mappings as a reader nets them."""
        found: dict[tuple[int, str, int], tuple[int, int | None]] = {}
        for name in ("current", "past"):
            path = self.folder / "hub/_mergerepl" / f"MSmerge_{name}_partition_mappings"
            for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist():
                key = row["tablenick"], row["rowguid"], row["partition_id"]
                assert row["seq"] != found.get(key, (0, None))[0], f"two mappings of {key} in one run"
                if row["seq"] > found.get(key, (0, None))[0]:
                    found[key] = row["seq"], row.get("reason")
        current = {key for key, (_, reason) in found.items() if reason is None}
        return current, {(*key, why) for key, (_, why) in found.items() if why is not None}


def drawn_write(rng: random.Random, net: Network, replica: str) -> Write:
    """Return a write that some user may do at a replica."""
    side = net.hub if replica == "hub" else net.subs[replica]
    article = rng.choice(net.names)
    pick = SOME if replica == "hub" or rng.random() < 0.5 else [REPLICAS[replica]]
    table = side.tables[article]
    columns = net.filters.articles[article].columns
    values = {n: v for n, v in draw_row(rng, pick).items() if n in columns}
    if table and rng.random() < 0.75:
        key = rng.choice(sorted(table))
        if rng.random() < 0.2:
            return article, "delete", key, None
        chosen = rng.sample(sorted(values), k=rng.randint(1, len(values)))
        return article, "update", key, {name: values[name] for name in chosen}
    key = rng.randrange(KEYS[article])
    return article, "insert", key, {**values, "key": key}


def worlds_of(seed: int, variant: str, count: int) -> list[Recorded]:
    """Return new worlds with drawn rows and all subscribers."""
    filters: Filters = VARIANTS[variant]["filters"]
    found = []
    for world in range(count):
        rng = random.Random(f"{seed} {variant} {world}")
        first = itertools.count(1)
        rows: dict[str, dict[int, Row]] = {}
        for name, article in filters.articles.items():
            keys = [key for key in range(KEYS[name]) if rng.random() < 0.7]
            drawn = {key: draw_row(rng, SOME) for key in keys}
            blank = dict.fromkeys(article.columns)
            rows[name] = {
                key: {
                    **blank,
                    **{n: v for n, v in row.items() if n in article.columns},
                    "key": key,
                    "tok": -next(first),
                }
                for key, row in drawn.items()
            }
        net = Recorded(filters, {}, rows)
        for name, value in REPLICAS.items():
            net.subscribe(name, value, options=VARIANTS[variant].get("options", 0))
        found.append(net)
    return found


def expected(engine: PartitionEngine, worlds: list[Recorded], replica: str) -> dict[str, dict[int, Row]]:
    """Return the rows of a replica's tables as the models have them."""
    found: dict[str, dict[int, Row]] = {name: {} for name in engine.filters.articles}
    for world, net in enumerate(worlds):
        side = net.hub if replica == "hub" else net.subs[replica]
        for name, rows in side.tables.items():
            for key, row in rows.items():
                found[name][world * APART + key] = engine._row(world, name, row)
    return found


def difference(one: Mapping[str, Mapping[int, Row]], other: Mapping[str, Mapping[int, Row]]) -> list[Any]:
    """Return article, key and both rows where they differ."""
    return [
        (name, key, one[name].get(key), other[name].get(key))
        for name in one
        for key in sorted({*one[name], *other[name]})
        if one[name].get(key) != other[name].get(key)
    ]


class Played:
    """Worlds on the models and on the engine: what both come to is compared after every session."""

    def __init__(self, folder: Path, variant: str, seed: int, count: int) -> None:
        self.name = f"{variant}, seed {seed}"
        self.rng = random.Random(f"{seed} {variant}")
        self.worlds = worlds_of(seed, variant, count)
        rows = {w: {a: dict(t) for a, t in net.hub.tables.items()} for w, net in enumerate(self.worlds)}
        self.engine = PartitionEngine(folder, variant, count, self.worlds[0].filters, rows)
        self.own: dict[str, set[str]] = {name: set() for name in REPLICAS}
        self.there: dict[str, dict[Path, set[str]]] = {name: {} for name in REPLICAS}
        self.compare("initialised", *REPLICAS)

    def compare(self, when: str, *replicas: str) -> None:
        """Fail where the rows of replicas are not those of the models."""
        for name in replicas:
            found = difference(self.engine.rows(name), expected(self.engine, self.worlds, name))
            assert found == [], f"{self.name}: {name} {when}: {found[:6]}"
            path = self.engine.folder / name / "_mergerepl/MSmerge_tombstone"
            lineages = DeltaTable(str(path)).to_pyarrow_table(columns=["lineage"])["lineage"]
            assert lineages.null_count == 0, (
                f"{self.name}: {name} {when}: a tombstone of a row that nobody deleted"
            )

    def drawn(self, net: Network, replica: str, most: int) -> list[Write]:
        """Return some writes that users may do at a replica."""
        return [drawn_write(self.rng, net, replica) for _ in range(self.rng.randint(0, most))]

    def taken(self) -> list[tuple[int, Change]]:
        """Return what was written in the models since the last call, by world."""
        found = [(world, change) for world, net in enumerate(self.worlds) for change in net.taken()]
        for world, (replica, _, _, row) in found:
            if replica in self.own and row is not None:
                self.own[replica].add(canary(world, row))
        return found

    def write(self) -> None:
        """Let users write at all replicas."""
        for net in self.worlds:
            for replica in ("hub", *REPLICAS):
                for call in self.drawn(net, replica, 2):
                    net.write(replica, *call)
        self.engine.write(self.taken())

    def merged(self, name: str) -> Merged:
        """Return the articles whose tables the next session writes: a late round follows in all worlds."""
        hub: set[str] = set()
        sub: set[str] = set()
        for net in self.worlds:
            trial = copy.deepcopy(net)
            trial.sync(name, crash="staged")
            if (changeset := trial.staged.get(name)) is not None:
                hub |= changeset.hub_merged
                sub |= changeset.sub_merged
        return Merged(frozenset(hub), frozenset(sub))

    def sync_models(
        self, name: str, *, late: bool = False, crash: str | None = None
    ) -> list[tuple[int, Change]]:
        """Run a session of every model; return what was written late."""
        merged = self.merged(name) if late or crash else Merged()
        for net in self.worlds:
            net.merged_too = merged
            of_hub, of_sub = (self.drawn(net, each, 2) if late else [] for each in ("hub", name))
            net.sync(name, late_hub=of_hub, late_sub=of_sub, crash=crash)
        return self.taken()

    def change_filters(self) -> None:
        """Apply other filters, those of before among them; nothing moves before the next session."""
        number = self.rng.randrange(1 + len(CLAUSES[self.engine.variant]["then"]))
        of_model, of_engine = VARIANTS[self.engine.variant], CLAUSES[self.engine.variant]
        for net in self.worlds:
            net.change_filters([of_model["filters"], *of_model["then"]][number])
        self.engine.apply([of_engine, *of_engine["then"]][number])
        self.compare("after other filters", "hub", *REPLICAS)

    def sync(self, name: str, *, late: bool = False) -> None:
        """Run a session of one subscriber."""
        self.engine.sync(name, self.sync_models(name, late=late))
        self.compare(f"after {name}", "hub", name)

    def die(self, name: str, death: str, *, late: bool = False) -> None:
        """Let a session of one subscriber die when a part of it is done, while users write late."""
        writes = self.sync_models(name, late=late, crash=death)
        if death == "staged":
            with dies("stage.after_manifest", action="stop"):
                self.engine.sync(name)
            self.engine.write(writes)
        else:
            # Articles are merged side by side: a failpoint in one of them would let the others come to their end.
            whole = carry_out._carry_out_side

            def one_side(changeset: Any, side: str, *others: Any) -> Any:
                if side == DEATHS[death]:
                    raise FailpointError(f"the {side} is not begun with")
                return whole(changeset, side, *others)

            with pytest.MonkeyPatch.context() as context:
                context.setattr(carry_out, "_carry_out_side", one_side)
                with pytest.raises(FailpointError):
                    self.engine.sync(name, writes)
        self.no_leaks()

    def no_leaks(self) -> None:
        """Fail where a subscriber's folder has a version of a row that was neither sent to it nor written there (I35)."""
        for name, there in self.there.items():
            for path in (self.engine.folder / name).rglob("*"):
                if path not in there and path.is_file():
                    there[path] = canaries_in(path)
            allowed = set(self.own[name])
            for world, net in enumerate(self.worlds):
                allowed |= {canary(world, row) for *_, row in net.subs[name].storage if row is not None}
                # A session that died may have written any part of what it sends.
                if (staged := net.staged.get(name)) is not None:
                    allowed |= {canary(world, meta.row) for _, meta in staged.sub_rows.values() if meta.row}
            found = {value: str(path) for path, values in there.items() for value in values}
            assert found, f"{self.name}: no rows below {name}"
            leaked = {value: path for value, path in found.items() if value not in allowed}
            assert leaked == {}, f"{self.name}: rows outside of the partition of {name}: {leaked}"

    def finish(self) -> None:
        """Synchronise everybody until nothing moves, then check what is kept of it."""
        for _ in range(2):
            for name in REPLICAS:
                self.sync(name)
        self.check()

    def check(self) -> None:
        """Fail where mappings or files are not those of the models, or where one more session does something."""
        self.no_leaks()
        current, past = self.engine.netted()
        nets = [net.netted() for net in self.worlds]
        assert len(current) == sum(len(each) for each, _ in nets)
        reasons = Counter(why for *_, why in past)
        of_models = Counter(each.reason for _, of_net in nets for *_, each in of_net)
        assert reasons == of_models, f"{self.name}: reasons {reasons}, of the models {of_models}"
        for name in REPLICAS:
            assert self.engine.sync(name).status == "nothing_to_do"


def canaries_in(path: Path) -> set[str]:
    """Return the canaries in a file: in whatever column of a table's file, or in its text."""
    if path.suffix == ".parquet":
        return set(CANARY.findall(str(pq.read_table(path).to_pylist())))
    return set(CANARY.findall(path.read_bytes().decode("utf-8", "replace")))

"""The engine behind the reference model's vocabulary: the same histories, on real Delta tables.

Rows do not interact in the merge rules, so thousands of keys, each with a history of its own, ride the same
few syncs; the cost is commits, not histories.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.rows.lineage_value import covers, replica_nickname
from tests.networks import Published, publish, write_changes
from tests.properties.reference import Conflict, Network, Subscriber

COLUMNS = ("a", "b", "c")
Engines = tuple[Literal["spark", "auto"], ...]
Rows = dict[str, tuple[str | None, ...]]

_PUBLISHED = Published()
"""What this process published; networks that begin alike are copies."""


@dataclass(frozen=True)
class Setting:
    """One configuration under which model and engine run side by side."""

    subscribers: tuple[Subscriber, ...]
    tracking: str = "row"
    resolution: str = "row"
    is_filtered: bool = False
    """Whether each subscriber gets the rows whose column c has its number, from 1 on."""
    engines: Engines = ("auto", "spark")
    """Who writes the tables, session by session in turn."""


@dataclass(frozen=True)
class Tracked:
    """Lineage of a row (writer -> version), and who last changed each column that ever changed."""

    lineage: Mapping[int, int]
    changed_by: Mapping[str, int]

    @property
    def nicknames(self) -> frozenset[int]:
        """The replicas whose changes the row includes."""
        return frozenset(replica_nickname(writer) for writer in self.lineage)

    @property
    def columns(self) -> dict[str, int]:
        """The replica that last changed each column."""
        return {name: replica_nickname(writer) for name, writer in self.changed_by.items()}


class EngineNetwork:
    """Replicas below one folder, driven through the public API."""

    def __init__(
        self, spark: SparkSession, folder: Path, setting: Setting, snapshot: Mapping[str, Any]
    ) -> None:
        """Publish a table of (id, a, b, c) with the snapshot's rows, initialise the subscribers, and copy them."""
        self.spark = spark
        self.folder = folder
        self.hub_writes = 0
        self._engines = itertools.cycle(setting.engines)
        self.names = ("hub", *(s.name for s in setting.subscribers))
        rows = tuple((key, *(row[c] for c in COLUMNS)) for key, row in snapshot.items())
        _PUBLISHED.copy(
            (replace(setting, engines=()), rows),
            folder,
            lambda template: _publish(spark, template, setting, rows),
        )

    def path(self, replica: str) -> Path:
        """Return a replica's root."""
        return self.folder / replica

    def write(self, replica: str, changed: Mapping[str, Mapping[str, str | None] | None]) -> None:
        """Commit a user's changes, key -> the row as it becomes (None: deleted).

        Every third commit at the hub is Spark's, which takes ten times as long; deltalake writes all others. So a history
        of one or two commits there needs no MERGE of a user's: tests/capture and tests/triggers have Spark's commits.
        """
        if not changed:
            return
        self.hub_writes += replica == "hub"
        columns = {name: f"s.{name}" for name in ("id", *COLUMNS)}
        gone = [row is None for row in changed.values()]
        rows = [(key, *((row or {}).get(c) for c in COLUMNS)) for key, row in changed.items()]
        source = _arrow(rows).append_column("gone", pa.array(gone))
        path = str(self.path(replica) / "t")
        if replica == "hub" and self.hub_writes % 3 == 0:
            (
                DeltaTable.forPath(self.spark, path)
                .alias("t")
                .merge(self.spark.createDataFrame(source).alias("s"), "t.id = s.id")
                .whenMatchedDelete("s.gone")
                .whenMatchedUpdate(set=columns)
                .whenNotMatchedInsert("not s.gone", values=columns)
                .execute()
            )
        else:
            write_changes(Path(path), source)

    def sync(self, subscriber: str, direction: str = "both") -> Any:
        """Run one session."""
        return (
            mergerepl.Project.load(self.path("hub"))
            .sync(Path(self.path(subscriber)).name, direction=direction, engine=next(self._engines))
            .sessions[0]
        )

    def rows(self, replica: str) -> Rows:
        """Return key -> values of one replica's table."""
        table = LogTable(str(self.path(replica) / "t")).to_pyarrow_table().to_pydict()
        twice = [key for key, count in Counter(table["id"]).items() if count > 1]
        assert twice == [], f"{replica} holds rows twice"
        return {key: values for key, *values in zip(table["id"], *(table[c] for c in COLUMNS), strict=True)}

    def conflicts(self) -> list[tuple[str, int, str, str, tuple[str | None, ...] | None]]:
        """Return (key, type, winner, loser, losing row) of every logged conflict."""
        folder = self.path("hub") / "_mergerepl"
        logged = _rows(folder / "MSmerge_conflicts_info")
        kept = _rows(folder / "MSmerge_conflict_net_t")
        lost = {row["conflict_id"]: tuple(row[c] for c in COLUMNS) for row in kept}
        assert len(lost) == len(kept) <= len(logged) == len({row["conflict_id"] for row in logged})
        return [
            (
                dict(row["rowkey"])["id"],
                row["conflict_type"],
                Path(row["winner_datasource"]).name,
                Path(row["origin_datasource"]).name,
                lost.get(row["conflict_id"]),
            )
            for row in logged
        ]

    def lineages(self, replica: str) -> dict[str, frozenset[int]]:
        """Return key -> nicknames of the replicas whose changes a row (or its tombstone) includes."""
        return {key: tracked.nicknames for key, tracked in self.tracked(replica).items()}

    def tracked(self, replica: str) -> dict[str, Tracked]:
        """Return key -> what is known of a row's (or its tombstone's) past."""
        from mergerepl.replica.replica import Replica
        from mergerepl.replica.runs import ArticleRuns, current_rows

        there = Replica(self.path(replica))
        seq = there.info().last_seq
        article = there.articles[0]
        names = dict(zip(article.fields, article.columns, strict=True))
        runs = ArticleRuns.of(self.spark, there, article, seq).read()
        rows = current_rows(runs).selectExpr("row.c0 as key", "lineage", "colv1").toArrow().to_pylist()
        return {
            row["key"]: Tracked(
                dict(row["lineage"]), {names[field]: by["nickname"] for field, by in row["colv1"] or ()}
            )
            for row in rows
        }


def _publish(
    spark: SparkSession, folder: Path, setting: Setting, rows: Sequence[tuple[str | None, ...]]
) -> None:
    spark.createDataFrame(_arrow(rows)).write.format("delta").save(str(folder / "hub" / "t"))
    resolver = {"name": "priority", "resolution": setting.resolution}
    article = {"name": "t", "key": ["id"], "tracking": setting.tracking, "resolver": resolver}
    subscriptions = [
        {"subscriber": f"./{s.name}", "type": s.kind}
        | ({"priority": s.priority} if s.kind == "server" else {})
        | ({"host_name": str(number)} if setting.is_filtered else {})
        for number, s in enumerate(setting.subscribers, 1)
    ]
    article |= {"filter": "c = HOST_NAME()"} if setting.is_filtered else {}
    publish(folder, "net", [article], subscriptions, publisher="hub").rename(folder / "network.yml")


def _rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = LogTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def _arrow(rows: Sequence[tuple[str | None, ...]]) -> pa.Table:
    names = ("id", *COLUMNS)
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return pa.table({n: pa.array(list(c), pa.string()) for n, c in zip(names, columns, strict=True)})


def model_conflict(conflict: Conflict) -> tuple[str, int, str, str, tuple[str | None, ...] | None]:
    """Return a model's conflict in the engine's form."""
    row = None if conflict.row is None else tuple(conflict.row[c] for c in COLUMNS)
    return (conflict.key, conflict.type, conflict.winner, conflict.loser, row)


def differing_keys(engine: EngineNetwork, model: Network) -> dict[str, list[str]]:
    """Return key -> what differs between engine and model: rows, conflicts, what is known of their past."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in engine.names:
        rows = engine.rows(name)
        expected = {key: [row[c] for c in COLUMNS] for key, row in model.rows(name).items()}
        for key in {*rows, *expected}:
            if rows.get(key) != expected.get(key):
                found[key].append(f"row at {name}: engine {rows.get(key)}, model {expected.get(key)}")
    logged, expected_log = Counter(engine.conflicts()), Counter(model_conflict(c) for c in model.conflicts)
    for item in {*logged, *expected_log}:
        if logged[item] != expected_log[item]:
            found[item[0]].append(f"conflict {item}: engine {logged[item]}, model {expected_log[item]}")
    for key, texts in _differing_pasts(engine, model).items():
        found[key] += texts
    return dict(found)


_UNTRACKED = Tracked({}, {})


def _differing_pasts(engine: EngineNetwork, model: Network) -> dict[str, list[str]]:
    """Return key -> what engine and model know differently of a row's past.

    Whose changes a row includes, who changed its columns last, and whether a subscriber's row includes all that the hub's
    does, and the other way round. The numbers themselves differ: the engine's agents have entries of their own. A change
    that no session needed yet the model has captured and the engine has not: all is to have been synchronized.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    tracked = {name: engine.tracked(name) for name in engine.names}
    for name, there in tracked.items():
        replica = model.replicas[name]
        for key in {*there, *replica.contents, *replica.tombstones}:
            ours, meta = there.get(key, _UNTRACKED), replica.meta(key)
            found_there = (ours.nicknames, ours.columns)
            lineage, colv = (meta.lineage, meta.colv) if meta else ({}, {})
            expected = (frozenset(lineage), {column: nickname for column, (nickname, _) in colv.items()})
            if found_there != expected:
                found[key].append(f"past at {name}: engine {found_there}, model {expected}")
    hub, *subscribers = engine.names
    for pair in [pair for name in subscribers for pair in ((hub, name), (name, hub))]:
        knowing, known = (model.replicas[name].seen for name in pair)
        for key in {*tracked[pair[0]], *tracked[pair[1]]}:
            ours, other = (tracked[name].get(key, _UNTRACKED).lineage for name in pair)
            includes = known.get(key, frozenset()) <= knowing.get(key, frozenset())
            if covers(ours, other) != includes:
                found[key].append(
                    f"{pair[0]} knows what {pair[1]} does: engine {not includes}, model {includes}"
                )
    return dict(found)

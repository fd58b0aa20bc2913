"""The engine behind the reference model's vocabulary: the same histories, on real Delta tables.

Rows do not interact in the merge rules, so thousands of keys, each with a history of its own, ride the same
few syncs; the cost is commits, not histories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from delta.tables import DeltaTable
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.lineage.value import replica_nickname
from tests.properties.reference import Conflict, Network, Subscriber

COLUMNS = ("a", "b", "c")
Rows = dict[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class Setting:
    """One configuration under which model and engine run side by side."""

    subscribers: tuple[Subscriber, ...]
    tracking: str = "row"
    resolution: str = "row"


class EngineNetwork:
    """Replicas below one folder, driven through the public API."""

    def __init__(
        self, spark: SparkSession, folder: Path, setting: Setting, snapshot: Mapping[str, Any]
    ) -> None:
        """Publish a table of (id, a, b, c) with the snapshot's rows and initialise the subscribers."""
        self.spark = spark
        self.folder = folder
        self.hub_writes = 0
        self.names = ("hub", *(s.name for s in setting.subscribers))
        rows = [(key, *(row[c] for c in COLUMNS)) for key, row in snapshot.items()]
        spark.createDataFrame(_arrow(rows)).write.format("delta").save(str(folder / "hub" / "t"))
        resolver = {"name": "priority", "resolution": setting.resolution}
        article = {"name": "t", "key": ["id"], "tracking": setting.tracking, "resolver": resolver}
        file = folder / "network.yml"
        file.write_text(
            yaml.safe_dump(
                {
                    "publication": "net",
                    "publisher": "./hub",
                    "articles": [article],
                    "subscriptions": [
                        {"subscriber": f"./{s.name}", "type": s.kind}
                        | ({"priority": s.priority} if s.kind == "server" else {})
                        for s in setting.subscribers
                    ],
                }
            )
        )
        mergerepl.load(file).apply()

    def path(self, replica: str) -> Path:
        """Return a replica's root."""
        return self.folder / replica

    def write(self, replica: str, changed: Mapping[str, Mapping[str, str | None] | None]) -> None:
        """Commit a user's changes, key -> the row as it becomes (None: deleted).

        Every third commit at the hub is Spark's, which takes ten times as long; deltalake writes all others.
        """
        if not changed:
            return
        self.hub_writes += replica == "hub"
        columns = {name: f"s.{name}" for name in ("id", *COLUMNS)}
        gone = [row is None for row in changed.values()]
        rows = [(key, *((row or {}).get(c) for c in COLUMNS)) for key, row in changed.items()]
        source = _arrow(rows).append_column("gone", pa.array(gone))
        path = str(self.path(replica) / "t")
        if replica == "hub" and self.hub_writes % 3 == 1:
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
            (
                LogTable(path)
                .merge(source, "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_delete("s.gone")
                .when_matched_update(columns)
                .when_not_matched_insert(columns, "not s.gone")
                .execute()
            )

    def sync(self, subscriber: str, direction: str = "both") -> Any:
        """Run one session."""
        return mergerepl.sync(
            self.path("hub"), subscriber=self.path(subscriber), direction=direction, long_running=True
        ).sessions[0]

    def rows(self, replica: str) -> Rows:
        """Return key -> values of one replica's table."""
        table = LogTable(str(self.path(replica) / "t")).to_pyarrow_table().to_pydict()
        return {key: values for key, *values in zip(table["id"], *(table[c] for c in COLUMNS), strict=True)}

    def conflicts(self) -> list[tuple[str, int, str, str, tuple[str | None, ...] | None]]:
        """Return (key, type, winner, loser, losing row) of every logged conflict."""
        folder = self.path("hub") / "_mergerepl"
        logged = _rows(folder / "MSmerge_conflicts_info")
        kept = _rows(folder / "MSmerge_conflict_net_t")
        lost = {row["conflict_id"]: tuple(row[c] for c in COLUMNS) for row in kept}
        assert len(lost) == len(kept) <= len(logged)
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
        from mergerepl.store.replica import Replica
        from mergerepl.store.runs import current_rows, read_runs

        there = Replica(self.path(replica))
        seq = there.info().last_seq
        runs = read_runs(self.spark, there.folder, there.articles[0], through_seq_inclusive=seq)
        told = current_rows(runs).selectExpr("row.c0 as key", "map_keys(lineage) as nicknames").toArrow()
        pairs = zip(*told.to_pydict().values(), strict=True)
        return {key: frozenset(replica_nickname(n) for n in nicknames) for key, nicknames in pairs}


def _rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = LogTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def _arrow(rows: list[tuple[str | None, ...]]) -> pa.Table:
    names = ("id", *COLUMNS)
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return pa.table({n: pa.array(list(c), pa.string()) for n, c in zip(names, columns, strict=True)})


def model_conflict(conflict: Conflict) -> tuple[str, int, str, str, tuple[str | None, ...] | None]:
    """Return a model's conflict in the engine's form."""
    row = None if conflict.row is None else tuple(conflict.row[c] for c in COLUMNS)
    return (conflict.key, conflict.type, conflict.winner, conflict.loser, row)


def differing_keys(engine: EngineNetwork, model: Network) -> dict[str, list[str]]:
    """Return key -> what differs between engine and model: rows, conflicts, lineages."""
    found: dict[str, list[str]] = {}

    def note(key: str, text: str) -> None:
        found.setdefault(key, []).append(text)

    for name in engine.names:
        rows = engine.rows(name)
        expected = {key: [row[c] for c in COLUMNS] for key, row in model.rows(name).items()}
        for key in {*rows, *expected}:
            if rows.get(key) != expected.get(key):
                note(key, f"row at {name}: engine {rows.get(key)}, model {expected.get(key)}")
        lineages = engine.lineages(name)
        replica = model.replicas[name]
        for key in {*lineages, *replica.contents, *replica.tombstones}:
            meta = replica.meta(key)
            nicknames = frozenset(meta.lineage) if meta else None
            if lineages.get(key) != nicknames:
                note(key, f"lineage at {name}: engine {lineages.get(key)}, model {nicknames}")
    logged, expected_log = Counter(engine.conflicts()), Counter(model_conflict(c) for c in model.conflicts)
    for item in {*logged, *expected_log}:
        if logged[item] != expected_log[item]:
            note(item[0], f"conflict {item}: engine {logged[item]}, model {expected_log[item]}")
    return found

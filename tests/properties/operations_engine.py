"""Histories with cleanups and expiries on the engine and on its model (operations_model.py), step by step.

Many keys ride one history: each write step changes some of them, drawn or stated. Sessions run in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

import mergerepl
from enumeration.horizon import clock_of, own_row
from mergerepl.errors import SubscriptionExpiredError
from mergerepl.merge.session.clean_up import clean_up_metadata
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from tests.networks import write_changes
from tests.properties.engine_network import EngineNetwork, Setting, _arrow
from tests.properties.operations_histories import do
from tests.properties.operations_model import World
from tests.properties.operations_rows import LATE
from tests.properties.reference import Subscriber

PRIORITIES = (25.0, 100.0, 75.0)
"""By nickname modulo 3: the publisher's is 1, A's 2 and B's 3."""

Step = tuple[Any, ...]


@dataclass
class Both:
    """A publisher R with the subscribers A and B, on the engine and in the model."""

    model: World
    engine: EngineNetwork
    is_exact: bool = True
    """Whether versions are equal, too: a quiet session of one direction lifts fewer clocks than the model."""

    @classmethod
    def of(
        cls, spark: SparkSession, folder: Path, keys: Sequence[str], *, column: bool, filtered: bool = False
    ) -> Both:
        """Return both, with the first half of the keys there from the start; `filtered`: in A's partition."""
        there = tuple(keys[: (len(keys) + 1) // 2])
        model = World(
            "star", column=column, filtered=filtered, prios=PRIORITIES, keys=tuple(keys), there=there
        )
        subscribers = Subscriber("A", "server", 75.0), Subscriber("B", "server", 25.0)
        setting = Setting(subscribers, "column" if column else "row", is_filtered=filtered, engines=("auto",))
        snapshot = {key: {"a": "0", "b": "0", "c": "1" if filtered else None} for key in there}
        return cls(model, EngineNetwork(spark, folder, setting, snapshot))

    def replica(self, name: str) -> Replica:
        """Return a replica of the engine."""
        return Replica(self.engine.path(_name(name)))

    def step(self, step: Step) -> None:
        """Do a step in both and compare them. A `write` may name several keys: {key: what}."""
        kind, name, *args = step
        if kind == "write" and isinstance(args[0], str):
            args = [{args[0]: args[1]}]
        if kind == "write":
            self._write(name, args[0])
        elif kind == "session":
            was_refused = self.model.stats["refused"]
            do(self.model, step)
            is_refused = self.model.stats["refused"] > was_refused
            assert self._session(name, *args) == is_refused, f"{step}: refused by one alone ({is_refused})"
            if is_refused:
                self._expire(name, datetime.now(UTC))
        else:
            if kind == "reinit" and args[0] and name not in self.model.r["R"].dead:
                do(self.model, ("session", name))  # with a common past a session comes first
            do(self.model, step)
            self.on_engine(step)
        self.compare(step)

    def on_engine(self, step: Step) -> None:
        """Do a step on the engine alone."""
        kind, name, *args = step
        if kind == "session":
            self.engine.sync(name, *args)
        elif kind == "capture":
            mergerepl.Project.load(self.engine.path(_name(name))).capture()
        elif kind == "reinit":
            hub = mergerepl.Project.load(self.engine.path("hub"))
            hub.reinit(name, upload_first=args[0], discard_local=not args[0])
        elif kind == "refuse":
            self._refuse(name, args[0])
        elif kind == "unsubscribe":
            self._subscribe_again(name)
        elif kind == "cleanup":
            clean_up_metadata(Location.of(self.engine.path(_name(name))), older_than=timedelta(0))
        else:
            self._expire(name, datetime.now(UTC) if kind == "expire" else None)

    def _write(self, name: str, changed: Mapping[str, str]) -> None:
        before = dict(self.model.r[name].rows)
        for key, what in changed.items():
            do(self.model, ("write", name, key, what))
        after = self.model.r[name].rows
        differing = {key: after.get(key) for key in changed if before.get(key) != after.get(key)}
        if differing:
            rows = [(key, *_texts(row)) for key, row in differing.items()]
            gone = [row is None for row in differing.values()]
            table = self.engine.path(_name(name)) / "t"
            write_changes(table, _arrow(rows).append_column("gone", [gone]))

    def _refuse(self, name: str, key: str) -> None:
        """Let a table refuse another row of this key than it has, or all rows again."""
        alter = LogTable(str(self.engine.path(_name(name)) / "t")).alter
        if key not in self.model.r[name].refuses:
            alter.drop_constraint("refuses")
            return
        a, b, _ = _texts(self.model.r[name].rows[key])
        alter.add_constraint({"refuses": f"id <> '{key}' or (a = '{a}' and b = '{b}')"})

    def _subscribe_again(self, name: str) -> None:
        """End a subscription, and give its place to a new replica."""
        file = self.engine.folder / "network.yml"
        stated = yaml.safe_load(file.read_text())
        left = [each for each in stated["subscriptions"] if each["subscriber"] != f"./{name}"]
        for subscriptions in (left, stated["subscriptions"]):
            file.write_text(yaml.safe_dump(stated | {"subscriptions": subscriptions}))
            mergerepl.Project.load(file).apply()
            if subscriptions is left:
                root = self.engine.path(name)
                root.rename(root.with_name(f"former-{name}"))

    def _session(self, name: str, direction: str = "both") -> bool:
        try:
            self.on_engine(("session", name, direction))
        except SubscriptionExpiredError:
            return True
        return False

    def _expire(self, name: str, when: datetime | None) -> None:
        hub, own = self.replica("R"), self.replica(name).info().replid
        rows = [replace(row, expired_at=when) if row.replid == own else row for row in hub.subscriptions()]
        hub.control.replace(catalog.SUBSCRIPTIONS, rows)

    def compare(self, step: Step) -> None:
        """Compare rows and metadata; where versions are equal, what is settled and known, too."""
        for name, there in self.model.r.items():
            rows = {key: tuple(values) for key, values in self.engine.rows(_name(name)).items()}
            assert rows == {key: _texts(row) for key, row in there.rows.items()}, f"after {step} at {name}"
            if self.is_exact:
                numbers = self._numbers(name), _numbers(there)
                assert numbers[0] == numbers[1], f"after {step} at {name}: {numbers}"
                found = {key: meta.lineage for key, meta in there.meta.items()}
                lineages = self._lineages(name)
                if (
                    there.part is not None
                ):  # of a row that is outside of its partition the model knows nothing
                    lineages = {
                        key: each for key, each in lineages.items() if key in found or key in there.captured
                    }
                assert lineages == found, f"after {step} at {name}: {lineages}, not {found}"

    def _numbers(self, name: str) -> dict[str, Any]:
        replica = self.replica(name)
        rows, own = replica.subscriptions(), own_row(replica.subscriptions())
        found = {"clock": clock_of(replica.info(), rows), "settled": own.settled, "known": own.known}
        if name == "R":
            of = {self.replica(each).info().replid: each for each in ("A", "B")}
            about = {of[row.replid]: row for row in rows if not row.is_own and row.replid in of}
            found["through"] = {each: row.through for each, row in about.items()}
            found["knows"] = {each: row.knows for each, row in about.items()}
        return found

    def _lineages(self, name: str) -> dict[str, dict[int, int]]:
        replica = self.replica(name)
        info = replica.info()
        latest: dict[str, Any] = {}
        for table in (replica.contents, replica.tombstone):
            for row in LogTable(str(table)).to_pyarrow_table().to_pylist():
                if row["seq"] <= info.last_seq and row["generation"] > info.cleaned.get(row["tablenick"], 0):
                    key = next(value["c0"] for column, value in row.items() if column.startswith("row_"))
                    if key not in latest or latest[key]["seq"] < row["seq"]:
                        latest[key] = row
        return {key: {_writer(n): v for n, v in dict(row["lineage"]).items()} for key, row in latest.items()}


def _name(name: str) -> str:
    return "hub" if name == "R" else name


def _texts(row: Sequence[Any] | None) -> tuple[str | None, ...]:
    return (None, None, None) if row is None else (str(row[0]), str(row[1]), *map(str, row[2:]), None)[:3]


def _numbers(replica: Any) -> dict[str, Any]:
    found = {"clock": replica.clock, "settled": replica.settled, "known": replica.known}
    if replica.up is None:
        found |= {"through": replica.through, "knows": replica.knows}
    return found


def _writer(nickname: int) -> int:
    """Return a writer as the model names it."""
    stride = 1 << 20
    return nickname if abs(nickname) < stride else nickname % stride + LATE

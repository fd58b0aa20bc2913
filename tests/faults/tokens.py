"""Every write carries a token of its own, so that what became of it can be looked up (I6, I7, I9)."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

DELETE_LOST = 4
"""The type of a conflict in which a delete lost: it has no losing row."""

TRACKED = ("a", "b")
"""The columns that users write, each with a token of its own."""


@dataclass(frozen=True)
class Write:
    """One journalled write; `over` is the token that its user found and replaced.

    Of two writes at one replica the one with the higher `version` came later.
    """

    key: str
    token: str
    kind: str
    over: str | None = None
    replica: str = "hub"
    version: int = 0


Logged = list[tuple[str, int, str | None]]
"""Key, conflict type and the loser's token, of every logged conflict."""


class Ledger:
    """What became of every write."""

    def __init__(self, writes: Iterable[Write], rows: Mapping[str, str | None], logged: Logged) -> None:
        self.writes, self.rows, self.logged = list(writes), rows, logged
        self.updates = {(w.key, w.token): w.over for w in self.writes if w.kind == "update"}

    def lost(self) -> list[Write]:
        """Return writes that are not in a row, nor replaced by a user who saw them, nor logged."""
        kept = {*self.rows.items(), *((key, token) for key, _, token in self.logged)}
        replaced = {(write.key, write.over) for write in self.writes}
        known = kept | replaced
        lost = [w for w in self.writes if w.kind != "delete" and (w.key, w.token) not in known]
        return lost + self._lost_deletes()

    def _lost_deletes(self) -> list[Write]:
        """Return deletes after which the row is there, or an update of it, and nothing says so.

        A delete leaves no token. Where the key was inserted again, that insert has its own fate: it may lose to the row
        that was deleted. A conflict that a delete lost speaks for the deletes of the row by one replica's users, and of
        all that were merged with it before.
        """
        inserted = {
            (w.replica, w.key): w.version
            for w in sorted(self.writes, key=lambda write: write.version)
            if w.kind == "insert"
        }
        undone = [
            write
            for write in self.writes
            if write.kind == "delete"
            and inserted.get((write.replica, write.key), -1) <= write.version
            and write.over in self._past(write.key)
        ]
        said = Counter(key for key, kind, _ in self.logged if kind == DELETE_LOST)
        versions = Counter((key, replica) for key, replica, _ in {(w.key, w.replica, w.over) for w in undone})
        needed = {key: max(n for (k, _), n in versions.items() if k == key) for key, _ in versions}
        return [write for write in undone if said[write.key] < needed[write.key]]

    def _past(self, key: str) -> list[str | None]:
        """Return the token of a key's row and those that users updated to come to it."""
        tokens = [self.rows[key]] if key in self.rows else []
        while tokens and (key, tokens[-1]) in self.updates:
            tokens.append(self.updates[key, tokens[-1]])
        return tokens

    def invented(self) -> list[tuple[str, str | None]]:
        """Return (key, token) that nobody wrote."""
        written = {(write.key, write.token) for write in self.writes if write.kind != "delete"}
        logged = [(key, token) for key, kind, token in self.logged if kind != DELETE_LOST]
        return [item for item in (*self.rows.items(), *logged) if item not in written]

    def twice(self) -> list[str | None]:
        """Return tokens that are in two rows, logged twice, or both in a row and logged."""
        logged = [token for _, kind, token in self.logged if kind != DELETE_LOST]
        return [token for token, times in Counter([*self.rows.values(), *logged]).items() if times > 1]


class Users:
    """Users of several replicas, who write what they find in commits of many rows, and keep a journal.

    `columns`: with column tracking an update writes one column or both, and what is journalled is a column of a row.
    """

    def __init__(self, engine: EngineNetwork, seed: int, *, columns: bool) -> None:
        self.engine, self.columns = engine, columns
        self.keys = [f"k{number:03d}" for number in range(200)]
        self.writes: list[Write] = []
        self._drawn = random.Random(seed)
        self._commits = 0

    def edit(self, *replicas: str, by_overwriting: bool = False) -> None:
        """Let the users of these replicas commit once each, by changing rows or by replacing the whole table."""
        for replica in replicas:
            self._commits += 1
            found = self.engine.rows(replica)
            changed = {
                key: self._write(replica, key, found.get(key))
                for key in self.keys
                if self._drawn.random() < 0.3
            }
            if by_overwriting:
                self._overwrite(replica, found, changed)
            else:
                self.engine.write(replica, changed)

    def _write(
        self, replica: str, key: str, row: tuple[str | None, ...] | None
    ) -> dict[str, str | None] | None:
        over = dict(zip(TRACKED, row or (), strict=False))
        kind = "insert" if row is None else "delete" if self._drawn.random() < 0.2 else "update"
        chosen: tuple[str, ...] = TRACKED
        if self.columns and kind == "update":
            chosen = self._drawn.choice((("a",), ("b",), TRACKED))
        tokens = {column: f"{column}{self._commits}-{key}" for column in chosen}
        self.writes += [
            Write(f"{key}.{column}", token, kind, over.get(column), replica, self._commits)
            for column, token in tokens.items()
        ]
        return None if kind == "delete" else {**over, **tokens, "c": None}

    def _overwrite(
        self,
        replica: str,
        found: Mapping[str, tuple[str | None, ...]],
        changed: Mapping[str, dict[str, str | None] | None],
    ) -> None:
        rows = {key: dict(zip(("a", "b", "c"), row, strict=True)) for key, row in found.items()}
        after = [(key, row) for key, row in {**rows, **changed}.items() if row is not None]
        table = pa.Table.from_pylist(
            [{"id": key, **row} for key, row in after],
            schema=pa.schema([(name, pa.string()) for name in ("id", "a", "b", "c")]),
        )
        write_deltalake(str(self.engine.path(replica) / "t"), table, mode="overwrite")

    def check(self) -> None:
        """Compare the replicas, which are in step, and what is there and logged with the journal."""
        rows = self.engine.rows("hub")
        assert all(self.engine.rows(name) == rows for name in self.engine.names)
        logged = [
            (f"{key}.{column}", kind, values and values[place])
            for key, kind, _, _, values in self.engine.conflicts()
            for place, column in enumerate(TRACKED)
        ]
        there = {f"{k}.{column}": row[n] for k, row in rows.items() for n, column in enumerate(TRACKED)}
        ledger = Ledger(self.writes, there, logged)
        assert (ledger.lost(), ledger.invented()) == ([], [])
        if not self.columns:
            assert ledger.twice() == []
            # No row is a mix of two (I8).
            assert [row for row in rows.values() if str(row[0])[1:] != str(row[1])[1:]] == []


BOTH = ("hub", "north")


def users_of(spark: SparkSession, folder: Path, tracking: str) -> Users:
    """Return users of two replicas that hold a row of their own for each second key."""
    setting = Setting((Subscriber("north", "server", 75.0),), tracking)
    users = Users(EngineNetwork(spark, folder, setting, {}), seed=len(tracking), columns=tracking == "column")
    users.edit("hub")
    users.engine.sync("north")
    return users

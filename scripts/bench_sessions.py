"""The benchmark's parts about age and change: a session after 100, 1,000 and 10,000 of them, a subscriber that is filled
again, and a publisher's table that gets a column or is replaced.
"""

import math
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from bench_tables import commits_below, timed, write_table
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.own_checkpoints import COMMITS_BETWEEN
from mergerepl.merge.session.clean_up import clean_up_metadata
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from mergerepl.systables.table import FOLDER

AGES = (100, 1_000, 10_000)
REAL_AGES = (100, 1_000)
KEYS = 200
_ENDS = ("hq", "north")
_IO = Path("/proc/self/io")


class Aged:
    """A publisher and a subscriber with one table, and as many sessions in their history as one wants."""

    def __init__(self, folder: Path) -> None:
        """Publish the table."""
        self.folder, self.edits, self.age = folder, 0, 0
        rows = pa.table({"id": [str(i) for i in range(KEYS)], "v": ["a"] * KEYS})
        write_deltalake(str(folder / "hq" / "t"), rows)
        stated = {"publication": "aged", "publisher": "./hq", "articles": [{"name": "t", "key": ["id"]}]}
        file = folder / "mergerepl.yml"
        file.write_text(yaml.safe_dump({**stated, "subscriptions": [{"subscriber": "./north"}]}))
        self.project = mergerepl.Project.load(file)
        self.project.apply()

    def sync(self) -> None:
        """Change a row at each side and synchronize."""
        self.edits += 1
        for number, end in enumerate(_ENDS):
            key = (7 * self.edits + number) % KEYS
            table = DeltaTable(str(self.folder / end / "t"))
            table.update(predicate=f"id = '{key}'", new_values={"v": f"{end} {self.edits}"})
        self.project.sync()

    def grow(self, age: int) -> None:
        """Add sessions to the history until it has as many, as sessions write them."""
        for end in _ENDS:
            control = Replica(self.folder / end).control
            for table in (sessions.SESSIONS, sessions.ARTICLEHISTORY, sessions.HISTORY):
                known = control.rows(table)[-2:]
                more = range(self.age, age)
                control.append(table, [replace(known[i % len(known)], session_id=f"{i}") for i in more])
        self.age = age

    def measured(self, rounds: int) -> Mapping[str, float]:
        """Return the medians of a session's reads, read bytes, written bytes and commits to system tables.

        Before, metadata is cleaned up, and the users' tables have a checkpoint: their logs are not ours. A session
        reads the commits since the last checkpoint of each system table, one in ten commits: up to twice as much just
        before a checkpoint as just after it. So the sessions are as many as go from one to the next, or a multiple.
        """
        rounds = math.ceil(rounds / COMMITS_BETWEEN) * COMMITS_BETWEEN
        for end in _ENDS:
            DeltaTable(str(self.folder / end / "t")).create_checkpoint()
            clean_up_metadata(Location.of(self.folder / end), older_than=timedelta(0))
        self.sync()
        found = []
        for _ in range(rounds):
            before = self._counts()
            self.sync()
            found.append({name: count - before[name] for name, count in self._counts().items()})
        return {name: statistics.median(each[name] for each in found) for name in found[0]}

    def _counts(self) -> dict[str, int]:
        counts = dict(line.split(": ") for line in _IO.read_text().splitlines())
        tables = (path for end in _ENDS for path in (self.folder / end / FOLDER).iterdir())
        commits = sum(DeltaTable(str(path)).version() for path in tables if (path / "_delta_log").exists())
        return {
            "reads": int(counts["syscr"]),
            "read": int(counts["rchar"]),
            "written": int(counts["wchar"]),
        } | {"commits": commits}


def aged_sessions(rounds: int, *, are_real: bool = False) -> None:
    """Print a row for each age. No Spark. `are_real`: the sessions are run, not written into the history."""
    with tempfile.TemporaryDirectory() as folder:
        network = Aged(Path(folder))
        network.measured(rounds)
        first: Mapping[str, float] | None = None
        for age in REAL_AGES if are_real else AGES:
            if are_real:
                while network.edits < age:
                    network.sync()
            else:
                network.grow(age)
            found = network.measured(rounds)
            first = first or found
            cells = (f"{found[name]:,.0f} ({found[name] / first[name]:.2f})" for name in found)
            print(f"| {age:,} | {' | '.join(cells)} | 1.1 |", flush=True)


def filled_again(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time `reinit` where 100 of 1,000,000 rows differ, beside the first copy of a new subscriber, in turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(spark, folder / "hq" / "orders", 1_000_000)
        stated = {
            "publication": "bench",
            "publisher": "./hq",
            "articles": [{"name": "orders", "key": ["id"]}],
        }
        subscribers = ["north"]

        def subscribe() -> None:
            file = folder / "bench.yml"
            named = [{"subscriber": f"./{each}"} for each in subscribers]
            file.write_text(yaml.safe_dump({**stated, "subscriptions": named}))
            mergerepl.Project.load(file).apply()

        def fill() -> None:
            (done,) = mergerepl.Project.load(folder / "hq").reinit("north", discard_local=True).articles
            assert done.updates == done.kept == 100, done

        subscribe()
        for number in range(warm_up + rounds):
            north = DeltaTable(str(folder / "north" / "orders"))
            north.update(updates={"qty": "qty + 1"}, predicate=f"id % 10000 = {number}")
            subscribers.append(f"south_{number}")
            for kept, work in zip(seconds, (fill, subscribe), strict=True):
                took = timed(work)
                if number >= warm_up:
                    kept.append(took)
    ours, copy = (statistics.median(each) for each in seconds)
    print(
        f"| reinit, 100 of 1,000,000 rows differ; a new subscriber | {ours:.1f} s | {copy:.1f} s | {ours / copy:.2f} | |",
        flush=True,
    )


def changed_tables(rounds: int, rows: int = 1_000_000) -> None:
    """Time a sync of three subscribers after an ADD COLUMN at the publisher, after 100 updates, and after the publisher's
    table was replaced by one with 100 other rows, in turns. The users write by deltalake.
    """
    found: dict[str, list[tuple[float, int, int, int]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, columns = Path(name), {"id": pa.array(range(rows)), "note": pa.array(["a"] * rows)}
        table = folder / "hq" / "orders"
        write_deltalake(str(table), pa.table(columns))
        stated = {
            "publication": "bench",
            "publisher": "./hq",
            "articles": [{"name": "orders", "key": ["id"]}],
        }
        subscribers = [{"subscriber": f"./{each}"} for each in ("north", "south", "east")]
        (folder / "mergerepl.yml").write_text(yaml.safe_dump({**stated, "subscriptions": subscribers}))
        project = mergerepl.Project.load(folder / "mergerepl.yml")
        project.apply()

        def add(number: int) -> None:
            DeltaTable(str(table)).alter.add_columns([Field(f"c{number}", PrimitiveType("string"))])

        def update(number: int) -> None:
            DeltaTable(str(table)).update(
                {"note": f"'u{number}'"}, predicate=f"id % {rows // 100} = {number}"
            )

        def replace_table(number: int) -> None:
            whole = DeltaTable(str(table)).to_pyarrow_table()
            step = rows // 100
            others = pc.is_in(whole["id"], value_set=pa.array(range(number + step // 2, rows, step)))
            notes = pc.if_else(others, f"r{number}", whole["note"])
            whole = whole.set_column(whole.schema.get_field_index("note"), "note", notes)
            write_deltalake(str(table), whole, mode="overwrite", schema_mode="overwrite")

        for number in range(rounds):
            for change in (add, update, replace_table):
                change(number)
                files, commits = _files_below(folder), commits_below(folder)
                results: list[mergerepl.SessionResult] = []
                took = timed(lambda: results.extend(project.sync().sessions))  # noqa: B023
                sent = sum(
                    each.download.inserts + each.download.updates + each.download.deletes for each in results
                )
                after = commits_below(folder)
                users = sum(after[each] - commits[each] for each in commits if FOLDER not in each)
                written = len(_files_below(folder) - files)
                found.setdefault(change.__name__, []).append((took, sent, users, written))
    for what, measured in found.items():
        cells = (statistics.median(each) for each in zip(*measured, strict=True))
        seconds, *counts = cells
        print(f"| {what} | {seconds:.1f} s | {' | '.join(f'{each:,.0f}' for each in counts)} |", flush=True)


def _files_below(folder: Path) -> set[Path]:
    """Return the data files of the users' tables below a folder."""
    return {
        path
        for path in folder.rglob("*.parquet")
        if FOLDER not in path.parts and "_delta_log" not in path.parts
    }

"""The worked example of docs/filters.md, run by the engine: the tables after each step, as the page shows them.

Customers c1 (North) and c2 (South); orders o10 and o20 of them; lines l100 and l200 of these. A row of the page has what
the appended tables come to: netted, and generations numbered in their order.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import mergerepl

ARTICLES = {"customers": "c", "orders": "o", "lines": "l"}
_ID = pa.field("id", pa.int64())
_NOTE = pa.field("note", pa.string())
SCHEMAS = {
    "customers": pa.schema([_ID, pa.field("region", pa.string()), _NOTE]),
    "orders": pa.schema([_ID, pa.field("customer", pa.int64()), _NOTE]),
    "lines": pa.schema([_ID, pa.field("order_id", pa.int64()), _NOTE]),
}
FIRST = {
    "customers": [(1, "North", "Ada"), (2, "South", "Bo")],
    "orders": [(10, 1, ""), (20, 2, "")],
    "lines": [(100, 10, ""), (200, 20, "")],
}


def file_of_the_readme() -> str:
    """Return the configuration that the README shows for row filters."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (file,) = (each for each in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if "joins:" in each)
    return file


class Example:
    """Three replicas below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for article, rows in FIRST.items():
            write_deltalake(str(folder / "hq" / article), _rows(article, rows))
        file = folder / "sales.yml"
        file.write_text(file_of_the_readme())
        mergerepl.load(file).apply()
        self.seen: set[tuple[int, int]] = set()

    def insert(self, replica: str, article: str, *values: Any) -> None:
        write_deltalake(str(self.folder / replica / article), _rows(article, [values]), mode="append")

    def update(self, replica: str, article: str, key: int, **values: str) -> None:
        DeltaTable(str(self.folder / replica / article)).update(updates=values, predicate=f"id = {key}")

    def delete(self, replica: str, article: str, key: int) -> None:
        DeltaTable(str(self.folder / replica / article)).delete(f"id = {key}")

    def sync(self, *names: str) -> None:
        for name in names:
            mergerepl.sync(self.folder / "hq", subscriber=self.folder / name, long_running=True)

    def steps(self) -> Iterator[list[str]]:
        """Yield the cells of each row of the page."""
        yield self.shown("0 initialised")
        self.update("hq", "customers", 1, note="'Ada L.'")
        self.sync("north", "south")
        yield self.shown("1 hq updates c1 (stays in 1), both sync")
        self.insert("hq", "orders", 21, 2, "")
        self.sync("south")
        yield self.shown("2 hq inserts o21 of c2, south syncs")
        self.update("hq", "customers", 1, region="'South'")
        self.sync("north")
        yield self.shown("3 hq moves c1 to South, north syncs")
        self.sync("south")
        yield self.shown("4 south syncs")
        self.update("hq", "orders", 21, customer="1")
        self.sync("south")
        yield self.shown("5 hq gives o21 to c1 (stays in 2), south syncs")
        self.update("south", "lines", 100, note="'x'")
        self.update("hq", "customers", 1, region="'North'")
        self.sync("south")
        yield self.shown("6 south edits l100 while hq moves c1 back to North, south syncs")
        self.sync("north")
        yield self.shown("7 north syncs")
        self.update("north", "customers", 1, region="'South'")
        self.insert("north", "lines", 101, 10, "y")
        self.sync("north")
        yield self.shown("8 north inserts l101 and moves c1 to South itself, north syncs")
        self.sync("south")
        self.delete("hq", "lines", 200)
        self.update("hq", "orders", 10, customer="NULL")
        self.sync("south")
        yield self.shown("9 hq deletes l200 and takes o10 from c1 (nobody's), south syncs")

    def shown(self, title: str) -> list[str]:
        """Return what the tables of the publisher come to, and which rows the subscribers have."""
        names = self._names()
        numbers = sorted({row["generation"] for row in self._system("MSmerge_genhistory")})
        rank = {number: place for place, number in enumerate(numbers, 1)} | {0: 0}
        known = _newest([*self._system("MSmerge_contents"), *self._system("MSmerge_tombstone")], ("rowguid",))
        live = {guid: row for guid, row in known.items() if "type" not in row}
        deleted = {guid: row for guid, row in known.items() if "type" in row}
        maps = _newest(
            [
                *self._system("MSmerge_current_partition_mappings"),
                *self._system("MSmerge_past_partition_mappings"),
            ],
            ("rowguid", "partition_id"),
        )
        current = [key for key, row in maps.items() if "reason" not in row]
        past = [key for key, row in maps.items() if "reason" in row]
        counts: dict[tuple[int, int], int] = {}
        for row in self._system("MSmerge_generation_partition_mappings"):
            pair = rank[row["generation"]], row["partition_id"]
            counts[pair] = counts.get(pair, 0) + row["changecount"]
        new = {pair: count for pair, count in counts.items() if pair not in self.seen}
        self.seen |= set(counts)

        def ordered(keys: Any) -> list[Any]:
            return sorted(keys, key=lambda key: (_place(names[key[0]]), *key[1:]))

        return [
            title,
            _cell(f"{names[guid]} {rank[live[guid,]['generation']]}" for (guid,) in ordered(live)),
            _cell(f"{names[guid]} {rank[deleted[guid,]['generation']]}" for (guid,) in ordered(deleted)),
            _cell(f"{names[guid]}:{pid}" for guid, pid in ordered(current)),
            _cell(
                f"{names[guid]}:{pid} {rank[maps[guid, pid]['generation']]}/{maps[guid, pid]['reason']},"
                for guid, pid in ordered(past)
            ).rstrip(","),
            _cell(f"{gen}:{pid}={count}" for (gen, pid), count in sorted(new.items())),
            *(_cell(self._rows_at(name)) for name in ("north", "south")),
        ]

    def _rows_at(self, replica: str) -> list[str]:
        return [
            f"{short}{key}"
            for article, short in ARTICLES.items()
            for key in sorted(
                DeltaTable(str(self.folder / replica / article)).to_pyarrow_table()["id"].to_pylist()
            )
        ]

    def _system(self, name: str) -> list[dict[str, Any]]:
        return DeltaTable(str(self.folder / "hq" / "_mergerepl" / name)).to_pyarrow_table().to_pylist()

    def _names(self) -> dict[str, str]:
        """Return rowguid -> the row's name on the page."""
        found = {}
        shorts = {}
        for row in self._system("sysmergearticles"):
            shorts[row["nickname"]] = ARTICLES[row["name"]]
        for row in [*self._system("MSmerge_contents"), *self._system("MSmerge_tombstone")]:
            image = row[f"row_{row['tablenick']}"]
            found[row["rowguid"]] = f"{shorts[row['tablenick']]}{image['c0']}"
        return found


def _rows(article: str, rows: Any) -> pa.Table:
    schema = SCHEMAS[article]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _newest(rows: list[dict[str, Any]], key: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["seq"]):
        found[tuple(row[name] for name in key)] = row
    return found


def _place(name: str) -> tuple[int, int]:
    return "col".index(name[0]), int(name[1:])


def _cell(parts: Any) -> str:
    return " ".join(parts) or "–"


def page(rows: Any) -> str:
    """Return the rows as the table of the page."""
    head = "| after | contents | tombstone | current | past | generation_partition, new | north | south |"
    return "\n".join([head, "|---" * 8 + "|", *("| " + " | ".join(row) + " |" for row in rows)])

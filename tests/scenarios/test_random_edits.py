"""Random edits at three replicas by whatever writes Delta tables, then syncs: all replicas come to one state (I1, I24), and
what a site had written is in it or logged (I6).

What the edits come to is not foretold, as the properties do; here writers do to a table and its keys whatever they can.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from tests.calls import conflicts_of, merge_capture
from tests.networks import publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = "id bigint, part string, a string, b double"
IDS = 40
SITES = {"hq": 1000, "north": 1100, "south": 1200}
"""Site -> the first of 40 ids that only it gives to new rows: two of them under one key are refused."""

Row = tuple[int, str, str, float]
Key = tuple[object, ...]

STATEMENTS = {
    "update": ["update {t} set a = '{value}' where {some}"],
    "compute": ["update {t} set b = b + {step} where {some}"],
    "nothing new": ["update {t} set a = a where {some}"],
    "NULL": ["update {t} set a = null where {some}"],
    "delete": ["delete from {t} where {some}"],
    "insert": [
        "delete from {t} where id = {new}",
        "insert into {t} values ({new}, 'p1', '{value}', {step}.0)",
    ],
    "another key": ["delete from {t} where id = {new}", "update {t} set id = {new} where id = {low}"],
    "another key and back": [
        "delete from {t} where id = {new}",
        "update {t} set id = {new} where id = {low}",
        "update {t} set id = {low} where id = {new}",
    ],
    "another key, then deleted": [
        "delete from {t} where id = {new}",
        "update {t} set id = {new}, a = '{value}' where id = {low}",
        "delete from {t} where id = {new}",
    ],
    "came and went": [
        "delete from {t} where id = {new}",
        "insert into {t} values ({new}, 'p1', '{value}', {step}.0)",
        "update {t} set a = 'x' where id = {new}",
        "delete from {t} where id = {new}",
    ],
    "swapped keys": ["update {t} set id = if(id = {low}, {high}, {low}) where id in ({low}, {high})"],
    "merge": [
        "merge into {t} t using "
        "(select id, concat('p', id % 3) part, '{value}' a, {step}.0d b from range({low}, {high})) s on {same} "
        "when matched and s.id % 2 = 0 then update set a = s.a when matched then delete when not matched then insert *"
    ],
    "optimize": ["optimize {t}"],
    "without the feed": [
        "alter table {t} set tblproperties ('delta.enableChangeDataFeed' = 'false')",
        "update {t} set a = '{value}' where {some}",
        "delete from {t} where id = {high} + 1",
        "alter table {t} set tblproperties ('delta.enableChangeDataFeed' = 'true')",
    ],
}


class Network:
    """A publisher with two subscribers, and its users."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder, self.random = spark, folder, random.Random(seed)
        self.keys = self.random.choice([["id"], ["id", "part"]])
        self.steps: list[str] = [f"seed {seed}, key {self.keys}"]
        ids = range(IDS)
        rows = {"id": pa.array(ids, pa.int64()), "part": [f"p{i % 3}" for i in ids]}
        table = pa.table(rows | {"a": [f"a{i}" for i in ids], "b": [float(i) for i in ids]})
        write_deltalake(str(folder / "hq" / "t"), table, partition_by=self.random.choice([None, ["part"]]))
        tracking, resolution = self.random.choice([("row", "row"), ("column", "row"), ("column", "columns")])
        article: dict[str, object] = {"name": "t", "key": self.keys, "tracking": tracking}
        article["resolver"] = {"name": "priority", "resolution": resolution}
        types: list[dict[str, object]] = [{}, {"type": "client"}, {"priority": 10.0}, {"priority": 90.0}]
        subscriptions = [
            {"subscriber": f"./{name}", **self.random.choice(types)} for name in ("north", "south")
        ]
        self.steps.append(f"{article}, {subscriptions}")
        publish(folder, "random", [article], subscriptions)

    def edit(self, site: str, step: int, from_version: int) -> None:
        """Do one thing to a site's table."""
        low = self.random.randrange(IDS)
        high = low + self.random.randrange(1, 8)
        path, value, new = self.folder / site / "t", f"{site}-{step}", SITES[site] + self.random.randrange(40)
        some = f"id between {low} and {high}"
        named = {
            "t": f"delta.`{path}`",
            "some": some,
            "low": low,
            "high": high,
            "new": new,
            "value": value,
            "step": step,
            "same": " and ".join(f"t.{key} = s.{key}" for key in self.keys),
        }
        writers: dict[str, Callable[[], object]] = {
            "deltalake updates": lambda: DeltaTable(str(path)).update(
                updates={"a": f"'{value}'"}, predicate=some
            ),
            "deltalake deletes": lambda: DeltaTable(str(path)).delete(some),
            "deltalake merges": lambda: self._merge(path, [low, new], value),
            "deltalake replaces": lambda: self._replace(path, some, value),
            "restore": lambda: self._restore(path, from_version),
            "overwrite": lambda: self._write(path, f"not ({some})", mode="overwrite"),
            "replaceWhere": lambda: self._write(path, some, mode="overwrite", replaceWhere=some),
            "deleted and appended": lambda: self._delete_and_append(path, some),
        }
        kind = self.random.choice([*STATEMENTS, *writers])
        self.steps.append(f"{site}: {kind} {low}..{high}, {new}, {value}")
        if kind in writers:
            writers[kind]()
        for statement in STATEMENTS.get(kind, []):
            self.spark.sql(statement.format(**named))

    def interlude(self) -> bool:
        """Capture a site or run a part of a session, at times; returns whether any site heard of another's changes."""
        site = self.random.choice(list(SITES))
        kind = self.random.choice(["capture", "preview", "upload", "download", "both", "", "", ""])
        if not kind or (site == "hq" and kind != "capture"):
            return False
        self.steps.append(f"{kind} {site}")
        if kind == "capture":
            merge_capture(self.folder / site)
            return False
        options: dict[str, Any] = {"dry_run": True} if kind == "preview" else {"direction": kind}
        mergerepl.Project.load(self.folder / "hq").sync(Path(self.folder / site).name, **options)
        return kind != "preview"

    def values(self, site: str) -> dict[Key, str]:
        """Return key -> a of a site's rows, without NULLs."""
        return {row[: len(self.keys)]: row[2] for row in self.rows(site) if row[2] is not None}

    def logged(self) -> set[tuple[Key, str]]:
        """Return the key and a of all losing rows."""
        records = conflicts_of(self.folder / "hq").list(with_rows=True)
        rows = [record.losing_row for record in records if record.losing_row is not None]
        return {(tuple(row[name] for name in self.keys), str(row["a"])) for row in rows}

    def _merge(self, path: Path, ids: list[int], value: str) -> None:
        parts = [f"p{i % 3}" for i in ids]
        rows = {"id": pa.array(ids, pa.int64()), "part": parts, "a": [value] * 2, "b": [1.0, 2.0]}
        same = " and ".join(f"t.{key} = s.{key}" for key in self.keys)
        merge = DeltaTable(str(path)).merge(pa.table(rows), same, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _replace(self, path: Path, condition: str, value: str) -> None:
        """Overwrite the rows of a predicate: every second of them changes, the last one goes."""
        held = sorted(self._held(path, condition), key=lambda row: row[:2])[:-1]
        texts = [value if number % 2 else row[2] for number, row in enumerate(held)]
        columns = list(zip(*held, strict=True)) or [()] * 4
        rows = {"id": pa.array(columns[0], pa.int64()), "part": pa.array(columns[1], pa.string())}
        rows |= {"a": pa.array(texts, pa.string()), "b": pa.array(columns[3], pa.float64())}
        write_deltalake(str(path), pa.table(rows), mode="overwrite", predicate=condition)

    def _restore(self, path: Path, from_version: int) -> None:
        version = self.random.randint(from_version, DeltaTable(str(path)).version())
        self.spark.sql(f"restore table delta.`{path}` to version as of {version}")

    def _held(self, path: Path, condition: str) -> list[Row]:
        found = self.spark.read.format("delta").load(str(path)).where(condition).collect()
        return [(row["id"], row["part"], row["a"], row["b"]) for row in found]

    def _write(self, path: Path, condition: str, **options: str) -> None:
        frame = self.spark.createDataFrame(self._held(path, condition), COLUMNS)
        frame.write.format("delta").options(**options).mode(options["mode"]).save(str(path))

    def _delete_and_append(self, path: Path, condition: str) -> None:
        rows = self._held(path, condition)
        self.spark.sql(f"delete from delta.`{path}` where {condition}")
        self.spark.createDataFrame(rows, COLUMNS).write.format("delta").mode("append").save(str(path))

    def rows(self, site: str) -> list[Row]:
        """Return a site's rows in order of their keys."""
        return sorted(self._held(self.folder / site / "t", "true"), key=lambda row: row[:2])

    def leave_one_row_of_each_key(self, site: str) -> None:
        """Remove keys of several rows, which a session refuses."""
        keys = [row[: len(self.keys)] for row in self.rows(site)]
        for key in {key for key in keys if keys.count(key) > 1}:
            named = " and ".join(f"{name} = {value!r}" for name, value in zip(self.keys, key, strict=True))
            self.spark.sql(f"delete from delta.`{self.folder / site / 't'}` where {named}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(6))
def test_inv_01_24_replicas_are_equal_after_random_edits_of_any_writer(
    spark: SparkSession, replica_dir: Path, seed: int
) -> None:
    network = Network(spark, replica_dir, seed)
    step = 0
    for _ in range(5):
        at_first, is_apart = network.values("hq"), True
        for site in SITES:
            from_version = DeltaTable(str(replica_dir / site / "t")).version()
            for _ in range(network.random.randrange(5)):
                step += 1
                network.edit(site, step, from_version)
            network.leave_one_row_of_each_key(site)
            is_apart &= not network.interlude()
        written = {
            (key, value)
            for site in SITES
            for key, value in network.values(site).items()
            if is_apart and at_first.get(key) != value
        }
        # North's changes reach south in the second one, and the other way round; the third has nothing to do.
        statuses = [
            [each.status for each in mergerepl.Project.load(replica_dir / "hq").sync().sessions]
            for _ in range(3)
        ]
        steps = "\n".join(network.steps)
        assert statuses[-1] == ["nothing_to_do"] * 2, steps
        assert network.rows("hq") == network.rows("north") == network.rows("south"), steps
        assert written <= network.logged() | set(network.values("hq").items()), steps

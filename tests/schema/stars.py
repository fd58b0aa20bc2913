"""A publisher with subscribers in a star, in this process, whose users write and change columns by deltalake."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

import mergerepl
from tests import networks
from tests.replacements import create_or_replace

SUBSCRIBERS = {"north": 75.0, "south": 50.0, "east": 25.0}
ARTICLES = ("by_row", "by_column")
"""The articles of a star."""
LADDER = (
    "schema.before_record",
    "schema.after_record",
    "capture.before_replinfo",
    "schema.after_capture",
    "schema.before_alter",
    "schema.after_alter",
    "schema.before_capture",
    "schema.before_articles",
    "schema.before_published_version",
    "schema.after_articles",
    "stage.after_manifest",
    "publisher.after_merge",
    "subscriber.before_merge",
)
"""The failpoints of a session that follows columns."""
Row = dict[str, Any]


_PUBLISHED = networks.Published()
"""Stars that begin alike are copies."""


class Published:
    """The folders of a publication: `mergerepl.yml` beside its replicas."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def project(self) -> mergerepl.Project:
        """The project, as a new process sees it."""
        return mergerepl.Project.load(self.root / "mergerepl.yml")

    def table(self, replica: str, name: str) -> DeltaTable:
        """Return a table at its head."""
        return DeltaTable(str(self.root / replica / name))

    def rows(self, replica: str, name: str) -> dict[int, Row]:
        """Return the rows of a table by their key."""
        found = self.table(replica, name).to_pyarrow_table().to_pylist()
        return {row.pop("id"): row for row in found}


def _as_it_is(_: Path) -> None:
    """Prepare nothing."""


class Star(Published):
    """The publication `sales` with the articles `by_row` and `by_column`, which have the same rows."""

    def __init__(
        self,
        root: Path,
        resolver: str = "priority",
        subscribers: Sequence[str] = ("north", "south"),
        prepared: Callable[[Path], object] = _as_it_is,
        required: Collection[str] = (),
    ) -> None:
        super().__init__(root)
        self.subscribers = subscribers
        root.mkdir(exist_ok=True)
        like = (resolver, *subscribers), prepared, tuple(required)
        _PUBLISHED.copy(like, root, lambda folder: self._publish(folder, resolver, prepared, required))

    def _publish(
        self, root: Path, resolver: str, prepared: Callable[[Path], object], required: Collection[str]
    ) -> None:
        schema = pa.schema(
            [
                ("id", pa.int64()),
                *(pa.field(each, pa.string(), nullable=each not in required) for each in "ab"),
            ]
        )
        rows = pa.table({"id": [1, 2, 3], "a": ["x"] * 3, "b": ["y"] * 3}, schema=schema)
        articles = []
        for tracking in ("row", "column"):
            write_deltalake(str(root / "hq" / f"by_{tracking}"), rows)
            prepared(root / "hq" / f"by_{tracking}")
            articles.append(
                f"  - {{name: by_{tracking}, key: [id], tracking: {tracking}, resolver: {{name: {resolver}}}}}"
            )
        stated = [
            f"  - {{subscriber: ./{n}, type: server, priority: {SUBSCRIBERS[n]}}}" for n in self.subscribers
        ]
        lines = ["publication: sales", "publisher: ./hq", "retention: 14 days", "articles:", *articles]
        (root / "mergerepl.yml").write_text(
            "\n".join([*lines, "subscriptions:", *stated, ""]), encoding="utf-8"
        )
        mergerepl.Project.load(root / "mergerepl.yml").apply()

    def write(self, replica: str, key: int, values: Mapping[str, str | None]) -> None:
        """Update a row of both tables."""
        stated = {name: "NULL" if value is None else f"'{value}'" for name, value in values.items()}
        for name in ARTICLES:
            self.table(replica, name).update(stated, predicate=f"id = {key}")

    def delete(self, replica: str, key: int) -> None:
        """Delete a row of both tables."""
        for name in ARTICLES:
            self.table(replica, name).delete(f"id = {key}")

    def add(self, replica: str, column: str, type_: str = "string") -> None:
        """Add a column to both tables."""
        for name in ARTICLES:
            self.table(replica, name).alter.add_columns([Field(column, PrimitiveType(type_), True)])

    def replace(self, replica: str, rows: Sequence[Row], schema: pa.Schema) -> None:
        """Replace both tables, with these rows and columns: one by an overwrite, the other by CREATE OR REPLACE."""
        table, root = pa.Table.from_pylist(list(rows), schema=schema), self.root / replica
        write_deltalake(str(root / "by_row"), table, mode="overwrite", schema_mode="overwrite")
        create_or_replace(root / "by_column", table)

    def sync(self, subscriber: str | None = None) -> list[Any]:
        """Synchronize one subscriber, or all; return the results of the sessions."""
        if subscriber is None:
            return list(self.project.sync().sessions)
        return list(self.project.sync(subscriber).sessions)

    def settle(self) -> None:
        """Synchronize until all replicas have heard everything."""
        for _ in range(2):
            for result in self.sync():
                assert result.error is None, result.error

    def tables(self, name: str) -> dict[str, dict[int, Row]]:
        """Return the rows of a table at each replica."""
        return {replica: self.rows(replica, name) for replica in ("hq", *self.subscribers)}

    def conflicts(self, replica: str, name: str) -> list[Row]:
        """Return the losing rows of an article that a replica has logged."""
        path = self.root / replica / "_mergerepl" / f"MSmerge_conflict_sales_{name}"
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist()

    def subscribe(self, name: str) -> None:
        """Add a subscriber to the file, and apply it."""
        file = self.root / "mergerepl.yml"
        stated = (
            file.read_text(encoding="utf-8") + f"  - {{subscriber: ./{name}, type: server, priority: 25.0}}\n"
        )
        file.write_text(stated, encoding="utf-8")
        self.subscribers = (*self.subscribers, name)
        self.project.apply()

    def save(self, to: Path) -> Path:
        """Keep a copy of all folders; return its place."""
        return shutil.copytree(self.root, to)

    def load(self, saved: Path) -> None:
        """Put a copy back in the same place."""
        self.subscribers = [name for name in SUBSCRIBERS if (saved / name).exists()]
        shutil.rmtree(self.root)
        shutil.copytree(saved, self.root)

    def apply_followed(self) -> None:
        """Apply a change of both articles that every subscription follows; a second `apply` has nothing to do."""
        planned = self.project.apply(dry_run=True)
        assert [(each.action, each.object) for each in planned.steps] == [
            ("change", "by_row"),
            ("change", "by_column"),
            ("record", "sales"),
        ]
        assert {each.outcome for each in planned.subscriptions} == {"followed"}
        self.project.apply()
        assert not self.project.apply().steps


def alter(spark: SparkSession, star: Star, replica: str, *changes: str) -> None:
    """Change both tables of a replica by Spark; each change is what follows the table's name."""
    for name in ARTICLES:
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{star.root / replica / name}` {change}")


def update(spark: SparkSession, star: Star, replica: str, key: int, values: str) -> None:
    """Set values of a row in both tables of a replica by Spark."""
    for name in ARTICLES:
        spark.sql(f"UPDATE delta.`{star.root / replica / name}` SET {values} WHERE id = {key}")

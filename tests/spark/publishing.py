"""A publisher and its subscribers in a scratch folder, for the tests of `apply`."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame

from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import CommitMark
from mergerepl.delta.types import field
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import (
    Article,
    ConflictLogging,
    Publication,
    Subscription,
)
from mergerepl.model.results import ApplyResult
from mergerepl.publish.apply import apply_publication
from mergerepl.store.control import ControlPlane, Row
from mergerepl.systables.table import SystemTable
from tests.replicas import copy_replicas, moved


class Hub:
    """Folders `hq`, `north`, … below one folder, and the publication that the last `apply` was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publisher = folder / "hq"
        self.publisher.mkdir(parents=True, exist_ok=True)
        self.publication = Publication("sales", str(self.publisher), ())
        self.captures: list[tuple[Path, str]] = []

    def root(self, name: str) -> Path:
        return self.folder / name

    def table(self, name: str, rows: dict[str, Any], *, at: str = "hq", **options: Any) -> Path:
        """Write a table through delta-rs, without a JVM."""
        path = self.root(at) / name
        write_deltalake(str(path), pa.table(rows), **options)
        return path

    def empty_table(
        self, name: str, fields: list[dict[str, Any]], *, at: str = "hq", **properties: str
    ) -> Path:
        """Create an empty table of any schema, also one that no engine would create."""
        path = self.root(at) / name
        create_table(path, NewTable(fields, (), properties), CommitMark("test", "create"))
        return path

    def articles(self, *articles: Article) -> None:
        self.publication = replace(self.publication, articles=articles)

    def subscribe(self, name: str, **settings: Any) -> None:
        subscription = Subscription(str(self.root(name)), **settings)
        others = [s for s in self.publication.subscriptions if s.subscriber != subscription.subscriber]
        self.publication = replace(self.publication, subscriptions=(*others, subscription))

    def unsubscribe(self, name: str) -> None:
        left = [s for s in self.publication.subscriptions if s.subscriber != str(self.root(name))]
        self.publication = replace(self.publication, subscriptions=tuple(left))

    def change(self, *, retention: timedelta | None = None, logging: ConflictLogging | None = None) -> None:
        if retention is not None:
            self.publication = replace(self.publication, retention=retention)
        if logging is not None:
            self.publication = replace(self.publication, conflict_logging=logging)

    def apply(
        self, *, dry_run: bool = False, capture: Callable[[Path, str], None] | None = None
    ) -> ApplyResult:
        noted = capture or (lambda *told: self.captures.append(told))
        return apply_publication(self.publication, dry_run=dry_run, capture=noted)

    def copied(self, folder: Path) -> "Hub":
        """Return the same replicas below another folder, as if they had been published there."""
        copy_replicas(self.folder, folder)
        hub = Hub(folder)
        subscriptions = tuple(
            replace(s, subscriber=moved(s.subscriber, self.folder, folder))
            for s in self.publication.subscriptions
        )
        publisher = moved(self.publication.publisher, self.folder, folder)
        hub.publication = replace(self.publication, publisher=publisher, subscriptions=subscriptions)
        return hub

    def rows(self, name: str, table: SystemTable) -> list[Row]:
        return ControlPlane(self.root(name)).rows(table)

    def snapshot_of_files(self) -> dict[str, bytes]:
        """Return every file below the folder: what a refused or dry `apply` must leave as it was."""
        return {str(path): path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file()}


def orders(**settings: Any) -> Article:
    """Return the usual article."""
    return Article("orders", "orders", **{"key": ("id",), **settings})


def column(name: str, data_type: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """Return a field of a Delta schema."""
    return {**field(name, data_type), "nullable": nullable, "metadata": metadata}


def log_actions(table: Path) -> list[dict[str, Any]]:
    """Return all actions in a table's log."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def article(
    rows: DataFrame, *, key: tuple[str, ...] = ("id",), rowguid: str | None = None
) -> PublishedArticle:
    """Return an article with the columns of some rows, as the phases see it."""
    return PublishedArticle(
        publication="sales",
        pubid="p",
        name="orders",
        artid="a",
        nickname=1,
        table="orders",
        identity=(rowguid,) if rowguid else key,
        columns=tuple(field.name for field in rows.schema),
        types=tuple(field.dataType.simpleString() for field in rows.schema),
        column_tracking=False,
        resolution="row",
        resolver="priority",
        conflict_table="c",
        vertical=False,
        rowguid_column=rowguid,
    )

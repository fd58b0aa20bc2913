"""A publication with two subscribers, written through the control plane alone: refusals need no engine."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mergerepl import config
from mergerepl.publish import rows
from mergerepl.publish.system_tables import create_conflict_table, create_replica
from mergerepl.publish.table_facts import read_table_facts
from mergerepl.store.control import ControlPlane, Row
from mergerepl.store.deltalog import CDF_PROPERTY, CommitMark
from mergerepl.store.lease import LOCK_FILE
from mergerepl.store.replica import commit_text
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SubscriptionState
from mergerepl.systables.table import FOLDER, SystemTable

NICKNAMES = {"hq": 1, "north": 2, "south": 3}
ROWS = {"id": pa.array([1, 2, 3], pa.int64()), "region": ["N", "S", "N"], "amount": [1.0, 2.0, 3.0]}
PROPERTIES = {CDF_PROPERTY: "true", "delta.deletedFileRetentionDuration": "interval 14 days"}
FILE = "sales.yml"


class Network:
    """Replicas `hq`, `north` and `south` below one folder, with the file that describes them, all in step."""

    def __init__(self, folder: Path, *, is_there: bool = False) -> None:
        """Make them; `is_there` says that the folder holds those that were made at this very path once."""
        self.folder = folder
        self.stated: dict[str, Any] = {
            "publication": "sales",
            "publisher": "./hq",
            "articles": [{"name": "orders", "key": ["id"]}],
            "subscriptions": [{"subscriber": "./north"}, {"subscriber": "./south"}],
        }
        if not is_there:
            for name in NICKNAMES:
                write_table(self.root(name) / "orders")
            self.write_file()
            self._publish()

    def root(self, name: str) -> Path:
        return self.folder / name

    def system_table(self, name: str, table: str) -> Path:
        return self.root(name) / FOLDER / table

    def write_file(self, name: str = FILE, **stated: Any) -> None:
        """Write the publication's file, with other values for some keys."""
        (self.folder / name).write_text(yaml.safe_dump({**self.stated, **stated}, sort_keys=False))

    def edit(self, name: str, table: SystemTable, **values: Any) -> None:
        """Change columns of all rows of a system table, as somebody with a SQL prompt could."""
        control = ControlPlane(self.root(name))
        control.replace(table, [{**row, **values} for row in control.rows(table)])

    def add_rows(self, name: str, *ids: int, **options: Any) -> None:
        """Let a user append rows."""
        count = len(ids)
        columns = {"id": pa.array(ids, pa.int64()), "region": ["E"] * count, "amount": [9.0] * count}
        write_deltalake(str(self.root(name) / "orders"), pa.table(columns), mode="append", **options)

    def _id(self, of: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.folder}/{of}"))

    def _publish(self) -> None:
        publication = config.load(self.folder / FILE)
        facts = {name: read_table_facts(self.root(name) / "orders") for name in NICKNAMES}
        article = rows.article_row(
            publication,
            publication.articles[0],
            facts["hq"],
            pubid=self._id("sales"),
            artid=self._id("orders"),
            nickname=1,
        )
        roots = {name: str(self.root(name)) for name in NICKNAMES}
        infos = {
            name: rows.info_row(
                repid=self._id(name),
                nickname=nickname,
                root=roots[name],
                role="publisher" if name == "hq" else "subscriber",
            )
            | {"captured": {1: facts[name].version}, "table_ids": {1: facts[name].metadata.table_id}}
            | {"captured_commits": {1: commit_text(facts[name].path, facts[name].version)}}
            for name, nickname in NICKNAMES.items()
        }
        abouts = [
            rows.subscriber_row(
                subscription,
                self._id("sales"),
                subid=self._id(f"subscription of {name}"),
                replid=infos[name]["repid"],
                nickname=infos[name]["replnickname"],
                replicastate=self._id(f"state of {name}"),
            )
            | {"status": int(SubscriptionState.ACTIVE)}
            for name, subscription in zip(("north", "south"), publication.subscriptions, strict=True)
        ]
        known = {
            "hq": [rows.publisher_row(infos["hq"], self._id("sales")), *abouts],
            "north": list(rows.rows_at_subscriber(infos["hq"], abouts[0])),
            "south": list(rows.rows_at_subscriber(infos["hq"], abouts[1])),
        }
        for name in NICKNAMES:
            listed = replace(publication, subscriptions=()) if name != "hq" else publication
            definition = rows.definition(listed, with_subscriptions=name == "hq")
            self._make_replica(name, infos[name], article, known[name], definition)

    def _make_replica(
        self, name: str, info: Row, article: Row, subscriptions: Sequence[Row], definition: str
    ) -> None:
        root, publication = self.root(name), config.load(self.folder / FILE)
        mark = CommitMark("test", "create")
        fields = read_table_facts(root / "orders").fields
        create_replica(root, info, {1: fields}, retention=publication.retention, mark=mark)
        create_conflict_table(
            root,
            article["conflict_table"],
            fields,
            retention=publication.retention,
            mark=mark,
            spark_of=_no_engine,
        )
        control = ControlPlane(root)
        row = rows.publication_row(publication, self._id("sales"), 1) | {
            "status": 1,
            "definition": definition,
        }
        control.replace(catalog.PUBLICATIONS, [row])
        control.replace(catalog.ARTICLES, [article])
        control.replace(catalog.SUBSCRIPTIONS, subscriptions)
        # Whoever applied the file held the replica; the lock's file stays, empty.
        (root / LOCK_FILE).touch()


def write_table(path: Path, columns: Mapping[str, Any] = ROWS, **options: Any) -> Path:
    """Write a table as users have it that is ready to be published."""
    options.setdefault("configuration", PROPERTIES)
    write_deltalake(str(path), pa.table(dict(columns)), **options)
    return path


def commit(table: Path, *actions: Mapping[str, Any]) -> None:
    """Append a commit of these actions to a table's log, whether they make sense or not."""
    log = table / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json")) + 1
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))


def _no_engine() -> SparkSession:
    raise AssertionError("a table that is new needs no engine")

"""The one place from which tests get a publisher and its subscribers.

`publish` writes a file and applies it; `Published` keeps what a process published, for copies. `Site` (tables of one kind),
`Pair` (tables of any kind) and `EngineNetwork` of the properties (in the words of the reference model) are made by them.
`Hub` holds a publication for the tests of `apply` itself. No engine is needed for `Network`, written through the control
plane, and for `make_replica`, which writes what `sync` looks at before it starts one.
"""

import ast
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import commit_text, head_version, log_actions, log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.own_commits import last_overwrite
from mergerepl.delta.table import open_table
from mergerepl.delta.writes import compact
from mergerepl.merge.session import merge_session
from mergerepl.model.publication import Article, ConflictLogging, Publication, Subscription
from mergerepl.model.results import ApplyResult
from mergerepl.publish import rows
from mergerepl.publish.apply import apply_publication
from mergerepl.publish.carry_out import Agent
from mergerepl.publish.system_tables import create_conflict_table, create_replica
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import LARGE_BYTES_OF_HISTORY, ROWS_READ_TOGETHER
from mergerepl.store.lease import LOCK_FILE
from mergerepl.store.location import Location
from mergerepl.systables import catalog, genhistory, registry, replinfo
from mergerepl.systables.catalog import ArticleRow, PublicationRow, SubscriptionRow, SubscriptionState
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER, RowT, TypedTable
from tests import project_files as config
from tests.calls import conflicts_of


def moved(text: Any, folder: Path, to: Path) -> Any:
    """Return a path below one folder as one below another; anything else stays."""
    return text.replace(str(folder), str(to)) if isinstance(text, str) else text


@dataclass(frozen=True)
class Naming:
    """A system table that holds the path of a folder of replicas, all of whose rows are in one file of its last commit."""

    place: Path
    """Of the table, below the folder."""
    version: int
    actions: Sequence[Mapping[str, Any]]
    rows: pa.Table

    def write(self, folder: Path, to: Path) -> None:
        """Let the copy of the table name the folder that it was copied to."""
        (file,) = (to / self.place / each["add"]["path"] for each in self.actions if "add" in each)
        rows = self.rows
        for place, field in enumerate(rows.schema):
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                column = pc.replace_substring(rows.column(place), str(folder), str(to))
                rows = rows.set_column(place, field, column)
        assert str(folder) not in str(rows.to_pylist()), f"{self.place} names the folder that was copied"
        pq.write_table(rows, file)
        # The bounds of texts are others.
        facts = {"size": file.stat().st_size, "stats": json.dumps({"numRecords": rows.num_rows})}
        changed = [{"add": {**each["add"], **facts}} if "add" in each else each for each in self.actions]
        log_path(to / self.place, self.version).write_text("\n".join(map(json.dumps, changed)) + "\n")


def rows_that_name(folder: Path) -> list[Naming]:
    """Return the system tables below a folder that hold its path."""
    found = []
    for system_tables in sorted(folder.glob(f"*/{FOLDER}")):
        control = Replica(system_tables.parent).control
        for table in registry.CONTROL_PLANE:
            if str(folder) not in str(rows := control.rows(table)):
                continue
            place = (system_tables / table.name).relative_to(folder)
            path = Location.of(folder / place)
            if not (own := last_overwrite(path)) or len(own[1]) != 1:
                # So that one file states all rows.
                control.replace(table, rows)
                own = last_overwrite(path)
            assert own is not None
            version, (stored,) = own
            found.append(Naming(place, version, log_actions(path, version), stored))
    return found


def copy_replicas(folder: Path, to: Path, naming: Sequence[Naming] | None = None) -> None:
    """Copy all replicas of a folder to another, as if they had been published there.

    They have the identities of those that they are copied from: no session may meet both. `naming` is `rows_that_name`
    of the folder, if it is known.
    """
    naming = rows_that_name(folder) if naming is None else naming
    shutil.copytree(folder, to, dirs_exist_ok=True)
    for each in naming:
        each.write(folder, to)


class Published:
    """What one process published, by what it was published from."""

    folder: Path | None = None
    """Where templates lie; without one each is made beside its first copy."""

    def __init__(self) -> None:
        self._templates: dict[object, tuple[Path, list[Naming]]] = {}

    def copy(self, of: object, to: Path, publish: Callable[[Path], None]) -> None:
        """Copy what `publish` makes in an empty folder; the first time, let it do so."""
        if of not in self._templates:
            folder = (self.folder or to.parent) / f"published-{uuid.uuid4().hex[:12]}"
            folder.mkdir()
            publish(folder)
            self._templates[of] = folder, rows_that_name(folder)
        folder, naming = self._templates[of]
        copy_replicas(folder, to, naming)


TO_NORTH = ({"subscriber": "./north"},)


def publish(
    folder: Path,
    name: str,
    articles: Sequence[Mapping[str, Any]],
    subscriptions: Sequence[Mapping[str, Any]] = TO_NORTH,
    *,
    publisher: str = "hq",
    joins: Sequence[Mapping[str, Any]] = (),
    is_applied: bool = True,
) -> Path:
    """Write the file `<name>.yml` of a publication, apply it and return it."""
    stated = {"publication": name, "publisher": f"./{publisher}", "articles": [*articles]}
    stated |= {"joins": [*joins]} if joins else {}
    file = folder / f"{name}.yml"
    file.write_text(yaml.safe_dump({**stated, "subscriptions": [*subscriptions]}))
    if is_applied:
        mergerepl.Project.load(file).apply()
    return file


_PUBLISHED = Published()


class Site:
    """A publisher `hq` and a subscriber `north` with one table (id, a, b) per article."""

    def __init__(self, spark: SparkSession, folder: Path, articles: list[str]) -> None:
        self.spark, self.folder, self.file = spark, folder, folder / "site.yml"
        _PUBLISHED.copy(tuple(articles), folder, lambda template: _publish_site(template, articles))

    def path(self, replica: str, article: str) -> Path:
        return self.folder / replica / article

    def table(self, replica: str, article: str) -> str:
        return f"delta.`{self.path(replica, article)}`"

    def sync(self, engine: Literal["spark", "auto"] | None = None) -> mergerepl.SessionResult:
        return mergerepl.Project.load(self.folder / "hq").sync(engine=engine).sessions[0]

    def rows(self, replica: str, article: str) -> set[tuple[object, ...]]:
        found = DeltaTable(str(self.path(replica, article))).to_pyarrow_table(columns=["id", "a", "b"])
        # As bytes: a trap writes some that are no UTF-8.
        stored = found["a"].cast(pa.binary()).to_pylist()
        texts = [None if each is None else each.decode("utf-8", "surrogateescape") for each in stored]
        return set(zip(found["id"].to_pylist(), texts, found["b"].to_pylist(), strict=True))


def _publish_site(folder: Path, articles: list[str]) -> None:
    ids = range(6)
    rows = pa.table({"id": list(ids), "a": [f"a{i}" for i in ids], "b": [float(i) for i in ids]})
    for name in articles:
        write_deltalake(str(folder / "hq" / name), rows)
    publish(folder, "site", [{"name": name, "key": ["id"]} for name in articles])


@contextmanager
def writing_late(write: Callable[[], None], of: Any = merge_session) -> Iterator[None]:
    """Let users write after the next session is staged, before it is carried out; `of` is the module that does."""
    whole = of.carry_out

    def later(*arguments: Any, **settings: Any) -> Any:
        write()
        return whole(*arguments, **settings)

    of.carry_out = later
    try:
        yield
    finally:
        of.carry_out = whole


def versions(folder: Path) -> dict[str, int]:
    """Return the version of every Delta table below a folder."""
    logs = [log for log in folder.rglob("_delta_log") if ".former" not in str(log)]
    return {str(log.parent.relative_to(folder)): head_version(log.parent) for log in logs}


def versions_but_history(folder: Path) -> dict[str, int]:
    """Return `versions` without the tables that record how a session ended, also a refused one."""
    recording = {"MSmerge_sessions", "MSmerge_history", "sysmergesubscriptions"}
    return {path: version for path, version in versions(folder).items() if Path(path).name not in recording}


def subscriptions_but_endings(replica: Replica) -> list[SubscriptionRow]:
    """Return the subscriptions of a replica without how their last sessions ended."""
    ended = {"last_sync_date": None, "last_sync_status": 0, "last_sync_summary": "", "failures": 0}
    ended |= {"last_error_class": None}
    return [replace(row, **ended) for row in replica.control.rows(catalog.SUBSCRIPTIONS)]


_EDITS = (
    re.compile(r"update \S+ set (?P<set>.+) where (?P<where>.+)"),
    re.compile(r"delete from \S+ where (?P<where>.+)"),
    re.compile(r"insert into \S+ values (?P<rows>.+)"),
)


def edit_by_delta_rs(table: Path, statement: str) -> None:
    """Carry out an UPDATE, DELETE or INSERT of few rows with delta-rs: in milliseconds, where Spark takes a second."""
    found = next(match for each in _EDITS if (match := each.fullmatch(statement)) is not None).groupdict()
    opened = DeltaTable(str(table))
    if "rows" in found:
        names = [field.name for field in opened.schema().fields]
        rows = ast.literal_eval(f"[{found['rows'].replace('null', 'None')}]")
        schema = pa.schema(opened.schema().to_arrow())
        new = [dict(zip(names, row, strict=True)) for row in rows]
        write_deltalake(opened, pa.Table.from_pylist(new, schema=schema), mode="append")
    elif "set" in found:
        sets = (each.split(" = ", 1) for each in re.split(r", (?=\w+ = )", found["set"]))
        opened.update(updates=dict(sets), predicate=found["where"])
    else:
        opened.delete(found["where"])


def write_changes(table: Path, rows: pa.Table, key: str = "id", *, only: str = "true") -> None:
    """Let a user commit rows as they become, by delta-rs: those whose column `gone` is true are deleted.

    `only` says which rows that are there count as changed.
    """
    columns = {name: f"s.{name}" for name in rows.column_names if name != "gone"}
    merge = DeltaTable(str(table)).merge(rows, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
    merge = merge.when_matched_delete("s.gone").when_matched_update(columns, f"not s.gone and {only}")
    merge.when_not_matched_insert(columns, "not s.gone").execute()


def lose_changes(root: Path) -> None:
    """Note a replica's tables as captured at their heads: what users wrote is never sent, as after a fault."""
    replica = Replica(root)
    heads = {each.nickname: head_version(replica.table(each)) for each in replica.articles}
    replica.save_info(replace(replica.info(), captured=heads))


class Pair:
    """A publisher `hq` and a subscriber `north` with one article each of any table, initialised and in step.

    A table is a query's rows; without a query it is there already.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        articles: dict[str, tuple[str | None, dict[str, object]]],
        *,
        joins: Sequence[Mapping[str, Any]] = (),
        subscriptions: Sequence[Mapping[str, Any]] = TO_NORTH,
    ):
        self.spark, self.folder = spark, folder
        queries = {name: query for name, (query, _) in articles.items() if query is not None}
        for name, query in queries.items():
            spark.sql(query).write.format("delta").save(str(folder / "hq" / name))
        stated = [{"name": name, **settings} for name, (_, settings) in articles.items()]
        publish(folder, "pair", stated, subscriptions, joins=joins)

    def sql(self, statement: str) -> None:
        """Run SQL in which `hq.orders` means that replica's table."""
        for replica in ("hq", "north"):
            for table in (self.folder / replica).iterdir():
                statement = statement.replace(f"{replica}.{table.name} ", f"delta.`{table}` ")
        self.spark.sql(statement)

    def edit(self, *statements: str) -> None:
        """Edit as `edit_by_delta_rs` can: in a statement `hq.orders` means that replica's table."""
        for statement in statements:
            replica, table = re.findall(r"(hq|north)\.(\w+)", statement)[0]
            edit_by_delta_rs(self.folder / replica / table, statement)

    def sync(self) -> mergerepl.SessionResult:
        return mergerepl.Project.load(self.folder / "hq").sync().sessions[0]

    def sync_refused(self, error: type[mergerepl.MergeReplError], words: str) -> None:
        """Synchronize, which must fail with this error and change no table."""
        tables = [
            table
            for replica in ("hq", "north")
            for table in (self.folder / replica).iterdir()
            if not table.name.startswith(("_", "."))
        ]
        before = [head_version(table) for table in tables]
        with pytest.raises(error, match=words):
            self.sync()
        assert [head_version(table) for table in tables] == before

    def sync_withholds(self, words: str) -> None:
        """Synchronize; one change is refused, and logged with a reason that has these words."""
        assert self.sync().waiting == 1
        newest = conflicts_of(self.folder / "hq").list(limit=1)[0]
        assert re.search(words, f"{newest.reason_text} {dict(newest.key)}"), newest

    def conflicts(self) -> int:
        info = self.folder / "hq" / "_mergerepl" / "MSmerge_conflicts_info"
        return DeltaTable(str(info)).to_pyarrow_table().num_rows

    def rows(self, replica: str, article: str) -> list[tuple[object, ...]]:
        table = DeltaTable(str(self.folder / replica / article)).to_pyarrow_table()
        return sorted(tuple(row.values()) for row in table.to_pylist())

    def same_rows(self, article: str) -> list[tuple[object, ...]]:
        """Return the rows of both sides, which must be the same."""
        assert self.rows("hq", article) == self.rows("north", article)
        return self.rows("hq", article)


def capturing(capture: Callable[[Path, str], None]) -> Agent:
    """Return an agent whose captures are this function."""
    agent = Agent()
    agent.capture = capture
    return agent


class Hub:
    """Folders `hq`, `north`, … below one folder, and the publication that the last `apply` was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publisher = folder / "hq"
        self.publisher.mkdir(parents=True, exist_ok=True)
        self.publication = Publication("sales", str(self.publisher), ())
        self.captures: list[tuple[Path, str]] = []
        self._naming: list[Naming] | None = None

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
        noted = capture or (lambda *arguments: self.captures.append(arguments))
        return apply_publication(self.publication, capturing(noted), dry_run=dry_run)

    def copied(self, folder: Path) -> "Hub":
        """Return the same replicas below another folder, as if they had been published there.

        Between copies they must not change.
        """
        if self._naming is None:
            self._naming = rows_that_name(self.folder)
        copy_replicas(self.folder, folder, self._naming)
        hub = Hub(folder)
        subscriptions = tuple(
            replace(s, subscriber=moved(s.subscriber, self.folder, folder))
            for s in self.publication.subscriptions
        )
        publisher = moved(self.publication.publisher, self.folder, folder)
        hub.publication = replace(self.publication, publisher=publisher, subscriptions=subscriptions)
        return hub

    def expire(self, name: str, at: datetime | None) -> None:
        """Let a subscription be expired since a time; None: not any more."""
        publisher = Replica(self.publisher)
        (about,) = (row for row in publisher.relations() if row.subscriber_server == str(self.root(name)))
        publisher.control.change_where(catalog.SUBSCRIPTIONS, {"expired_at": at}, subid=about.subid)

    def rows(self, name: str, table: TypedTable[RowT]) -> list[RowT]:
        return Replica(self.root(name)).control.rows(table)

    def snapshot_of_files(self) -> dict[str, bytes]:
        """Return every file below the folder: what a refused or dry `apply` must leave as it was."""
        return {str(path): path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file()}


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
            _PUBLISHED.copy(Network, folder, Network.of_its_own)

    @classmethod
    def of_its_own(cls, folder: Path) -> "Network":
        """Make replicas with identities that no others have."""
        network = cls(folder, is_there=True)
        network._make()
        return network

    def _make(self) -> None:
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

    def edit(self, name: str, table: TypedTable[Any], **values: Any) -> None:
        """Change columns of all rows of a system table, as somebody with a SQL prompt could."""
        control = Replica(self.root(name)).control
        control.replace(table, [replace(row, **values) for row in control.rows(table)])

    def add_rows(self, name: str, *ids: int, **options: Any) -> None:
        """Let a user append rows."""
        count = len(ids)
        columns = {"id": pa.array(ids, pa.int64()), "region": ["E"] * count, "amount": [9.0] * count}
        write_deltalake(str(self.root(name) / "orders"), pa.table(columns), mode="append", **options)

    def _id(self, of: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.folder}/{of}"))

    def _publish(self) -> None:
        publication = config.load(self.folder / FILE)
        facts = {name: open_table(self.root(name) / "orders") for name in NICKNAMES}
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
            name: ReplicaInfo(
                repid=self._id(name),
                replnickname=nickname,
                root=roots[name],
                captured={1: facts[name].version},
                table_ids={1: facts[name].metadata.table_id},
                captured_commits={1: commit_text(facts[name].path, facts[name].version) or ""},
            )
            for name, nickname in NICKNAMES.items()
        }
        abouts = [
            replace(
                rows.subscriber_row(
                    subscription,
                    self._id("sales"),
                    subid=self._id(f"subscription of {name}"),
                    replid=infos[name].replid,
                    nickname=infos[name].nickname,
                    replicastate=self._id(f"state of {name}"),
                ),
                status=SubscriptionState.ACTIVE,
            )
            for name, subscription in zip(("north", "south"), publication.subscriptions, strict=True)
        ]
        known = {
            "hq": [rows.publisher_row(infos["hq"], self._id("sales")), *abouts],
            "north": list(rows.rows_at_subscriber(infos["hq"], abouts[0])),
            "south": list(rows.rows_at_subscriber(infos["hq"], abouts[1])),
        }
        # As an initialisation leaves them: all know the published rows.
        settled = {True: {"settled": 1, "known": 1}, False: {"through": 1, "knows": 1}}
        known = {name: [replace(row, **settled[row.is_own]) for row in each] for name, each in known.items()}
        for name in NICKNAMES:
            listed = replace(publication, subscriptions=()) if name != "hq" else publication
            definition = rows.definition(listed, with_subscriptions=name == "hq")
            self._make_replica(name, infos[name], article, known[name], definition)

    def _make_replica(
        self,
        name: str,
        info: ReplicaInfo,
        article: ArticleRow,
        subscriptions: Sequence[SubscriptionRow],
        definition: str,
    ) -> None:
        root, publication = self.root(name), config.load(self.folder / FILE)
        mark = CommitMark("test", "create")
        fields = open_table(root / "orders").fields
        create_replica(root, info, {1: fields}, retention=publication.retention, mark=mark)
        create_conflict_table(
            root,
            article.conflict_table,
            fields,
            retention=publication.retention,
            mark=mark,
            spark_of=_no_engine,
        )
        control = Replica(root).control
        row = rows.publication_row(publication, self._id("sales"), 1, publisher_replid=self._id("hq"))
        row = replace(row, status=1, definition=definition)
        control.replace(catalog.PUBLICATIONS, [row])
        control.replace(catalog.ARTICLES, [article])
        control.replace(catalog.SUBSCRIPTIONS, subscriptions)
        # `apply` held the replica; the lock's file stays, empty.
        (root / LOCK_FILE).touch()


def write_table(path: Path, columns: Mapping[str, Any] = ROWS, **options: Any) -> Path:
    """Write a table as users have it that is ready to be published."""
    options.setdefault("configuration", PROPERTIES)
    write_deltalake(str(path), pa.table(dict(columns)), **options)
    return path


def commit(table: Path, *actions: Mapping[str, Any]) -> None:
    """Append a commit of these actions to a table's log, whether they make sense or not."""
    log = Path(table) / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json")) + 1
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))


def restated(body: dict[str, Any], *changes: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the body of a metaData action after some changes, which find its columns as `fields`."""
    body = {
        **body,
        "fields": json.loads(body["schemaString"])["fields"],
        "configuration": {**body["configuration"]},
    }
    for change in changes:
        change(body)
    return {**body, "schemaString": json.dumps({"type": "struct", "fields": body.pop("fields")})}


def restate(
    table: Path,
    *changes: Callable[[dict[str, Any]], None],
    protocol: tuple[int, int] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Commit a table's columns and properties with some changes, as another engine may, and `more` actions."""
    versions = dict(zip(("minReaderVersion", "minWriterVersion"), protocol or (), strict=False))
    stated = [{"protocol": versions}] if protocol else []
    facts = open_table(table)
    body: dict[str, Any] = {
        "id": facts.metadata.table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": facts.metadata.schema_json,
        "partitionColumns": list(facts.metadata.partition_columns),
        "configuration": facts.properties,
    }
    about = {"commitInfo": {"operation": "ALTER TABLE"}}
    commit(table, about, *stated, {"metaData": restated(body, *changes)}, *more)


def _no_engine() -> SparkSession:
    raise AssertionError("a table that is new needs no engine")


LAST_GENERATION = 2


PUBID = "pub-1"


def article_row(name: str, nickname: int, **more: Any) -> ArticleRow:
    known = {
        "name": name,
        "artid": f"art-{nickname}",
        "pubid": PUBID,
        "nickname": nickname,
        "column_tracking": 0,
        "status": 1,
        "conflict_table": f"MSmerge_conflict_sales_{name}",
        "article_resolver": "priority",
        "vertical_partition": 0,
        "resolution": "row",
        "source_table": name,
        "key_columns": ("id",),
        "published_columns": ("id",),
        "published_types": ("bigint",),
    }
    return ArticleRow(**known | more)


def publication_row(name: str, pubid: str) -> PublicationRow:
    return PublicationRow(
        name=name,
        pubid=pubid,
        status=1,
        centralized_conflicts=1,
        decentralized_conflicts=0,
        publisher_replid="replica-1",
    )


def subscription_row(server: Path, replid: str, nickname: int, *, subid: str = "sub-1") -> SubscriptionRow:
    return SubscriptionRow(
        subscriber_server=str(server),
        pubid=PUBID,
        subid=subid,
        replid=replid,
        replnickname=nickname,
        status=1,
        subscriber_type=1,
        priority=0.0,
    )


def make_replica(folder: Path | Location, name: str) -> Replica:
    """Write the system tables of `hq` or `north`, which captured its one table up to its head and knows the other one."""
    folder = Path(folder)
    _PUBLISHED.copy((make_replica, name), folder, lambda template: _make_replica(template, name))
    return Replica(folder / name)


def _make_replica(folder: Path, name: str) -> None:
    root, nickname = folder / name, NICKNAMES[name]
    other_name, its_nickname = ("north", 2) if name == "hq" else ("hq", 1)
    other = subscription_row(folder / other_name, f"replica-{its_nickname}", its_nickname)
    replica = Replica(root)
    write_deltalake(str(root / "orders"), pa.table({"id": [1, 2]}))
    for table in registry.CONTROL_PLANE:
        replica.control.replace(table, [])
    for past in (replica.contents, replica.tombstone):
        write_deltalake(str(past), pa.table({"seq": [0]}))
    info = ReplicaInfo(
        repid=f"replica-{nickname}",
        replnickname=nickname,
        root=str(root),
        last_generation=LAST_GENERATION,
        captured={1: 0},
        table_ids={1: "x"},
    )
    replica.control.replace(replinfo.TABLE, [info])
    replica.control.replace(catalog.PUBLICATIONS, [publication_row("sales", PUBID)])
    replica.control.replace(catalog.ARTICLES, [article_row("orders", 1)])
    itself = subscription_row(root, f"replica-{nickname}", nickname, subid=PUBID)
    rows = [replace(itself, settled=1, known=1), replace(other, through=1, knows=1)]
    replica.control.replace(catalog.SUBSCRIPTIONS, rows)


def make_pair(folder: Path) -> tuple[Replica, Replica]:
    """Write the system tables of a publisher `hq` and its subscriber `north`, in step."""
    return make_replica(folder, "hq"), make_replica(folder, "north")


def generation(number: int, **more: Any) -> Generation:
    """Return a closed generation of the publisher with one change."""
    known = {
        "guidsrc": f"guid-{number}",
        "pubid": PUBID,
        "generation": number,
        "art_nick": 1,
        "nicknames": (1,),
    }
    return Generation(**{**known, "genstatus": GenStatus.CLOSED, "changecount": 1, **more})


def add_history(publisher: Replica, subscriber: Replica, count: int, *, pubid: str) -> None:
    """Let both have sent and received so many generations more, as after as many sessions with their joined files."""
    guids = [genhistory.new_guid() for _ in range(count)]
    numbers = {}
    for replica in (publisher, subscriber):
        info = replica.info()
        first = info.last_generation + 1
        numbers[replica.root] = first + count - 1
        about = {"pubid": pubid, "nicknames": (info.nickname,), "seq": info.last_seq}
        rows = [generation(number, guidsrc=guid, **about) for number, guid in enumerate(guids, first)]
        chunk = max(count // 20, 1)
        for start in range(0, count, chunk):
            replica.control.append(genhistory.TABLE, rows[start : start + chunk])
        compact(
            replica.control.path(genhistory.NAME),
            target_bytes=LARGE_BYTES_OF_HISTORY,
            rows_of_group=ROWS_READ_TOGETHER,
        )
        replica.control.replace(replinfo.TABLE, [replace(info, last_generation=numbers[replica.root])])
    for here, there in ((publisher, subscriber), (subscriber, publisher)):
        marks = {"sentgen": numbers[here.root], "recgen": numbers[there.root]}
        marks |= {"sentguid": guids[-1], "recguid": guids[-1]}
        rows = [row if row.is_own else replace(row, **marks) for row in here.subscriptions()]
        here.control.replace(catalog.SUBSCRIPTIONS, rows)

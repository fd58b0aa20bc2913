"""No call changes the caller's active or default session, its confs or its catalog: every public function is called."""

import ast
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import mergerepl
from mergerepl import Project, cdc, failpoints
from mergerepl import transactional as tr
from mergerepl.errors import MergeReplError
from mergerepl.spark import session as engine
from mergerepl.tracking.consumers import Consumer
from mergerepl.tracking.transactions import Transaction
from mergerepl.tracking.windows import Window
from mergerepl.transactional.procedures import _registered
from tests.calls import conflicts_of
from tests.cdc.databases import add, new_table, rows_at, update

PACKAGES = ("mergerepl", "triggers", "enumeration", "conflict")
ROOT = Path(__file__).parents[2]


# -- who may make a session the active one ----------------------------------------------------------------------------

SETS_THE_ACTIVE_SESSION = {"createDataFrame", "emptyDataFrame", "setActiveSession", "setDefaultSession"}
MAY = {
    # The half of `createDataFrame` that sets none.
    ("mergerepl/spark/in_memory.py", "createDataFrame"),
    ("mergerepl/spark/callers.py", "setActiveSession"),
    # That of Delta's log, which sets none.
    ("mergerepl/tracking/windows.py", "createDataFrame"),
}
SHARED = {"createGlobalTempView", "createOrReplaceGlobalTempView"}


def test_one_module_makes_a_session_active_and_one_makes_frames() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            used = {
                each.attr
                for each in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(each, ast.Attribute)
            }
            found |= {
                (str(path.relative_to(ROOT)), name) for name in used & (SETS_THE_ACTIVE_SESSION | SHARED)
            }
    assert found == MAY


# -- what a caller has --------------------------------------------------------------------------------------------------


class Watch:
    """A user's session, the active one but not the default one, and the folders that the cases work in."""

    def __init__(self, default: SparkSession, folder: Path) -> None:
        self.default, self.folder = default, folder
        self.users = default.newSession()
        self.users.conf.set("spark.sql.shuffle.partitions", "3")
        self.users.createDataFrame([(1,)], "n int").createOrReplaceTempView("mine")
        for session in (default, self.users):
            # Delta sets a conf of a session when it plans the first query.
            session.range(1).collect()
        self.java = SparkSession._get_j_spark_session_class(default._jvm)
        self.made: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        """Return the active and the default session, and the confs and the catalog of both."""
        found: dict[str, Any] = {
            "active in Python": SparkSession._activeSession is self.users,
            "default in Python": SparkSession._instantiatedSession is self.default,
        }
        for name, option in (
            ("active", self.java.getActiveSession()),
            ("default", self.java.getDefaultSession()),
        ):
            expected = self.users if name == "active" else self.default
            found[f"{name} in the JVM"] = option.isDefined() and option.get().equals(expected._jsparkSession)
        for name, session in (("users", self.users), ("default", self.default)):
            catalog = session._jsparkSession.sessionState().catalog()
            found[f"confs of {name}"] = frozenset(
                session._jsparkSession.sessionState().conf().getAllConfs().mkString("\0").split("\0")
            )
            found[f"views of {name}"] = catalog.listTables("default", "*").toString()
            found[f"shared views of {name}"] = catalog.listTables("global_temp", "*").toString()
            found[f"functions of {name}"] = catalog.listTemporaryFunctions().toString()
        return found

    def changes(self, before: dict[str, Any]) -> list[str]:
        """Return what is another than before."""
        now = self.state()
        return [
            f"{name}: {set(map(str, as_set(value))) ^ set(map(str, as_set(now[name])))}"
            for name, value in before.items()
            if value != now[name]
        ]

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def nowhere(self) -> Path:
        return self.folder / "nowhere"

    @property
    def tracking(self) -> mergerepl.ChangeTracking:
        tracking: mergerepl.ChangeTracking = self.made["tracking"]
        return tracking


def as_set(value: Any) -> frozenset[Any]:
    return value if isinstance(value, frozenset) else frozenset([value])


Call = Callable[[Watch], Any]


@dataclass(frozen=True)
class Case:
    """A call of a public function, and one of it that fails. Cases are steps of one story."""

    name: str
    call: Call | None
    fails: Call | None = None
    with_: type[BaseException] | tuple[type[BaseException], ...] = MergeReplError


def play(watch: Watch, cases: list[Case]) -> None:
    before = watch.state()
    assert {name for name, value in before.items() if value is False} == set()
    for case in cases:
        if case.call is not None:
            result = case.call(watch)
            assert watch.changes(before) == [], case.name
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, DataFrame):
                    assert each.sparkSession._jsparkSession.equals(watch.users._jsparkSession), case.name
                    each.collect()
                    assert watch.changes(before) == [], f"{case.name}, read"
            watch.made[case.name] = result
        if case.fails is not None:
            try:
                case.fails(watch)
            except case.with_:
                pass
            else:
                pytest.fail(f"{case.name} does not fail")
            assert watch.changes(before) == [], f"{case.name} fails"


# -- merge --------------------------------------------------------------------------------------------------------------


def conflict(watch: Watch) -> None:
    """Change one row at both sides, and others."""
    for root, note in (("hq", "'by hq'"), ("north", "'by north'")):
        update(watch.path(f"{root}/orders"), "id = 1", note=note)
    north = watch.path("north/orders")
    add(north, {max(rows_at(north)) + 10: ("another", 7)})


def damaged(watch: Watch) -> None:
    """Let a session fail after it began: a data file of its changes is gone."""
    add(watch.path("hq/orders"), {8: ("eight", 8)})
    file = max(watch.path("hq/orders").glob("*.parquet"), key=lambda each: each.stat().st_mtime_ns)
    kept = file.with_suffix(".kept")
    file.rename(kept)
    try:
        update(watch.path("north/orders"), "id = 2", note="'late'")
        mergerepl.Project.load(watch.path("hq")).sync(engine="spark")
    finally:
        kept.rename(file)


def at(root: str, function: Any, *arguments: Any, **options: Any) -> tuple[Call, Call]:
    """Return a call of a function at a folder, and one at a folder that is none."""
    return (
        lambda w: function(w.path(root), *arguments, **options),
        lambda w: function(w.nowhere, *arguments, **options),
    )


def of_project(name: str, *arguments: Any, **options: Any) -> Case:
    """Return the case of a method of the merge project."""
    return Case(
        f"Project.{name}",
        lambda w: getattr(Project.load(w.path("sales.yml")), name)(*arguments, **options),
        lambda w: getattr(Project.load(w.nowhere), name)(*arguments, **options),
    )


def of_replica(name: str, *arguments: Any, **options: Any) -> Case:
    """Return the case of a method of the publisher, and one with a name that it does not know."""
    wrong = ["none"] if arguments else []
    return Case(
        f"Replica.{name}",
        lambda w: getattr(mergerepl.Replica(w.path("hq")), name)(*arguments, **options),
        lambda w: getattr(mergerepl.Replica(w.path("hq") if wrong else w.nowhere), name)(*wrong, **options),
    )


def of_conflicts(name: str, *files: str) -> Case:
    """Return the case of a method of the publisher's conflicts, and one at a folder that is none."""
    return Case(
        f"Conflicts.{name}",
        lambda w: getattr(conflicts_of(w.path("hq")), name)(*map(w.path, files)),
        lambda w: getattr(conflicts_of(w.nowhere), name)(*map(w.path, files)),
    )


MERGE = [
    Case(
        "Project.apply",
        lambda w: Project.load(w.path("sales.yml")).apply(),
        lambda w: Project.load(w.path("missing.yml")).apply(),
    ),
    Case("Project.sync", lambda w: (conflict(w), Project.load(w.path("hq")).sync(engine="spark")), damaged),
    Case("Project.sync", lambda w: (conflict(w), Project.load(w.path("hq")).sync(engine="auto"))),
    Case("Project.rounds", lambda w: next(Project.load(w.path("hq")).rounds(interval=60.0))),
    Case("Project.capture", lambda w: (conflict(w), Project.load(w.path("hq")).capture("north"))),
    *(of_project(name) for name in ("replicas", "at", "own_roots", "status", "pending", "history", "validate")),
    *(of_project(name) for name in ("count_history", "cleanup", "doctor", "pending_rows")),
    *(of_project(name) for name in ("snapshot", "dashboard")),
    Case("Project.reinit", None, lambda w: Project.load(w.path("hq")).reinit(all=True)),
    Case("Project.abort", None, lambda w: Project.load(w.path("hq")).abort("none")),
    *(of_replica(name) for name in ("capture", "status", "pending", "history")),
    of_replica("row", "orders", key={"id": "1"}),
    of_replica("tune", "orders"),
    of_replica("touch", "orders", key={"id": "1"}),
    Case("Replica.resume", None, lambda w: mergerepl.Replica(w.path("hq")).resume("orders")),
    Case("Replica.lock", lambda w: mergerepl.Replica(w.path("north")).lock().__enter__()),
    *(of_conflicts(name) for name in ("list", "count", "count_by", "where", "drop", "retry")),
    Case("Conflicts.get", None, lambda w: conflicts_of(w.path("hq")).get("none")),
    Case(
        "Conflicts.rows",
        lambda w: conflicts_of(w.path("hq")).rows("orders"),
        lambda w: conflicts_of(w.path("hq")).rows("none"),
    ),
    of_conflicts("report", "page.html"),
    of_conflicts("export", "lost"),
    Case(
        "Conflicts.resolve",
        lambda w: conflicts_of(w.path("hq"), article="orders").resolve("loser", force=True),
        lambda w: conflicts_of(w.path("hq"), article="orders").resolve({"qty": "many"}),
    ),
    Case("lock", lambda w: mergerepl.lock(w.path("hq")).__enter__(), lambda w: mergerepl.lock(w.nowhere).__enter__()),
    Case("resolvers", lambda w: mergerepl.resolvers()),
    Case(
        "register_resolver",
        lambda w: mergerepl.register_resolver("of_this_test", lambda rows, _: rows),
        lambda w: mergerepl.register_resolver("of_this_test", 1),  # type: ignore[arg-type]
    ),
]  # fmt: skip

# -- Change Data Capture --------------------------------------------------------------------------------------------


def shop(watch: Watch) -> cdc.Database:
    return cdc.Database(watch.path("shop"), spark=watch.users)


def of_shop(name: str, *arguments: Any, fails: tuple[Any, ...] | None = None, **options: Any) -> Case:
    """Return the case of a method of the database."""

    def method(given: tuple[Any, ...]) -> Call:
        return lambda w: getattr(shop(w), name)(*given, **options)

    return Case(f"Database.{name}", method(arguments), None if fails is None else method(fails))


def of_items(name: str, *arguments: Any, fails: tuple[Any, ...] | None = None, **options: Any) -> Case:
    """Return the case of a method of the instance; `fails` are arguments that it refuses, else there is no instance."""

    def method(instance: str, given: tuple[Any, ...]) -> Call:
        return lambda w: getattr(shop(w).instance(instance), name)(*given, **options)

    failing = method("none", arguments) if fails is None else method("dbo_items", fails)
    return Case(f"Instance.{name}", method("dbo_items", arguments), failing)


def scanned(watch: Watch) -> Any:
    update(watch.path("shop/items"), "id = 1", note="'new'")
    return shop(watch).capture()


def a_unit(watch: Watch) -> None:
    with mergerepl.unit(watch.path("shop"), ["items"]):
        pass


CDC = [
    of_shop("is_enabled"),
    of_shop("enable", "items", key="id", fails=("none",)),
    Case("Database.capture", scanned, lambda w: cdc.Database(w.path("shelf"), spark=w.users).capture()),
    of_shop("instance", "dbo_items"),
    of_shop("max_lsn"),
    of_items("min_lsn"),
    of_items("max_lsn"),
    of_items("ends"),
    of_items("changes", row_filter="all update old"),
    of_items("net_changes", fails=(bytes(10),)),
    Case(
        "Instance.to_debezium",
        lambda w: shop(w).instance("dbo_items").to_debezium(w.made["Instance.changes"]),
        lambda w: shop(w).instance("none").to_debezium(w.made["Instance.changes"]),
    ),
    of_items("snapshot"),
    Case(
        "Instance.load",
        lambda w: shop(w).instance("dbo_items").load(w.path("lake/items"), consumer="lake"),
        lambda w: shop(w).instance("dbo_items").load(w.path("hq/orders"), consumer=""),
    ),
    of_shop("lsn_at", datetime.now(UTC), fails=(datetime.now(UTC), "none")),
    Case("Database.time_of", lambda w: shop(w).time_of(w.made["Database.max_lsn"])),
    Case(
        "Instance.version_of", lambda w: shop(w).instance("dbo_items").version_of(w.made["Database.max_lsn"])
    ),
    of_items("lsn_of", 1),
    of_items("ordinal", "note", fails=("none",)),
    of_items("has_changed", "note", b"\x02"),
    Case("cdc.is_bit_set", lambda w: (cdc.is_bit_set(1, b"\x01"), cdc.is_bit_set(1, F.col("mask")))),
    of_items("columns"),
    of_items("describe"),
    of_items("ddl_history"),
    of_shop("instances"),
    of_shop("is_captured", "items"),
    of_shop("history"),
    of_shop("status"),
    of_shop("vacuum", "items", fails=("none",)),
    Case(
        "Replica.vacuum",
        lambda w: mergerepl.Replica(w.path("shop")).vacuum("items"),
        lambda w: mergerepl.Replica(w.path("shop")).vacuum("none"),
    ),
    of_shop("resume", "dbo_items", fails=("none",)),
    of_shop("relocate"),
    Case("Instance.switch_lsn", None, lambda w: shop(w).instance("dbo_items").switch_lsn("none")),
    of_items("cleanup"),
    of_shop("cleanup"),
    # It makes functions of the session that it is given.
    Case("Database.register_functions", None, lambda w: cdc.Database(w.nowhere).register_functions(w.users)),
    Case("unit", a_unit, lambda w: mergerepl.unit(w.path("shop"), []).__enter__()),
    of_shop("disable", fails=("none",)),
]

# -- Compact change tracking ----------------------------------------------------------------------------------------


def tracked(watch: Watch) -> None:
    watch.made["tracking"] = mergerepl.ChangeTracking(watch.path("shelf"), spark=watch.users)
    watch.tracking.enable("items", key="id")


def row(key: int, note: str) -> list[dict[str, Any]]:
    return [{"id": key, "note": note, "qty": key}]


def transaction(*steps: tuple[str, tuple[Any, ...]]) -> Call:
    """Return a call that opens a transaction and calls its methods; the watch sees it open."""

    def call(watch: Watch) -> Any:
        before, opened = watch.state(), watch.tracking.begin()
        results = []
        for name, arguments in steps:
            results.append(getattr(opened, name)(*arguments))
            assert watch.changes(before) == [], name
        return tuple(results)

    return call


def of_transaction(name: str, *arguments: Any, ends: str = "abort") -> Case:
    return Case(f"Transaction.{name}", transaction((name, arguments), (ends, ())))


def of_tracking(name: str, *arguments: Any, fails: tuple[Any, ...] | None = None, **options: Any) -> Case:
    """Return the case of a method of the tracker."""

    def method(given: tuple[Any, ...]) -> Call:
        return lambda w: getattr(w.tracking, name)(*given, **options)

    return Case(f"ChangeTracking.{name}", method(arguments), None if fails is None else method(fails))


def of_window(name: str, *arguments: Any, fails: tuple[Any, ...] | None = None) -> Case:
    def method(given: tuple[Any, ...]) -> Call:
        return lambda w: getattr(w.made["Consumer.enumerate"], name)(*given)

    return Case(f"Window.{name}", method(arguments), None if fails is None else method(fails))


def printed_inserts(watch: Watch) -> Any:
    consumer = watch.tracking.consumer("printed")
    return consumer.enumerate(enumeration="documented").inserts("items")


TRACKING = [
    Case("ChangeTracking.enable", tracked, lambda w: w.tracking.enable("none", key="id")),
    of_tracking("insert", "items", row(5, "five"), fails=("items", row(5, "again"))),
    of_tracking("upsert", "items", row(6, "six"), fails=("items", [{"none": 1}])),
    of_tracking("update", "items", {"note": "'changed'"}, "id = 1", fails=("items", {"none": "1"})),
    of_tracking("delete", "items", "id = 2", fails=("none", "id = 2")),
    of_transaction("insert", "items", row(10, "a"), ends="commit"),
    Case("Transaction.upsert", transaction(("upsert", ("items", row(10, "b"))), ("read", ("items",)), ("abort", ()))),
    of_transaction("update", "items", {"qty": "qty + 1"}),
    of_transaction("touch", "items", "id = 1"),
    of_transaction("delete", "items", "id = 1"),
    of_transaction("read", "items"),
    Case("Transaction.commit", transaction(("commit", ())), transaction(("abort", ()), ("commit", ()))),
    Case("Transaction.abort", transaction(("abort", ()))),
    Case("Transaction.rollback", transaction(("rollback", ()))),
    of_tracking("begin"),
    of_tracking("transaction"),
    of_tracking("adopt"),
    Case(
        "ChangeTracking.adopt",
        lambda w: (update(w.path("shelf/items"), "id = 3", note="'foreign'"), w.tracking.adopt()),
    ),
    of_tracking("read", "items", fails=("none",)),
    of_tracking("consumer", "copy"),
    Case(
        "Consumer.enumerate",
        lambda w: w.made["ChangeTracking.consumer"].enumerate(),
        lambda w: w.made["ChangeTracking.consumer"].enumerate(["none"]),
    ),
    of_window("inserts", "items", fails=("none",)),
    of_window("updates", "items", fails=("none",)),
    of_window("deletes", "items", fails=("none",)),
    of_window("counts"),
    Case("Window.write_to", lambda w: w.made["Consumer.enumerate"].write_to(w.path("files"))),
    of_window("token"),
    Case("Window.inserts", printed_inserts),
    Case(
        "Consumer.acknowledge",
        lambda w: w.made["ChangeTracking.consumer"].acknowledge(w.made["Consumer.enumerate"]),
        lambda w: w.made["ChangeTracking.consumer"].acknowledge({}),
    ),
    Case("Consumer.received", lambda w: w.made["ChangeTracking.consumer"].received(b"x")),
    of_tracking("consumers"),
    of_tracking("forget", "copy", fails=("none",)),
    of_tracking("tracked_tables"),
    of_tracking("options", "items"),
    of_tracking("last_csn"),
    of_tracking("pack_key", "items", [1], fails=("none", [1])),
    Case(
        "ChangeTracking.unpack_key",
        lambda w: w.tracking.unpack_key("items", w.made["ChangeTracking.pack_key"]),
        lambda w: w.tracking.unpack_key("items", b"no key"),
    ),
    Case("ChangeTracking.sql", lambda w: w.tracking.sql("items")),
    of_tracking("purge", "items", to=1),
    of_tracking("recover"),
    of_tracking("status"),
    of_tracking("transactions"),
    of_tracking("count_transactions"),
    Case("ChangeTracking.abort", None, lambda w: w.tracking.abort(999)),
    of_tracking("disable", "items", keep_columns=True, fails=("none",)),
]  # fmt: skip

# -- transactional ----------------------------------------------------------------------------------------------------

PROCEDURE = "of_the_caller"


def body(call: tr.Call) -> None:
    """Make the agent's session the active one, as code of a user may."""
    first = call.commands.select("c1", "c2").collect()[0]
    call.append(call.commands.sparkSession.createDataFrame([tuple(first)], "id bigint, note string"), "audit")
    call.append(call.net().select("c1"), "net")
    call.default()
    if first["c2"] == "wrong":
        raise ValueError("wrong")


def changed(watch: Watch, note: str) -> None:
    update(watch.path("source/items"), "id = 1", note=f"'{note}'")
    add(watch.path("source/items"), {max(rows_at(watch.path("source/items"))) + 1: (note, 1)})


def distributed(watch: Watch, note: str) -> Any:
    changed(watch, note)
    distributor = tr.Distributor(watch.path("source"), spark=watch.users)
    distributor.capture()
    return distributor.deliver()


def of_distributor(name: str, *arguments: Any) -> Case:
    def call(path: Path, watch: Watch) -> Any:
        return getattr(tr.Distributor(path, spark=watch.users), name)(*arguments)

    return Case(f"Distributor.{name}", lambda w: call(w.path("source"), w), lambda w: call(w.nowhere, w))


def of_subscriber(name: str, **options: int) -> Case:
    def call(path: Path) -> Any:
        return getattr(tr.Subscriber(path), name)("items", **options)

    return Case(f"Subscriber.{name}", lambda w: call(w.path("target")), lambda w: call(w.nowhere))


TRANSACTIONAL = [
    Case(
        "tr.procedure",
        lambda w: tr.procedure(PROCEDURE, operation="insert", call="CALL", columns=["id", "note", "qty"])(
            body
        ),
        lambda w: tr.procedure(PROCEDURE, operation="none"),  # type: ignore[arg-type]
    ),
    Case(
        "Project.apply",
        lambda w: mergerepl.Project.load(w.path("feed.yml")).apply(),
        lambda w: mergerepl.Project.load(w.path("wrong.yml")).apply(),
    ),
    of_distributor("capture"),
    Case(
        "Distributor.deliver",
        lambda w: distributed(w, "new"),
        lambda w: distributed(w, "wrong"),
        (MergeReplError, ValueError),
    ),
    of_distributor("browse"),
    of_distributor("count_commands"),
    of_subscriber("read"),
    of_subscriber("first_rows", limit=3),
    *(of_distributor(name) for name in ("validate", "script", "pending", "history", "errors", "status")),
    of_distributor("warnings", datetime.now(UTC)),
    of_distributor("resume", "items"),
    of_distributor("repair"),
    Case(
        "Project.repair",
        lambda w: Project.load(w.path("source")).repair(),
        lambda w: Project.load(w.nowhere).repair(),
    ),
    Case("Distributor.skip", None, lambda w: tr.Distributor(w.path("source")).skip("0x" + "0" * 20)),
    of_distributor("cleanup"),
    of_distributor("reinit"),
    of_distributor("reinit_articles", "items"),
]

STORIES = {"merge": MERGE, "cdc": CDC, "tracking": TRACKING, "transactional": TRANSACTIONAL}


def public_functions() -> Iterator[str]:
    """Return the public functions of the packages, and the public methods of their classes that work."""
    for prefix, module in (("", mergerepl), ("cdc.", cdc), ("tr.", tr)):
        for name in module.__all__:
            if isinstance(getattr(module, name), FunctionType):
                yield f"{prefix}{name}"
    kinds = (
        *(Project, mergerepl.Replica, mergerepl.Conflicts, mergerepl.ChangeTracking),
        *(Transaction, Consumer, Window, tr.Distributor, tr.Subscriber, cdc.Database, cdc.Instance),
    )
    for kind in kinds:
        for name, member in vars(kind).items():
            if isinstance(member, FunctionType | staticmethod) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}"


def test_every_public_function_has_a_case() -> None:
    """Add a case of a new function to the story of its product."""
    assert {case.name for cases in STORIES.values() for case in cases} == set(public_functions())


@pytest.fixture
def watch(spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    named = SparkSession._activeSession
    watch = Watch(spark, replica_dir)
    # As in a notebook: the process has a session of the user's, and none that was started here.
    monkeypatch.setattr(engine, "_embedded", None)
    rows = {1: ("one", 1), 2: ("two", 2), 3: ("three", 3)}
    for name in ("hq/orders", "shop/items", "shelf/items", "source/items"):
        new_table(replica_dir, name, rows)
    yield watch
    _registered.pop(PROCEDURE, None)
    SparkSession._activeSession = named
    watch.java.setActiveSession(spark._jsparkSession)


def prepare(watch: Watch) -> None:
    """Write the files of the publications."""

    def write(name: str, **stated: Any) -> None:
        watch.path(f"{name}.yml").write_text(
            yaml.safe_dump({"publication": name, **stated}), encoding="utf-8"
        )

    items = {"name": "items", "key": ["id"], "ins_cmd": f"CALL {PROCEDURE}"}
    for name, orders in (("sales", "orders"), ("missing", "none")):
        articles, subscriptions = [{"name": orders, "key": ["id"]}], [{"subscriber": "./north"}]
        write(name, publisher="./hq", articles=articles, subscriptions=subscriptions)
    feed = {"type": "transactional", "publisher": "./source", "subscriptions": [{"subscriber": "./target"}]}
    write("feed", **feed, articles=[items])
    write("wrong", **feed, articles=[items | {"name": "none"}])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("story", STORIES)
def test_no_function_changes_the_callers_session(watch: Watch, story: str) -> None:
    prepare(watch)
    play(watch, STORIES[story])


@pytest.mark.slow
@pytest.mark.spark
def test_writes_after_an_empty_window_are_written(watch: Watch) -> None:
    """What a user writes by the session that `getActiveSession` gives, after a consumer's window without rows."""
    folder, lake, database = watch.path("shop"), watch.path("lake/items"), shop(watch)
    new_table(watch.folder, "shop/others", {1: ("one", 1)})
    for name in ("items", "others"):
        database.enable(name, key="id")
    update(folder / "items", "id = 1", note="'new'")
    database.capture()
    database.instance("dbo_items").load(lake, consumer="lake")
    update(folder / "others", "id = 1", note="'new'")
    database.capture()
    before = watch.state()
    assert database.instance("dbo_items").load(lake, consumer="lake").upserted == 0
    assert watch.changes(before) == []
    active = SparkSession.getActiveSession()
    assert active is watch.users
    for note in ("first", "second"):
        active.sql(f"UPDATE delta.`{lake}` SET note = '{note}' WHERE id = 2")
    for key in (8, 9):
        active.sql(f"SELECT {key}L AS id, 'own' AS note, {key} AS qty").write.format("delta").mode(
            "append"
        ).save(str(lake))
    assert rows_at(lake) == {1: ("new", 1), 2: ("second", 2), 3: ("three", 3), 8: ("own", 8), 9: ("own", 9)}
    assert DeltaTable(str(lake)).history(1)[0].get("userMetadata") is None


@pytest.mark.slow
@pytest.mark.spark
def test_an_interrupt_leaves_the_callers_session(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python, and in a call to the JVM: py4j's next connection has another thread there, without an active session."""
    prepare(watch)
    before = watch.state()

    def sleep(call: tr.Call) -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        call.commands.sparkSession._jvm.java.lang.Thread.sleep(5000)

    tr.procedure(PROCEDURE, operation="insert", call="CALL", columns=["id", "note", "qty"])(sleep)
    mergerepl.Project.load(watch.path("feed.yml")).apply()
    with pytest.raises(KeyboardInterrupt):
        distributed(watch, "new")
    assert watch.changes(before) == []

    def interrupt(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "_act", interrupt)
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "publisher.after_merge=interrupt")
    mergerepl.Project.load(watch.path("sales.yml")).apply()
    conflict(watch)
    with pytest.raises(KeyboardInterrupt):
        mergerepl.Project.load(watch.path("hq")).sync(engine="spark")
    assert watch.changes(before) == []

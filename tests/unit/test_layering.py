"""Who may import whom. The table is the architecture: no phase imports another, `mergerepl` joins them.

    cli, report --> project --> agent --> features --> triggers | enumeration | conflict
                                          |                      |
                                          +-------> base <-------+

In the table `mergerepl.` is left out. Imports inside functions count; those for type checkers only do not.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGES = ("mergerepl", "triggers", "enumeration", "conflict")
PHASES = {"triggers", "enumeration", "conflict"}


def names(text: str) -> set[str]:
    """Return the modules named in a text, where `mergerepl.` is left out."""
    return {name if name in {"mergerepl", *PHASES} else f"mergerepl.{name}" for name in text.split()}


def table(text: str) -> dict[str, set[str]]:
    """Read lines `modules: what they may import`; words in capitals are sets, and `-` takes a module out."""
    found: dict[str, set[str]] = {}
    for line in re.sub(r"#.*", "", text).replace("\n    ", " ").strip().splitlines():
        importers, _, imported = line.partition(":")
        words = imported.split()
        allowed = set().union(
            *(SETS[word] if word.isupper() else names(word) for word in words if word[0] != "-")
        )
        allowed -= names(" ".join(word[1:] for word in words if word[0] == "-"))
        found |= dict.fromkeys(names(importers), allowed)
    return found


BASE = names(
    "changes delta delta.feed errors failpoints filters frames model replica roots rows settings spark "
    "store systables"
)
# What a phase may use beside: it computes columns and text, keeps frames in memory and says what Spark's errors mean.
# A phase runs read-only jobs on frames that it is given; it never writes, opens a table or knows a session.
PURE_ROWS = names(
    "delta.feed.column_changes delta.feed.net_changes delta.feed.schema_walk delta.marks delta.types frames "
    "rows spark.errors spark.expression_cost spark.in_memory"
)
PURE = names("changes errors filters model systables")
FEATURES = names(
    "conflicts merge.apply merge.capture merge.partitions merge.repair merge.resolvers merge.schema "
    "merge.stage monitoring publish publish.snapshot"
)

SETS = {"BASE": BASE, "PHASES": PHASES, "PURE": PURE, "PURE_ROWS": PURE_ROWS, "FEATURES": FEATURES}

# Values that every room knows.
ANYWHERE = {"mergerepl.model.listing", "mergerepl.model.renamed", "mergerepl.store.location"}

MAY_IMPORT = table("""
store.location: errors
# How a change is sent is text, and the project file reads it.
transactional.call_syntax:
# Public names: their functions leave the caller's session as it is.
mergerepl: spark.callers
__main__: cli
errors:
# To let a test end the JVM, too.
failpoints: spark
model: errors
# Rows become tables of the libraries that a notebook has.
model.listing:
model.renamed:
systables: model errors roots
changes: model systables
roots: errors settings
settings: errors
# `store.objects`: whether a bucket is used, and how it is found.
spark: changes errors frames roots settings store.objects
# Columns and frames: it knows types and texts of values, and no rule.
frames: delta.types rows.rowguid
rows: frames delta spark errors model systables
# The one room that opens Delta tables. It knows tables, not replicas.
delta: BASE -delta.feed -replica
# What happened to a table, for every product: it knows neither replicas nor articles.
delta.feed: changes delta frames spark errors rows
# Clauses know no table: text in, trees and columns out.
filters: errors frames model rows.rowguid rows.sql
# Control files of a root: the store lies below the tables.
store: changes errors failpoints model roots settings spark systables
replica: BASE
config: errors filters model roots settings systables transactional.call_syntax
conflict enumeration triggers: PURE PURE_ROWS
# Which rows belong to whom: the tables of partitions and what computes them.
merge.partitions: BASE PHASES
merge.apply: BASE PHASES merge.partitions
# A row that is decided again is checked by the rules of its table, as a staged one.
conflicts: BASE PHASES calls monitoring merge.stage.constraints
# What a sync has still to send is enumerated as a session does it.
monitoring: BASE PHASES merge.partitions merge.stage.article
monitoring.tune: BASE tracking.sweep monitoring
# Publishing initialises new subscribers, rows and metadata, and reports what a leaving one never sent.
publish: BASE PHASES merge.apply config.stated monitoring merge.partitions publish.snapshot
    publish.steps
# The steps of every `apply`, and how a table and its rows are copied and compared: neither knows a publication.
publish.steps: BASE
publish.snapshot: BASE
# Resolvers of one's own: whose functions an agent knows, and how they are called.
merge.resolvers: BASE PHASES
merge.capture: BASE PHASES merge.apply merge.partitions
# A late round begins with a capture.
merge.stage: BASE PHASES merge.apply merge.partitions merge.capture
# A subscriber's tables get the publisher's columns: what was written before each change is captured first. `schema
# alter` asks the replicas in reach.
merge.schema: BASE PHASES merge.apply merge.capture monitoring publish
# Repair compares as `validate`, and writes runs as a capture does.
merge.repair: BASE PHASES merge.apply merge.capture monitoring publish.snapshot
# The agent first finishes decided transactions of a tracked folder: that module of `tracking` alone.
merge.session: BASE FEATURES PHASES tracking.sweep
# A reinitialisation is a session: it captures, stages and carries out as one.
merge.reinit: BASE PHASES merge.repair merge.partitions merge.session merge.stage merge.schema.skip
    merge.schema.waiting monitoring publish.snapshot tracking.sweep
# Other replication products stand on the base alone.
tracking: BASE publish.steps
# What Change Data Capture and transactional replication share; it knows its consumers by their interface alone, and
# loads them by name (`log_reader.PRODUCTS`).
logreader: BASE
cdc: BASE logreader publish.steps
# The agent of the products that have jobs. `session_history`: the rounds in which it had nothing to do.
agents: BASE sessions cdc logreader merge.session.session_history transactional agents.agent_socket
agents.agent_socket: roots settings
# The public object: the folders of a project.
agents.agent: agents dashboard errors model project spark.session
# Commands that are handed over run as from the command line.
agents.client: agents.agent_socket cli.report errors model places roots sessions store
agents.server: agents.agent_socket model spark
# Of publishing, the steps of `apply` and how tables are copied.
transactional: BASE config.stated transactional.call_syntax calls logreader publish.snapshot
    publish.steps
# The public objects of a place: what is there, and one method for each task. `store.storage`: what a bucket has.
places: config errors model roots settings store.storage
calls: errors spark.callers store
sessions: BASE FEATURES calls merge.session places transactional
# One module for each product: its tasks in the form of all.
products: BASE FEATURES merge.reinit calls cdc logreader merge.session monitoring.doctor places sessions
    tracking transactional
replicas: BASE FEATURES calls monitoring.tune places products sessions
project: BASE FEATURES calls dashboard monitoring.doctor config new_project places products replicas
    sessions
# A page of a snapshot: it knows values, and writes a file.
dashboard: errors model store
# A new project file is checked by the products' own checks of a table.
new_project: BASE cdc config publish tracking transactional
monitoring.doctor: BASE spark monitoring.capture_lag monitoring.cost monitoring.waiting
cli.demo: BASE mergerepl cli
cli.report: errors model roots
# `tracking.windows`: the file of a window, which names its consumer.
cli: mergerepl cdc tracking.windows places project replicas store.rehearsal config dashboard spark.session
    errors agents agents.agent agents.client agents.server model cli.report roots rows.arrow_values settings
    transactional
""")

SPARK = {"pyspark", "delta", "py4j"}
DATA = {*SPARK, "deltalake", "pyarrow", "pandas", "numpy", "obstore"}
FOR_PEOPLE = {"click", "rich"}
MUST_NOT_IMPORT: dict[str, set[str]] = {
    "mergerepl": DATA | FOR_PEOPLE,
    "mergerepl.errors": DATA | FOR_PEOPLE,
    "mergerepl.model": DATA | FOR_PEOPLE,
    "mergerepl.model.listing": SPARK | FOR_PEOPLE,
    "mergerepl.roots": DATA | FOR_PEOPLE,
    "mergerepl.settings": DATA | FOR_PEOPLE,
    "mergerepl.config": DATA | FOR_PEOPLE,
    "mergerepl.systables": (DATA - {"pyspark"}) | FOR_PEOPLE,
    "mergerepl.cli": DATA | {"rich"},
    "mergerepl.cli.report": DATA | {"click"},
    **dict.fromkeys(PHASES, (DATA - {"pyspark"}) | FOR_PEOPLE),
    **dict.fromkeys(
        FEATURES
        | names("cdc delta delta.feed frames logreader merge.session rows store tracking transactional"),
        FOR_PEOPLE,
    ),
}


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def unit(module: str) -> str:
    """Return the row of the table that a module belongs to: the longest that fits."""
    while module not in MAY_IMPORT and module.count("."):
        module = module.rpartition(".")[0]
    return module


@cache
def files() -> dict[str, Path]:
    found = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(file): file for file in found}


@cache
def modules() -> dict[str, ast.Module]:
    """Return the parsed modules: not while tests are collected, which every worker does."""
    return {
        module: ast.parse(file.read_text(encoding="utf-8"), str(file)) for module, file in files().items()
    }


@cache
def nodes() -> dict[str, tuple[ast.AST, ...]]:
    """Return all nodes of each module: walking takes longer than looking at them."""
    return {module: tuple(ast.walk(tree)) for module, tree in modules().items()}


def statements(tree: ast.AST, *, in_functions: bool) -> Iterator[ast.AST]:
    """Yield the nodes that run: not what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not in_functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from statements(node, in_functions=in_functions)


@cache
def imports(module: str, *, in_functions: bool = True) -> set[str]:
    """Return the modules that a module imports: own ones by module, others by package."""
    found = set()
    for node in statements(modules()[module], in_functions=in_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {_own_module(name) for name in found}


def _own_module(name: str) -> str:
    """Return the module that `from package import name` loads, or the package of others."""
    if name.split(".")[0] not in PACKAGES:
        return name.split(".")[0]
    while name not in modules() and "." in name:
        name = name.rpartition(".")[0]
    return name


def test_imports_only_what_the_table_allows():
    # One test of all: as a test each they took longer to begin and end than to run.
    homes = {module: unit(module) for module in files()}
    assert set(homes.values()) <= set(MAY_IMPORT), "a unit is new: say in MAY_IMPORT what it may import"
    wrong = {
        (module, name)
        for module, home in homes.items()
        for name in imports(module)
        if name.split(".")[0] in PACKAGES
        and unit(name) != home
        and not {name, unit(name)} & (MAY_IMPORT[home] | ANYWHERE)
    }
    assert wrong == set(), "a unit imports what MAY_IMPORT does not allow"


def test_imports_no_library_of_another_layer():
    wrong = {
        (module, name)
        for module in files()
        for name in imports(module) & MUST_NOT_IMPORT.get(unit(module), set())
    }
    assert wrong == set()


def test_the_table_has_no_cycle():
    graph = nx.DiGraph(
        (importer, unit(name))
        for importer, names in MAY_IMPORT.items()
        for name in names
        if unit(name) != importer
    )
    # A package inside another may use the modules of the outer one, and the outer one calls it.
    graph.remove_edge("mergerepl.cli.demo", "mergerepl.cli")
    # `BASE` is written once for all of the base layer: only what is really imported counts inside it.
    inside_base = [(one, other) for one, other in graph.edges if {one, other} <= BASE]
    graph.remove_edges_from(inside_base)
    assert list(nx.simple_cycles(graph)) == []


def test_modules_have_no_cycle_when_they_are_loaded():
    graph = nx.DiGraph(
        (module, name)
        for module in modules()
        for name in imports(module, in_functions=False)
        if name in modules() and name != module
    )
    assert list(nx.simple_cycles(graph)) == []


def test_only_settings_and_the_engine_read_the_environment():
    # engine/session.py hands pyspark its gateway through the environment; pyspark takes it from nowhere else.
    readers = {
        unit(module)
        for module, parts in nodes().items()
        for node in parts
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers <= {"mergerepl.settings", "mergerepl.spark", "mergerepl.failpoints"}


def test_inv_40_no_phase_reads_a_clock():
    # What is captured, sent and decided depends on generations and versions alone.
    functions = ("now", "today", "current_date", "current_timestamp", "localtimestamp", "unix_timestamp")
    readers = {
        f"{module}: {name}"
        for module, parts in nodes().items()
        if module.partition(".")[0] in ("triggers", "enumeration", "conflict")
        for node in parts
        for name in [getattr(node, "attr", getattr(node, "module", None))]
        if name in (*functions, "datetime", "time")
    }
    assert readers == set()


def test_only_spark_makes_a_session():
    # One made elsewhere would have a default of the JVM that passes over files it cannot read.
    makers = {
        unit(module)
        for module, parts in nodes().items()
        for node in parts
        if isinstance(node, ast.Attribute) and node.attr in ("newSession", "builder")
    }
    assert makers == {"mergerepl.spark"}


def test_library_code_does_not_print():
    prints = [
        f"{module}:{node.lineno}"
        for module, parts in nodes().items()
        for node in parts
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


FILE_CALLS = {
    *("access", "copyfile", "copytree", "exists", "glob", "is_dir", "is_file", "is_symlink", "isdir"),
    *("islink", "iterdir", "lexists", "link", "listdir", "lstat", "makedirs", "mkdir", "open"),
    *("read_bytes", "read_text", "realpath", "rename", "rglob", "rmdir", "rmtree", "samefile", "scandir"),
    *("stat", "symlink", "symlink_to", "touch", "unlink", "walk", "write_bytes", "write_text"),
}
"""Functions of os, os.path, shutil and Path that ask or change a file system."""

FILE_ROOMS = {"mergerepl.store"}
NO_REPLICA_FILES = names(
    "agents agents.agent_socket agents.server cli cli.demo config conflicts.export conflicts.selection "
    "failpoints merge.resolvers.functions monitoring.doctor new_project places roots sessions spark"
)
"""Modules for files of this machine: the file of a publication or an agent, scratch folders, JARs, where a root leads."""


def test_files_of_replicas_are_touched_in_the_store_only():
    # Object stores need put-if-absent, list and delete in one place: no other room may call a file system.
    found = {
        module
        for module, parts in nodes().items()
        if not {module, unit(module)} & (FILE_ROOMS | NO_REPLICA_FILES) and any(map(_touches_files, parts))
    }
    assert found == set()


def _touches_files(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    name = getattr(node.func, "attr", None)
    # `control.exists(table)` asks the control plane; `F.exists` is a function of columns.
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    is_ours = owner in ("F", "self") or owner.endswith("control") or owner.startswith("storage(")
    return name in FILE_CALLS and not is_ours


# Beside `delta.tables`: values and pure helpers, the rows of Arrow, and the rooms of one task each.
DELTA_VALUES = {
    *("mergerepl.delta.marks", "mergerepl.delta.metadata", "mergerepl.delta.types"),
    "mergerepl.delta.sql_text",
    *("mergerepl.delta.batch_end", "mergerepl.delta.footers", "mergerepl.delta.parquet_files"),
}
DELTA_TASKS = {
    # Rows of few changes, and the MERGE of delta-rs.
    *("mergerepl.delta.commit_files", "mergerepl.delta.small_writer", "mergerepl.delta.update_keys"),
    "mergerepl.delta.differing_rows",
    "mergerepl.delta.engine_choice",
    # Tables of ours that runs are appended to.
    "mergerepl.delta.appended",
    # What `apply`, `tune`, `doctor` and snapshots do to a table.
    *("mergerepl.delta.properties", "mergerepl.delta.layout", "mergerepl.delta.file_faults"),
    "mergerepl.delta.vacuum",
    "mergerepl.delta.copy_files",
    # What `apply` and `doctor` try before a store is used.
    "mergerepl.delta.store_proof",
}
# The answer that nothing happened loads no library.
READS_HEADS_ALONE = {"mergerepl.monitoring.quiet"}


def test_other_rooms_use_tables_through_one_module():
    inside = ("mergerepl.delta.feed", "mergerepl.delta.contract")
    wrong = {
        f"{module}: {name}"
        for module in modules()
        if not module.startswith("mergerepl.delta.") and module not in READS_HEADS_ALONE
        for name in imports(module)
        if name.startswith("mergerepl.delta.")
        and not name.startswith(inside)
        and name not in {"mergerepl.delta.tables", *DELTA_VALUES, *DELTA_TASKS}
    }
    assert wrong == set()


def test_only_the_room_delta_opens_or_writes_a_delta_table():
    # The demo plays users, who write their tables with libraries.
    openers = {
        module
        for module, parts in nodes().items()
        if unit(module) not in {"mergerepl.delta", "mergerepl.delta.feed", "mergerepl.cli.demo"}
        and any(map(_opens_a_table, parts))
    }
    assert openers == set()


OPENERS = {"DeltaTable", "write_deltalake", "QueryBuilder", "forPath", "convert_to_deltalake"}


def _opens_a_table(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in ("deltalake", "delta") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in OPENERS for alias in node.names)
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    is_format = name == "format" and any(
        isinstance(arg, ast.Constant) and arg.value == "delta" for arg in node.args
    )
    return is_format or name in OPENERS


def test_one_module_knows_the_parser_of_clauses():
    readers = {module for module in modules() if "sqlglot" in imports(module)}
    assert readers == {"mergerepl.filters.parse"}
    assert "sqlglot" not in imports("mergerepl.filters.parse", in_functions=False)

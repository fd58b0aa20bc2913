"""Who may import whom. The table is the architecture: no phase imports another, `mergerepl` joins them.

    cli, report --> project --> agent --> features --> triggers | enumeration | conflict
                                          |                      |
                                          +-------> base <-------+

Imports inside functions count; those for type checkers only do not.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGES = ("mergerepl", "triggers", "enumeration", "conflict")
PHASES = {"triggers", "enumeration", "conflict"}

BASE = {
    "mergerepl.changes",
    "mergerepl.delta",
    "mergerepl.spark",
    "mergerepl.errors",
    "mergerepl.failpoints",
    "mergerepl.delta.feed",
    "mergerepl.filters",
    "mergerepl.frames",
    "mergerepl.model",
    "mergerepl.roots",
    "mergerepl.rows",
    "mergerepl.settings",
    "mergerepl.replica",
    "mergerepl.store",
    "mergerepl.systables",
}
# What a phase may use beside: it computes columns and text, keeps frames in memory and says what Spark's errors mean.
# A phase runs read-only jobs on frames that it is given; it never writes, opens a table or knows a session.
PURE_ROWS = {
    "mergerepl.frames",
    "mergerepl.delta.marks",
    "mergerepl.delta.types",
    "mergerepl.spark.errors",
    "mergerepl.spark.in_memory",
    "mergerepl.spark.expression_cost",
    "mergerepl.delta.feed.column_changes",
    "mergerepl.delta.feed.net_changes",
    "mergerepl.delta.feed.schema_walk",
    "mergerepl.rows",
}
PURE = {
    "mergerepl.changes",
    "mergerepl.errors",
    "mergerepl.filters",
    "mergerepl.model",
    "mergerepl.systables",
}
FEATURES = {
    "mergerepl.merge.apply",
    "mergerepl.conflicts",
    "mergerepl.monitoring",
    "mergerepl.merge.partitions",
    "mergerepl.publish",
    "mergerepl.merge.resolvers",
    "mergerepl.publish.snapshot",
    "mergerepl.merge.stage",
    "mergerepl.merge.capture",
    "mergerepl.merge.repair",
    "mergerepl.merge.schema",
}

# Values that every room knows.
ANYWHERE = {"mergerepl.model.listing", "mergerepl.model.renamed", "mergerepl.store.location"}

MAY_IMPORT: dict[str, set[str]] = {
    "mergerepl.store.location": {"mergerepl.errors"},
    # How a change is sent is text, and the project file reads it.
    "mergerepl.transactional.call_syntax": set(),
    # Public names: their functions leave the caller's session as it is.
    "mergerepl": {"mergerepl.spark.callers"},
    "mergerepl.__main__": {"mergerepl.cli"},
    "mergerepl.errors": set(),
    # To let a test end the JVM, too.
    "mergerepl.failpoints": {"mergerepl.spark"},
    "mergerepl.model": {"mergerepl.errors"},
    # Rows become tables of the libraries that a notebook has.
    "mergerepl.model.listing": set(),
    "mergerepl.model.renamed": set(),
    "mergerepl.systables": {"mergerepl.model", "mergerepl.errors", "mergerepl.roots"},
    "mergerepl.changes": {"mergerepl.model", "mergerepl.systables"},
    "mergerepl.roots": {"mergerepl.errors", "mergerepl.settings"},
    "mergerepl.settings": {"mergerepl.errors"},
    # Of the model, the public names that are gone.
    "mergerepl.spark": {
        "mergerepl.changes",
        "mergerepl.errors",
        "mergerepl.frames",
        "mergerepl.roots",
        "mergerepl.settings",
        # Whether a bucket is used, and how it is found.
        "mergerepl.store.objects",
    },
    # Columns and frames: it knows types and texts of values, and no rule.
    "mergerepl.frames": {"mergerepl.delta.types", "mergerepl.rows.rowguid"},
    "mergerepl.rows": {
        "mergerepl.frames",
        "mergerepl.delta",
        "mergerepl.spark",
        "mergerepl.errors",
        "mergerepl.model",
        "mergerepl.systables",
    },
    # The one room that opens Delta tables. It knows tables, not replicas.
    "mergerepl.delta": BASE - {"mergerepl.delta.feed", "mergerepl.replica"},
    # What happened to a table, for every product: it knows neither replicas nor articles.
    "mergerepl.delta.feed": {
        "mergerepl.changes",
        "mergerepl.delta",
        "mergerepl.frames",
        "mergerepl.spark",
        "mergerepl.errors",
        "mergerepl.rows",
    },
    # Clauses know no table: text in, trees and columns out.
    "mergerepl.filters": {
        "mergerepl.errors",
        "mergerepl.frames",
        "mergerepl.model",
        "mergerepl.rows.rowguid",
        "mergerepl.rows.sql",
    },
    # Control files of a root: the store lies below the tables.
    "mergerepl.store": {
        "mergerepl.changes",
        "mergerepl.errors",
        "mergerepl.failpoints",
        "mergerepl.model",
        "mergerepl.roots",
        "mergerepl.settings",
        "mergerepl.spark",
        "mergerepl.systables",
    },
    "mergerepl.replica": BASE,
    "mergerepl.config": {
        "mergerepl.errors",
        "mergerepl.filters",
        "mergerepl.model",
        "mergerepl.roots",
        "mergerepl.settings",
        "mergerepl.systables",
        "mergerepl.transactional.call_syntax",
    },
    **dict.fromkeys(PHASES, PURE | PURE_ROWS),
    # Which rows belong to whom: the tables of partitions and what computes them.
    "mergerepl.merge.partitions": BASE | PHASES,
    "mergerepl.merge.apply": BASE | PHASES | {"mergerepl.merge.partitions"},
    # A row that is decided again is checked by the rules of its table, as a staged one.
    "mergerepl.conflicts": BASE
    | PHASES
    | {"mergerepl.calls", "mergerepl.monitoring", "mergerepl.merge.stage.constraints"},
    # What a sync has still to send is enumerated as a session does it.
    "mergerepl.monitoring": BASE | PHASES | {"mergerepl.merge.partitions", "mergerepl.merge.stage.article"},
    "mergerepl.monitoring.tune": BASE | {"mergerepl.tracking.sweep", "mergerepl.monitoring"},
    # Publishing initialises new subscribers, rows and metadata, and reports what a leaving one never sent.
    "mergerepl.publish": BASE
    | PHASES
    | {
        "mergerepl.merge.apply",
        "mergerepl.config.stated",
        "mergerepl.monitoring",
        "mergerepl.merge.partitions",
        "mergerepl.publish.snapshot",
        "mergerepl.publish.steps",
    },
    # The steps of every `apply`, and how a table and its rows are copied and compared: neither knows a publication.
    "mergerepl.publish.steps": BASE,
    "mergerepl.publish.snapshot": BASE,
    # Resolvers of one's own: whose functions an agent knows, and how they are called.
    "mergerepl.merge.resolvers": BASE | PHASES,
    "mergerepl.merge.capture": BASE | PHASES | {"mergerepl.merge.apply", "mergerepl.merge.partitions"},
    # A late round begins with a capture.
    "mergerepl.merge.stage": BASE
    | PHASES
    | {"mergerepl.merge.apply", "mergerepl.merge.partitions", "mergerepl.merge.capture"},
    # A subscriber's tables get the publisher's columns: what was written before each change is captured first. `schema
    # alter` asks the replicas in reach.
    "mergerepl.merge.schema": BASE
    | PHASES
    | {"mergerepl.merge.apply", "mergerepl.merge.capture", "mergerepl.monitoring", "mergerepl.publish"},
    # Repair compares as `validate`, and writes runs as a capture does.
    "mergerepl.merge.repair": BASE
    | PHASES
    | {
        "mergerepl.conflicts.decide_again",
        "mergerepl.merge.apply",
        "mergerepl.merge.capture",
        "mergerepl.merge.partitions",
        "mergerepl.monitoring",
        "mergerepl.publish.snapshot",
    },
    # The agent first finishes decided transactions of a tracked folder: that module of `tracking` alone.
    "mergerepl.merge.session": BASE | PHASES | FEATURES | {"mergerepl.tracking.sweep"},
    # A reinitialisation is a session: it captures, stages and carries out as one.
    "mergerepl.merge.reinit": BASE
    | PHASES
    | {
        "mergerepl.merge.repair",
        "mergerepl.merge.partitions",
        "mergerepl.merge.session",
        "mergerepl.merge.stage",
        "mergerepl.merge.schema.skip",
        "mergerepl.merge.schema.waiting",
        "mergerepl.monitoring",
        "mergerepl.publish",
        "mergerepl.publish.snapshot",
        "mergerepl.tracking.sweep",
    },
    # Other replication products stand on the base alone.
    "mergerepl.tracking": BASE | {"mergerepl.publish.steps"},
    # What Change Data Capture and transactional replication share; it knows its consumers by their interface alone, and
    # loads them by name (`log_reader.PRODUCTS`).
    "mergerepl.logreader": BASE,
    "mergerepl.cdc": BASE | {"mergerepl.logreader", "mergerepl.publish.steps"},
    # The agent of the products that have jobs.
    "mergerepl.agents": BASE
    | {
        "mergerepl.sessions",
        "mergerepl.cdc",
        "mergerepl.logreader",
        # The rounds in which it had nothing to do.
        "mergerepl.merge.session.session_history",
        "mergerepl.transactional",
        "mergerepl.agents.agent_socket",
    },
    "mergerepl.agents.agent_socket": {"mergerepl.roots", "mergerepl.settings"},
    # The public object: the folders of a project.
    "mergerepl.agents.agent": {
        "mergerepl.agents",
        "mergerepl.dashboard",
        "mergerepl.errors",
        "mergerepl.model",
        "mergerepl.project",
        "mergerepl.roots",
        "mergerepl.spark.session",
    },
    # Commands that are handed over run as from the command line.
    "mergerepl.agents.client": {
        "mergerepl.agents",
        "mergerepl.agents.agent_socket",
        "mergerepl.cli.report",
        "mergerepl.errors",
        "mergerepl.model",
        "mergerepl.places",
        "mergerepl.roots",
        "mergerepl.sessions",
        "mergerepl.store",
    },
    "mergerepl.agents.server": {
        "mergerepl.agents",
        "mergerepl.agents.agent_socket",
        "mergerepl.model",
        "mergerepl.spark",
    },
    # Of publishing, the steps of `apply` and how tables are copied.
    "mergerepl.transactional": BASE
    | {
        "mergerepl.config.stated",
        "mergerepl.transactional.call_syntax",
        "mergerepl.calls",
        "mergerepl.logreader",
        "mergerepl.publish.snapshot",
        "mergerepl.publish.steps",
    },
    # The public objects of a place: what is there, and one method for each task.
    "mergerepl.places": {
        "mergerepl.config",
        "mergerepl.errors",
        "mergerepl.model",
        "mergerepl.roots",
        "mergerepl.settings",
        # What a bucket has is a listing.
        "mergerepl.store.storage",
    },
    "mergerepl.calls": {"mergerepl.errors", "mergerepl.spark.callers", "mergerepl.store"},
    "mergerepl.sessions": BASE
    | FEATURES
    | {"mergerepl.calls", "mergerepl.merge.session", "mergerepl.places", "mergerepl.transactional"},
    # One module for each product: its tasks in the form of all.
    "mergerepl.products": BASE
    | FEATURES
    | {
        "mergerepl.merge.reinit",
        "mergerepl.calls",
        "mergerepl.cdc",
        "mergerepl.logreader",
        "mergerepl.merge.session",
        "mergerepl.monitoring.doctor",
        "mergerepl.places",
        "mergerepl.sessions",
        "mergerepl.tracking",
        "mergerepl.transactional",
    },
    "mergerepl.replicas": BASE
    | FEATURES
    | {
        "mergerepl.calls",
        "mergerepl.monitoring.tune",
        "mergerepl.places",
        "mergerepl.products",
        "mergerepl.sessions",
    },
    "mergerepl.project": BASE
    | FEATURES
    | {
        "mergerepl.agents.agent_socket",
        "mergerepl.calls",
        "mergerepl.cdc",
        "mergerepl.dashboard",
        "mergerepl.monitoring.doctor",
        "mergerepl.tracking",
        "mergerepl.config",
        "mergerepl.merge.session",
        "mergerepl.new_project",
        "mergerepl.places",
        "mergerepl.products",
        "mergerepl.replicas",
        "mergerepl.sessions",
        "mergerepl.transactional",
    },
    # A page of a snapshot: it knows values, and writes a file.
    "mergerepl.dashboard": {"mergerepl.errors", "mergerepl.model", "mergerepl.store"},
    # A new project file is checked by the products' own checks of a table.
    "mergerepl.new_project": BASE
    | {
        "mergerepl.cdc",
        "mergerepl.config",
        "mergerepl.publish",
        "mergerepl.tracking",
        "mergerepl.transactional",
    },
    "mergerepl.monitoring.doctor": BASE
    | {
        "mergerepl.spark",
        "mergerepl.monitoring.capture_lag",
        "mergerepl.monitoring.cost",
        "mergerepl.monitoring.waiting",
    },
    "mergerepl.cli.demo": BASE | {"mergerepl", "mergerepl.cli", "mergerepl.cli.report", "mergerepl.config"},
    "mergerepl.cli.report": {
        "mergerepl.errors",
        "mergerepl.model",
        "mergerepl.monitoring.doctor",
        "mergerepl.roots",
    },
    "mergerepl.cli": {
        "mergerepl",
        "mergerepl.cdc",
        # The file of a window, which names its consumer.
        "mergerepl.tracking.windows",
        "mergerepl.conflicts",
        "mergerepl.merge.resolvers.functions",
        "mergerepl.places",
        "mergerepl.project",
        "mergerepl.replicas",
        "mergerepl.sessions",
        "mergerepl.store.rehearsal",
        "mergerepl.config",
        "mergerepl.dashboard",
        "mergerepl.cli.demo",
        "mergerepl.monitoring.doctor",
        "mergerepl.spark.session",
        "mergerepl.errors",
        "mergerepl.agents",
        "mergerepl.agents.agent",
        "mergerepl.agents.client",
        "mergerepl.agents.server",
        "mergerepl.model",
        "mergerepl.cli.report",
        "mergerepl.roots",
        "mergerepl.rows.arrow_values",
        "mergerepl.settings",
        "mergerepl.agents.agent_socket",
        "mergerepl.transactional",
    },
}

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
        | {
            "mergerepl.merge.session",
            "mergerepl.cdc",
            "mergerepl.tracking",
            "mergerepl.delta",
            "mergerepl.delta.feed",
            "mergerepl.frames",
            "mergerepl.logreader",
            "mergerepl.rows",
            "mergerepl.store",
            "mergerepl.transactional",
        },
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
    *("exists", "glob", "is_dir", "is_file", "is_symlink", "iterdir", "lstat", "mkdir", "open", "read_bytes"),
    *("read_text", "rename", "rglob", "rmdir", "rmtree", "samefile", "stat", "symlink_to", "touch", "unlink"),
    *(
        "write_bytes",
        "write_text",
        "access",
        "lexists",
        "listdir",
        "realpath",
        "scandir",
        "copytree",
        "copyfile",
        "isdir",
        "islink",
        "link",
        "symlink",
        "walk",
        "makedirs",
    ),
}
"""Functions of os, os.path, shutil and Path that ask or change a file system."""

FILE_ROOMS = {"mergerepl.store"}
NO_REPLICA_FILES = {
    *("mergerepl.agents", "mergerepl.agents.agent_socket", "mergerepl.agents.server"),
    *(
        "mergerepl.cli",
        "mergerepl.config",
        "mergerepl.cli.demo",
        "mergerepl.monitoring.doctor",
        "mergerepl.spark",
    ),
    *(
        "mergerepl.failpoints",
        "mergerepl.roots",
        "mergerepl.new_project",
        "mergerepl.places",
        "mergerepl.sessions",
    ),
    *("mergerepl.conflicts.export", "mergerepl.conflicts.selection", "mergerepl.merge.resolvers.functions"),
}
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

"""`init`: the project file that is written for folders of tables. All but one test start no engine."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.cli.main import main
from mergerepl.config.project_file import load_documents
from mergerepl.config.schema import json_schema
from mergerepl.config.strict_yaml import Document, parse
from mergerepl.errors import ConfigurationError
from mergerepl.project import Project
from mergerepl.spark import session as engine
from tests.faults.deaths import small_disk

GUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
TABLES: dict[str, dict[str, list[object]]] = {
    "orders": {"order_id": [1, 2], "note": ["a", "b"]},
    "customers": {"id": [1, 2], "customer_id": [1, 1]},
    "bronze/categories": {"id": [1, None], "Category_ID": [1, 2]},
    "bronze/orders": {"orders_id": [1]},
    "notes": {"rowguid": [GUID], "note": ["a"]},
    "lines": {"id": [1, 1], "qty": [1, 2]},
    "heap": {"x": [1]},
    "floats": {"id": [0.5]},
    "_staging/hidden": {"id": [1]},
}


@pytest.fixture
def hq(tmp_path: Path) -> Path:
    for name, columns in TABLES.items():
        write_deltalake(str(tmp_path / "hq" / name), pa.table(columns))
    (tmp_path / "hq" / "empty").mkdir()
    return tmp_path / "hq"


MERGE = """\
# Written by `mergerepl init`. Look with `mergerepl apply --dry-run`, then run `mergerepl apply`.
publication: hq
publisher: ./hq
articles:
  - {name: customers, key: [id]}
  # floats: Article 'floats' cannot be published: its key column 'id' is double, whose values have no one exact form to \
compare by. Use a key of integers, strings, dates, timestamps, decimals, booleans or binaries.
  #   columns: id
  # heap: no key was found (no column is named like one); state `key: [COLUMN, ...]`
  #   columns: x
  # lines: no key was found (id has NULLs or duplicates); state `key: [COLUMN, ...]`
  #   columns: id, qty
  - {name: notes, rowguid: rowguid}
  - {name: orders, key: [order_id]}
  - {name: categories, table: bronze/categories, key: [Category_ID]}
  - {name: bronze_orders, table: bronze/orders, key: [orders_id]}
subscriptions:
  - {subscriber: ./north}
  - {subscriber: ./south, sync_type: none}
"""


def test_a_merge_publication_is_written(hq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = engine.jvm_pid()
    monkeypatch.chdir(hq.parent)
    write_deltalake("south/customers", pa.table(TABLES["customers"]))
    planned = Project.init("hq", "north", "south", dry_run=True)
    assert not Path("mergerepl.yml").exists()
    done = Project.init("hq", "north", "south")
    assert done.text == planned.text == Path("mergerepl.yml").read_text() == MERGE
    assert len(load_documents("mergerepl.yml")) == 1
    assert len([each for each in done.tables if each.reason is None]) == 5
    with pytest.raises(ConfigurationError, match="is not overwritten") as raised:
        Project.init("hq", dry_run=True)
    assert raised.value.exit_code == 2
    assert engine.jvm_pid() == before


@pytest.mark.parametrize("type_", ["transactional", "cdc", "tracking"])
def test_the_other_types_are_written(hq: Path, type_: str) -> None:
    file = hq.parent / "conf" / "p.yml"
    file.parent.mkdir()
    done = Project.init(hq, type=type_, output=file)
    assert len(load_documents(file)) == 1
    assert "../hq" in done.text
    tables = {each.table for each in done.tables if each.reason is None}
    assert {"orders", "customers"} <= tables
    assert ("heap" in tables) == (type_ == "cdc"), "a captured table needs no key"


def test_the_command_writes_shows_and_refuses(hq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hq.parent)

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["init", *words])

    shown = run("hq", "--type", "cdc", "-o", "-")
    assert shown.stdout == "# Written" + shown.stdout.partition("# Written")[2]
    assert [type(each) for each in parse(shown.stdout, name="shown")] == [Document]
    assert "would state 5 tables" in run("hq", "north", "--dry-run").stdout
    with small_disk(10):
        assert "cannot be written: File too large" in run("hq", "north").stderr
    assert not (hq.parent / "mergerepl.yml").exists()
    written = run("hq", "north")
    assert (written.exit_code, "Next: `mergerepl apply --dry-run`." in written.stdout) == (0, True)
    assert run("hq", "north").exit_code == 2
    assert json.loads(run("--print-schema").stdout) == json_schema()


def test_apply_asks_before_rows_go(hq: Path) -> None:
    cdc.Database(hq).enable("heap")
    (hq.parent / "p.yml").write_text("type: cdc\nroot: ./hq\ntables: []\n")

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["apply", "-f", str(hq.parent / "p.yml"), *words])

    asked = run()
    assert (asked.exit_code, "(disable dbo_heap)?" in asked.stderr) == (2, True)
    assert [run("--dry-run").exit_code, len(cdc.Database(hq).instances())] == [0, 1]
    assert [run("--yes").exit_code, len(cdc.Database(hq).instances())] == [0, 0]
    assert run().exit_code == 0


def test_what_is_captured_already_is_stated_as_it_is(hq: Path, tmp_path: Path) -> None:
    cdc.Database(hq).enable("heap", name="first")
    done = Project.init(hq, type="cdc", output=tmp_path / "p.yml")
    assert "  - {table: heap, name: first}\n" in done.text


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it holds no Delta table"):
        Project.init(tmp_path, output=tmp_path / "p.yml")
    with pytest.raises(ConfigurationError, match="did you mean `merge`"):
        Project.init(tmp_path, type="merg", output=tmp_path / "p.yml")


def test_odd_names_are_quoted(tmp_path: Path) -> None:
    root = tmp_path / "a ${b} [1]"
    for folder in ("yes", "it's", "2026", "a, b"):
        write_deltalake(str(tmp_path / "null" / folder), pa.table({"id": [1]}))
    done = Project.init(tmp_path / "null", output=tmp_path / "p.yml", type="merge")
    assert 'publication: "null"' in done.text
    (publication,) = load_documents(tmp_path / "p.yml")
    assert [each.name for each in publication.articles] == ["2026", "yes"]
    with pytest.raises(ConfigurationError):
        Project.init(root, output=tmp_path / "q.yml")


@pytest.mark.spark
@pytest.mark.parametrize(
    "type_",
    ["merge", "cdc", *(pytest.param(e, marks=pytest.mark.slow) for e in ("transactional", "tracking"))],
)
def test_the_file_passes_a_dry_run(spark: SparkSession, hq: Path, type_: str) -> None:
    file = hq.parent / "mergerepl.yml"
    names = (hq,) if type_ in ("cdc", "tracking") else (hq, hq.parent / "north")
    Project.init(*names, type=type_, output=file)
    assert Project.load(file).apply(dry_run=True).steps

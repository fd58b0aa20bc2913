"""A folder that publishes twice, is captured and tracked: one call shows, captures and synchronises all of it."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.cli.main import main
from mergerepl.errors import ConfigurationError
from tests.commands_of_docs import run_command

FILE = """
publication: sales
publisher: ./hq
articles: [{name: orders, key: [id]}]
subscriptions: [{subscriber: ./north}]
---
publication: feed
type: transactional
publisher: ./hq
articles: [{name: items, key: [id]}]
subscriptions: [{subscriber: ./target, name: branch}]
---
type: cdc
root: ./hq
tables: [{table: orders, key: [id]}]
---
type: tracking
root: ./hq
tables: [{table: shelf, key: [id]}]
"""


@pytest.mark.slow
@pytest.mark.spark
def test_one_call_shows_all_products_of_a_folder(spark: SparkSession, replica_dir: Path) -> None:
    for name in ("orders", "items", "shelf"):
        rows = pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"]})
        write_deltalake(str(replica_dir / "hq" / name), rows)
    (replica_dir / "mergerepl.yml").write_text(FILE)
    project = Project.load(replica_dir / "mergerepl.yml")
    project.apply()
    for name in ("orders", "items"):
        DeltaTable(str(replica_dir / "hq" / name)).update(predicate="id = 1", updates={"note": "'x'"})
    everything = ["merge", "transactional", "cdc", "tracking"]
    assert [each.type for each in project.status()] == everything
    assert [(each.type, each.changes) for each in project.capture()] == [("merge", 1), ("transactional", 3)]
    waiting = [(each.type, each.changes) for each in project.pending() if not each.is_empty]
    assert waiting == [("merge", 1), ("transactional", 1)]
    assert [each.status for each in project.sync().sessions] == ["succeeded", "succeeded"]
    assert {each.kind for each in project.history()} == {"session", "batch", "scan"}
    assert [each.kind for each in project.history("branch")] == ["batch"]
    assert [each.role for each in project.status("branch", "north")] == ["subscriber", "subscriber"]
    assert project.validate().ok
    shown = CliRunner().invoke(main, ["capture", "-f", str(replica_dir / "hq"), "--quiet"])
    assert shown.exit_code == 0, "one log serves commands and changes, and merge has its own"
    assert "orders" in shown.stdout
    assert project.cleanup(dry_run=True).ok
    with pytest.raises(ConfigurationError, match="hq' is transactional: its cleanup takes the retention"):
        project.cleanup(older_than=timedelta(hours=1))
    with pytest.raises(ConfigurationError, match="target is transactional: no conflicts"):
        project.at("branch").conflicts  # noqa: B018
    assert project.reinit("branch").subscribers == (str(replica_dir / "target"),)
    assert Project.load(replica_dir / "target").sync().ok
    # A second folder in the file: commands show both.
    write_deltalake(str(replica_dir / "shop" / "orders"), pa.table({"id": [1]}))
    both = replica_dir / "both.yml"
    both.write_text(f"{FILE}---\ntype: cdc\nroot: ./shop\ntables: [{{table: orders, key: [id]}}]\n")
    Project.load(both).apply()
    assert run_command(f"mergerepl pending -f {both}") == "Nothing is pending.\n"
    assert {"merge", "transactional"} <= set(run_command(f"mergerepl history -f {both}").split())
    assert run_command(f"mergerepl validate -f {both}").count("Validation of ") == 2

"""A reader types the tutorial and pages about the same tables, in the order of the pages."""

import re
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.calls import conflicts_of
from tests.commands_of_docs import blocks, run_command, type_blocks

pytestmark = pytest.mark.spark

SITES = ("hq", "north", "south")


def rows(site: str) -> list[dict[str, Any]]:
    return sorted(
        DeltaTable(f"{site}/orders").to_pyarrow_table().to_pylist(), key=lambda row: row["order_id"]
    )


@pytest.mark.slow
def test_the_tutorial_and_the_python_page_do_what_they_say(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    type_blocks(blocks("docs/tutorial.md"), typed)
    # As its fourth step shows: both changes of order 1, the head office's note of order 2, and no order 3.
    expected = [
        {"order_id": 1, "region": "North", "amount": 12.5, "note": "call first"},
        {"order_id": 2, "region": "South", "amount": 20.0, "note": "no gift"},
    ]
    assert [rows(site) for site in SITES] == [expected] * 3
    [lost] = conflicts_of("hq", article="orders").list(with_rows=True)
    assert lost.losing_row is not None
    assert lost.losing_row["note"] == "big gift"

    for block in blocks("docs/python.md"):
        # The others show a signature.
        if not re.match(r"@|def |class ", block.code):
            type_blocks([block], typed)
    assert typed["project"].apply().steps == ()


@pytest.mark.slow
def test_filters_can_be_tried(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    file, tables, edits, sync = blocks("docs/filters.md", "Try it")
    type_blocks([file, tables], typed)
    run_command(f"mergerepl apply -f {file.file}")
    printed = type_blocks([edits, sync], typed)
    shown = sync.code.partition("\n")[2]
    assert [line.split() for line in shown.splitlines()] == [
        line.split() for line in next(iter(printed.values())).splitlines()[: len(shown.splitlines())]
    ]
    for name in ("customers", "orders", "lines"):
        assert DeltaTable(f"north/{name}").to_pyarrow_table().num_rows == 0
    assert {row["note"] for row in DeltaTable("south/lines").to_pyarrow_table().to_pylist()} == {"late", ""}
    type_blocks(blocks("docs/filters.md")[-1:], typed)


@pytest.mark.slow
def test_commands_of_other_pages_run(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conflicts in the tables that the pages name, then what one types to see and to repair them."""
    monkeypatch.chdir(replica_dir)
    rows = {"order_id": [7], "region": ["N"]}, {"item_id": [*range(5)], "quantity": [0] * 5}
    for name, columns in zip(("orders", "stock"), rows, strict=True):
        write_deltalake(f"hq/{name}", pa.table(columns))
    articles = "{name: orders, key: [order_id]}, {name: stock, key: [item_id]}"
    Path("mergerepl.yml").write_text(
        f"{{publication: sales, publisher: hq, articles: [{articles}], subscriptions: [{{subscriber: north}}]}}"
    )
    run_command("mergerepl apply")
    for number, site in zip(count(1), ("hq", "north")):
        DeltaTable(f"{site}/orders").update(updates={"region": f"'{site}'"})
        DeltaTable(f"{site}/stock").update(updates={"quantity": str(number)})
    run_command("mergerepl sync")

    def conflict() -> str:
        """Return an open conflict, one of orders last."""
        found = conflicts_of("hq").where(status="open").list()
        return sorted(found, key=lambda each: (each.article == "orders", each.conflict_id))[0].conflict_id

    printed: dict[str, str] = {}
    for page in ("docs/conflicts.md", "docs/monitoring.md", "docs/errors.md", "docs/schedules.md"):
        found = [each for each in blocks(page) if each.language in ("text", "bash")]
        printed |= type_blocks(found, {}, conflict)
    assert len(printed) > 20
    assert conflicts_of("hq").where(status="open").list() == ()
    assert Path("mergerepl.prom").read_text().count("mergerepl_reachable{") == 1
    stock = [DeltaTable(f"{site}/stock").to_pyarrow_table().sort_by("item_id") for site in ("hq", "north")]
    assert stock[0] == stock[1]
    assert 12 in stock[0]["quantity"].to_pylist()

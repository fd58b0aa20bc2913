"""What a reader types from the tutorial and the page of the Python functions, typed in that order."""

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.calls import conflicts_of
from tests.commands_of_docs import run_command

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"
SITES = ("hq", "north", "south")


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (language, code) of a page's blocks, without those that show a signature."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    return [(language, code) for language, code in found if not re.match(r"@|def |class ", code)]


def type_commands(text: str) -> None:
    """Run the commands of a block; not the one that goes on until it is stopped."""
    for line in text.splitlines():
        if line.startswith("mergerepl ") and "--interval" not in line:
            run_command(line)


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
    for language, code in blocks("tutorial.md"):
        if language == "yaml":
            Path("mergerepl.yml").write_text(code, encoding="utf-8")
        elif language == "text":
            type_commands(code)
        elif language == "python":
            exec(code, typed)
    # As its fourth step shows: both changes of order 1, the head office's note of order 2, and no order 3.
    expected = [
        {"order_id": 1, "region": "North", "amount": 12.5, "note": "call first"},
        {"order_id": 2, "region": "South", "amount": 20.0, "note": "no gift"},
    ]
    assert [rows(site) for site in SITES] == [expected] * 3
    [lost] = conflicts_of("hq", article="orders").list(with_rows=True)
    assert lost.losing_row is not None
    assert lost.losing_row["note"] == "big gift"
    assert [row["note"] for row in typed["losing_rows"].collect()] == ["big gift"]

    for language, code in blocks("python.md"):
        assert language == "python", f"a block of another kind: {code}"
        exec(code, typed)
    assert typed["project"].apply().steps == ()

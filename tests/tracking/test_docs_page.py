"""docs/compact.md builds a two-way synchronisation out of the public interface: it is typed in as it stands."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.commands_of_docs import blocks, type_blocks

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_the_page_does_what_it_says(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    type_blocks(blocks("docs/compact.md"), typed)
    sides = [
        sorted(
            (row["order_id"], row["region"], row["amount"]) for row in typed[side].read("orders").collect()
        )
        for side in ("branch", "hq")
    ]
    # The consumer "hq" of the page's first part acknowledged the branch's first changes; the one of `send` gets them, too.
    assert sides == [[(1, "North", 4.0), (10, "North", 6.0), (11, "South", 7.5)]] * 2
    # Nothing is sent back and forth.
    before = typed["hq"].last_csn()
    typed["synchronise"]()
    assert typed["hq"].status().last_committed_csn == before + 1
    assert typed["hq"].transactions(1)[0].changes == {}

"""The small writer alone: what it merges, what it refuses, and who it gives way to. No Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.changes import PUBLISHER_ACTION, ROW
from mergerepl.delta.log import head_version
from mergerepl.delta.small_writer import ACTION, SmallRows, merge_small, reason_for_spark
from mergerepl.delta.table import open_table
from mergerepl.model.article import PublishedArticle
from tests.drawn_tables import Drawn, transaction

FEED = {"delta.enableChangeDataFeed": "true"}


def small(drawn: Drawn, article: PublishedArticle) -> SmallRows:
    """Return the rows as `small_rows` reads them."""
    staged = drawn.staged()
    staged = staged.filter(pc.not_equal(staged[PUBLISHER_ACTION], "metadata"))
    values = staged.select([ROW]).flatten().rename_columns(list(article.fields))
    is_gone = pc.equal(staged[PUBLISHER_ACTION], "leave")
    actions = pc.if_else(is_gone, "delete", staged[PUBLISHER_ACTION])
    return SmallRows(
        values.append_column(ACTION, actions), dict(zip(article.fields, article.types, strict=True))
    )


def in_bits(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Return rows as texts, which tell -0.0 from 0.0, and take NaN for NaN."""
    return [repr([row[name] for name in names]) for row in rows]


def check(table: Path, seed: int) -> None:
    drawn = Drawn(seed)
    if not set(drawn.actions.values()) - {"metadata"}:
        return
    rows = drawn.table()
    write_deltalake(str(table), rows.slice(0, len(rows) // 2), configuration=FEED)
    write_deltalake(str(table), rows.slice(len(rows) // 2), mode="append")
    article = drawn.article(table)
    names = [field["name"] for field in open_table(table).fields]
    keys = list(article.identity)
    there = {in_bits([row], keys)[0]: row for row in rows.to_pylist()}
    after, feed = dict(there), Counter[tuple[str, str]]()
    merged = small(drawn, article)
    for row in merged.rows.to_pylist():
        values = dict(zip(article.columns, [row[field] for field in article.fields], strict=True))
        key = in_bits([values], keys)[0]
        old = there.get(key)
        new = None if row[ACTION] == "delete" else {**dict.fromkeys(names), **(old or {}), **values}
        if old is not None and new is not None and in_bits([old], names) == in_bits([new], names):
            continue
        kinds = {(True, True): ("update_preimage", "update_postimage"), (True, False): ("delete", "")}
        before, now = kinds.get((old is not None, new is not None), ("", "insert"))
        if old is not None:
            feed[before, in_bits([old], names)[0]] += 1
            del after[key]
        if new is not None:
            feed[now, in_bits([new], names)[0]] += 1
            after[key] = new
    terms: dict[str, Any] = {"actions": drawn.counts(), "bounds": drawn.bounds(), "from_version_exclusive": 1}
    assert reason_for_spark(open_table(table), article, drawn.counts(), drawn.bounds()) is None
    commit = merge_small(lambda: merged, table, article, transaction=transaction(1), **terms)
    assert commit is not None, seed
    assert (commit.version, commit.mark, commit.txns) == (2, transaction(1).mark, {"mergerepl-test": 1})
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert Counter(in_bits(found, names)) == Counter(in_bits(list(after.values()), names)), seed
    kinds_of = Counter(kind for kind, _ in feed.elements())
    assert commit.merged_rows == tuple(kinds_of[each] for each in ("insert", "update_postimage", "delete")), (
        seed
    )
    assert commit.data_change is bool(feed)
    if feed:
        read = pa.table(DeltaTable(str(table)).load_cdf(2, 2).read_all()).to_pylist()
        told = Counter(zip((row["_change_type"] for row in read), in_bits(read, names), strict=True))
        assert told == feed, seed
    # A second run finds it done.
    assert merge_small(lambda: merged, table, article, transaction=transaction(1), **terms) == commit
    assert head_version(table) == 2


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(40, 1040), marks=pytest.mark.slow, id="1000"), range(40)]
)
def test_the_table_and_its_feed_are_what_the_rows_say(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        check(tmp_path / str(seed), seed)

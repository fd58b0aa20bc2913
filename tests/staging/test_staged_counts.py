"""The counts of staged rows, of which a session's results, watermarks and its next steps are made."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergerepl.changes import ACTION_OF, OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.errors import StoreError
from mergerepl.merge.stage.article import StagedArticle, staged_article
from mergerepl.replica import staged_rows
from mergerepl.replica.staged_rows import staged_kinds
from tests.networks import article_row

ARTICLE = article_row("orders", 1).published("sales")
TYPES: dict[str, pa.DataType] = {
    "verdict": pa.string(),
    "deleted": pa.bool_(),
    "publisher_action": pa.string(),
    "publisher_generation": pa.int64(),
    "subscriber_action": pa.string(),
    "subscriber_generation": pa.int64(),
    "conflict_type": pa.int32(),
    "note": pa.string(),
}


def row(verdict: str, *, deleted: bool = False, **others: Any) -> dict[str, Any]:
    """Return one staged row, with a generation at each side that does something."""
    numbers = {f"{side}_generation": 7 for side, action in ACTION_OF.items() if action in others}
    return {"verdict": verdict, "deleted": deleted} | numbers | others


UPLOADED = row("upload", publisher_action="insert")
WON = row("conflict", publisher_action="metadata", subscriber_action="update", conflict_type=1)
MERGED = row("merge", publisher_action="update", subscriber_action="update")
GONE = row("conflict", deleted=True, publisher_action="delete", subscriber_action="metadata", conflict_type=3)
LEAVES = row("download", subscriber_action="leave")
REFUSED = row("refused", subscriber_action="metadata", conflict_type=8, note="CHECK")
REFUSED_AGAIN = row("refused", subscriber_action="metadata", note="CHECK")

CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "nothing": ([], {}),
    "an insert": ([UPLOADED], {"publisher": {"insert": 1, "live": 1}}),
    "rows of one kind are counted together": ([UPLOADED] * 5, {"publisher": {"insert": 5, "live": 5}}),
    "a conflict, and one that ends in a delete": (
        [WON, GONE, WON],
        {
            "publisher": {"metadata": 2, "delete": 1, "live": 2, "deleted": 1},
            "subscriber": {"update": 2, "metadata": 1, "live": 2, "deleted": 1},
            "conflicts": 3,
            "resolved": 3,
        },
    ),
    "a merge is no conflict": (
        [MERGED],
        {"publisher": {"update": 1, "live": 1}, "subscriber": {"update": 1, "live": 1}, "resolved": 1},
    ),
    "a row that leaves the partition": ([LEAVES], {"subscriber": {"leave": 1, "deleted": 1}}),
    "changes that a table refuses, one of them not for the first time": (
        [REFUSED, REFUSED_AGAIN, REFUSED],
        {"subscriber": {"metadata": 3, "live": 3}, "conflicts": 2, "waiting": 3, "again": 1},
    ),
}


def counted(folder: Path, rows: list[dict[str, Any]]) -> StagedArticle:
    columns = {name: pa.array([each.get(name) for each in rows], type_) for name, type_ in TYPES.items()}
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "part-00000.parquet")
    bounds = {f"{side}_{end}_c0": None for side in OTHER_SIDE for end in ("min", "max")}
    return staged_article(staged_kinds(folder), bounds, ARTICLE, from_versions=dict.fromkeys(OTHER_SIDE, 3))


@pytest.mark.parametrize("rows_of_batch", [1, 1 << 16])
@pytest.mark.parametrize(("rows", "expected"), CASES.values(), ids=CASES)
def test_staged_rows_are_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[dict[str, Any]],
    expected: dict[str, Any],
    rows_of_batch: int,
) -> None:
    monkeypatch.setattr(staged_rows, "_ROWS_OF_BATCH", rows_of_batch)
    found = counted(tmp_path / "rows", rows)
    for side, work in found.works.items():
        counts = work.actions | {"live": work.live, "deleted": work.deleted}
        assert {name: count for name, count in counts.items() if count} == expected.get(side, {})
        assert work.from_version == 3
    assert (found.conflicts, found.resolved) == (expected.get("conflicts", 0), expected.get("resolved", 0))
    assert found.waiting == {PUBLISHER: 0, SUBSCRIBER: expected.get("waiting", 0)}
    assert found.refused_again == {PUBLISHER: 0, SUBSCRIBER: expected.get("again", 0)}


def test_rows_of_unknown_generations_are_refused(tmp_path: Path) -> None:
    unknown = UPLOADED | {"publisher_generation": None}
    with pytest.raises(StoreError, match=r"2 changed rows of the subscriber belong to generations"):
        counted(tmp_path / "rows", [unknown, UPLOADED, unknown])


def test_files_that_are_gone_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        staged_kinds(tmp_path)
    (tmp_path / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"part-00000\.parquet"):
        staged_kinds(tmp_path)

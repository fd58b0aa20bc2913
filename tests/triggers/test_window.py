"""What a window says of the rows that are read of a feed."""

from pathlib import Path

import pytest

from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.window import Segment
from tests.networks import article_row
from triggers.window import SMALL_BYTES, SMALL_ROWS, CaptureWindow

FEW, MANY = {"num_updated_rows": "2"}, {"num_updated_rows": str(SMALL_ROWS + 1)}
LARGE = SMALL_BYTES + 1


@pytest.mark.parametrize(
    ("metrics", "file_bytes", "by_files", "gap", "is_small"),
    [
        pytest.param(FEW, 500, (), None, True, id="few rows"),
        pytest.param(MANY, 500, (), None, False, id="many rows"),
        pytest.param({}, 500, (), None, False, id="a writer that counts nothing"),
        pytest.param(FEW, LARGE, (), None, True, id="few rows that the feed has, of a large file"),
        pytest.param(FEW, 500, (1,), None, True, id="a small file, read whole"),
        pytest.param(FEW, LARGE, (1,), None, False, id="a large file, read whole"),
        pytest.param(FEW, 500, (), "a gap", False, id="a gap: the table is read whole"),
    ],
)
def test_few_rows_are_read_of_a_small_window(
    metrics: dict[str, str], file_bytes: int, by_files: tuple[int, ...], gap: str | None, is_small: bool
) -> None:
    commit = Commit(1, "UPDATE", None, True, None, metrics=metrics, file_bytes=file_bytes)
    article = article_row("orders", 1).published("sales")
    segments = (Segment(1, 1, by_files=by_files),)
    assert CaptureWindow(article, Path("orders"), 0, 1, (commit,), segments, gap).is_small == is_small


def test_windows_without_changes_are_small() -> None:
    assert CaptureWindow(article_row("orders", 1).published("sales"), Path("orders"), 0, 1).is_small

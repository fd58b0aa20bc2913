"""Both sides of a session are captured, or nothing of them stays in memory."""

import threading
from pathlib import Path
from typing import Any

import pytest

from mergerepl.agent import sides
from mergerepl.agent.sides import SideState, captured_sides
from mergerepl.errors import CaptureError
from mergerepl.model.article import published_article
from mergerepl.store.replica import Replica, ReplicaInfo
from tests.networks import article_row
from triggers.window import CaptureWindow


class Captured:
    def __init__(self) -> None:
        self.is_released = False

    def release(self) -> None:
        self.is_released = True


def side(name: str, tables: tuple[str, ...]) -> SideState:
    rest = {"rowguid_column": None, "maxversion_at_cleanup": 0}
    articles = {
        i: published_article({**article_row(table, i), **rest}, "sales") for i, table in enumerate(tables)
    }
    windows = tuple(CaptureWindow(each, Path(each.table), 0, 1, gap="a gap") for each in articles.values())
    info = ReplicaInfo(name, 1, name, name, 1, 0, 0, {}, {}, 0)
    return SideState(
        name, Replica(name), info, [], articles, {"subscriber_type": 1, "priority": 1.0}, windows
    )


@pytest.mark.parametrize("broken", ["orders", "lines", "items"])
def test_what_other_articles_keep_is_released_if_one_cannot_be_captured(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    captured: list[Captured] = []
    has_failed = threading.Event()

    def read_changes(spark: Any, replica: Any, window: CaptureWindow, info: Any, **_: Any) -> Captured:
        if window.article.name == broken:
            has_failed.set()
            raise CaptureError("no")
        if broken != "items":
            has_failed.wait(10)
        captured.append(Captured())
        return captured[-1]

    monkeypatch.setattr(sides, "read_changes", read_changes)
    both = {name: side(name, ("orders", "lines", "items")) for name in ("publisher", "subscriber")}
    with pytest.raises(CaptureError):
        captured_sides(None, both)  # type: ignore[arg-type]
    assert captured
    assert all(each.is_released for each in captured)

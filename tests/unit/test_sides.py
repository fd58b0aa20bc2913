"""Both sides of a session are captured, or nothing of them stays in memory."""

import threading
from pathlib import Path
from typing import Any

import pytest

from mergerepl.agent import sides
from mergerepl.agent.feed_window import FeedWindow
from mergerepl.agent.sides import SideState, captured_sides
from mergerepl.errors import CaptureError
from mergerepl.store.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo
from tests.networks import article_row, subscription_row


class Captured:
    def __init__(self) -> None:
        self.is_released = False

    def release(self) -> None:
        self.is_released = True


def side(name: str, tables: tuple[str, ...]) -> SideState:
    articles = {i: article_row(table, i).published("sales") for i, table in enumerate(tables)}
    windows = tuple(FeedWindow(each, Path(each.table), 0, 1, (), (), "a gap") for each in articles.values())
    info = ReplicaInfo(repid=name, replnickname=1, root=name)
    other = subscription_row(Path(name), "other", 2)
    return SideState(name, Replica(name), info, [], articles, other, windows)


@pytest.mark.parametrize("broken", ["orders", "lines", "items"])
def test_what_other_articles_keep_is_released_if_one_cannot_be_captured(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    captured: list[Captured] = []
    has_failed = threading.Event()

    def read_changes(spark: Any, replica: Any, window: FeedWindow, info: Any, **_: Any) -> Captured:
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

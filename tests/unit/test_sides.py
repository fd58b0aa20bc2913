"""Both sides of a session are captured, or nothing of them stays in memory."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enumeration.plan import Enumeration, SessionPlan
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import CaptureError, EngineLostError, MergeReplError
from mergerepl.merge.capture.capture import CaptureJob, new_generation
from mergerepl.merge.session import sides
from mergerepl.merge.session.session_plan import MANY_ROWS, has_few_changes, has_many_changes
from mergerepl.merge.session.sides import SideState, captured_sides
from mergerepl.replica.replica import Replica
from mergerepl.systables.genhistory import GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from tests.networks import article_row, subscription_row
from triggers.window import SMALL_ROWS, CaptureWindow


class Captured:
    def __init__(self) -> None:
        self.is_released = False

    def release(self) -> None:
        self.is_released = True


def side(name: str, tables: tuple[str, ...]) -> SideState:
    articles = {i: article_row(table, i).published("sales") for i, table in enumerate(tables)}
    windows = tuple(CaptureWindow(each, Path(each.table), 0, 1, gap="a gap") for each in articles.values())
    info = ReplicaInfo(repid=name, replnickname=1, root=name)
    other = subscription_row(Path(name), "other", 2)
    return SideState(name, Replica(name), info, [], articles, other, windows)


@pytest.mark.parametrize("broken", ["orders", "lines", "items"])
def test_what_other_articles_keep_is_released_if_the_engine_is_lost(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    captured = let_fail(monkeypatch, broken, EngineLostError("no"))
    both = {name: side(name, ("orders", "lines", "items")) for name in ("publisher", "subscriber")}
    with pytest.raises(EngineLostError):
        captured_sides(both, EngineChoice(uses_arrow=False, spark_of=lambda: None))  # type: ignore[arg-type, return-value]
    assert captured
    assert all(each.is_released for each in captured)


@pytest.mark.parametrize("broken", ["orders", "lines", "items"])
def test_an_article_that_cannot_be_captured_is_left_out_at_both_sides(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    captured = let_fail(monkeypatch, broken, CaptureError("no"), at="subscriber")
    both = {name: side(name, ("orders", "lines", "items")) for name in ("publisher", "subscriber")}
    found, refused = captured_sides(both, EngineChoice(uses_arrow=False, spark_of=lambda: None))  # type: ignore[arg-type, return-value]
    (nickname,) = refused
    assert both["publisher"].articles[nickname].name == broken
    for name, others in (("publisher", 3), ("subscriber", 2)):
        assert {article.name for article in found[name].articles.values()} == {"orders", "lines", "items"} - {
            broken
        }
        assert found[name].left_out == {nickname}
        # What the other side has of it is recorded, and waits.
        assert len(found[name].captured) == others
    assert not any(each.is_released for each in captured)


def let_fail(
    monkeypatch: pytest.MonkeyPatch, broken: str, error: MergeReplError, *, at: str = ""
) -> list[Captured]:
    """Let one article's capture fail, at one side or at both. Returns what the others come to."""
    captured: list[Captured] = []
    has_failed = threading.Event()

    def read_changes(spark: Any, job: CaptureJob) -> Captured:
        if job.article.name == broken and str(job.replica.root).endswith(at):
            has_failed.set()
            raise error
        if broken != "items" and not at:
            has_failed.wait(10)
        captured.append(Captured())
        return captured[-1]

    monkeypatch.setattr(sides, "read_changes", read_changes)
    return captured


@pytest.mark.parametrize(
    ("sent", "is_few", "are_many"),
    [(SMALL_ROWS, True, False), (SMALL_ROWS + 1, False, False), (MANY_ROWS + 1, False, True)],
)
def test_few_and_many_changes_are_known_by_what_is_captured_and_sent(
    sent: int, is_few: bool, are_many: bool
) -> None:
    def both(gap: str | None) -> dict[str, SideState]:
        sides_ = {name: side(name, ("orders",)) for name in ("publisher", "subscriber")}
        return {
            name: replace(each, windows=tuple(replace(window, gap=gap) for window in each.windows))
            for name, each in sides_.items()
        }

    generation = new_generation(
        both(None)["publisher"].articles[0], number=1, nicknames=[1], status=GenStatus.CLOSED, maxversion=1
    )
    down = Enumeration(0, [replace(generation, changecount=sent)], [])
    plan = SessionPlan(True, True, Enumeration(0, [], []), down)
    assert has_few_changes(both(None), plan) == is_few
    assert has_many_changes(both(None), plan) == are_many
    assert not has_few_changes(both("a gap"), plan)

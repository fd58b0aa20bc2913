"""What becomes of threads at a failpoint."""

import threading

import pytest

from mergerepl import failpoints
from mergerepl.failpoints import FailpointError, failpoint


def passed(*points: str) -> list[str]:
    """Return the points that a thread of its own gets past."""
    past: list[str] = []

    def run() -> None:
        for point in points:
            try:
                failpoint(point)
            except FailpointError:
                return
            past.append(point)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return past


@pytest.mark.parametrize(
    ("action", "beside"), [("stop", []), ("raise", ["there", "here"])], ids=["stop", "raise"]
)
def test_a_stop_stops_the_threads_beside_it_too(
    monkeypatch: pytest.MonkeyPatch, action: str, beside: list[str]
) -> None:
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", f"here:2={action}")
    assert passed("there", "here", "there") == ["there", "here", "there"]
    assert passed("there", "here", "there") == ["there"]
    assert passed("there", "here") == beside

"""The rounds of `sync --interval`: one warm process that syncs, reports, waits and syncs again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from mergerepl.agents.loop import Repeated, Timer, in_worker, run_until_stopped, signals
from mergerepl.errors import MergeReplError, Transient
from mergerepl.model.results import SessionResult, SyncResult
from mergerepl.roots import is_absent


class RoundOutput(Protocol):
    """Reports one line a round."""

    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Report a round."""

    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Report a round that failed and is tried again."""


def repeat(
    once: Callable[[], SyncResult],
    output: RoundOutput,
    *,
    interval_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Run `once`, report, wait, again. Return True after a signal, False after all sessions failed for good.

    Raises:
        MergeReplError: One that another round would meet again, such as a wrong configuration. A replica that was
            reachable in an earlier round may return.
    """
    has_run = has_failed = False

    def round_() -> bool:
        nonlocal has_run, has_failed
        try:
            result = once()
        except MergeReplError as error:
            if not (isinstance(error, Transient) or (has_run and _is_out_of_reach(error.facts))):
                raise
            output.round_failed(error, time=_now())
            return False
        output.synced_round(result, time=_now())
        # One session that can go on keeps the loop alive: a subscriber out of reach does not stop the others.
        has_failed = all(_is_final(session, has_run=has_run) for session in result.sessions)
        has_run = True
        return True

    rounds = Repeated(round_, Timer(interval_s, retry_s=0.0))
    with signals() as stop:
        in_worker(
            lambda: run_until_stopped(
                [rounds.look], is_asked_to_stop=lambda: stop.asked or has_failed, pause=pause
            ),
            name="sync",
        )
    return not has_failed


def _is_final(session: SessionResult, *, has_run: bool) -> bool:
    """Whether a session failed for a reason that the next round would meet again, without any article that can go on."""
    is_away = has_run and session.error is not None and _is_out_of_reach(session.error)
    return session.is_failed and not session.refused and not session.is_transient and not is_away


def _is_out_of_reach(facts: Mapping[str, object]) -> bool:
    """Whether an error's facts name a replica whose folder is gone, perhaps because it is no longer mounted."""
    root = facts.get("replica")
    return root is not None and is_absent(Path(str(root)))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

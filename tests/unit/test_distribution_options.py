"""Options of the distribution agents that are refused."""

from pathlib import Path

import pytest

from mergerepl.transactional.refusals import TransactionalError, TransactionalUsageError, require_streams


@pytest.mark.parametrize("streams", [0, -1, 65])
def test_streams_that_there_cannot_be(streams: int) -> None:
    with pytest.raises(TransactionalUsageError, match=f"streams cannot be {streams}. .* from 1 to 64"):
        require_streams(streams)


@pytest.mark.parametrize("streams", [None, 1, 64])
def test_streams_that_there_can_be(streams: int | None) -> None:
    require_streams(streams)


def test_a_stop_names_the_command_that_skips() -> None:
    said = str(
        TransactionalError.stopped(20598, Path("/data/hq"), Path("/data/mart"), "No row.", "7", "DELETE")
    )
    assert "`mergerepl sync mart -f /data/hq --skip-errors 20598`" in said
    assert "`skip_errors: [20598]` of the subscription" in said
    assert "`mergerepl transactional skip 7 -f /data/hq --at mart`" in said

"""What Arrow and delta-rs refuse is left to Spark and counted; what no check foresees fails where the setting says so."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from mergerepl.delta.commit_files import MOST_ROWS
from mergerepl.delta.engine_choice import (
    MOST_IN_PROCESS,
    EngineChoice,
    NeedsSparkError,
    TooLargeForArrowError,
    arrow_refusals,
    require_texts,
)
from mergerepl.frames import F, NotInProcessError, is_in_process, on_spark


@pytest.mark.parametrize(
    ("raised", "lax", "strict"),
    [
        (NeedsSparkError("a key is NULL"), NeedsSparkError, NeedsSparkError),
        (FileNotFoundError("gone"), NeedsSparkError, NeedsSparkError),
        (DeltaError("unsupported"), NeedsSparkError, DeltaError),
        (pa.ArrowInvalid("overflow"), NeedsSparkError, pa.ArrowInvalid),
        # Another writer was first.
        (CommitFailedError("conflict"), CommitFailedError, CommitFailedError),
        (AttributeError("a bug"), AttributeError, AttributeError),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_only_refusals_become_a_need_of_spark(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, lax: type[Exception], strict: type[Exception]
) -> None:
    for setting, expected in (("0", lax), ("1", strict)):
        monkeypatch.setenv("MERGEREPL_STRICT_ENGINE", setting)
        with pytest.raises(expected) as caught, arrow_refusals():
            raise raised
        assert type(caught.value) is expected


def test_text_that_is_no_utf_8_is_read_by_spark() -> None:
    odd = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(NeedsSparkError, match="UTF8"):
        require_texts(pa.table({"a": odd}))


def test_a_session_in_process_may_be_of_updates_alone() -> None:
    assert MOST_ROWS >= 2 * MOST_IN_PROCESS


def test_a_table_counts_once_and_a_large_one_not_at_all() -> None:
    small, large = Path("hq/orders"), Path("hq/lines")
    choice = EngineChoice(uses_arrow=True)
    choice.fall_back(small, NeedsSparkError("CHECK constraints"))
    choice.fall_back(small, NeedsSparkError("a key is NULL"))
    choice.fall_back(large, TooLargeForArrowError("too many rows"))
    assert [*choice.fallbacks.values()] == ["table 'orders': CHECK constraints"]


def test_a_step_on_spark_leaves_this_process_and_comes_back() -> None:
    with EngineChoice(uses_arrow=True, in_process=True).rules():
        with on_spark():
            assert not is_in_process()
        assert is_in_process()
    assert not is_in_process()


def test_what_the_process_does_not_compute_begins_again_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = EngineChoice(uses_arrow=True, in_process=True)
    for setting, expected in (("0", NeedsSparkError), ("1", NotInProcessError)):
        monkeypatch.setenv("MERGEREPL_STRICT_ENGINE", setting)
        with pytest.raises(expected, match="the function soundex"), choice.rules():
            F.soundex("name")

"""A transaction ends in one way only, for every process that ends it: the folder of one, without Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mergerepl.tracking import counters
from mergerepl.tracking.consumers import _cutoff
from mergerepl.tracking.counters import Intent
from mergerepl.tracking.errors import TrackingError, TransactionConflictError
from mergerepl.tracking.sweep import has_work

INTENT = Intent(datetime.now(UTC), (), (), {})


@pytest.fixture
def begun(tmp_path: Path) -> counters.Begun:
    counters.create_database(tmp_path)
    return counters.begin(tmp_path)


def test_what_is_decided_is_not_aborted(begun: counters.Begun) -> None:
    counters.decide(begun.folder, INTENT)
    assert not counters.mark_aborted(begun.folder)
    assert counters.has_intent(begun.folder)
    assert not counters.is_aborted(begun.folder)


def test_what_was_aborted_is_not_decided(begun: counters.Begun) -> None:
    assert counters.mark_aborted(begun.folder)
    with pytest.raises(TransactionConflictError, match="aborted by another process"):
        counters.decide(begun.folder, INTENT)
    assert not counters.has_intent(begun.folder)


def test_what_was_swept_away_is_not_decided(begun: counters.Begun) -> None:
    counters.drop(begun.folder)
    assert counters.mark_aborted(begun.folder)
    with pytest.raises(TransactionConflictError, match="aborted by another process"):
        counters.decide(begun.folder, INTENT)


@pytest.mark.parametrize("name", ["owner", "aborted", "intent.json"])
def test_a_table_may_have_the_name_of_a_file_of_a_transaction(begun: counters.Begun, name: str) -> None:
    folder = counters.staging_folder(begun.folder, name)
    folder.mkdir(parents=True)
    assert counters.has_staged(begun.folder, name)
    assert not counters.is_aborted(begun.folder)
    assert not counters.has_intent(begun.folder)
    assert not has_work(begun.folder.parents[2])


@pytest.mark.parametrize(
    ("older_than", "to"),
    [("1000000000 days", None), ("-1 days", None), ("soon", None), (None, -2), (None, None), ("1d", 1)],
)
def test_a_range_of_a_purge_that_is_none_is_refused(older_than: str | None, to: int | None) -> None:
    with pytest.raises(TrackingError, match=r"usable .* of a purge"):
        _cutoff(older_than, to)

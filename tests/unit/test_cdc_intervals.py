"""Which windows are in the interval of an instance, and how the others are refused."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from mergerepl.cdc.refusals import LsnRangeError
from mergerepl.cdc.tables import check_range
from mergerepl.logreader.lsn import Lsn
from mergerepl.systables.cdc import ChangeTable

LSN = [Lsn.of(7, slot) for slot in range(10)]
INSTANCE = ChangeTable(
    object_id=2,
    source_object_id=1,
    capture_instance="dbo_orders",
    start_lsn=LSN[2],
    supports_net_changes=True,
    create_date=datetime(2026, 1, 1, tzinfo=UTC),
    start_version=0,
)
PAUSED = replace(INSTANCE, end_lsn=LSN[4])


@pytest.mark.parametrize(
    ("first", "last", "gate", "is_paused", "reason"),
    [
        (2, 6, 6, False, None),
        (4, 4, 6, False, None),
        (2, 4, 6, True, None),
        (2, 5, 6, True, "paused"),
        (5, 6, 6, True, "paused"),
        (2, 7, 6, True, "above_high"),
        (2, 7, 6, False, "above_high"),
        (1, 6, 6, False, "below_low"),
        # Which end is wrong first: the low one, since its rows are gone for good.
        (1, 7, 6, False, "below_low"),
        (6, 5, 6, False, "reversed"),
        (7, 6, 6, False, "reversed"),
        (None, 6, 6, False, "null"),
        (2, None, 6, False, "null"),
        (2, 2, None, False, "above_high"),
        (2, 3, 3, True, None),
    ],
)
def test_each_window(
    first: int | None, last: int | None, gate: int | None, is_paused: bool, reason: str | None
) -> None:
    instance = PAUSED if is_paused else INSTANCE
    ends = [None if slot is None else LSN[slot] for slot in (first, last)]
    limit = None if gate is None else LSN[gate]
    if reason is None:
        assert check_range(instance, *ends, gate=limit) == tuple(ends)
        return
    with pytest.raises(LsnRangeError, match="dbo_orders") as refused:
        check_range(instance, *ends, gate=limit)
    assert refused.value.reason == reason
    assert refused.value.number == 313
    assert refused.value.low == LSN[2]
    assert refused.value.high == (min(limit, LSN[4]) if is_paused and limit is not None else limit)
    assert str(LSN[2]) in refused.value.message

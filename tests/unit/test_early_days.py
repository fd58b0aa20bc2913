"""Days of the months when calendars changed: Delta's bounds of files would leave such rows out."""

import pytest

from mergerepl.rows.key_bounds import is_unbounded
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.judge import bounds_text

DAYS = Shape(1, 1, "days", "days", ("day",), ("date",), ("day",))


@pytest.mark.parametrize("lowest", ["1582-10-05", "1582-10-24", "0001-01-01", "-0044-03-15"])
def test_early_days_have_no_bounds(lowest: str) -> None:
    assert is_unbounded(lowest, "date")
    assert bounds_text(DAYS, {"lowest1": lowest, "highest1": "2024-01-01"}) == ""


def test_later_days_have_bounds() -> None:
    found = bounds_text(DAYS, {"lowest1": "1582-10-25", "highest1": "2024-01-01"})
    assert found == "t.`day` BETWEEN CAST('1582-10-25' AS DATE) AND CAST('2024-01-01' AS DATE) AND "

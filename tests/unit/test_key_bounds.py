"""The bounds that prune files, and the ranges of changed keys.

For texts that some engines pad and others do not, beside texts that are no UTF-8; for days of the months when calendars
changed, for which Delta's bounds of files would leave rows out.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergerepl.delta.merge import join_buckets
from mergerepl.rows.key_bounds import above_odd, below_unpadded, is_unbounded
from mergerepl.transactional.judge import bounds_text
from tests.transactional import publications

# Few letters, so that texts are alike: below a space, a space, the next one, after the surrogates.
TEXTS = st.text("\x00\t !ab~\ue000", max_size=4)
WIDTH = 5


@given(lowest=TEXTS, key=TEXTS)
def test_a_key_from_the_lowest_on_is_within_the_bound_padded_or_not(lowest: str, key: str) -> None:
    if lowest.ljust(WIDTH) > key.ljust(WIDTH):
        return
    # Spark pads a bound of a char(n), too.
    bound = below_unpadded(lowest.ljust(WIDTH))
    assert not bound or bound.ljust(WIDTH) <= key.rstrip(" ")


@given(lowest=TEXTS, key=TEXTS)
def test_a_key_from_the_lowest_on_is_within_the_bound_of_a_plain_string(lowest: str, key: str) -> None:
    assert lowest > key or below_unpadded(lowest) <= key
    below_unpadded(lowest).encode()


@given(key=TEXTS, highest=TEXTS)
def test_a_key_up_to_the_highest_is_within_the_bound(key: str, highest: str) -> None:
    upper = above_odd(highest)
    assert key > highest or not upper or key <= upper


PIECES = st.sampled_from([b"a", b"b", b"\x80", b"\xff", "я".encode(), "\ufffe".encode(), "😀".encode()])
KEYS = st.lists(PIECES, min_size=1, max_size=3).map(b"".join)


def is_text(key: bytes) -> bool:
    return key.decode(errors="ignore").encode() == key


def as_in_the_log(key: bytes) -> bytes:
    """Delta keeps the bounds of a file as JSON."""
    return key.decode(errors="replace").encode()


@given(changed=st.lists(KEYS.filter(is_text), min_size=1, max_size=3), others=st.lists(KEYS, max_size=3))
def test_a_file_with_a_changed_key_is_read_whatever_other_keys_it_has(
    changed: list[bytes], others: list[bytes]
) -> None:
    lower, upper = below_unpadded(min(changed).decode()), above_odd(max(changed).decode())
    for key in changed:
        lowest, highest = as_in_the_log(min([key, *others])), as_in_the_log(max([key, *others]))
        assert not lower or highest >= lower.encode()
        assert not upper or lowest <= upper.encode()


def test_ascii_keys_have_narrow_bounds() -> None:
    assert (below_unpadded("order-1"), above_odd("order-7")) == ("order-0", "order-7")
    assert (below_unpadded("orderé"), above_odd("orderé")) == ("ordeq", "ordes")


DAYS = publications.shape(("day",), ("date",), ("day",))


@pytest.mark.parametrize("lowest", ["1582-10-05", "1582-10-24", "0001-01-01", "-0044-03-15"])
def test_early_days_have_no_bounds(lowest: str) -> None:
    assert is_unbounded(lowest, "date")
    assert bounds_text(DAYS, {"lowest1": lowest, "highest1": "2024-01-01"}) == ""


def test_later_days_have_bounds() -> None:
    found = bounds_text(DAYS, {"lowest1": "1582-10-25", "highest1": "2024-01-01"})
    assert found == "t.`day` BETWEEN CAST('1582-10-25' AS DATE) AND CAST('2024-01-01' AS DATE) AND "


def bucket(lowest: int, highest: int) -> tuple[int, int, str, str]:
    return lowest, highest, str(lowest), str(highest)


@pytest.mark.parametrize(
    ("buckets", "most", "ranges"),
    [
        ([], 3, []),
        ([(5, 5)], 3, [(5, 5)]),
        ([(0, 9), (10, 19)], 3, [(0, 19)]),
        ([(0, 9), (11, 19)], 3, [(0, 9), (11, 19)]),
        ([(0, 9), (20, 29), (1000, 1000), (1005, 1009)], 2, [(0, 29), (1000, 1009)]),
        ([(0, 9), (20, 29), (1000, 1000), (1005, 1009)], 3, [(0, 9), (20, 29), (1000, 1009)]),
        (
            [(-(2**63), -(2**63)), (0, 0), (2**63 - 1, 2**63 - 1)],
            9,
            [(-(2**63),) * 2, (0, 0), (2**63 - 1,) * 2],
        ),
    ],
)
def test_ranges(buckets: list[tuple[int, int]], most: int, ranges: list[tuple[int, int]]) -> None:
    found = join_buckets([bucket(*each) for each in buckets], most)
    assert found == [(str(lowest), str(highest)) for lowest, highest in ranges]

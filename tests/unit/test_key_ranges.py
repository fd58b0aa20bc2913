"""Where the ranges of changed keys are split: at the widest gaps between buckets."""

import pytest

from mergerepl.delta.merge import join_buckets


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
        ([(-(2**63), -(2**63)), (0, 0), (2**63 - 1, 2**63 - 1)], 9, [(-(2**63),) * 2, (0, 0), (2**63 - 1,) * 2]),
    ],
)  # fmt: skip
def test_ranges(buckets: list[tuple[int, int]], most: int, ranges: list[tuple[int, int]]) -> None:
    found = join_buckets([bucket(*each) for each in buckets], most)
    assert found == [(str(lowest), str(highest)) for lowest, highest in ranges]

"""Transaction versions of tables on this machine and on a store."""

import pytest

from mergerepl.delta.fences import number_of, version_at, with_fence
from mergerepl.errors import StoreError
from mergerepl.store.location import Location


def test_on_this_machine_a_version_is_its_number(tmp_path):
    at = Location.of(tmp_path)
    assert [version_at(n, at) for n in (-1, 0, 1 << 40)] == [-1, 0, 1 << 40]
    assert [number_of(n, at) for n in (-1, 0, 1 << 40)] == [-1, 0, 1 << 40]


def test_on_a_store_a_version_begins_with_the_fence():
    at = Location.of("s3://lake/hq/t")
    assert with_fence(8, 2) == (2 << 32) + 8
    assert [number_of(with_fence(n, 3), at) for n in (0, 8, (1 << 32) - 1)] == [0, 8, (1 << 32) - 1]
    assert version_at(-1, at) == number_of(-1, at) == -1
    with pytest.raises(StoreError, match="does not hold the replica"):
        version_at(8, at)
    with pytest.raises(StoreError, match="too high"):
        with_fence(1 << 32, 2)

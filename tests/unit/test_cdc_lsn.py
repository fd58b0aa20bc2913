"""LSNs and masks: their bytes, their order and their texts, as the specification prints them."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergerepl.cdc.change_rows import full_mask, has_bit, mask_bytes
from mergerepl.delta.sql_text import in_utc, time_before
from mergerepl.logreader.lsn import ZERO, Lsn, epoch_of, scan_cycle_of

lsns = st.builds(Lsn, st.binary(min_size=10, max_size=10))


def test_the_example_of_the_specification():
    lsn = Lsn.parse("0x003757F80000002A0003")
    assert Lsn.of(scan_cycle_of(0x003757F8, 42), 3) == lsn == Lsn.parse(f"{0x003757F8}:42:3")
    assert (lsn.scan_cycle, lsn.slot, str(lsn)) == (0x003757F80000002A, 3, "0x003757F80000002A0003")


@given(lsns, lsns)
def test_order_is_that_of_the_numbers_and_texts_are_read_back(one: Lsn, other: Lsn):
    assert (one < other) == (one.number < other.number)
    assert Lsn.parse(str(one)) == one == eval(repr(one))
    if one.number < 2**80 - 1:
        assert one.next().previous() == one < one.next()


@pytest.mark.parametrize(
    "text", ["", "0x12", "0x" + "0" * 21, "1:2", "1:2:65536", "4294967296:0:0", "-1:0:0"]
)
def test_other_texts_are_refused(text: str):
    with pytest.raises(ValueError, match="is no LSN"):
        Lsn.parse(text)


def test_the_ends_have_no_neighbours():
    for step in (ZERO.previous, Lsn(b"\xff" * 10).next):
        with pytest.raises(ValueError, match="there is no LSN"):
            step()
    with pytest.raises(ValueError, match="has 10 bytes"):
        Lsn(b"12")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
@pytest.mark.parametrize(
    "stated",
    [
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59.999999",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
    ],
)
def test_the_first_and_the_last_time_are_times_in_every_zone(monkeypatch, zone, stated):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        found = in_utc(datetime.fromisoformat(stated))
        assert found - first < timedelta(days=2) if stated < "5" else last - found < timedelta(days=2)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_length_of_time_is_too_long():
    now = datetime.now(UTC)
    assert time_before(now, timedelta.max) == datetime.min.replace(tzinfo=UTC)
    assert time_before(now, timedelta.min) == datetime.max.replace(tzinfo=UTC)
    assert time_before(now, timedelta(hours=1)) == now - timedelta(hours=1)


def test_an_epoch_is_a_number_of_minutes():
    assert epoch_of(datetime(2020, 1, 1, 0, 1, 59, tzinfo=UTC)) == 1


@pytest.mark.parametrize(
    ("ordinals", "columns", "mask"),
    [
        ((3, 10), 10, "0204"),
        (range(1, 11), 10, "03ff"),
        (range(1, 6), 5, "1f"),
        (range(1, 10), 9, "01ff"),
        ((200,), 200, "80" + "00" * 24),
        ((), 1, "00"),
    ],
)
def test_masks_of_the_specification(ordinals, columns, mask):
    found = mask_bytes(ordinals, columns)
    assert found.hex() == mask
    assert [k for k in range(-1, columns + 20) if has_bit(k, found)] == list(ordinals)
    assert not has_bit(1, None)


def test_an_insert_has_all_bits():
    assert full_mask(17).hex() == "01ffff"

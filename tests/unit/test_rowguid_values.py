"""Key values at the edges of their types, without an engine."""

import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from mergerepl.rows.rowguid import key_text, key_value, rowguid_of

LONGEST = "12345678901234567890.123456789012345678"


@pytest.mark.parametrize(
    ("text", "type_", "canonical"),
    [
        (LONGEST, "decimal(38,18)", LONGEST),
        ("-" + "9" * 38, "decimal(38,0)", "-" + "9" * 38),
        ("-0", "decimal(10,2)", "0.00"),
        ("0", "decimal(2,2)", "0.00"),
        (".99", "decimal(2,2)", "0.99"),
        ("1e3", "decimal(6,2)", "1000.00"),
        ("-128", "tinyint", "-128"),
    ],
)
def test_the_whole_range_of_a_type_can_be_asked_for(text, type_, canonical):
    assert key_text(key_value(text, type_), type_) == canonical
    assert len(rowguid_of([key_value(text, type_)], [type_])) == 36


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("128", "tinyint"),
        ("9223372036854775808", "bigint"),
        ("1_000", "int"),
        ("100", "decimal(4,2)"),
        ("1", "decimal(2,2)"),
        ("NaN", "decimal(10,2)"),
        ("Infinity", "decimal(10,2)"),
        ("1e999999", "decimal(10,2)"),
        ("0001-01-01T00:00:00+05:00", "timestamp"),
        ("9999-12-31T23:00:00-05:00", "timestamp"),
        ("\udcff", "string"),
    ],
)
def test_values_outside_of_a_type_are_refused(text, type_):
    with pytest.raises(ValueError, match=r"."):
        key_value(text, type_)


def test_a_timestamp_without_offset_means_the_same_on_every_machine(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert key_value("2026-01-01 00:00:00", "timestamp") == datetime(2026, 1, 1, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_decimal_of_any_exponent_has_one_text():
    assert key_text(Decimal("-0E+3"), "decimal(10,2)") == key_text(Decimal(0), "decimal(10,2)")

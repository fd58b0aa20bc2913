"""The parts of publishing that need no table: types in both spellings, intervals, retention."""

from datetime import timedelta

import pytest

from mergerepl.delta.properties import interval_of, retention_properties
from mergerepl.delta.types import ddl_of, json_of, leaf_types, nullable
from mergerepl.systables import registry

LOG, FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"


def test_every_type_of_a_system_table_survives_translation() -> None:
    types = {column.type for table in registry.ALL for column in table.columns}
    for ddl in types:
        assert ddl_of(json_of(ddl)) == ddl
    assert len(types) > 8


def test_names_that_need_quotes_get_them() -> None:
    fields = [
        {"name": name, "type": "long", "nullable": False, "metadata": {"comment": "x"}}
        for name in ("plain", "a b", "c`d", "é")
    ]
    struct = {"type": "struct", "fields": fields}
    assert ddl_of(struct) == "struct<plain:bigint,`a b`:bigint,`c``d`:bigint,`é`:bigint>"
    relaxed = nullable({"type": "array", "elementType": struct, "containsNull": False})
    assert relaxed["containsNull"]
    assert all(field["nullable"] and not field["metadata"] for field in relaxed["elementType"]["fields"])
    assert leaf_types(relaxed) == {"long"}


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 WEEK", timedelta(days=7)),
        ("interval 168 hours", timedelta(days=7)),
        ("interval 1 day 12 hours", timedelta(hours=36)),
        ("1 week 2 hours", timedelta(hours=170)),
        ("interval 5000 milliseconds", timedelta(seconds=5)),
        ("interval 0 days", timedelta()),
        ("interval 2 months", None),
        ("interval '1' day", None),
        ("for ever", None),
        ("", None),
    ],
)
def test_intervals_as_delta_states_them(text: str, length: timedelta | None) -> None:
    assert interval_of(text) == length


@pytest.mark.parametrize(
    ("stated", "days", "wanted"),
    [
        ({}, 7, {}),
        ({}, 14, {FILES: "interval 14 days"}),
        ({}, 31, {LOG: "interval 31 days", FILES: "interval 31 days"}),
        ({LOG: "interval 90 days"}, 60, {LOG: "interval 90 days", FILES: "interval 60 days"}),
        ({LOG: "interval 1 day"}, 2, {LOG: "interval 2 days"}),
        ({FILES: "interval 20 days"}, 14, {}),
        ({LOG: "interval 3 months", FILES: "interval 1 hour"}, 1, {FILES: "interval 1 days"}),
    ],
)
def test_retentions_are_raised_never_lowered(
    stated: dict[str, str], days: int, wanted: dict[str, str]
) -> None:
    assert retention_properties(stated, timedelta(days=days)) == wanted

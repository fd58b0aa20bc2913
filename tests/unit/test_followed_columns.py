"""Changed columns of a transactional article: the statements for a subscriber, or why its table cannot follow. No Spark."""

import json
from dataclasses import replace
from typing import Any

import pytest

from mergerepl.delta.feed.column_changes import ColumnChange
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.table import TableState
from mergerepl.store.location import Location
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.consumer import changed_shape
from mergerepl.transactional.followed_columns import CannotFollowError, following
from mergerepl.transactional.row_rules import narrower_columns

MAPPED = {"delta.columnMapping.mode": "name"}
WIDENING = {"delta.enableTypeWidening": "true"}

ARTICLE = Shape(
    publication_id=1,
    article_id=1,
    article="items",
    source_object="items",
    destination_object="items",
    ins_cmd="CALL",
    upd_cmd="SCALL",
    del_cmd="CALL",
    key_columns=("id",),
    columns=("id", "note", "qty"),
    types=("bigint", "string", "int"),
    source_object_id=1,
    first_seqno=bytes(10),
    text_columns=("note",),
)

DROP = ColumnChange(1, "drop", "note")
RENAME = ColumnChange(1, "rename", "note", "text", "string", "string")
WIDER = ColumnChange(1, "type", "qty", "qty", "int", "bigint")
ADD = ColumnChange(1, "add", "", "note", "", "string")
NEW = ColumnChange(1, "add", "", "day", "", "date")
SWAP = [ColumnChange(1, "rename", "note", "qty"), ColumnChange(1, "rename", "qty", "note")]


def table(
    columns: str, properties: dict[str, str] | None = None, partitions: tuple[str, ...] = ()
) -> TableState:
    types = {"id": "long", "note": "string", "text": "string", "qty": "integer", "day": "date"}
    fields: list[dict[str, Any]] = []
    for text in columns.split():
        name, _, stated = text.partition(":")
        nullable, computed = (
            stated != "not-null",
            {"delta.generationExpression": "1"} if stated == "computed" else {},
        )
        type_ = types[name] if stated in ("", "not-null", "computed") else stated
        fields.append({"name": name, "type": type_, "nullable": nullable, "metadata": computed})
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = TableMetadata("t", schema, properties or {}, partitions)
    return TableState(Location.of("/t"), 0, metadata, 1, 7, frozenset(), frozenset(), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "there", "statements"),
    [
        ([DROP], table("id note qty", MAPPED), ["DROP COLUMN `note`"]),
        ([DROP], table("id qty", MAPPED), []),
        # Without column mapping it stays.
        ([DROP], table("id note qty"), []),
        ([DROP], table("id note:not-null qty"), ["ALTER COLUMN `note` DROP NOT NULL"]),
        ([RENAME], table("id note qty", MAPPED), ["RENAME COLUMN `note` TO `text`"]),
        ([RENAME], table("id text qty", MAPPED), []),
        ([WIDER], table("id note qty", WIDENING), ["ALTER COLUMN `qty` TYPE BIGINT"]),
        ([WIDER], table("id note qty:long"), []),
        ([NEW], table("id note qty"), ["ADD COLUMNS (`day` DATE)"]),
        ([NEW], table("id note qty day"), []),
        ([DROP, ADD], table("id note qty", MAPPED), ["DROP COLUMN `note`", "ADD COLUMNS (`note` STRING)"]),
        ([DROP, ADD], table("id qty", MAPPED), ["ADD COLUMNS (`note` STRING)"]),
        ([RENAME, WIDER, NEW], table("id text qty day", {**MAPPED, **WIDENING}), ["ALTER COLUMN `qty` TYPE BIGINT"]),
    ],
)  # fmt: skip
def test_a_table_gets_what_it_lacks(
    changes: list[ColumnChange], there: TableState, statements: list[str]
) -> None:
    after = changed_shape(ARTICLE, changes)
    assert after is not None
    found = following(there, ARTICLE, after).statements
    assert list(found) == [f"ALTER TABLE delta.`/t` {each}" for each in statements]


@pytest.mark.parametrize(
    ("changes", "there", "why", "remedy"),
    [
        ([RENAME], table("id note qty"), "note was renamed to text", "columnMapping"),
        ([RENAME], table("id note text qty", MAPPED), "a column text of its own", "DROP COLUMN `text`"),
        ([RENAME], table("id qty", MAPPED), "no column text", ""),
        ([DROP, ADD], table("id note qty"), "dropped and added again", "columnMapping"),
        ([DROP], table("id note qty", MAPPED, ("note",)), "partitioned by column note", ""),
        ([WIDER], table("id note qty"), "qty is BIGINT now", "enableTypeWidening"),
        # A table in a bucket could get no fence with that property.
        ([WIDER], replace(table("id note qty"), path=Location.of("s3://b/t")), "BIGINT now, and it is in a bucket", ""),
        ([ColumnChange(1, "type", "note", "note", "string", "int")], table("id note qty", WIDENING), "another type", ""),
        ([NEW], table("id note qty day:string", WIDENING), "another type", ""),
        ([NEW], table("id note qty day:computed"), "computed", ""),
        (SWAP, table("id note qty", MAPPED), "got its name from another one", ""),
    ],
)  # fmt: skip
def test_a_table_that_cannot_follow_is_named_before_it_is_changed(
    changes: list[ColumnChange], there: TableState, why: str, remedy: str
) -> None:
    after = changed_shape(ARTICLE, changes)
    assert after is not None
    with pytest.raises(CannotFollowError, match=why) as caught:
        following(there, ARTICLE, after)
    assert remedy in caught.value.remedy
    assert bool(remedy) == bool(caught.value.remedy)


def test_columns_that_would_cut_values_are_known() -> None:
    assert narrower_columns(table("id note qty:short"), ARTICLE) == {"qty": "smallint"}
    assert narrower_columns(table("id:integer note:binary qty"), ARTICLE) == {"id": "int", "note": "binary"}
    assert narrower_columns(table("id note qty:long"), ARTICLE) == {}
    assert narrower_columns(table("id qty:computed"), ARTICLE) == {}


def test_former_values_of_a_column_that_stayed_do_not_come_back() -> None:
    dropped = changed_shape(ARTICLE, [DROP])
    assert dropped is not None
    added = changed_shape(dropped, [ADD])
    assert added is not None
    assert following(table("id note qty"), dropped, added, ARTICLE.columns).emptied == ("note",)
    assert following(table("id qty", MAPPED), dropped, added, ARTICLE.columns).emptied == ()
    assert (
        following(table("id note qty day"), ARTICLE, changed_shape(ARTICLE, [NEW]) or ARTICLE).emptied == ()
    )


def test_a_shape_names_its_columns_in_the_one_before() -> None:
    found = changed_shape(ARTICLE, [RENAME, WIDER, NEW])
    assert found is not None
    assert (found.columns, found.types) == (
        ("id", "text", "qty", "day"),
        ("bigint", "string", "bigint", "date"),
    )
    assert (found.former, found.text_columns) == (("id", "note", "qty", ""), ("text",))
    swapped = changed_shape(ARTICLE, SWAP)
    assert swapped is not None
    assert (swapped.columns, swapped.former) == (("id", "qty", "note"), ("id", "note", "qty"))
    assert changed_shape(ARTICLE, [ColumnChange(1, "drop", "other")]) is None

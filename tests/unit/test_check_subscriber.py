"""What a table must be that a subscriber holds already (`sync_type: none`), read from the two logs."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Subscription, SyncType
from mergerepl.publish.check_subscriber import check_target
from tests.networks import article_row

ARTICLE = article_row("orders", 1, published_columns=("id", "note"))
ID = pa.field("id", pa.int64(), nullable=False)
NOTE = pa.field("note", pa.string())


def check(folder: Path, *fields: pa.Field, **partitions: list[str]) -> None:
    for name, schema in (("hq", pa.schema([ID, NOTE])), ("north", pa.schema(fields))):
        write_deltalake(
            str(folder / name / "orders"), schema.empty_table(), partition_by=partitions.get(name)
        )
    subscription = Subscription(str(folder / "north"), sync_type=SyncType.NONE)
    check_target(folder / "hq", subscription, ARTICLE, None)


DIFFERENT = {
    "a column less": ([ID], "it has no column 'note'"),
    "another type": ([ID, NOTE.with_type(pa.int64())], "its column 'note' is bigint instead of string"),
    "no NULL": (
        [ID, NOTE.with_nullable(False)],
        "its column 'note' allows no NULL, while the publisher's does",
    ),
    "a column more": ([ID, NOTE, pa.field("x", pa.int64())], "it has the column 'x', which is not published"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_table_that_differs_is_refused(tmp_path: Path, case: str) -> None:
    fields, says = DIFFERENT[case]
    with pytest.raises(PublicationError, match=says):
        check(tmp_path, *fields)


def test_the_order_of_columns_and_a_looser_column_play_no_part(tmp_path: Path) -> None:
    check(tmp_path, NOTE, ID.with_nullable(True))


@pytest.mark.parametrize(
    ("partitioned", "says"),
    [("north", "'note' is one of its partition columns, and the publisher's is not: .*as NULL"),
     ("hq", "'note' is none of its partition columns, and the publisher's is: .*as NULL")],
)  # fmt: skip
def test_a_string_is_a_partition_column_on_both_sides_or_on_none(
    tmp_path: Path, partitioned: str, says: str
) -> None:
    """Delta keeps '' as NULL in a partition column: such a row would differ for good, and silently."""
    with pytest.raises(PublicationError, match=says):
        check(tmp_path, ID, NOTE, **{partitioned: ["note"]})


@pytest.mark.parametrize("partitions", [{"hq": ["note"], "north": ["note"]}, {"north": ["id"]}])
def test_other_partition_columns_are_the_tables_own_matter(
    tmp_path: Path, partitions: dict[str, list[str]]
) -> None:
    check(tmp_path, ID, NOTE, **partitions)


@pytest.mark.parametrize(
    ("sync_type", "is_there", "says"),
    [
        (SyncType.AUTOMATIC, True, "north/orders'.*there is a table already.*sync_type: none"),
        (SyncType.NONE, False, "there is no Delta table"),
    ],
)
def test_a_place_is_taken_or_empty_against_what_the_file_says(
    tmp_path: Path, sync_type: SyncType, is_there: bool, says: str
) -> None:
    for name in ("hq", "north") if is_there else ("hq",):
        write_deltalake(str(tmp_path / name / "orders"), pa.schema([ID, NOTE]).empty_table())
    subscription = Subscription(str(tmp_path / "north"), sync_type=sync_type)
    with pytest.raises(PublicationError, match=f"(?s){says}"):
        check_target(tmp_path / "hq", subscription, ARTICLE, None)

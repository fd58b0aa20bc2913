"""Columns that are not the published ones: in a table that a subscriber brings along, or since they were published."""
# ruff: noqa: E501 - one case is one line

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.marks import CommitMark
from mergerepl.systables import replinfo
from tests.bad_inputs.changed_tables import BOTH, SCHEMA, SYNC, Schema, altered, no_null, retype
from tests.bad_inputs.conftest import Refused, run
from tests.networks import FILE, PROPERTIES, Network, restate
from tests.publish.publishing import column

pytestmark = pytest.mark.usefixtures("no_engine")

ID, REGION, AMOUNT = column("id", "long"), column("region", "string"), column("amount", "double")
SHORT = column("region", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")
COUNTED = column("id", "long", **{"delta.identity.start": 1, "delta.identity.step": 1})
COMPUTED = column("amount", "double", **{"delta.generationExpression": "id * 2"})
COPIED = "move it away and leave `sync_type` out"

OWN_TABLES: list[Any] = [
    pytest.param([ID, REGION, column("amount", "decimal(10,2)")], (), ("'amount' is decimal(10,2) instead of double", COPIED), id="64 other type"),
    pytest.param([column("id", "integer"), REGION, AMOUNT], (), ("'id' is int instead of bigint", COPIED), id="64 other type of the key"),
    pytest.param([ID, {**REGION, "nullable": False}, AMOUNT], (), ("'region' allows no NULL, while the publisher's does", COPIED), id="65 NOT NULL"),
    pytest.param([ID, REGION, AMOUNT, column("note", "string")], (), ("has the column 'note', which is not published", COPIED), id="67 extra column"),
    pytest.param([ID, REGION], (), ("has no column 'amount'", COPIED), id="67 a column less"),
    pytest.param([ID, column("Region", "string"), AMOUNT], (), ("has no column 'region'", COPIED), id="60 name in another case"),
    pytest.param([COUNTED, REGION, AMOUNT], (), ("'id' is an identity column", "GUIDs"), id="69 identity column"),
    pytest.param([ID, REGION, COMPUTED], (), ("'amount' is generated as (id * 2), and the publisher's is not generated", COPIED), id="69 generated column"),
    pytest.param([ID, SHORT, AMOUNT], (), ("'region' is varchar(3) instead of string", COPIED), id="71 varchar"),
    pytest.param([ID, REGION, AMOUNT], ("region",), ("'region' is one of its partition columns, and the publisher's is not", COPIED), id="73 partitioned"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "partitioned_by", "says"), OWN_TABLES)
def test_a_subscribers_own_table_that_is_not_like_the_publishers(
    network: Network,
    refused: Refused,
    fields: list[dict[str, Any]],
    partitioned_by: tuple[str, ...],
    says: tuple[str, ...],
) -> None:
    new = NewTable(fields, partitioned_by, PROPERTIES)
    create_table(network.root("west") / "orders", new, CommitMark("test", "create"))
    network.write_file(
        subscriptions=[{"subscriber": "./north"}, {"subscriber": "./west", "sync_type": "none"}]
    )
    refused("apply", "-f", FILE, code=1, says=("'orders'", "/west/orders'", *says))


def mapped(*changes: Callable[[Schema], None]) -> Callable[[Path], None]:
    """Return what changes columns as ALTER TABLE does with column mapping: files keep the physical names."""

    def map_names(body: Schema) -> None:
        for number, field in enumerate(body["fields"], 1):
            names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
            field["metadata"] = names
        body["configuration"] |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}

    def alter(table: Path) -> None:
        for change in (map_names, *changes):
            restate(table, change, protocol=(2, 5))

    return alter


def drop_key(body: Schema) -> None:
    del body["fields"][0]


def add_key(body: Schema) -> None:
    metadata = {"delta.columnMapping.id": 4, "delta.columnMapping.physicalName": "col-4"}
    body["fields"].insert(0, column("id", "long", **metadata))


def rename_key(body: Schema) -> None:
    body["fields"][0]["name"] = "number"


def exchange_names(body: Schema) -> None:
    """Leave two columns of one type as three renames leave them."""
    _, region, amount = body["fields"]
    region["name"], amount["name"] = amount["name"], region["name"]
    region["type"], amount["type"] = amount["type"], region["type"]


def overwritten_without(table: Path) -> None:
    """Replace the rows without the key column, then add it."""
    restate(table, drop_key, more=[{"remove": {"path": "gone.parquet", "dataChange": True}}])
    restate(table, lambda body: body["fields"].insert(0, ID))


CHANGES: list[Any] = [
    pytest.param(altered(retype), "'amount' changed its type from double to string", id="64 other type"),
    pytest.param(altered(drop_key), "'id' was dropped or renamed", id="68 key dropped"),
    pytest.param(altered(rename_key), "'id' was dropped or renamed", id="68 key renamed"),
    pytest.param(mapped(drop_key), "'id' was dropped or renamed", id="68 key dropped with column mapping"),
    pytest.param(mapped(rename_key), "'id' was dropped or renamed", id="68 key renamed with column mapping"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_a_column_that_changed_at_the_publisher_or_at_both_sides(
    network: Network, refused: Refused, change: Callable[[Path], None], says: str
) -> None:
    """The same change made everywhere is refused as well; one at the subscriber alone, see `test_sessions`."""
    for name in ("hq", "north"):
        change(network.root(name) / "orders")
        refused("capture", "-f", name, code=1, says=(f"/{name}", says, *SCHEMA))
        refused(*SYNC, code=1, says=("/hq", says, *SCHEMA))
    network.write_file("more.yml", subscriptions=[*network.stated["subscriptions"], {"subscriber": "./west"}])
    refused("apply", "-f", "more.yml", code=1, says=("'orders'", says))
    assert says in run("status", "-f", "hq").stdout


@pytest.mark.parametrize(
    ("change", "column", "version"),
    [
        pytest.param(mapped(drop_key, add_key), "id", 2, id="dropped and added again"),
        pytest.param(overwritten_without, "id", 1, id="overwritten without it, then added"),
        pytest.param(mapped(exchange_names), "region", 2, id="names exchanged"),
    ],
)
def test_a_column_that_only_has_the_name_of_a_published_one(
    network: Network, refused: Refused, change: Callable[[Path], None], column: str, version: int
) -> None:
    """Its values would replace the published ones at every replica, and no row says so."""
    says = f"published column '{column}' is not the column any more that it was before version {version} "
    change(network.root("hq") / "orders")
    goes_back = ("This change does not travel", f"TO VERSION AS OF {version - 1} ", "publish the table again")
    for words in (("capture", "-f", "hq"), SYNC):
        refused(*words, code=1, says=("/hq", says, *goes_back))
    network.write_file("more.yml", subscriptions=[*network.stated["subscriptions"], {"subscriber": "./west"}])
    refused("apply", "-f", "more.yml", code=1, says=("'orders'", says))
    assert says in run("status", "-f", "hq").stdout
    change(network.root("north") / "orders")
    refused("capture", "-f", "north", code=1, says=("/north", says, "mergerepl reinit REPLICA --table"))


@pytest.mark.parametrize("words", BOTH)
def test_65_a_column_that_takes_null_again(
    network: Network, refused: Refused, words: tuple[str, ...]
) -> None:
    """The other side may not: a NULL from here could not be stored there."""
    altered(no_null)(network.root("north") / "orders")
    network.edit("north", replinfo.TABLE, captured={1: 1}, captured_commits={})
    altered(lambda body: body["fields"][1].update(nullable=True))(network.root("north") / "orders")
    refused(*words, code=1, says=("/north", "'region' is not NOT NULL any more", *SCHEMA))

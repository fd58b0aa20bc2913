"""What filters need of a publication's tables and of its subscribers' values: one message for each thing that lacks."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import PublicationError
from mergerepl.filters.clause import SessionFunction, text
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.model.publication import Article, Join, Publication
from mergerepl.publish.filters import (
    check_filters_unchanged,
    check_no_overlap,
    check_values,
    describe_rows,
    filters_of,
)

HOST, USER = SessionFunction.HOST_NAME, SessionFunction.SUSER_SNAME
CUSTOMERS = Article("customers", "customers", ("id",), filter="region = HOST_NAME()")
ORDERS = Article("orders", "orders", ("id",))
LINES = Article("lines", "lines", ("id",))
OF_CUSTOMERS = Join("orders", "customers", "customers.id = orders.customer", unique=True)
OF_ORDERS = Join("lines", "orders", "orders.id = lines.order_id", unique=True)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableState]:
    folder = tmp_path_factory.mktemp("hq")
    numbers = pa.field("id", pa.int64()), pa.field("kind", pa.string()), pa.field("level", pa.int32())
    schemas = {
        "customers": pa.schema([*numbers, pa.field("region", pa.string())]),
        "orders": pa.schema(
            [*numbers, pa.field("customer", pa.int64()), pa.field("made", pa.timestamp("us", "UTC"))]
        ),
        "lines": pa.schema([*numbers, pa.field("order_id", pa.int64())]),
    }
    for name, schema in schemas.items():
        write_deltalake(str(folder / name), schema.empty_table())
    return {name: open_table(folder / name) for name in schemas}


def publication(*articles: Article, joins: tuple[Join, ...] = ()) -> Publication:
    return Publication("sales", "/hq", articles, joins=joins)


def with_filter(clause: str, *, options: int = 0) -> Article:
    return replace(CUSTOMERS, filter=clause, partition_options=options)


def test_filters_are_prepared_for_the_tables(tables: dict[str, TableState]) -> None:
    filters = filters_of(
        publication(
            with_filter("REGION = HOST_NAME() or level = SUSER_SNAME()"), ORDERS, joins=(OF_CUSTOMERS,)
        ),
        tables,
    )
    assert (
        text(filters.own["customers"]) == "(`region` = HOST_NAME()) OR (`level` = CAST(SUSER_SNAME() AS INT))"
    )
    assert [text(join.on) for join in filters.joins] == ["`customers`.`id` = `orders`.`customer`"]
    assert PublicationFilters.from_json(filters.to_json()) == filters
    assert (
        describe_rows(filters, "orders")
        == "rows by a join with 'customers' on `customers`.`id` = `orders`.`customer`"
    )
    assert filters_of(publication(ORDERS), {}) is NO_FILTERS


def test_a_char_column_is_compared_without_its_padding(tmp_path: Path) -> None:
    char = Field("code", PrimitiveType("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(8)"})
    DeltaTable.create(str(tmp_path), Schema([Field("id", PrimitiveType("long")), char]))
    filters = filters_of(publication(with_filter("code = HOST_NAME()")), {"customers": open_table(tmp_path)})
    assert text(filters.own["customers"]) == "RTRIM(`code`) = HOST_NAME()"


REFUSED = {
    "unknown column": (
        (with_filter("regio = HOST_NAME()"),),
        (),
        "Article 'customers': its filter names the column 'regio'; did you mean region.",
    ),
    "left out": (
        (replace(CUSTOMERS, columns=("id", "kind")),),
        (),
        "Article 'customers': a filter needs the column 'region', which is not published: add it to `columns`.",
    ),
    "left out, needed by a join": (
        (CUSTOMERS, replace(ORDERS, columns=("id",))),
        (OF_CUSTOMERS,),
        "Article 'orders': a filter needs the column 'customer', which is not published: add it to `columns`.",
    ),
    "not boolean": (
        (with_filter("region"),),
        (),
        "Article 'customers': its filter is of type string, and must be true or false.",
    ),
    "types of a join": (
        (CUSTOMERS, ORDERS),
        (Join("orders", "customers", "customers.region = orders.customer"),),
        "Article 'orders': its join with 'customers' cannot be used: `on` compares STRING with BIGINT; write a CAST of "
        "one of them.",
    ),
    "time zone": (
        (replace(ORDERS, filter="made > '2020-01-01'"),),
        (),
        "Article 'orders': its filter depends on the time zone of the session that reads it: use a DATE or "
        "TIMESTAMP_NTZ column.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_filter_that_does_not_fit_its_tables_is_refused(tables: dict[str, TableState], case: str) -> None:
    articles, joins, message = REFUSED[case]
    with pytest.raises(PublicationError) as error:
        filters_of(publication(*articles, joins=joins), tables)
    assert error.value.message == message


def test_a_value_that_the_clause_cannot_cast_is_refused(tables: dict[str, TableState]) -> None:
    filters = filters_of(publication(with_filter("level = HOST_NAME()")), tables)
    check_values(filters, {HOST: " 3 "}, of="Subscriber './n'")
    with pytest.raises(PublicationError) as error:
        check_values(filters, {HOST: "abc"}, of="Subscriber './n'")
    assert error.value.message == (
        "Subscriber './n': host_name 'abc' is no INT, as the filter of 'customers' needs. Correct the value, or the "
        "filter."
    )


OVERLAPPING = {
    "OR": ((with_filter("region = HOST_NAME() or kind = HOST_NAME()", options=2),), (), "its filter has an OR"),
    "no equality": (
        (with_filter("region > HOST_NAME()", options=3),),
        (),
        "its filter has no equality of a column with HOST_NAME() or SUSER_SNAME()",
    ),
    "static": (
        (with_filter("region = 'x'", options=2),),
        (),
        "its filter has no equality of a column with HOST_NAME()",
    ),
    "filter and join": (
        (
            with_filter("region = HOST_NAME()", options=2),
            replace(ORDERS, partition_options=2, filter="kind = HOST_NAME()"),
        ),
        (OF_CUSTOMERS,),
        "its own filter and the join with 'customers' are 2",
    ),
    "not unique": (
        (with_filter("region = HOST_NAME()", options=2), replace(ORDERS, partition_options=2)),
        (replace(OF_CUSTOMERS, unique=False),),
        "the join with 'customers' is not `unique: true`",
    ),
    "one value in two partitions": (
        (with_filter("region = HOST_NAME()", options=2), replace(ORDERS, filter="kind = SUSER_SNAME()")),
        (),
        "partitions (host_name 'N', suser_sname 'ann') and (host_name 'N', suser_sname 'bob') would have the same rows",
    ),
}  # fmt: skip
PARTITIONS = [
    {HOST: "N", USER: "ann"},
    {HOST: "S", USER: "ann"},
    {HOST: "N", USER: "bob"},
    {HOST: "N", USER: "ann"},
]


@pytest.mark.parametrize("case", OVERLAPPING)
def test_partitions_that_could_share_a_row_are_refused(tables: dict[str, TableState], case: str) -> None:
    articles, joins, message = OVERLAPPING[case]
    stated = publication(*articles, joins=joins)
    partitions = PARTITIONS if case == "one value in two partitions" else PARTITIONS[:2]
    with pytest.raises(PublicationError, match="needs one filter path: ") as error:
        check_no_overlap(stated, filters_of(stated, tables), partitions)
    assert message in error.value.message


def test_partitions_that_share_no_row_are_taken(tables: dict[str, TableState]) -> None:
    articles = (
        with_filter("region = HOST_NAME() and kind = SUSER_SNAME() and level > 1", options=2),
        replace(ORDERS, partition_options=2),
        replace(LINES, partition_options=3),
    )
    stated = publication(*articles, joins=(OF_CUSTOMERS, OF_ORDERS))
    check_no_overlap(stated, filters_of(stated, tables), PARTITIONS)


def test_other_filters_of_a_published_article_are_refused(tables: dict[str, TableState]) -> None:
    stated = publication(CUSTOMERS, ORDERS, joins=(OF_CUSTOMERS,))
    before = filters_of(stated, tables)
    same = replace(stated, articles=(with_filter("`Region`=host_name()"), ORDERS))
    check_filters_unchanged(before, filters_of(same, tables), ["customers", "orders"])
    changed = {
        "customers": (
            replace(stated, articles=(with_filter("kind = HOST_NAME()"), ORDERS)),
            "was published with the filter `region` = HOST_NAME() and is with the filter `kind` = HOST_NAME() in the",
        ),
        "orders": (
            replace(stated, joins=()),
            "on `customers`.`id` = `orders`.`customer` and is without a filter in the",
        ),
    }
    for article, (now, says) in changed.items():
        check_filters_unchanged(
            before, filters_of(now, tables), [name for name in ("customers", "orders") if name != article]
        )
        with pytest.raises(PublicationError, match=f"^Article '{article}' was published") as error:
            check_filters_unchanged(before, filters_of(now, tables), ["customers", "orders"])
        assert says in error.value.message


def test_a_static_filter_beside_a_join_is_said_to_widen_it(tables: dict[str, TableState]) -> None:
    stated = publication(CUSTOMERS, replace(ORDERS, filter="kind = 'x'"), joins=(OF_CUSTOMERS,))
    assert "(what its static filter selects goes to every subscriber; " in describe_rows(
        filters_of(stated, tables), "orders"
    )

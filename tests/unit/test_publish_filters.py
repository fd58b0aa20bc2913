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
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters, counted, with_next
from mergerepl.model.publication import Article, Join, Publication
from mergerepl.publish.filters import (
    changed_filters,
    check_followed_filters,
    check_no_overlap,
    check_values,
    describe_rows,
    filters_of,
    followed_filters,
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


def test_filters_of_articles_that_subscribers_have_change_if_rows_can_follow(
    tables: dict[str, TableState],
) -> None:
    stated = publication(CUSTOMERS, ORDERS, joins=(OF_CUSTOMERS,))
    before, given = filters_of(stated, tables), ["customers", "orders"]
    same = filters_of(replace(stated, articles=(with_filter("`Region`=host_name()"), ORDERS)), tables)
    check_followed_filters(before, same, given)
    assert changed_filters(before, same, given) == {}
    other = filters_of(replace(stated, articles=(with_filter("kind = HOST_NAME()"), ORDERS)), tables)
    check_followed_filters(before, other, given)
    assert changed_filters(before, other, given) == {"customers": "the filter `kind` = HOST_NAME()"}
    assert changed_filters(before, other, ["orders"]) == {}
    assert followed_filters(before, other, given) == other
    assert followed_filters(before, other, ["orders"]) == before
    refused = {
        "Article 'orders' was published .* and is without a filter in the file": replace(stated, joins=()),
        r"use HOST_NAME\(\) and SUSER_SNAME\(\) in the file": replace(
            stated, articles=(with_filter("region = HOST_NAME() AND kind = SUSER_SNAME()"), ORDERS)
        ),
    }
    for says, now in refused.items():
        with pytest.raises(PublicationError, match=says):
            check_followed_filters(before, filters_of(now, tables), given)


def test_a_join_with_an_article_that_is_not_published_yet_is_refused(tables: dict[str, TableState]) -> None:
    before = filters_of(publication(CUSTOMERS, replace(ORDERS, filter="kind = 'x'")), tables)
    now = filters_of(
        publication(CUSTOMERS, replace(ORDERS, filter="kind = 'x'"), joins=(OF_CUSTOMERS,)), tables
    )
    with pytest.raises(PublicationError, match="article 'customers' is not published yet"):
        check_followed_filters(before, now, ["orders"])


def test_filters_count_once_an_article_has_their_number(tables: dict[str, TableState]) -> None:
    before, after = (
        filters_of(publication(with_filter(each), ORDERS), tables)
        for each in ("region = HOST_NAME()", "kind = HOST_NAME()")
    )
    stored = with_next(before.to_json(), after, tablenick=3, number=2)
    numbers = {3: 1}
    assert counted(stored, numbers.__getitem__) == before.to_json()
    assert PublicationFilters.from_json(stored) == before
    numbers[3] = 2
    assert counted(stored, numbers.__getitem__) == after.to_json()
    assert counted(before.to_json(), numbers.__getitem__) == before.to_json()


def test_a_static_filter_beside_a_join_is_said_to_widen_it(tables: dict[str, TableState]) -> None:
    stated = publication(CUSTOMERS, replace(ORDERS, filter="kind = 'x'"), joins=(OF_CUSTOMERS,))
    assert "(what its static filter selects goes to every subscriber; " in describe_rows(
        filters_of(stated, tables), "orders"
    )

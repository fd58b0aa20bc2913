"""Tables of few rows and odd types, edits that conflict, and the bits of rows."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.rows.encodings import encoded
from tests.networks import Pair

ODD = """cast(id as double) b, cast(id / 7 as decimal(20, 6)) d, timestamp '1582-10-04 00:00:00' t,
    array(named_struct('x', cast('nan' as double))) s, date '9999-12-31' y"""
ARTICLES = {
    "by_row": (f"select id, cast(id as string) a, {ODD} from range(40)", {"key": ["id"]}),
    "by_column": (
        f"select id, cast(id as string) a, {ODD} from range(40)",
        {"key": ["id"], "tracking": "column"},
    ),
    "days": (
        f"select date_add(date '1969-12-20', cast(id as int)) k, cast(id as string) n, {ODD} from range(40)",
        {"key": ["k", "n"], "tracking": "column"},
    ),
    "one_side": (f"select id, cast(id as string) a, {ODD} from range(40)", {"key": ["id"]}),
}

FILTERED = {
    "customers": (
        f"select id, if(id % 2 = 0, 'North', 'South') region, cast(id as string) a, {ODD} from range(12)",
        {"key": ["id"], "filter": "region = HOST_NAME()"},
    ),
    "orders": (
        f"select id, id % 12 customer, cast(id as string) a, {ODD} from range(24)",
        {"key": ["id"], "tracking": "column"},
    ),
    "lines": (
        f"select id % 12 order_id, cast(id as string) n, 1 a, {ODD} from range(36)",
        {"key": ["order_id", "n"]},
    ),
}
"""Articles whose rows are filtered, with JOINS: north has those of the customers with an even id."""

JOINS = (
    {"article": "orders", "parent": "customers", "on": "orders.customer = customers.id", "unique": True},
    {"article": "lines", "parent": "orders", "on": "lines.order_id = orders.id", "unique": True},
)
TO_ITS_OWN = ({"subscriber": "./north", "host_name": "North"},)


def edit_filtered(pair: Pair, number: int) -> None:
    """Change rows at one side, at both alike and against each other; delete and insert some that no row follows."""
    pair.edit(
        f"update hq.customers set a = 'h{number}', b = -0.0 where id < 5",
        f"update north.customers set a = 'n{number}' where id = 4",
        "update north.customers set t = null where id = 8",
    )
    pair.edit(
        f"update hq.orders set a = 'h{number}' where id < 6",
        f"update north.orders set d = {number}.5 where id = 4",
        f"update north.orders set a = 'n{number}' where id = 2",
        "update north.orders set s = null where id > 15",
    )
    pair.edit(
        f"update hq.lines set a = {number} where order_id < 4",
        "update north.lines set b = cast('NaN' as double) where order_id = 2",
        f"delete from hq.lines where n = '1{number}'",
        f"delete from north.lines where n = '2{number}'",
    )
    pair.sql(f"insert into hq.lines select id, 'h{number}', 1 a, {ODD} from range(5)")
    pair.sql(f"insert into north.lines select 2 * id, 'n{number}', 1 a, {ODD} from range(3)")


def move_rows(pair: Pair) -> None:
    """Move rows of the publisher and of the subscriber into and out of its partition, with those that follow them."""
    pair.edit(
        "update hq.customers set region = 'South' where id = 2",
        "update hq.customers set region = 'North' where id = 3",
        "update north.customers set region = 'South' where id = 6",
    )
    pair.edit("update north.orders set customer = 1 where id = 8", "delete from hq.orders where id = 10")
    pair.sql(f"insert into north.orders select 100, 5, 'outside', {ODD} from range(1)")


def bits(rows: DataFrame) -> list[bytes]:
    """Return each row as the bytes that its values are."""
    whole = rows.select(F.struct("*").alias("whole"))
    coded = encoded(F.col("whole"), whole.schema["whole"].dataType)
    return sorted(bytes(row.coded) for row in whole.select(coded.alias("coded")).collect())


def edit(pair: Pair, number: int) -> None:
    """Change rows at one side, at both alike, at both in other columns, and against each other; delete and insert."""
    for name in ("by_row", "by_column"):
        pair.edit(
            f"update hq.{name} set a = 'h', b = -0.0 where id < 12",
            f"update north.{name} set a = 'h' where id < 3",
        )
        pair.edit(
            f"update north.{name} set a = 'n' where id > 2 and id < 6",
            f"update north.{name} set d = 1 where id > 4 and id < 9",
        )
        pair.edit(
            f"delete from north.{name} where id = 9", f"delete from hq.{name} where id > 13 and id < 16"
        )
        pair.edit(
            f"delete from north.{name} where id > 14 and id < 18",
            f"update north.{name} set a = null where id = 14",
        )
        pair.sql(f"insert into hq.{name} select id + {number}00 + 100, 'h', {ODD} from range(3)")
        pair.sql(f"insert into north.{name} select id + {number}00 + 102, 'n', {ODD} from range(3)")
    pair.sql("update hq.days set b = double('nan'), s = null where n < '2'")
    pair.sql("update north.days set b = -0.0 where n < '15'")
    pair.sql("delete from north.days where n = '3'")
    pair.sql("update hq.one_side set b = -0.0, t = null where id < 5")
    pair.sql("delete from hq.one_side where id = 7")

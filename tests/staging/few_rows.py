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


def bits(rows: DataFrame) -> list[bytes]:
    """Return each row as the bytes that its values are."""
    whole = rows.select(F.struct("*").alias("whole"))
    coded = encoded(F.col("whole"), whole.schema["whole"].dataType)
    return sorted(bytes(row.coded) for row in whole.select(coded.alias("coded")).collect())


def edit(pair: Pair, number: int) -> None:
    """Change rows at one side, at both alike, at both in other columns, and against each other; delete and insert."""
    for name in ("by_row", "by_column") if number == 0 else ("by_column",):
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

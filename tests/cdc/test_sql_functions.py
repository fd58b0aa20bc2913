"""The query functions as table functions of SQL: the rows and the errors of Python, for each option."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mergerepl import cdc
from mergerepl.cdc.sql_functions import MAX_LSN, MIN_LSN
from mergerepl.logreader.lsn import Lsn
from tests.cdc.databases import add, delete, enabled, merge, update

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}
ALL, NET = "fn_cdc_get_all_changes_dbo_orders", "fn_cdc_get_net_changes_dbo_orders"


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


class Shop:
    """A captured table with changes of every kind, and its functions in SQL."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        enabled(root, {"orders": ROWS})
        self.spark, self.database, self.orders = spark, cdc.Database(root), root / "orders"
        merge(self.orders, {1: ("A", 1), 2: (None, 2), 4: ("d", 4)})
        update(self.orders, "id = 4", qty="40")
        delete(self.orders, "id = 3")
        add(self.orders, {3: ("again", 3), 5: ("e", None)})
        delete(self.orders, "id = 5")
        self.database.capture()
        self.instance = self.database.instance("dbo_orders")
        assert self.database.register_functions(spark) == (MAX_LSN, MIN_LSN, ALL, NET)
        self.low, self.high = spark.sql(f"SELECT {MIN_LSN}('DBO_orders'), {MAX_LSN}()").collect()[0]

    def call(self, name: str, first: bytes | None, last: bytes | None, option: str = "all") -> DataFrame:
        ends = ("NULL" if each is None else f"X'{each.hex()}'" for each in (first, last))
        return self.spark.sql(f"SELECT * FROM {name}({', '.join(ends)}, '{option}')")

    def compare(self, first: bytes, last: bytes, *, all_: tuple[str, ...], net: tuple[str, ...]) -> None:
        for name, read, options in (
            (ALL, self.instance.changes, all_),
            (NET, self.instance.net_changes, net),
        ):
            for option in options:
                called, expected = self.call(name, first, last, option), read(first, last, option)
                assert called.columns == expected.columns
                assert rows(called) == rows(expected), (name, option)


@pytest.mark.slow
def test_sql_functions_have_the_options_and_errors_of_python(spark: SparkSession, replica_dir: Path) -> None:
    shop = Shop(spark, replica_dir)
    low, high = shop.low, shop.high
    assert (low, high) == (shop.instance.min_lsn(), shop.instance.max_lsn())
    for first, last in ((low, high), (low, low), (Lsn(low).next(), high), (high, high)):
        shop.compare(
            first, last, all_=("all", "all update old"), net=("all", "all with mask", "all with merge")
        )
    middle = Lsn(low).next().next()
    refused = ((None, high), (high, middle), (Lsn(low).previous(), high), (low, Lsn(high).next()))
    for name, read in ((ALL, shop.instance.changes), (NET, shop.instance.net_changes)):
        for first, last in refused:
            if first is not None:
                with pytest.raises(cdc.LsnRangeError) as said:
                    read(first, last)
            with pytest.raises(PySparkException) as met:
                shop.call(name, first, last).collect()
            assert "is not in the validity interval" in str(met.value)
            assert first is None or said.value.message in str(met.value)
        with pytest.raises(PySparkException, match="row_filter is some; it is one of: all, all "):
            shop.call(name, low, high, "some").collect()
    # New changes are there at once, and rows that somebody doubled are named.
    add(shop.orders, {1: ("double", 1)})
    shop.database.capture()
    newest = shop.instance.max_lsn()
    assert [row["note"] for row in shop.call(ALL, newest, newest).collect()] == ["double"]
    with pytest.raises(PySparkException, match="may have had more than one row at once"):
        shop.call(NET, low, newest).collect()

"""What rows look for through a join: files of the other article that cannot have it are not read."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mergerepl.filters.parse import parse_on
from mergerepl.filters.prepare import prepare_clause
from mergerepl.filters.publication_filters import JoinFilter
from mergerepl.merge.partitions.join_bounds import looked_for
from mergerepl.rows.images import row_image
from tests.publish.publishing import article

pytestmark = pytest.mark.spark

TYPES = {"id": "bigint", "name": "string", "size": "double"}
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.float64())])
IDS, NAMES, SIZES = "orders.id = lines.id", "orders.name = lines.name", "orders.size = lines.size"

CASES = {
    "one value": (IDS, [(15, "a1", 1.0)], 1, {"b"}),
    "few, far apart": (IDS, [(1, "", 1.0), (29, "", 1.0)], 2, {"a", "c"}),
    "more are looked for between the first and the last": (
        IDS,
        [(1, "", 1.0), (29, "", 1.0)],
        100,
        {"a", "b", "c"},
    ),
    "nobody knows how many": (IDS, [(11, "", 1.0), (19, "", 1.0)], None, {"b"}),
    "texts": (NAMES, [(None, "c21", 1.0), (None, None, 1.0)], 2, {"c"}),
    "NULL matches nothing, and nothing is left out for it": (IDS, [(None, "", 1.0)], 1, {"a", "b", "c"}),
    "a type without bounds": (SIZES, [(1, "", 1.0)], 1, {"a", "b", "c"}),
    "two equalities": (f"{IDS} AND {NAMES}", [(15, "c21", 1.0)], 1, set()),
    "a computed side": ("orders.id = lines.id + 1", [(15, "", 1.0)], 1, {"a", "b", "c"}),
}
"""`on`, rows of lines, how many they are at most, and the files of orders that are read, by the letter of their names."""


@pytest.mark.slow
def test_a_join_reads_the_files_that_may_have_what_it_looks_for(spark: SparkSession, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    files: dict[str, str] = {}
    for number, letter in enumerate("abc"):
        rows = [{"id": i, "name": f"{letter}{i}", "size": 1.0} for i in range(10 * number, 10 * number + 10)]
        write_deltalake(str(orders), pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
        files |= {path.name: letter for path in orders.glob("*.parquet") if path.name not in files}
    table = spark.read.format("delta").load(str(orders))
    articles = {name: replace(article(table), name=name) for name in ("orders", "lines")}
    found = {}
    for name, (on, lines, most, _) in CASES.items():
        clause = prepare_clause(
            parse_on(on, parent="orders", article="lines"), {"orders": TYPES, "lines": TYPES}
        )
        join = JoinFilter("lines", "orders", clause)
        rows = spark.createDataFrame(
            pa.Table.from_pylist(
                [dict(zip(SCHEMA.names, line, strict=True)) for line in lines], schema=SCHEMA
            )
        )
        images = rows.select(row_image(tuple(TYPES)).alias("row"))
        count, conditions = looked_for(images, "lines", [join], articles, most=most)
        assert count == len(lines), name
        read = table.where(conditions[join]).inputFiles()
        found[name] = {files[each.rpartition("/")[2]] for each in read}
    assert found == {name: case[-1] for name, case in CASES.items()}

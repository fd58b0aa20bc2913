"""What a column states of its parts: which rows break it, and that a MERGE writes the very type."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl.delta import merge
from mergerepl.delta.contract.rules import declared_rules
from mergerepl.delta.log import head_version
from mergerepl.delta.table import open_table
from mergerepl.delta.types import has_not_null_parts, invariants
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.nested import as_declared, holds_inside, is_declared_inside
from tests.networks import restate
from tests.publish.publishing import article

pytestmark = pytest.mark.spark

NUMBERS = T.ArrayType(T.IntegerType(), containsNull=False)
PART = T.StructType(
    [T.StructField("a.b", T.IntegerType(), nullable=False), T.StructField("c", T.StringType())]
)
OUTER = T.StructType([T.StructField("inner", PART), T.StructField("d", T.IntegerType())])
VALUES = T.MapType(T.StringType(), T.DoubleType(), valueContainsNull=False)
DEEP = T.MapType(
    T.StringType(),
    T.ArrayType(T.StructType([T.StructField("n", NUMBERS, nullable=False)])),
    valueContainsNull=False,
)

CASES: list[tuple[T.DataType, Any, bool]] = [
    (NUMBERS, None, True),
    (NUMBERS, [], True),
    (NUMBERS, [1, 2], True),
    (NUMBERS, [1, None], False),
    # Of a row's own structs Delta asks for the part also where the struct is NULL, at any depth.
    (PART, (1, None), True),
    (PART, (None, "x"), False),
    (PART, None, False),
    (OUTER, ((1, None), None), True),
    (OUTER, (None, 1), False),
    (T.ArrayType(PART), None, True),
    (T.ArrayType(PART), [None, (1, None)], True),
    (T.ArrayType(PART), [(1, None), (None, "x")], False),
    (T.ArrayType(PART, containsNull=False), [None], False),
    (VALUES, {}, True),
    (VALUES, {"x": -0.0}, True),
    (VALUES, {"x": None}, False),
    (DEEP, {"x": [None, ([1],)]}, True),
    (DEEP, {"x": None}, False),
    (DEEP, {"x": [(None,)]}, False),
    (DEEP, {"x": [([1, None],)]}, False),
]


def loosened(data_type: Any) -> Any:
    """Return a type whose every part may be NULL."""
    text = json.dumps(data_type.jsonValue())
    for name in ("containsNull", "valueContainsNull", "nullable"):
        text = text.replace(f'"{name}": false', f'"{name}": true')
    return T.StructField.fromJson(
        {"name": "v", "type": json.loads(text), "nullable": True, "metadata": {}}
    ).dataType


def test_which_values_break_what_a_column_states_of_its_parts(spark: SparkSession) -> None:
    frames = []
    for number, (data_type, value, _) in enumerate(CASES):
        schema = T.StructType([T.StructField("v", loosened(data_type))])
        rule = holds_inside(F.col("v"), data_type)
        assert rule is not None
        frames.append(
            spark.createDataFrame([(value,)], schema).select(F.lit(number).alias("n"), rule.alias("holds"))
        )
    found: DataFrame = frames[0]
    for frame in frames[1:]:
        found = found.unionAll(frame)
    holding = {row["n"]: row["holds"] for row in found.collect()}
    assert [holding[number] for number in range(len(CASES))] == [holds for *_, holds in CASES]


def test_a_value_gets_the_very_type_and_stays_what_it_is(spark: SparkSession) -> None:
    kept = [(data_type, value) for data_type, value, holds in CASES if holds]
    loose = T.StructType(
        [T.StructField(f"v{n}", loosened(data_type)) for n, (data_type, _) in enumerate(kept)]
    )
    rows = spark.createDataFrame([tuple(value for _, value in kept)], loose)
    typed = rows.select(
        *(
            as_declared(spark, F.col(f"v{n}"), data_type).alias(f"v{n}")
            for n, (data_type, _) in enumerate(kept)
        )
    )
    assert [field.dataType for field in typed.schema] == [data_type for data_type, _ in kept]
    assert typed.collect() == rows.collect()
    assert as_declared(spark, F.col("v0"), T.StringType()) is not None
    assert not is_declared_inside(T.MapType(T.StringType(), T.ArrayType(PART.fields[1].dataType)))
    for data_type, _, _ in CASES:
        assert has_not_null_parts(data_type.jsonValue())
        assert not has_not_null_parts(loosened(data_type).jsonValue())


def test_invariants_are_rules_also_inside_of_structs(spark: SparkSession, tmp_path: Path) -> None:
    def stated(text: str) -> dict[str, str]:
        return {"delta.invariants": json.dumps({"expression": {"expression": text}})}

    inner = {"name": "b", "type": "integer", "nullable": True, "metadata": stated("s.b < 9")}
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "v", "type": "integer", "nullable": True, "metadata": stated("v > 0")},
        {"name": "s", "type": {"type": "struct", "fields": [inner]}, "nullable": True, "metadata": {}},
    ]
    assert invariants(fields) == {"v": "v > 0", "s.b": "s.b < 9"}
    rows = pa.table({"id": [1], "v": pa.array([1], pa.int32()), "s": pa.array([{"b": 1}])})
    write_deltalake(tmp_path, rows)
    restate(tmp_path, lambda body: body.update(fields=fields))
    rules = declared_rules(open_table(tmp_path), ["id", "v", "s"])
    assert list(rules) == ["invariant of column 'v' (v > 0)", "invariant of column 's.b' (s.b < 9)"]
    schema = "id bigint, v int, s struct<b:int>"
    values = spark.createDataFrame(
        [(1, 1, (1,)), (2, 0, (1,)), (3, None, (1,)), (4, 1, (9,)), (5, 1, None)], schema
    )
    found = values.select("id", *(rule.alias(f"r{n}") for n, rule in enumerate(rules.values()))).collect()
    assert {row["id"] for row in found if row["r0"] and row["r1"]} == {1}


@pytest.mark.slow
def test_a_merge_is_analysed_without_a_job_and_without_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    table, staged = tmp_path / "t", tmp_path / "staged"
    target = spark.createDataFrame([(1, "a")], "id bigint, v string")
    target.write.format("delta").save(str(table))
    DeltaTable.forPath(spark, str(table)).toDF().collect()

    def stage(value: str) -> None:
        rows = spark.sql(f"select 'update' as action, named_struct('c0', 1L, 'c1', {value}) as row")
        rows.write.mode("overwrite").parquet(str(staged))

    def analyse() -> None:
        merge.analyse_merge(
            spark,
            lambda session: read_staged(session, staged),
            table,
            article(target),
            action="action",
            actions={"update": 1, "insert": 1},
            bounds={},
        )

    stage("'b'")
    analyse()
    spark.sparkContext.setJobGroup("analysis", "")
    try:
        analyse()
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("analysis") == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    stage("array(1)")
    with pytest.raises(Exception, match=r"DATATYPE_MISMATCH|cannot cast"):
        analyse()
    assert head_version(table) == 0

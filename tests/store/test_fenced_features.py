"""The table features with which delta-rs commits fences: those that `apply` admits in a store, no more and no fewer."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta.contract.problems import Code, TableContract
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import commit_fence
from mergerepl.errors import StoreError
from mergerepl.store.location import Location

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = {
    "delta.enableChangeDataFeed=true": "(id bigint)",
    "delta.enableDeletionVectors=true": "(id bigint)",
    "delta.columnMapping.mode=name": "(id bigint)",
    "delta.columnMapping.mode=id": "(id bigint)",
    "delta.checkpointPolicy=v2": "(id bigint)",
    "delta.feature.timestampNtz=supported": "(id bigint, t timestamp_ntz)",
    "delta.feature.checkConstraints=supported": "(id bigint)",
    "delta.feature.generatedColumns=supported": "(id bigint, g bigint generated always as (id + 1))",
    "delta.feature.variantType=supported": "(id bigint, v variant)",
    "delta.enableRowTracking=true": "(id bigint)",
    "delta.enableInCommitTimestamps=true": "(id bigint)",
    "delta.enableTypeWidening=true": "(id bigint)",
    "delta.feature.vacuumProtocolCheck=supported": "(id bigint)",
    "delta.feature.allowColumnDefaults=supported": "(id bigint default 1)",
    "delta.feature.domainMetadata=supported": "(id bigint)",
    "delta.feature.identityColumns=supported": "(id bigint generated always as identity)",
}


@pytest.mark.parametrize("property_", TABLES)
def test_a_table_is_refused_in_a_store_exactly_if_it_takes_no_fence(
    spark: SparkSession, tmp_path: Path, property_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergerepl.delta.contract.problems.is_local", lambda _: False)
    name, _, value = property_.partition("=")
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}/t` {TABLES[property_]} USING delta TBLPROPERTIES ('{name}' = '{value}')"
    )
    table = Location.of(tmp_path / "t")
    is_refused = TableContract(open_table(table)).find(Code.UNFENCED) is not None
    with pytest.raises(StoreError, match="DROP FEATURE") if is_refused else nullcontext():
        commit_fence(table, 3, ["mergerepl-runs"])
    assert open_table(table).version == (0 if is_refused else 1)
    assert spark.read.format("delta").load(str(table)).count() == 0

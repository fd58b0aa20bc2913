"""The three sites, and the changes made there before they meet: with Spark SQL, DataFrames, MERGE, and without Spark."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.cli.demo.flights_data import TABLES
from mergerepl.rows.sql import quote
from mergerepl.spark.session import new_session

HQ: Final = "hq"
NORTH: Final = "north"
SOUTH: Final = "south"
SITES: Final = (HQ, NORTH, SOUTH)

Row = dict[str, Any]


@dataclass(frozen=True)
class Sites:
    """The folder of the demo: one folder a replica, one folder a table in it."""

    folder: Path

    def root(self, site: str) -> Path:
        """Return a replica's root."""
        return self.folder / site

    def table(self, site: str, name: str) -> DeltaTable:
        """Return a table for deltalake."""
        return DeltaTable(str(self.root(site) / name))

    def in_sql(self, site: str, name: str) -> str:
        """Return a table's name in Spark SQL."""
        return f"delta.{quote(str(self.root(site) / name))}"

    def row(self, site: str, name: str, key: Mapping[str, Any]) -> Row | None:
        """Return the current row, or None."""
        rows: list[Row] = self.table(site, name).to_pyarrow_table().to_pylist()
        return next((row for row in rows if all(row[column] == value for column, value in key.items())), None)


def condition(key: Mapping[str, Any]) -> str:
    """Return the condition that selects a row, valid in Spark's SQL and in deltalake; the demo's keys hold no quotes."""
    return " AND ".join(
        f"{column} = '{value}'" if isinstance(value, str) else f"{column} = {value}"
        for column, value in key.items()
    )


FLIGHT_KEY: Final = next(table.key for table in TABLES if table.name == "flights")
EVENING: Final = 2100
"""Scheduled departures from then on are delayed by a MERGE."""

SPARK_SQL: Final = "Spark SQL"
DATAFRAME: Final = "Spark DataFrame"
DELTALAKE: Final = "deltalake, no Spark"

_METRICS: Final = (
    "numUpdatedRows",
    "numDeletedRows",
    "numTargetRowsUpdated",
    "num_updated_rows",
    "num_deleted_rows",
    "num_added_rows",
)
"""Metrics of a commit's changes, as Spark and delta-rs name them."""


@dataclass(frozen=True)
class Cast:
    """The rows of the story."""

    merged: Row
    """Key of a flight: two sites change different columns of it."""
    contested: Row
    """Key of a flight: two sites give it another plane each."""
    cancelled: Row
    """Key of a cancelled flight: a subscriber deletes it."""
    extra: Row
    """A flight that a client adds."""
    retired: Row
    """Key of a plane: the publisher deletes it while a subscriber changes it."""
    spare_planes: tuple[str, str]
    airport: Row
    """Key of an airport: both subscribers change it."""
    last_day: tuple[int, int]

    @property
    def extra_key(self) -> Row:
        """Return the key of the added flight."""
        return {name: self.extra[name] for name in FLIGHT_KEY}


def choose_cast(tables: Mapping[str, pa.Table]) -> Cast:
    """Return the rows, the same ones for the same data."""
    flights = tables["flights"].sort_by([(name, "ascending") for name in FLIGHT_KEY]).to_pylist()
    first_day, last_day = ((flight["month"], flight["day"]) for flight in (flights[0], flights[-1]))
    known = {plane["tailnum"] for plane in tables["planes"].to_pylist()}
    early = [flight for flight in flights if (flight["month"], flight["day"]) == first_day]
    flown = [flight for flight in early if flight["arr_delay"] is not None and flight["tailnum"] in known]
    tailnums = sorted({flight["tailnum"] for flight in flown})
    merged, contested = flown[0], flown[1]
    cancelled = next(flight for flight in early if flight["dep_time"] is None)
    free = [tailnum for tailnum in tailnums if tailnum not in (merged["tailnum"], contested["tailnum"])]
    unflown = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum"}
    extra = {**merged, **dict.fromkeys(unflown), "flight": 1 + max(flight["flight"] for flight in flights)}
    return Cast(
        merged=_key(merged),
        contested=_key(contested),
        cancelled=_key(cancelled),
        extra=extra,
        retired={"tailnum": free[2]},
        spare_planes=(free[0], free[1]),
        airport={"faa": merged["dest"]},
        last_day=last_day,
    )


def _key(flight: Row) -> Row:
    return {name: flight[name] for name in FLIGHT_KEY}


@dataclass(frozen=True)
class Edit:
    """One piece of work at one site: its display and its function."""

    site: str
    tool: str
    article: str
    statement: str
    work: Callable[[], object]

    def do(self, sites: Sites) -> int:
        """Do it. Returns the number of changed rows from the table's own log."""
        self.work()
        (commit,) = sites.table(self.site, self.article).history(1)
        metrics = commit.get("operationMetrics", {})
        return sum(int(metrics[name]) for name in _METRICS if name in metrics)


def edits(sites: Sites, cast: Cast, spark: SparkSession) -> Iterator[Edit]:
    """Yield the edits in order."""
    yield _sql_update(sites, cast, spark)
    yield _merge(sites, cast, spark)
    yield _dataframe_update(sites, cast, spark)
    yield from _deltalake_edits(sites, cast)


def _sql_update(sites: Sites, cast: Cast, spark: SparkSession) -> Edit:
    statement = f"UPDATE {{table}} SET dep_delay = dep_delay + 15 WHERE {condition(cast.merged)}"
    runs = statement.format(table=sites.in_sql(HQ, "flights"))
    return Edit(HQ, SPARK_SQL, "flights", statement.format(table="flights"), partial(spark.sql, runs))


def _merge(sites: Sites, cast: Cast, spark: SparkSession) -> Edit:
    """Return a MERGE of a table of delays, as a job that loads a feed does it."""
    month, day = cast.last_day

    def work() -> None:
        session = new_session(spark)
        flights = session.read.format("delta").load(str(sites.root(HQ) / "flights"))
        is_evening = f"month = {month} AND day = {day} AND sched_dep_time >= {EVENING}"
        feed = flights.where(is_evening).select(*FLIGHT_KEY)
        feed.createOrReplaceTempView("evening_delays")
        on = " AND ".join(f"t.{name} = s.{name}" for name in FLIGHT_KEY)
        session.sql(
            f"MERGE INTO {sites.in_sql(HQ, 'flights')} t USING evening_delays s ON {on} "
            "WHEN MATCHED THEN UPDATE SET dep_delay = coalesce(dep_delay, 0) + 30"
        )

    shown = "MERGE INTO flights USING evening_delays … UPDATE SET dep_delay = coalesce(dep_delay, 0) + 30"
    return Edit(HQ, SPARK_SQL, "flights", shown, work)


def _dataframe_update(sites: Sites, cast: Cast, spark: SparkSession) -> Edit:
    where = condition(cast.merged)

    def work() -> None:
        SparkTable.forPath(spark, str(sites.root(NORTH) / "flights")).update(
            where, {"arr_delay": "arr_delay - 4"}
        )

    return Edit(
        NORTH, DATAFRAME, "flights", f'flights.update("{where}", {{"arr_delay": "arr_delay - 4"}})', work
    )


def _deltalake_edits(sites: Sites, cast: Cast) -> Iterator[Edit]:
    def update(site: str, article: str, key: Row, changes: dict[str, str]) -> Edit:
        where = condition(key)
        shown = ", ".join(f'"{name}": "{value}"' for name, value in changes.items())
        return Edit(
            site,
            DELTALAKE,
            article,
            f'{article}.update(predicate="{where}", updates={{{shown}}})',
            lambda: sites.table(site, article).update(predicate=where, updates=changes),
        )

    def delete(site: str, article: str, key: Row) -> Edit:
        where = condition(key)
        return Edit(
            site,
            DELTALAKE,
            article,
            f'{article}.delete("{where}")',
            lambda: sites.table(site, article).delete(where),
        )

    one, other = cast.spare_planes
    yield update(HQ, "flights", cast.contested, {"tailnum": f"'{one}'"})
    yield update(NORTH, "flights", cast.contested, {"tailnum": f"'{other}'"})
    yield delete(NORTH, "flights", cast.cancelled)
    yield delete(HQ, "planes", cast.retired)
    yield update(NORTH, "planes", cast.retired, {"seats": "seats + 2"})
    yield update(NORTH, "airports", cast.airport, {"alt": "alt + 1"})
    yield update(SOUTH, "airports", cast.airport, {"name": "upper(name)"})

    def append() -> None:
        schema = sites.table(SOUTH, "flights").to_pyarrow_dataset().schema
        write_deltalake(
            str(sites.root(SOUTH) / "flights"),
            pa.Table.from_pylist([cast.extra], schema=schema),
            mode="append",
        )

    flight = f"{cast.extra['carrier']} {cast.extra['flight']} {cast.extra['origin']}-{cast.extra['dest']}"
    yield Edit(SOUTH, DELTALAKE, "flights", f'write_deltalake(flights, <{flight}>, mode="append")', append)

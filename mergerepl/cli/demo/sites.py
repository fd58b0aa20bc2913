"""The three replicas of the demo, and their tables as anybody reads them: with deltalake, without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from mergerepl.rows.sql import quote

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
        """Return one row as it is now, None if there is none."""
        rows: list[Row] = self.table(site, name).to_pyarrow_table().to_pylist()
        return next((row for row in rows if all(row[column] == value for column, value in key.items())), None)


def condition(key: Mapping[str, Any]) -> str:
    """Return what picks a row, in words that Spark's SQL and deltalake's share; the demo's keys hold no quotes."""
    return " AND ".join(
        f"{column} = '{value}'" if isinstance(value, str) else f"{column} = {value}"
        for column, value in key.items()
    )

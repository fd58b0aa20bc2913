"""Tables that another engine changes under a subscription, and the commands that meet them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog
from tests.networks import Network, restate, write_table

SYNC = ("sync", "north", "-f", "hq")


CAPTURE = ("capture", "-f", "north")


BOTH = [pytest.param(SYNC, id="sync"), pytest.param(CAPTURE, id="capture")]


Schema = dict[str, Any]


def altered(change: Callable[[Schema], None]) -> Callable[[Path], None]:
    """Return what commits the table's schema with a change, as another engine could."""

    def alter(table: Path) -> None:
        restate(table, change)

    return alter


def add(body: Schema) -> None:
    body["fields"].append({"name": "extra", "type": "string", "nullable": True, "metadata": {}})


def drop(body: Schema) -> None:
    body["fields"].pop()


def rename(body: Schema) -> None:
    body["fields"][1]["name"] = "area"


def recase(body: Schema) -> None:
    body["fields"][1]["name"] = "Region"


def retype(body: Schema) -> None:
    body["fields"][2]["type"] = "string"


def no_null(body: Schema) -> None:
    body["fields"][1]["nullable"] = False


SCHEMA = ("This schema change does not travel", "with ALTER TABLE; all else with RESTORE TABLE")


def with_lines(network: Network) -> None:
    """Publish a second article, as far as a publisher without subscribers knows it."""
    write_table(network.root("hq") / "lines")
    (row,) = (control := Replica(network.root("hq")).control).rows(catalog.ARTICLES)
    lines = replace(row, name="lines", source_table="lines", nickname=2, artid="lines", conflict_table="x")
    control.replace(catalog.ARTICLES, [row, lines])
    network.stated["articles"].append({"name": "lines", "key": ["id"]})

"""Every pair of options of the table is refused in its own words, and nothing is written."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

import mergerepl
from mergerepl.model import refused_pairs as pairs
from mergerepl.model.refused_pairs import REFUSED, RefusedPair

OWN = {"filter": "region = HOST_NAME()"}
ONE_WAY = {"resolver": {"name": "upload_only"}}
TO_ONE: list[dict[str, Any]] = [{"subscriber": "./north", "host_name": "N"}]
JOIN = {"article": "lines", "parent": "orders", "on": "lines.id = orders.id", "unique": True}


def stated(orders: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a file with one article, or with the second one of `lines`."""
    articles = [{"name": "orders", "key": ["id"], **orders}]
    if "lines" in more:
        articles.append({"name": "lines", "key": ["id"], **more.pop("lines")})
    return {"publication": "p", "publisher": "./hq", "articles": articles, "subscriptions": TO_ONE, **more}


CASES = {
    pairs.RESOLVER_BY_ROW: stated({"resolver": {"name": "delta", "column": "qty"}}),
    pairs.COLUMNS_BY_ROW: stated({"resolver": {"resolution": "columns"}}),
    pairs.COLUMNS_OF_ONE_WAY: stated(
        {"tracking": "column", "resolver": {"name": "upload_only", "resolution": "columns"}}
    ),
    pairs.COMPENSATED_ONE_WAY: stated({**ONE_WAY, "compensate_for_errors": "upload"}),
    pairs.OPTIONS_UNFILTERED: stated({"partition_options": 1}),
    pairs.OPTIONS_OF_PARENT: stated(OWN, lines={"partition_options": 2}, joins=[JOIN]),
    pairs.OPTIONS_OF_PATHS: stated({"filter": "region = 'N'", "partition_options": 2}),
    pairs.OPTIONS_SHARED: stated(
        {**OWN, "partition_options": 3}, subscriptions=[*TO_ONE, {"subscriber": "./south", "host_name": "N"}]
    ),
    pairs.FILTERED_ONE_WAY: stated(OWN, lines=ONE_WAY),
    pairs.FILTERED_CUSTOM: stated(OWN, lines={"resolver": {"name": "custom", "function": "mine"}}),
    pairs.FILTERED_LOGGING: stated(OWN, conflict_logging="both"),
    pairs.FILTERED_SYNC_TYPE: stated(OWN, subscriptions=[{**TO_ONE[0], "sync_type": "none"}]),
    pairs.FILTERED_PARENT: stated({}, lines=OWN, joins=[JOIN]),
    pairs.FILTERED_STAYING: stated(OWN, allow_partition_realignment=False),
    pairs.CLIENT_PRIORITY: stated({}, subscriptions=[{**TO_ONE[0], "type": "client", "priority": 5.0}]),
}
OF_SESSIONS = (pairs.FILTERED_DIRECTION, pairs.FILTERED_DRY_RUN)
"""Refused by `sync`: `tests/bad_inputs` has them."""


def words(pair: RefusedPair) -> str:
    """Return a pattern of the message with any values."""
    return ".+".join(re.escape(text) for text in re.split(r"\{[^}]*\}", pair.message))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for name in ("orders", "lines"):
        rows = pa.table({"id": [1], "region": ["N"], "qty": pa.array([1], pa.int32())})
        write_deltalake(str(tmp_path / "hq" / name), rows)
    return tmp_path


def test_every_pair_has_a_case() -> None:
    assert {*CASES, *OF_SESSIONS} == {*REFUSED}


@pytest.mark.parametrize("pair", CASES, ids=lambda pair: f"{pair.one} with {pair.other}")
def test_a_pair_is_refused_in_its_words(tables: Path, pair: RefusedPair) -> None:
    file = tables / "p.yml"
    file.write_text(yaml.safe_dump(CASES[pair]))
    before = sorted(tables.rglob("*"))
    with pytest.raises(
        (mergerepl.errors.ConfigurationError, mergerepl.errors.PublicationError), match=words(pair)
    ):
        mergerepl.Project.load(file).apply()
    assert sorted(tables.rglob("*")) == before

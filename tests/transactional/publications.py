"""Transactional publications for tests: a publisher's tables, its file, what the command line says."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from deltalake import DeltaTable

from mergerepl.cli.main import main
from tests.cdc.databases import new_table

Article = Mapping[str, Any]


def publication_file(
    folder: Path, articles: Sequence[Article], *, subscribers: Sequence[Mapping[str, Any]] = (), **keys: Any
) -> Path:
    """Write a file with the publisher `hq` and the subscriber `north`, or those that are given."""
    stated = {
        "publication": "feed",
        "type": "transactional",
        "publisher": "./hq",
        "articles": list(articles),
        "subscriptions": list(subscribers) or [{"subscriber": "./north"}],
        **keys,
    }
    file = folder / "feed.yml"
    file.write_text(yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    return file


def run(*words: object, code: int = 0) -> Any:
    """Return what a command prints as JSON."""
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.output)


def rows(table: Path) -> list[tuple[Any, ...]]:
    """Return a table's rows, sorted by their first column."""
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


__all__ = ["new_table", "publication_file", "rows", "run"]

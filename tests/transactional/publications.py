"""Transactional publications for tests: a publisher's tables, its file, what the command line says."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from deltalake import DeltaTable

from mergerepl import failpoints
from mergerepl.cli.main import main
from mergerepl.transactional.article_procedures import Shape
from tests.cdc.databases import new_table
from tests.faults.deaths import armed

Article = Mapping[str, Any]

ITEMS: Sequence[Article] = ({"name": "items", "key": ["id"]},)
THERE: Sequence[Mapping[str, Any]] = ({"subscriber": "./north", "sync_type": "none", "verify": False},)
"""A subscriber that has the rows."""


def publication_file(
    folder: Path,
    articles: Sequence[Article] = ITEMS,
    *,
    subscribers: Sequence[Mapping[str, Any]] = (),
    **keys: Any,
) -> Path:
    """Write a file with the publisher `hq` and the subscriber `north`, or those that are given."""
    stated = {
        "publication": "feed",
        "type": "transactional",
        "publisher": "./hq",
        "articles": [dict(each) for each in articles],
        "subscriptions": [dict(each) for each in subscribers] or [{"subscriber": "./north"}],
        **keys,
    }
    file = folder / "feed.yml"
    file.write_text(yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    return file


def shape(columns: Sequence[str], types: Sequence[str], key: Sequence[str], **values: Any) -> Shape:
    """Return an article in one shape."""
    stated: dict[str, Any] = dict.fromkeys(("article", "source_object", "destination_object"), "t")
    stated |= dict.fromkeys(("publication_id", "article_id", "source_object_id"), 1)
    stated |= {"ins_cmd": "CALL", "upd_cmd": "SCALL", "del_cmd": "CALL", "first_seqno": bytes(10)}
    stated |= {"columns": tuple(columns), "types": tuple(types), "key_columns": tuple(key)}
    return Shape(**{**stated, **values})


LISTINGS = {"articles", "captured", "commands", "pending", "rows", "runs", "status"}


def run(*words: object, code: int = 0) -> Any:
    """Return what a command prints as JSON; of a listing its rows."""
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    printed = json.loads(done.output)
    name, *others = (each for each in printed if each not in ("ok", "total"))
    is_listing = not others and name in LISTINGS
    return printed[name] if is_listing else printed


def dies(point: str, *words: object) -> None:
    """Let a command die at a failpoint."""
    with armed(point):
        died = CliRunner().invoke(main, list(map(str, words)))
        assert failpoints._passed.get(point.partition(":")[0]), died.output
    assert died.exit_code != 0, died.output


def runs(place: object, *words: object) -> list[dict[str, Any]]:
    """Return the batches that `history` prints, with `--failed` the errors."""
    found = run("history", "-f", place, "--type", "transactional", *words)
    return [each["details"] for each in found]


def warnings(place: object, *, code: int = 0) -> list[dict[str, Any]]:
    """Return what `status --check` warns of; what two products meet is said once."""
    found = [each for state in run("status", "-f", place, "--check", code=code) for each in state["warnings"]]
    return [each for number, each in enumerate(found) if each not in found[:number]]


def state(place: object) -> dict[str, Any]:
    """Return the state of the publications that `status` prints."""
    (found,) = run("status", "-f", place, "--type", "transactional")
    return dict(found["details"])


def rows(table: Path) -> list[tuple[Any, ...]]:
    """Return a table's rows, sorted by their first column."""
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def named(message: str, word: str) -> list[str]:
    """Return the words of the command with this word that a message names."""
    commands = [shlex.split(each) for each in re.findall(r"`mergerepl ([^`]*)`", message)]
    return next(each for each in commands if word in each)


def stops(hq: Path, word: str, number: int | None, *, shown: str = "") -> str:
    """Check the traces of a stop at the publisher `hq`, whose message has a word; return the message.

    `status` shows the message, or another text (`shown`).
    """
    met = runs(hq, "--failed", "--limit", 1)[0]
    assert word in met["text"]
    assert (met["number"], met["skipped"]) == (number, False)
    last = runs(hq, "--limit", 1)[0]
    assert (last["status"], last["comments"], last["subscriber"]) == (
        "failed",
        met["text"],
        met["subscriber"],
    )
    found = warnings(hq, code=2)
    assert [(shown or met["text"]) in each["text"] for each in found if each["level"] == "critical"].count(
        True
    ) == 1
    return str(met["text"])


def works(hq: Path, *, code: int = 0) -> None:
    """Check that nothing is left of a stop; the exit code of `status --check` may have another reason."""
    assert "stopped" not in str(warnings(hq, code=code))
    assert runs(hq, "--limit", 1)[0]["status"] == "succeeded"


__all__ = [
    "ITEMS",
    "THERE",
    "dies",
    "named",
    "new_table",
    "publication_file",
    "rows",
    "run",
    "runs",
    "shape",
    "state",
    "stops",
    "warnings",
    "works",
]

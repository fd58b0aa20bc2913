"""Write conflicts to files: one for each article, with the winning and the losing row of each conflict as columns."""

import csv
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

from mergerepl.conflicts.listing import read_conflicts
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflicts import ConflictFilter, ExportedFile
from mergerepl.model.results import ConflictRecord
from mergerepl.model.words import text_of
from mergerepl.store.location import Location

_FORMULA = tuple("=+-@\t\r")
"""Characters with which a formula begins in a spreadsheet."""


def export_conflicts(
    root: Location, folder: Path, chosen: ConflictFilter, *, form: str = "csv"
) -> list[ExportedFile]:
    """Write the chosen conflicts into a folder, one file for each article.

    CSV has a column for each fact, `winner_<column>` and `loser_<column>`; values that a spreadsheet would compute are
    quoted. JSON has an object on each line. Values are texts, NULL is an empty cell or null. Starts no engine.

    Raises: ConfigurationError if the folder is not a replica, a name is unknown or the folder cannot be written;
    StoreError.
    """
    by_article = _by_article(root, chosen)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for article, records in by_article.items():
            file = folder / f"{article}.{'csv' if form == 'csv' else 'jsonl'}"
            with file.open("w", encoding="utf-8", newline="") as stream:
                _write(stream, records, form)
            written.append(ExportedFile(str(file), len(records)))
    except OSError as error:
        raise ConfigurationError(
            f"Conflicts cannot be written to '{folder}': {error.strerror}. Name another folder.",
            path=str(folder),
        ) from error
    return written


def write_conflicts(root: Location, stream: TextIO, chosen: ConflictFilter, *, form: str = "csv") -> int:
    """Write the chosen conflicts of all articles to a stream; return their number.

    Raises: as `export_conflicts`; ConfigurationError for CSV of several articles, whose columns differ.
    """
    by_article = _by_article(root, chosen)
    if form == "csv" and len(by_article) > 1:
        raise ConfigurationError(
            f"Conflicts of {', '.join(sorted(by_article))} have different columns. Choose one article, write JSON, or name "
            "a folder."
        )
    for records in by_article.values():
        _write(stream, records, form)
    return sum(map(len, by_article.values()))


def _by_article(root: Location, chosen: ConflictFilter) -> dict[str, list[ConflictRecord]]:
    found: dict[str, list[ConflictRecord]] = {}
    for each in read_conflicts(root, chosen, with_rows=True):
        found.setdefault(each.article, []).append(each)
    return found


def _write(stream: TextIO, records: list[ConflictRecord], form: str) -> None:
    if form == "csv":
        csv.writer(stream).writerows(_csv(records))
    else:
        stream.writelines(f"{json.dumps(_facts(each), ensure_ascii=False)}\n" for each in records)


_FACTS = (
    *(
        "conflict_id",
        "publication",
        "article",
        "conflict_type",
        "reason_text",
        "origin_datasource",
        "winner",
        "created",
    ),
    *("resolver", "note", "status"),
)


def _csv(records: list[ConflictRecord]) -> Iterator[list[str]]:
    columns = list(dict.fromkeys(name for each in records for row in _rows(each) for name in row or ()))
    yield [
        *_FACTS,
        "conflict_columns",
        "made_columns",
        *(f"{side}_{name}" for side in ("winner", "loser") for name in columns),
    ]
    for each in records:
        facts = [getattr(each, name) for name in _FACTS] + [
            " ".join(each.conflict_columns),
            " ".join(each.made_columns),
        ]
        values = [None if row is None else row.get(name) for row in _rows(each) for name in columns]
        yield [_cell(value) for value in (*facts, *values)]


def _rows(record: ConflictRecord) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    return record.winning_row, record.losing_row


def _cell(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime) else text_of(value)
    if text is None:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"'{text}" if text.startswith(_FORMULA) and not is_number else text


def _facts(record: ConflictRecord) -> dict[str, object]:
    facts: dict[str, object] = {name: getattr(record, name) for name in _FACTS}
    facts |= {
        "created": record.created.isoformat(),
        "key": {name: text_of(value) for name, value in record.key.items()},
    }
    facts |= {"conflict_columns": list(record.conflict_columns), "made_columns": list(record.made_columns)}
    for name, row in zip(("winning_row", "losing_row"), _rows(record), strict=True):
        facts[name] = None if row is None else {column: text_of(value) for column, value in row.items()}
    return facts

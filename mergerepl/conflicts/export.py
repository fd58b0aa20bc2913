"""Write conflicts to files: one for each article, with the winning and the losing row of each conflict as columns."""

import csv
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from pyarrow import parquet

from mergerepl.conflicts.listing import read_conflicts
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.conflicts import ConflictRecord, ExportedFile
from mergerepl.model.words import text_of
from mergerepl.store.location import Location

_FORMULA = tuple("=+-@\t\r")
"""Characters with which a formula begins in a spreadsheet."""


def export_conflicts(
    root: Location, folder: Path, chosen: ConflictFilter, *, form: str = "csv"
) -> list[ExportedFile]:
    """Write the chosen conflicts into a folder, one file for each article.

    CSV and Parquet have a column for each fact, `winner_<column>` and `loser_<column>`; JSON has an object on each line.
    Parquet has typed values. In the others they are texts, NULL is an empty cell or null; in CSV those that a
    spreadsheet would compute are quoted. Starts no engine.

    Raises: ConfigurationError if the folder is not a replica, a name is unknown or the folder cannot be written;
    StoreError.
    """
    by_article = _by_article(root, chosen)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for article, records in by_article.items():
            file = folder / f"{article}.{'jsonl' if form == 'json' else form}"
            if form == "parquet":
                parquet.write_table(_table(records), file)
            else:
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

    Raises: as `export_conflicts`; ConfigurationError for CSV of several articles, whose columns differ, and for Parquet.
    """
    if form == "parquet":
        raise ConfigurationError("Parquet is written to files: name a folder.")
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
    names, rows = _values(records)
    yield names
    yield from ([_cell(value) for value in row] for row in rows)


def _table(records: list[ConflictRecord]) -> pa.Table:
    names, rows = _values(records)
    return pa.table(
        {name: _column(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    )


def _column(values: Sequence[object]) -> pa.Array:
    """Return the values of a column in their type; as text if they have several, because the column has changed."""
    try:
        found = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(map(text_of, values), pa.string())
    return found.cast(pa.string()) if pa.types.is_null(found.type) else found


def _values(records: list[ConflictRecord]) -> tuple[list[str], list[list[object]]]:
    """Return the names of the columns of an article's file, and a row for each conflict."""
    columns = list(dict.fromkeys(name for each in records for row in _rows(each) for name in row or ()))
    names = [*_FACTS, "conflict_columns", "made_columns"]
    names += [f"{side}_{name}" for side in ("winner", "loser") for name in columns]
    return names, [
        [
            *(getattr(each, name) for name in _FACTS),
            " ".join(each.conflict_columns),
            " ".join(each.made_columns),
            *(None if row is None else row.get(name) for row in _rows(each) for name in columns),
        ]
        for each in records
    ]


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

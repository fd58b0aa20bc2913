"""The options of all commands, in one table: an option has one name, one meaning and one type wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import click

from mergerepl.model.listing import LONGEST_LIST
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.model.words import CONFLICT_NAMES, parse_duration

T = TypeVar("T")
DURATION = "30s, 5m, 2h, 7d, 2w or `14 days`"
LONGEST = timedelta(days=36_500)
_SIZE = re.compile(r"(\d{1,6})\s*MB", re.IGNORECASE)
_LSN = re.compile(r"0x[0-9A-Fa-f]{20}|\d+:\d+:\d+")


class Parsed(click.ParamType[Any]):
    """A type of one function, which raises ValueError for a text that it does not take."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; a value that is parsed already stays."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


def duration(text: str) -> timedelta:
    """Return a time such as `60s`, `5m`, `14 days`."""
    found = parse_duration(text)
    if found is None or not timedelta(0) < found <= LONGEST:
        raise ValueError(f"{text!r} is no time: write it as {DURATION}.")
    return found


def age(text: str) -> timedelta:
    """Return an age, as `duration`; of 0 is everything."""
    return timedelta(0) if parse_duration(text) == timedelta(0) else duration(text)


def file_size(text: str) -> int:
    """Return the bytes of a size such as `64MB`."""
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size: give whole MB from 1MB to 999999MB, such as 64MB or 1024MB.")
    return int(found[1]) * 1024**2


def limit(text: str) -> int:
    """Return a number of rows, or for `all` the highest one."""
    if text != "all" and (not text.isdecimal() or not 1 <= int(text) <= LONGEST_LIST):
        raise ValueError(f"{text!r} is no number of rows: give one from 1 to {LONGEST_LIST:,}, or `all`.")
    return LONGEST_LIST if text == "all" else int(text)


def number(text: str, least: int = 1, most: int = 10**18) -> int:
    """Return a whole number between two."""
    if not text.isdecimal() or not least <= int(text) <= most:
        to = f" to {most}" if most < 10**18 else ""
        raise ValueError(f"{text!r} is no number from {least}{to}.")
    return int(text)


def path_here(text: str) -> str:
    """Return a path of this machine, as it was typed."""
    if "://" in text:
        raise ValueError(f"{text!r} is no path of this machine: name a file or a folder here.")
    return text


def names(text: str) -> tuple[str, ...]:
    """Return names with commas between them."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError(f"{text!r} is no list of names: write it as a,b.")
    return found


def numbers(text: str) -> tuple[int, ...]:
    """Return numbers with commas (or, as the original, colons) between them."""
    parts = text.replace(":", ",").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"{text!r} is no list of numbers: write it as 20598,2627.")
    return tuple(int(part) for part in parts)


def pair(text: str) -> tuple[str, str]:
    """Return the column and the value of `order_id=7`."""
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise ValueError(f"{text!r} names no column: write it as order_id=7.")
    return column, value


_POINTS = {"time": "2026-11-01, 2026-11-01T10:00 (UTC), 2h (ago)", "LSN": "0x…", "number": "7"}
"""The kinds of an end of a range -> how each is written."""


def _point(text: str, *, is_end: bool, kinds: Collection[str] = _POINTS.keys()) -> datetime | str | int:
    """Return one end of a range: a time in UTC, an LSN as text, or a number."""
    if "LSN" in kinds and _LSN.fullmatch(text):
        return text
    if "number" in kinds and text.isdigit():
        return int(text)
    if "time" in kinds and parse_duration(text) is not None:
        return datetime.now(UTC) - duration(text)
    if "time" in kinds:
        with suppress(ValueError):
            return datetime.combine(date.fromisoformat(text), time.max if is_end else time.min, UTC)
        with suppress(ValueError):
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    forms = ", ".join(_POINTS[each] for each in kinds)
    raise ValueError(f"{text!r} is no {' or '.join(kinds)}: write {forms}.")


def _row_key(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    """Return the columns and values of `--key order_id=7 --key line=1`; None without any."""
    pairs = [_parsed(pair, each) for each in given]
    if len(dict(pairs)) < len(pairs):
        raise click.UsageError("A column of --key is given twice.")
    return dict(pairs) or None


def _key_columns(
    ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the columns of `--key order_id,line`; None without any."""
    found = tuple(name for each in given for name in _parsed(names, each))
    if any("=" in name for name in found):
        raise click.BadParameter("give columns without values, as in --key order_id,line.")
    return found or None


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_KINDS: Final[dict[str, dict[str, Any]]] = {
    "row": {"callback": _row_key},
    "columns": {"callback": _key_columns},
    "names": {"type": Parsed("TABLE", names)},
}
"""What follows the name of an option after a colon -> the terms that it brings."""


_GENERAL = """
-f/--file PATH * >files: Project file or folder of tables. Default: nearest mergerepl.yml.
--json >as_json: Print one JSON object.
-q/--quiet >is_quiet: Show no progress.
--log-format text|json: What is logged, and steps: json is one object a line.
-v/--verbose >is_verbose: Log more; show tracebacks.
-V/--version: Show the version.
"""
"""The options that every command takes, written like `_OPTIONS`."""
_OPTIONS = """
--publication NAME: Only this publication.
--table TABLE: Only this table.
--type merge|transactional|cdc|tracking: Only this type.
--at REPLICA: The replica to look at or to change; else the publisher.
--key COLUMN[=VALUE] *: What identifies a row: a,b declares columns, a=7 is a value; may repeat.
--where CONDITION: Only rows that meet this condition.
--from X >from_: From this time (UTC), LSN or number on.
--to X: Up to this time (UTC), LSN or number, with it.
--older-than AGE: Only what is older: DURATION.
--limit N|all =20: Rows to show, newest first.
--all: Every object, in place of names.
--list >is_list: List the rows, with their keys and generations.
--without-metadata: Only rows that were never captured.
--only KIND: Only these kinds, with commas.
--failed: Only what failed, with the reason.
--dry-run: Show what would be done; change nothing.
-y/--yes: Do not ask before rows are removed or overwritten.
--force: Overwrite rows that were changed since.
-o/--output PATH: Where the result goes; - is standard output.
--format csv|json|parquet =csv: The form of the result.
--interval TIME: Repeat after this time: DURATION.
--streams N: Articles that are worked on at a time.
--engine spark|auto: What writes the tables: Spark alone, or delta-rs where few rows changed (auto).
--no-agent >agent: Work in this process, even if an agent runs.
--procedures MODULE *: Import a module that registers procedures; may repeat.
--skip-errors NUMBERS: Go on after these errors, such as 20598,2627.
--wait SECONDS =600 >wait_s: Seconds to wait for a cycle that runs.
--print-schema: Print the JSON Schema of project files.
--detach: Run in the background.
--with-values: Also write the conflict reports, which have values of rows.
--metrics HOST:PORT: Serve metrics for Prometheus, as at 127.0.0.1:9464.
--metrics-file FILE: Write metrics for Prometheus to this file.
--dashboard PAGE: Write the page of `mergerepl dashboard` every --interval.
--ddl STATEMENT: The change of a column, as it follows ALTER TABLE and the name.
--undo: Take it again.
--no-ask >ask: Do not ask the subscribers if they can follow.
--no-sync >sync: Run no syncs but those that commands hand over.
--restart: Begin again from a snapshot of the present rows.
--compare: Bridge a gap by the difference of the versions around it.
--direction both|upload|download =both: Upload is from the subscriber to the publisher.
--validate rowcount|touched|checksum: Compare afterwards, by number of rows, the rows of this session, or
    row by row.
--validate-interval TIME: Compare at most this often: DURATION.
--retries TIMES =0: How often a session is run again that failed for a reason that may pass, after the
    others.
--level rowcount|checksum =checksum: Compare numbers of rows, or row by row.
--source publisher|subscriber =publisher: The side whose rows are right.
--upload-first: Changes that were not sent go up: equal ones fall away, conflicts are decided.
--discard-local: Give up changes that were not sent; their rows are exported first.
--check: End as a monitor's check: 0 well, 1 warning, 2 critical, 3 unknown.
--start-engine: Also start the Spark engine (about ten seconds).
--fix: Write files again that other libraries read or remove wrongly.
--file-size SIZE =128MB: Size of the new files, about; files of up to twice that stay.
--host-name VALUE: What HOST_NAME() gives in the partition.
--suser-sname VALUE: What SUSER_SNAME() gives in the partition.
--conflict-type TYPE *: Only conflicts of this type (1 to 10); may repeat.
--column NAME: Only with this column in conflict.
--resolver NAME: Only those that this resolver decided.
--status open|settled: Only open or settled ones.
--count-by FIELD,...: Count them by these: day, table, type, resolver.
--winner: The outcome stands: settle the conflict and write nothing.
--loser: Write what lost: the row, the columns in conflict, or the delete.
--set COLUMN=VALUE * >values: Write this value; may repeat.
--set-null COLUMN * >nulls: Write NULL; may repeat.
--whole-row: Of a loser by columns write the whole row.
--message TEXT =: Why, for the record.
--operation insert|update|delete: Only this procedure.
--batch: The one MERGE that stands for all three.
--custom: Python to begin procedures of your own with.
--name INSTANCE: Name of the capture instance.
--columns COLUMNS: The columns to capture; else all.
--no-net >net: Support no net changes; else if there is a key.
--on-gap compare|stop =compare: What happens to versions whose change feed is gone.
--log-retention TIME: How long removed files of captured tables are kept at least.
--role NAME >role_name: Gating role; stored and shown only.
--index-name NAME: A name for the key; stored and shown only.
--maxtrans N: capture: transactions of a cycle at most (1,000).
--maxscans N: capture: cycles before it waits (10).
--continuous/--once: capture: whether it goes on after it waited.
--pollinginterval SECONDS: capture: seconds that it waits (5).
--retention MINUTES: cleanup: minutes that change rows are kept (4,320).
--threshold N: cleanup: rows of a statement at most (5,000).
--schedule HH:MM: cleanup: local time of day (02:00).
--no-start >start: Do not start the job.
--row-filter all|all-update-old|all-with-mask|all-with-merge =all: all, rows before updates too
    (all-update-old); of net changes: with mask, or with 5 for insert or update.
--net: One change for each row.
--into TARGET >target: The Delta table that is brought up to date.
--consumer NAME: Name of the consumer: each has a cursor of its own.
--no-initial >initial: Take the rows of a target without a cursor as they are; else a snapshot fills it.
--rowguid COLUMN: A string column of GUIDs, in place of --key.
--track LIST =insert,update,delete: What is tracked.
--foreign adopt|refuse =adopt: What happens to commits that go through no transaction.
--keep-columns: Leave the three columns in the table.
--start beginning|now: Where a new consumer begins, by default at the beginning.
--enumeration exact|documented =exact: documented: the printed queries, which lose changes in some orders.
--exclude-context GUID: Leave out what came from the consumer itself.
--window FILE: The window.json that `enumerate` wrote.
--fresh TABLES: Tables that were copied whole.
"""
"""One option a line: its names, and what it takes: choices, or a word in capitals (`_PARSERS`); none for a flag. `=` stands
before a default, `>` before another name for the keyword, `*` for several. The flag `--no-x` makes its keyword False."""

_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "AGE": age,
    "TIME": duration,
    "SIZE": file_size,
    "N|all": limit,
    "NUMBERS": numbers,
    "N": number,
    "COLUMN=VALUE": pair,
    "LIST": TrackingOptions.of,
    "TYPE": partial(number, least=min(CONFLICT_NAMES), most=max(CONFLICT_NAMES)),
    **dict.fromkeys(("TIMES", "SECONDS", "MINUTES"), partial(number, least=0)),
    **dict.fromkeys(("PATH", "FILE", "PAGE"), path_here),
    **dict.fromkeys(("KIND", "FIELD,...", "COLUMNS", "TABLES"), names),
}
"""What an option takes -> how it is parsed; other words are text."""


def _terms(stated: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of each option with the terms of its `click.Option`."""
    for line in stated.replace("\n    ", " ").strip().splitlines():
        words, help = line.replace("DURATION", DURATION).split(": ", 1)
        name, *rest = words.split()
        terms: dict[str, Any] = {"help": help, "multiple": "*" in rest}
        for word in rest:
            if word[0] in "=>":
                terms["default" if word[0] == "=" else "dest"] = word[1:]
            elif word[0].isupper():
                terms |= {"metavar": word, "type": Parsed(word, _PARSERS[word]) if word in _PARSERS else None}
            elif word != "*":
                terms["type"] = click.Choice(word.split("|"))
        if "type" not in terms:
            is_two_way = name.count("--") == 2
            terms |= {"default": None} if is_two_way else {"is_flag": True}
            terms |= {"flag_value": False, "default": None} if name.startswith("--no-") else {}
        yield name, terms


GENERAL: Final = dict(_terms(_GENERAL))
TABLE: Final = dict(_terms(_OPTIONS))
"""The names of an option -> the terms of its `click.Option`."""
_NAMES = {part: stated for stated in TABLE for part in stated.split("/") if part.startswith("--")}


def option(word: str) -> click.Option:
    """Return an option of the table by its long name.

    `--output!` is required and `--limit=5` has a default of its own. `--to:LSN|time` is an end of these kinds, `--key:row`
    takes columns with values, `--key:columns` without, and `--table:names` several.
    """
    name, _, default = word.rstrip("!").partition("=")
    name, _, kind = name.partition(":")
    stated = _NAMES[name]
    given = {**TABLE[stated], "required": word.endswith("!")}
    given |= {"default": default} if default else {}
    if kind in _KINDS:
        given |= _KINDS[kind]
    elif kind:
        given["type"] = Parsed("X", partial(_point, is_end=name == "--to", kinds=kind.split("|")))
    given["show_default"] = bool(given.get("default"))
    return made(stated, given)


def made(stated: str, terms: Mapping[str, Any]) -> click.Option:
    """Return an option by its names and its terms."""
    given = dict(terms)
    spelled = [stated] if stated.count("--") == 2 else stated.split("/")
    dest = given.pop("dest", None)
    return click.Option([*spelled, *([dest] if dest else [])], **given)

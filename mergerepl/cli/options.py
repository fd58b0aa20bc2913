"""The options of all commands, in one table: an option has one name, one meaning and one type wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Final

import click

from mergerepl.model.conflict_filter import ConflictStatus
from mergerepl.model.listing import LONGEST_LIST
from mergerepl.model.words import CONFLICT_NAMES, parse_duration

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
    if text == "all":
        return LONGEST_LIST
    if not text.isdigit() or not 1 <= int(text) <= LONGEST_LIST:
        raise ValueError(f"{text!r} is no number of rows: give one from 1 to {LONGEST_LIST:,}, or `all`.")
    return int(text)


def number(text: str) -> int:
    """Return a number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is no number from 1.")
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


def row_key(given: Iterable[str]) -> dict[str, str]:
    """Return the columns and values of `--key order_id=7 --key line=1`.

    Raises: UsageError if a column has no value, or several.
    """
    try:
        pairs = [pair(each) for each in given]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key") from error
    if len(dict(pairs)) < len(pairs):
        raise click.UsageError("A column of --key is given twice.")
    return dict(pairs)


def key_columns(given: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of `--key order_id,line`.

    Raises: UsageError if a column has a value.
    """
    try:
        found = tuple(name for each in given for name in names(each))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key") from error
    if any("=" in name for name in found):
        raise click.BadParameter(
            "give columns without values, as in --key order_id,line.", param_hint="--key"
        )
    return found


def _stated(
    help: str, metavar: str | None = None, parse: Callable[[str], Any] | None = None, **terms: Any
) -> dict[str, Any]:
    """Return the terms of an option; `parse` makes its value of a text."""
    kind = {} if parse is None else {"type": Parsed(metavar or "TEXT", parse)}
    return {"help": help, "metavar": metavar, **kind, **terms}


def _flag(help: str, **terms: Any) -> dict[str, Any]:
    return {"help": help, "is_flag": True, **terms}


def _choice(help: str, choices: str, **terms: Any) -> dict[str, Any]:
    return {"help": help, "type": click.Choice(choices.split("|")), **terms}


def _whole(help: str, metavar: str = "N", least: int = 1, **terms: Any) -> dict[str, Any]:
    return {"help": help, "metavar": metavar, "type": click.IntRange(min=least), **terms}


TABLE: Final[dict[str, dict[str, Any]]] = {
    # -- what is meant
    "--publication": _stated("Only this publication.", "NAME"),
    "--table": _stated("Only this table.", "TABLE"),
    "--type": _choice("Only this type.", "merge|transactional|cdc|tracking"),
    "--at": _stated("The replica to look at or to change; else the publisher.", "REPLICA"),
    "--key": _stated(
        "What identifies a row: a,b declares columns, a=7 is a value; may repeat.",
        "COLUMN[=VALUE]",
        multiple=True,
    ),
    "--where": _stated("Only rows that meet this condition.", "CONDITION"),
    "--from": _stated(
        "From this time (UTC), LSN or number on.", "X", partial(_point, is_end=False), dest="from_"
    ),
    "--to": _stated("Up to this time (UTC), LSN or number, with it.", "X", partial(_point, is_end=True)),
    "--older-than": _stated(f"Only what is older: {DURATION}.", "AGE", age),
    "--limit": _stated("Rows to show, newest first.", "N|all", limit, default="20"),
    "--all": _flag("Every object, in place of names.", dest="is_all"),
    "--list": _flag("List the rows, with their keys and generations.", dest="is_list"),
    "--without-metadata": _flag("Only rows that were never captured."),
    "--only": _stated("Only these kinds, with commas.", "KIND", names),
    "--failed": _flag("Only what failed, with the reason."),
    # -- how it is done
    "--dry-run": _flag("Show what would be done; change nothing."),
    "-y/--yes": _flag("Do not ask before rows are removed or overwritten."),
    "--force": _flag("Overwrite rows that were changed since."),
    "-o/--output": _stated("Where the result goes; - is standard output.", "PATH", path_here),
    "--format": _choice("The form of the result.", "csv|json|parquet", default="csv"),
    "--interval": _stated(f"Repeat after this time: {DURATION}.", "TIME", duration),
    "--streams": _whole("Articles that are worked on at a time."),
    "--engine": _choice(
        "What writes the tables: Spark alone, or delta-rs where few rows changed (auto).", "spark|auto"
    ),
    "--no-agent": _flag("Work in this process, even if an agent runs."),
    "--procedures": _stated(
        "Import a module that registers procedures; may repeat.", "MODULE", multiple=True
    ),
    "--skip-errors": _stated("Go on after these errors, such as 20598,2627.", "NUMBERS", numbers),
    "--wait": {
        "help": "Seconds to wait for a cycle that runs.",
        "metavar": "SECONDS",
        "type": click.FloatRange(min=0),
        "default": 600.0,
        "dest": "wait_s",
    },
    "--print-schema": _flag("Print the JSON Schema of project files."),
    "--detach": _flag("Run in the background."),
    "--with-values": _flag("Also write the conflict reports, which have values of rows."),
    "--metrics": _stated("Serve metrics for Prometheus, as at 127.0.0.1:9464.", "HOST:PORT"),
    "--metrics-file": _stated("Write metrics for Prometheus to this file.", "FILE", path_here),
    "--dashboard": _stated("Write the page of `mergerepl dashboard` every --interval.", "PAGE", path_here),
    "--ddl": _stated("The change of a column, as it follows ALTER TABLE and the name.", "STATEMENT"),
    "--undo": _flag("Take it again."),
    "--no-ask": _flag("Do not ask the subscribers if they can follow."),
    "--no-sync": _flag("Run no syncs but those that commands hand over."),
    "--restart": _flag("Begin again from a snapshot of the present rows."),
    "--compare": _flag("Bridge a gap by the difference of the versions around it."),
    # -- merge
    "--direction": _choice(
        "Upload is from the subscriber to the publisher.", "both|upload|download", default="both"
    ),
    "--validate": _choice(
        "Compare afterwards, by number of rows, the rows of this session, or row by row.",
        "rowcount|touched|checksum",
    ),
    "--validate-interval": _stated(f"Compare at most this often: {DURATION}.", "TIME", duration),
    "--retries": _whole(
        "How often a session is run again that failed for a reason that may pass, after the others.",
        least=0,
        default=0,
    ),
    "--level": _choice("Compare numbers of rows, or row by row.", "rowcount|checksum", default="checksum"),
    "--source": _choice("The side whose rows are right.", "publisher|subscriber", default="publisher"),
    "--upload-first": _flag("Changes that were not sent go up: equal ones fall away, conflicts are decided."),
    "--discard-local": _flag("Give up changes that were not sent; their rows are exported first."),
    "--check": _flag("End as a monitor's check: 0 well, 1 warning, 2 critical, 3 unknown."),
    "--start-engine": _flag("Also start the Spark engine (about ten seconds)."),
    "--fix": _flag("Write files again that other libraries read or remove wrongly."),
    "--file-size": _stated(
        "Size of the new files, about; files of up to twice that stay.", "SIZE", file_size, default="128MB"
    ),
    "--host-name": _stated("What HOST_NAME() gives in the partition.", "VALUE"),
    "--suser-sname": _stated("What SUSER_SNAME() gives in the partition.", "VALUE"),
    # -- conflicts
    "--conflict-type": {
        "help": "Only conflicts of this type (1 to 10); may repeat.",
        "metavar": "N",
        "type": click.IntRange(min(CONFLICT_NAMES), max(CONFLICT_NAMES)),
        "multiple": True,
    },
    "--column": _stated("Only with this column in conflict.", "NAME"),
    "--resolver": _stated("Only those that this resolver decided.", "NAME"),
    "--status": _choice("Only open or settled ones.", "|".join(ConflictStatus)),
    "--count-by": _stated("Count them by these: day, table, type, resolver.", "FIELD,...", names),
    "--winner": _flag("The outcome stands: settle the conflict and write nothing."),
    "--loser": _flag("Write what lost: the row, the columns in conflict, or the delete."),
    "--set": _stated("Write this value; may repeat.", "COLUMN=VALUE", pair, multiple=True, dest="values"),
    "--set-null": _stated("Write NULL; may repeat.", "COLUMN", multiple=True, dest="nulls"),
    "--whole-row": _flag("Of a loser by columns write the whole row."),
    "--message": _stated("Why, for the record.", "TEXT", default=""),
    # -- transactional
    "--operation": _choice("Only this procedure.", "insert|update|delete"),
    "--batch": _flag("The one MERGE that stands for all three."),
    "--custom": _flag("Python to begin procedures of your own with."),
    # -- cdc
    "--name": _stated("Name of the capture instance.", "INSTANCE"),
    "--columns": _stated("The columns to capture; else all.", "COLUMNS", names),
    "--no-net": _flag("Support no net changes; else if there is a key."),
    "--on-gap": _choice(
        "What happens to versions whose change feed is gone.", "compare|stop", default="compare"
    ),
    "--log-retention": _stated("How long removed files of captured tables are kept at least.", "TIME"),
    "--role": _stated("Gating role; stored and shown only.", "NAME", dest="role_name"),
    "--index-name": _stated("A name for the key; stored and shown only.", "NAME"),
    "--maxtrans": _whole("capture: transactions of a cycle at most (1,000)."),
    "--maxscans": _whole("capture: cycles before it waits (10)."),
    "--continuous/--once": {"help": "capture: whether it goes on after it waited.", "default": None},
    "--pollinginterval": _whole("capture: seconds that it waits (5).", "SECONDS", least=0),
    "--retention": _whole("cleanup: minutes that change rows are kept (4,320).", "MINUTES", least=0),
    "--threshold": _whole("cleanup: rows of a statement at most (5,000)."),
    "--schedule": _stated("cleanup: local time of day (02:00).", "HH:MM"),
    "--no-start": _flag("Do not start the job."),
    "--row-filter": _choice(
        "all, rows before updates too (all-update-old); of net changes: with mask, or with 5 for insert or update.",
        "all|all-update-old|all-with-mask|all-with-merge",
        default="all",
    ),
    "--net": _flag("One change for each row."),
    "--into": _stated("The Delta table that is brought up to date.", "PATH"),
    "--consumer": _stated("Name of the consumer: each has a cursor of its own.", "NAME"),
    "--no-initial": _flag(
        "Take the rows of a target without a cursor as they are; else a snapshot fills it."
    ),
    # -- tracking
    "--rowguid": _stated("A string column of GUIDs, in place of --key.", "COLUMN"),
    "--track": _stated("What is tracked.", "LIST", names, default="insert,update,delete"),
    "--foreign": _choice(
        "What happens to commits that go through no transaction.", "adopt|refuse", default="adopt"
    ),
    "--keep-columns": _flag("Leave the three columns in the table."),
    "--start": _choice("Where a new consumer begins, by default at the beginning.", "beginning|now"),
    "--enumeration": _choice(
        "documented: the printed queries, which lose changes in some orders.",
        "exact|documented",
        default="exact",
    ),
    "--exclude-context": _stated("Leave out what came from the consumer itself.", "GUID"),
    "--window": _stated("The window.json that `enumerate` wrote.", "FILE", path_here),
    "--fresh": _stated("Tables that were copied whole.", "TABLES", names),
}
"""The names of an option -> the terms of its click.Option."""
_NAMES = {part: stated for stated in TABLE for part in stated.split("/") if part.startswith("--")}


def option(word: str) -> click.Option:
    """Return an option of the table by its long name.

    `--output!` is required, `--limit=5` has a default of its own, and `--to:LSN|time` is an end of these kinds.
    """
    name, _, default = word.rstrip("!").partition("=")
    name, _, kinds = name.partition(":")
    stated = _NAMES[name]
    given = {**TABLE[stated], "required": word.endswith("!")}
    given |= {"default": default} if default else {}
    given |= (
        {"type": Parsed("X", partial(_point, is_end=name == "--to", kinds=kinds.split("|")))} if kinds else {}
    )
    given["show_default"] = bool(given.get("default"))
    spelled = [stated] if "--no-" in stated or "--once" in stated else stated.split("/")
    dest = given.pop("dest", None)
    return click.Option([*spelled, *([dest] if dest else [])], **given)

"""Options and arguments that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from mergerepl import roots
from mergerepl.cli.main import Invocation
from mergerepl.cli.report.output import Output

_DURATION = re.compile(r"(\d{1,9})\s*(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600}


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--verbose`; the command gets an `output` instead."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/cli-json.md).")
    @click.option("--verbose", is_flag=True, help="Log more, and show the traceback of an error.")
    @wraps(command)
    def with_output(*args: Any, as_json: bool, verbose: bool, **options: Any) -> Any:
        return command(*args, output=Output(sys.stdout, is_for_programs=as_json), **options)

    return with_output


def working(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `reporting`'s options and `--quiet`; the command also gets a `progress`."""

    @click.option("--quiet", is_flag=True, help="Show no progress.")
    @wraps(command)
    def with_progress(*args: Any, quiet: bool, **options: Any) -> Any:
        from mergerepl.cli.report.progress import open_progress

        quiet = quiet or options["output"].is_for_programs
        invocation = click.get_current_context().find_object(Invocation)
        given = None if invocation is None or quiet else invocation.progress
        return command(*args, progress=given or open_progress(sys.stderr, quiet=quiet), **options)

    return reporting(with_progress)


procedures_option = click.option(
    "--procedures",
    multiple=True,
    metavar="MODULE",
    help="Import a module that registers procedures of transactional articles; may be repeated.",
)


def duration(text: str) -> int:
    """Return the seconds of a time such as `60s`, `5m`, `1h`; a bare number is seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or int(found.group(1)) == 0:
        raise click.BadParameter(f"{text!r} is no time: write it as 60s, 5m or 1h.")
    return int(found.group(1)) * _UNITS[found.group(2) or "s"]


def key_part(text: str) -> tuple[str, str]:
    """Return the column and the value of `order_id=7`."""
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise click.BadParameter(f"{text!r} names no column: write it as order_id=7.")
    return column, value


replica_argument = click.argument("replica", metavar="FILE|REPLICA")
targets_argument = click.argument("targets", metavar="FILE|REPLICA...", nargs=-1, required=True)
subscriber_option = click.option("--subscriber", metavar="REPLICA", help="Only this subscriber.")
publication_option = click.option("--publication", metavar="NAME", help="Only this publication.")


def limit_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option that bounds a list; `text` is its help."""
    kind = click.IntRange(min=1)
    return click.option("--limit", metavar="N", type=kind, default=20, show_default=True, help=text)


def replica_root(text: str) -> str:
    """Return the root that an argument means: a replica's folder, or the publisher of a file."""
    if roots.names_file(text):
        from mergerepl.config import project_file as config

        return config.load_any(text).publisher
    return roots.existing(text)


def publication_roots(text: str) -> list[str]:
    """Return all replicas of a file, or the one that is named itself."""
    if not roots.names_file(text):
        return [text]
    from mergerepl.config import project_file as config

    stated = config.load(text)
    return [stated.publisher, *(each.subscriber for each in stated.subscriptions)]


def sync_target(texts: tuple[str, ...]) -> str | list[str]:
    """Return the argument or arguments as `api.sync` and `api.validate` take them."""
    targets = [text if roots.names_file(text) else roots.existing(text) for text in texts]
    return targets[0] if len(targets) == 1 else targets


def subscriber_root(text: str | None) -> str | None:
    """Return the root of `--subscriber`."""
    return None if text is None else roots.parse(text)

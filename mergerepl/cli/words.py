"""Answers to words that no command has: the new word for an old one, the nearest name, the command to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import click

from mergerepl.cli.grammar import Command, Group, Invocation
from mergerepl.model.later import instead_of
from mergerepl.model.words import did_you_mean
from mergerepl.roots import masked

IN_PYTHON: Final = "in Python: "

COMMANDS: Final[dict[str, str]] = {
    "partition": "partitions",
    "partition list": "partitions list",
    "partition add": "partitions add",
    "partition drop": "partitions drop PARTITION",
    "conflicts summary": "conflicts list --count-by day,table,type,resolver",
    "conflicts purge": "conflicts drop ID... (or `mergerepl cleanup` for old ones)",
    "agent start": "agent run --detach",
    "transactional logreader": "capture",
    "transactional distribute": "sync",
    "transactional errors": "history --failed",
    "cdc enable-db": "cdc enable TABLE (the first table enables the folder)",
    "cdc enable-table": "cdc enable TABLE",
    "cdc disable-db": "cdc disable --all",
    "cdc disable-table": "cdc disable TABLE",
    "cdc help": "cdc list",
    "cdc columns": "cdc show INSTANCE",
    "cdc ddl-history": "cdc show INSTANCE",
    "cdc errors": "history --failed",
    "cdc sessions": "history",
    "cdc adopt": "cdc relocate",
    "cdc net": "cdc changes INSTANCE --net",
    "cdc apply": "cdc load INSTANCE --into PATH --consumer NAME",
    "tracking transactions": "history",
    "tracking upgrade": "status",
    "tracking key": f"{IN_PYTHON}ChangeTracking(PATH).pack_key(TABLE, VALUES), or .unpack_key(TABLE, KEY)",
    "tracking sql": f"{IN_PYTHON}ChangeTracking.sql(TABLE)",
}
"""A command that is gone -> the words after `mergerepl` that do its work, or the call in Python.

One of a group that is a command of all products now is not listed.
"""

OPTIONS: Final[dict[str, str]] = {
    "--subscriber": "REPLICA, the name of the subscriber after the command",
    "skip --subscriber": "--at",
    "script --subscriber": "--at",
    "--article": "--table",
    "row --article": "TABLE, after the command",
    "conflicts --type": "--conflict-type",
    "--since": "--from",
    "--until": "--to",
    "--from-lsn": "--from",
    "--from-time": "--from",
    "--to-lsn": "--to",
    "--to-time": "--to",
    "conflicts export --to": "-o",
    "conflicts report --to": "-o",
    "--rows": "--limit",
    "purge --table": "TABLE, after the command",
    "cleanup --retention": "--older-than, as in `mergerepl cleanup --older-than 3d`",
    "--mend": "--fix",
    "doctor --engine": "--start-engine",
    "--give-up": "mergerepl abort SESSION",
    "--index": "--key",
    "--keys": "--key",
    "--guid": "--rowguid",
    "--options": "--track",
    "--option": "--row-filter",
    "cdc enable --capture-instance": "--name",
    "cdc disable --capture-instance": "--name",
    "--capture-instance": "INSTANCE, after the command",
    "--instance": "INSTANCE, after the command",
    "--low-water-mark": "--to",
    "--days": "--older-than, as in --older-than 90d",
    "--csn": "--to",
    "--open": "mergerepl status, which lists open transactions",
    "lsn --show": "the LSN after the command",
    "tracking --consumer": "CONSUMER, after the command",
    "--net": "nothing: instances with a key support net changes, unless --no-net",
    "--initial": "nothing: it is the default",
    "jobs --start": "nothing: it is the default",
}
"""An option that is gone, after the words that it is known by -> what it is now."""


def explain(error: click.UsageError, ctx: click.Context, words: Sequence[str]) -> click.UsageError:
    """Return the error of words that cannot be parsed, with the remedy if one is known."""
    if isinstance(error, click.NoSuchOption):
        path = ctx.command_path.split(" ")[1:]
        message = _option_answer(path, error.option_name)
        if message is not None:
            return click.NoSuchOption(error.option_name, message, ctx=ctx)
        if isinstance(ctx.command, click.Group):
            return _of_commands(error, ctx, words)
        return error
    if isinstance(ctx.command, Command) and "unexpected extra argument" in error.message:
        extra = next((word for word in words if not word.startswith("-") and word in error.message), None)
        if extra is not None and not ctx.command.takes:
            return place_given(ctx, extra, "")
    return error


def _option_answer(path: Sequence[str], name: str) -> str | None:
    keys = [
        " ".join((*path[start:stop], name))
        for start in range(len(path))
        for stop in range(len(path), start, -1)
    ]
    new = next((OPTIONS[key] for key in [*keys, name] if key in OPTIONS), None)
    if new is not None:
        return f"There is no {name} any more. Write {new}."
    instead = _instead_of(path, name)
    return None if instead is None else f"{name} is an option of a later version. {instead}"


def _instead_of(path: Sequence[str], word: str) -> str | None:
    places = {"cdc": "cdc", "tracking": "tracking", "transactional": "transactional commands"}
    return instead_of(places.get(path[0] if path else "", "commands"), word)


def _of_commands(error: click.NoSuchOption, ctx: click.Context, words: Sequence[str]) -> click.UsageError:
    """Return the error of an option that stands before the command, but belongs to it."""
    assert isinstance(ctx.command, Group)
    commands = {name: ctx.command.get_command(ctx, name) for name in ctx.command.list_commands(ctx)}
    having = [
        name
        for name, command in commands.items()
        if command and any(error.option_name in each.opts for each in command.params)
    ]
    if not having:
        return error
    command_name = next((word for word in words if word in having), "COMMAND")
    return click.NoSuchOption(
        error.option_name,
        f"{error.option_name} is an option of the commands: put it after the command, as in "
        f"`{ctx.command_path} {command_name} … {error.option_name}`.",
        ctx=ctx,
    )


def unknown_command(group: Group, ctx: click.Context, words: Sequence[str]) -> click.UsageError:
    """Return the error of a command that does not exist."""
    path, name = ctx.command_path.split(" ")[1:], words[0]
    root = ctx.find_root()
    assert isinstance(root.command, Group)
    of_all = root.command.get_command(root, name)
    # The tasks of all products are commands of the first level. Without optional words, the answer can be pasted.
    here = {}
    if isinstance(of_all, Command) and path:
        here = {f"{path[0]} {name}": f"{name} {of_all.takes.partition('[')[0]}".strip()}
    known = here | COMMANDS
    for size in (2, 1):
        old = " ".join((*path, *words[:size]))
        if old in known:
            call = known[old].removeprefix(IN_PYTHON)
            new = f"Run `mergerepl {call}`" if call == known[old] else f"Call it {IN_PYTHON}`{call}`"
            return click.UsageError(f"There is no `{old}` any more. {new}.", ctx=ctx)
    if (instead := _instead_of(path, name)) is not None:
        return click.UsageError(f"'{name}' is a command of a later version. {instead}", ctx=ctx)
    hint = did_you_mean(name, group.list_commands(ctx))
    return click.UsageError(f"No such command '{masked(name)}'.{hint}", ctx=ctx)


def place_given(ctx: click.Context, word: str, kind: str) -> click.UsageError:
    """Return the error of a place that stands where a name should, with the command that is meant."""
    invocation = ctx.ensure_object(Invocation)
    rest = [each for each in invocation.arguments[len(ctx.command_path.split(" ")) - 1 :] if each != word]
    typed = shlex.join([*ctx.command_path.split(" ")[1:], "-f", word, *rest])
    what = f"{'an' if kind[:1] in 'AEI' else 'a'} {kind}" if kind else "no name"
    return click.UsageError(
        f"{masked(word)!r} is a path: `{ctx.command_path}` takes {what}. Run `mergerepl {masked(typed)}`.",
        ctx=ctx,
    )

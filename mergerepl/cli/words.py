"""Answers to words that no command has: the new word for an old one, the nearest name, the command to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from mergerepl.cli.grammar import Command, Group
from mergerepl.cli.invocation import Invocation
from mergerepl.model.later import instead_of
from mergerepl.model.renamed import COMMANDS, IN_PYTHON, OPTIONS
from mergerepl.model.words import did_you_mean
from mergerepl.roots import masked


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
    for size in (2, 1):
        old = " ".join((*path, *words[:size]))
        if old in COMMANDS:
            call = COMMANDS[old].removeprefix(IN_PYTHON)
            new = f"Run `mergerepl {call}`" if call == COMMANDS[old] else f"Call it {IN_PYTHON}`{call}`"
            return click.UsageError(f"There is no `{old}` any more. {new}.", ctx=ctx)
    if isinstance(of_all, Command) and path:
        call = f"{name} {of_all.takes.partition('[')[0]}".strip()
        return click.UsageError(
            f"`{path[0]}` has no command '{name}': one serves all types. Run `mergerepl {call}`.", ctx=ctx
        )
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

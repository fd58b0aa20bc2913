"""Help texts: a command's docstring, whose `Example:` keeps its lines."""

from inspect import cleandoc
from typing import Any

import click

from mergerepl.model.later import instead_of

_PLACES = {"cdc": "cdc", "tracking": "tracking", "transactional": "transactional commands"}


def _instead(groups: list[str], word: str) -> str | None:
    """Return what to do instead of a later option or command of a group (its words after `mergerepl`)."""
    return instead_of(_PLACES.get(groups[0], "commands") if groups else "commands", word)


class Command(click.Command):
    """A command with an example."""

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=_keep_example(help), **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command; of an option of a later version, say what to do instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = _instead(ctx.command_path.split(" ")[1:-1], error.option_name)
            if instead is None:
                raise
            message = f"{error.option_name} is an option of a later version. {instead}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from error


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, name: str | None = None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=_keep_example(help), **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a command of a later version, say what to do instead.

        A place that is given where a command should be is named without its credentials.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from mergerepl.roots import masked

            if (instead := _instead(ctx.command_path.split(" ")[1:], args[0])) is not None:
                raise click.UsageError(
                    f"'{args[0]}' is a command of a later version. {instead}", ctx=ctx
                ) from error
            if masked(error.message) == error.message:
                raise
            raise click.UsageError(masked(error.message), ctx=ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before the command; of an option that commands have, say that it goes after them."""
        words, names = list(args), self.list_commands(ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            commands = {name: self.get_command(ctx, name) for name in names}
            having = [
                name
                for name, command in commands.items()
                if command and any(error.option_name in each.opts for each in command.params)
            ]
            if not having:
                raise
            command_name = next((word for word in words if word in having), "COMMAND")
            raise click.NoSuchOption(
                error.option_name,
                f"{error.option_name} is an option of the commands: put it after the command, as in "
                f"`{ctx.command_path} {command_name} … {error.option_name}`.",
                ctx=ctx,
            ) from error


def _keep_example(text: str | None) -> str | None:
    """Mark the example as click wants it, so that its lines are not joined."""
    return text and cleandoc(text).replace("Example:\n", "\b\nExample:\n")

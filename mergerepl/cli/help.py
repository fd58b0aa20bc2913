"""Help texts: a command's docstring, whose `Example:` keeps its lines."""

from inspect import cleandoc
from typing import Any

import click


class Command(click.Command):
    """A command with an example."""

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=_keep_example(help), **options)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, name: str | None = None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=_keep_example(help), **options)


def _keep_example(text: str | None) -> str | None:
    """Mark the example as click wants it, so that its lines are not joined."""
    return text and cleandoc(text).replace("Example:\n", "\b\nExample:\n")

"""Commands and groups: what all of them share, and what a command declares of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from inspect import cleandoc
from typing import Any

import click

from mergerepl.cli.invocation import Invocation
from mergerepl.cli.options import GENERAL, Parsed, made, number, option

WIDTH = 90


class Effect(Enum):
    """The effect of a command on data. One that writes has `--dry-run`; one that destroys also has `--yes`."""

    READS = "reads"
    WRITES = "writes"
    DESTROYS = "destroys"
    RUNS = "runs"
    """It runs others, as the agent does: a rehearsal would say nothing."""


READS, WRITES, DESTROYS, RUNS = Effect


def _general_options(*, is_root: bool) -> list[click.Option]:
    def note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            invocation = ctx.ensure_object(Invocation)
            if parameter.name == "files":
                invocation.files += value
            else:
                setattr(invocation, str(parameter.name), value)

    shared = {"is_eager": True, "expose_value": False, "callback": note, "hidden": not is_root}
    found = {names: {**terms, **shared} for names, terms in GENERAL.items()}
    found["-f/--file"]["type"] = None
    found["-V/--version"]["callback"] = _show_version
    return [made(*each) for each in found.items() if is_root or each[0] != "-V/--version"]


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib import metadata

    click.echo(f"mergerepl {metadata.version('mergerepl')}")
    ctx.exit()


class _Shared(click.Command):
    """General options, help, and answers to words that are not known here."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of this command, the general ones and `--help`."""
        *own, help_option = super().get_params(ctx)
        assert isinstance(help_option, click.Option)
        help_option.help = "Show this message."
        return [*own, *_general_options(is_root=ctx.parent is None), help_option]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; say of an option that is unknown what it is called now, or what to do instead."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            from mergerepl.cli.words import explain

            raise explain(error, ctx, words) from error


class Command(_Shared):
    """A command: its `call` is the method of the API that does the work."""

    effect = READS
    call = ""
    takes = ""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the general options, which every command has."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("General options: -f PATH, --json, -q, -v; see `mergerepl --help`.")


class Group(_Shared, click.Group):
    """A group of commands; `COMMANDS` of `cli/main.py` says which are hidden. `is_at`: each works `--at` a replica."""

    is_at = False

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; every group has `help`."""
        return _help_command() if cmd_name == "help" else super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order they are stated in."""
        return list(self.commands)

    def visible(self, ctx: click.Context) -> list[click.Command]:
        """Return the commands that help lists."""
        found = (self.get_command(ctx, name) for name in self.list_commands(ctx))
        return [command for command in found if command is not None and not command.hidden]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; say of one that is unknown what it is called now, or which one is meant."""
        if self.get_command(ctx, args[0]) is None:
            from mergerepl.cli.words import unknown_command

            raise unknown_command(self, ctx, args)
        return super().resolve_command(ctx, args)

    def add(
        self, effect: Effect, usage: str, *, is_at: bool = True, **declared: Any
    ) -> Callable[[Callable[..., Any]], Command]:
        """Make a command of a function and add it to this group; `declared` as `command` has it."""

        def make(function: Callable[..., Any]) -> Command:
            added = command(effect, f"--at {usage}" if self.is_at and is_at else usage, **declared)(function)
            self.add_command(added)
            return added

        return make

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the visible commands with the first sentence of their help."""
        formatter.write_paragraph()
        write_commands(formatter, self.visible(ctx))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words after the group's name."""
        kinds = dict.fromkeys(
            each.takes.split("]")[0].strip("[.") for each in self.visible(ctx) if isinstance(each, Command)
        )
        taken = "|".join(kind.split(".")[0] for kind in kinds if kind)
        return ["COMMAND", "[OPTIONS]", *([f"[{taken}]..."] if taken else [])]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands; general options are listed by `mergerepl --help`."""
        self.format_commands(ctx, formatter)


def write_commands(
    formatter: click.HelpFormatter, commands: Iterable[click.Command], title: str = "", *, width: int = 0
) -> None:
    """List commands with the first sentence of their help; nothing is cut."""
    found = list(commands)
    width = width or max((len(each.name or "") for each in found), default=0)
    if title:
        formatter.write(f"{title}\n")
    for each in found:
        formatter.write(f"  {each.name or '':<{width}}  {first_sentence(each)}\n")


def first_sentence(command: click.Command) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").strip().splitlines()[0]


def group(name: str, help: str, *, is_at: bool = False) -> Group:
    """Return a group of commands; `is_at`: each works `--at` a replica."""
    found = Group(name, help=keep_example(help))
    found.is_at = is_at
    return found


def command(
    effect: Effect,
    usage: str,
    *,
    name: str | None = None,
    hidden: bool = False,
    several_places: bool = False,
    one_of: str = "",
    also: Callable[[Invocation], dict[str, Any]] = lambda run: {},
    **questions: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function.

    It gets the `Invocation` and its arguments by name, and returns an exit code. If the call is written with `()`, it is
    made with what was given: the function gets the `Invocation` and the result, and returns a `Report`.

    Args:
        effect: What it does to data. `--dry-run` and `--yes` come by it.
        usage: The method of the API that it calls, the one kind of its positionals (`REPLICA`, `[REPLICA]...`), and its
            options, as `options.option` takes them.
        name: Its name, if it is not that of the function.
        hidden: Whether only `help --all` lists it.
        several_places: Whether it takes several `-f`.
        one_of: Options of which exactly one is to be given.
        also: As for `Invocation.reported_call`.
        **questions: As for `Invocation.reported_call`.
    """
    words = usage.split()
    takes = "".join(word for word in words if word.isupper())
    options = [option(word) for word in words if word.startswith("-")]
    call = "".join(word for word in words if not word.isupper() and not word.startswith("-"))

    def make(function: Callable[..., Any]) -> Command:
        def run(**given: Any) -> Any:
            ctx = click.get_current_context()
            invocation = ctx.ensure_object(Invocation)
            if len(invocation.files) > 1 and not several_places:
                raise click.UsageError(f"`{ctx.command_path}` takes one -f.")
            _require_names(ctx, takes, given)
            _require_one(takes, one_of.split(), given)
            for term in ("at", "dry_run", "yes"):
                setattr(invocation, term, given.pop(term, None))
            invocation.given = given
            work = partial(function, invocation, **given)
            if call.endswith("()"):
                work = partial(invocation.reported_call, call, function, also, **questions)
            elif effect is RUNS or given.get("interval") is not None:
                return work()
            return invocation.work(found.name or "", work)

        parameters: list[click.Parameter] = [_positional(takes)] if takes else []
        parameters += options
        parameters += [option("--dry-run")] if effect in (WRITES, DESTROYS) else []
        parameters += [option("--yes")] if effect is DESTROYS else []
        found = Command(
            name or function.__name__.strip("_").replace("_", "-"),
            callback=run,
            params=parameters,
            help=keep_example(function.__doc__),
            hidden=hidden,
        )
        found.effect, found.call, found.takes = effect, call.removesuffix("()"), takes
        return found

    return make


NUMBERS = ("BSN", "PARTITION", "CHANGE")
"""Kinds of positionals that are numbers."""


def kind_of(takes: str) -> str:
    """Return the kind of positionals: REPLICA of `[REPLICA]...`."""
    return takes.strip("[].")


def _positional(takes: str) -> click.Argument:
    kind, is_many = kind_of(takes), takes.endswith("...")
    name = kind.split("|")[0].lower()
    return click.Argument(
        [f"{name}s" if is_many else name],
        metavar=takes,
        nargs=-1 if is_many else 1,
        required=not takes.startswith("["),
        type=Parsed(kind, number) if kind in NUMBERS else None,
        shell_complete=_complete,
    )


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from mergerepl.cli.completion import names

    return names(ctx, kind_of(str(parameter.metavar)), incomplete)


def _require_names(ctx: click.Context, takes: str, given: dict[str, Any]) -> None:
    """Refuse a place where a name should be, with the command that is meant.

    Raises: UsageError.
    """
    if kind_of(takes) not in ("REPLICA", "TABLE", "INSTANCE", "TABLE|INSTANCE", "CONSUMER", "ID"):
        return
    parameter = ctx.command.params[0]
    found = given[str(parameter.name)]
    for word in found if isinstance(found, tuple) else (found,):
        if word and _is_place(word, kind_of(takes)):
            from mergerepl.cli.words import place_given

            raise place_given(ctx, word, kind_of(takes))


def _require_one(takes: str, one_of: Sequence[str], given: dict[str, Any]) -> None:
    """Refuse names beside `--all`, neither of them, and options of which one has to be chosen.

    Raises: UsageError.
    """
    if "all" in given and takes.startswith("["):
        names = f"{kind_of(takes).lower()}s"
        if bool(given[names]) == given["all"]:
            raise click.UsageError(f"Name the {names.replace('ids', 'IDs')}, or say --all.")
    values = [given[str(option(each).name)] for each in one_of]
    if one_of and sum(each not in (None, ()) and each is not False for each in values) != 1:
        raise click.UsageError(f"Say one of {', '.join(one_of)}.")


def _is_place(word: str, kind: str) -> bool:
    if word.lower().endswith((".yml", ".yaml")) or word.startswith(("/", "./", "../", "~", "file:")):
        return True
    return kind == "REPLICA" and ("/" in word or word in (".", ".."))


def _help_command() -> click.Command:
    def show(words: tuple[str, ...], is_all: bool) -> None:
        ctx = click.get_current_context().parent
        assert ctx is not None
        found: click.Command = ctx.command
        for word in words:
            assert isinstance(found, click.Group)
            name, inner, _ = found.resolve_command(ctx, [word])
            assert inner is not None
            ctx, found = click.Context(inner, info_name=name, parent=ctx), inner
        if not is_all or not isinstance(found, click.Group):
            click.echo(found.get_help(ctx))
            return
        rows = list(_all_commands(ctx, found))
        width = max(len(words) for words, _ in rows)
        click.echo("\n".join(f"{words:<{width}}  {first_sentence(each)}" for words, each in rows))

    parameters = [
        click.Argument(["words"], metavar="[COMMAND]...", nargs=-1),
        click.Option(["--all", "is_all"], is_flag=True, help="List all commands, also the hidden ones."),
    ]
    return click.Command("help", callback=show, params=parameters, help="Show help.", hidden=True)


def _all_commands(ctx: click.Context, found: click.Group) -> Iterable[tuple[str, click.Command]]:
    for name in found.list_commands(ctx):
        command = found.get_command(ctx, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=ctx)
        if isinstance(command, click.Group):
            yield from _all_commands(inner, command)
        else:
            yield inner.command_path, command


def keep_example(text: str | None) -> str | None:
    """Mark the example as click wants it, so that its lines are not joined."""
    return text and cleandoc(text).replace("Example:\n", "\b\nExample:\n")

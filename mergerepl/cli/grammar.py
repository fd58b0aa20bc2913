"""Commands and groups: what all of them share, and what a command declares of itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mergerepl.cli.options import Parsed, number, option
from mergerepl.cli.report.output import Output
from mergerepl.errors import ConfigurationError, EngineLostError, MergeReplError
from mergerepl.store.rehearsal import REHEARSED, rehearsed

if TYPE_CHECKING:
    from mergerepl.cli.place import CommandPlace
    from mergerepl.cli.report.progress import Patience
    from mergerepl.cli.report.table import Part
    from mergerepl.model.progress import Progress
    from mergerepl.replicas import Replica

WIDTH = 90
T = TypeVar("T")


class Effect(Enum):
    """The effect of a command on data. One that writes has `--dry-run`; one that destroys also has `--yes`."""

    READS = "reads"
    WRITES = "writes"
    DESTROYS = "destroys"
    RUNS = "runs"
    """It runs others, as the agent does: a rehearsal would say nothing."""


READS, WRITES, DESTROYS, RUNS = Effect


@dataclass
class Invocation:
    """One run of the command line, as its commands find it in their context."""

    arguments: tuple[str, ...] = ()
    given_progress: Progress | None = None
    """In a warm agent, which runs a command for another process: what shows the progress there."""
    error: Exception | None = None
    """The error that ended it."""
    files: list[str] = field(default_factory=list)
    at: str | None = None
    """The replica that `--at` names; None: the publisher, or the folder that is the place."""
    dry_run: bool = False
    yes: bool = False
    as_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    log_format: str = "text"
    patience: Patience | None = None
    """Shows that the command works if it takes long, until it writes or asks."""

    @property
    def may_have_left_work(self) -> bool:
        """Whether the engine may still be at work: an error of ours says that it is not, unless the engine was lost."""
        is_ours = isinstance(self.error, MergeReplError | click.ClickException)
        return self.error is not None and (not is_ours or isinstance(self.error, EngineLostError))

    @cached_property
    def output(self) -> Output:
        """Where results are reported."""
        if self.patience is not None:
            self.patience.end()
        return Output(sys.stdout, is_for_programs=self.as_json, is_logged=self.log_format == "json")

    def report(self, value: object, *parts: Part) -> None:
        """Report a result: as JSON its value, as text the tables and sentences that show it."""
        self.output.reported(value, *parts)

    @cached_property
    def progress(self) -> Progress:
        """The display of this command's steps."""
        from mergerepl.cli.report.progress import open_progress

        quiet = self.is_quiet or self.as_json
        return (not quiet and self.given_progress) or open_progress(
            sys.stderr, quiet=quiet, log_format=self.log_format
        )

    def work(self, name: str, call: Callable[[], T]) -> T:
        """Run a command; one that takes longer than two seconds shows that it works."""
        if self.given_progress is not None or self.is_quiet or self.as_json:
            return call()
        from mergerepl.cli.report.progress import Patience

        self.patience = Patience(self.progress, name)
        self.patience.start()
        try:
            return call()
        finally:
            self.patience.end()

    @cached_property
    def place(self) -> CommandPlace:
        """Return the project or the folder that the command works in.

        Raises: ConfigurationError if there is none.
        """
        from mergerepl.cli.place import CommandPlace

        place = CommandPlace(tuple(self.files), self.at)
        (first, *_) = place.found
        if not (first.is_given or self.is_quiet) and os.path.dirname(first.path) not in (os.getcwd(), ""):
            click.echo(f"Using {first.path}", err=True)
        return place

    @property
    def replica(self) -> Replica:
        """The replica to work at: that of `--at`, else the publisher."""
        return self.place.project.at(self.at)

    @property
    def has_place(self) -> bool:
        """Whether there is a project or a folder of tables here, or one is given."""
        from mergerepl.places import find_places

        try:
            find_places(self.files)
        except ConfigurationError:
            return False
        return True

    def confirm(self, question: str) -> None:
        """Ask before rows are removed or overwritten, but in a dry run; an empty `question` is not asked.

        Raises: UsageError if no terminal is there to ask; ClickException if the answer is no.
        """
        if self.yes or self.dry_run or not question:
            return
        if self.patience is not None:
            self.patience.end()
        if self.as_json or not sys.stdin.isatty():
            raise click.UsageError(f"{question} Say --yes to go on, or see --dry-run. Nothing was changed.")
        if not click.confirm(question, err=True):
            raise click.ClickException("Declined. Nothing was changed.")

    def carry_out(self, call: Callable[..., T], *, asks: str | Callable[[T], str] = "", would: str = "") -> T:
        """Run a call that writes.

        Args:
            call: It takes `dry_run`, unless `would` is given.
            asks: The question before it, with the place and the rows, or what makes it of the result of a dry run.
            would: What would be done. A dry run ends the command at the first write, and reports it.
        """
        if isinstance(asks, str):
            self.confirm(asks)
        elif not (self.dry_run or self.yes):
            self.confirm(asks(call(dry_run=True)))
        if not would:
            return call(dry_run=self.dry_run)
        done: T = rehearsed(self.dry_run, call)
        if done is REHEARSED:
            text = f"{would} Nothing was changed (--dry-run)."
            self.report({"dry_run": True, "would": would}, text)
            raise click.exceptions.Exit(0)
        return done


_GENERAL: Mapping[tuple[str, str], dict[str, Any]] = {
    ("-f --file files", "Project file or folder of tables. Default: nearest mergerepl.yml."): {
        "metavar": "PATH",
        "multiple": True,
    },
    ("--json as_json", "Print one JSON object."): {"is_flag": True},
    ("-q --quiet is_quiet", "Show no progress."): {"is_flag": True},
    ("--log-format log_format", "What is logged, and steps: json is one object a line."): {
        "type": click.Choice(("text", "json"))
    },
    ("-v --verbose is_verbose", "Log more; show tracebacks."): {"is_flag": True},
}
"""The options that every command takes: names and help -> other terms."""


def _general_options(*, is_root: bool) -> list[click.Option]:
    def note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            invocation = ctx.ensure_object(Invocation)
            if parameter.name == "files":
                invocation.files += value
            else:
                setattr(invocation, str(parameter.name), value)

    terms: dict[str, Any] = {"is_eager": True, "expose_value": False}
    shared = {**terms, "callback": note, "hidden": not is_root}
    found = [
        click.Option(names.split(), help=help, **shared, **own) for (names, help), own in _GENERAL.items()
    ]
    version = click.Option(
        ["-V", "--version"], help="Show the version.", is_flag=True, callback=_show_version, **terms
    )
    return [*found, version] if is_root else found


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
    several_places = False

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
            made = command(effect, f"--at {usage}" if self.is_at and is_at else usage, **declared)(function)
            self.add_command(made)
            return made

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
    made = Group(name, help=keep_example(help))
    made.is_at = is_at
    return made


def command(
    effect: Effect,
    usage: str,
    *,
    name: str | None = None,
    hidden: bool = False,
    several_places: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function, which gets the `Invocation` and then its arguments by name.

    Args:
        effect: What it does to data. `--dry-run` and `--yes` come by it.
        usage: The method of the API that it calls, the one kind of its positionals (`REPLICA`, `[REPLICA]...`), and its
            options, as `options.option` takes them.
        name: Its name, if it is not that of the function.
        hidden: Whether only `help --all` lists it.
        several_places: Whether it takes several `-f`.
        **settings: Terms of `click.Command`.
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
            invocation.at = given.pop("at", None)
            invocation.dry_run, invocation.yes = given.pop("dry_run", False), given.pop("yes", False)
            if effect is RUNS or given.get("interval") is not None:
                return function(invocation, **given)
            return invocation.work(made.name or "", lambda: function(invocation, **given))

        parameters: list[click.Parameter] = [_positional(takes)] if takes else []
        parameters += options
        parameters += [option("--dry-run")] if effect in (WRITES, DESTROYS) else []
        parameters += [option("--yes")] if effect is DESTROYS else []
        made = Command(
            name or function.__name__.strip("_").replace("_", "-"),
            callback=run,
            params=parameters,
            help=keep_example(function.__doc__),
            hidden=hidden,
            **settings,
        )
        made.effect, made.call, made.takes, made.several_places = effect, call, takes, several_places
        return made

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

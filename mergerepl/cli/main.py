"""The command line: its commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from mergerepl.cli.grammar import WIDTH, Group, keep_example, write_commands
from mergerepl.cli.invocation import FAILED, INTERRUPTED, TRANSIENT, Invocation
from mergerepl.cli.standard_output import StandardOutput, say_error, standard_output
from mergerepl.errors import MergeReplError, Transient
from mergerepl.model.progress import Progress
from mergerepl.rows.arrow_values import ArrowAlone
from mergerepl.settings import Settings, leave_out_plugins

COMMANDS: Final[dict[str, dict[str, str]]] = {
    "Start": {"init": "project", "apply": "project", "demo": "demo"},
    "Synchronize": {"sync": "project", "capture": "project", "agent": "agent"},
    "Look": dict.fromkeys(("status", "pending", "history", "row"), "look")
    | {"conflicts": "conflicts", "dashboard": "look"},
    "Check and repair": dict.fromkeys(("validate", "repair", "reinit", "resume", "doctor"), "upkeep"),
    "Maintain": dict.fromkeys(("cleanup", "vacuum", "tune"), "upkeep")
    | {"partitions": "look", "schema": "look"},
    "More than merge": {"transactional": "transactional", "cdc": "cdc", "tracking": "tracking"},
    "": {"abort": "project", "touch": "upkeep", "completion": "completion"},
}
"""Tasks in the order of `--help` -> the commands of each and their modules. The last ones are hidden."""


class Interrupted(click.ClickException):
    """Ctrl-C ended the command."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("Interrupted. Run the command again: it first finishes what was staged.")

    def show(self, file: Any = None) -> None:
        """Say it without `Error:`."""
        click.echo(self.message, err=True)


class CommandGroup(Group):
    """Loads a command's module only when it is asked for, and is the error boundary of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands in the order of `--help`."""
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module."""
        module = next((names[cmd_name] for names in COMMANDS.values() if cmd_name in names), None)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(f"mergerepl.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task."""
        formatter.write_paragraph()
        width = max(map(len, self.list_commands(ctx)))
        for task, names in COMMANDS.items():
            found = [self.get_command(ctx, name) for name in names]
            shown = [each for each in found if each is not None and not each.hidden]
            if shown:
                write_commands(formatter, shown, f"{task}:", width=width)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words after the program's name."""
        return ["[OPTIONS]", "COMMAND", "[ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, then the general options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the exit codes mean, and where the rest is."""
        formatter.write(
            "\nExit codes: 0 done, 1 failed or different, 2 usage, 3 run again, 130 interrupted.\n"
            "All commands: mergerepl help --all\n"
        )

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; with `standalone_mode`, end the process with the documented exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        arguments = list(sys.argv[1:] if args is None else args)
        leave_out_plugins()
        ArrowAlone.begin()
        with standard_output() as out:
            try:
                code = self._code(arguments, prog_name, complete_var, out, extra)
                out.flush()
            except OSError as error:
                code = _unwritten(error, out)
        sys.exit(code)

    def _code(
        self,
        arguments: list[str],
        prog_name: str | None,
        complete_var: str | None,
        out: StandardOutput,
        extra: dict[str, Any],
    ) -> int:
        """Run the command line, report what it raises, and return its exit code.

        Raises: OSError if standard output cannot be written.
        """
        as_json = "--json" in arguments
        verbose = not {"-v", "--verbose"}.isdisjoint(arguments)
        invocation = extra.setdefault("obj", Invocation(tuple(arguments)))
        try:
            settings = Settings.from_environment()
            verbose = verbose or settings.debug
            level = "INFO" if verbose and settings.log_level == "WARNING" else settings.log_level
            log_to_stderr(level, is_json=_logs_json(arguments))
            outcome = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
            return outcome if isinstance(outcome, int) else 0
        except BrokenPipeError:
            raise
        except (KeyboardInterrupt, click.Abort):
            return _report(Interrupted(), as_json=as_json, verbose=verbose)
        except Exception as error:
            invocation.error = error
            if out.failure is not None:
                raise out.failure from None
            return _report(error, as_json=as_json, verbose=verbose)


def _logs_json(arguments: Sequence[str]) -> bool:
    """Whether `--log-format json` is among the words: what is logged before they are parsed has that form, too."""
    return "--log-format=json" in arguments or ("--log-format", "json") in itertools.pairwise(arguments)


def log_to_stderr(level: str, *, is_json: bool = False) -> None:
    """Send what is logged to standard error, unless the caller has configured logging already."""
    handler = logging.StreamHandler()
    handler.addFilter(_is_no_echo)
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", handlers=[handler])
    if is_json:
        from mergerepl.cli.report.logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
    # At DEBUG it logs all that it sends to the JVM, the secret too that lets anybody run code there.
    logging.getLogger("py4j").setLevel(max(logging.INFO, logging.getLogger().level))
    if not logging.getLogger().isEnabledFor(logging.INFO):
        # pyspark logs what it raises, too. It makes these loggers with a handler of their own if they are not there.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            logging.getLogger(name).disabled = True


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Leave out what py4j logs with a traceback, by the root logger, before it raises the same: a JVM that ended."""
    is_echo = record.name == "root" and "py4j" in Path(record.pathname).parts
    return not is_echo or logging.getLogger().isEnabledFor(logging.INFO)


def _report(error: Exception, *, as_json: bool, verbose: bool) -> int:
    if verbose and not isinstance(error, click.ClickException):
        logging.getLogger(__name__).error("the command failed", exc_info=error)
    if as_json:
        from mergerepl.cli.report.output import dumps

        click.echo(dumps({"error": details(error)}, indent=None))
    elif isinstance(error, click.ClickException):
        error.show()
    else:
        say_error(str(details(error)["message"]))
    return exit_code(error)


def details(error: Exception) -> dict[str, Any]:
    """Return an error as `--json` shows it."""
    if isinstance(error, MergeReplError):
        return error.details()
    if isinstance(error, click.ClickException):
        is_transient = isinstance(error, Interrupted)
        return {"error": type(error).__name__, "message": error.format_message(), "transient": is_transient}
    from mergerepl.roots import masked

    said = masked(f"{type(error).__name__}: {error}")
    return {
        "error": "UnexpectedError",
        "message": f"{said}. This is a bug in mergerepl: run again with --verbose and report the traceback.",
        "transient": False,
    }


def exit_code(error: Exception) -> int:
    """Return an error's exit code: 1 failed, 2 usage or configuration, 3 transient."""
    if isinstance(error, MergeReplError):
        return TRANSIENT if isinstance(error, Transient) else error.exit_code
    return error.exit_code if isinstance(error, click.ClickException) else FAILED


def _unwritten(error: OSError, out: StandardOutput) -> int:
    """Say why output is missing; quietly if its reader has gone, as in `mergerepl history hq | head -1`."""
    out.give_up()
    if not isinstance(error, BrokenPipeError):
        # Standard error may be the same full disk.
        with suppress(OSError):
            say_error(
                f"Standard output cannot be written: {error.strerror}. What was done until then stays done: see "
                "`mergerepl history`."
            )
    return FAILED


main = CommandGroup(
    "mergerepl",
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": WIDTH},
    help=keep_example(
        """Replication for Delta Lake tables: change rows anywhere, synchronize, resolve conflicts.

        The project is mergerepl.yml in this folder or above; -f names another file, or a folder of tables.

        Example:
          mergerepl init ./hq ./north   write mergerepl.yml for the tables of ./hq
          mergerepl apply               publish them, fill ./north
          mergerepl sync                exchange changes
        """
    ),
)


def run_command(arguments: Sequence[str], progress: Progress) -> int:
    """Run a command as its own process would. An engine that an unknown error leaves behind is stopped.

    Until it ended it would keep others from the replicas: it might still be writing.
    """
    invocation = Invocation(tuple(arguments), progress)
    try:
        main.main(args=[*arguments], prog_name="mergerepl", obj=invocation)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    if invocation.may_have_left_work:
        from mergerepl.spark import session as engine

        engine.stop()
    return code

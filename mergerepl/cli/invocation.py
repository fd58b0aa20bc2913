"""`Invocation`: one run of the command line, with its place, its calls and its report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Report
from mergerepl.errors import EngineLostError, MergeReplError
from mergerepl.places import Place, find_places
from mergerepl.store.rehearsal import REHEARSED, rehearsed

if TYPE_CHECKING:
    from mergerepl.cli.report.progress import Patience
    from mergerepl.cli.report.table import Part
    from mergerepl.model.progress import Progress
    from mergerepl.project import Project
    from mergerepl.replicas import Replica

FAILED, USAGE, TRANSIENT, INTERRUPTED = 1, 2, 3, 130
T = TypeVar("T")
_CONDITIONS = frozenset(
    ("ids", "publication", "table", "conflict_type", "from_", "to", "column", "resolver", "status")
)
"""What `Conflicts.where` chooses by."""


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
    given: dict[str, Any] = field(default_factory=dict)
    """The arguments and options of the command."""
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
        try:
            return call()
        finally:
            self.patience.end()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The files and folders that it works on.

        Raises: ConfigurationError if there is none, or a folder does not exist.
        """
        found = find_places(self.files)
        first = found[0]
        if not (first.is_given or self.is_quiet) and os.path.dirname(first.path) not in (os.getcwd(), ""):
            click.echo(f"Using {first.path}", err=True)
        return found

    @property
    def paths(self) -> list[str]:
        """The absolute paths of these."""
        return [each.path for each in self.places]

    @cached_property
    def project(self) -> Project:
        """The project of these.

        Raises: ConfigurationError.
        """
        from mergerepl.project import Project

        found = self.paths
        return Project.load(*(self.files or found))

    @property
    def replica(self) -> Replica:
        """The replica to work at: that of `--at`, else the publisher, or the folder that is the place."""
        return self.project.at(self.at)

    @property
    def root(self) -> str:
        """The folder of that replica."""
        return str(self.replica.root)

    @property
    def place(self) -> str:
        """The place as it is typed after a command."""
        files = [self.root] if self.at else self.files or self.paths[:1]
        return " ".join(f"-f {shlex.quote(each)}" for each in files)

    @property
    def unchanged(self) -> list[str]:
        """The last line of a dry run."""
        return ["Nothing was changed (--dry-run)."] if self.dry_run else []

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

    def reported_call(
        self,
        call: str,
        report: Callable[[Invocation, Any], Report],
        also: Callable[[Invocation], dict[str, Any]],
        asks: str | Callable[[Invocation, Any], str] = "",
        asks_with: str = "",
        would: str = "",
    ) -> int:
        """Make a call of the API with what was given, report it, and return the exit code.

        Args:
            call: The method, as the usage of the command has it.
            report: Makes the report of the result.
            also: Makes arguments that the call has besides those that were given.
            asks: As for `carry_out`. Texts may name an argument (`{table}`), and what the run has (`{run.root}`).
            asks_with: The option that makes it ask; empty: it always does.
            would: As for `carry_out`.
        """
        question = asks if not asks_with or self.given[asks_with] not in (None, False) else ""
        # An option that was not given is left to the default of the call.
        given = {name: each for name, each in (self.given | also(self)).items() if each is not None}
        owner, _, name = call.removesuffix("()").rpartition(".")
        method = getattr(self.api(owner, given), name)
        first = next(iter(click.get_current_context().command.params), None)
        named = given.pop(str(first.name), ()) if isinstance(first, click.Argument) else ()
        words = named if isinstance(named, tuple) else (named,)
        takes = signature(method).parameters
        if "all" not in takes:
            given.pop("all", None)
        with self.progress if "progress" in takes else nullcontext() as progress:
            given |= {"progress": progress} if progress is not None else {}
            done = self.carry_out(
                partial(method, *words, **given),
                asks=self._said(question) if isinstance(question, str) else partial(question, self),
                would=self._said(would),
            )
        if parts := report(self, done):
            self.report(*parts)
        return exit_code(done)

    def _said(self, text: str) -> str:
        return text.format(run=self, **self.given)

    def api(self, owner: str, given: dict[str, Any]) -> Any:
        """Return the object of the API that has a call; what chooses it is taken out of `given`."""
        import mergerepl
        from mergerepl import cdc, transactional

        match owner.split("."):
            case ["Project"]:
                return self.project
            case ["Agent"]:
                return mergerepl.Agent(*self.paths)
            case ["Replica", "conflicts"]:
                chosen = {name: given.pop(name) for name in _CONDITIONS & given.keys()}
                return self.replica.conflicts.where(**chosen)
            case ["Replica", *parts]:
                return reduce(getattr, parts, self.replica)
            case ["cdc", "Instance"]:
                return cdc.Database(self.root).instance(given.pop("instance"))
            case ["cdc", "Database", *parts]:
                return reduce(getattr, parts, cdc.Database(self.root))
            case ["ChangeTracking", *_]:
                return mergerepl.ChangeTracking(self.root, foreign=given.pop("foreign", "adopt"))
            case ["Distributor"]:
                # `--at` names a subscriber of it.
                given |= {} if self.at is None else {"subscriber": self.root}
                return transactional.Distributor(self.project.at().root)
            case ["Subscriber"]:
                return transactional.Subscriber(self.root)
        return mergerepl

    def carry_out(self, call: Callable[..., T], *, asks: str | Callable[[T], str] = "", would: str = "") -> T:
        """Run a call that writes.

        Args:
            call: It takes `dry_run`, unless `would` is given or the command only reads.
            asks: The question before it, with the place and the rows, or what makes it of the result of a dry run.
            would: What would be done. A dry run ends the command at the first write, and reports it.
        """
        if isinstance(asks, str):
            self.confirm(asks)
        elif not (self.dry_run or self.yes):
            self.confirm(asks(call(dry_run=True)))
        if not would:
            return call(dry_run=True) if self.dry_run else call()
        done: T = rehearsed(self.dry_run, call)
        if done is REHEARSED:
            self.report({"dry_run": True, "would": would}, f"{would} Nothing was changed (--dry-run).")
            raise click.exceptions.Exit(0)
        return done


def exit_code(result: Any) -> int:
    """Return 0 if a result, or each of its rows, is `ok`; 3 if what is not is transient; else 1."""
    rows = result if isinstance(result, tuple) else (result,)
    failed = [each for each in rows if not getattr(each, "ok", True)]
    is_transient = all(getattr(each, "is_transient", False) for each in failed)
    return 0 if not failed else TRANSIENT if is_transient else FAILED

"""`mergerepl sync` (once, or at an interval in one warm process), `capture` and `validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from mergerepl.cli.help import Command
from mergerepl.cli.main import FAILED, TRANSIENT, Invocation, run_command
from mergerepl.cli.options import (
    duration,
    procedures_option,
    replica_argument,
    replica_root,
    reporting,
    subscriber_option,
    subscriber_root,
    sync_target,
    targets_argument,
    working,
)
from mergerepl.cli.report import merge
from mergerepl.cli.report.output import Output
from mergerepl.cli.standard_output import say_error
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.settings import agent_file
from mergerepl.targets import agent_roots

if TYPE_CHECKING:
    from mergerepl.model.results import SyncResult


@click.command(cls=Command)
@targets_argument
@subscriber_option
@click.option(
    "--direction",
    type=click.Choice(["both", "upload", "download"]),
    default="both",
    show_default=True,
    help="Upload is from the subscriber to the publisher.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would change and who would win; change nothing. Not with --validate.",
)
@click.option(
    "--validate",
    type=click.Choice(["rowcount", "checksum"]),
    help="Compare publisher and subscriber afterwards, by number of rows or row by row.",
)
@click.option(
    "--interval",
    type=duration,
    metavar="TIME",
    help="Repeat, waiting this long (60s, 5m, 1h) between rounds.",
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "auto"]),
    help="Who writes the tables: with auto delta-rs where up to 100,000 rows changed, or Spark alone. "
    "Default: the file's, or auto.",
)
@click.option(
    "--give-up",
    metavar="SESSION",
    help="End a staged session that cannot be finished; its rows are kept. Alone.",
)
@click.option(
    "--no-agent",
    is_flag=True,
    help="Work in this process, even if an agent listens at the publisher. With --interval: do not listen.",
)
@procedures_option
@working
def sync(
    targets: tuple[str, ...],
    subscriber: str | None,
    interval: int | None,
    no_agent: bool,
    procedures: tuple[str, ...],
    output: Output,
    progress: Progress,
    **options: Any,
) -> int:
    """Run a merge session for each subscription: upload, then download.

    FILE or the publisher's folder means all its subscriptions, a subscriber's folder its own.

    With --interval one process stays warm and reports one line a round. It goes on after a transient error (such as
    a replica that is not mounted any more), and as long as one session of several goes well; it ends when all fail
    for another reason. On SIGTERM or Ctrl-C it stops after the current round; a second signal ends it at once,
    which is safe too.

    An article that cannot go on, such as one with a row that a table does not take, is named, and the others go on; the
    exit code is 1. A session that was interrupted is finished first. If that fails for good, the message says how
    --give-up ends it: what it had written counts as users' changes from then on, its rows are kept below
    _mergerepl/unsent at the publisher, and the next session sends again what had not arrived.

    A process with --interval, and `mergerepl agent run`, listen in the publisher's folder. They run the syncs of the same
    user, installation and environment, one at a time, which saves these the start of Java. Ctrl-C ends the command then,
    and the agent finishes the sync.

    Example:
      mergerepl sync sales.yml --validate checksum
      mergerepl sync ./hq --subscriber ./north --dry-run
      mergerepl sync sales.yml --interval 60s
      mergerepl sync sales.yml --give-up 4f0c
    """
    from mergerepl import api

    target, only = sync_target(targets), subscriber_root(subscriber)
    if procedures:
        from mergerepl.transactional.procedures import load

        load(procedures)

    invocation = click.get_current_context().find_object(Invocation)
    is_handed_over = invocation is not None and invocation.progress is not None
    is_long_running = interval is not None or is_handed_over

    def once() -> SyncResult:
        with progress:
            return api.sync(
                target, subscriber=only, long_running=is_long_running, progress=progress, **options
            )

    if interval is not None and options["give_up"] is not None:
        raise click.UsageError("--give-up does not go with --interval.")
    if interval is not None:
        from mergerepl.agents.rounds import repeat
        from mergerepl.agents.server import CommandServer, warm_up

        progress = NoProgress()  # One line a round, and no others.
        # Procedures that were loaded for this command would be there for others, too.
        with CommandServer(
            [] if no_agent or procedures else agent_roots(targets), run_command, warm_up
        ) as server:
            return (
                0 if repeat(once, merge.Rounds(output), interval_s=interval, pause=server.serve) else FAILED
            )
    # Functions of users, which may be other ones in the agent, stay here.
    is_for_agent = not (no_agent or procedures or is_handed_over or agent_file()[0].exists())
    if is_for_agent and invocation is not None:
        from mergerepl.agents.client import hand_over

        code = hand_over(agent_roots(targets), invocation.arguments, progress)
        if code is not None:
            return code
    result = once()
    output.reported(*merge.synced(result))
    if not output.is_for_programs:
        for message in _errors(result):
            say_error(message)
    return exit_code(result)


def _errors(result: SyncResult) -> list[str]:
    """Return why sessions failed; what several met is said once."""
    failed = (session for session in result.sessions if session.is_failed)
    return list(dict.fromkeys(session.reason for session in failed))


def exit_code(result: SyncResult) -> int:
    """Return 0 if all went well, 3 if only transient errors happened, else 1."""
    if result.ok:
        return 0
    failed = [session for session in result.sessions if session.is_failed]
    is_different = any(not article.ok for session in result.sessions for article in session.validation or ())
    is_transient = all(session.is_transient for session in failed)
    return TRANSIENT if failed and not is_different and is_transient else FAILED


@click.command(cls=Command)
@replica_argument
@working
def capture(replica: str, output: Output, progress: Progress) -> None:
    """Record the changes made at a replica, as a sync does first.

    Worth running by itself before the change feed's files are vacuumed.

    Example:
      mergerepl capture ./north
    """
    from mergerepl import api

    root = replica_root(replica)
    with progress:
        result = api.capture(root, progress=progress)
    output.reported(*merge.captured(result))


@click.command(cls=Command)
@targets_argument
@subscriber_option
@click.option(
    "--level",
    type=click.Choice(["rowcount", "checksum"]),
    default="checksum",
    show_default=True,
    help="Compare numbers of rows, or row by row.",
)
@reporting
def validate(
    targets: tuple[str, ...], subscriber: str | None, level: Literal["rowcount", "checksum"], output: Output
) -> int:
    """Compare each subscriber with the publisher; differing keys are named.

    Changes nothing. Exit code 1 if they differ: changes that have not been synchronized yet do that too. Of several
    subscribers, one that cannot be compared is reported beside the others; 3 if that is all, and may be gone next time.

    Example:
      mergerepl validate sales.yml --level checksum
    """
    from mergerepl import api
    from mergerepl.targets import transactional_target

    if len(targets) == 1 and transactional_target(targets[0]) is not None:
        from mergerepl.cli.transactional import validated

        return validated(targets[0], subscriber_root(subscriber), output)
    validations = dict(
        api.validate(sync_target(targets), subscriber=subscriber_root(subscriber), level=level)
    )
    output.reported(*merge.validated(validations))
    bad = [article for articles in validations.values() for article in articles if not article.ok]
    if not bad:
        return 0
    return TRANSIENT if all(article.is_transient for article in bad) else FAILED

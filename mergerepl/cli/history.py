"""`mergerepl history`."""

from __future__ import annotations

import click

from mergerepl.cli.help import Command
from mergerepl.cli.options import (
    limit_option,
    replica_argument,
    replica_root,
    reporting,
    subscriber_option,
    subscriber_root,
)
from mergerepl.cli.report.output import Output


@click.command(cls=Command)
@replica_argument
@subscriber_option
@limit_option("At most so many sessions.")
@reporting
def history(replica: str, subscriber: str | None, limit: int, output: Output) -> None:
    """List past merge sessions, newest first.

    A sync that had nothing to do is not listed. Of one that failed, or left articles out, the message says why. A failure
    that repeats is listed once.

    Example:
      mergerepl history ./hq --limit 5
    """
    from mergerepl import api
    from mergerepl.config import project_file as config

    if config.transactional_target(replica) is not None:
        from mergerepl.cli.transactional import history_of

        history_of(replica, limit, output)
        return
    root, only = replica_root(replica), subscriber_root(subscriber)
    output.history(root, api.history(root, limit=limit, subscriber=only), subscriber=only)

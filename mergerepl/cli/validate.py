"""`mergerepl validate`."""

from __future__ import annotations

from typing import Literal

import click

from mergerepl.cli.help import Command
from mergerepl.cli.main import FAILED, TRANSIENT
from mergerepl.cli.options import reporting, subscriber_option, subscriber_root, sync_target, targets_argument
from mergerepl.cli.report.output import Output


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
    from mergerepl.config import project_file as config

    if len(targets) == 1 and config.transactional_target(targets[0]) is not None:
        from mergerepl.cli.transactional import validated

        return validated(targets[0], subscriber_root(subscriber), output)
    validations = dict(
        api.validate(sync_target(targets), subscriber=subscriber_root(subscriber), level=level)
    )
    output.validated(validations)
    bad = [article for articles in validations.values() for article in articles if not article.ok]
    if not bad:
        return 0
    return TRANSIENT if all(article.is_transient for article in bad) else FAILED

"""How failures are reported to people: on standard error, each message from a line that begins with `Error: `."""

import click


def say_error(message: str) -> None:
    """Write one message, its control characters shown as escapes."""
    from mergerepl.cli.report.table import printable

    lines = message.splitlines() or [""]
    click.echo("\n".join(["Error: " + printable(lines[0]), *map(printable, lines[1:])]), err=True)

"""Write docs/cli.md from the commands' own `--help`; with `--check`, only say whether it is up to date."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from mergerepl.cli.grammar import WIDTH
from mergerepl.cli.main import COMMANDS, main
from mergerepl.model.renamed import COMMANDS as OLD_COMMANDS
from mergerepl.model.renamed import OPTIONS, RENAMED

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Command line

<!-- Written by scripts/cli_reference.py from `mergerepl --help`. Do not edit. -->

What `--json` prints is described in [cli-json.md](cli-json.md), every error in [errors.md](errors.md).
"""

OLD = """## Old words

A command, an option or a Python name that is gone is answered with the new one. A name that is not in these tables stays. A
task that `cdc`, `tracking` and `transactional` had of their own, such as `cdc status`, is a command of all products now.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD, _section("mergerepl", main, None, level=2)]
    with click.Context(main, info_name="mergerepl") as context:
        for task, names in COMMANDS.items():
            parts.append(f"## {task or 'Hidden'}\n")
            for name in names:
                command = main.get_command(context, name)
                assert command is not None
                parts += _sections(name, command, context, level=3)
    return "\n".join([*parts, *_old_words()])


def _old_words() -> Iterator[str]:
    """Yield the tables of commands, options and Python names that are gone; the product answers each with the new one."""
    yield OLD
    yield _table("command", OLD_COMMANDS)
    yield _table("option", OPTIONS)
    yield _table(
        "in Python",
        {f"{place}.{name}": now for place, names in RENAMED.items() for name, now in sorted(names.items())},
    )


def _table(heading: str, rows: dict[str, str]) -> str:
    cells = [(old, new.replace("`", "")) for old, new in rows.items()]
    return "\n".join(
        [f"| {heading} | is now |", "|---|---|", *(f"| `{old}` | {new} |" for old, new in cells), ""]
    )


def _sections(name: str, command: click.Command, parent: click.Context, *, level: int) -> Iterator[str]:
    """Yield a command's section, and those of the commands of a group."""
    yield _section(name, command, parent, level=level)
    inner = click.Context(command, info_name=name, parent=parent)
    for each, found in getattr(command, "commands", {}).items():
        yield from _sections(each, found, inner, level=level + 1)


def _section(name: str, command: click.Command, parent: click.Context | None, *, level: int) -> str:
    """Return a command's heading and help."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    # A group's settings, such as `-h`, are handed down when the command line is parsed, not here.
    context.help_option_names = ["-h", "--help"]
    return f"{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context).strip()}\n```\n"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not what `mergerepl --help` says: run python scripts/cli_reference.py")
